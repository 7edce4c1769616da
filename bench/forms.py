"""One model in the forms that people have it in, and the engines made of them: ``python bench/forms.py MODEL_DIR [--threads 2]``.

Forms: the directory; files of torch's TorchScript exporter and of the dynamo exporter at opsets 18 and 23; each of them after ONNX
Runtime's transformers optimizer, and as ONNX Runtime saves it after its basic and its extended optimizations. Files with attention
written out and no output but the last hidden state are compared with each other: in these the optimizer replaces embeddings and
attention too. Tactics are the cost model's, so that what else the machine does while one is built plays no part.

Printed: a form's steps, whether they are the first's, the largest difference from it, and the least time of runs that take turns
in one process, repeated until no minimum falls any more; with one thread its CPU time, which other processes disturb less.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import infc
from infc.compiler import driver, samples
from infc.compiler.interface import Interface
from infc.compiler.source import resolve
from infc.models import registry

AXES = {0: "batch", 1: "seq"}
HIDDEN = "last_hidden_state"
_BURST, _STABLE, _MOST = 4, 12, 200  # runs at a turn; rounds without a new minimum; rounds


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def exported(model: Path, folder: Path) -> dict[str, list[Path]]:
    """The files by what they must be equal to, the first of them: of the whole model, of its last hidden state alone."""
    found = registry.load(resolve(model))
    with quiet():
        whole = [_torchscript(found.module, found.interface, folder / "torchscript.onnx")]
        whole += [_dynamo(found.module, found.interface, opset, folder / f"dynamo_{opset}.onnx") for opset in (18, 23)]
        hidden = _torchscript(_Hidden.of(model), found.interface, folder / "hidden.onnx", [HIDDEN], opset=14)
        return {"whole": [f for file in whole for f in (file, *_optimised(file))], "hidden": [hidden, *_optimised(hidden)]}


class _Hidden:
    """Positional inputs in, the last hidden state out; attention is written out."""

    @staticmethod
    def of(model: Path) -> Any:
        import torch
        from transformers import AutoModel

        class Module(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = AutoModel.from_pretrained(model, attn_implementation="eager")

            def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
                return self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)[0]

        return Module()


def _arguments(interface: Interface) -> tuple[Any, ...]:
    import torch

    return tuple(torch.from_numpy(a) for a in samples.example(interface).values())


def _torchscript(module: Any, interface: Interface, path: Path, outputs: list[str] | None = None, opset: int = 17) -> Path:
    import torch

    inputs, outputs = [t.name for t in interface.inputs], outputs or [t.name for t in interface.outputs]
    axes = {t.name: {i: d for i, d in enumerate(t.dims) if isinstance(d, str)} for t in (*interface.inputs, *interface.outputs)}
    with torch.no_grad():
        torch.onnx.export(module.eval(), _arguments(interface), str(path), input_names=inputs, output_names=outputs,
                          opset_version=opset, dynamo=False, dynamic_axes={name: axes[name] for name in (*inputs, *outputs)})
    return path


def _dynamo(module: Any, interface: Interface, opset: int, path: Path) -> Path:
    import torch

    with torch.no_grad():
        program = torch.onnx.export(module.eval(), _arguments(interface), input_names=[t.name for t in interface.inputs],
                                    output_names=[t.name for t in interface.outputs], opset_version=opset, dynamo=True,
                                    verbose=False, dynamic_shapes=((AXES,) * len(interface.inputs),))
    assert program is not None
    program.save(str(path))
    return path


def _optimised(path: Path) -> list[Path]:
    """The file after ONNX Runtime's transformers optimizer, and as ONNX Runtime saves it."""
    import onnxruntime as ort
    from onnxruntime.transformers import optimizer

    made = [path.with_stem(f"{path.stem}_{kind}") for kind in ("transformers", "basic", "extended")]
    optimizer.optimize_model(str(path), "bert", opt_level=0).save_model_to_file(str(made[0]))
    levels = ort.GraphOptimizationLevel
    for target, level in zip(made[1:], (levels.ORT_ENABLE_BASIC, levels.ORT_ENABLE_EXTENDED), strict=True):
        options = ort.SessionOptions()
        options.graph_optimization_level, options.optimized_model_filepath, options.log_severity_level = level, str(target), 4
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return made


@dataclass
class Form:
    name: str
    artifact: Path
    steps: list[tuple[str, str]]
    outputs: dict[str, np.ndarray[Any, Any]]


def built(source: Path, folder: Path, profile: str, inputs: Mapping[str, np.ndarray[Any, Any]], **options: Any) -> Form:
    """The engine of one form, its steps (operator and kernel), and what it computes of the inputs that it takes."""
    path = folder / f"{source.stem}.infc"
    report = driver.build(source, path, profiles=[profile], **options).report
    steps = [(layer["op"], layer["kernel"]) for layer in next(iter(report["layers"].values()))]
    return Form(source.stem, path, steps, infc.Engine(path, threads=options.get("threads")).run(dict(inputs)))


def difference(form: Form, first: Form) -> float:
    return max(float(np.abs(value - first.outputs[name]).max()) for name, value in form.outputs.items())


def least(runs: Mapping[str, Callable[[], object]], clock: Callable[[], float]) -> dict[str, float]:
    """Seconds by ``clock``, the least of each; turns of a few runs until nothing has fallen by half a percent for a while."""
    found = dict.fromkeys(runs, float("inf"))
    since, order = 0, list(runs)
    for number in range(_MOST):
        since += 1
        for name in order if number % 2 else reversed(order):
            runs[name]()
            for _ in range(_BURST):
                start = clock()
                runs[name]()
                took = clock() - start
                if took < found[name]:
                    since = 0 if took < 0.995 * found[name] else since
                    found[name] = took
        if since >= _STABLE:
            break
    return found


def bound(artifact: Path, inputs: Mapping[str, np.ndarray[Any, Any]], threads: int) -> Callable[[], object]:
    context = infc.Engine(artifact, threads=threads).context()
    context.bind(dict(inputs))
    return context.run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seq", type=int, default=128)
    chosen = parser.parse_args()
    clock = time.thread_time if chosen.threads == 1 else time.perf_counter
    rng = np.random.default_rng(0)
    shape = (1, chosen.seq)
    inputs = {"input_ids": rng.integers(1000, 20000, shape), "attention_mask": np.ones(shape, np.int64),
              "token_type_ids": np.zeros(shape, np.int64)}
    with tempfile.TemporaryDirectory(prefix="infc-forms-") as name:
        folder = Path(name)
        files = exported(chosen.model, folder)
        groups = [[chosen.model, *files["whole"]], files["hidden"]]
        print(f"{'form':26}{'steps':>6}  {'as the first':14}{'|diff|':>9}{'ms':>9}{'ratio':>8}")
        for group in groups:
            forms = [built(f, folder, f"batch=1,seq={chosen.seq}", inputs, threads=chosen.threads, tune=False) for f in group]
            times = least({f.name: bound(f.artifact, inputs, chosen.threads) for f in forms}, clock)
            first = forms[0]
            for form in forms:
                same = "same" if form.steps == first.steps else "DIFFERENT"
                print(f"{form.name:26}{len(form.steps):6}  {same:14}{difference(form, first):9.1e}{times[form.name] * 1e3:9.3f}"
                      f"{times[form.name] / times[first.name]:8.3f}")


if __name__ == "__main__":
    main()
