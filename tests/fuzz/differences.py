"""Tells a wrong engine from a model of which nobody can say what it computes.

The engine's outputs are held against ONNX Runtime's, which are called the model's. They may differ with nobody at fault: where the
model's two authorities, ONNX Runtime and the evaluator that defines ONNX in Python, differ as much from each other (an integer
that overflows, a float that no integer is near to), the latter with float64 in place of float32 too (a power that is too small for
float32, within); or where some outputs are no numbers (a scale of infinity: of a query whose keys are all at minus infinity an
engine says 0) or the outputs follow the last bits of the inputs or weights (1e30 behind a normalisation). Everything else is a
fault of the engine.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, numpy_helper

from infc.compiler import export, golden, source
from infc.compiler.driver import choose_profiles
from infc.compiler.interface import Interface
from infc.compiler.isolated import IsolatedReference
from infc.compiler.options import BuildOptions
from infc.compiler.reference import Arrays, OnnxDefinition, compare

MISCOMPILED, DISPUTED, UNSTABLE = "miscompiled", "the references differ too", "the last bits of inputs or weights decide"
NO_NUMBERS = "the model gives no numbers"
UNDEFINED = (DISPUTED, UNSTABLE, NO_NUMBERS)
_IR_VERSION, _OPSET = 10, 23  # that ONNX Runtime knows: its age decides nothing where a file's operators are older than the file
_BITS = 8.0  # last places by which inputs are moved


def explain(model: Path) -> str:
    """MISCOMPILED or one of UNDEFINED, for a model whose build fails with E0503."""
    with contextlib.redirect_stderr(io.StringIO()), np.errstate(all="ignore"):
        exported = export.export(source.resolve(model), verify=False)
        profiles = choose_profiles(exported.interface, BuildOptions())
        cases = golden.make(exported, profiles, None, True)
        if any(np.isnan(v).any() for case in cases for v in case.outputs.values() if v.dtype.kind == "f"):
            return NO_NUMBERS
        if any(_unstable(exported, case.inputs, case.outputs) for case in cases):
            return UNSTABLE
        return DISPUTED if any(_disputed(exported, model, case.inputs, case.outputs) for case in cases) else MISCOMPILED


def _disputed(exported: export.Exported, path: Path, inputs: Arrays, outputs: Arrays) -> bool:
    for other in _others(exported, path):
        with contextlib.suppress(Exception):  # what it does not know, it does not decide
            if not _agree(other.run(inputs), outputs, inputs, exported.interface):
                return True
    return False


def _others(exported: export.Exported, path: Path) -> Iterator[IsolatedReference | OnnxDefinition]:
    if path.is_file():
        with contextlib.suppress(Exception):
            yield OnnxDefinition(path)
    with contextlib.suppress(Exception), tempfile.TemporaryDirectory() as folder:
        model = onnx.load(path) if path.is_file() else ir.to_proto(exported.model)
        onnx.save(_in_double(model), wide := Path(folder, "model.onnx"))
        yield _Wide(wide)
    with contextlib.suppress(Exception):
        exported.model.ir_version = min(exported.model.ir_version, _IR_VERSION)
        exported.model.opset_imports[""] = min(exported.model.opset_imports[""], _OPSET)
        yield IsolatedReference(exported.model)


class _Wide(OnnxDefinition):
    """Of a graph in float64, as one in float32."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        found = super().run({k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in inputs.items()})
        return {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in found.items()}


def _in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """With float64 for float32, wherever the file says a type."""
    pending: list[Any] = [model]
    while pending:
        message = pending.pop()
        if isinstance(message, TensorProto) and message.data_type == TensorProto.FLOAT:
            message.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(message).astype(np.float64), message.name))
        elif isinstance(message, onnx.TypeProto.Tensor) and message.elem_type == TensorProto.FLOAT:
            message.elem_type = TensorProto.DOUBLE
        elif isinstance(message, onnx.AttributeProto) and message.name in ("to", "dtype") and message.i == TensorProto.FLOAT:
            message.i = TensorProto.DOUBLE
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                pending.extend(value if field.is_repeated else [value])
    return model


def _unstable(exported: export.Exported, inputs: Arrays, outputs: Arrays) -> bool:
    """Whether floats among the inputs or the weights, moved by some last places, move the outputs by more than what is accepted."""
    rng = np.random.default_rng(0)
    moved = {name: _moved(value, rng) for name, value in inputs.items()}
    if any(moved[name] is not value for name, value in inputs.items()):
        return not _agree(exported.reference(moved), outputs, inputs, exported.interface)
    with contextlib.suppress(Exception):  # what ONNX Runtime does not know, it does not decide
        other = exported.model.clone()
        for value in other.graph.initializers.values():
            if value.const_value is not None:
                value.const_value = ir.tensor(_moved(value.const_value.numpy(), rng), name=value.name)
        before, after = (IsolatedReference(m).run(inputs) for m in (exported.model, other))
        return not _agree(after, before, inputs, exported.interface)
    return False


def _moved(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if value.dtype.kind != "f" or not value.size:
        return value
    return np.asarray(value * (1 + np.finfo(value.dtype).eps * _BITS * rng.choice((-1, 1), value.shape)), value.dtype)


def _agree(got: Arrays, want: Arrays, inputs: Arrays, interface: Interface) -> bool:
    return all(c.ok for c in compare(got, want, inputs, interface))
