"""--watch-ranges and infc drift: what lies beyond the ranges of calibration is counted, told and judged."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import infc
from infc.compiler import driver
from infc.compiler.artifact.layout import HEADER, SECTION, SECTION_KINDS, WATCH_HEADER, WATCH_LAYER, WATCH_PLACE
from infc.compiler.artifact.reader import Artifact
from infc.compiler.cli import group
from infc.compiler.errors import UsageError

WIDTH, ROWS = 64, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two products with what they were calibrated on, and engines of it that watch: rows quantised at run time, and
    static ones, whose second product reads bytes."""
    where, rng = tmp_path_factory.mktemp("drift"), np.random.default_rng(0)
    weights = [numpy_helper.from_array((rng.standard_normal((WIDTH, WIDTH)) / 8).astype(np.float32), f"w{n}") for n in range(2)]
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["a"], "first"), helper.make_node("MatMul", ["a", "w1"], ["y"], "second")]
    sides = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", WIDTH])] for name in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "g", *sides, weights), ir_version=10,
                              opset_imports=[helper.make_opsetid("", 23)])
    onnx.save(model, where / "model.onnx")
    np.savez(where / "seen.npz", x=rng.uniform(-1, 1, (64, WIDTH)).astype(np.float32))
    np.savez(where / "same.npz", x=rng.uniform(-1, 1, (64, WIDTH)).astype(np.float32))
    np.savez(where / "other.npz", x=rng.uniform(-1.5, 1.5, (64, WIDTH)).astype(np.float32))
    for precision in ("int8", "int8-static"):
        for every, name in ((0, "plain"), (1, "each"), (3, "third")):
            driver.build(where / "model.onnx", where / f"{precision}-{name}.infc", profiles=[f"rows={ROWS}", "rows=64"], tune=False,
                         precision=precision, method="rtn", calibration=where / "seen.npz",
                         **({"watch_ranges": True, "watch_every": every} if every else {}))
    return where


@pytest.mark.parametrize("precision", ["int8", "int8-static"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_what_lies_beyond_is_counted(folder: Path, precision: str, threads: int) -> None:
    engine = infc.Engine(folder / f"{precision}-each.infc", threads=threads)
    x = np.random.default_rng(1).uniform(-1.5, 1.5, (ROWS, WIDTH)).astype(np.float32)
    x[0, :3] = np.nan, np.inf, -7
    for _ in range(2):
        engine.run({"x": x})
    first, second = engine.drift()
    assert (first.layer, second.layer) == ("first", "second")
    margin = (first.high - first.low) / 510
    beyond = int((~((x >= first.low - margin) & (x <= first.high + margin))).sum())
    assert (first.values, first.beyond, first.runs) == (2 * x.size, 2 * beyond, 2)
    assert (first.least, first.greatest) == (-7, np.inf)
    assert abs(first.low + 1) < 0.05
    assert abs(first.high - 1) < 0.05
    assert second.values == 2 * ROWS * WIDTH
    assert second.beyond > 2 * ROWS * WIDTH * 0.01


@pytest.mark.parametrize("precision", ["int8", "int8-static"])
def test_as_many_threads_as_there_are_count_the_same(folder: Path, precision: str) -> None:
    x = np.random.default_rng(2).uniform(-2, 2, (64, WIDTH)).astype(np.float32)
    found = []
    for threads in (1, 2, 3):
        engine = infc.Engine(folder / f"{precision}-each.infc", threads=threads)
        for rows in (64, ROWS, ROWS):
            engine.run({"x": x[:rows]})
        found.append(engine.drift())
    assert found[0] == found[1] == found[2]
    assert found[0][0].values == (64 + 2 * ROWS) * WIDTH


def test_one_run_of_so_many_counts(folder: Path) -> None:
    context = infc.Engine(folder / "int8-third.infc", threads=1).context()
    context.bind({"x": np.zeros((ROWS, WIDTH), np.float32)})
    runs = []
    for _ in range(8):
        context.run()
        runs.append(context.drift()[0].runs)
    assert runs == [1, 1, 1, 2, 2, 2, 3, 3]
    context.set_watch(0)
    context.run()
    assert [(d.runs, d.values) for d in context.drift()] == [(0, 0)] * 2
    context.set_watch(2)
    for _ in range(4):
        context.run()
    assert context.drift()[0].runs == 2


def test_programs_are_those_of_engines_that_do_not_watch(folder: Path) -> None:
    plain, watching = (Artifact.open(folder / f"int8-{name}.infc") for name in ("plain", "each"))
    for ordinal in range(2):
        assert plain.section("PROGRAM", ordinal) == watching.section("PROGRAM", ordinal)
    assert infc.Engine(folder / "int8-plain.infc").drift() == []
    assert infc.Engine(folder / "int8-plain.infc").context().drift() == []


@pytest.mark.parametrize("precision", ["int8", "int8-static"])
def test_the_command_judges(folder: Path, precision: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine = str(folder / f"{precision}-third.infc")
    assert group.run(["drift", engine, "--data", str(folder / "same.npz")]) == 0
    assert "no layer of 2 has drifted on 64 samples" in capsys.readouterr().out
    assert group.run(["drift", engine, "--data", str(folder / "other.npz"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "first" in found["drifted"]
    share = next(layer["share"] for layer in found["layers"] if layer["layer"] == "first")
    assert abs(share - 1 / 3) < 0.02  # uniform to 1.5, calibrated to 1
    assert group.run(["drift", engine, "--data", str(folder / "other.npz"), "--threshold", "0.99"]) == 0


def test_what_cannot_be_watched_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert group.run(["drift", str(folder / "int8-plain.infc"), "--data", str(folder / "same.npz")]) == 2
    assert "E0824" in capsys.readouterr().err
    for options in ({"precision": "bf16"}, {"precision": "int8", "method": "rtn"}):
        with pytest.raises(UsageError, match="E0823"):
            driver.build(folder / "model.onnx", folder / "no.infc", watch_ranges=True, **options)


def changed(data: bytes, at: int, value: bytes) -> bytes:
    """An artifact with bytes of its WATCH section replaced, checksums made right."""
    out = bytearray(data)
    count = int(np.frombuffer(data, HEADER.dtype, 1)[0]["section_count"])
    table = np.frombuffer(data, SECTION.dtype, count, HEADER.size).copy()
    record = table[table["kind"] == SECTION_KINDS["WATCH"]]
    start, size = int(record["offset"][0]), int(record["size"][0])
    out[start + at:start + at + len(value)] = value
    table["crc32"][table["kind"] == SECTION_KINDS["WATCH"]] = zlib.crc32(out[start:start + size])
    out[HEADER.size:HEADER.size + table.nbytes] = table.tobytes()
    header = np.frombuffer(bytes(out), HEADER.dtype, 1)[0].copy()
    header["table_crc32"], header["header_crc32"] = zlib.crc32(table.tobytes()), 0
    header["header_crc32"] = zlib.crc32(header.tobytes())
    out[:HEADER.size] = header.tobytes()
    return bytes(out)


def test_a_section_that_is_wrong_is_refused(folder: Path) -> None:
    data = (folder / "int8-each.infc").read_bytes()
    place = WATCH_HEADER.size + 2 * WATCH_LAYER.size
    infc.Engine(changed(data, 0, b""))
    wrong = {"no layers": (0, 0), "too many places": (4, 1 << 30), "never": (8, 0), "strings": (12, 1),
             "a name": (WATCH_HEADER.size, 9999), "a program": (place, 7), "a step": (place + 4, 9999), "a layer": (place + 8, 2),
             "an input": (place + 12, 200), "a role": (place + 13, 2), "something reserved": (place + 14, 1),
             "the order": (place + WATCH_PLACE.size + 4, 0)}
    for at, value in wrong.values():
        size = 1 if at in (place + 12, place + 13, place + 14) else 4
        with pytest.raises(infc.Error) as caught:
            infc.Engine(changed(data, at, value.to_bytes(size, "little")))
        assert caught.value.status == infc.runtime.Status.BAD_ARTIFACT


def test_any_section_is_refused_or_counts(folder: Path) -> None:
    """What passes runs: limits that are NaN, rows and inputs that others read."""
    data, rng = (folder / "int8-static-each.infc").read_bytes(), np.random.default_rng(3)
    size = len(Artifact(data).section("WATCH") or b"")
    x = rng.uniform(-2, 2, (ROWS, WIDTH)).astype(np.float32)
    ran, refused = 0, set()
    for _ in range(300):
        try:
            engine = infc.Engine(changed(data, int(rng.integers(size)), rng.bytes(1)), threads=2)
        except infc.Error as error:
            refused.add(error.status)
            continue
        engine.run({"x": x})
        assert all(0 <= d.beyond <= d.values <= 64 * WIDTH for d in engine.drift())
        ran += 1
    assert ran > 50
    assert refused <= {infc.runtime.Status.BAD_ARTIFACT}
