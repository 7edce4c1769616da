"""Comparisons: what counts as a difference, and what padding is allowed to hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infc.compiler.errors import CheckError, UsageError
from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.reference import CPU, CUDA, TOLERANCE, OnnxDefinition, OnnxReference, PassChecker, compare, masked, tolerance

INTERFACE = Interface((TensorSpec("mask", "i64", ("b", "s"), fill=1, range=(0, 1)),),
                      (TensorSpec("tokens", "f32", ("b", "s", 2)), TensorSpec("pooled", "f32", ("b", 2))), mask="mask")
INPUTS = {"mask": np.array([[1, 1, 0]])}


def wanted() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"tokens": rng.standard_normal((1, 3, 2)).astype(np.float32), "pooled": rng.standard_normal((1, 2)).astype(np.float32)}


def failures(got: dict[str, np.ndarray]) -> dict[str, str]:
    return {c.output: str(c) for c in compare(got, wanted(), INPUTS, INTERFACE) if not c.ok}


@given(st.sampled_from(["tokens", "pooled"]), st.floats(2 * TOLERANCE, 1e6), st.booleans())
def test_a_difference_in_any_real_element_is_found(name: str, step: float, negative: bool) -> None:
    got = wanted()
    got[name].flat[1] += -step if negative else step
    assert list(failures(got)) == [name]


def test_padding_may_hold_anything() -> None:
    got = wanted()
    got["tokens"][0, 2] = np.nan
    assert failures(got) == {}
    assert not masked(got, INPUTS, INTERFACE)["tokens"][0, 2].any()
    np.testing.assert_array_equal(masked(got, INPUTS, INTERFACE)["pooled"], got["pooled"])


def test_nan_zero_shape_and_absence_have_their_own_words() -> None:
    got = wanted()
    got["tokens"][0, 0, 0] = np.nan
    got["pooled"][...] = 0
    found = failures(got)
    assert "NaN" in found["tokens"]
    assert "all zero" in found["pooled"]
    got = wanted()
    del got["tokens"]
    got["pooled"] = got["pooled"][:, :1]
    found = failures(got)
    assert "missing" in found["tokens"]
    assert "shape [1, 1], expected [1, 2]" in found["pooled"]


def test_equal_infinities_agree() -> None:
    got, want = ({"pooled": np.array([[1.0, -np.inf]], np.float32)} for _ in range(2))
    assert all(c.ok for c in compare(got, want, INPUTS, INTERFACE))
    got["pooled"][0, 1] = np.inf
    assert not all(c.ok for c in compare(got, want, INPUTS, INTERFACE))


def test_tolerance_grows_with_the_values_and_is_zero_for_integers() -> None:
    assert tolerance(np.array([0.1], np.float32)) == TOLERANCE
    assert tolerance(np.array([-50.0, np.inf], np.float32)) == pytest.approx(50 * TOLERANCE)
    assert tolerance(np.array([7])) == 0
    assert tolerance(np.array([0.5], np.float16)) == 4 * 2.0**-10
    assert tolerance(np.array([3.0], np.float32), 2.0**-7) == 12 * 2.0**-7


def graph(op: str) -> ir.Model:
    return ir.from_onnx_text(f"""
        <ir_version: 10, opset_import: ["" : 23]>
        g (float[b, 3] x) => (float[b, 3] y) {{ y = {op} (x) }}""")


SMALL = Interface((TensorSpec("x", "f32", ("b", 3)),), (TensorSpec("y", "f32", ("b", 3)),))


def test_pass_checker_names_the_pass() -> None:
    checker = PassChecker(SMALL, lambda model: model)
    checker(graph("Tanh"), graph("Tanh"), "harmless")
    with pytest.raises(CheckError, match=r"pass harmful .* y: largest difference") as caught:
        checker(graph("Tanh"), graph("Sin"), "harmful")
    assert caught.value.code == "INFC-E0501"
    with pytest.raises(CheckError, match="NoSuchOperator") as caught:
        checker(graph("Tanh"), graph("NoSuchOperator"), "broken")
    assert caught.value.code == "INFC-E0502"


def test_sizes_that_the_model_does_not_take() -> None:
    with pytest.raises(UsageError, match="cannot run") as caught:
        OnnxReference(graph("Tanh")).run({"x": np.ones((2, 4), np.float32)})
    assert "x [2, 4]" in caught.value.where


@pytest.mark.parametrize(("available", "asked"), [
    (["TensorrtExecutionProvider", CUDA, CPU], [CUDA, CPU]),
    (["AzureExecutionProvider", CPU], [CPU])])
def test_cuda_is_used_where_it_is_there_and_asked_for(available: list[str], asked: list[str],
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime as ort

    class Session:
        def __init__(self, model: bytes, options: object, providers: list[str], **more: object) -> None:
            self.providers = providers

        def get_providers(self) -> list[str]:
            return self.providers

        def get_inputs(self) -> list[object]:
            return []

        get_outputs = get_inputs

    monkeypatch.setattr(ort, "get_available_providers", lambda: available)
    monkeypatch.setattr(ort, "InferenceSession", Session)
    on_gpu = OnnxReference(graph("Tanh"), cuda=True)
    assert (on_gpu._session.providers, on_gpu.provider) == (asked, asked[0])
    assert OnnxReference(graph("Tanh")).provider == CPU


def test_onnx_reference_ignores_inputs_the_graph_lacks() -> None:
    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(OnnxReference(graph("Tanh")).run({"x": x, "more": x})["y"], np.tanh(x), rtol=1e-6)


@pytest.mark.parametrize("kind", ["int2", "int4"])
def test_the_definition_gives_small_integers_with_their_sign(kind: str, tmp_path: Path) -> None:
    text = f"g (float[3] x, {kind} zero) => ({kind}[3] y) <float one = {{1.0}}> {{ y = QuantizeLinear (x, one, zero) }}"
    imports = [onnx.helper.make_opsetid("", 25)]
    onnx.save(onnx.helper.make_model(onnx.parser.parse_graph(text), opset_imports=imports), tmp_path / "m.onnx")
    found = OnnxDefinition(tmp_path / "m.onnx").run({"x": np.float32([-2, 1, -1]), "zero": np.int8(0)[...]})["y"]
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found, [-2, 1, -1])
