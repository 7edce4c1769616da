"""The target as a whole: from graphs to sections, layers and facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from infc.compiler import driver
from infc.compiler.artifact.io import IoSpec, IoSymbol, IoTensor
from infc.compiler.artifact.layout import DIM_EXACT
from infc.compiler.artifact.tensorrt import decode
from infc.compiler.errors import InfcError, InternalError, UnsupportedError, UsageError
from infc.compiler.profiles import parse
from infc.compiler.target import BuildContext, Compiled, GpuOptions
from infc.plugins.tensorrt import TensorRtRtxTarget, TensorRtTarget, target
from infc.plugins.tensorrt.flavour import RTX
from tests.plugins.tensorrt import graphs
from tests.plugins.tensorrt.graphs import node

pytest.importorskip(RTX.module, reason=f"{RTX.package} is not installed")
DEPTH, WIDTH = graphs.DEPTH, graphs.WIDTH
ROWS = {"x": ("rows", DEPTH), "y": ("rows", WIDTH)}


def mlp(weight: np.ndarray = graphs.WEIGHT) -> ir.Model:
    """relu(x @ w) over ``rows`` rows."""
    return graphs.graph([node("MatMul", ["x", "w"], "p"), node("Relu", ["p"], "y")], {"w": weight}, **ROWS)  # type: ignore[arg-type]


def context(model: ir.Model, profiles: Sequence[str], sms: tuple[int, ...] = (86, 89, 120), precision: str = "f16",
            disabled: frozenset[str] = frozenset(), **gpu: object) -> BuildContext:
    def tensor(value: ir.Value) -> IoTensor:
        assert value.shape is not None
        return IoTensor(str(value.name), "f32", tuple(d if isinstance(d, int) else str(d.value) for d in value.shape))

    wanted = [parse(p).as_dict() for p in profiles]
    spec = IoSpec([tensor(v) for v in model.graph.inputs], [tensor(v) for v in model.graph.outputs],
                  [IoSymbol(name, DIM_EXACT) for name in wanted[0]], wanted)
    return BuildContext(interface=spec, kernels=(), native_isa="", measure=lambda *_: 0.0, timing_cache={}, tune=False, threads=1,
                        isas=(), disabled=disabled, precision=precision, symbolic=model, command="infc build m.onnx",
                        gpu=GpuOptions(sms=sms, **gpu))  # type: ignore[arg-type]


def compile_(model: ir.Model, profiles: Sequence[str] = ("rows=4",), **options: object) -> Compiled:
    made = context(model, profiles, **options)  # type: ignore[arg-type]
    return TensorRtRtxTarget().compile(driver.specialise(model, [parse(p) for p in profiles]), made)


def test_one_engine_serves_all_profiles() -> None:
    made = compile_(mlp(), ["rows=4", "rows=64"])
    (section,) = made.sections
    assert (section.kind, section.name) == ("TENSORRT", "rtx sm86+89+120")
    engine = decode(section.data, 2)
    assert (engine.flavour, engine.sms, engine.profiles) == ("tensorrt-rtx", (86, 89, 120), (0, 1))
    assert engine.command == "infc build m.onnx"
    assert engine.version[:2] >= (1, 7)
    programs = ["rows=4/tensorrt-rtx/sm86+89+120", "rows=64/tensorrt-rtx/sm86+89+120"]
    assert list(made.layers) == list(made.memory["activations"]) == programs
    (facts,) = made.engines
    assert facts["profiles"] == ["rows=4", "rows=64"]
    assert facts["size"] == len(engine.plan) == next(iter(made.memory["engines"].values()))
    for name in programs:
        count = len(made.layers[name])
        assert facts["programs"][name] == {"layers": count, "launches": count, "fused_attentions": 0, "products": {"f16 x f16": 1}}
    (handed,) = made.handed
    assert [str(p) for p in handed.profiles] == ["rows=4", "rows=64"]
    assert [v.name for v in handed.model.graph.inputs] == ["x"]


def test_an_engine_for_each_profile() -> None:
    made = compile_(mlp(), ["rows=4", "rows=64"], layout="each")
    assert [decode(s.data, 2).profiles for s in made.sections] == [(0,), (1,)]
    assert [e["profiles"] for e in made.engines] == [["rows=4"], ["rows=64"]]
    assert len(made.layers) == len(made.handed) == 2


def test_profiles_that_cannot_share_an_engine_get_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    original = target.legalise

    def fussy(model: ir.Model, request: target.Request) -> target.Legalised:
        if request.dynamic:
            raise UnsupportedError("E0709", "sizes are needed")
        return original(model, request)

    monkeypatch.setattr(target, "legalise", fussy)
    made = compile_(mlp(), ["rows=4", "rows=64"])
    assert len(made.sections) == 2
    assert "every profile has an engine of its own: sizes are needed" in made.notes


def test_the_same_build_gives_the_same_sections() -> None:
    first, second = (compile_(mlp(), ["rows=4", "rows=64"]) for _ in range(2))
    assert [bytes(s.data) for s in first.sections] == [bytes(s.data) for s in second.sections]
    assert (first.layers, first.engines, first.memory, first.notes) == (second.layers, second.engines, second.memory, second.notes)


@pytest.mark.parametrize(("options", "code"), [
    ({"sms": ()}, "E0731"), ({"sms": (90,)}, "E0730"), ({"precision": "fp8", "sms": (86, 89)}, "E0733"),
    ({"precision": "bf16", "sms": (75,)}, "E0733"), ({"layout": "two"}, "E0750")])
def test_options_that_do_not_go_together(options: dict[str, object], code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "machine_sm", lambda: None)
    monkeypatch.setattr(target, "build", lambda *_: pytest.fail("the builder was started"))
    with pytest.raises((UsageError, UnsupportedError)) as caught:
        compile_(mlp(), **options)
    assert caught.value.code == f"INFC-{code}"


def test_enterprise_needs_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "machine_sm", lambda: None)
    with pytest.raises(UnsupportedError, match="this machine's GPU only"):
        TensorRtTarget().compile([], context(mlp(), ["rows=4"], sms=()))


@pytest.mark.parametrize("other", [{"dtype": "f16"}, {"name": "z"}, {"dims": ("rows", 7)}])
def test_a_network_that_gives_something_else_is_a_fault(other: dict[str, Any]) -> None:
    model = mlp()
    made = context(model, ["rows=4"])
    spec = made.interface
    made.interface = replace(spec, outputs=[replace(spec.outputs[0], **other)])
    with pytest.raises(InternalError, match="the engine's outputs are") as caught:
        TensorRtRtxTarget().compile(driver.specialise(model, [parse("rows=4")]), made)
    assert caught.value.code == "INFC-E0736"


def test_states_of_sparse_weights() -> None:
    """Half of the weights along K are zero, in the pattern; RTX decides on the device whether that is of use."""
    weight = graphs.WEIGHT.copy()
    weight[0::4] = weight[1::4] = 0
    plans = []
    for disabled, states in ((), ["deferred"]), (("sparse-weights",), ["refused"]):
        made = compile_(mlp(weight), sparsity="2:4", disabled=frozenset(disabled))
        assert [w["state"] for w in made.engines[0]["sparsity"]] == states
        plans.append(bytes(made.sections[0].data))
    assert plans[0] == plans[1]
    (engine,) = compile_(mlp(weight)).engines
    assert engine["sparsity"] == []


def test_the_parsers_refusal_reaches_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a graph that legalisation let through."""
    monkeypatch.setattr(target, "legalise", lambda model, request: target.Legalised(model, [], []))
    model = graphs.graph([node("Foo", ["x"], "y", domain="other")], {}, **ROWS)  # type: ignore[arg-type]
    with pytest.raises(InfcError, match="Foo 'make_y'") as caught:
        TensorRtRtxTarget().compile(driver.specialise(model, [parse("rows=4")]), context(model, ["rows=4"]))
    assert caught.value.code == "INFC-E0740"
