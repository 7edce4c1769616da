"""Generated files agree with layout.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from infc import runtime
from infc.compiler.artifact.document import document, example
from infc.compiler.artifact.layout import STRUCTS, c_header
from infc.compiler.artifact.reader import Artifact

ROOT = Path(__file__).resolve().parents[3]


def test_the_document_is_in_step() -> None:
    text = (ROOT / "docs" / "artifact.md").read_text()
    assert text == document(), "run python -m infc.compiler.artifact.document > docs/artifact.md"


def test_the_header_is_in_step() -> None:
    text = (ROOT / "runtime" / "src" / "layout.h").read_text()
    assert text == c_header(), "run python -m infc.compiler.artifact.layout > runtime/src/layout.h"


def test_structures_have_no_padding() -> None:
    for struct in STRUCTS:
        assert struct.size == sum(np.dtype((t, (c,)) if c else t).itemsize for _, t, c, _ in struct.fields), struct.name
        assert struct.size % 4 == 0


def test_the_example_runs() -> None:
    artifact = Artifact(example())
    artifact.verify()
    assert [s.kind for s in artifact.sections] == ["META", "IO", "PROGRAM", "WEIGHTS"]
    room = np.zeros(len(artifact.data) + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + len(artifact.data)] = np.frombuffer(artifact.data, np.uint8)
    engine = runtime.Engine(memoryview(room[start : start + len(artifact.data)]), threads=1)
    y = engine.run({"x": np.array([-1, 2, -3, 4], np.float32)})["y"]
    assert y.tolist() == [0, 2, 0, 4]
