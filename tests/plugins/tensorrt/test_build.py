"""Engines from the real builder, and what becomes of a builder that fails, hangs or dies."""

from __future__ import annotations

import importlib.util
import os
import resource
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from infc.compiler.errors import InfcError, UnsupportedError, UsageError
from infc.plugins.tensorrt import build as building
from infc.plugins.tensorrt import layers
from infc.plugins.tensorrt.build import EngineRequest, EngineResult, build
from infc.plugins.tensorrt.flavour import ENTERPRISE, RTX
from infc.plugins.tensorrt.messages import _REDUCE
from tests.plugins.tensorrt import graphs

real = pytest.mark.skipif(importlib.util.find_spec(RTX.module) is None, reason=f"{RTX.package} is not installed")


def make(model: object = None, **options: object) -> EngineResult:
    request = EngineRequest(**{"sms": (89,), **options})  # type: ignore[arg-type]
    return build(model or graphs.linear(np.float16), RTX, request, lambda line: None)  # type: ignore[arg-type]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Puts another program in the worker's place."""
    def put(program: str) -> None:
        path = tmp_path / "worker.py"
        path.write_text(f"import os, signal, time\n{program}\n")
        monkeypatch.setattr(building, "_WORKER", path)

    return put


@real
def test_an_engine_and_what_is_known_of_it() -> None:
    made = make()
    assert len(made.plan) > 1000
    assert made.version[:2] >= (1, 7)
    assert made.inputs == [{"name": "x", "dtype": "FLOAT", "shape": [graphs.ROWS, graphs.DEPTH]}]
    assert made.outputs == [{"name": "y", "dtype": "FLOAT", "shape": [graphs.ROWS, graphs.WIDTH]}]
    assert "VERBOSE Layers:" in made.log
    assert not made.decomposed
    assert made.peak > 50e6


@real
def test_one_engine_for_several_gpus_is_hardly_larger_than_for_one() -> None:
    """Weights dominate, as in a model."""
    weight = np.random.default_rng(0).standard_normal((1024, 2048)).astype(np.float16)
    kind = 10
    model = graphs.graph([graphs.node("Cast", ["x"], "a", to=kind), graphs.node("MatMul", ["a", "w"], "p"),
                          graphs.node("Cast", ["p"], "y", to=1)], {"w": weight}, x=(8, 1024), y=(8, 2048))
    alone = make(model)
    together = make(model, sms=(86, 89, 120))
    assert len(together.plan) <= 1.05 * len(alone.plan)


@real
@pytest.mark.parametrize("sms", [(75,), (80,), (121,), RTX.sms, (75, 120), (120, 121)])
def test_any_set_of_known_gpus_is_legal_together(sms: tuple[int, ...]) -> None:
    assert make(sms=sms).plan


@real
def test_fresh_processes_give_the_same_bytes_wherever_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = graphs.attention(np.float16)
    first = make(model).plan
    for name in ("a", "another/with/a/longer/name"):
        (tmp_path / name).mkdir(parents=True)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
        monkeypatch.setenv("HOME", "/" + name * 7)
        assert make(model).plan == first


@real
def test_several_profiles_in_one_engine() -> None:
    model = graphs.linear(np.float16, x=("rows", graphs.DEPTH), y=("rows", graphs.WIDTH))
    made = make(model, profiles=[{"x": (2, graphs.DEPTH)}, {"x": (16, graphs.DEPTH)}])
    assert "MinShape: [2,64], OptShape: [2,64], MaxShape: [2,64]" in made.log
    assert "MinShape: [16,64], OptShape: [16,64], MaxShape: [16,64]" in made.log


@real
def test_attention_without_a_kernel_is_split_in_a_second_try() -> None:
    assert not make(graphs.attention(np.float16, masked=True)).decomposed
    split = make(graphs.attention(np.float32, masked=True))
    assert split.decomposed
    assert split.attentions == 1


@real
def test_a_timing_cache_is_kept_and_a_broken_one_replaced(tmp_path: Path) -> None:
    """RTX measures nothing and keeps a cache that says so; the calls are those of Enterprise."""
    path = tmp_path / "sm89"
    version = ".".join(map(str, make(timings=path).version))
    (kept,) = tmp_path.iterdir()
    assert kept.name == f"sm89-{version}"
    content = kept.read_bytes()
    kept.write_bytes(b"junk")
    assert make(timings=path).plan
    assert kept.read_bytes() == content


@real
def test_a_limit_of_memory_holds() -> None:
    with pytest.raises(UnsupportedError, match="more than the 30 MB") as caught:
        make(memory=30_000_000)
    assert caught.value.code == "INFC-E0743"
    assert make(memory=1_000_000_000).plan  # the library itself, 230 MB in a file, does not count


@real
@pytest.mark.parametrize("memory", [1, 50_000_000])
def test_too_little_memory_is_told_as_such(memory: int) -> None:
    with pytest.raises(UnsupportedError, match="more than the") as caught:
        make(memory=memory, timeout=60)
    assert caught.value.code == "INFC-E0743"
    assert "--engine-memory" in caught.value.hint


@real
@pytest.mark.parametrize("memory", [62_000_000, 73_000_000])
def test_a_limit_at_the_peak_hangs_nothing(memory: int) -> None:
    """The builder is there for less time than lies between two looks at it: it may get by."""
    code = "INFC-E0743"
    try:
        make(memory=memory, timeout=60)
    except UnsupportedError as error:
        code = error.code
    assert code == "INFC-E0743"


def test_a_worker_that_takes_more_and_more_memory_is_stopped(worker: Callable[[str], None], tmp_path: Path) -> None:
    worker(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nheld = []\n"
           "while True:\n    held.append(b'x' * (8 << 20))\n    time.sleep(0.01)")
    with pytest.raises(UnsupportedError, match="more than the 200 MB"):
        make(memory=200_000_000, timeout=60)
    _assert_gone(tmp_path / "pid")


def test_a_system_out_of_memory_kills(worker: Callable[[str], None]) -> None:
    worker("os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(UnsupportedError, match="killed by SIGKILL") as caught:
        make()
    assert "memory" in caught.value.hint


@pytest.mark.parametrize("program", ["os._exit(os.EX_IOERR)", "open('result.json', 'w').write('{\"io\": \"it is full\"}')"])
def test_a_full_disk_is_told_as_such(worker: Callable[[str], None], program: str) -> None:
    worker(program)
    with pytest.raises(UsageError, match="it is full") as caught:
        make()
    assert caught.value.code == "INFC-E0746"
    assert "TMPDIR" in caught.value.hint


@real
def test_files_that_may_not_grow() -> None:
    model = graphs.linear()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(UsageError) as caught:
            make(model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.code == "INFC-E0746"


@real
def test_a_limit_of_time_holds_and_leaves_no_process(worker: Callable[[str], None], tmp_path: Path) -> None:
    worker(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)")
    start = time.monotonic()
    with pytest.raises(UnsupportedError, match=r"not done after 1\.5 s") as caught:
        make(timeout=1.5)
    assert caught.value.code == "INFC-E0742"
    assert time.monotonic() - start < 10
    _assert_gone(tmp_path / "pid")


def test_an_interrupt_leaves_no_process(worker: Callable[[str], None], tmp_path: Path) -> None:
    worker(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            make()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    _assert_gone(tmp_path / "pid")


def _assert_gone(pid: Path) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_crash_is_an_error_with_the_last_words(worker: Callable[[str], None]) -> None:
    worker("open('builder.log', 'w').write('VERBOSE   Input 0\\nINFO counting sheep\\n')\nos.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(UnsupportedError, match="killed by SIGSEGV") as caught:
        make()
    assert caught.value.code == "INFC-E0744"
    assert "INFO counting sheep" in str(caught.value)
    assert "Input 0" not in str(caught.value)
    assert _REDUCE in str(caught.value)


@real
def test_a_crash_of_the_real_builder_is_contained() -> None:
    """On an attention whose queries are its keys. If a later version builds it, this test needs another graph."""
    with pytest.raises(UnsupportedError, match="killed by SIGSEGV") as caught:
        make(graphs.attention(np.float16, same=True))
    assert caught.value.code == "INFC-E0744"


def test_a_crash_in_the_second_try_is_one(worker: Callable[[str], None]) -> None:
    worker("""
import json
if json.load(open("request.json"))["decompose"]:
    os.kill(os.getpid(), signal.SIGKILL)
json.dump({"decompose": True, "errors": []}, open("result.json", "w"))""")
    with pytest.raises(UnsupportedError, match="killed by SIGKILL"):
        make()


def test_a_worker_that_ends_without_a_result(worker: Callable[[str], None]) -> None:
    worker("print('no idea')\nraise SystemExit(7)")
    with pytest.raises(UnsupportedError, match="ended with status 7") as caught:
        make()
    assert "no idea" in str(caught.value)


def test_a_missing_library_says_what_to_install() -> None:
    """The bindings of Enterprise may be here; its library never is without a GPU."""
    if importlib.util.find_spec("tensorrt_libs") is not None:
        pytest.skip("TensorRT is installed")
    with pytest.raises(InfcError, match="TensorRT is not installed") as caught:
        build(graphs.linear(), ENTERPRISE, EngineRequest((90,)), lambda line: None)
    assert caught.value.code == "INFC-E0734"
    assert "tensorrt-cu13" in caught.value.hint


@real
def test_the_parent_reports_a_fault_of_the_worker(worker: Callable[[str], None]) -> None:
    worker("import json\njson.dump({'bug': 'Traceback: x', 'errors': []}, open('result.json', 'w'))")
    with pytest.raises(InfcError) as caught:
        make()
    assert caught.value.code == "INFC-E0745"


@real
@pytest.mark.parametrize("name", ["line\nVERBOSE Layers:", '{"a": [1]}', "[ONNX Layer: other]", "x" * 5000, "\x1b[31m", "ünï"])
def test_names_of_any_kind_are_those_of_the_layers(name: str) -> None:
    model = graphs.graph([graphs.node("MatMul", ["x", "w"], "p"), graphs.node("Relu", ["p"], "y")], {"w": graphs.WEIGHT})
    for node in model.graph:
        node.name = f"{name}{node.op_type}"
        if not node.outputs[0].is_graph_output():
            node.outputs[0].name = f"{name}p"
    made = make(model)
    found = layers.parse(made.log, 1, {given: [own] for given, own in made.names.items()})
    assert not found.notes
    assert [n for step in found.layers[0] for n in step.fused] == [f"{name}MatMul", f"{name}Relu"]


@real
def test_a_refusal_speaks_of_the_models_names() -> None:
    model = graphs.graph([graphs.node("BitwiseAnd", ["x", "x"], "y")], {}, y=(graphs.ROWS, graphs.DEPTH))
    next(iter(model.graph)).name = "{odd}"
    with pytest.raises(UnsupportedError) as caught:
        make(model)
    assert "{odd}" in str(caught.value)
    assert "infc.node" not in str(caught.value)
