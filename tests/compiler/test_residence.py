"""What a build takes beyond the weights of its model; and where these lie meanwhile."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from infc.compiler import residence

BEYOND = 1.6  # times the weights, of what a build takes more than that of a small model
ARTIFACT = 0.16  # of the weights
PEAK = """
import json, pathlib, re, sys
from infc.compiler.driver import build
build(sys.argv[1], sys.argv[2], precision="int4", method="rtn", tune=False, profiles=json.loads(sys.argv[3]))
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) << 10)
"""


def _onnx(folder: Path, size: int, layers: int) -> Path:
    """Weights in a file of their own."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(0, size**-0.5, (size, size)).astype(np.float32), f"w{i}") for i in range(layers)]
    nodes = [node for i in range(layers) for node in (helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"m{i}"], name=f"m{i}"),
                                                      helper.make_node("Tanh", [f"m{i}"], [f"x{i + 1}"], name=f"t{i}"))]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name in ("x0", f"x{layers}")]
    model = helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:], weights),
                              opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    folder.mkdir()
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="weights")
    return folder / "model.onnx"


def _bert(folder: Path, size: int, layers: int) -> Path:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=100, hidden_size=size, num_hidden_layers=layers, num_attention_heads=4,
                                     intermediate_size=4 * size, max_position_embeddings=32)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def _peak(model: Path, output: Path, profiles: list[str]) -> int:
    """Bytes, of the one process that builds."""
    command = [sys.executable, "-c", PEAK, str(model), str(output), json.dumps(profiles)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    return int(done.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(("make", "size", "layers", "weights", "profile"), [
    (_onnx, 4096, 3, 3 * 4096**2 * 4, "n=4"),
    (_bert, 1024, 4, 4 * 12 * 1024**2 * 4, "batch=1,seq=16"),
])
def test_a_build_in_int4_takes_little_more_than_the_weights(make, size, layers, weights, profile, tmp_path):
    small = _peak(make(tmp_path / "small", 64, 2), tmp_path / "small.infc", [profile])
    large = _peak(make(tmp_path / "large", size, layers), tmp_path / "large.infc", [profile])
    assert large - small <= BEYOND * weights
    assert (tmp_path / "large.infc").stat().st_size <= ARTIFACT * weights


def _graph(array: np.ndarray) -> ir.Model:
    value = ir.Value(name="w", shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.FLOAT), const_value=ir.tensor(array))
    other = ir.Value(name="v", shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.FLOAT), const_value=value.const_value)
    return ir.Model(ir.Graph([], [], nodes=[], initializers=[value, other], opset_imports={"": 23}), ir_version=10)


def test_a_large_graph_s_weights_move_to_a_file_that_goes_with_them(tmp_path, monkeypatch):
    monkeypatch.setattr(residence, "LARGE", 1 << 20)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    array = np.arange(1 << 18, dtype=np.float32).reshape(512, 512)
    model = _graph(array.T)
    residence.shelve(model)
    copy = model.clone()
    first, second = (model.graph.initializers[name].const_value for name in "wv")
    assert first is second
    assert [p.stat().st_size for p in tmp_path.glob("*/weights")] == [array.nbytes]
    np.testing.assert_array_equal(first.numpy(), array.T)
    before = list(tmp_path.iterdir())
    residence.shelve(model)  # again: there is nothing left to move
    assert model.graph.initializers["w"].const_value is first
    assert before[0] in tmp_path.iterdir()
    del model, first, second
    gc.collect()
    np.testing.assert_array_equal(copy.graph.initializers["w"].const_value.numpy(), array.T)
    del copy
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_small_graphs_stay_as_they_are():
    model = _graph(np.ones((512, 512), np.float32))
    before = model.graph.initializers["w"].const_value
    residence.shelve(model)
    assert model.graph.initializers["w"].const_value is before


def _resident(path: Path) -> int:
    lines = Path("/proc/self/smaps").read_text().splitlines()
    places = [i for i, line in enumerate(lines) if line.endswith(str(path))]
    return sum(int(next(line for line in lines[i + 1:] if line.startswith("Rss:")).split()[1]) for i in places)


def test_mapped_files_are_let_go_and_what_was_written_stays(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(1 << 20))
    read, written = (np.memmap(tmp_path / name, np.uint8, "c") for name in "ab")
    assert int(read.sum()) == 0
    written[5] = 7
    assert _resident(tmp_path / "a") == 1024
    residence.let_go(residence.files(tmp_path))
    assert _resident(tmp_path / "a") == 0
    assert int(read.sum()) == 0
    assert written[5] == 7
