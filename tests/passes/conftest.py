"""Two-layer BERTs with random weights, exported once a session by torch's two exporters, and one written out by hand."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tests.passes.support import Array, graph, normal

NAMES = ["input_ids", "attention_mask", "token_type_ids"]
OUTPUTS = ["last_hidden_state", "sentence_embedding"]


def _sentence_bert(attention: str) -> Any:
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=40,
        attn_implementation=attention,
    )

    class Sentence(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = BertModel(config, add_pooling_layer=False)

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            hidden = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).last_hidden_state
            kept = attention_mask.unsqueeze(-1).expand(hidden.size()).to(hidden.dtype)
            pooled = (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
            return hidden, torch.nn.functional.normalize(pooled, p=2, dim=1)

    torch.manual_seed(3)
    module = Sentence()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.25 + ("LayerNorm.weight" in name))
    return module.eval()


def _export(path: Path, attention: str, dynamo: bool, opset: int) -> Path:
    import torch

    ids = torch.randint(0, 50, (2, 16))
    arguments = (ids, torch.ones_like(ids), torch.zeros_like(ids))
    common: dict[str, Any] = {"input_names": NAMES, "output_names": OUTPUTS}
    axes = {0: "batch", 1: "seq"}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            program = torch.onnx.export(
                _sentence_bert(attention),
                arguments,
                opset_version=opset,
                dynamo=True,
                verbose=False,
                dynamic_shapes=(axes,) * 3,
                **common,
            )
            assert program is not None
            program.save(str(path))
        else:
            torch.onnx.export(
                _sentence_bert(attention),
                arguments,
                str(path),
                opset_version=opset,
                dynamo=False,
                dynamic_axes={**dict.fromkeys([*NAMES, "last_hidden_state"], axes), "sentence_embedding": {0: "batch"}},
                **common,
            )
    return path


def _written_out() -> ir.Model:
    """Everything decomposed: LayerNormalization, GELU, attention, pooling, as a hand-written exporter would."""
    constants: dict[str, Array] = {
        "word": normal(50, 32),
        "place": normal(40, 32, seed=1),
        "kind": normal(2, 32, seed=2),
        "ids": np.arange(40)[None],
        "last": np.array([-1]),
        "one": np.array([1]),
        "zero": np.array([0]),
        "two": np.float32(2),
        "eps": np.float32(1e-5),
        "unit": np.float32(1),
        "low": np.float32(-1e9),
        "root2": np.float32(2**0.5),
        "half": np.float32(0.5),
        "size": np.float32(8**0.5),
        "axes": np.array([1, 2]),
        "tiny": np.float32(1e-9),
        "tinier": np.float32(1e-12),
        "head": np.array([4]),
        "dim": np.array([8]),
        "width": np.array([32]),
        "batch_at": np.array(0),
        "seq_at": np.array(1),
    }
    seeds = iter(range(10, 1000))

    def fresh(*shape: int, shift: float = 0.0) -> str:
        name = f"w{next(seeds)}"
        constants[name] = normal(*shape, seed=int(name[1:])) * np.float32(0.5) + np.float32(shift)
        return name

    def norm(x: str, y: str) -> str:
        return (
            f"{y}m = ReduceMean({x}, last) {y}d = Sub({x}, {y}m) {y}s = Pow({y}d, two) {y}v = ReduceMean({y}s, "
            f"last) {y}e = Add({y}v, eps) "
            f"{y}r = Sqrt({y}e) {y}n = Div({y}d, {y}r) {y}g = Mul({y}n, {fresh(32, shift=1.0)}) {y} = Add({y}g, {fresh(32)}) "
        )

    def linear(x: str, y: str, k: int, n: int) -> str:
        return f"{y}p = MatMul({x}, {fresh(k, n)}) {y} = Add({fresh(n)}, {y}p) "

    def heads(x: str, perm: str) -> str:
        return f"{x}h = Reshape({x}, split) {x}t = Transpose<perm=[{perm}]>({x}h) "

    def layer(x: str, y: str) -> str:
        return (
            linear(x, f"{y}q", 32, 32)
            + linear(x, f"{y}k", 32, 32)
            + linear(x, f"{y}w", 32, 32)
            + heads(f"{y}q", "0,2,1,3")
            + heads(f"{y}k", "0,2,3,1")
            + heads(f"{y}w", "0,2,1,3")
            + f"{y}sc = MatMul({y}qt, {y}kt) {y}di = Div({y}sc, size) {y}ma = Add({y}di, bias) {y}so = Softmax<axis=-1>({y}ma) "
            f"{y}at = MatMul({y}so, {y}wt) {y}ba = Transpose<perm=[0,2,1,3]>({y}at) {y}jo = Reshape({y}ba, join) "
            + linear(f"{y}jo", f"{y}o", 32, 32)
            + f"{y}ra = Add({y}o, {x}) "
            + norm(f"{y}ra", f"{y}u")
            + linear(f"{y}u", f"{y}i", 32, 48)
            + f"{y}id = Div({y}i, root2) {y}ie = Erf({y}id) {y}ia = Add({y}ie, unit) {y}im = Mul({y}i, {y}ia) {y}ig "
            f"= Mul({y}im, half) " + linear(f"{y}ig", f"{y}f", 48, 32) + f"{y}rb = Add({y}f, {y}u) " + norm(f"{y}rb", y)
        )

    shapes = (
        "shape = Shape(input_ids) b0 = Gather(shape, batch_at) s0 = Gather(shape, seq_at) b = Unsqueeze(b0, "
        "zero) s = Unsqueeze(s0, zero) "
        "split = Concat<axis=0>(b, s, head, dim) join = Concat<axis=0>(b, s, width) at = Slice(ids, zero, s, one) "
    )
    mask = "mf = Cast<to=1>(attention_mask) mi = Sub(unit, mf) ml = Mul(mi, low) bias = Unsqueeze(ml, axes) "
    embed = (
        "ew = Gather(word, input_ids) ek = Gather(kind, token_type_ids) ep = Gather(place, at) e1 = Add(ew, ek) e2 = Add(e1, ep) "
        + norm("e2", "x0")
    )
    pool = (
        "pu = Unsqueeze(mf, last) pm = Mul(last_hidden_state, pu) ps = ReduceSum<keepdims=0>(pm, one) pc = "
        "ReduceSum<keepdims=0>(pu, one) "
        "pl = Max(pc, tiny) pd = Div(ps, pl) pq = Mul(pd, pd) pz = ReduceSum<keepdims=1>(pq, last) pr = "
        "Sqrt(pz) pf = Clip(pr, tinier) "
        "sentence_embedding = Div(pd, pf) "
    )
    body = shapes + mask + embed + layer("x0", "x1") + layer("x1", "last_hidden_state") + pool
    return graph(
        "(int64[batch,seq] input_ids, int64[batch,seq] attention_mask, int64[batch,seq] token_type_ids) => "
        f"(float[batch,seq,32] last_hidden_state, float[batch,32] sentence_embedding) {{ {body} }}",
        constants,
    )


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ir.Model]:
    """The models by how they were made. Clone them."""
    folder = tmp_path_factory.mktemp("bert")
    files = {
        name: _export(folder / f"{name}.onnx", attention, dynamo, opset)
        for name, attention, dynamo, opset in (
            ("dynamo", "sdpa", True, 23),
            ("dynamo_18", "sdpa", True, 18),
            ("torchscript", "sdpa", False, 17),
        )
    }
    return {**{name: ir.load(path) for name, path in files.items()}, "written_out": _written_out()}
