"""MatMulNBits: the same numbers from Q/DQ, for packed zeros and without; and QGemm."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from infc.compiler.errors import UnsupportedError
from infc.passes.cleanup.constant_folding import ConstantFolding
from infc.passes.cleanup.identities import Identities
from infc.passes.cleanup.normalise import Normalise
from infc.passes.fusion.fuse_linear import FuseLinear
from infc.passes.quant.fuse_quantized import FuseQuantized
from infc.passes.quant.read_quantized import ReadQuantized
from tests.passes.support import Array, apply, find, normal, ops

FUSE = (Normalise, ConstantFolding, Identities, ReadQuantized, FuseLinear, FuseQuantized)


def model(nodes: list[onnx.NodeProto], constants: dict[str, Array], k: int, n: int) -> ir.Model:
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", k])],
                              [helper.make_tensor_value_info("y", 1, ["n", n])],
                              [numpy_helper.from_array(v, name) for name, v in constants.items()])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=10))


def blocks(bits: int, zeros: bool, k: int = 96, n: int = 16, block: int = 32, prefix: str = "") -> dict[str, Array]:
    random, groups = np.random.default_rng(bits), -(-k // block)
    found = {f"{prefix}w": random.integers(0, 256, (n, groups, block * bits // 8), np.uint8),
             f"{prefix}s": random.uniform(0.01, 0.02, n * groups).astype(np.float32)}
    if zeros:
        found[f"{prefix}z"] = random.integers(0, 256, n * -(-groups * bits // 8), np.uint8)
    return found


def node(bits: int, zeros: bool, x: str, y: str, prefix: str, k: int = 96, n: int = 16, **more: int) -> onnx.NodeProto:
    inputs = [x, f"{prefix}w", f"{prefix}s", f"{prefix}z" if zeros else ""]
    return helper.make_node("MatMulNBits", inputs, [y], domain="com.microsoft", K=k, N=n, bits=bits, block_size=32, **more)


@pytest.mark.parametrize("zeros", [False, True])
def test_four_bits_and_nodes_without_names(zeros: bool) -> None:
    constants = {**blocks(4, zeros, prefix="a", n=32), **blocks(4, zeros, k=32, prefix="b"), "c": normal(32)}
    nodes = [node(4, zeros, "x", "h0", "a", n=32), helper.make_node("Add", ["h0", "c"], ["h1"]),
             helper.make_node("Tanh", ["h1"], ["h"]), node(4, zeros, "h", "y", "b", k=32)]
    made = model(nodes, constants, 96, 16)
    apply(made, *FUSE, atol=1e-4)
    assert ops(made) == {"QuantizedLinear": 2, "Tanh": 1}
    assert all(n.inputs[3].dtype == ir.DataType.UINT4 for n in made.graph if n.op_type == "QuantizedLinear")  # type: ignore[union-attr]


def test_what_q_dq_cannot_express_is_refused() -> None:
    made = model([node(4, False, "x", "y", "a", k=80)], blocks(4, False, k=80, prefix="a"), 80, 16)
    with pytest.raises(UnsupportedError, match="sizes"):
        apply(made, Normalise)


@pytest.mark.parametrize("trans", [0, 1])
def test_qgemm(trans: int) -> None:
    random = np.random.default_rng(0)
    constants = {"xs": np.float32(0.03), "xz": np.uint8(120), "w": random.integers(-99, 99, (16, 96)[::1 if trans else -1]).astype(
        np.int8), "ws": random.uniform(0.01, 0.02, 16).astype(np.float32), "wz": np.zeros(16, np.int8),
                 "c": random.integers(-999, 999, 16).astype(np.int32)}
    nodes = [helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
             helper.make_node("QGemm", ["q", "xs", "xz", "w", "ws", "wz", "c"], ["y"], domain="com.microsoft", transB=trans)]
    made = model(nodes, constants, 96, 16)
    apply(made, *FUSE, atol=1e-4)
    assert ops(made) == {"QuantizeLinear": 1, "QuantizedLinear": 1}
    assert find(made, "QuantizedLinear").inputs[6] is not None
