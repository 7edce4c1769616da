"""Source -> ONNX graph with symbolic dimensions, held against the model it came from."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from infc.compiler import onnx_file, residence, samples, stored
from infc.compiler.errors import ExportError, UsageError
from infc.compiler.interface import INTEGERS, Interface
from infc.compiler.reference import OnnxReference, Other, Run, compare
from infc.compiler.source import Source
from infc.passes.domain import add_functions

OPSET = 23
_STEM = "model."  # where recipes keep the transformers model


@dataclass(frozen=True)
class Exported:
    """``reference`` runs the model as its users do: in PyTorch, or in ONNX Runtime for an .onnx source. ``others`` are more that
    know what it computes."""

    model: ir.Model
    interface: Interface
    reference: Run
    engine: str  # what runs the reference
    others: tuple[Other, ...] = ()


def export(source: Source, *, verify: bool = True) -> Exported:
    """The same source gives the same graph, wherever and whenever.

    Raises UsageError for a source that cannot be loaded, ExportError E0303 if PyTorch's exporter fails and E0304 if what it
    wrote computes something else than the model does (``verify``: on random inputs and on texts, padded and of mixed lengths).
    """
    if source.is_onnx:
        model, interface = onnx_file.load(source.path)
        residence.shelve(model)
        reference = onnx_file.reference(source.path, model)
        run: Run = reference.run
        if residence.is_large(model):
            run = _letting_go(run, source.path.parent)
        return Exported(model, interface, run, reference.engine, onnx_file.others(source.path, model))
    exported = _from_torch(source)
    if verify:
        check(exported, source)
    return exported


def runnable(exported: Exported, sizes: Mapping[str, int]) -> tuple[Exported, Mapping[str, np.ndarray]]:
    """The model with integers that it runs with at these sizes, and its outputs there. Raises UsageError E0208 if none are."""
    interface, first = exported.interface, None
    loose = [t for t in interface.inputs if t.range is None and t.element == t.numpy and t.numpy.kind in "iu"]
    for integers in INTEGERS if loose else INTEGERS[:1]:
        trial = replace(interface, integers=integers)
        try:
            found = exported.reference(samples.random_inputs(trial, sizes, np.random.default_rng(0)))
            return replace(exported, interface=trial), found
        except UsageError as error:
            first = first or error
    assert first is not None
    if (one := next((t for t in loose if len(t.dims) < 2), None)) is not None:
        first.hint += f", or an input that they depend on a value: --set {one.name}=VALUE"
    raise first


def check_outputs(exported: Exported, sizes: Mapping[str, int]) -> Exported:
    """Runs the model at these sizes; it, with integers that it runs with. Raises UsageError E0124 for an output of another type or
    shape than the model declares, and as ``runnable``."""
    exported, found = runnable(exported, sizes)
    for spec in exported.interface.outputs:
        if found.get(spec.name) is None:
            raise UsageError("E0124", f"the model declares output '{spec.name}' and does not compute it",
                             where=f"output '{spec.name}'", hint="take the output out of the file, or export the model again")
        shape, dtype = found[spec.name].shape, found[spec.name].dtype
        if spec.element == spec.numpy != dtype:
            raise UsageError("E0124", f"the model declares output '{spec.name}' as {spec.numpy}, it computes {dtype}",
                             where=f"output '{spec.name}'", hint="correct the output's type in the file, or export the model again")
        declared = [sizes.get(d) if isinstance(d, str) else d for d in spec.dims]  # None: a name that no input has
        if len(shape) != len(declared) or any(d not in (None, n) for d, n in zip(declared, shape, strict=True)):
            raise UsageError("E0124", f"the model declares output '{spec.name}' as {list(spec.dims)}, it computes {list(shape)}",
                             where=f"at {', '.join(f'{k}={v}' for k, v in sizes.items()) or 'its fixed sizes'}",
                             hint="correct the output's shape in the file, or export the model again")
    return exported


def check(exported: Exported, source: Source) -> None:
    """Raises ExportError E0304, naming the output, if the graph and the model differ."""
    interface = exported.interface
    cases = [(case, exported.reference(case.inputs))  # before the graph takes memory
             for case in samples.cases(interface, samples.small_sizes(interface), samples.tokenizer(source))]
    runnable = exported.model.clone()
    add_functions(runnable)
    graph = OnnxReference(runnable)
    for case, wanted in cases:
        for result in compare(_ran(graph, case, source), wanted, case.inputs, interface):
            if not result.ok:
                raise ExportError("E0304", f"the exported graph differs from the model: {result}",
                                  where=f"{source.name}, {case.name}",
                                  hint="a fault of the exporter or of infc's recipe; please report it with the model's name")


def _ran(graph: OnnxReference, case: samples.Case, source: Source) -> dict[str, np.ndarray]:
    try:
        return graph.run(case.inputs)
    except UsageError as error:  # it has sizes of the export in it
        from infc.models import registry

        reason = f"the exported graph cannot run at other sizes than the exporter saw: {_reason(error)}"
        if source.architecture not in registry.ARCHITECTURES:
            raise registry.untried(source.architecture, reason, source.name) from error
        raise ExportError("E0304", f"it differs from the model: {reason}", where=f"{source.name}, {case.name}",
                          hint="a fault of the exporter or of infc's recipe; please report it with the model's name") from error


def _from_torch(source: Source) -> Exported:
    with _quiet() as said:
        try:
            import torch

            from infc.models import registry

            exportable = registry.load(source)
            examples = tuple(torch.from_numpy(a) for a in samples.example(exportable.interface).values())
            with torch.no_grad():
                program = torch.onnx.export(
                    exportable.module.eval(), examples, input_names=[t.name for t in exportable.interface.inputs],
                    output_names=[t.name for t in exportable.interface.outputs], opset_version=OPSET, dynamo=True, verbose=False,
                    dynamic_shapes=_dynamic_shapes(exportable.interface))
        except ImportError as error:
            raise ExportError("E0305", f"exporting needs a package that is missing: {error.name}",
                              hint="pip install 'infc[build]'") from error
        except torch.onnx.OnnxExporterError as error:
            raise ExportError("E0303", f"PyTorch could not export the model: {_reason(error)}",
                              where=source.name, hint=_tail(said.getvalue())) from error
    assert program is not None
    tidy(program.model)
    stored.insert(program.model, exportable.stored)
    residence.shelve(program.model)
    reference = exportable.reference
    if residence.is_large(program.model):
        reference = _letting_go(reference, source.model_path)
    return Exported(program.model, exportable.interface, reference, "pytorch")


def _letting_go(run: Run, folder: Path) -> Run:
    """Gives the weights' memory back after each run: PyTorch maps files of safetensors."""

    files = residence.files(folder)

    def wrapped(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            return run(inputs)
        finally:
            residence.let_go(files)

    residence.let_go(files)
    return wrapped


def _dynamic_shapes(interface: Interface) -> tuple[tuple[dict[int, object], ...]]:
    """For a ``forward(self, *inputs)``."""
    import torch

    dims = {s: torch.export.Dim(s, max=interface.limits[s]) if s in interface.limits else torch.export.Dim(s)
            for s in interface.symbols}
    return (tuple({i: dims[d] for i, d in enumerate(t.dims) if isinstance(d, str)} for t in interface.inputs),)


def tidy(model: ir.Model) -> None:
    """Drops what depends on where and how the export ran, and names nodes by the module of the model they come from."""
    model.producer_version = model.doc_string = None
    model.metadata_props.clear()
    for graph in model.graphs():
        graph.doc_string = None
        graph.metadata_props.clear()
        taken: dict[str, int] = {}
        for node in graph:
            name = f"{_module(node)}/{node.op_type}".lstrip("/")
            taken[name] = taken.get(name, 0) + 1
            node.name = name if taken[name] == 1 else f"{name}_{taken[name]}"
            node.doc_string = None
            node.metadata_props.clear()
            for value in node.outputs:
                value.doc_string = None
                value.metadata_props.clear()
        for value in (*graph.inputs, *graph.initializers.values()):
            value.doc_string = None
            value.metadata_props.clear()


def _module(node: ir.Node) -> str:
    scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes", "")
    path = [s.strip(" '\"") for s in scopes.strip("[]").split(",")]
    module = path[-2] if len(path) > 1 else ""
    return "" if module.startswith("_") else module.removeprefix(_STEM)


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """Collects what the exporter prints, warns and logs; it is shown only if the export fails."""
    said = io.StringIO()
    previous = logging.root.manager.disable
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield said
        finally:
            logging.disable(previous)


def _reason(error: BaseException) -> str:
    """The first line of what began it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _tail(text: str, lines: int = 5) -> str:
    return "the exporter said: " + " | ".join(text.strip().splitlines()[-lines:]) if text.strip() else ""
