"""The operators as TensorRT's plugins: driven as TensorRT drives them, on the fake driver, and built by TensorRT-RTX."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.gpu import cases, driver, emulated, kernels
from tests.gpu.operators import build, dtypes

HERE = Path(__file__).parent
TENSORRT, CUDA = build.tensorrt_include(), build.cuda_include()
DATA_TYPES = {"kFLOAT": 0, "kHALF": 1, "kINT8": 2, "kINT32": 3, "kUINT8": 5, "kFP8": 6, "kBF16": 7}  # nvinfer1::DataType
MAX_DIMS = 8
pytestmark = pytest.mark.skipif(TENSORRT is None or CUDA is None, reason="TENSORRT_ROOT names no TensorRT headers")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[cases.Case], str]]:
    """Runs a case by the plugin; "" or what is wrong."""
    assert TENSORRT is not None
    assert CUDA is not None
    folder = tmp_path_factory.mktemp("plugins")
    library = build.plugins(folder, TENSORRT, CUDA, sms=())
    program = folder / "host.so"
    subprocess.run(
        [*build.CXX, f"-isystem{TENSORRT}", f"-isystem{CUDA}", str(HERE / "plugin_host.cpp"), "-o", str(program), "-ldl"],
        check=True,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "LIBRARY", str(emulated.build(folder)))
        with driver.Device() as device:  # the plugins' search for libcuda.so.1 then finds the fake
            run_plugin = ctypes.CDLL(str(program)).run_plugin
            run_plugin.restype = ctypes.c_char_p
            yield lambda case: run(device, run_plugin, library, case)


def run(device: driver.Device, run_plugin: Any, library: Path, case: cases.Case) -> str:
    op, shapes = case.op, {name: array.shape for name, array in case.inputs.items()}
    types = kernels.types_of(op, case.inputs, case.attributes)
    out_shapes = op.output_shapes(shapes, op.bind(shapes, case.attributes))
    memory = {name: device.upload(array) for name, array in case.inputs.items()}
    tensors = [(t, shapes[t.name]) for t in op.inputs if t.name in shapes] + [(o, out_shapes[o.name]) for o in op.outputs]
    storage = {t.name: dtypes.DTYPES[types.get(t.dtype, t.dtype)] for t, _ in tensors}
    for o in op.outputs:
        memory[o.name] = device.allocate(int(np.prod(out_shapes[o.name])) * np.dtype(storage[o.name].storage).itemsize)
    names = [a.name.encode() for a in op.attributes]
    dims = np.zeros((len(tensors), MAX_DIMS), np.int64)
    for i, (_, shape) in enumerate(tensors):
        dims[i, : len(shape)] = shape
    said = ctypes.c_char_p()
    failed = run_plugin(
        str(library).encode(),
        op.name.encode(),
        len(names),
        (ctypes.c_char_p * len(names))(*names),
        (ctypes.c_double * len(names))(*(case.attributes[a.name] for a in op.attributes)),
        len(shapes),
        len(op.outputs),
        (ctypes.c_int * len(tensors))(*(DATA_TYPES[storage[t.name].tensorrt] for t, _ in tensors)),
        (ctypes.c_int * len(tensors))(*(len(shape) for _, shape in tensors)),
        ctypes.c_void_p(dims.ctypes.data),
        (ctypes.c_void_p * len(tensors))(*(memory[t.name].value for t, _ in tensors)),
        device.stream,
        ctypes.byref(said),
    )
    if failed:
        device.free()
        return f"{failed.decode()}: {(said.value or b'').decode()}"
    outputs = {o.name: device.download(memory[o.name], out_shapes[o.name], storage[o.name].storage) for o in op.outputs}
    device.free()
    return case.wrong(outputs)


@pytest.mark.parametrize(
    "case",
    [
        cases.norm((3,), 64, "f16", "int8"),
        cases.norm((2, 2, 3), 1032, "bf16", "fp8"),
        cases.norm((1,), 256, "f16", "fp8"),
        cases.norm((5,), 512, "bf16", "int8"),
        cases.norm((0,), 64, "f16", "int8"),
        cases.mat_vec(1, 512, 9, 128, zeros=False),
        cases.mat_vec(8, 96, 4, 32, zeros=True),
    ],
    ids=lambda case: case.text,
)
def test_a_plugin_runs_as_tensorrt_would_run_it(host: Callable[[cases.Case], str], case: cases.Case) -> None:
    assert host(case) == ""


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"x": np.ones((9, 128), np.float16)}, "infc::Int4MatVec: one to eight rows: for more, dequantise and multiply matrices"),
        (
            {"w": np.ones((4, 16), np.int32)},
            r"infc::Int4MatVec: w has shape \[4, 16\], which the other inputs and the attributes do not allow",
        ),
        ({"scales": np.ones((4, 1, 1), np.float16)}, r"scales has shape \[4, 1, 1\]"),
        ({"group_size": 16, "scales": np.ones((4, 8), np.float16)}, "group_size must be 32, 64 or 128"),
    ],
)
def test_a_plugin_says_what_does_not_fit(
    host: Callable[[cases.Case], str], wrong: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = cases.mat_vec(1, 128, 4, 128, zeros=False)
    monkeypatch.setattr(type(case.op), "bind", lambda *_: {"rows": 1, "n": 4})  # the same check in Python
    for name, value in wrong.items():
        (case.inputs if isinstance(value, np.ndarray) else case.attributes)[name] = value
    with pytest.raises(AssertionError, match=message):
        assert host(case) == ""


# ---- TensorRT-RTX

BUILD = """
import sys
import tensorrt_rtx_bindings as trt
import ops
assert ops.register(trt)
logger = trt.Logger(trt.Logger.WARNING)
builder = trt.Builder(logger)
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
parser = trt.OnnxParser(network, logger)
if not parser.parse_from_file(sys.argv[1]):
    sys.exit("; ".join(parser.get_error(i).desc() for i in range(parser.num_errors)))
layers = [network.get_layer(i) for i in range(network.num_layers)]
plugins = [l for l in layers if l.type == trt.LayerType.PLUGIN_V3]
outputs = [l.get_output(o) for l in plugins for o in range(l.num_outputs)]
print(*(f"{t.name}:{t.dtype.name}{list(t.shape)}" for t in outputs))
config = builder.create_builder_config()
config.num_compute_capabilities = 3
for i, sm in enumerate(("SM86", "SM89", "SM120")):
    config.set_compute_capability(getattr(trt.ComputeCapability, sm), i)
plan = builder.build_serialized_network(network, config)
print(0 if plan is None else plan.nbytes, flush=True)
"""


@pytest.fixture(scope="module")
def with_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert TENSORRT is not None
    assert CUDA is not None
    return build.plugins(tmp_path_factory.mktemp("code"), TENSORRT, CUDA, sms=(89,))


def build_rtx(model: onnx.ModelProto, library: Path, folder: Path, link: bool = True) -> subprocess.CompletedProcess[str]:
    from tests.gpu.operators import search_path

    spec = importlib.util.find_spec("tensorrt_rtx_libs")
    assert spec is not None
    assert spec.submodule_search_locations
    rtx = Path(spec.submodule_search_locations[0], "libtensorrt_rtx.so.1")
    onnx.save(model, folder / "model.onnx")
    environment = {**os.environ, "PYTHONPATH": str(build.HERE.parent), "INFC_TENSORRT_PLUGINS": str(library)}
    if link:
        environment["LD_LIBRARY_PATH"] = search_path(rtx, folder)
    return subprocess.run(
        [sys.executable, "-c", BUILD, str(folder / "model.onnx")], env=environment, capture_output=True, text=True, timeout=120
    )


def model_of(case: cases.Case) -> onnx.ModelProto:
    """A graph of the operator alone, whose x (and residual) are inputs; 8-bit outputs are dequantised for the border."""
    op, onnx_types = case.op, onnx.TensorProto
    shapes = {name: array.shape for name, array in case.inputs.items()}
    types = kernels.types_of(op, case.inputs, case.attributes)
    element = {t.name: dtypes.DTYPES[types.get(t.dtype, t.dtype)].onnx for t in (*op.inputs, *op.outputs)}
    attributes = {a.name: int(v) if a.kind == "int" else v for a in op.attributes for v in (case.attributes[a.name],)}
    nodes = [
        helper.make_node(
            op.name, [i.name for i in op.inputs if i.name in shapes], [o.name for o in op.outputs], domain="infc", **attributes
        )
    ]
    inputs = [helper.make_tensor_value_info(n, element[n], shapes[n]) for n in ("x", "residual") if n in shapes]
    constants = [
        helper.make_tensor(n, element[n], a.shape, a.tobytes(), raw=True)
        for n, a in case.inputs.items()
        if n not in ("x", "residual")
    ]
    outputs = []
    for name, shape in op.output_shapes(shapes, op.bind(shapes, case.attributes)).items():
        if element[name] in (onnx_types.INT8, onnx_types.FLOAT8E4M3FN):
            constants.append(numpy_helper.from_array(np.float32(0.03), "step"))
            nodes.append(helper.make_node("DequantizeLinear", [name, "step"], ["real"]))
            outputs.append(helper.make_tensor_value_info("real", onnx_types.FLOAT, shape))
        else:
            outputs.append(helper.make_tensor_value_info(name, element[name], shape))
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, constants),
        opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid("infc", 1)],
    )


@pytest.mark.parametrize(
    ("case", "outputs"),
    [
        (cases.norm((2, 4), 512, "f16", "int8"), "y:INT8[2, 4, 512] sum:HALF[2, 4, 512]"),
        (cases.norm((4,), 512, "bf16", "int8"), "y:INT8[4, 512] sum:BF16[4, 512]"),
        (cases.mat_vec(2, 384, 64, 128, zeros=False), "y:HALF[2, 64]"),
        (cases.mat_vec(1, 384, 64, 32, zeros=True), "y:HALF[1, 64]"),
    ],
    ids=lambda x: getattr(x, "text", ""),
)
def test_tensorrt_rtx_builds_an_engine_with_the_plugin(with_code: Path, tmp_path: Path, case: cases.Case, outputs: str) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    done = build_rtx(model_of(case), with_code, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found, size = done.stdout.splitlines()
    assert found == outputs
    assert int(size) > 10_000


def test_tensorrt_rtx_needs_the_link(with_code: Path, tmp_path: Path) -> None:
    """Without it the parser ends the process, with nothing that tells why: what search_path is for."""
    pytest.importorskip("tensorrt_rtx_bindings")
    done = build_rtx(model_of(cases.mat_vec(2, 384, 64, 128, zeros=False)), with_code, tmp_path, link=False)
    assert done.returncode == -6, "it no longer ends: search_path is not needed any more"


def test_a_shape_that_does_not_fit_stops_the_build(with_code: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    model = model_of(cases.mat_vec(1, 384, 64, 128, zeros=False))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 16
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 16
    done = build_rtx(model, with_code, tmp_path)
    assert done.stdout.splitlines()[-1:] == ["0"], done.stdout + done.stderr
    assert "infc::Int4MatVec: one to eight rows" in done.stdout + done.stderr


def test_our_own_build_takes_the_plugins(with_code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    import onnx_ir as ir

    from infc.compiler.errors import UnsupportedError
    from infc.plugins.tensorrt.build import EngineRequest
    from infc.plugins.tensorrt.build import build as build_engine
    from infc.plugins.tensorrt.flavour import RTX

    model = ir.from_proto(model_of(cases.mat_vec(2, 384, 64, 128, zeros=False)))
    monkeypatch.setenv("INFC_TENSORRT_PLUGINS", str(with_code.parent / "none.so"))
    with pytest.raises(UnsupportedError, match="E0726: the custom operator Int4MatVec is not compiled here"):
        build_engine(model, RTX, EngineRequest(sms=(86, 89)), print)
    monkeypatch.setenv("INFC_TENSORRT_PLUGINS", str(with_code))
    built = build_engine(model, RTX, EngineRequest(sms=(86, 89)), print)
    assert [o["shape"] for o in built.outputs] == [[2, 64]]
    assert "Int4MatVec" in built.log


def test_a_registry_without_the_plugins_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tests.gpu.operators import library, register

    monkeypatch.setenv("INFC_TENSORRT_PLUGINS", str(tmp_path / "none.so"))
    assert library() is None
    assert register(None) is False
