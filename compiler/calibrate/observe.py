"""A graph in ONNX Runtime with its inner values as outputs: which are worth watching, and what each sample makes of them.

One sample is one run, in one thread: what is computed for it cannot depend on other samples, and several run at once. Sizes that
may vary are the sample's own, so there is no padding; where a graph insists on its sizes, the mask tells which rows are real.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from infc.compiler import residence
from infc.compiler.calibrate.data import Arrays
from infc.compiler.errors import UsageError
from infc.passes.quant import products
from infc.passes.quant.patches import Patches

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
_IN_MEMORY = 1 << 26  # bytes of weights; a graph with more goes to ONNX Runtime through a file, which it maps
_PACKED = "infc.packed"  # metadata of a graph that computes no padding


@dataclass(frozen=True)
class Watched:
    """A value by name. ``axis`` is that of its channels (-1 or 1); None: its range alone is of interest. ``channels``: how many, 0
    where that is not known. ``patches``: what a convolution meets of it, for the Gram matrix named ``gram``."""

    name: str
    axis: int | None
    channels: int
    patches: Patches | None = None
    gram: str = ""

    @property
    def key(self) -> str:
        """The name of its Gram matrix."""
        return self.gram or self.name

    @property
    def gram_bytes(self) -> int:
        return 4 * (self.channels ** 2 if self.patches is None else self.patches.groups * self.patches.width ** 2)


def watched(model: ir.Model, every: bool = False) -> list[Watched]:
    """The inputs of products with constant weights, in the graph's order; ``every``: the ranges of all other floats too."""
    found: dict[str, Watched] = {}
    for product in products.find(model)[0]:
        axis = 1 if product.conv else -1
        shape = product.x.shape
        size = shape[axis] if shape is not None and len(shape) > (1 if product.conv else 0) else 0
        found.setdefault(product.x.name or "", Watched(product.x.name or "", axis, size if isinstance(size, int) else 0))
    if every:
        for value in (*model.graph.inputs, *(o for node in model.graph for o in node.outputs)):
            if value.name and value.dtype in _FLOATS:
                found.setdefault(value.name, Watched(value.name, None, 0))
    return list(found.values())


def multiplied(model: ir.Model) -> list[Watched]:
    """What products with constant weights multiply, by the names of their Gram matrices: rows of matrices, patches of images."""
    found: dict[str, Watched] = {}
    rows = {v.name: v for v in watched(model) if v.axis == -1}
    for product in products.find(model)[0]:
        name, patches = product.x.name or "", product.patches()
        if patches is not None:
            found[product.gram] = Watched(name, 1, patches.channels, patches, product.gram)
        elif name in rows and rows[name].channels:
            found[name] = rows[name]
    return list(found.values())


class Observer:
    """``prepare`` gives the graph what it needs to run in ONNX Runtime, in place. Use it as a context: it holds a session."""

    def __init__(self, model: ir.Model, names: Sequence[str], mask: str | None, prepare: Callable[[ir.Model], object]) -> None:
        self._names = list(names)
        self._mask = None if _PACKED in model.metadata_props else mask
        copy = model.clone()
        inputs = {v.name for v in copy.graph.inputs}
        self._given = [n for n in self._names if n in inputs]
        self._outputs = _expose(copy, [n for n in self._names if n not in inputs])
        prepare(copy)
        self._session = _session(copy) if self._outputs else None
        self._inputs = {i.name for i in self._session.get_inputs()} if self._session else set()

    def run(self, inputs: Arrays) -> Arrays:
        """What one sample makes of the values, without rows of padding. Raises UsageError E0807 if the graph cannot run on it."""
        found = {name: inputs[name] for name in self._given}
        if self._session is not None:
            try:
                results = self._session.run(list(self._outputs.values()), {k: v for k, v in inputs.items() if k in self._inputs})
            except Exception as error:  # ONNX Runtime's exceptions have no common class of their own
                sizes = ", ".join(f"{k} {list(v.shape)}" for k, v in inputs.items())
                raise UsageError("E0807", f"the model cannot run on a sample: {next(iter(str(error).splitlines()), '')}"[:500],
                                 where=sizes[:500], hint="give data of the kind and sizes that the model was made for") from error
            found |= dict(zip(self._outputs, results, strict=True))
        mask = inputs.get(self._mask or "")
        return found if mask is None or mask.all() else {name: _real(value, mask) for name, value in found.items()}

    def stream(self, samples: Iterable[Arrays], at_once: int) -> Iterator[Arrays]:
        """``run`` of each sample, in order, ``at_once`` of them at a time."""
        with ThreadPoolExecutor(max(1, at_once)) as pool:
            pending: deque[Future[Arrays]] = deque()
            try:
                for sample in samples:
                    pending.append(pool.submit(self.run, sample))
                    if len(pending) > at_once:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()


def _real(value: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    """Rows at which the mask is not zero, of a value over the mask's rectangle, or over its positions one after the other."""
    real = mask.astype(bool)
    if value.shape[:mask.ndim] == mask.shape:
        return np.asarray(value[real])
    if value.ndim > 1 and value.shape[0] == mask.size > 1:
        return np.asarray(value[real.reshape(-1)])
    return value


def _expose(model: ir.Model, names: Sequence[str]) -> dict[str, str]:
    """Makes the values outputs of the graph, in float32; the output's name by the value's."""
    values = {o.name: o for node in model.graph for o in node.outputs if o.name}
    model.graph.outputs.clear()
    found = {}
    for name in names:
        value = values.get(name)
        if value is None or value.dtype not in _FLOATS:
            continue
        if value.dtype != ir.DataType.FLOAT:
            cast = ir.node("Cast", [value], {"to": ir.DataType.FLOAT.value}, name=f"{name}/observed")
            model.graph.append(cast)
            cast.outputs[0].name, cast.outputs[0].dtype, cast.outputs[0].shape = f"{name}/observed", ir.DataType.FLOAT, value.shape
            value = cast.outputs[0]
        model.graph.outputs.append(value)
        found[name] = value.name or ""
    return found


def _session(model: ir.Model) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4  # what fails is raised
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    if weights < _IN_MEMORY:
        return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, ["CPUExecutionProvider"])
    if residence.is_large(model):
        options.add_session_config_entry("session.disable_prepacking", "1")  # which copies what is mapped
    with tempfile.TemporaryDirectory(prefix="infc-") as folder:
        path = Path(folder) / "model.onnx"
        ir.save(model, path, external_data="weights")
        return ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def sizes(observed: Mapping[str, NDArray[Any]]) -> int:
    """Bytes of the values of one sample."""
    return sum(value.nbytes for value in observed.values())
