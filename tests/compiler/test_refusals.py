from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from infc.compiler.driver import build
from infc.compiler.errors import UnsupportedError

WIDE = ", ".join("1" * 9)


@pytest.mark.parametrize(("text", "name"), [
    (f"(float[{WIDE}] x) => (float[{WIDE}] y) {{ y = Neg (x) }}", "x"),
    (f"(float[1] x) => (float[{WIDE}] y) <int64[9] s = {{{WIDE}}}> {{ y = Reshape (x, s) }}", "y"),
    (f"(float[{WIDE}] x) => (float[1] y) <int64[1] s = {{1}}> {{ y = Reshape (x, s) }}", "x")])
def test_more_dimensions_than_an_artifact_can_tell_of(text: str, name: str, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> m {text}'), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match="9 dimensions, and infc takes at most 8") as caught:
        build(tmp_path / "m.onnx", tmp_path / "m.infc")
    assert (caught.value.code, caught.value.where) == ("INFC-E0416", f"'{name}'")
