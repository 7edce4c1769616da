"""Changes to the files of a model directory: values in JSON, headers of safetensors, bytes of anything."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

VALUES: tuple[Any, ...] = (None, True, False, -1, 0, 1, 3, 1 << 20, 1 << 31, 1 << 63, 10**30, 1e308, -0.5, float("nan"), "", "x",
                           "\n", "\x1b[31m", "../../../etc/passwd", "x" * 5000, [], {}, [[]], {"a": 1}, [-1], ["x"], "gelu",
                           "float16")


def mutate(folder: Path, rng: random.Random) -> str:
    """Changes one file of the directory, and says which."""
    path = rng.choice(sorted(p for p in folder.rglob("*") if p.is_file()))
    data, kind = path.read_bytes(), rng.random()
    if kind < 0.1:
        path.unlink()
    elif kind < 0.25:
        path.write_bytes(_bytes(data, rng))
    elif path.suffix == ".safetensors":
        path.write_bytes(_safetensors(data, rng))
    elif path.suffix == ".json":
        path.write_text(_json(data.decode(), rng), encoding="utf-8")
    else:
        path.write_bytes(_bytes(data, rng))
    return str(path.relative_to(folder))


def _bytes(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    cut = data[:at] + data[at + rng.randint(0, 8):]
    return rng.choice((data[:at], data[:at] + rng.randbytes(4) + data[at + 4:], cut, data + data[at:], b"", b"\xff\xfe\x00"))


def _json(text: str, rng: random.Random) -> str:
    if rng.random() < 0.05:
        return rng.choice(("[" * 100_000, "null", "[]", "{}", '{"a": 1' + "0" * 5000 + "}", "1e999999", '"\\ud800"'))
    value = json.loads(text)
    for _ in range(rng.randint(1, 3)):
        _change(value, rng)
    return json.dumps(value)


def _change(value: Any, rng: random.Random) -> None:
    """One entry, at a depth that chance finds."""
    while isinstance(value, dict | list) and value:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.8:
            value = value[key]
            continue
        if rng.random() < 0.2:
            del value[key]
        else:
            value[key] = copy.deepcopy(rng.choice(VALUES))  # which is changed itself, perhaps
        return


def _safetensors(data: bytes, rng: random.Random) -> bytes:
    size = int.from_bytes(data[:8], "little")
    if rng.random() < 0.2:
        return rng.choice((0, 1, size - 1, size + 1, len(data), 1 << 40, (1 << 64) - 1)).to_bytes(8, "little") + data[8:]
    header = _json(data[8:8 + size].decode(), rng).encode()
    return len(header).to_bytes(8, "little") + header + data[8 + size:]
