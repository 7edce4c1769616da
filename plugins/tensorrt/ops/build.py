"""Compiles the operators: CUDA sources to fat binaries, and with TensorRT's headers the library of their plugins.

    python -m infc.plugins.tensorrt.ops.build [DIR]     TENSORRT_ROOT names the headers; DIR is beside this file by default
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import LIBRARY, OPERATORS
from .declare import HERE, SMS, Operator
from .table import generate

CXX = ("g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden")


def cuda_tool(name: str) -> str | None:
    """A program of the CUDA toolkit: from NVIDIA's wheels, whose versions are pinned, or on PATH."""
    wheels = Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "bin", name)
    return str(wheels) if wheels.exists() else shutil.which(name)


def cuda_include() -> Path | None:
    """The folder of cuda_runtime_api.h: beside nvcc, or in CUDA_HOME."""
    nvcc = cuda_tool("nvcc")
    roots = [Path(nvcc).resolve().parent.parent] if nvcc else []
    roots.append(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")))
    return next((r / "include" for r in roots if (r / "include" / "cuda_runtime_api.h").exists()), None)


def tensorrt_include() -> Path | None:
    """Of TENSORRT_ROOT."""
    include = Path(os.environ.get("TENSORRT_ROOT", ""), "include")
    return include if "TENSORRT_ROOT" in os.environ and (include / "NvInfer.h").exists() else None


def fatbin(op: Operator, out: Path, sms: Sequence[int] = SMS) -> None:
    """Code for each of ``sms`` alone: no PTX. Raises CalledProcessError with nvcc's text."""
    nvcc = cuda_tool("nvcc")
    if nvcc is None:
        raise FileNotFoundError("nvcc is neither on PATH nor installed as a wheel: pip install 'infc[dev]'")
    targets = [f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in sms]
    subprocess.run([nvcc, "-fatbin", "-std=c++17", "-O3", *targets, "-o", str(out), str(op.path)], check=True,
                   env={**os.environ, "PATH": f"{Path(nvcc).parent}{os.pathsep}{os.environ['PATH']}"})


def plugins(directory: Path, tensorrt: Path, cuda: Path, sms: Sequence[int] = SMS) -> Path:
    """``directory``/libinfc_tensorrt_plugins.so, with the fat binaries in it (without ``sms``, names in their place, for a fake
    driver). It links against neither TensorRT nor CUDA. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as scratch:
        fatbins = {op.name: Path(scratch, f"{op.name}.fatbin") if sms else None for op in OPERATORS}
        for op in OPERATORS:
            if path := fatbins[op.name]:
                fatbin(op, path, sms)
        table, library = Path(scratch, "table.cpp"), Path(scratch, LIBRARY)
        table.write_text(generate(OPERATORS, fatbins))
        subprocess.run([*CXX, "-Wno-missing-field-initializers", f"-I{HERE}", f"-isystem{tensorrt}", f"-isystem{cuda}", str(table),
                        str(HERE / "launch.cpp"), str(HERE / "plugin.cpp"), "-o", str(library), "-ldl"], check=True)
        directory.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(library, directory / LIBRARY))


def main() -> None:
    tensorrt, cuda = tensorrt_include(), cuda_include()
    if tensorrt is None or cuda is None:
        why = "no CUDA headers: pip install 'infc[dev]' or set CUDA_HOME" if tensorrt else "TENSORRT_ROOT names no TensorRT headers"
        print(f"{LIBRARY} skipped: {why}")
        return
    print(plugins(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE, tensorrt, cuda))


if __name__ == "__main__":
    main()
