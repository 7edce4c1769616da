"""The node cases of the onnx package, and what becomes of one: agree, refused, wrong or crash.

A case goes through the whole road of an .onnx file: written, loaded, passes, CPU target, artifact, engine. It is first taken as it
is. If that is refused and the operator has parameters among its inputs (the shape of a Reshape, the axes of a ReduceSum), it is
taken a second time with these as constants, as they are in files of models.
"""

from __future__ import annotations

import os
import pickle
import re
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from infc import runtime
from infc.compiler import assemble, onnx_file, refusals
from infc.compiler.artifact import io, writer
from infc.compiler.artifact.layout import ISAS
from infc.compiler.driver import compile_all
from infc.compiler.errors import ExportError, InfcError, UnsupportedError, UsageError
from infc.compiler.export import Exported
from infc.compiler.lowering import lower, settle
from infc.compiler.options import BuildOptions
from infc.compiler.profiles import Profile
from infc.compiler.target import Section, find

# The reasons for which infc refuses an operator for good. Anything else is "not yet", and is listed in pending.txt.
REASONS = {f"INFC-{reason.code}": reason.name for reason in refusals.REASONS}
NOT_YET = "not yet"
# Inputs that are parameters: what they hold decides shapes or what is computed.
PARAMETERS = {
    "AffineGrid": (1,), "BlackmanWindow": (0,), "CenterCropPad": (1,), "Col2Im": (1, 2), "ConstantOfShape": (0,), "CumSum": (1,),
    "CumProd": (1,), "DFT": (1, 2), "Dropout": (1, 2), "Expand": (1,), "HammingWindow": (0,), "HannWindow": (0,), "Loop": (0, 1),
    "MaxUnpool": (2,), "MelWeightMatrix": (0, 1, 2, 3, 4), "OneHot": (1,), "Pad": (1, 3), "Range": (0, 1, 2), "Reshape": (1,),
    "Resize": (1, 2, 3), "STFT": (1, 3), "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1,), "TopK": (1,),
    "Trilu": (1,), "Unsqueeze": (1,), "Upsample": (1,), "Clip": (1, 2),
    **dict.fromkeys((f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum",
                                                  "SumSquare")), (1,)),
}
_EXPANDED = re.compile(r"_expanded(_ver\d+)?(?=_|$)")
THREADS = 2
KEPT = Path(__file__).resolve().parents[2] / "build" / f"node_cases-{onnx.__version__}.pickle"


@dataclass(frozen=True)
class Case:
    """``operator`` is the one that the case is about, also where the model is its function body; ``parameters`` the names of
    inputs that are its parameters."""

    name: str
    operator: str
    parameters: tuple[str, ...]
    model: onnx.ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float

    @cached_property
    def feeds(self) -> dict[str, Any]:
        return dict(zip((v.name for v in self.model.graph.input), self.inputs, strict=False))


@dataclass(frozen=True)
class Outcome:
    """``kind`` is agree, refused, wrong or crash; ``reason`` one of REASONS or NOT_YET for refusals; ``constant`` says that it
    was taken with parameters as constants."""

    case: str
    operator: str
    kind: str
    reason: str = ""
    detail: str = ""
    constant: bool = False


def collect() -> list[Case]:
    """All of them, by name. Making them takes onnx long: they are kept in the build folder."""
    if not KEPT.exists():
        KEPT.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=KEPT.parent, delete=False) as file:
            pickle.dump(_collect(), file)
        os.replace(file.name, KEPT)
    with KEPT.open("rb") as file:
        cases: list[Case] = pickle.load(file)
    return cases


def _collect() -> list[Case]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {c.name: c for c in collect_testcases(None)}
    return [_case(c, found.get(_EXPANDED.sub("", c.name), c)) for _, c in sorted(found.items())]


def _case(case: Any, original: Any) -> Case:
    node = original.model.graph.node[-1 if len(original.model.graph.node) == 2 and original.name.startswith("test_sequence") else 0]
    operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    names = {v.name for v in case.model.graph.input}
    wanted = [node.input[i] for i in PARAMETERS.get(operator, ()) if i < len(node.input)]
    inputs, outputs = case.data_sets[0]
    return Case(case.name, operator, tuple(n for n in wanted if n in names), case.model, inputs, outputs, case.rtol, case.atol)


def outcome(case: Case) -> Outcome:
    """What becomes of the case."""
    first = _attempt(case, ())
    if first.kind != "refused" or not case.parameters:
        return first
    return _attempt(case, case.parameters)


def _attempt(case: Case, frozen: Sequence[str]) -> Outcome:
    def say(kind: str, detail: object = "", reason: str = "") -> Outcome:
        return Outcome(case.name, case.operator, kind, reason, " ".join(str(detail).split()), bool(frozen))

    try:
        model, feeds = taken(case, frozen)
        artifact, isas = build(model, feeds)
        problems = [f"{isa}: {p}" for isa in isas for p in _differences(case, _run(artifact, feeds, isa))]
    except (UnsupportedError, UsageError, ExportError) as error:
        return say("refused", f"{error.code} {error.message} ({error.where})", REASONS.get(error.code, NOT_YET))
    except InfcError as error:
        return say("crash", error)
    except Exception as error:  # whatever it is, a user should not see it
        return say("crash", f"{type(error).__name__}: {error}")
    return say("wrong", "; ".join(problems)) if problems else say("agree")


def taken(case: Case, frozen: Sequence[str]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The model with these inputs as constants, and what the others are fed."""
    return _with_constants(case, frozen), {n: _array(a) for n, a in case.feeds.items() if n not in frozen and a is not None}


def _array(value: Any) -> Any:
    """As a dense array; what is none stays as it is: a list, a sparse tensor."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value if isinstance(value, list) or value is None else np.array(value, order="C")


def _with_constants(case: Case, names: Iterable[str]) -> onnx.ModelProto:
    """The model with these inputs as initializers."""
    if not names:
        return case.model
    copy = onnx.ModelProto()
    copy.CopyFrom(case.model)
    kept = [v for v in copy.graph.input if v.name not in names]
    del copy.graph.input[:]
    copy.graph.input.extend(kept)
    copy.graph.initializer.extend(numpy_helper.from_array(_array(case.feeds[n]), n) for n in names if case.feeds[n] is not None)
    return copy


def build(model: onnx.ModelProto, feeds: dict[str, Any]) -> tuple[bytes, list[str]]:
    """The artifact of a model at the inputs' sizes, and the instruction sets it has programs for."""
    isas = [name for name, level in ISAS.items() if level <= ISAS[runtime.cpu_isa()]]
    options = BuildOptions(tune=False, threads=THREADS, isa=tuple(isas))
    plugins = [find("cpu")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.onnx"
        path.write_bytes(model.SerializeToString())
        graph, interface = onnx_file.load(path)
    sizes = {d: n for t in interface.inputs for d, n in zip(t.dims, np.shape(feeds[t.name]), strict=True) if isinstance(d, str)}
    wanted = [Profile(tuple((s, sizes[s]) for s in interface.symbols))]
    lowered, wanted = settle(lower(Exported(graph, interface, lambda inputs: {}, "none"), options, plugins), wanted)
    compiled = assemble.combine(compile_all(lowered, wanted, options, plugins, "case", isas=isas))
    spec = assemble.io_spec(lowered.interface, wanted, lowered.pads)
    return writer.pack([Section("META", b"{}"), Section("IO", io.encode(spec)), *compiled.sections]), isas


def _run(artifact: bytes, feeds: dict[str, Any], isa: str) -> dict[str, np.ndarray]:
    engine = runtime.Engine(_aligned(artifact), threads=THREADS, isa=isa, device="cpu")
    wanted = {t.name: t.dtype for t in engine.inputs}
    return engine.run({name: _as_bits(array, wanted[name]) for name, array in feeds.items() if name in wanted})


def _as_bits(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Types that NumPy lacks are passed as unsigned integers of their size."""
    return array.view(dtype) if array.dtype.isbuiltin == 2 and array.dtype.itemsize == dtype.itemsize else array


def _aligned(data: bytes) -> memoryview:
    """The bytes at a multiple of 64, as engines want them."""
    room = np.zeros(len(data) + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return memoryview(room[start : start + len(data)])


def _differences(case: Case, got: dict[str, np.ndarray]) -> list[str]:
    found = []
    for value, expected in zip(case.model.graph.output, case.outputs, strict=True):
        array, want = got[value.name], _array(expected)
        if want.dtype.isbuiltin == 2 and array.dtype.itemsize == want.dtype.itemsize:
            array = array.view(want.dtype)
        if array.dtype != want.dtype or array.shape != want.shape:
            found.append(f"{value.name} is {array.dtype}{list(array.shape)}, not {want.dtype}{list(want.shape)}")
        elif not _close(array, want, case):
            found.append(f"{value.name} differs")
    return found


def _close(array: np.ndarray, want: np.ndarray, case: Case) -> bool:
    """As ONNX's own runner compares; and a rounding of the largest value is no difference: where values cancel, the expected ones
    are roundings too."""
    if want.dtype.kind in "iub":
        return bool((array == want).all())
    wide = want.astype(np.complex128 if want.dtype.kind == "c" else np.float64)
    largest = np.abs(wide[np.isfinite(wide)]).max(initial=0.0)
    rtol = max(case.rtol, 2.0**-6) if want.dtype.name == "bfloat16" else case.rtol
    atol = max(case.atol, float(np.finfo(np.float32).eps * largest))
    return bool(np.allclose(array.astype(wide.dtype), wide, rtol=rtol, atol=atol, equal_nan=True))
