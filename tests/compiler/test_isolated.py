"""ONNX Runtime in a process of its own: what it gives, raises and survives."""

from __future__ import annotations

import gc
import multiprocessing
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from infc.compiler import export, isolated, onnx_reader, source
from infc.compiler.errors import UsageError
from infc.compiler.isolated import Died, Fault, IsolatedReference
from tests import bounded

SOFTMAX = '<ir_version: 9, opset_import: ["": 18]> g (float[2, n] x) => (float[2, n] z) { z = Softmax (x) }'
# ONNX Runtime writes beyond the list of its outputs.
DEADLY = '<ir_version: 9, opset_import: ["": 18]> g (float[4] x) => (float[2] p, float[2] q) { p, q = Split <num_outputs = 1> (x) }'
ENDLESS = """<ir_version: 9, opset_import: ["": 18]> g (int64 n, float[4] x) => (float[4] z) <bool yes = {1}> {
  z = Loop (n, yes, x) <body = b (int64 i, bool c, float[4] y) => (bool d, float[4] w) { d = Identity (c)  w = Neg (y) }> }"""
X = np.float32([[1, 2, 3], [4, 4, 4]])


@pytest.fixture(autouse=True)
def fresh() -> None:
    gc.collect()
    while isolated._idle:
        isolated._idle.pop().end()


def reference(text: str) -> IsolatedReference:
    return IsolatedReference(ir.from_onnx_text(text))


def test_it_computes_what_onnx_runtime_does(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(onnx.parser.parse_model(SOFTMAX).SerializeToString())
    for model in (reference(SOFTMAX), IsolatedReference(tmp_path / "m.onnx", threads=1, large=True)):
        np.testing.assert_allclose(model.run({"x": X, "unknown": X})["z"], np.exp(X) / np.exp(X).sum(1, keepdims=True), rtol=1e-6)
        assert model.run({"x": X[:, :0]})["z"].shape == (2, 0)


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint64", "bool", "double"])
def test_every_type_and_no_dimensions(dtype: str) -> None:
    text = f'<ir_version: 9, opset_import: ["": 18]> g ({dtype} x) => ({dtype} z) {{ z = Identity (x) }}'
    value = np.array(1, np.dtype(dtype))
    found = reference(text).run({"x": value})["z"]
    assert (found.dtype, found.shape, found) == (value.dtype, (), value)


def test_what_it_raises_is_raised() -> None:
    with pytest.raises(Fault, match="NoSuchOperator"):
        reference(SOFTMAX.replace("Softmax", "NoSuchOperator"))
    with pytest.raises(UsageError, match="cannot run") as caught:
        reference(SOFTMAX).run({"x": X[:1]})
    assert "x [1, 3]" in caught.value.where


def test_the_end_of_its_process_is_an_error_and_the_next_model_runs() -> None:
    for _ in range(2):
        with pytest.raises(Died, match="was ended by SIG"):
            reference(DEADLY)
        assert reference(SOFTMAX).run({"x": X})["z"].shape == X.shape


def test_a_process_is_used_again_but_not_by_two_at_once() -> None:
    first, second = reference(SOFTMAX), reference(SOFTMAX)
    worker = first._worker
    assert second._worker is not worker
    del first
    gc.collect()
    assert reference(SOFTMAX)._worker is worker


def test_a_run_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "SECONDS", 1)
    model = reference(ENDLESS)
    assert model.run({"n": np.array(3), "x": np.ones(4, np.float32)})["z"].tolist() == [-1] * 4
    with pytest.raises(UsageError, match="was not done after 1 s") as caught:
        model.run({"n": np.array(1 << 62), "x": np.ones(4, np.float32)})
    assert caught.value.code == "INFC-E0208"


def _used_in_a_fork() -> None:
    assert not isolated._idle
    assert reference(SOFTMAX).run({"x": X})["z"].shape == X.shape


def test_a_forked_process_has_workers_of_its_own() -> None:
    mine = reference(SOFTMAX)
    process = multiprocessing.get_context("fork").Process(target=_used_in_a_fork)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert mine.run({"x": X})["z"].shape == X.shape


def test_a_file_that_ends_onnx_runtime_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.onnx").write_bytes(onnx.parser.parse_model(DEADLY).SerializeToString())
    monkeypatch.setattr(onnx_reader, "_check_attributes", lambda model, path: None)  # which knows this one
    with pytest.raises(UsageError, match="was ended by SIG") as caught:
        export.export(source.resolve(tmp_path / "model.onnx"))
    assert caught.value.code == "INFC-E0117"
    assert not isolated._idle


def test_a_file_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "SECONDS", 1)
    text = ENDLESS.replace("int64 n, ", "").replace("<bool", f"<int64 n = {{{1 << 62}}}, bool")
    (tmp_path / "model.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    result = bounded.run("build", tmp_path / "model.onnx", "-o", tmp_path / "o.infc", "--no-tune", "--isa", "scalar")
    assert (result.exit_code, result.code) == (2, "INFC-E0208"), result
