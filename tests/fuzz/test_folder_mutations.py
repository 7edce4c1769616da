"""The mutations are the same whenever they are made: a number makes its model again."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.fuzz import folder_mutations


def test_directories_are_changed_alike(tmp_path: Path) -> None:
    made = []
    for again in range(2):
        (tmp_path / str(again)).mkdir()
        for number in range(300):
            path = tmp_path / str(again) / "config.json"
            path.write_text(json.dumps({"a": [], "b": {"c": [1]}, "d": "e"}))
            folder_mutations.mutate(path.parent, random.Random(number))
            made.append(path.read_bytes() if path.exists() else b"")
    assert made[:300] == made[300:]
