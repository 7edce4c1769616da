"""Records: what is saved is loaded, what has changed since is noticed, what is damaged is refused."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infc.compiler.calibrate import observe, record
from infc.compiler.calibrate.data import Arrays
from infc.compiler.calibrate.gather import Gathering
from infc.compiler.calibrate.record import Key, Record
from infc.compiler.errors import UsageError
from infc.passes.quant import products
from tests.compiler.calibrate.test_gather import bits, gather, graph, samples
from tests.passes import support
from tests.passes.support import normal


@pytest.fixture(scope="module")
def made() -> Record:
    model = graph()
    values, grams = gather(samples(), model=model, grams=True)
    key = Key("a" * 64, {"cpu": record.graph_hash(model)}, {"name": "texts.txt", "sha256": "b" * 64, "samples": 7, "seed": 0})
    return Record(key, {"cpu": values}, {"cpu": grams})


def test_what_is_saved_is_loaded(made: Record, tmp_path: Path) -> None:
    record.save(made, tmp_path / "a.npz")
    assert record.is_record(tmp_path / "a.npz")
    found = record.load(tmp_path / "a.npz")
    assert found.key == made.key
    assert found.key.digest() == made.key.digest()
    assert bits(dict(found.values["cpu"])) == bits(dict(made.values["cpu"]))
    assert list(found.grams["cpu"]) == ["x", "r"]
    for name, gram in made.grams["cpu"].items():
        np.testing.assert_array_equal(found.grams["cpu"][name], gram)
    statistics = found.statistics("cpu", "percentile:99")
    assert statistics.range("x") == made.values["cpu"]["x"].range("percentile:99")
    assert statistics.data["samples"] == 7


def test_the_same_record_has_the_same_bytes(made: Record, tmp_path: Path) -> None:
    record.save(made, tmp_path / "a.npz")
    record.save(made, tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_numpy_reads_it(made: Record, tmp_path: Path) -> None:
    record.save(made, tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as file:
        assert file["cpu/0/counts"].sum() == made.values["cpu"]["x"].count


def test_another_model_graph_or_target_is_noticed(made: Record) -> None:
    made.check("a" * 64, "cpu", graph(), "a.npz")
    with pytest.raises(UsageError, match=r"E0809: .*another model.*\n[^\0]*calibrate again"):
        made.check("c" * 64, "cpu", graph(), "a.npz")
    changed = graph()
    next(iter(changed.graph)).name = "other"
    made.check("a" * 64, "cpu", changed, "a.npz")  # a name that decides nothing
    next(iter(changed.graph)).outputs[0].name = "other"
    with pytest.raises(UsageError, match="E0810"):
        made.check("a" * 64, "cpu", changed, "a.npz")
    with pytest.raises(UsageError, match="E0811"):
        made.check("a" * 64, "tensorrt", graph(), "a.npz")


def test_every_part_of_the_key_counts(made: Record) -> None:
    keys = [made.key, replace(made.key, source="d" * 64), replace(made.key, graphs={"cpu": "e" * 64}),
            replace(made.key, data={**made.key.data, "seed": 1})]
    assert len({key.digest() for key in keys}) == len(keys)


@pytest.mark.parametrize("change", [
    lambda about: about.update(format=99),
    lambda about: about.pop("source"),
    lambda about: about.update(values=[]),
    lambda about: about["values"]["cpu"][0].update(count=-1),
    lambda about: about["values"]["cpu"][0].update(count="many"),
    lambda about: about["values"]["cpu"][0].update(range=[1, 0]),
    lambda about: about["values"]["cpu"][0].update(range=[float("nan"), 0]),
    lambda about: about["values"]["cpu"][0].update(exponent=10_000),
    lambda about: about["values"]["cpu"][0].update(channels={}),
    lambda about: about["values"].update(other=[{}]),
])
def test_what_is_no_record(change: Callable[[dict[str, Any]], object], made: Record, tmp_path: Path) -> None:
    record.save(made, tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "a.npz") as old, zipfile.ZipFile(tmp_path / "b.npz", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "record.json":
                about = json.loads(content)
                change(about)
                content = json.dumps(about).encode()
            new.writestr(name, content)
    with pytest.raises(UsageError, match="E0808"):
        record.load(tmp_path / "b.npz")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 30), changes=st.integers(1, 30))
def test_damaged_records_are_loaded_or_refused(seed: int, changes: int, made: Record, tmp_path: Path) -> None:
    path = tmp_path / "damaged.npz"
    record.save(made, path)
    content, rng = bytearray(path.read_bytes()), random.Random(seed)
    for _ in range(changes):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content[:rng.randrange(len(content)) if seed % 3 == 0 else len(content)])
    try:
        found = record.load(path)
        grams = [found.grams[p][name] for p in found.grams for name in found.grams[p]]
    except UsageError as error:
        assert error.code == "INFC-E0808"  # noqa: PT017
    else:
        assert all(np.isfinite(g).all() for g in grams)


def test_a_place_that_cannot_be_written(made: Record, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="E0023"):
        record.save(made, tmp_path / "nowhere" / "a.npz")


def test_patches_of_two_convolutions_of_one_value(tmp_path: Path) -> None:
    model = support.graph("""(float[1,4,6,6] x) => (float[1,8,6,6] y, float[1,4,6,6] z) {
        y = Conv(x, w) z = Conv<pads=[1,1,1,1], group=4>(x, u) }""", {"w": normal(8, 4, 1, 1), "u": normal(4, 1, 3, 3)})
    names = [p.gram for p in products.find(model)[0]]
    images: list[Arrays] = [{"x": normal(1, 4, 6, 6, seed=n)} for n in range(3)]
    gathering = Gathering(lambda: iter(images), 3, None, lambda m: None)
    values, grams = gathering.run(model, observe.watched(model), names)
    assert {name: gram.shape for name, gram in grams.items()} == {names[0]: (5, 5), names[1]: (4 * 10, 10)}
    assert grams[names[0]][-1, -1] == 3 * 36
    key = Key("s", {"cpu": record.graph_hash(model)}, {"name": "d"})
    record.save(Record(key, {"cpu": values}, {"cpu": grams}), tmp_path / "r.npz")
    found = record.load(tmp_path / "r.npz").grams["cpu"]
    for name in names:
        np.testing.assert_array_equal(found[name], grams[name])
