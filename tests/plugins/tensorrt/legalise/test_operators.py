from __future__ import annotations

import json
import subprocess
import sys

import pytest

from infc.plugins.tensorrt.legalise.operators import PARSED, VERSION

_ASK = """
import json, onnx, tensorrt_rtx_bindings as trt
log = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(log)
parser = trt.OnnxParser(builder.create_network(0), log)
names = {s.name for s in onnx.defs.get_all_schemas() if s.domain == "" and parser.supports_operator(s.name)}
print(json.dumps([trt.__version__, sorted(names)]), flush=True)
"""


def test_the_table_is_what_the_parser_answers() -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=False)
    version, names = json.loads(done.stdout)
    assert sorted(PARSED) == names
    assert version == VERSION
