"""RNN, GRU and LSTM with all their attributes against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from infc.compiler.errors import UnsupportedError
from tests.plugins.cpu.harness import compile_model, native_isas, run

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
# Those whose parameters are all given, so that nobody's defaults matter.
PARAMETERS = {"Relu": (), "Tanh": (), "Sigmoid": (), "Softsign": (), "Softplus": (), "Affine": (0.7, 0.1), "LeakyRelu": (0.2,),
              "ThresholdedRelu": (0.3,), "ScaledTanh": (0.8, 0.9), "HardSigmoid": (0.25, 0.4), "Elu": (0.9,)}


def layer(op: str, seq: int, batch: int, size: int, hidden: int, given_: set[str], constant: bool, seed: int,
          **attributes: Any) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node with the inputs and outputs named in ``given_``, and what to feed it."""
    rng = np.random.default_rng(seed)
    gates, directions = GATES[op], 2 if attributes.get("direction") == "bidirectional" else 1
    first = bool(attributes.get("layout", 0))

    def random(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.5, shape).astype(np.float32)

    state = (batch, directions, hidden) if first else (directions, batch, hidden)
    tensors = {"X": random(*((batch, seq, size) if first else (seq, batch, size))), "W": random(directions, gates * hidden, size),
               "R": random(directions, gates * hidden, hidden), "B": random(directions, 2 * gates * hidden),
               "lens": rng.integers(1, seq + 1, batch).astype(np.int32), "h": random(*state)}
    if op == "LSTM":
        tensors |= {"c": random(*state), "P": random(directions, 3 * hidden)}
    feeds = {n: a for n, a in tensors.items() if n in given_ | {"X", "W", "R"}}
    names = [n if n in feeds else "" for n in tensors]
    shapes = {"Y": None, "Y_h": None, "Y_c": None}
    outputs = [n if n in given_ else "" for n in shapes][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, names, outputs, hidden_size=hidden, **attributes)
    frozen = {"W", "R", "B", "P"} & feeds.keys() if constant else set()
    types = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(n, types[a.dtype], a.shape) for n, a in feeds.items() if n not in frozen],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs if n],
        [numpy_helper.from_array(feeds[n], n) for n in frozen])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    return model, {n: a for n, a in feeds.items() if n not in frozen}


def agrees(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    try:
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:  # what ONNX Runtime lacks is compared elsewhere
        pytest.skip(str(error))
    wanted = dict(zip((v.name for v in model.graph.output), session.run(None, feeds), strict=True))
    assume(all(np.isfinite(want).all() for want in wanted.values()))  # sums of Relu and Softplus may leave f32
    artifact, _ = compile_model(model, native_isas())
    for isa in native_isas():
        got = run(artifact, feeds, threads=2, isa=isa)
        for name, want in wanted.items():
            largest = float(np.abs(want).max())  # beyond 1 each step makes the rounding of the one before larger
            np.testing.assert_allclose(got[name], want, atol=2e-5 if largest <= 1 else 1e-4 * largest, rtol=2e-5,
                                       err_msg=f"{name} {isa}")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_against_onnx_runtime(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(list(GATES)))
    direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    attributes: dict[str, Any] = {"direction": direction}
    if data.draw(st.booleans()):
        count = FUNCTIONS[op] * (2 if direction == "bidirectional" else 1)
        names = data.draw(st.lists(st.sampled_from(list(PARAMETERS)), min_size=count, max_size=count))
        attributes["activations"] = names
        attributes["activation_alpha"] = [PARAMETERS[n][0] for n in names if PARAMETERS[n]]
        attributes["activation_beta"] = [PARAMETERS[n][1] for n in names if len(PARAMETERS[n]) > 1]
        attributes = {n: v for n, v in attributes.items() if v != []}
    if data.draw(st.booleans()):
        attributes["clip"] = data.draw(st.sampled_from([0.1, 0.5, 2.0]))
    if op == "GRU":
        attributes["linear_before_reset"] = data.draw(st.integers(0, 1))
    if op == "LSTM" and data.draw(st.booleans()):
        attributes["input_forget"] = 1
    given_ = {n for n in ("B", "lens", "h", "c", "P") if data.draw(st.booleans())}
    given_ |= {"Y", "Y_h", "Y_c"} - data.draw(st.sampled_from([set(), {"Y"}, {"Y_h"}, {"Y_c"}]))
    sizes = [data.draw(st.integers(1, n)) for n in (5, 6, 9, 40)]
    agrees(*layer(op, *sizes, given_, data.draw(st.booleans()), data.draw(st.integers(0, 999)), **attributes))


def test_the_inner_bias_of_one_direction_is_kept() -> None:
    agrees(*layer("GRU", 2, 1, 3, 4, {"B", "Y"}, True, 0, linear_before_reset=1))


@pytest.mark.parametrize("op", list(GATES))
def test_sequences_in_front(op: str) -> None:
    """Layout 1, which ONNX Runtime lacks, is layout 0 with its dimensions exchanged."""
    given_ = {"B", "h", "c", "Y", "Y_h", "Y_c"}
    model, feeds = layer(op, 4, 3, 5, 20, given_, True, 1, direction="bidirectional", layout=1)
    other, _ = layer(op, 4, 3, 5, 20, given_, True, 1, direction="bidirectional")
    turned = {n: np.ascontiguousarray(np.swapaxes(a, 0, 1)) for n, a in feeds.items()}
    for n, a in turned.items():
        feeds[n] = np.ascontiguousarray(np.swapaxes(a, 0, 1))
    got = run(compile_model(model)[0], feeds)
    want = run(compile_model(other)[0], turned)
    for name in want:
        moved = np.transpose(want[name], (2, 0, 1, 3)) if name == "Y" else np.swapaxes(want[name], 0, 1)
        np.testing.assert_allclose(got[name], moved, atol=1e-6)


def test_a_length_beyond_the_sequence_is_an_error() -> None:
    model, feeds = layer("LSTM", 3, 2, 4, 8, {"lens", "Y"}, True, 2)
    artifact, _ = compile_model(model, native_isas())
    feeds["lens"] = np.array([4, 1], np.int32)
    for isa in native_isas():
        with pytest.raises(Exception, match="lies outside"):
            run(artifact, feeds, isa=isa)


def test_unknown_activation() -> None:
    model, _ = layer("RNN", 2, 1, 3, 4, {"Y"}, True, 3, activations=["Swish"])
    with pytest.raises(UnsupportedError, match="activations"):
        compile_model(model)
