"""What a recipe hands to the exporter, and what all recipes share. docs/writing_recipes.md shows how to write one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import transformers

from infc.compiler import checkpoint, samples
from infc.compiler.artifact.golden import NUMPY
from infc.compiler.errors import ExportError, InfcError, UsageError
from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.reference import cannot_run
from infc.compiler.source import Source
from infc.compiler.stored import Stored
from infc.models import packed

Arrays = dict[str, np.ndarray]
Tensors = dict[str, torch.Tensor]

_STORED = "infc_stored"  # attribute of a loaded model: what Exportable.stored will be
_SIZES = ("_size", "_heads", "_layers", "_dim", "_embeddings", "d_model")
_SLACK = 1 << 24  # parameters of a head, say, that are reported missing by their names
_DTYPES = {np.dtype(numpy): name for name, numpy in NUMPY.items()}


@dataclass(frozen=True)
class Exportable:
    """``module.forward`` takes the interface's inputs in order, as ``*tensors``, and returns a tuple of its outputs in order.

    ``reference`` runs the model the way its users do, with none of the rewriting a recipe does for export. ``stored``: weights that
    the checkpoint has in fewer bits, by their names in the model.
    """

    module: torch.nn.Module
    interface: Interface
    reference: Callable[[Arrays], Arrays]
    stored: Mapping[str, Stored] = field(default_factory=dict)


def tensors_of(found: Any, given: Tensors) -> Tensors:
    """The tensors among a ModelOutput's fields, by name. Raises ExportError E0307 if there is none."""
    if isinstance(found, torch.Tensor):
        return {"output": found}
    fields = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)} if isinstance(found, Mapping) else {}
    if not fields:
        raise ExportError("E0307", f"the model returns a {type(found).__name__} without tensors of its own",
                          hint="write a recipe that chooses the outputs: docs/writing_recipes.md")
    return fields


def exportable(model: torch.nn.Module, interface: Interface, *, adapt: Callable[[Tensors], dict[str, Any]] = dict,
               outputs: Callable[[Any, Tensors], Tensors] = tensors_of) -> Exportable:
    """A model of transformers whose ``forward`` takes the interface's inputs by name; the interface's outputs are filled in here.

    ``outputs(found, inputs)`` chooses what comes out of what the model returns; ``adapt(inputs)`` are the arguments to export
    with, where they can be simpler than what users give. Dimensions of outputs are found by running the model at two sizes.
    """
    inner = getattr(model, "config", None)
    if getattr(inner, "return_dict", True) is False:
        inner.return_dict = True  # type: ignore[union-attr]
    names = [t.name for t in interface.inputs]
    module = _Wrapped(model, names, adapt, outputs)
    plain = _Wrapped(model, names, dict, outputs)

    def reference(arrays: Arrays) -> Arrays:
        try:
            with torch.no_grad():
                found = plain.named(*(torch.from_numpy(np.array(arrays[n])) for n in names))
        except InfcError:
            raise
        except Exception as error:  # of the model's own code: any
            raise cannot_run(arrays, error) from error
        return {name: value.numpy() for name, value in found.items()}

    stored = getattr(model, _STORED, {})
    return Exportable(module, replace(interface, outputs=_outputs(interface, reference)), reference, stored)


class _Wrapped(torch.nn.Module):
    def __init__(self, model: torch.nn.Module, names: Sequence[str], adapt: Callable[[Tensors], dict[str, Any]],
                 outputs: Callable[[Any, Tensors], Tensors]) -> None:
        super().__init__()
        self.model = model
        self.names, self.adapt, self.outputs = list(names), adapt, outputs

    def named(self, *tensors: torch.Tensor) -> Tensors:
        given = dict(zip(self.names, tensors, strict=True))
        return self.outputs(self.model(**self.adapt(given)), given)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.named(*tensors).values())


def _outputs(interface: Interface, run: Callable[[Arrays], Arrays]) -> tuple[TensorSpec, ...]:
    """A dimension that is a varying input dimension's size both times is that one; one that varies otherwise gets its own name."""
    sizes = [samples.example_sizes(interface, number) for number in (0, 1)]
    first, second = (run(samples.example(interface, number)) for number in (0, 1))

    def dim(name: str, axis: int) -> int | str:
        pair = first[name].shape[axis], second[name].shape[axis]
        if pair[0] == pair[1]:
            return int(pair[0])
        return next((s for s in interface.symbols if pair == (sizes[0][s], sizes[1][s])), f"{name}.{axis}")

    return tuple(TensorSpec(name, _DTYPES[value.dtype], tuple(dim(name, axis) for axis in range(value.ndim)))
                 for name, value in first.items())


def model_class(source: Source, base: str = "") -> Any:
    """The class that config.json names; for sentence embeddings the base model, ``base`` or AutoModel's choice."""
    if source.sentence:
        return getattr(transformers, base or "AutoModel")
    auto = (source.config or {}).get("auto_map")
    if source.trust_remote_code and isinstance(auto, dict):
        own = [name for name, where in auto.items() if str(where).endswith(f".{source.architecture}")]
        if own and hasattr(transformers, own[0]):
            return getattr(transformers, own[0])
    found = getattr(transformers, source.architecture, None)
    return found if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) else None


def load_model(source: Source, cls: Any, **options: Any) -> Any:
    """The model in float32 for inference. Weights load as data only; the directory's code runs only if the source trusts it.

    Raises UsageError E0107 for weights that cannot be read, E0130 for a config.json of which no model can be made, ExportError
    E0301 for a checkpoint that lacks some of the model's.
    """
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    folder, weights = str(source.model_path), source.model_path
    stored: dict[str, Stored] = {}
    if source.gguf is not None:
        folder, weights = str(source.gguf), source.gguf.parent
        options = {**options, "gguf_file": source.gguf.name}
    elif packed.config_of(source.config or {}) is not None:
        options, stored = _unpacked(source, options)
        if hasattr(cls, "_model_mapping"):
            cls = cls._model_mapping[type(options["config"])]
    else:
        _check_size(source, cls, options)
    try:
        model, info = cls.from_pretrained(
            None if stored else weights, trust_remote_code=source.trust_remote_code, local_files_only=True,
            dtype=torch.float32, output_loading_info=True, weights_only=True, ignore_mismatched_sizes=True, **options)
    except Exception as error:
        if source.gguf is None and (fault := _fault(source, cls, options)) is not None:
            raise UsageError("E0130", f"no model can be made of it: {_reason(fault)}{_odd(source.config or {}, fault)}",
                             where=str(source.model_path / "config.json"),
                             hint="correct the value, or download the file again") from error
        raise UsageError("E0107", f"the weights cannot be loaded: {_reason(error)}", where=folder,
                         hint="download the model again; weights that need code to be unpickled are not loaded") from error
    for name, found, wanted in sorted(info["mismatched_keys"]):
        raise UsageError("E0118", f"'{name}' is {list(found)} in the weights, {list(wanted)} by config.json", where=folder,
                         hint="config.json and weights are not of the same model: download both again")
    missing = sorted(info["missing_keys"])
    if missing:
        raise ExportError("E0301", f"the checkpoint lacks {len(missing)} of the model's weights, such as {missing[0]}",
                          where=folder, hint="they would be random; use a checkpoint made for this task")
    model.eval()
    setattr(model, _STORED, stored)
    return model.requires_grad_(False)


def _unpacked(source: Source, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Stored]]:
    """Options by which a quantised checkpoint loads as floats, and its weights as they are stored."""
    state, stored = packed.read(source.model_path, source.config or {})
    config = options.get("config") or transformers.AutoConfig.from_pretrained(
        source.model_path, trust_remote_code=source.trust_remote_code, local_files_only=True)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return {**options, "config": config, "state_dict": state}, stored


def _check_size(source: Source, cls: Any, options: Mapping[str, Any]) -> None:
    """Raises UsageError E0118 if the model of config.json has more parameters than its weights have bits: transformers allocates
    what it does not find."""
    try:
        parameters = sum(p.numel() for p in _empty(source, cls, options).parameters())
    except Exception:  # what cannot be made cannot be loaded either: that says why
        return
    held = sum((source.model_path / name).stat().st_size for name in checkpoint.weights(source.model_path))
    if parameters > 8 * held + _SLACK:
        raise UsageError("E0118", f"the model has {parameters} parameters by config.json, the weights are {held} bytes",
                         where=str(source.model_path),
                         hint="config.json and weights are not of the same model: download both again")


def _empty(source: Source, cls: Any, options: Mapping[str, Any]) -> Any:
    """The model of config.json without weights. Raises whatever its own code does."""
    config = options.get("config") or transformers.AutoConfig.from_pretrained(
        source.model_path, trust_remote_code=source.trust_remote_code, local_files_only=True)
    with torch.device("meta"):
        return (cls.from_config if hasattr(cls, "from_config") else cls._from_config)(config)


def _fault(source: Source, cls: Any, options: Mapping[str, Any]) -> Exception | None:
    """Why no model can be made of config.json, whatever its weights are; None if one can."""
    try:
        _empty(source, cls, options)
    except Exception as error:
        return error
    return None


def _odd(config: Mapping[str, Any], fault: Exception) -> str:
    """What it is probably about, which errors of PyTorch do not name: sizes that are none, a value that is not in a table."""
    unknown = fault.args[:1] if isinstance(fault, KeyError) else ()
    found = [f"{name} is {value!r}" for name, value in config.items()
             if value in unknown or (type(value) is int and value <= 0 and name.endswith(_SIZES))]
    return f"; {', '.join(found)}" if found else ""


def _reason(error: Exception) -> str:
    """The first line of the message, and the next where that ends in a colon; without advice that is not for the user of infc."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    first = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    if "weights_only" in first:  # how to run what the file says
        first = f"{type(error).__name__}: it is no file of plain tensors"
    first = first.partition(" (Could this error message")[0].rstrip(".")
    return first if " " in first else f"{type(error).__name__} {first}".strip()  # a KeyError says no more than the key
