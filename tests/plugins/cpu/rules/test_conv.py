"""Convolutions and pools with random attributes against ONNX Runtime, on every instruction set of this machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from infc.compiler.errors import UnsupportedError
from tests.plugins.cpu.harness import compile_model, native_isas, run

Array = np.ndarray[Any, Any]


def model_of(nodes: list[onnx.NodeProto], shapes: dict[str, tuple[int, ...]], constants: dict[str, Array], outputs: list[str],
             types: dict[str, int] | None = None) -> onnx.ModelProto:
    """A model with typed inputs; the outputs' shapes are inferred."""
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    results = [helper.make_tensor_value_info(n, (types or {}).get(n, TensorProto.FLOAT), None) for n in outputs]
    graph = helper.make_graph(nodes, "g", inputs, results, [numpy_helper.from_array(a, n) for n, a in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def check(model: onnx.ModelProto, feeds: dict[str, Array], isas: list[str] | None = None) -> None:
    """All instruction sets, one and three threads, against ONNX Runtime."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    want = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)
    isas = isas or native_isas()
    artifact, _ = compile_model(model, isas)
    for isa in isas:
        for threads in (1, 3):
            got = run(artifact, feeds, threads, isa)
            for value, expected in zip(model.graph.output, want, strict=True):
                array = got[value.name]
                assert array.shape == expected.shape
                scale = max(1.0, float(np.abs(expected).max()))
                np.testing.assert_allclose(array / scale, expected / scale, atol=5e-6, err_msg=f"{isa}, {threads} threads")


def random_attributes(rng: np.random.Generator, rank: int, sizes: list[int], transposed: bool = False) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "strides": [int(rng.integers(1, 4)) for _ in range(rank)],
        "dilations": [int(rng.integers(1, 3)) for _ in range(rank)],
    }
    if rng.integers(3) == 0:
        attributes["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
        attributes["dilations"] = [1] * rank  # ONNX Runtime refuses or ignores dilations here
    else:
        attributes["pads"] = [int(rng.integers(0, 3)) for _ in range(2 * rank)]
    if transposed and "auto_pad" not in attributes:
        attributes["output_padding"] = [int(rng.integers(0, s)) for s in attributes["strides"]]
    return attributes


@pytest.mark.parametrize("seed", range(60))
def test_conv(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    sizes = [int(rng.integers(6, 14)) for _ in range(rank)]
    kernel = [int(rng.integers(1, 4)) for _ in range(rank)]
    style = seed % 4
    groups = [1, int(rng.integers(2, 9)), int(rng.integers(3, 70)), 1][style]
    some = (int(rng.integers(1, 70)), int(rng.integers(1, 70)))
    few = (int(rng.integers(1, 20)), int(rng.integers(1, 40)))
    each, columns = [some, few, (1, 1), (3, 32)][style]
    x, w = (2, groups * each, *sizes), (groups * columns, each, *kernel)
    attributes = random_attributes(rng, rank, sizes)
    constant = {"w": rng.standard_normal(w).astype(np.float32), "b": rng.standard_normal(w[0]).astype(np.float32)}
    feeds = {"x": rng.standard_normal(x).astype(np.float32)}
    shapes = {"x": x}
    if rng.integers(3) == 0:  # weights of the caller
        feeds["w"] = constant.pop("w")
        shapes["w"] = w
    node = helper.make_node("Conv", ["x", "w", "b"] if rng.integers(2) else ["x", "w"], ["y"], kernel_shape=kernel, group=groups,
                            **attributes)
    check(model_of([node], shapes, constant, ["y"]), feeds)


@pytest.mark.parametrize("seed", range(40))
def test_conv_transpose(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    sizes = [int(rng.integers(2, 7)) for _ in range(rank)]
    kernel = [int(rng.integers(1, 5)) for _ in range(rank)]
    groups, each, columns = int(rng.integers(1, 4)), int(rng.integers(1, 20)), int(rng.integers(1, 20))
    x, w = (2, groups * each, *sizes), (groups * each, columns, *kernel)
    attributes = random_attributes(rng, rank, sizes, transposed=True)
    constant = {"w": rng.standard_normal(w).astype(np.float32), "b": rng.standard_normal(groups * columns).astype(np.float32)}
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], kernel_shape=kernel, group=groups, **attributes)
    try:
        model = model_of([node], {"x": x}, constant, ["y"])
    except onnx.shape_inference.InferenceError:
        pytest.skip("more pads than output")
    if min(d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim) < 1:
        pytest.skip("no output")
    check(model, {"x": rng.standard_normal(x).astype(np.float32)})


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("seed", range(25))
def test_pool(op: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    sizes = [int(rng.integers(6, 14)) for _ in range(rank)]
    kernel = [int(rng.integers(2, 4)) for _ in range(rank)]
    attributes = random_attributes(rng, rank, sizes)
    if "pads" in attributes:
        attributes["pads"] = [min(p, (kernel * 2)[i] - 1) for i, p in enumerate(attributes["pads"])]
        attributes["ceil_mode"] = int(rng.integers(2))
    outputs = ["y"]
    if op == "AveragePool":
        attributes["count_include_pad"] = int(rng.integers(2))
    elif op == "LpPool":
        attributes["p"] = int(rng.integers(1, 4))
    elif rng.integers(2):
        attributes["storage_order"] = 0
        outputs = ["y", "at"]
    x = (2, int(rng.integers(1, 80)), *sizes)
    node = helper.make_node(op, ["x"], outputs, kernel_shape=kernel, **attributes)
    check(model_of([node], {"x": x}, {}, outputs, {"at": TensorProto.INT64}), {"x": rng.standard_normal(x).astype(np.float32)})


def test_a_network_moves_no_image() -> None:
    """Between its borders, only steps that compute."""
    rng = np.random.default_rng(1)

    def weights(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    constants = {"w0": weights(32, 3, 3, 3), "w1": weights(32, 32, 1, 1), "w2": weights(32, 1, 3, 3), "w3": weights(48, 64, 3, 3),
                 "scale": weights(1, 48, 1, 1)}
    nodes = [helper.make_node("Conv", ["x", "w0"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
             helper.make_node("Relu", ["a"], ["a1"]),
             helper.make_node("MaxPool", ["a1"], ["p"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
             helper.make_node("Conv", ["p", "w1"], ["b"]),
             helper.make_node("Conv", ["p", "w2"], ["c"], pads=[1, 1, 1, 1], group=32),
             helper.make_node("Add", ["b", "c"], ["s"]),
             helper.make_node("Concat", ["s", "p"], ["cat"], axis=1),
             helper.make_node("Conv", ["cat", "w3"], ["d"]),
             helper.make_node("Sigmoid", ["d"], ["g"]),
             helper.make_node("Mul", ["g", "scale"], ["m"]),
             helper.make_node("GlobalAveragePool", ["m"], ["y"])]
    model = model_of(nodes, {"x": (2, 3, 24, 24)}, constants, ["y"])
    check(model, {"x": rng.standard_normal((2, 3, 24, 24)).astype(np.float32)})
    _, compiled = compile_model(model)
    (layers,) = compiled.layers.values()
    assert [layer.op for layer in layers].count("copy") == 3  # the input, and two parts that no window wrote


def test_convolutions_write_into_a_concat() -> None:
    rng = np.random.default_rng(1)
    constants = {"w1": rng.standard_normal((32, 16, 1, 1)).astype(np.float32),
                 "w2": rng.standard_normal((16, 16, 3, 3)).astype(np.float32)}
    nodes = [helper.make_node("Conv", ["x", "w1"], ["a"]),
             helper.make_node("Conv", ["x", "w2"], ["b"], pads=[1, 1, 1, 1]),
             helper.make_node("MaxPool", ["x"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
             helper.make_node("Concat", ["a", "b", "c"], ["cat"], axis=1),
             helper.make_node("GlobalAveragePool", ["cat"], ["y"])]
    model = model_of(nodes, {"x": (2, 16, 9, 9)}, constants, ["y"])
    check(model, {"x": rng.standard_normal((2, 16, 9, 9)).astype(np.float32)})
    (layers,) = compile_model(model)[1].layers.values()
    assert [layer.op for layer in layers].count("copy") == 1


@pytest.mark.parametrize(("disabled", "op", "tolerance"), [((), "winograd", 2e-6), (("winograd",), "conv", 1.5e-6)])
def test_large_3x3(disabled: tuple[str, ...], op: str, tolerance: float) -> None:
    """By transforms, unless that is switched off; either way near the sum in double."""
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((2, 40, 19, 14)).astype(np.float32), rng.standard_normal((48, 40, 3, 3)).astype(np.float32)
    model = model_of([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 0, 1, 2])], {"x": x.shape}, {"w": w}, ["y"])
    artifact, compiled = compile_model(model, native_isas(), disabled=disabled)
    assert op in {layer.op for layer in next(iter(compiled.layers.values()))}
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (0, 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    want = np.einsum("nchwij,mcij->nmhw", windows, w.astype(np.float64), optimize=True)
    for isa in native_isas():
        got = run(artifact, {"x": x}, 2, isa)["y"]
        assert np.abs(got - want).max() < tolerance * np.abs(want).max()


def test_refusals_name_the_reason() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"pads": [-1, 0, 0, 0]}, "pads"), ({"auto_pad": "SAME"}, "auto_pad"), ({"kernel_shape": [2, 2]}, "kernel")]
    for attributes, reason in cases:
        node = helper.make_node("Conv", ["x", "w"], ["y"], name="the_node", **attributes)
        inputs = [helper.make_tensor_value_info("x", 1, (1, 3, 8, 8))]
        graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, (1, 4, 6, 6))],
                                  [numpy_helper.from_array(np.zeros((4, 3, 3, 3), np.float32), "w")])
        with pytest.raises(UnsupportedError) as caught:
            compile_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]))
        assert "the_node" in caught.value.where
        assert reason in str(caught.value)
