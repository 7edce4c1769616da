"""Export: the graph computes what the model does, is the same everywhere, and a difference is an error."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from infc.compiler.errors import ExportError, UsageError
from infc.compiler.export import Exported, check, export
from infc.compiler.source import resolve

ROOT = Path(__file__).resolve().parents[2]
HASH = ("import hashlib, sys, onnx_ir as ir; from infc.compiler import export, source; "
        "m = export.export(source.resolve(sys.argv[1]), verify=False).model; "
        "print(hashlib.sha256(ir.to_proto(m).SerializeToString(deterministic=True)).hexdigest())")


def proto_bytes(model: ir.Model) -> bytes:
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def test_interface(exported: Exported) -> None:
    inputs = {t.name: (t.dims, t.dtype, t.fill, t.range) for t in exported.interface.inputs}
    assert inputs == {"input_ids": (("batch", "seq"), "i64", None, (0, 63)),
                      "attention_mask": (("batch", "seq"), "i64", 1, (0, 1)),
                      "token_type_ids": (("batch", "seq"), "i64", 0, (0, 1))}
    outputs = [(v.name, str(v.shape)) for v in exported.model.graph.outputs]
    assert outputs == [("last_hidden_state", "[batch,seq,32]"), ("sentence_embedding", "[batch,32]")]
    assert (dict(exported.interface.limits), dict(exported.interface.lengths)) == ({"seq": 40}, {"seq": 32})


def test_nothing_of_the_place_is_left(exported: Exported, bert: Path) -> None:
    data = proto_bytes(exported.model)
    for trace in (str(bert), str(ROOT), sys.prefix, "stack_trace", "site-packages", ".py"):
        assert trace.encode() not in data, trace
    names = [n.name for n in exported.model.graph]
    assert len(set(names)) == len(names)
    assert "encoder.layer.1.attention.self.query/MatMul" in names


def test_same_graph_from_another_process_and_directory(exported: Exported, bert: Path, tmp_path: Path) -> None:
    other = shutil.copytree(bert, tmp_path / "elsewhere")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", HASH, str(other)], cwd=tmp_path, env=environment, capture_output=True, text=True,
                          check=True)
    assert done.stdout.strip() == hashlib.sha256(proto_bytes(exported.model)).hexdigest()
    assert done.stderr == ""


@pytest.mark.parametrize(("architecture", "code"), [("BertModel", "E0304"), ("FunnelModel", "E0306")])
def test_a_graph_with_sizes_of_the_export_in_it(architecture: str, code: str, exported: Exported, bert: Path) -> None:
    model = exported.model.clone()
    for value in model.graph.inputs:
        value.shape = ir.Shape([2, 7])
    with pytest.raises(ExportError, match="cannot run at other sizes") as caught:
        check(replace(exported, model=model), replace(resolve(bert), architecture=architecture))
    assert caught.value.code == f"INFC-{code}"
    assert (architecture in caught.value.message) == (code == "E0306")


def test_a_wrong_graph_is_an_error(exported: Exported, bert: Path) -> None:
    model = exported.model.clone()
    name = "model.encoder.layer.1.output.LayerNorm.bias"
    value = model.graph.initializers[name]
    assert value.const_value is not None
    value.const_value = ir.tensor(value.const_value.numpy() + np.float32(0.01), name=name)
    with pytest.raises(ExportError, match="last_hidden_state") as caught:
        check(Exported(model, exported.interface, exported.reference, "pytorch"), resolve(bert))
    assert caught.value.code == "INFC-E0304"


def test_a_failing_exporter_tells_why(bert: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(*args: object, **options: object) -> None:
        print("what it was doing")
        raise torch.onnx.OnnxExporterError("no such operator\nand much more")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(ExportError, match="no such operator") as caught:
        export(resolve(bert))
    assert caught.value.code == "INFC-E0303"
    assert "what it was doing" in caught.value.hint
    assert capfd.readouterr() == ("", "")


def test_checkpoint_without_some_weights_is_refused(make_bert: Callable[..., Path]) -> None:
    folder = make_bert("BertModel")
    config = folder / "config.json"
    config.write_text(config.read_text().replace("BertModel", "BertForSequenceClassification"))
    with pytest.raises(ExportError, match="classifier") as caught:
        export(resolve(folder))
    assert caught.value.code == "INFC-E0301"


def test_damaged_weights(make_bert: Callable[..., Path]) -> None:
    folder = make_bert("BertModel")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UsageError) as caught:
        export(resolve(folder))
    assert caught.value.code == "INFC-E0107"


def test_bin_weights_give_the_same_graph(make_bert: Callable[..., Path], exported: Exported) -> None:
    same = export(resolve(make_bert(pooling={"pooling_mode_mean_tokens": True}, safetensors=False)), verify=False)
    assert proto_bytes(same.model) == proto_bytes(exported.model)
