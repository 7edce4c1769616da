"""``infc bench``: latency with its uncertainty, beside other systems, by layer, and by what each technique brings."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from infc.compiler.cli import ablation, bench_language, inputs, language, peers
from infc.compiler.cli.console import Progress, common_options, emit, milliseconds, say, table, unit_of
from infc.compiler.cli.engines import DEVICE, opened, place
from infc.compiler.cli.measure import Summary, Worker, alternate, ratio_interval, summarise
from infc.compiler.errors import CheckError, UsageError

if TYPE_CHECKING:
    from infc.runtime import Engine

_ROUNDS = 10
_REQUESTS = 20  # of a language model, each of many tokens
_OURS = "infc"


@dataclass(frozen=True)
class Setting:
    """What is measured on: a folder with the inputs, the number of threads, the device that was chosen; and how long a system may
    take."""

    folder: Path
    arrays: inputs.Arrays
    threads: int
    device: str
    seconds: float

    @classmethod
    def create(cls, folder: str, arrays: inputs.Arrays, threads: int, device: str, seconds: float) -> Setting:
        np.savez(Path(folder) / "inputs.npz", **arrays)  # type: ignore[arg-type]
        return cls(Path(folder), arrays, threads, device, seconds)

    def worker(self, label: str, system: str, **config: Any) -> Worker:
        outputs = self.folder / f"{label}.npz"
        return Worker({"label": label, "system": system, "threads": self.threads, "inputs": str(self.folder / "inputs.npz"),
                       "outputs": str(outputs), **config})


@click.command()
@click.argument("engine", type=click.Path(path_type=Path))
@click.option("--runs", default=300, show_default=True, type=click.IntRange(10), help="Timed runs of each system.")
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(min=0, min_open=True),
              help="Time for each system: it is run less often if it is slow.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: what affinity and cgroup quota allow.")
@click.option("--isa", help="Run the programs of this instruction set.")
@DEVICE
@click.option("--dims", help="Sizes in use, such as seq=77; default: the largest profile.")
@click.option("--vs", help=f"Systems to measure in turns with it: {', '.join(s for s in peers.SYSTEMS if s != _OURS)}.")
@click.option("--model", help="The model that ENGINE was built from, for --vs and --ablate.")
@click.option("--layers", is_flag=True, help="Time by layer.")
@click.option("--ablate", is_flag=True, help="Rebuild without each pass and technique and measure in turns.")
@click.option("--prompt-tokens", metavar="N,…", help="Of a language model: lengths of prompts; default: 128,512.")
@click.option("--new-tokens", default=64, show_default=True, type=click.IntRange(2), help="How many follow each prompt.")
@click.option("--concurrency", metavar="N,…", help="So many requests at once: 1,2,4,8; and the longest prompt among them.")
@click.option("--burst", default=0, type=click.IntRange(0), metavar="N", help="So many requests at once beside one that generates.")
@common_options
def command(engine: Path, runs: int, seconds: float, threads: int | None, isa: str | None, device: str | None, dims: str | None,
            vs: str | None, model: str | None, layers: bool, ablate: bool, prompt_tokens: str | None, new_tokens: int,
            concurrency: str | None, burst: int, as_json: bool) -> None:
    """Measure ENGINE: median, P95 and P99 with bootstrap 95 % confidence intervals, after warm-up.

    Of a language model: time to the first token and between tokens, by stage; for single steps: --dims tokens=1,rows=1.
    """
    from infc.compiler.artifact.reader import Artifact

    systems = _systems(vs, model)
    if ablate and not model:
        raise UsageError("E0035", "--ablate builds the model again and needs it", where="--ablate", hint="add --model MODEL_DIR")
    if language.is_language_model(engine) and not (dims or layers or ablate or vs):
        load = bench_language.Load(bench_language.numbers(prompt_tokens or "128,512", "--prompt-tokens"), new_tokens,
                                   bench_language.numbers(concurrency, "--concurrency") if concurrency else [], burst,
                                   min(runs, _REQUESTS), seconds)
        bench_language.run(engine, load, threads, isa, device, as_json)
        return
    spec = Artifact.open(engine).io
    sizes = inputs.sizes(spec, dims)
    arrays = inputs.made_up(spec, sizes)
    first = opened(engine, threads, isa, device)
    if layers and not first.isa:
        raise UsageError("E0770", f"there are no steps to time on {first.device}: a run is one launch of a graph", where="--layers",
                         hint=f"infc inspect {engine} lists its layers; add --device cpu for the steps of a program there")
    count, device = first.threads, first.device  # what was chosen now is what is measured
    report: dict[str, Any] = {"engine": str(engine), "dims": sizes, "threads": count, "device": device}
    with tempfile.TemporaryDirectory(prefix="infc-bench-") as folder:
        setting = Setting.create(folder, arrays, count, device, seconds)
        say(f"{engine}  {_text(sizes)}  {place(first)}  {runs} runs, at most {seconds:g} s a system")
        if dims is None and len(spec.profiles) > 1:
            say(f"measured at the largest of the profiles {'; '.join(map(_text, spec.profiles))}; "
                f"for another: --dims {_text(spec.profiles[0])}")
        if layers:
            report["layers"] = _layers(first, setting, min(runs, 100))
        elif ablate:
            assert model
            report["ablation"] = ablation.measure(engine, model, setting, runs)
        else:
            report |= _compare(engine, setting, isa, systems, model, runs)
            for label, row in report["systems"].items():
                if row["latency"].runs < runs:
                    say(f"{label}: {row['latency'].runs} of {runs} runs in {seconds:g} s; more with --seconds")
    if as_json:
        emit(report)
    else:
        _show(report)


def _text(sizes: Mapping[str, int]) -> str:
    return ",".join(f"{n}={s}" for n, s in sizes.items()) or "constant sizes"


def _systems(vs: str | None, model: str | None) -> list[str]:
    names = [n.strip() for n in vs.split(",") if n.strip()] if vs else []
    for name in names:
        if name not in peers.SYSTEMS or name == _OURS:
            raise UsageError("E0036", f"no system is named '{name}'", where=f"--vs {vs}",
                             hint=f"any of: {', '.join(s for s in peers.SYSTEMS if s != _OURS)}")
    if names and not model:
        raise UsageError("E0035", "--vs runs the model itself and needs it", where="--vs", hint="add --model MODEL_DIR")
    return names


def _compare(engine: Path, setting: Setting, isa: str | None, systems: Sequence[str], model: str | None, runs: int
             ) -> dict[str, Any]:
    configs: list[dict[str, Any]] = [{"label": _OURS, "system": _OURS, "engine": str(engine), "isa": isa, "device": setting.device}]
    absent = {system: reason for system in systems if (reason := _absent(system, model))}
    for system, reason in absent.items():
        say(f"{system}: {reason}")
    present = [s for s in systems if s not in absent]
    if present:
        assert model
        onnx = _onnx(model, setting.folder) if {"onnxruntime", "openvino"} & set(present) else ""
        configs += [{"label": s, "system": s, "model": model, "onnx": onnx} for s in present]
    with _started(setting, configs, absent) as workers:
        times = alternate(workers, runs, _ROUNDS, setting.seconds)
    reference = next((s for s in ("torch", "onnxruntime", "openvino") if s in times), None)
    rows = {label: _row(label, times, setting.folder, reference) for label in times}
    return {"systems": rows, "failed": absent, "reference": reference}


def _absent(system: str, model: str | None) -> str:
    """Why ``system`` cannot take part, known before anything runs; "" if it can."""
    package = peers.SYSTEMS[system][0]
    if not importlib.util.find_spec(package):
        return f"not installed; pip install {package}"
    if system == "torch" and str(model).endswith(".onnx"):
        return "it needs a model directory; it cannot run an .onnx file"
    return ""


def _onnx(model: str, folder: Path) -> str:
    import onnx_ir as ir

    from infc.compiler.export import export
    from infc.compiler.source import resolve

    with Progress() as stage:
        stage("export for peers")
        path = folder / "model.onnx"
        ir.save(export(resolve(model), verify=False).model, path, external_data="weights")
    return str(path)


@contextmanager
def _started(setting: Setting, configs: Sequence[dict[str, Any]], failed: dict[str, str]) -> Iterator[list[Worker]]:
    """Workers that run; the others' reasons go to ``failed``. Raises CheckError if ours is among those."""
    workers = [setting.worker(**config) for config in configs]
    try:
        for worker in workers:
            if not worker.head["ok"]:
                failed[worker.label] = worker.head["error"]
                say(f"{worker.label}: {worker.head['error']}")
        if _OURS in failed:
            raise CheckError("E0510", f"the engine does not run: {failed[_OURS]}", hint="infc verify ENGINE")
        yield [w for w in workers if w.head["ok"]]
    finally:
        for worker in workers:
            worker.close()


def _row(label: str, times: dict[str, list[float]], folder: Path, reference: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {"latency": summarise(times[label])}
    if label != _OURS:
        row["ratio"] = ratio_interval(times[_OURS], times[label])
    if reference and label != reference:
        row["accuracy"] = accuracy(folder / f"{label}.npz", folder / f"{reference}.npz")
    return row


def accuracy(got: Path, want: Path) -> dict[str, float]:
    """Largest absolute difference and least cosine over the last axis, of all float outputs the two files share."""
    difference, cosine = 0.0, 1.0
    with np.load(got) as a, np.load(want) as b:
        for name in set(a.files) & set(b.files):
            x, y = a[name].astype(np.float64), b[name].astype(np.float64)
            difference = max(difference, float(np.abs(x - y).max(initial=0.0)))
            norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
            cosine = min(cosine, float(((x * y).sum(-1) / np.maximum(norms, 1e-30)).min(initial=1.0)))
    return {"max_abs_difference": difference, "min_cosine": cosine}


def _layers(engine: Engine, setting: Setting, runs: int) -> list[dict[str, Any]]:
    context = engine.context()
    context.bind(setting.arrays, None)
    end = time.monotonic() + setting.seconds
    for _ in range(5):
        context.run()
        if time.monotonic() > end:
            break
    context.set_timing(True)
    for _ in range(runs):
        context.run()
        if time.monotonic() > end:
            break
    return [{"layer": s.name, "kernel": s.kernel, "seconds": s.seconds / max(s.calls, 1)} for s in context.step_times()]


def _show(report: dict[str, Any]) -> None:
    if "layers" in report:
        total = sum(r["seconds"] for r in report["layers"])
        rows = [(r["layer"], r["kernel"], milliseconds(r["seconds"]), f"{100 * r['seconds'] / total:.1f} %")
                for r in report["layers"]]
        table(("layer", "kernel", ">time", ">share"), [*rows, ("all", "", milliseconds(total), "")])
        return
    if "ablation" in report:
        ablation.show(report["ablation"])
        return
    apart = "?>max |diff|" if report["reference"] else "?>"
    table(("system", "", ">median", ">95 %", "?>P95", "?>95 %", ">P99", "?>95 %", ">min", ">times ours", ">95 %", apart),
          [_cells(label, row, report["reference"]) for label, row in report["systems"].items()])


def _cells(label: str, row: dict[str, Any], reference: str | None) -> tuple[str, ...]:
    """A row in one unit of time, that of its median."""
    s: Summary = row["latency"]
    factor, unit = unit_of(s.median)

    def time(*seconds: float) -> str:
        return "-".join(f"{t * factor:.4g}" for t in seconds)

    ratio = row.get("ratio")
    apart = f"{row['accuracy']['max_abs_difference']:.1e}" if "accuracy" in row else ("reference" if label == reference else "")
    return (label, unit, time(s.median), time(*s.median_interval), time(s.p95), time(*s.p95_interval), time(s.p99),
            time(*s.p99_interval), time(s.minimum), f"{ratio[0]:.2f}" if ratio else "",
            f"{ratio[1]:.2f}-{ratio[2]:.2f}" if ratio else "", apart)
