"""Builds a libcuda.so.1 that runs the operators' kernels on the CPU: the fake driver of tests/fake_gpu with the kernels in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.gpu.operators import OPERATORS

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests" / "fake_gpu"
OPS = ROOT / "plugins" / "tensorrt" / "ops"
WARNINGS = ("-Wall", "-Wextra", "-Werror")


def build(directory: Path, *flags: str) -> Path:
    """``directory``/libcuda.so.1, in seconds; needs gcc and g++, which get ``flags`` too."""
    entries = [kernel.name for op in OPERATORS for kernel in op.entries()]
    kernels = directory / "kernels.inc"
    kernels.write_text(
        "".join(f'#include "{op.path}"\n#undef KERNEL\n#undef KERNELS\n' for op in OPERATORS)
        + "#define EMULATED_KERNELS(X) "
        + " ".join(f"X({e})" for e in entries)
        + "\n"
    )
    include = (
        f"-I{Path(__file__).parent}",
        f"-I{FAKE}",
        f"-I{ROOT / 'runtime' / 'src'}",
        f"-I{ROOT / 'runtime' / 'include'}",
        f"-I{OPS}",
    )
    objects = []
    c_sources = [
        Path(__file__).with_name("fake_launch.c"),
        *(FAKE / name for name in ("calls.c", "fake_cuda.c", "objects.c", "streams.c")),
    ]
    commands = [
        ["gcc", "-std=gnu11", "-O1", *WARNINGS, *include, "-fPIC", "-fvisibility=hidden", "-c", str(source)] for source in c_sources
    ]
    commands.append(
        [
            "g++",
            "-std=c++17",
            "-O2",
            "-fno-strict-aliasing",
            "-ffp-contract=off",
            *WARNINGS,
            "-Wno-unknown-pragmas",
            *include,
            f'-DKERNELS_FILE="{kernels}"',
            "-fPIC",
            "-fvisibility=hidden",
            "-c",
            str(Path(__file__).with_name("emulated_kernels.cpp")),
        ]
    )
    for command in commands:
        objects.append(str(directory / (Path(command[-1]).stem + ".o")))
        subprocess.run([*command, *flags, "-o", objects[-1]], check=True)
    library = directory / "libcuda.so.1"
    subprocess.run(["g++", *flags, "-shared", "-Wl,-soname,libcuda.so.1", "-o", str(library), *objects, "-lpthread"], check=True)
    return library


def environment(directory: Path) -> dict[str, str]:
    """For a process that shall find that driver."""
    return {**os.environ, "LD_LIBRARY_PATH": f"{directory}{os.pathsep}{os.environ.get('LD_LIBRARY_PATH', '')}"}
