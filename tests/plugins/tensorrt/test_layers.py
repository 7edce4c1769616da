"""Layers read from logs of real builds, and from logs that are not as they were."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from infc.compiler.target import Layer
from infc.plugins.tensorrt import layers
from infc.plugins.tensorrt.build import EngineRequest, build
from infc.plugins.tensorrt.flavour import RTX
from tests.plugins.tensorrt import graphs
from tests.plugins.tensorrt.graphs import node

pytest.importorskip(RTX.module, reason=f"{RTX.package} is not installed")


def logged(model: ir.Model, **options: object) -> str:
    return build(model, RTX, EngineRequest(**{"sms": (89, 120), **options}), lambda line: None).log  # type: ignore[arg-type]


def steps(model: ir.Model) -> list[Layer]:
    found = layers.parse(logged(model), 1, {})
    assert not found.notes
    return found.layers[0]


@pytest.mark.parametrize(("model", "types"), [
    (graphs.linear(np.float32), "f32 x f32"), (graphs.linear(np.float16), "f16 x f16"),
    (graphs.linear(ml_dtypes.bfloat16), "bf16 x bf16"),
    (graphs.quantised(np.int8), "int8 x int8"), (graphs.quantised(ml_dtypes.float8_e4m3fn), "fp8 x fp8"),
    (graphs.int4_weights(), "f16 x int4")], ids=["f32", "f16", "bf16", "int8", "fp8", "int4"])
def test_types_of_a_product(model: ir.Model, types: str) -> None:
    found = steps(model)
    assert layers.products(found) == {types: 1}
    assert sum(layers.is_product(layer) for layer in found) == 1
    assert all(layer.op in ("gemm", "runtime_fusion", "kgen") for layer in found)


def test_a_convolution_is_a_product() -> None:
    weight = np.random.default_rng(0).standard_normal((32, 16, 3, 3)).astype(np.float16)
    model = graphs.graph([node("Cast", ["x"], "a", to=10), node("Conv", ["a", "w"], "c"), node("Cast", ["c"], "y", to=1)],
                         {"w": weight}, x=(1, 16, 16, 16), y=(1, 32, 14, 14))
    found = steps(model)
    assert layers.products(found) == {"f16 x f16": 1}
    assert [layer.precision for layer in found if "make_c" in layer.fused] == ["f16"]


def test_a_layer_knows_its_nodes_types_and_shapes() -> None:
    (layer,) = (s for s in steps(graphs.quantised(np.int8)) if s.op == "gemm")
    assert layer.precision == "int8"
    assert layer.kernel
    assert set(layer.fused) == {"make_d", "make_v", "make_p"}
    assert layer.detail["inputs"] == [{"dtype": "int8", "shape": [graphs.ROWS, graphs.DEPTH]}]
    assert {"dtype": "int8", "shape": [graphs.DEPTH, graphs.WIDTH]} in layer.detail["constants"]
    assert layer.detail["outputs"] == [{"dtype": "f16", "shape": [graphs.ROWS, graphs.WIDTH]}]


def test_nodes_are_those_of_the_model() -> None:
    found = layers.parse(logged(graphs.linear(np.float16)), 1, {"make_p": ("encoder.dense", "encoder.bias")}).layers[0]
    assert {n for layer in found for n in layer.fused} == {"make_a", "encoder.dense", "encoder.bias", "make_y"}


def test_fused_attention_is_one_kernel() -> None:
    assert layers.fused_attentions(steps(graphs.attention(np.float16))) == 1
    assert layers.fused_attentions(steps(graphs.attention(np.float32))) == 0


def test_each_profile_has_its_layers_and_memory() -> None:
    model = graphs.linear(np.float16, x=("rows", graphs.DEPTH), y=("rows", graphs.WIDTH))
    sizes = (2, 512, 16)
    log = logged(model, profiles=[{"x": (n, graphs.DEPTH)} for n in sizes])
    found = layers.parse(log, len(sizes), {})
    assert not found.notes
    for rows, profile in zip(sizes, found.layers, strict=True):
        assert {s["shape"][0] for layer in profile for s in layer.detail["inputs"]} == {rows}
        assert layers.products(profile) == {"f16 x f16": 1}
    assert len(found.activations) == len(sizes)
    assert found.activations[1] > found.activations[0]
    assert found.weights is not None


def test_launches_leave_out_what_is_no_kernel() -> None:
    kinds = ["gemm", "signal", "wait", "kgen", "shape_call", "runtime_fusion"]
    assert layers.launched([Layer("n", kind, "", "f16") for kind in kinds]) == 3


def test_a_log_of_another_format_is_noted() -> None:
    log = logged(graphs.linear(np.float16))
    assert layers.parse("INFO nothing here", 1, {}).notes == [
        "the builder's log holds no list of layers: a version of another format; layers are not known"]
    half = log.replace("LayerType: kgen", "Kind: kgen")
    found = layers.parse(half, 1, {})
    assert found.notes == ["1 of 2 layers in the builder's log have another format and are left out"]
    assert len(found.layers[0]) == 1


def test_a_line_of_enterprise() -> None:
    """As its engine inspector is documented, not as seen: more fields around the tactic, and no constants."""
    log = ("VERBOSE Layers:\n"
           "Name: fc1, LayerType: CaskGemm, Inputs: [ { Name: x, Dimensions: [8,64], Format/Datatype: Half, Datatype: Half }], "
           "Outputs: [ { Name: y, Dimensions: [8,32], Datatype: Float }], ParameterType: Gemm, HasBias: 1, TacticName: sm90_xmma, "
           "TacticValue: 0x01, StreamId: 0, Metadata: [ONNX Layer: a[0]]\x1f[ONNX Layer: b]\n\nBindings:\nx\n")
    found = layers.parse(log, 1, {})
    assert not found.notes
    (layer,) = found.layers[0]
    assert (layer.name, layer.op, layer.kernel, layer.fused) == ("fc1", "CaskGemm", "sm90_xmma", ["a[0]", "b"])
    assert layer.detail["outputs"] == [{"dtype": "f32", "shape": [8, 32]}]
    assert layers.is_product(layer)
