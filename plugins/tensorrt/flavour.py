"""The two TensorRTs: what each is called, which devices it builds for, and from which device on a type can be used."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from infc.compiler.errors import UnsupportedError, UsageError

# The least compute capability whose kernels take a type; the builder refuses a set of SMs if one of them is below.
LEAST_SM = {"f32": 75, "f16": 75, "int8": 75, "bf16": 80, "int4": 80, "fp8": 89, "fp4": 100}

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


@dataclass(frozen=True)
class Flavour:
    """``module`` is what Python imports and ``package`` what pip installs; ``sms`` are the compute capabilities that are built for
    without a GPU, none if only this machine's. ``cuda`` is the least CUDA version of a driver, 1000 * major + 10 * minor;
    ``timings`` says whether the builder measures tactics and so has use for a timing cache; ``sparsity`` what is known of a weight
    that may use sparse tensor cores."""

    name: str
    title: str
    module: str
    package: str
    sms: tuple[int, ...]
    cuda: int
    timings: bool
    sparsity: str


RTX = Flavour("tensorrt-rtx", "TensorRT-RTX", "tensorrt_rtx_bindings", "tensorrt-rtx-cu13", (75, 80, 86, 89, 120, 121), 13000,
              timings=False, sparsity="deferred")  # its kernels are chosen on the device
ENTERPRISE = Flavour("tensorrt", "TensorRT", "tensorrt_bindings", "tensorrt-cu13", (), 13000, timings=True, sparsity="eligible")


def machine_sm() -> int | None:
    """The compute capability of this machine's first GPU, such as 89; None without a driver or a device."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    parts = []
    device = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return None
    for attribute in (_MAJOR, _MINOR):
        value = ctypes.c_int()
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
        parts.append(value.value)
    return parts[0] * 10 + parts[1]


def choose_sms(flavour: Flavour, wanted: Sequence[int], machine: int | None) -> tuple[int, ...]:
    """The compute capabilities to build one engine for, ascending; any set of those a flavour knows is legal together.

    Raises UsageError E0730 for one it does not know, E0731 if none is given and there is no GPU to take it from; UnsupportedError
    E0732 where only this machine's GPU can be built for and it is another or missing.
    """
    if not flavour.sms:
        return _machines(flavour, wanted, machine)
    known = ", ".join(map(str, flavour.sms))
    if not wanted and machine is None:
        raise UsageError("E0731", f"{flavour.title} has to be told which GPUs to build for: there is none here", where="--sm",
                         hint=f"give --sm with some of {known}, for example --sm 86,89,120")
    chosen = tuple(sorted(set(wanted or (machine,)))) if machine is not None else tuple(sorted(set(wanted)))
    for sm in chosen:
        if sm not in flavour.sms:
            raise UsageError("E0730", f"{flavour.title} does not build for SM {sm}", where=f"--sm {','.join(map(str, chosen))}",
                             hint=f"it knows {known}; --target {ENTERPRISE.name} builds on the machine with the GPU")
    return chosen


def _machines(flavour: Flavour, wanted: Sequence[int], machine: int | None) -> tuple[int, ...]:
    where = f"--sm {','.join(map(str, wanted))}" if wanted else f"--target {flavour.name}"
    hint = f"build on the machine with the GPU, or use --target {RTX.name}, which needs none"
    if machine is None:
        raise UnsupportedError("E0732", f"{flavour.title} builds for this machine's GPU only, and there is none",
                               where=where, hint=hint)
    if set(wanted) - {machine}:
        raise UnsupportedError("E0732", f"{flavour.title} builds for this machine's GPU only, which has SM {machine}",
                               where=where, hint=hint)
    return (machine,)


def too_old(kind: str, sms: Iterable[int]) -> tuple[int, ...]:
    """Those of ``sms`` that cannot use the type ``kind``, a key of LEAST_SM."""
    return tuple(sm for sm in sms if sm < LEAST_SM[kind])


def check_type(kind: str, sms: Iterable[int], where: str) -> None:
    """Raises UnsupportedError E0733 if one of ``sms`` cannot use the type ``kind``."""
    old = too_old(kind, sms)
    if old:
        raise UnsupportedError("E0733", f"{kind} needs SM {LEAST_SM[kind]} or newer, which SM {', '.join(map(str, old))} is not",
                               where=where, hint=f"leave {'it' if len(old) == 1 else 'them'} out of --sm, or choose another type")
