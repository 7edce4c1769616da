"""infc: an ahead-of-time compiler for neural networks.

>>> import infc
>>> infc.build("MODEL_DIR", "model.infc", profiles=["batch=1,seq=128"])   # needs infc[build]
>>> engine = infc.Engine("model.infc", threads=2)                          # needs numpy only
>>> engine.run({"input_ids": ids, "attention_mask": mask})

Names load on first use, so that running an engine never imports the compiler.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infc.compiler.driver import build as build
    from infc.compiler.errors import InfcError as InfcError
    from infc.runtime import Context as Context
    from infc.runtime import Engine as Engine
    from infc.runtime import Error as Error
    from infc.runtime import TensorInfo as TensorInfo
    from infc.runtime.causal_lm import CausalLM as CausalLM
    from infc.runtime.llm import LLM as LLM

__version__ = "0.1.0"
__all__ = ["LLM", "CausalLM", "Context", "Engine", "Error", "InfcError", "TensorInfo", "build", "get_include", "get_library"]

# Idle threads of NumPy's OpenBLAS spin for 2^26 cycles after its import and after each product, on the cores that an engine
# computes on: the first run took 14 ms longer on two cores. 2^20 cycles still cover the pause between two products. OpenBLAS reads
# this when NumPy is imported, so it helps programs that import infc first; a value of the user's stays.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")

_HOMES = {
    "build": "infc.compiler.driver",
    "InfcError": "infc.compiler.errors",
    "Context": "infc.runtime",
    "Engine": "infc.runtime",
    "Error": "infc.runtime",
    "TensorInfo": "infc.runtime",
    "LLM": "infc.runtime.llm",
    "CausalLM": "infc.runtime.causal_lm",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'infc' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def get_include() -> str:
    """Folder to give a C compiler with ``-I``: it holds ``infc/infc.h``. Raises FileNotFoundError if the installation lacks it."""
    from pathlib import Path  # here, because it costs the import milliseconds

    here = Path(__file__).resolve().parent
    for folder in (here / "include", here.parent / "runtime" / "include"):  # a wheel; a checkout
        if (folder / "infc" / "infc.h").is_file():
            return str(folder)
    raise FileNotFoundError("infc/infc.h is not installed with this copy of infc")


def get_library() -> str:
    """Path of ``libinfc.so``, to link a C program with. Raises FileNotFoundError if the installation lacks it."""
    from pathlib import Path

    extension = importlib.import_module("infc.runtime._rt")  # an editable installation has it and the library elsewhere
    library = Path(str(extension.__file__)).resolve().with_name("libinfc.so")
    if not library.is_file():
        raise FileNotFoundError("libinfc.so is not installed with this copy of infc")
    return str(library)
