"""Real builds by TensorRT-RTX: what the builder made of each model and precision, read from its own list of layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from infc.compiler import onnx_file
from infc.compiler.driver import build
from infc.compiler.errors import UnsupportedError
from tests.plugins.tensorrt import calibrate, models

pytest.importorskip("tensorrt_rtx_bindings", reason="the package tensorrt-rtx-cu13 is not installed")

ALL = "86,89,120"
FP8 = "89,120"


@dataclass(frozen=True)
class Case:
    """``launches`` at most, exactly so many fused ``attentions`` and ``products`` of each "activations x weights" types. ``cosine``
    to the model's outputs is the least that the graph handed to the builder has in ONNX Runtime."""

    model: str
    precision: str
    launches: int
    attentions: int
    products: dict[str, int]
    cosine: float = 0.9999
    sms: str = ALL
    profile: str = ""


BERT = "batch=1,seq=128"
CASES = {
    "bert f32": Case("bert", "f32", 26, 0, {"f32 x f32": 12}, profile=BERT),
    "bert f16": Case("bert", "f16", 21, 2, {"f16 x f16": 8}, profile=BERT),
    "bert bf16": Case("bert", "bf16", 21, 2, {"bf16 x bf16": 8}, 0.999, profile=BERT),
    "bert int8 by ranges": Case("bert", "int8", 25, 2, {"int8 x int8": 8}, 0.99, profile=BERT),
    "bert int8 by Q/DQ": Case("bert_qdq", "int8", 33, 2, {"int8 x int8": 12}, 0.99, profile=BERT),
    "bert fp8": Case("bert", "fp8", 25, 2, {"fp8 x fp8": 8}, 0.99, FP8, BERT),
    # Its smaller matrices are turned into f16 by a kernel of their own.
    "bert int4": Case("bert", "int4", 25, 2, {"f16 x int4": 6, "f16 x f16": 2}, 0.97, profile=BERT),
    "vit f16": Case("vit", "f16", 22, 2, {"f16 x f16": 9}, profile="batch=1"),
    "resnet f16": Case("resnet", "f16", 25, 0, {"f16 x f16": 20}, profile="batch=1"),
    "llama prefill f16": Case("llama_prefill", "f16", 26, 2, {"f16 x f16": 9}, profile="batch=1,seq=64"),
    "llama decode f16": Case("llama_decode", "f16", 23, 2, {"f16 x f16": 2}),
    "llama decode bf16": Case("llama_decode", "bf16", 23, 2, {"bf16 x bf16": 2}, 0.999),
    "llama decode in place": Case("llama_decode_in_place", "f16", 20, 2, {"f16 x f16": 2}),
}


Report = dict[str, Any]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Report]:
    """``built(name, sms=None)``: the report of a build of CASES[name]; models and engines are made when first asked for."""
    folder = tmp_path_factory.mktemp("models")

    def source(name: str) -> Path:
        path = folder / f"{name}.onnx"
        if not path.exists() and name == "bert_qdq":
            calibrate.quantise(source("bert"), path)
        elif not path.exists():
            getattr(models, name)(path)
        return path

    @cache
    def get(name: str, sms: str | None = None) -> Report:
        case = CASES[name]
        options: dict[str, Any] = {"profiles": [case.profile]} if case.profile else {}
        if case.model == "bert" and case.precision in ("int8", "fp8"):
            model = onnx_file.load(source(case.model))[0]
            options["ranges"] = str(calibrate.write_ranges(model, calibrate.inputs(), folder / "ranges.json"))
        return build(source(case.model), folder / "model.infc", target="tensorrt-rtx", sm=sms or case.sms, precision=case.precision,
                     **options).report

    return get


@pytest.mark.parametrize("name", CASES)
def test_model(name: str, built: Callable[..., Report]) -> None:
    case, report = CASES[name], built(name)
    (engine,) = report["engines"]
    assert engine["sms"] == [int(sm) for sm in case.sms.split(",")]
    (program,) = engine["programs"].values()
    assert program["fused_attentions"] == case.attentions
    assert program["products"] == case.products
    assert program["launches"] <= case.launches
    (graph,) = report["graphs"]
    assert min(o["cosine"] for o in graph["outputs"].values()) > case.cosine


@pytest.mark.parametrize("name", ["bert f16", "llama decode f16"])
def test_one_engine_for_all_devices_is_no_larger(name: str, built: Callable[..., Report]) -> None:
    all_of_them, one = (built(name, sms)["engines"][0]["size"] for sms in (None, "120"))
    assert all_of_them <= 1.05 * one


def test_fp8_needs_a_newer_device(built: Callable[..., Report]) -> None:
    with pytest.raises(UnsupportedError, match="fp8 needs SM 89 or newer, which SM 86 is not"):
        built("bert fp8", ALL)


def test_a_layer_names_the_nodes_of_the_model(built: Callable[..., Report]) -> None:
    """Though passes wrote them anew."""
    (layers,) = built("bert f16")["layers"].values()
    attentions = [layer for layer in layers if "mha" in layer["name"]]
    assert len(attentions) == 2
    assert all(any("scaled_dot_product_attention" in n for n in layer["fused"]) for layer in attentions)
    named = {n for layer in layers for n in layer["fused"]}
    assert {"node_layer_norm", "node_gelu", "node_scaled_dot_product_attention", "node_linalg_vector_norm"} <= named


def test_minilm(tmp_path: Path) -> None:
    """The real one: two profiles in one engine, 8 launches a layer and 5 around them."""
    from infc.models.fetch import fetch

    report = build(fetch("minilm"), tmp_path / "minilm.infc", target="tensorrt-rtx", sm=ALL, precision="f16",
                   profiles=["batch=1,seq=128", "batch=8,seq=128"]).report
    (engine,) = report["engines"]
    assert len(engine["programs"]) == 2
    for program in engine["programs"].values():
        assert (program["fused_attentions"], program["products"]) == (6, {"f16 x f16": 24})
        assert program["launches"] <= 53
    assert min(o["cosine"] for g in report["graphs"] for o in g["outputs"].values()) > 0.9999


@pytest.mark.parametrize("window", [None, 16])
def test_a_language_model_has_its_cache_in_the_engine(window: int | None, tmp_path: Path) -> None:
    """One engine for prompts and for single tokens, whose attentions are all fused."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 96, "max_position_embeddings": 64}
    config = transformers.MistralConfig(sliding_window=window, **sizes) if window else transformers.LlamaConfig(**sizes)
    models.randomise(transformers.AutoModelForCausalLM.from_config(config)).save_pretrained(tmp_path / "model")
    report = build(tmp_path / "model", tmp_path / "model.infc", target="tensorrt-rtx", sm=ALL, precision="f16", kv_cache="int8",
                   profiles=["tokens=1,rows=1", "tokens=16,rows=1"]).report
    (engine,) = report["engines"]
    assert [p["fused_attentions"] for p in engine["programs"].values()] == [2, 2]
    assert min(o["cosine"] for g in report["graphs"] for o in g["outputs"].values()) > 0.999
    assert "keys and values are kept in float16 on a GPU: --kv-cache is for the CPU" in report["notes"]
