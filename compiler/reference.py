"""Comparing what an engine or a graph computes with what it should."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from infc.compiler import residence, samples
from infc.compiler.errors import CheckError, UsageError
from infc.compiler.interface import Interface
from infc.compiler.reference_worker import open_session

if TYPE_CHECKING:
    import onnx_ir as ir

Arrays = dict[str, np.ndarray]
Run = Callable[[Arrays], Arrays]

# Largest accepted absolute difference in float32, where values are of order one; larger values carry it in proportion.
TOLERANCE = 1e-4
STEPPED = 0.02  # part of a quantised output that may be one step off
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


@dataclass(frozen=True)
class Other:
    """One more that knows what a model computes. ``disputed``: where it does not decide against the reference, None if it does."""

    name: str
    load: Callable[[], Run]
    disputed: str | None = None


class OnnxReference:
    """A graph or an .onnx file in ONNX Runtime. ``run`` takes every input and gives every output by name.

    ``cuda``: on a GPU where ONNX Runtime has its CUDA provider and that works, else on the CPU; ``provider`` is the one that
    took the graph. ``large``: weights are mapped from the file, and neither copied nor widened before they are needed; None: as the
    graph is, of a file not. Raises UsageError E0208 if the graph cannot run at the inputs' sizes.
    """

    engine = "onnxruntime"

    def __init__(self, model: ir.Model | Path, *, threads: int = 0, cuda: bool = False, large: bool | None = None) -> None:
        import onnxruntime as ort

        large = not isinstance(model, Path) and residence.is_large(model) if large is None else large
        with loadable(model) as what:
            self._session = open_session(what, threads=threads, large=large,
                                         providers=providers(ort.get_available_providers()) if cuda else [CPU])
        self.provider: str = self._session.get_providers()[0]
        self._inputs = {i.name for i in self._session.get_inputs()}
        self._outputs = [o.name for o in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        try:
            found = self._session.run(self._outputs, {k: v for k, v in inputs.items() if k in self._inputs})
        except Exception as error:  # ONNX Runtime's exceptions have no common class of their own
            raise cannot_run(inputs, error) from error
        return dict(zip(self._outputs, found, strict=True))


class OnnxDefinition:
    """An .onnx file in ONNX's own evaluator, which is slow and knows every operator. Raises what that raises. ``saturate``: floats
    that no integer is near to, of which ONNX does not say what they are cast to, become the nearest one that there is, NaN 0."""

    engine = "onnx"

    def __init__(self, path: Path, *, saturate: bool = False) -> None:
        from onnx.reference import ReferenceEvaluator

        self._evaluator = ReferenceEvaluator(str(path), new_ops=[_saturating_cast()] if saturate else None)

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        from onnx.helper import tensor_dtype_to_np_dtype

        types = {t.name: tensor_dtype_to_np_dtype(t.type.tensor_type.elem_type) for t in self._evaluator.proto_.graph.input}
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a mean of nothing
                found = self._evaluator.run(None, {k: v.view(types[k]) if types[k].isbuiltin == 2 else v for k, v in inputs.items()
                                                   if k in types})
        except Exception as error:  # of operators written in Python: any
            raise cannot_run(inputs, error) from error
        return {name: _bits(np.asarray(value)) for name, value in zip(self._evaluator.output_names, found, strict=True)}


def _saturating_cast() -> Any:
    """ONNX's Cast, but for the floats that are outside of an integer type."""
    from onnx.helper import tensor_dtype_to_np_dtype
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops.op_cast import cast_to

    class Cast(OpRun):
        op_domain = ""

        def _run(self, x: np.ndarray, to: Any, saturate: int = 1, round_mode: str = "up") -> tuple[np.ndarray]:
            wanted = tensor_dtype_to_np_dtype(to)
            if wanted.kind not in "iu" or np.dtype(x.dtype).kind != "f":
                return (cast_to(x, to, bool(saturate), round_mode),)
            limits, wide = np.iinfo(wanted), np.nan_to_num(x.astype(np.float64), posinf=np.inf, neginf=-np.inf)
            inside = (wide > float(limits.min) - 1) & (wide < float(limits.max) + 1)
            edge = np.where(wide < 0, limits.min, limits.max).astype(wanted)
            return (np.where(inside, np.where(inside, wide, 0).astype(wanted), edge),)

    return Cast


def _bits(array: np.ndarray) -> np.ndarray:
    """A type of ml_dtypes as engines give it."""
    if array.dtype.isbuiltin != 2:
        return array
    if array.dtype.name in ("int4", "int2"):  # whose bits have no sign that int8 would know
        return array.astype(np.int8)
    return array.view(f"u{array.dtype.itemsize}")


def cannot_run(inputs: Mapping[str, np.ndarray], error: Exception) -> UsageError:
    """E0208, whatever it is that the model's own code or the runtime of its file raised."""
    sizes = ", ".join(f"{k} {list(v.shape)}" for k, v in inputs.items())
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return UsageError("E0208", f"the model itself cannot run at these sizes: {reason}", where=sizes,
                      hint="give sizes that the model was made for with --profile")


def providers(available: Iterable[str]) -> list[str]:
    """What to ask ONNX Runtime for: its CUDA provider where this installation has it, and the CPU for what that does not take."""
    return [p for p in (CUDA, CPU) if p == CPU or p in available]


@contextmanager
def loadable(model: ir.Model | Path) -> Iterator[str | bytes]:
    """What ONNX Runtime loads: a path, or bytes where the weights are few enough."""
    import onnx_ir as ir

    if isinstance(model, Path):
        yield str(model)
    elif not residence.is_large(model):
        yield ir.to_proto(model).SerializeToString()
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            ir.save(model, path, external_data="weights")
            yield str(path)


@dataclass(frozen=True)
class Comparison:
    """One output: ``difference`` is the largest absolute one (infinite for NaN or a wrong shape), ``stepped`` the part of a
    quantised output that is accepted as one step off: what is halfway between two steps is either."""

    output: str
    difference: float
    tolerance: float
    note: str = ""
    stepped: float = 0.0

    @property
    def ok(self) -> bool:
        return self.difference <= self.tolerance and not self.note

    def __str__(self) -> str:
        return f"{self.output}: {self.note or f'largest difference {self.difference:.3g}, accepted {self.tolerance:.3g}'}"


def tolerance(expected: np.ndarray, rounding: float = 0.0) -> float:
    """Accepted absolute difference: exact for integers. ``rounding`` as Interface's: two that round at different places differ by
    some steps."""
    if expected.dtype.kind != "f":
        return 0.0
    step = max(rounding, float(np.finfo(expected.dtype).eps) if expected.dtype == np.float16 else 0.0)
    finite = expected[np.isfinite(expected)]
    return max(TOLERANCE, 4 * step) * max(1.0, float(np.abs(finite).max(initial=0.0)))


def compare(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray],
            interface: Interface, least: float = 0.0) -> list[Comparison]:
    """One Comparison for each expected output. Positions that hold padding are not compared: engines do not compute them. ``least``
    is accepted of floats whatever their size."""
    got, want = numbers(got, interface), numbers(want, interface)
    return [_compare(name, got.get(name), expected, _real(name, inputs, interface), interface, least)
            for name, expected in want.items()]


def numbers(outputs: Mapping[str, np.ndarray], interface: Interface) -> Arrays:
    """With float32 for the bits of floats that numpy lacks."""
    coded = {t.name: t.element for t in interface.outputs if t.element != t.numpy and "f" in t.dtype}
    return {n: a.view(coded[n]).astype(np.float32) if n in coded and a.dtype.itemsize == coded[n].itemsize else a
            for n, a in outputs.items()}


def masked(outputs: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray], interface: Interface) -> Arrays:
    """The outputs with zeros at positions that hold padding."""
    cleared = {}
    for name, value in outputs.items():
        real = _real(name, inputs, interface)
        cleared[name] = value if real is None else np.where(_expand(real, value), value, np.zeros((), value.dtype))
    return cleared


def _compare(name: str, got: np.ndarray | None, want: np.ndarray, real: np.ndarray | None,
             interface: Interface, least: float) -> Comparison:
    limit = max(tolerance(want, interface.rounding), least if want.dtype.kind == "f" else 0.0)
    if got is None:
        return Comparison(name, float("inf"), limit, "the output is missing")
    if got.shape != want.shape:
        return Comparison(name, float("inf"), limit, f"shape {list(got.shape)}, expected {list(want.shape)}")
    if real is not None:
        got, want = got[real], want[real]
    if np.isnan(got).any() and not np.isnan(want).any():
        return Comparison(name, float("inf"), limit, "NaN where the expected values are numbers")
    if got.size and not got.any() and want.any():
        return Comparison(name, float(np.abs(want).max()), limit, "all zero")
    same = (got == want) | (np.isnan(got) & np.isnan(want))  # infinities among them
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(got.astype(np.float64) - want.astype(np.float64)))
    largest, step = float(apart.max(initial=0.0)), interface.steps.get(name, 0.0)
    stepped = float((apart > limit).mean()) if largest > limit else 0.0
    if 0 < stepped <= STEPPED and largest <= step + limit:
        return Comparison(name, largest, step + limit, stepped=stepped)
    return Comparison(name, largest, limit)


def _real(name: str, inputs: Mapping[str, np.ndarray], interface: Interface) -> np.ndarray | None:
    """[batch, seq] bool: positions of an output that are not padding; None if the output has no such dimensions."""
    dims = next((t.dims for t in interface.outputs if t.name == name), ())
    mask_dims = interface.mask_dims()
    if interface.mask is None or interface.mask not in inputs or dims[: len(mask_dims)] != mask_dims:
        return None
    return np.asarray(inputs[interface.mask] != 0)


def _expand(real: np.ndarray, value: np.ndarray) -> np.ndarray:
    return real.reshape(real.shape + (1,) * (value.ndim - real.ndim))


class PassChecker:
    """For the pass manager's ``check``: runs the graph before and after a pass in ONNX Runtime.

    ``with_functions`` adds the bodies of the infc domain's operators to a graph.
    """

    def __init__(self, interface: Interface, with_functions: Callable[[ir.Model], object]) -> None:
        self._interface = interface
        self._with_functions = with_functions
        self._cases = list(samples.cases(interface, samples.small_sizes(interface)))

    def __call__(self, before: ir.Model, after: ir.Model, pass_name: str) -> None:
        """Raises CheckError E0501 with the pass, the output and the largest difference."""
        old, new = self._session(before, pass_name), self._session(after, pass_name)
        for case in self._cases:
            for result in compare(new.run(case.inputs), old.run(case.inputs), case.inputs, self._interface):
                if not result.ok:
                    raise CheckError("E0501", f"pass {pass_name} changed what the graph computes: {result}", where=case.name,
                                     hint=f"build with --disable {pass_name}, and please report it")

    def _session(self, model: ir.Model, pass_name: str) -> OnnxReference:
        copy = model.clone()
        self._with_functions(copy)
        try:
            return OnnxReference(copy)
        except Exception as error:
            raise CheckError("E0502", f"ONNX Runtime rejects the graph around pass {pass_name}: {str(error).splitlines()[0]}",
                             where=pass_name, hint=f"build with --disable {pass_name}, and please report it") from error
