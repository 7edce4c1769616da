"""NVIDIA's own libraries as far as they go without a GPU: what is here does not execute an engine.

The adapter is compiled against the headers that TENSORRT_ROOT names. With the fake driver of INFC_FAKE_GPU the executor comes as
far as creating a runtime of the real library, which then finds no device of its own. Each test loads the libraries in a process of
its own, so that a crash ends that alone."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infc.runtime import Engine, Error, Status
from tests.runtime import made

ROOT = Path(__file__).resolve().parents[2]
BUILT = "built for TensorRT-RTX 1.7.1.116 (SM 86,89; a driver of CUDA 13.0 or newer); found "
LEAN = "libnvinfer_lean.so.11"


def installed(package: str, library: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return str(Path(spec.submodule_search_locations[0]) / library)


@pytest.fixture(scope="session")
def rtx() -> str:
    return installed("tensorrt_rtx_libs", "libtensorrt_rtx.so.1")


@pytest.fixture(scope="session")
def lean() -> str:
    return installed("tensorrt_lean_libs", LEAN)


@pytest.fixture
def driverless() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    pytest.skip("there is an NVIDIA driver")


@pytest.fixture(scope="session")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not os.environ.get("TENSORRT_ROOT"):
        pytest.skip("TensorRT adapter skipped: TENSORRT_ROOT is not set")
    build = tmp_path_factory.mktemp("adapter")
    for command in (["-S", ROOT / "runtime", "-B", build, "-G", "Ninja", "-DINFC_TESTS=OFF"],
                    ["--build", build, "--target", "infc_tensorrt_adapter"]):
        done = subprocess.run(["cmake", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "libinfc_tensorrt_adapter.so"


def python(code: str, *arguments: object, path: Path | None = None) -> str:
    """What it prints; with a folder that the loader searches first."""
    environment = {**os.environ, **({"LD_LIBRARY_PATH": str(path)} if path else {})}
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, env=environment, capture_output=True,
                          text=True)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


# ---- The adapter alone

CREATE = """
import ctypes, sys
adapter, flavour, library = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode() or None
entry = ctypes.CDLL(adapter).infc_trt_adapter
entry.restype = ctypes.c_void_p
table = ctypes.cast(entry(), ctypes.POINTER(ctypes.c_void_p))  # of infc_trt_api
error, version, runtime, engine = ctypes.create_string_buffer(1000), (ctypes.c_uint32 * 4)(), ctypes.c_void_p(), ctypes.c_void_p()
text = ctypes.c_char_p, ctypes.c_size_t
create = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, *text)(table[1])
result = create(flavour, library, ctypes.addressof(runtime), ctypes.addressof(version), error, 1000)
print(result, *version, error.value.decode())
if result == 0:
    read = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, *text)(table[3])
    print(read(runtime, b"garbage" * 100, 700, ctypes.addressof(engine), error, 1000), engine.value, error.value.decode())
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(table[2])(runtime)
"""
OK, FAILED, NO_LIBRARY = 0, 1, 2  # infc_trt_result
ENTERPRISE, RTX = 0, 1


def test_the_adapter_links_none_of_nvidias_libraries(adapter: Path) -> None:
    needed = subprocess.run(["readelf", "-d", adapter], capture_output=True, text=True, check=True).stdout
    for name in ("nvinfer", "tensorrt", "cuda"):
        assert name not in needed.split("NEEDED", 1)[1]
    symbols = subprocess.run(["nm", "-D", "--defined-only", adapter], capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in symbols.splitlines()] == ["infc_trt_adapter"]


def test_a_runtime_of_rtx(adapter: Path, rtx: str) -> None:
    created, read = python(CREATE, adapter, RTX, rtx).splitlines()
    version = importlib.metadata.version("tensorrt_rtx_cu13_libs")
    assert created.split() == [str(OK), *version.split(".")]
    assert read.startswith(f"{FAILED} None ")
    assert "deserializeCudaEngine: Error Code" in read  # TensorRT's own words


@pytest.mark.parametrize(("flavour", "library", "message"), [
    (RTX, "/nowhere/libtensorrt_rtx.so.1", "/nowhere/libtensorrt_rtx.so.1: cannot open"),
    (RTX, "libm.so.6", "libm.so.6 is not TensorRT"),
    (ENTERPRISE, "", "libnvinfer.so.11: cannot open"),
])
def test_no_library(adapter: Path, flavour: int, library: str, message: str) -> None:
    said = python(CREATE, adapter, flavour, library)
    assert said.startswith(f"{NO_LIBRARY} 0 0 0 0 {message}")


@pytest.mark.usefixtures("driverless")
def test_the_lean_library_returns_garbage_without_a_driver(adapter: Path, lean: str) -> None:
    said = python(CREATE, adapter, ENTERPRISE, lean)
    assert said.startswith(f"{FAILED} 11 ")
    assert "CUDA initialization failure" in said


# ---- Engines

OPEN = """
import sys
from infc.runtime import Engine, Error
try:
    Engine(sys.argv[1], device="cuda", tensorrt_library=sys.argv[2] or None)
except Error as error:
    print(error.status, error)
mapped = open("/proc/self/maps").read()
print([name for name in ("libtensorrt_rtx", "libnvinfer") if name in mapped])
"""


def save(path: Path, **engine: Any) -> Path:
    path.write_bytes(made.gpu_artifact(made.engine(**engine)))
    return path


@pytest.mark.usefixtures("driverless")
def test_without_a_driver_rtx_is_not_touched(rtx: str, tmp_path: Path) -> None:
    error, mapped = python(OPEN, save(tmp_path / "m.infc"), rtx).splitlines()
    assert error.startswith(f"{Status.INCOMPATIBLE:d} {BUILT}no NVIDIA driver (libcuda.so.1: ")
    assert mapped == "[]"


@pytest.mark.usefixtures("driverless")
def test_without_a_driver_lean_is_not_touched(lean: str, tmp_path: Path) -> None:
    artifact = save(tmp_path / "m.infc", flavour="tensorrt", version=(11, 4, 0, 106))
    error, mapped = python(OPEN, artifact, lean).splitlines()
    assert error.startswith(f"{Status.INCOMPATIBLE:d} built for TensorRT 11.4.0.106 ")
    assert "libcuda.so.1" in error
    assert mapped == "[]"


@pytest.mark.usefixtures("driverless")
def test_without_a_driver_the_cpu_is_taken() -> None:
    engine = Engine(made.gpu_artifact(), threads=1)
    assert engine.device == "cpu"
    assert engine.note.startswith(f"{BUILT}no NVIDIA driver")
    with pytest.raises(Error, match="no NVIDIA driver"):
        Engine(made.gpu_artifact(cpu=False))


@pytest.fixture
def fake_driver(adapter: Path, tmp_path: Path) -> Path:
    """A folder with the fake driver and the real adapter."""
    if not os.environ.get("INFC_FAKE_GPU"):
        pytest.skip("INFC_FAKE_GPU does not name the folder of the fake driver; `make test` sets it")
    folder = tmp_path / "libraries"
    folder.mkdir()
    (folder / "libcuda.so.1").symlink_to(Path(os.environ["INFC_FAKE_GPU"]).resolve() / "libcuda.so.1")
    (folder / adapter.name).symlink_to(adapter)
    return folder


def test_another_version_of_rtx(fake_driver: Path, rtx: str, tmp_path: Path) -> None:
    error = python(OPEN, save(tmp_path / "m.infc", version=(1, 6, 0, 5)), "", path=fake_driver).splitlines()[0]
    found = importlib.metadata.version("tensorrt_rtx_cu13_libs")
    assert error.startswith(f"{Status.INCOMPATIBLE:d} built for TensorRT-RTX 1.6.0.5 (SM 86,89;")
    assert f"found TensorRT-RTX {found}; pip install tensorrt-rtx-cu13==1.6.0.5" in error


def test_a_damaged_plan(fake_driver: Path, rtx: str, tmp_path: Path) -> None:
    version = tuple(map(int, importlib.metadata.version("tensorrt_rtx_cu13_libs").split(".")))
    artifact = save(tmp_path / "m.infc", version=version, plan=b"no plan" * 100)
    error, mapped = python(OPEN, artifact, rtx, path=fake_driver).splitlines()
    assert error.startswith(f"{Status.BAD_ARTIFACT:d} TensorRT deserializeCudaEngine: ")
    assert mapped == "['libtensorrt_rtx']"


def test_the_lean_library_with_a_driver_it_refuses(fake_driver: Path, lean: str, tmp_path: Path) -> None:
    artifact = save(tmp_path / "m.infc", flavour="tensorrt", version=(11, 4, 0, 106))
    error = python(OPEN, artifact, lean, path=fake_driver).splitlines()[0]
    assert error.startswith(f"{Status.INCOMPATIBLE:d} built for TensorRT 11.4.0.106 ")
    assert "CUDA initialization failure" in error
