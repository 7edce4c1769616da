from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest

from infc.compiler.cli import group
from infc.compiler.errors import ArtifactError, CheckError


def test_help_lists_every_command(cli: Any) -> None:
    done = cli("--help")
    assert done.code == 0
    assert all(f"\n  {name} " in done.out for name in group.COMMANDS)


@pytest.mark.parametrize("name", [*(n for n in group.COMMANDS if n != "debug"), "debug reduce"])
def test_every_command_has_help_json_and_debug(name: str, cli: Any) -> None:
    done = cli(*name.split(), "--help")
    assert done.code == 0
    assert "--json" in done.out
    assert "--debug" in done.out


def test_help_is_fast() -> None:
    best = min(_seconds([sys.executable, "-m", "infc.compiler.cli.main", "--help"]) for _ in range(5))
    bare = min(_seconds([sys.executable, "-c", "import click, numpy"]) for _ in range(5))
    assert best < max(0.3, 2 * bare)


@pytest.mark.parametrize(("limit", "code"), [(0, "E0009"), (4, "E0023")])
def test_a_full_disk_is_told_as_such(limit: int, code: str, bert: Path, tmp_path: Path) -> None:
    """Files that the export makes on the way, and the artifact."""
    build = f"{sys.executable} -m infc.compiler.cli.main build {bert} -o {tmp_path}/a.infc --profile batch=1,seq=8"
    done = subprocess.run(["bash", "-c", f"ulimit -f {limit}; {build}"], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert f"INFC-{code}: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


@pytest.mark.parametrize(("argv", "code", "hint"), [
    (["biuld"], "INFC-E0001", "infc build"),
    (["quux"], "INFC-E0001", "one of: build"),
    (["inspect", "--jsn", "x"], "INFC-E0002", "--json"),
    (["run"], "INFC-E0003", "infc run --help"),
    (["run", "x.infc"], "INFC-E0034", "--text"),
    (["run", "x.infc", "--threads", "0", "--text", "a"], "INFC-E0003", "infc run --help"),
    (["bench", "x.infc", "--vs", "onxruntime", "--model", "m"], "INFC-E0036", "onnxruntime"),
    (["bench", "x.infc", "--vs", "onnxruntime"], "INFC-E0035", "--model"),
    (["bench", "x.infc", "--ablate"], "INFC-E0035", "--model"),
])
def test_a_misspelt_command_line_exits_with_2_and_says_what_to_try(argv: list[str], code: str, hint: str, cli: Any) -> None:
    done = cli(*argv)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith(code + ": ")
    assert hint in done.err.split("try: ")[1]
    assert "Traceback" not in done.err


def test_with_json_an_error_is_json_on_stdout_too(cli: Any) -> None:
    done = cli("run", "x.infc", "--json")
    assert done.json["error"]["code"] == "INFC-E0034"
    assert done.err.startswith("INFC-E0034")


@pytest.mark.parametrize(("error", "code"), [(CheckError("E0500", "differs"), 1), (ArtifactError("E0602", "newer format"), 3),
                                             (ZeroDivisionError("oops"), 101)])
def test_exit_codes(error: Exception, code: int, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _make_doctor_raise(error, monkeypatch)
    done = cli("doctor")
    assert done.code == code
    assert "Traceback" not in done.err


def test_a_bug_leaves_its_traceback_in_a_file_and_shows_it_with_debug(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _make_doctor_raise(ZeroDivisionError("oops"), monkeypatch)
    done = cli("doctor")
    assert "please report it" in done.err
    log = Path(done.err.split("traceback: ")[1].strip())
    assert "ZeroDivisionError: oops" in log.read_text()
    log.unlink()
    assert "Traceback" in cli("doctor", "--debug").err


@pytest.mark.parametrize(("package", "extra"), [("torch", "build"), ("tokenizers", "cli"),
                                                ("tensorrt_rtx_bindings", "tensorrt-rtx")])
def test_a_missing_package_names_its_extra(package: str, extra: str, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _make_doctor_raise(ModuleNotFoundError(f"No module named '{package}.x'", name=f"{package}.x"), monkeypatch)
    done = cli("doctor")
    assert done.code == 2
    assert f"pip install 'infc[{extra}]'" in done.err


def _make_doctor_raise(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @click.option("--debug", is_flag=True, expose_value=False)
    def command() -> None:
        raise error

    monkeypatch.setattr(importlib.import_module("infc.compiler.cli.doctor"), "command", command)


def test_a_file_that_is_missing_is_named(cli: Any, tmp_path: Path) -> None:
    done = cli("inspect", tmp_path / "absent.infc")
    assert done.code in (2, 3)
    assert "absent.infc" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("status", "message", "code", "hint"), [
    (4, "byte 70: too small", 3, "infc verify m.infc"), (5, "the artifact has no programs for scalar", 3, "infc inspect m.infc"),
    (1, "'x' is not an instruction set", 2, "scalar, x86-64-v3, x86-64-v4"), (7, "input 'a'", 2, "inputs and profiles"),
    (5, "built for TensorRT-RTX 1.7; found no driver; build it again with: infc build m", 3, "infc doctor"),
    (2, "out of memory", 3, "smaller --profile"), (11, "cuGraphLaunch: CUDA_ERROR_ILLEGAL_ADDRESS", 3, "nvidia-smi")])
def test_an_error_of_the_runtime_names_the_file_and_what_to_try(status: int, message: str, code: int, hint: str, cli: Any,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    from infc.compiler.cli.console import common_options
    from infc.runtime import Error

    @click.command()
    @click.argument("engine")
    @common_options
    def command(engine: str, as_json: bool) -> None:
        error = Error(message)
        error.status = status
        raise error

    monkeypatch.setattr(importlib.import_module("infc.compiler.cli.doctor"), "command", command)
    done = cli("doctor", "m.infc")
    assert done.code == code
    assert f"INFC-E06{50 + status}" in done.err
    assert done.err.count("infc build") == message.count("infc build"), "said once"
    assert "where: m.infc\n" in done.err
    assert hint in done.err.split("try: ")[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_leaves_no_temporary_files(number: int, tmp_path: Path) -> None:
    program = ("import click, signal, tempfile, time\nfrom infc.compiler.cli import doctor, group\n"
               f"signal.signal({int(number)}, signal.SIG_DFL)\n"  # whoever runs the tests may ignore it
               "def wait(**options):\n"
               f"    with tempfile.TemporaryDirectory(dir={str(tmp_path)!r}):\n"
               "        print('here', flush=True)\n        time.sleep(60)\n"
               "doctor.command.callback = wait\n"
               "raise SystemExit(group.run(['doctor']))")
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "here\n"
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    process.stdout.close()
    assert not list(tmp_path.iterdir())


def test_too_little_memory_is_no_bug(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(**options: object) -> None:
        raise MemoryError("Unable to allocate 8.00 TiB")

    monkeypatch.setattr(importlib.import_module("infc.compiler.cli.doctor").command, "callback", command)
    done = cli("doctor")
    assert done.code == 2
    assert "8.00 TiB" in done.err


def test_an_interrupt_at_the_very_start_is_quiet(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    from infc.compiler.cli import main

    monkeypatch.setitem(sys.modules, "infc.compiler.cli.group", Interrupted())  # type: ignore[arg-type]
    assert main.main(["doctor"]) == 130
    assert capfd.readouterr() == ("", "")
