"""Checkpoints that others quantised: their own numbers and scales arrive in the graph, whatever way they were packed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel

from infc.compiler import source
from infc.compiler.errors import UsageError
from infc.compiler.export import export
from infc.compiler.pipeline import PIPELINES, QUANTISED
from infc.models import packed
from infc.passes.base import PassManager

Array = np.ndarray[Any, Any]
Tensors = dict[str, torch.Tensor]
K, N, GROUP = 64, 64, 32


def words(numbers: Array, bits: int) -> torch.Tensor:
    """Unsigned numbers of each row in int32, the low bits first: written out, not as the reader does it."""
    rows, count = numbers.shape
    each = 32 // bits
    out = np.zeros((rows, count // each), np.uint64)
    for i in range(count):
        out[:, i // each] |= numbers[:, i].astype(np.uint64) << np.uint64(bits * (i % each))
    return torch.from_numpy(out.astype(np.uint32).view(np.int32))


def numbers(n: int, k: int, bits: int, seed: int) -> tuple[Array, Array, Array]:
    """[N, K], scales [N, G] that f16 holds, zeros [N, G]."""
    random = np.random.default_rng(seed)
    scale = (random.uniform(0.01, 0.03, (n, k // GROUP)) / (1 if bits == 4 else 16)).astype(np.float16)
    return (random.integers(0, 1 << bits, (n, k)).astype(np.uint8), scale, random.integers(5, 11, scale.shape).astype(np.uint8))


def real(q: Array, scale: Array, zero: Array) -> Array:
    wide = q.astype(np.float32) - np.repeat(zero.astype(np.float32), q.shape[1] // scale.shape[1], axis=1)
    return wide * np.repeat(scale.astype(np.float32), q.shape[1] // scale.shape[1], axis=1)


def compressed(layer: str, n: int, k: int, seed: int, symmetric: bool) -> tuple[Tensors, Array]:
    q, scale, zero = numbers(n, k, 4, seed)
    zero = np.full_like(zero, 8) if symmetric else zero
    tensors = {"weight_packed": words(q, 4), "weight_scale": torch.from_numpy(scale), "weight_shape": torch.tensor([n, k])}
    if not symmetric:
        tensors["weight_zero_point"] = words(np.ascontiguousarray(zero.T), 4).T.contiguous()
    return {f"{layer}.{name}": t for name, t in tensors.items()}, real(q, scale, zero)


def compressed_int8(layer: str, n: int, k: int, seed: int) -> tuple[Tensors, Array]:
    q, scale, _ = numbers(n, k, 8, seed)
    q8, scale = (q.astype(np.int16) - 128).astype(np.int8), scale[:, :1]
    return ({f"{layer}.weight": torch.from_numpy(q8), f"{layer}.weight_scale": torch.from_numpy(scale)},
            q8.astype(np.float32) * scale.astype(np.float32))


def compressed_fp8(layer: str, n: int, k: int, seed: int) -> tuple[Tensors, Array]:
    weight = torch.from_numpy(np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)).to(torch.float8_e4m3fn)
    scale = torch.tensor([0.125], dtype=torch.bfloat16)
    return {f"{layer}.weight": weight, f"{layer}.weight_scale": scale}, weight.float().numpy() * 0.125


def gptq(layer: str, n: int, k: int, seed: int, bits: int = 4) -> tuple[Tensors, Array]:
    q, scale, zero = numbers(n, k, bits, seed)
    zero = zero + np.uint8((1 << bits - 1) - 8)
    tensors = {"qweight": words(np.ascontiguousarray(q), bits).T.contiguous(),
               "qzeros": words(np.ascontiguousarray(zero.T) - 1, bits), "scales": torch.from_numpy(np.ascontiguousarray(scale.T)),
               "g_idx": torch.arange(k, dtype=torch.int32) // GROUP}
    return {f"{layer}.{name}": t for name, t in tensors.items()}, real(q, scale, zero)


def awq(layer: str, n: int, k: int, seed: int) -> tuple[Tensors, Array]:
    q, scale, zero = numbers(n, k, 4, seed)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def pack(columns: Array) -> torch.Tensor:
        return words(np.ascontiguousarray(columns.reshape(len(columns), -1, 8)[:, :, order].reshape(columns.shape)), 4)

    tensors = {"qweight": pack(np.ascontiguousarray(q.T)), "qzeros": pack(np.ascontiguousarray(zero.T)),
               "scales": torch.from_numpy(np.ascontiguousarray(scale.T))}
    return {f"{layer}.{name}": t for name, t in tensors.items()}, real(q, scale, zero)


def groups(bits: int, kind: str = "int") -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
        "num_bits": bits, "type": kind, "group_size": GROUP}}}}


FORMS: dict[str, tuple[Callable[[str, int, int, int], tuple[Tensors, Array]], dict[str, Any], ir.DataType, int]] = {
    "compressed-tensors, int4": (lambda *a: compressed(*a, symmetric=True), groups(4), ir.DataType.INT4, GROUP),
    "compressed-tensors, int4 with zeros": (lambda *a: compressed(*a, symmetric=False), groups(4), ir.DataType.UINT4, GROUP),
    "compressed-tensors, int8": (compressed_int8, groups(8), ir.DataType.INT8, 0),
    "compressed-tensors, fp8": (compressed_fp8, groups(8, "float"), ir.DataType.FLOAT8E4M3FN, 0),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False}, ir.DataType.UINT4, GROUP),
    "gptq, 8 bits": (lambda *a: gptq(*a, bits=8), {"quant_method": "gptq", "bits": 8}, ir.DataType.UINT8, GROUP),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}, ir.DataType.UINT4, GROUP),
}


def directory(folder: Path, form: str, change: Callable[[Tensors], None] = lambda tensors: None) -> tuple[BertModel, Path]:
    """A Bert of two layers whose Linears are stored in the form, and what it is in floats."""
    torch.manual_seed(0)
    pack, settings, _, _ = FORMS[form]
    config = BertConfig(vocab_size=40, hidden_size=K, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                        max_position_embeddings=32)
    model = BertModel(config).eval()
    tensors = {name: t.clone() for name, t in model.state_dict().items()}
    for number, (name, module) in enumerate(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and "encoder" in name:
            del tensors[f"{name}.weight"]
            stored, weight = pack(name, module.out_features, module.in_features, number)
            tensors |= stored
            module.weight.data = torch.from_numpy(weight)
    change(tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    written = {**config.to_dict(), "architectures": ["BertModel"], "quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(written))
    return model, folder


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_are_read(form: str, tmp_path: Path) -> None:
    model, folder = directory(tmp_path, form)
    state, stored = packed.read(folder, json.loads((folder / "config.json").read_text()))
    wanted = model.state_dict()
    assert len(stored) == 12
    assert set(state) == set(wanted)
    for name, weight in wanted.items():
        assert torch.equal(state[name].float(), weight.float()), name


@pytest.mark.parametrize("form", ["compressed-tensors, int8", "gptq"])
def test_the_graph_has_the_stored_numbers(form: str, tmp_path: Path) -> None:
    model, folder = directory(tmp_path, form)
    exported = export(source.resolve(folder))
    ids = np.arange(12).reshape(2, 6)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    with torch.no_grad():
        wanted = model(**{k: torch.from_numpy(v) for k, v in inputs.items()}).last_hidden_state.numpy()
    found = exported.reference(inputs)["last_hidden_state"]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    PassManager(PIPELINES["cpu"]).run(exported.model)
    PassManager(QUANTISED["cpu"]).run(exported.model)
    products = [n for n in exported.model.graph if n.op_type == "QuantizedLinear"]
    assert len(products) == 8
    _, _, dtype, block = FORMS[form]
    assert {n.inputs[3].dtype for n in products if n.inputs[3] is not None} == {dtype}
    assert {n.attributes["block"].as_int() for n in products} == {block}


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    def cut(tensors: Tensors) -> None:
        name = next(n for n in tensors if n.endswith("scales"))
        tensors[name] = tensors[name][:, :-1]

    folder = directory(tmp_path, "gptq", cut)[1]
    with pytest.raises(UsageError, match="are not what gptq writes"):
        export(source.resolve(folder))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["quant_method"] = "fog"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="quantised by fog"):
        export(source.resolve(folder))
