"""What ``infc doctor`` says about GPUs: the driver and its devices, TensorRT's packages, and what works with them."""

from __future__ import annotations

import ctypes
import importlib.util
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DRIVER = "libcuda.so.1"
# target: the module that builds engines, its package, and the package of the library that runs them
TARGETS = {"tensorrt-rtx": ("tensorrt_rtx_bindings", "tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu13-libs"),
           "tensorrt": ("tensorrt_bindings", "tensorrt-cu13-bindings", "tensorrt-cu13-libs")}
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_NAME = 128
_BAD_ARTIFACT = 4  # INFC_STATUS_BAD_ARTIFACT


def describe() -> dict[str, Any]:
    """Nothing of this is needed for anything but GPU targets."""
    driver = find_driver()
    targets = {name: {"builder": _version(bindings) if importlib.util.find_spec(module) else None, "library": _version(libs)}
               for name, (module, bindings, libs) in TARGETS.items()}
    for name, found in targets.items():
        found |= {"building": _building(name, driver, found["builder"]), "running": _running(name, driver, found["library"])}
    return {"driver": driver, "targets": targets}


def find_driver(library: str = DRIVER) -> dict[str, Any]:
    """``cuda``: the driver's CUDA version, such as "13.0"; ``devices``: name and compute capability of each; ``error``: why not."""
    try:
        cuda = ctypes.CDLL(library)
        number = ctypes.c_int()
        _call(cuda, "cuInit", 0)
        _call(cuda, "cuDriverGetVersion", ctypes.byref(number))
        found: dict[str, Any] = {"cuda": f"{number.value // 1000}.{number.value % 1000 // 10}", "devices": [], "error": ""}
        _call(cuda, "cuDeviceGetCount", ctypes.byref(number))
        found["devices"] = [_device(cuda, i) for i in range(number.value)]
        return found
    except (OSError, AttributeError) as error:
        return {"cuda": None, "devices": [], "error": str(error)}


def _call(cuda: ctypes.CDLL, name: str, *arguments: Any) -> None:
    status = getattr(cuda, name)(*arguments)
    if status:
        raise OSError(f"{name} failed with status {status}")


def _device(cuda: ctypes.CDLL, ordinal: int) -> dict[str, Any]:
    device, number, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(_NAME)
    _call(cuda, "cuDeviceGet", ctypes.byref(device), ordinal)
    _call(cuda, "cuDeviceGetName", name, _NAME, device)
    sm = 0
    for attribute in (_MAJOR, _MINOR):
        _call(cuda, "cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        sm = 10 * sm + number.value
    return {"name": name.value.decode(errors="replace"), "sm": sm}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _building(target: str, driver: dict[str, Any], builder: str | None) -> str:
    """"ok", or what is missing."""
    if not builder:
        return f"{TARGETS[target][1]} is not installed; pip install 'infc[{target}]'"
    if target == "tensorrt" and not driver["devices"]:
        return "it takes the GPU that the engine is for"
    return "ok"


def _running(target: str, driver: dict[str, Any], library: str | None) -> str:
    """"ok", or what is missing: what the runtime says of an engine that is built for this machine's GPU and damaged, which is
    found out last."""
    try:
        from infc.runtime import Engine, Error
    except ImportError as error:
        return f"the runtime cannot be loaded ({error})"
    sm = driver["devices"][0]["sm"] if driver["devices"] else 89
    try:
        Engine(_probe(target, sm, library), device="cuda")
    except Error as error:
        if error.status == _BAD_ARTIFACT:
            return "ok"
        return (str(error).partition("found ")[2] or str(error)).partition(";")[0]
    return "ok"


def _probe(target: str, sm: int, library: str | None) -> bytes:
    from infc.compiler.artifact import io, tensorrt, writer
    from infc.compiler.target import Section

    numbers = [int(n) for n in (library or "").split(".") if n.isdigit()]
    major, minor, patch, build = [*numbers, 0, 0, 0, 0][:4]
    engine = tensorrt.TensorRtEngine(target, (major, minor, patch, build), 0, (sm,), (0,), "infc build MODEL", b"no engine")
    spec = io.IoSpec([io.IoTensor("x", "f32", (1,))], [io.IoTensor("y", "f32", (1,))])
    return writer.pack([Section("META", b"{}"), Section("IO", io.encode(spec)), Section("TENSORRT", tensorrt.encode(engine))])


def rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """For the table of ``infc doctor``."""
    driver = found["driver"]
    devices = ", ".join(f"{d['name']} (SM {d['sm']})" for d in driver["devices"])
    yield "NVIDIA driver", f"CUDA {driver['cuda']}; {devices or 'no devices'}" if driver["cuda"] else f"none: {driver['error']}"
    for target, about in found["targets"].items():
        versions = f"builder {about['builder'] or 'not installed'}, library {about['library'] or 'not installed'}"
        yield f"target {target}", f"{versions}; building: {about['building']}; running: {about['running']}"
