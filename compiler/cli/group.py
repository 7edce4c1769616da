"""The group of commands. Each lives in a file of its own, imported when it is called."""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from types import FrameType
from typing import Any

import click

from infc.compiler.errors import EXIT_BUG, ArtifactError, InfcError, InternalError, UsageError

# name: one line of help. The command is the attribute `command` of compiler/cli/NAME.py.
COMMANDS = {
    "build": "Compile a model into an artifact.",
    "calibrate": "Run a model on data and keep what quantisation needs to know.",
    "run": "Run an artifact on text or arrays, or continue a prompt.",
    "chat": "Talk with a language model.",
    "inspect": "Show what an artifact holds, without loading weights.",
    "verify": "Check an artifact: checksums, golden values, a reference.",
    "bench": "Measure latency, beside other systems if asked.",
    "report": "Write a page about an artifact: precision, accuracy, time and memory by layer.",
    "eval": "Measure how well a language model predicts texts.",
    "compare": "Hold a new artifact against an old one; --gate fails on what got worse.",
    "diff": "Find the first layer at which two artifacts, or one and its model, part.",
    "drift": "Hold what an engine meets against what it was calibrated for.",
    "sensitivity": "Rank layers by what quantising each alone costs.",
    "explain": "Show what each pass matches in a model, and what it nearly matched.",
    "export": "Write a model as an ONNX file.",
    "doctor": "Show what this machine and installation can do.",
    "embed": "Turn an artifact into a linkable object file.",
    "debug": "Find out what is wrong: cut a failing graph down.",
}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_INTERRUPTED = 130
_ISAS = ("scalar", "x86-64-v3", "x86-64-v4")  # as --isa takes them
# Package to extra, for the message about a missing one.
_BUILD = ("torch", "transformers", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "safetensors", "huggingface_hub", "ml_dtypes")
_GPU = {"tensorrt_rtx_bindings": "tensorrt-rtx", "tensorrt_rtx": "tensorrt-rtx", "tensorrt_bindings": "tensorrt",
        "tensorrt": "tensorrt"}
_EXTRAS = _GPU | {"tokenizers": "cli", "rich": "cli", "PIL": "cli"} | dict.fromkeys(_BUILD, "build")
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class LazyGroup(click.Group):
    """Knows the commands by name and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"infc.compiler.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"infc {near[0]}" if near else f"one of: {', '.join(COMMANDS)}"
            raise UsageError("E0001", f"no command is named '{args[0]}'", hint=hint)
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        import infc

        click.echo(f"infc {infc.__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings=_SETTINGS, no_args_is_help=True)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version.")
@click.option("--config", type=click.Path(), help="File of defaults; default: infc.toml of the current directory, if it is there.")
@click.pass_context
def group(ctx: click.Context, config: str | None) -> None:
    """Compile neural networks ahead of time and run them.

    \b
    infc build MODEL_DIR -o model.infc     a Hugging Face directory, hub id, .onnx file or pkg:NAME/path
    infc run model.infc --text "Hello"     runs it
    infc bench model.infc                  measures it
    """
    from infc.compiler.config import FILE, load

    options = _Options()
    tables = load(options, config)
    ctx.default_map = {name: dict(_default(options[name][key], value, f"{key} of [{name}] in {config or FILE}")
                                  for key, value in table.items()) for name, table in tables.items()}


def _default(option: click.Option, value: Any, where: str) -> tuple[str, Any]:
    """The command's parameter that an option sets, and its value. Raises UsageError E0019 for one of another type."""
    if option.is_flag:
        fits, wanted = isinstance(value, bool), "true or false"
    elif option.multiple:
        fits, wanted = isinstance(value, list) and all(isinstance(item, str) for item in value), "a list of strings"
    elif isinstance(option.type, click.types.IntParamType):
        fits, wanted = type(value) is int, "an integer"
    else:
        fits, wanted = isinstance(value, str), "a string"
    if not fits:
        raise UsageError("E0019", f"the value is {value!r}, not {wanted}", where=where, hint=f"give {wanted}")
    return str(option.name), value


class _Options(Mapping[str, dict[str, click.Option]]):
    """Command -> option name as in infc.toml -> the option. A command is imported when it is asked for."""

    def __getitem__(self, name: str) -> dict[str, click.Option]:
        if name not in COMMANDS:
            raise KeyError(name)
        command = importlib.import_module(f"infc.compiler.cli.{name}").command
        options = [p for p in command.params if isinstance(p, click.Option) and p.name]
        return {o.lstrip("-").replace("-", "_"): p for p in options for o in p.opts if o.startswith("--")}

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def run(argv: list[str]) -> int:
    """Runs ``argv``; errors go to stderr as code, what, where, try, and to stdout as JSON with ``--json``."""
    with _terminable():
        return _run(argv)


@contextmanager
def _terminable() -> Iterator[None]:
    """A request to end unwinds as Ctrl-C does, so that temporary files and processes go."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _terminate) for number in (signal.SIGTERM, signal.SIGHUP)
              if signal.getsignal(number) is signal.SIG_DFL}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _run(argv: list[str]) -> int:
    try:
        code = group.main(args=argv, prog_name="infc", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.ctx.get_help() if e.ctx else "", err=True)
        return e.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output left: nobody is there to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as e:
        return _report(_as_infc_error(e), e, argv)


def _as_infc_error(e: Exception) -> InfcError:
    full = None if isinstance(e, (UsageError, ArtifactError)) else _disk_full(e)
    if full is not None:
        return UsageError("E0009", full.strerror or str(full), where=str(full.filename or "temporary files"),
                          hint="make room there, or set TMPDIR to a directory that has some")
    if isinstance(e, InfcError):
        notes = getattr(e, "__notes__", [])
        if isinstance(e, ArtifactError) and notes and notes[0] not in e.where:
            e.where = f"{notes[0]}, {e.where}" if e.where else notes[0]
        return e
    if isinstance(e, click.UsageError):
        return _usage(e)
    if isinstance(e, click.ClickException):
        return UsageError("E0003", e.format_message())
    if isinstance(e, ModuleNotFoundError) and e.name and e.name.split(".")[0] in _EXTRAS:
        package = e.name.split(".")[0]
        return UsageError("E0006", f"this command needs '{package}', which is not installed",
                          hint=f"pip install 'infc[{_EXTRAS[package]}]'")
    if isinstance(e, OSError) and e.filename is not None:
        return UsageError("E0007", e.strerror or str(e), where=str(e.filename), hint="check the path and its permissions")
    if isinstance(e, MemoryError):
        return UsageError("E0008", f"this machine has not enough memory: {e}", hint="build for smaller sizes with --profile")
    return _runtime_error(e) or InternalError("E0900", f"{type(e).__name__}: {e}", hint="please report it, with the traceback")


def _disk_full(e: BaseException | None) -> OSError | None:
    """The error of a file that could not grow, or of no place for temporary ones, which others may have hidden behind theirs."""
    while e is not None:
        if isinstance(e, OSError) and (e.errno in _FULL or "No usable temporary directory" in str(e)):
            return e
        e = e.__cause__ or e.__context__
    return None


def _usage(e: click.UsageError) -> InfcError:
    where = e.ctx.command_path if e.ctx else ""
    if isinstance(e, click.NoSuchOption):
        near = e.possibilities or []
        return UsageError("E0002", f"no option is named '{e.option_name}'", where=where,
                          hint=" or ".join(near) if near else f"{where} --help lists them")
    return UsageError("E0003", e.format_message(), where=where, hint=f"{where} --help")


def _runtime_error(e: Exception) -> InfcError | None:
    """The runtime knows statuses of infc.h, not the compiler's error codes: the two meet here."""
    runtime = sys.modules.get("infc.runtime")
    if runtime is None or not isinstance(e, runtime.Error):
        return None
    status, message, file = int(e.status), str(e), "".join(getattr(e, "__notes__", [])[:1])
    kind: type[InfcError] = InternalError
    if status in (2, 4, 5, 11):  # out of memory, bad artifact, incompatible, device
        kind = ArtifactError
    elif status in (1, 3, 6, 7, 8):
        kind = UsageError
    return kind(f"E06{50 + status}", message, where=file, hint=_runtime_hint(status, message, file or "FILE"))


def _runtime_hint(status: int, message: str, file: str) -> str:
    if status == 4:
        return f"the file is damaged: copy it again or rebuild; `infc verify {file}` tells more"
    if status == 5 and "no programs for" in message:
        return f"infc inspect {file} shows its instruction sets; build with --isa for another"
    if status == 5 and message.startswith("built for"):  # it says itself what to install or to build
        cpu = "; --device cpu takes the CPU's program" if message.endswith("run it on the CPU") else ""
        return f"infc doctor shows the GPU, driver and libraries of this machine{cpu}"
    if status == 5:
        return "infc doctor shows this machine; build for it"
    if status == 2:
        return "free memory, of the GPU's if it runs there, or build with a smaller --profile"
    if status == 11:
        return "nvidia-smi shows the GPU's state; run it again, and with --device cpu to tell whether the GPU is at fault"
    if status == 1 and "is not an instruction set" in message:
        return f"one of: {', '.join(_ISAS)}"
    if status == 1 and "tokenizer" in message:
        return f"infc inspect {file} shows what it was built from; build again where the tokenizer's files are"
    return f"infc inspect {file} shows its inputs and profiles" if status in (1, 3, 6, 7, 8) else "please report this"


def _report(error: InfcError, cause: Exception, argv: list[str]) -> int:
    click.echo(str(error).encode(errors="backslashreplace").decode(), err=True)
    if "--json" in argv:
        fields = {"code": error.code, "message": error.message, "where": error.where, "hint": error.hint}
        click.echo(json.dumps({"error": fields}))
    if "--debug" in argv:
        traceback.print_exception(cause)
    elif error.exit_code == EXIT_BUG:
        _write_traceback(cause, argv)
    return error.exit_code


def _write_traceback(cause: Exception, argv: list[str]) -> None:
    try:
        with tempfile.NamedTemporaryFile("w", prefix="infc-", suffix=".log", delete=False, encoding="utf-8",
                                         errors="backslashreplace") as log:  # arguments may be any bytes
            log.write(f"infc {' '.join(argv)}\n")
            traceback.print_exception(cause, file=log)
    except OSError:
        click.echo("  --debug shows the traceback, for which there is no room on the disk", err=True)
    else:
        click.echo(f"  traceback: {log.name}", err=True)
