"""What a build takes beyond the weights of its model; and where these lie meanwhile."""

from __future__ import annotations

import contextlib
import gc
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from infc.compiler import residence

BEYOND = 1.6  # times the weights, of what a build takes more than that of a small model
WHOLE = 2.2  # times a gigabyte of weights, of all that a build takes
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


def _llama(folder: Path, size: int, layers: int) -> Path:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=2048, hidden_size=size, num_hidden_layers=layers, num_attention_heads=8,
                                      num_key_value_heads=8, intermediate_size=8 * size // 3 // 64 * 64, max_position_embeddings=64)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _descendants(process: int) -> list[int]:
    found = [process]
    for one in found:  # which grows
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found


def _resident_of(process: int) -> int:
    with contextlib.suppress(OSError):
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        return int(found[1]) << 10 if found else 0
    return 0


def _peak_of_tree(model: Path, output: Path, profile: str) -> int:
    """Bytes of the command and all of its descendants, with what they import: the most that was seen, looking each 5 ms, or the
    most that the builder itself had, whichever is more."""
    command = [sys.executable, "-c", PEAK, str(model), str(output), json.dumps([profile])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        most = 0
        while running.poll() is None:
            most = max(most, sum(map(_resident_of, _descendants(running.pid))))
            time.sleep(0.005)
        assert running.stdout is not None
        said = running.stdout.read()
    assert running.returncode == 0
    return max(most, int(said.split()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize(("make", "profile"), [(_bert, "batch=1,seq=16"), (_llama, "tokens=16,rows=1")])
def test_a_gigabyte_in_int4_takes_little_more_than_twice_itself(make, profile, tmp_path):
    model = make(tmp_path / "model", 1024, 20)
    weights = (model / "model.safetensors").stat().st_size
    assert weights > 1e9
    assert _peak_of_tree(model, tmp_path / "model.infc", profile) <= WHOLE * weights
    assert (tmp_path / "model.infc").stat().st_size <= ARTIFACT * weights


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
