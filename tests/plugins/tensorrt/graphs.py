"""Small graphs that TensorRT builds in a fraction of a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

Dims = Sequence[int | str]
ROWS, DEPTH, WIDTH = 8, 64, 32
_RNG = np.random.default_rng(0)
WEIGHT = _RNG.standard_normal((DEPTH, WIDTH)).astype(np.float32)


def graph(nodes: Sequence[onnx.NodeProto], weights: Mapping[str, np.ndarray], *, x: Dims = (ROWS, DEPTH), y: Dims = (ROWS, WIDTH),
          inputs: Mapping[str, Dims] | None = None, outputs: Mapping[str, Dims] | None = None) -> ir.Model:
    """Inputs and outputs are f32."""
    def values(named: Mapping[str, Dims]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(dims)) for name, dims in named.items()]

    made = helper.make_graph(list(nodes), "small", values(inputs or {"x": x}), values(outputs or {"y": y}),
                             [onnx.numpy_helper.from_array(a, name) for name, a in weights.items()])
    domains = [helper.make_opsetid("", 23), helper.make_opsetid("other", 1)]
    return ir.from_proto(onnx.shape_inference.infer_shapes(helper.make_model(made, opset_imports=domains, ir_version=10)))


def node(op: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [output], name=f"make_{output}", domain=domain, **attributes)


def linear(dtype: np.typing.DTypeLike = np.float32, **shapes: Dims) -> ir.Model:
    """x @ w computed in ``dtype``."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return graph([node("Cast", ["x"], "a", to=kind), node("MatMul", ["a", "w"], "p"),
                  node("Cast", ["p"], "y", to=TensorProto.FLOAT)],
                 {"w": WEIGHT.astype(dtype)}, **shapes)  # type: ignore[arg-type]


def quantised(dtype: np.typing.DTypeLike) -> ir.Model:
    """x @ w with both quantised per tensor, in f16 around it."""
    weight = WEIGHT / 0.02
    stored = np.clip(np.rint(weight), -127, 127) if np.dtype(dtype) == np.int8 else weight
    return graph([node("Cast", ["x"], "a", to=TensorProto.FLOAT16),
                  node("QuantizeLinear", ["a", "scale", "zero"], "q"), node("DequantizeLinear", ["q", "scale", "zero"], "d"),
                  node("DequantizeLinear", ["w", "scale", "zero"], "v"), node("MatMul", ["d", "v"], "p"),
                  node("Cast", ["p"], "y", to=TensorProto.FLOAT)],
                 {"w": stored.astype(dtype), "scale": np.float16(0.02).reshape(()), "zero": np.zeros((), dtype)})


def int4_weights() -> ir.Model:
    """x @ w with blocks of 32 weights to a scale."""
    stored = np.clip(np.rint(WEIGHT / 0.3), -8, 7).astype(ml_dtypes.int4)
    return graph([node("Cast", ["x"], "a", to=TensorProto.FLOAT16),
                  node("DequantizeLinear", ["w", "scale"], "v", axis=0, block_size=32), node("MatMul", ["a", "v"], "p"),
                  node("Cast", ["p"], "y", to=TensorProto.FLOAT)],
                 {"w": stored, "scale": np.full((DEPTH // 32, WIDTH), 0.3, np.float16)})


def attention(dtype: np.typing.DTypeLike, *, masked: bool = False, same: bool = False) -> ir.Model:
    """ONNX's Attention of two heads, 3-D form. ``masked``: by another input, for which there is a kernel in f16, and none in f32.
    ``same``: of a tensor with itself, which crashes the builder of TensorRT-RTX 1.7."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    dims = (1, 32, 64)
    names = "qqq" if same else "qkv"
    inputs: dict[str, Dims] = {f"x{n}": dims for n in dict.fromkeys(names)}
    visible = [node("Greater", ["mask", "zero"], "visible")] if masked else []
    return graph([*(node("Cast", [f"x{n}"], n, to=kind) for n in dict.fromkeys(names)), *visible,
                  node("Attention", [*names, *(["visible"] if masked else [])], "p", q_num_heads=2, kv_num_heads=2),
                  node("Cast", ["p"], "y", to=TensorProto.FLOAT)],
                 {"zero": np.float32(0).reshape(())} if masked else {},
                 inputs=inputs | ({"mask": (1, 1, 32, 32)} if masked else {}), y=dims)
