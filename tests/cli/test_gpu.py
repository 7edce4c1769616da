"""Commands on artifacts with engines for GPUs, on a machine that can run none of them; and what doctor finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import infc
from infc.compiler import target
from infc.compiler.cli import gpu, main
from tests.compiler.fake_gpu import NAME, PLAN, FakeGpu

NO_GPU = pytest.mark.skipif(bool(gpu.find_driver()["devices"]), reason="this machine has a GPU")


@pytest.fixture(scope="module")
def built(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Artifacts with an engine alone and with a program besides. The engine is no engine: nothing here could run one."""
    folder = tmp_path_factory.mktemp("gpu")
    find = target.find
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "find", lambda name: FakeGpu() if name == NAME else find(name))
        for name, targets in (("engine", NAME), ("both", f"cpu,{NAME}")):
            assert main.main(["build", str(bert), "-o", str(folder / f"{name}.infc"), "--no-tune", "--profile", "batch=1,seq=8",
                              "--target", targets, "--sm", "89,120", "--precision", f"{NAME}=f16"]) == 0
    return {name: folder / f"{name}.infc" for name in ("engine", "both")}


@NO_GPU
def test_verify_says_that_no_engine_was_run(built: dict[str, Path], cli: Any) -> None:
    done = cli("verify", built["engine"])
    assert done.code == 0
    assert "structure and checksums ok, nothing was run" in done.out
    assert "golden values were not replayed on its engine for GPUs: " in done.out
    found = cli("verify", built["engine"], "--json").json
    assert (found["ok"], found["device"], found["engines"], found["replayed_on_gpu"]) == (True, None, 1, False)
    assert found["comparisons"] == []
    assert found["note"]
    both = cli("verify", built["both"])
    assert both.code == 0
    assert "golden values were not replayed on its engine" in both.out
    assert "sentence_embedding" in both.out


@NO_GPU
@pytest.mark.parametrize("argv", [["verify", "engine", "--device", "cuda"], ["verify", "engine", "MODEL"], ["bench", "engine"],
                                  ["run", "engine", "--text", "rain"], ["run", "both", "--text", "rain", "--device", "cuda"]])
def test_a_gpu_that_is_needed_and_not_there(argv: list[str], built: dict[str, Path], bert: Path, cli: Any) -> None:
    done = cli(*({"engine": built["engine"], "both": built["both"], "MODEL": bert}.get(a, a) for a in argv))
    assert done.code == 3
    assert "INFC-E0655" in done.err
    assert "try: infc doctor" in done.err
    assert str(built[argv[1]]) in done.err


@NO_GPU
def test_an_automatic_choice_of_the_cpu_is_told_once(built: dict[str, Path], cli: Any) -> None:
    note = infc.Engine(built["both"]).note
    assert note
    for argv in (["run", "--text", "rain"], ["verify"], ["bench", "--runs", "10", "--threads", "1"], ["bench", "--layers"]):
        done = cli(argv[0], built["both"], *argv[1:])
        assert done.code == 0
        assert done.err.count(note) == 1
        assert note not in done.out
    assert note not in cli("run", built["both"], "--text", "rain", "--device", "cpu").err


def test_a_device_that_there_is_not(built: dict[str, Path], cli: Any) -> None:
    done = cli("run", built["both"], "--text", "rain", "--device", "tpu")
    assert done.code == 2
    assert "tpu" in done.err


def test_bench_has_no_steps_on_a_gpu(built: dict[str, Path], cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        threads, isa, device, note = 1, "", "cuda:0", ""

        def __init__(self, *args: object, **options: object) -> None: ...

    monkeypatch.setattr(infc, "Engine", Engine)
    done = cli("bench", built["both"], "--layers", "--device", "cuda")
    assert done.code == 2
    assert "INFC-E0770: there are no steps to time on cuda:0" in done.err


def test_a_damaged_engine_is_found(built: dict[str, Path], cli: Any, tmp_path: Path) -> None:
    data = bytearray(built["engine"].read_bytes())
    data[data.index(PLAN)] ^= 1
    (tmp_path / "bad.infc").write_bytes(data)
    done = cli("verify", tmp_path / "bad.infc")
    assert done.code == 3
    assert "checksum of section TENSORRT" in done.err


def test_inspect_shows_engines_and_their_layers(built: dict[str, Path], cli: Any) -> None:
    done = cli("inspect", built["engine"])
    assert done.code == 0
    for words in ("engine tensorrt-rtx, SM 89, 120", "1.7.1.116; drivers of CUDA 13.0 and newer", "deferred 1", "tactic",
                  "2 fused attentions", "none: it has no programs for a CPU", "a/MatMul a/Add",
                  "--precision f16 --profile batch=1,seq=8 --no-tune", "the graph handed to the builder, in ONNX Runtime"):
        assert words in done.out, words
    found = cli("inspect", built["both"], "--json").json
    engine = found["engines"][0]
    assert (engine["flavour"], engine["sms"], engine["size"]) == ("tensorrt-rtx", [89, 120], len(PLAN))
    assert engine["profiles"] == ["batch=1,seq=8"]
    assert engine["programs"] == {f"batch=1,seq=8/{NAME}/sm89": {"layers": 1, "launches": 1, "fused_attentions": 2}}
    assert f"batch=1,seq=8/{NAME}/sm89" in found["layers"]
    assert found["options"]["targets"] == ["cpu", NAME]


@pytest.mark.parametrize(("options", "code", "hint"), [
    (["--sm", "89"], "INFC-E0766", "add a target"), (["--sm", "x"], "INFC-E0761", "8.6"),
    (["--precision", "f17"], "INFC-E0760", "f16"),
    (["--target", "tensorrt-rtx", "--isa", "scalar"], "INFC-E0766", "leave --isa out"),
    (["--target", "tensorrt-rtx", "--engine-memory", "lots"], "INFC-E0762", "8G"),
    (["--target", "tensorrt-rtx", "--engine-timeout", "0"], "INFC-E0763", "600"),
    (["--target", "tensorrt-rtx", "--sparsity", "1:2"], "INFC-E0017", "2:4"),
    (["--target", "tensorrt-rtx", "--ranges", "none.json"], "INFC-E0764", "path"),
    (["--target", "cpu", "--precision", "tensorrt-rtx=f16"], "INFC-E0765", "the targets are: cpu")])
def test_a_wrong_option_is_an_error_that_says_what_to_do(options: list[str], code: str, hint: str, bert: Path, cli: Any) -> None:
    done = cli("build", bert, *options)
    assert done.code == 2
    assert done.err.startswith(code)
    assert hint in done.err.split("try: ")[1]


def test_options_from_infc_toml(cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from infc.compiler.cli import build
    from infc.compiler.cli.flags import build_options

    seen: dict[str, Any] = {}
    monkeypatch.setattr(build.command, "callback", lambda **options: seen.update(options))
    monkeypatch.chdir(tmp_path)
    Path("infc.toml").write_text('[build]\ntarget = ["cpu", "tensorrt-rtx"]\nsm = ["86", "8.9"]\nprecision = ["tensorrt-rtx=f16"]\n'
                                 'engine-layout = "each"\nengine-timeout = "60"\nengine-memory = "4G"\n')
    assert cli("build", "m").code == 0
    given = {name: seen[name] for name in ("target", "sm", "precision", "engine_layout", "engine_timeout", "engine_memory")}
    assert build_options(given) == {"targets": ("cpu", "tensorrt-rtx"), "sms": ("86", "8.9"), "precision": ("tensorrt-rtx=f16",),
                                    "engine_layout": "each", "engine_timeout": "60", "engine_memory": "4G"}


def test_reduce_writes_the_part_and_the_command(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy")
    nodes = [helper.make_node("Tanh", ["x"], ["a"], name="one"),
             helper.make_node("Normalizer", ["a"], ["b"], name="two", domain="ai.onnx.ml"),
             helper.make_node("Add", ["a", "b"], ["y"], name="three")]
    b = helper.make_tensor_value_info("b", TensorProto.FLOAT, [4, 4])
    graph = helper.make_graph(nodes, "g", [x], [y], value_info=[b])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid("ai.onnx.ml", 3)],
                                ir_version=10), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    done = cli("debug", "reduce", "m.onnx", "-o", "small.onnx", "--isa", "scalar", "--no-tune")
    assert done.code == 0
    assert "two   ai.onnx.ml::Normalizer  a:4×4" in done.out
    assert done.out.strip().endswith("infc build small.onnx --isa scalar --no-tune")
    assert "INFC-E0401" in done.err
    again = cli("build", "small.onnx", "--isa", "scalar", "--no-tune")
    assert again.code == 3
    assert "INFC-E0401" in again.err
    found = cli("debug", "reduce", "m.onnx", "--json").json
    assert ([n["node"] for n in found["nodes"]], found["complete"], found["path"]) == (["two"], True, "reduced.onnx")
    assert "E0022" in cli("debug", "reduce", "m.onnx", "-o", "m.onnx").err
    assert "E0021" in cli("debug", "reduce", "m.onnx", "-o", "none/m.onnx").err


def test_doctor_finds_drivers_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cuda:
        """A driver of CUDA 13.1 with two devices."""

        def __init__(self, name: str) -> None: ...

        def __getattr__(self, name: str) -> Any:
            return {"cuInit": lambda flags: 0, "cuDriverGetVersion": lambda out: set_int(out, 13010),
                    "cuDeviceGetCount": lambda out: set_int(out, 2), "cuDeviceGet": set_int,
                    "cuDeviceGetName": lambda out, size, device: setattr(out, "value", b"GPU %d" % device.value),
                    "cuDeviceGetAttribute": lambda out, which, device: set_int(out, {75: 8 + device.value, 76: 9}[which])}[name]

    def set_int(out: Any, value: int) -> int:
        out._obj.value = value
        return 0

    monkeypatch.setattr(gpu.ctypes, "CDLL", Cuda)
    assert gpu.find_driver() == {"cuda": "13.1", "devices": [{"name": "GPU 0", "sm": 89}, {"name": "GPU 1", "sm": 99}], "error": ""}
    monkeypatch.setattr(Cuda, "__getattr__", lambda self, name: lambda *args: 100)
    assert gpu.find_driver() == {"cuda": None, "devices": [], "error": "cuInit failed with status 100"}


def test_doctor_says_what_works(cli: Any) -> None:
    found = cli("doctor", "--json").json["gpu"]
    assert set(found["targets"]) == {"tensorrt-rtx", "tensorrt"}
    for about in found["targets"].values():
        assert about["building"]
        assert about["running"]
    if not found["driver"]["devices"]:
        assert all(about["running"] != "ok" for about in found["targets"].values())
    assert "target tensorrt-rtx" in cli("doctor").out


def test_running_an_artifact_with_engines_needs_no_compiler(built: dict[str, Path]) -> None:
    code = ("import sys, infc; e = infc.Engine(sys.argv[1], device='cpu'); "
            "print(e.device, sorted({'onnx_ir', 'torch', 'onnxruntime'} & set(sys.modules)))")
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run([sys.executable, "-c", code, str(built["both"])], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": root})
    assert done.stdout.strip() == "cpu []"
