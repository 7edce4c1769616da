"""What a model's own files say about preparing photos and recordings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infc.compiler.errors import UsageError

IMAGE, AUDIO = "image_processor", "feature_extractor"
_WHOLE, _PARTS = "preprocessor_config.json", "processor_config.json"
FILES = (_WHOLE, _PARTS)  # the second, of models for several kinds of input, has a part for each


def settings(files: Mapping[str, bytes], part: str) -> dict[str, Any]:
    """Of ``part``, IMAGE or AUDIO; empty if the model brings no such file. Raises UsageError E0045 for a broken one."""
    if _WHOLE in files:
        return _object(_WHOLE, files[_WHOLE])
    found = _object(_PARTS, files[_PARTS]).get(part) if _PARTS in files else None
    return found if isinstance(found, dict) else {}


def of_folder(folder: Path, part: str) -> dict[str, Any]:
    """The same, of a model directory."""
    return settings({name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}, part)


def _object(name: str, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError("E0045", f"not valid JSON: {error}", where=name, hint="download the file again") from None
    if not isinstance(found, dict):
        raise UsageError("E0045", "not a JSON object", where=name, hint="download the file again")
    return found
