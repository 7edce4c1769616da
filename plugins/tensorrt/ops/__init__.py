"""Custom operators for TensorRT, in the ONNX domain ``infc``: one declaration and one CUDA source each.

The package stands alone (NumPy and the standard library), so that a machine with a GPU and little else can check the kernels.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from . import add_rms_norm_quantize, int4_mat_vec
from .declare import DOMAIN, HERE, Operator

LIBRARY = "libinfc_tensorrt_plugins.so"
OPERATORS: tuple[Operator, ...] = (add_rms_norm_quantize.OPERATOR, int4_mat_vec.OPERATOR)
BY_NAME = {op.name: op for op in OPERATORS}

__all__ = ["BY_NAME", "DOMAIN", "LIBRARY", "OPERATORS", "Operator", "library", "register", "search_path"]


def library() -> Path | None:
    """The compiled plugins: INFC_TENSORRT_PLUGINS, or beside this file (``python -m infc.plugins.tensorrt.ops.build``)."""
    path = Path(os.environ.get("INFC_TENSORRT_PLUGINS") or HERE / LIBRARY)
    return path if path.exists() else None


def search_path(library: Path, folder: Path) -> str:
    """What LD_LIBRARY_PATH must be in a process that builds with plugins. TensorRT-RTX's parser opens ``libtensorrt_rtx.so``
    when it meets the first, and terminates the process if there is none; NVIDIA's wheel has ``libtensorrt_rtx.so.1`` alone,
    whose path ``library`` is. ``folder`` gets a link to it by the other name."""
    link = folder / library.name[: library.name.index(".so") + len(".so")]
    if not link.exists():
        link.symlink_to(library)
    return os.pathsep.join(p for p in (str(folder), os.environ.get("LD_LIBRARY_PATH")) if p)


def register(module: Any) -> bool:
    """Gives the operators to the plugin registry of ``module``, TensorRT's or TensorRT-RTX's bindings, in this process. False: they
    are not compiled here. Raises RuntimeError if the registry does not take them."""
    path = library()
    if path is None:
        return False
    registry = module.get_plugin_registry()
    if registry.load_library(str(path)) is None:
        raise RuntimeError(f"the plugin registry does not take {path}")
    return True
