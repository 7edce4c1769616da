"""Values of build options as people write them: precisions by target, compute capabilities, sizes in bytes, files of ranges."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from infc.compiler.artifact.layout import MAX_SMS
from infc.compiler.errors import UsageError
from infc.compiler.target import PRECISIONS

Fixed = bool | int | float | list[bool] | list[int] | list[float]  # what an input can be set to
MOST_FIXED = 64  # elements

_SM = re.compile(r"(?:sm_?)?(?:(\d{1,2})\.(\d)|(\d{2,3}))", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
CALIBRATION_METHODS = ("min-max", "percentile", "entropy", "mse")
_LARGEST = 3.4e38  # float32's
_LARGEST_FILE = 64 << 20  # of ranges: a million values and more


def precisions(items: Iterable[str]) -> dict[str, str]:
    """Target -> precision of ``f16`` or ``cpu=f32,tensorrt-rtx=f16``; the key "" is for targets that are not named.

    Raises UsageError E0760 for a precision that there is not or a target given twice.
    """
    found: dict[str, str] = {}
    for item in items:
        target, _, precision = item.rpartition("=")
        if precision not in PRECISIONS:
            raise UsageError("E0760", f"no precision is named '{precision}'", where=f"--precision {item}",
                             hint=f"one of: {', '.join(PRECISIONS)}; by target: --precision cpu=f32,tensorrt-rtx=f16")
        if target in found:
            raise UsageError("E0760", f"the precision of {target or 'every target'} is given twice", where=f"--precision {item}",
                             hint="give it once")
        found[target] = precision
    return found


def sms(items: Iterable[str | int]) -> tuple[int, ...]:
    """Compute capabilities, ascending: 89 for 89, "8.9" or "sm_89". Raises UsageError E0761."""
    found = set()
    for item in items:
        match = _SM.fullmatch(str(item))
        if not match:
            raise UsageError("E0761", f"'{item}' is no compute capability", where="--sm", hint="write --sm 86,89,120, or 8.6")
        found.add(int(match[3] or f"{match[1]}{match[2]}"))
    if len(found) > MAX_SMS:
        raise UsageError("E0761", f"{len(found)} compute capabilities are more than the {MAX_SMS} an artifact can name",
                         where="--sm", hint="build one artifact for each kind of machine")
    return tuple(sorted(found))


def memory(text: str | int, option: str = "--engine-memory") -> int:
    """Bytes of ``8G``, ``512MiB`` or a number; units are powers of 1024. Raises UsageError E0762."""
    match = _SIZE.fullmatch(str(text).strip())
    size = int(float(match[1]) * 1024 ** _UNITS[match[2].upper()]) if match else 0
    if not 0 < size < 1 << 63:
        raise UsageError("E0762", f"'{text}' is no size of memory", where=option, hint=f"write {option} 8G")
    return size


def seconds(value: float | str) -> float:
    """A positive, finite number. Raises UsageError E0763."""
    try:
        found = float(value)
    except (ValueError, TypeError):
        found = math.nan
    if not 0 < found < math.inf:
        raise UsageError("E0763", f"'{value}' is no time in seconds", where="--engine-timeout", hint="write --engine-timeout 600")
    return found


def fixed(items: Iterable[str] | Mapping[str, Any]) -> dict[str, Fixed]:
    """Input -> value of ``sr=16000``, ``flag=true``, ``scales=[0.5,2]`` or ``scales=0.5,2``, or of a mapping to such values
    and arrays.

    Raises UsageError E0210 for anything but finite numbers, truths and rows of at most 64 of them, and for a name given twice.
    """
    pairs = list(items.items()) if isinstance(items, Mapping) else [_pair(item) for item in items]
    found: dict[str, Fixed] = {}
    for name, value in pairs:
        plain = value.tolist() if hasattr(value, "tolist") else list(value) if isinstance(value, tuple) else value
        if name in found:
            raise UsageError("E0210", f"input '{name}' is given twice", where=f"--set {name}=…", hint="give it once")
        row = plain if isinstance(plain, list) else [plain]
        if not 0 < len(row) <= MOST_FIXED or any(type(v) not in (bool, int, float) or not math.isfinite(v) for v in row):
            raise _no_value(f"{name}={value}")
        found[name] = plain
    return found


def _pair(text: str) -> tuple[str, Any]:
    name, separator, value = (part.strip() for part in text.rpartition("="))
    if not (name and separator):
        raise _no_value(text)
    try:
        return name, json.loads(f"[{value}]" if "," in value and not value.startswith("[") else value.lower())
    except (ValueError, RecursionError):
        raise _no_value(text) from None


def _no_value(text: str) -> UsageError:
    return UsageError("E0210", f"'{text[:80]}' is not an input and its value", where="--set",
                      hint=f"write --set sr=16000, --set flag=true or --set scales=[0.5,2]; rows of {MOST_FIXED} numbers at most")


def calibration_method(text: str) -> str:
    """A name of CALIBRATION_METHODS, percentile perhaps with its percentage: percentile:99.9. Raises UsageError E0819."""
    name, colon, number = str(text).partition(":")
    try:
        possible = name in CALIBRATION_METHODS and (not colon or (name == "percentile" and 50 < float(number) <= 100))
    except ValueError:
        possible = False
    if not possible:
        raise UsageError("E0819", f"'{text}' is no method of calibration", where="--calibration-method",
                         hint=f"one of: {', '.join(CALIBRATION_METHODS)}; percentile:99.99 says which")
    return str(text)


def budget(value: float | str) -> float:
    """A finite number. Raises UsageError E0819."""
    try:
        found = float(value)
    except (ValueError, TypeError):
        found = math.nan
    if not math.isfinite(found):
        raise UsageError("E0819", f"'{value}' is no budget", where="--budget", hint="write --budget 0.9985, in the metric's unit")
    return found


def ranges(path: Path) -> dict[str, tuple[float, float]]:
    """Least and largest value by the name of a graph's value, of a JSON file ``{"name": [min, max], …}``.

    Raises UsageError E0764 for a file that cannot be read or holds anything else.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise UsageError("E0764", f"the file is larger than {_LARGEST_FILE >> 20} MiB", where=str(path),
                             hint="it holds something else")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError("E0764", f"cannot be read: {error.strerror}", where=str(path), hint="check the path") from error
    except (ValueError, RecursionError) as error:
        raise UsageError("E0764", f"not valid JSON: {error}", where=str(path), hint='write {"value": [min, max], …}') from None
    if not isinstance(content, Mapping):
        raise UsageError("E0764", "not a JSON object", where=str(path), hint='write {"value": [min, max], …}')
    return {name: _range(name, pair, path) for name, pair in content.items()}


def _range(name: str, pair: object, path: Path) -> tuple[float, float]:
    numbers = [v for v in pair if type(v) in (int, float) and abs(v) <= _LARGEST] if isinstance(pair, list) else []
    if not isinstance(pair, list) or len(pair) != 2 or len(numbers) != 2 or numbers[0] > numbers[1]:
        raise UsageError("E0764", f"the range of '{name}' is no pair of a least and a largest number", where=str(path),
                         hint='write {"value": [min, max], …}')
    return float(numbers[0]), float(numbers[1])
