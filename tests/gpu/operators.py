"""The custom operators, without the rest of the compiler: plugins/tensorrt/ops needs nothing but NumPy."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugins" / "tensorrt"))

from ops import (
           BY_NAME,
           OPERATORS,
           add_rms_norm_quantize,
           build,
           declare,
           dtypes,
           int4_mat_vec,
           library,
           register,
           resources,
           search_path,
           table,
)
from ops.declare import Operator

__all__ = ["BY_NAME", "OPERATORS", "Operator", "add_rms_norm_quantize", "build", "declare", "dtypes", "int4_mat_vec",
           "library", "register", "resources", "search_path", "table"]
