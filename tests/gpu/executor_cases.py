"""``python -m tests.gpu.executor_cases SM RUNS``, with operator_adapter.cpp's library on the loader's path: artifacts whose
engines are custom operators, run by libinfc on the GPU."""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from infc.compiler.artifact import io, tensorrt
from infc.compiler.artifact.layout import DTYPES
from infc.compiler.artifact.writer import pack
from infc.compiler.target import Section
from infc.runtime import Engine
from tests.gpu import cases
from tests.gpu.kernels import types_of
from tests.gpu.operators import dtypes


def artifact(case: cases.Case, sm: int) -> bytes:
    """One static profile, one engine. Inputs and outputs are the operator's."""
    op, numbers = case.op, {number: name for name, number in DTYPES.items()}
    shapes = {name: array.shape for name, array in case.inputs.items()}
    types = types_of(op, case.inputs, case.attributes)
    outputs = op.output_shapes(shapes, op.bind(shapes, case.attributes))

    def tensor(name: str, dtype: str, shape: tuple[int, ...]) -> io.IoTensor:
        return io.IoTensor(name, numbers[dtypes.DTYPES[types.get(dtype, dtype)].onnx], shape)

    spec = io.IoSpec(
        [tensor(i.name, i.dtype, shapes[i.name]) for i in op.inputs if i.name in shapes],
        [tensor(o.name, o.dtype, outputs[o.name]) for o in op.outputs],
        [],
        [{}],
    )
    plan = " ".join(
        map(
            str,
            (
                op.name,
                *(case.attributes[a.name] for a in op.attributes),
                *(dtypes.DTYPES[types[t]].onnx for t in op.types),
                len(shapes),
            ),
        )
    )
    engine = tensorrt.TensorRtEngine("tensorrt-rtx", (1, 7, 1, 116), 12000, (sm,), (0,), "", plan.encode())
    return pack([Section("META", b"{}"), Section("IO", io.encode(spec)), Section("TENSORRT", tensorrt.encode(engine))])


def main() -> None:
    sm, runs = map(int, sys.argv[1:])
    lines = []
    for case in (
        cases.norm((2, 64), 1024, "f16", "int8"),
        cases.mat_vec(1, 4096, 256, 128, zeros=False),
        cases.mat_vec(3, 896, 64, 64, zeros=True),
    ):
        engine = Engine(artifact(case, sm), device="cuda")
        for _ in range(3):
            outputs = engine.run(case.inputs)
            wrong = case.wrong(outputs)
            if wrong:
                sys.exit(f"{case.op.name} {case.text}: {wrong}")
        context, times = engine.context(), []
        context.bind(case.inputs)
        for _ in range(runs):
            started = time.perf_counter()
            context.run()
            times.append(time.perf_counter() - started)
        p50, p99 = statistics.median(times), float(np.percentile(times, 99))
        lines.append(f"  {case.op.name:20} {case.text:38} P50 {p50 * 1e6:7.1f} us, P99 {p99 * 1e6:7.1f} us")
    print(f"{len(lines)} artifacts on {engine.device}, captured and replayed {runs} times, with copies from and to the host")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
