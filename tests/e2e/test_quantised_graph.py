"""Quantised graphs in ONNX Runtime, layer by layer beside the engines that were built of them.

What ``infc export --stage quantized`` writes is cut open at every value that the engine shows (``Context.trace``), and at each
such place ONNX Runtime is fed what the engine computed there: every layer, on the very input that the engine's kernel read, must
come out within one step of quantisation.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx_ir as ir
import pytest

import infc
from infc import runtime
from infc.compiler import export as exporter
from infc.compiler import golden
from infc.compiler.artifact.layout import ISAS
from infc.compiler.artifact.reader import Artifact
from infc.compiler.calibrate import stage
from infc.compiler.calibrate.executed import OPERATORS
from infc.compiler.cli import main
from infc.compiler.inspection import diff
from infc.compiler.reference import OnnxReference
from infc.compiler.replay import cosine
from infc.models.fetch import fetch
from infc.passes.domain import DOMAIN
from infc.passes.graph import at, constant, producer, sole_use
from infc.passes.quant import stored
from infc.runtime import Context
from tests.conftest import WORDS, add_tokenizer
from tests.models.families import write
from tests.passes.support import graph, normal

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

CLOSE = 1 / 64  # of a step: more than rounding of sums in f32 takes
APART = 0.02  # part of a layer's results that may be further away: those of an activation between two steps, which is either
ALIKE = 0.999  # of a model's outputs, where activations between two steps add up
_BYTES = (ir.DataType.UINT8, ir.DataType.INT8)
# Between a value that the engine shows and a layer that reads it there is nothing that computes.
_SHAPES_ONLY = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Gather"}  # Gather of an axis of one
_MOVES = {*_SHAPES_ONLY, "QuantizeRows", "DequantizeRows", "QuantizeLinear", "DequantizeLinear", "Cast", "Transpose", "Split"}

_LLAMA = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
          "vocab_size": 64, "max_position_embeddings": 64, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
# A stem, an inverted bottleneck with its residual, a convolution in two groups, and a classifier.
_CONVOLUTIONS = """(float[1,3,16,16] x) => (float[1,24] y) {
    s = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w0, b0) r0 = Clip(s, low, high)
    e = Conv(r0, w1, b1) r1 = Relu(e)
    d = Conv<pads=[1,1,1,1], group=32>(r1, w2, b2) r2 = Relu(d)
    p = Conv(r2, w3, b3) a = Add(p, r0)
    g = Conv<pads=[1,1,1,1], group=2, strides=[2,2]>(a, w4, b4) r4 = HardSwish(g)
    h = GlobalAveragePool(r4) f = Flatten(h) y = Gemm<transB=1>(f, w5, b5) }"""
_SHAPES = {"w0": (16, 3, 3, 3), "w1": (32, 16, 1, 1), "w2": (32, 1, 3, 3), "w3": (16, 32, 1, 1), "w4": (40, 8, 3, 3),
           "w5": (24, 40)}


@dataclass(frozen=True)
class Layer:
    """``got`` of the engine and ``want`` of ONNX Runtime: bytes if the layer gives bytes, else f32. ``step``: by how much a result
    moves where one operand of its sum moves by one step, the one that matters most: of bytes 1; of f32 the largest
    ``step(x[i, k]) |w[k, j]|`` over k, where ``step(x)`` is the scale of the activations, of the tensor or of a row (or of its
    block of K), or the distance between neighbours in bf16; of f32 activations ``|x[i, k]| step(w[k, j])`` with that of f16
    weights."""

    name: str
    got: Array
    want: Array
    step: Array

    def away(self) -> Array:
        """In steps."""
        found: Array = np.abs(self.got.astype(np.float64) - self.want) / self.step
        return found

    def check(self) -> None:
        away = self.away()
        assert np.isfinite(self.want.astype(np.float64)).all()
        assert len(np.unique(self.want)) > 16, f"{self.name}: results that are all alike prove nothing"
        assert away.max() <= 1, f"{self.name}: {away.max():.3g} steps"
        assert np.mean(away > CLOSE) <= APART, f"{self.name}: {np.mean(away > CLOSE):.2%} are further away than {CLOSE} of a step"


# --- a layer's results and its step -------------------------------------------------------------------------------------------


def layers_of(model: ir.Model) -> Iterator[ir.Node]:
    """Products and convolutions of weights in fewer bits."""
    return (n for n in model.graph if n.domain == DOMAIN and n.op_type in ("Linear", "Conv") and stored.read(at(n, 1)) is not None)


def bytes_of(node: ir.Node) -> ir.Value | None:
    """What the node's result is quantised to, if nothing else reads it: its kernel writes the bytes."""
    user = sole_use(node.outputs[0])
    return user.outputs[0] if user is not None and user.op_type == "QuantizeLinear" and user.inputs[0] is node.outputs[0] else None


def _name(value: ir.Value | None) -> str:
    assert value is not None
    assert value.name
    return value.name


def _operands(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """Activations and weights as the graph multiplies them, and the scales of rows."""
    x, weight = node.inputs[0], node.inputs[1]
    assert x is not None
    assert weight is not None
    maker = x.producer()
    if maker is not None and maker.op_type == "Transpose" and node.op_type == "Conv":  # pixels are rows
        maker = producer(maker.inputs[0], "DequantizeRows", domain=DOMAIN)
    return x, weight, at(maker, 1) if maker is not None and maker.op_type == "DequantizeRows" else None


def step_of(node: ir.Node, found: Arrays, shape: tuple[int, ...]) -> Array:
    """Of f32 results of a ``shape``, see Layer; ``found`` has the operands' values."""
    x, weight, rows = _operands(node)
    w, maker = np.abs(found[_name(weight)]), x.producer()
    if rows is not None:
        scales = found[_name(rows)]
        if node.op_type == "Conv":  # of one pixel
            return np.asarray(np.moveaxis(scales * w.reshape(len(w), -1).max(axis=1), -1, 1)).reshape(shape)
        blocks = w.reshape(scales.shape[-1], -1, w.shape[-1]).max(axis=1)
        step = (scales[..., None] * blocks).max(axis=-2)
    elif maker is not None and maker.op_type == "DequantizeLinear":
        scale = constant(at(maker, 1))
        assert scale is not None
        columns = scale.numpy() * (w.max(axis=0) if node.op_type == "Linear" else w.reshape(len(w), -1).max(axis=1))
        step = np.zeros(shape) + (columns if node.op_type == "Linear" else columns.reshape(-1, *[1] * (len(shape) - 2)))
    else:
        steps = np.abs(found[_name(x)]).reshape(-1, len(w))
        if maker is not None and maker.op_type == "Cast":
            steps = np.ldexp(np.float32(1), np.frexp(steps)[1] - 8)  # bf16 has 8 bits of significand
        else:
            w = np.spacing(w.astype(np.float16)).astype(np.float32)
        step = np.stack([(row[:, None] * w).max(axis=0) for row in steps])
    return np.asarray(step).reshape(shape)


# --- the engine's values in the graph -----------------------------------------------------------------------------------------


def shown(model: ir.Model, context: Context, inputs: Arrays) -> dict[str, Array]:
    """Values of the graph as the engine computed them, in the graph's layout."""
    traced = diff.written(context.trace())
    candidates = {_name(v): [context.outputs[_name(v)]] for v in model.graph.outputs if _name(v) in context.outputs}
    for node in model.graph:
        for bits, value in ((False, node.outputs[0]), (True, node.outputs[0]), (True, bytes_of(node))):
            found = [a for a in traced.get(node.name or "", ()) if (a.dtype.kind != "f") == bits]
            if found and value is not None and node.op_type != "QuantizeRows" and (
                    value.dtype in _BYTES if bits else value.dtype == ir.DataType.FLOAT):
                candidates[_name(value)] = found
    whole = OnnxReference(diff._exposed(model, list(candidates)), threads=1).run(inputs)
    laid = {name: diff.best([a.astype(np.float32) for a in arrays], whole[name].astype(np.float32))
            for name, arrays in candidates.items()}
    return {name: np.asarray(array, whole[name].dtype) for name, array in laid.items() if array is not None}


def compare(model: ir.Model, context: Context, inputs: Arrays) -> list[Layer]:
    """Every quantised layer, fed in ONNX Runtime what it was fed in the engine."""
    values = shown(model, context, inputs)
    results = {n.name: result_of(n, values) for n in layers_of(model)}
    operands = [_name(v) for n in layers_of(model) for v in _operands(n) if v is not None and v.producer() is not None]
    opened = diff._cut_open(diff._exposed(model, list(dict.fromkeys([*results.values(), *operands]))), list(values))
    for node in layers_of(opened):
        assert fed(node.inputs[0]), f"{node.name} reads what the engine does not show"
    own = OnnxReference(opened, threads=1).run({**inputs, **{f"{name}{diff._SUFFIX}": a for name, a in values.items()}})
    found = []
    for node in layers_of(model):
        name = results[node.name]
        want = own[name]
        found.append(Layer(node.name or "", values[name].reshape(want.shape), want,
                           np.ones(want.shape) if want.dtype.kind != "f" else step_of(node, own, want.shape)))
    return found


def result_of(node: ir.Node, values: Arrays) -> str:
    """The name of what the layer's kernel writes: bytes, the node's result, or that in another shape."""
    narrow, value = bytes_of(node), node.outputs[0]
    if narrow is not None and _name(narrow) in values:
        return _name(narrow)
    while _name(value) not in values:
        user = sole_use(value)
        assert user is not None, f"the engine does not show {node.name}"
        assert user.op_type in _SHAPES_ONLY, f"the engine does not show {node.name}"
        value = user.outputs[0]
    return _name(value)


def fed(value: ir.Value | None) -> bool:
    """Whether it is an input, which the engine's values are, or one of them in another form."""
    if value is None or value.is_graph_input() or constant(value) is not None:
        return True
    node = value.producer()
    return node is not None and node.op_type in _MOVES and all(fed(v) for v in node.inputs)


# --- models -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def exports() -> Iterator[None]:
    """Models are exported once."""
    original: Callable[..., exporter.Exported] = exporter.export
    made: dict[str, exporter.Exported] = {}

    def once(source: Any, **options: Any) -> exporter.Exported:
        if source.hash not in made:
            made[source.hash] = original(source, **options)
        return replace(made[source.hash], model=made[source.hash].model.clone())

    with mock.patch("infc.compiler.export.export", once), mock.patch("infc.compiler.driver.export", once):
        yield


def texts(path: Path) -> Path:
    rng = random.Random(0)
    path.write_text("\n".join(" ".join(rng.choices(WORDS, k=rng.randint(2, 20))) for _ in range(30)))
    return path


def both(model: Path, folder: Path, *options: object, isa: str = "native,x86-64-v3,scalar") -> tuple[ir.Model, Path]:
    """The quantised graph as the command writes it, and the engine that is built with the same options, of programs ``isa``."""
    given = [str(o) for o in options]
    written, built = folder / "quantized.onnx", folder / "model.infc"
    assert main.main(["export", str(model), "--stage", "quantized", "-o", str(written), *given]) == 0
    assert main.main(["build", str(model), "-o", str(built), "--no-tune", "--isa", isa, *given]) == 0
    return ir.load(written), built


def hold(model: ir.Model, built: Path, cases: int = 3) -> list[Layer]:
    """Every layer that META says was quantised, and the outputs, of each program that runs here. The layers of the last case."""
    artifact, layers = Artifact.open(built), []
    narrow = {layer["node"] for layer in artifact.meta["quantisation"]["cpu"]["layers"] if layer["actual"] != "f32"}
    codes = {p.isa for p in artifact.programs()}
    programs = [infc.Engine(built, threads=1, isa=isa, device="cpu") for isa, code in ISAS.items()
                if code in codes and code <= ISAS[runtime.cpu_isa()]]
    for case, engine in itertools.product(golden.read(artifact)[:cases], programs):
        context = engine.context()
        context.bind(dict(case.inputs))
        layers = compare(model, context, case.inputs)
        assert {layer.name for layer in layers} == narrow == executed(context)
        for layer in layers:
            layer.check()
        want = OnnxReference(model, threads=1).run(case.inputs)
        for name, got in context.outputs.items():
            assert cosine(got, want[name]) > ALIKE, name
    assert layers
    return layers


def executed(context: Context) -> set[str]:
    """Layers whose products kernels of fewer bits compute, by the engine's own clocks."""
    context.set_timing(True)
    context.run()
    narrow = tuple(f"infc_{op}" for op in frozenset().union(*OPERATORS.values()))
    return {t.name for t in context.step_times() if t.kernel.startswith(narrow)}


PRECISIONS = ("int8", "int8-static", "int4", "bf16", "f16", "fp8")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_text_encoder(precision: str, make_bert: Callable[..., Path], tmp_path: Path) -> None:
    model = make_bert(pooling={"pooling_mode_mean_tokens": True}, hidden_size=64, intermediate_size=96)
    data = () if precision in ("bf16", "f16") else ("--calibration", texts(tmp_path / "texts.txt"))
    layers = hold(*both(model, tmp_path, "--precision", precision, "--profile", "batch=1,seq=24", *data))
    assert len(layers) == 8
    assert any(layer.got.dtype == np.uint8 for layer in layers) == (precision == "int8-static")


@pytest.mark.parametrize("options", [("int8",), ("int4",), ("int4", "--method", "rtn", "--group", 64)], ids=str)
def test_a_language_model(options: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_LEAST_OF_LANGUAGE", 0.0)  # random weights do not survive 4 bits
    model = write("LlamaForCausalLM", _LLAMA, tmp_path / "model")
    add_tokenizer(model)
    layers = hold(*both(model, tmp_path, "--precision", *options, "--profile", "tokens=16,rows=16", "--calibration",
                        texts(tmp_path / "texts.txt")))
    assert len(layers) == 11  # and the head among them, which writes the logits


def convolutions(folder: Path, outlier: float = 1.0) -> tuple[Path, Path]:
    """The network and data for it, with one pixel times ``outlier``."""
    weights = {name: (np.random.default_rng(n).standard_normal(shape) * np.prod(shape[1:]) ** -0.5 * 1.5).astype(np.float32)
               for n, (name, shape) in enumerate(_SHAPES.items())}
    biases = {f"b{name[1:]}": normal(shape[0], seed=int(name[1:])) for name, shape in _SHAPES.items()}
    bounds = {"low": np.array(0, np.float32), "high": np.array(6 * outlier, np.float32)}
    ir.save(graph(_CONVOLUTIONS, {**weights, **biases, **bounds}), folder / "net.onnx")
    images = np.random.default_rng(9).standard_normal((40, 3, 16, 16)).astype(np.float32)
    images[:, :, 5, 5] *= outlier
    np.savez(folder / "data.npz", x=images)
    return folder / "net.onnx", folder / "data.npz"


@pytest.mark.parametrize("precision", ["int8-static", "int8"])
@pytest.mark.parametrize("method", ["min-max", "percentile:99"])
def test_convolutions(precision: str, method: str, tmp_path: Path) -> None:
    model, data = convolutions(tmp_path)
    layers = hold(*both(model, tmp_path, "--precision", precision, "--calibration", data, "--calibration-method", method))
    assert [layer.got.dtype.name for layer in layers] == ["uint8"] * 4 + ["float32"] * 2


def test_pixels_with_scales_of_their_own(tmp_path: Path) -> None:
    model, data = convolutions(tmp_path, 20.0)
    graph, built = both(model, tmp_path, "--precision", "int8-static", "--calibration", data)
    layers = {layer.name: layer for layer in hold(graph, built)}
    actual = {layer["node"]: layer["actual"] for layer in Artifact.open(built).meta["quantisation"]["cpu"]["layers"]}
    assert (actual["n_s"], actual["n_e"]) == ("int8-static", "int8")  # of three channels, and one that widens
    assert layers["n_e"].got.shape == (1, 32, 8, 8)


def test_the_graph_is_a_model_with_its_own_scales(tmp_path: Path) -> None:
    """It is built again, without data and without a precision, and computes the same to the last bit."""
    model, data = convolutions(tmp_path)
    _, built = both(model, tmp_path, "--precision", "int8-static", "--calibration", data)
    again = tmp_path / "again.infc"
    assert main.main(["build", str(tmp_path / "quantized.onnx"), "-o", str(again), "--no-tune"]) == 0
    x = np.random.default_rng(3).standard_normal((1, 3, 16, 16)).astype(np.float32)
    contexts = [infc.Engine(path, threads=1, device="cpu").context() for path in (built, again)]
    for context in contexts:
        context.bind({"x": x})
    assert [len(executed(context)) for context in contexts] == [6, 6]
    assert np.array_equal(contexts[0].outputs["y"], contexts[1].outputs["y"])


def test_what_is_more_than_a_step_away_is_found(tmp_path: Path) -> None:
    model, data = convolutions(tmp_path)
    graph, built = both(model, tmp_path, "--precision", "int8-static", "--calibration", data)
    for layer in hold(graph, built, 1):
        worse = np.asarray(layer.got + (layer.step * 1.01 if layer.got.dtype.kind == "f" else 0), layer.got.dtype)
        with pytest.raises(AssertionError, match="steps"):
            replace(layer, got=worse if layer.got.dtype.kind == "f" else layer.got ^ 2).check()
        with pytest.raises(AssertionError, match="further away"):
            replace(layer, want=layer.want + 0.5 * layer.step).check()
    other = next(n for n in layers_of(graph) if n.op_type == "Linear")  # another graph than the engine's
    bias = other.inputs[2]
    assert bias is not None
    assert bias.const_value is not None
    bias.const_value = ir.tensor(bias.const_value.numpy() + np.float32(0.1), name=bias.name)
    with pytest.raises(AssertionError, match=f"{other.name}: [0-9.]+ steps"):
        hold(graph, built, 1)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "int8-static", "int4"])
def test_minilm(precision: str, minilm: Path, tmp_path: Path) -> None:
    data = fetch("texts") / "lee_background.cor"
    layers = hold(*both(minilm, tmp_path, "--precision", precision, "--profile", "batch=1,seq=128", "--calibration", data,
                        isa="native"))
    assert len(layers) == 24


@pytest.mark.slow
def test_efficientnet_lite0(tmp_path: Path) -> None:
    import torch

    from tests.models.efficientnet_lite import EfficientNetLite0
    from tests.models.test_quantized_vision import crops

    model = EfficientNetLite0().eval()
    (weights,) = fetch("efficientnet-lite0").glob("*.pth")
    model.load_state_dict(torch.load(weights, weights_only=True))
    torch.onnx.export(model, (torch.zeros(1, 3, 224, 224),), tmp_path / "lite0.onnx", input_names=["x"], output_names=["y"],
                      dynamo=True, verbose=False)
    np.savez(tmp_path / "crops.npz", x=crops(fetch("photos"), 6, 1))
    layers = hold(*both(tmp_path / "lite0.onnx", tmp_path, "--precision", "int8-static", "--calibration", tmp_path / "crops.npz",
                        isa="native"))
    assert len(layers) == 50
