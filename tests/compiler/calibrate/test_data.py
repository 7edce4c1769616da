"""Data in files of anybody: what is read, what is chosen of it, and what is refused."""

from __future__ import annotations

import contextlib
import json
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infc.compiler.calibrate import data, select
from infc.compiler.errors import UsageError

TEXTS = ["The harbour was quiet.", "Flour, twice \"measured\"", "Grüße aus Köln", "rates rose"]


def texts(path: str | Path, slices: str = "") -> list[object]:
    return [item.content for item in data.find(path).items(slices)]


def write(path: Path, kind: str) -> Path:
    file = path / f"texts{kind}"
    if kind == ".csv":
        rows = "".join(f'"{t.replace(chr(34), chr(34) * 2)}",{n % 2}\n' for n, t in enumerate(TEXTS))
        file.write_text("text,class\n" + rows, encoding="utf-8")
    elif kind == ".tsv":
        file.write_text("text\tclass\n" + "".join('"{}"\t{}\n'.format(t.replace('"', '""'), n % 2) for n, t in enumerate(TEXTS)),
                        encoding="utf-8")
    elif kind == ".jsonl":
        file.write_text("\n".join(json.dumps({"text": t, "class": n % 2}) for n, t in enumerate(TEXTS)) + "\n\n", encoding="utf-8")
    else:
        file.write_text("\n\n".join(TEXTS), encoding="utf-8")
    return file


@pytest.mark.parametrize("kind", [".txt", ".cor", ".jsonl", ".csv", ".tsv"])
def test_texts(kind: str, tmp_path: Path) -> None:
    assert texts(write(tmp_path, kind)) == TEXTS


def test_latin_1(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("plain\nGrüße\n".encode("latin-1"))
    assert texts(tmp_path / "a.txt") == ["plain", "Grüße"]


@pytest.mark.parametrize("kind", [".jsonl", ".csv"])
def test_columns_and_slices(kind: str, tmp_path: Path) -> None:
    file = write(tmp_path, kind)
    assert [i.slice for i in data.find(f"{file}:text").items("class")] == ["0", "1", "0", "1"]
    with pytest.raises(UsageError, match="E0802"):
        texts(f"{file}:nothing")
    with pytest.raises(UsageError, match="E0802"):
        texts(file, "nothing")


def test_strings_in_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('"one"\n"two"\n')
    assert texts(tmp_path / "a.jsonl") == ["one", "two"]


def test_parquet_says_what_is_missing_or_reads(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        file.write_bytes(b"PAR1")
        with pytest.raises(UsageError, match=r"E0804[^\0]*pip install pyarrow"):
            texts(file)
        return
    parquet.write_table(pyarrow.table({"text": TEXTS, "class": [0, 1, 0, 1]}), file)
    assert texts(file) == TEXTS


@pytest.mark.parametrize("packed", [False, True])
def test_arrays(packed: bool, tmp_path: Path) -> None:
    ids, mask = np.arange(24).reshape(4, 6), np.ones((4, 6), np.int64)
    (np.savez_compressed if packed else np.savez)(tmp_path / "a.npz", input_ids=ids, attention_mask=mask)
    found = [item.content for item in data.find(tmp_path / "a.npz").items()]
    assert len(found) == 4
    for row, content in zip(ids, found, strict=True):
        assert isinstance(content, dict)
        np.testing.assert_array_equal(content["input_ids"], row)


def test_folders_are_divided_by_their_folders(tmp_path: Path) -> None:
    from PIL import Image

    for n, name in enumerate(("cats/a.png", "dogs/b.png", "dogs/c.jpg")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4), (n, 0, 0)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not a photo")
    assert [i.slice for i in data.find(tmp_path).items("folder")] == ["cats", "dogs", "dogs"]


@pytest.mark.parametrize(("name", "content", "code"), [
    ("a.txt", b"text\0more", "E0801"),
    ("a.jsonl", b"{", "E0801"),
    ("a.jsonl", b'{"text": 3}', "E0801"),
    ("a.jsonl", b"[" * 100_000, "E0801"),
    ("a.csv", b"text,class\nthree,fields,here\n", "E0801"),
    ("a.csv", b"first,second\na,b\n", "E0802"),
    ("a.csv", b"", "E0802"),
    ("a.npz", b"PK nothing", "E0801"),
    ("a.bin", b"", "E0800"),
])
def test_hostile_files(name: str, content: bytes, code: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=code):
        texts(tmp_path / name)


def test_a_line_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_LONGEST_LINE", 1000)
    (tmp_path / "a.txt").write_bytes(b"x" * 5000)
    with pytest.raises(UsageError, match="E0803"):
        texts(tmp_path / "a.txt")


def test_arrays_that_are_objects_or_lie_about_their_size(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", input_ids=np.array([{}], object))
    with pytest.raises(UsageError, match="E0801"):
        texts(tmp_path / "objects.npz")
    np.savez(tmp_path / "uneven.npz", a=np.zeros((3, 2)), b=np.zeros((4, 2)))
    with pytest.raises(UsageError, match="3 and 4 rows"):
        texts(tmp_path / "uneven.npz")
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 4), }"
    with zipfile.ZipFile(tmp_path / "lies.npz", "w") as file:
        file.writestr("a.npy", header.ljust(127) + b"\n")
    with pytest.raises(UsageError, match="E0801"):
        texts(tmp_path / "lies.npz")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 30), changes=st.integers(1, 40))
def test_damaged_arrays_are_read_or_refused(seed: int, changes: int, tmp_path: Path) -> None:
    file = tmp_path / "damaged.npz"
    np.savez(file, input_ids=np.arange(12).reshape(3, 4))
    content, rng = bytearray(file.read_bytes()), random.Random(seed)
    for _ in range(changes):
        content[rng.randrange(len(content))] = rng.randrange(256)
    file.write_bytes(content[:rng.randrange(len(content)) if seed % 3 == 0 else len(content)])
    with contextlib.suppress(UsageError):
        texts(file)


def test_what_is_not_there() -> None:
    with pytest.raises(UsageError, match="E0800"):
        data.find("no/such/file.txt")
    with pytest.raises(UsageError, match="E0800"):
        data.find("no/such/file.csv:text")


# --- choosing -----------------------------------------------------------------------------------------------------------------


def lines(path: Path, of: list[str]) -> data.Data:
    path.write_text("\n".join(of))
    return data.find(path)


def test_the_choice_does_not_depend_on_the_order(tmp_path: Path) -> None:
    numbers = [f"text {n}" for n in range(200)]
    mixed = random.Random(0).sample(numbers, len(numbers))
    a, b = select.choose(lines(tmp_path / "a.txt", numbers), 30, 1, 10), select.choose(lines(tmp_path / "b.txt", mixed), 30, 1, 10)
    assert [i.content for i in a.items] == [i.content for i in b.items]
    assert [i.content for i in a.held_out] == [i.content for i in b.held_out]
    assert (len(a.items), len(a.held_out), a.seen) == (30, 10, 200)
    other = select.choose(lines(tmp_path / "a.txt", numbers), 30, 2)
    assert {i.content for i in other.items} != {i.content for i in a.items}


def test_nothing_is_held_out_that_took_part(tmp_path: Path) -> None:
    found = select.choose(lines(tmp_path / "a.txt", ["one", "two", "three"] * 20), 40, 0, 10)
    assert not {i.content for i in found.items} & {i.content for i in found.held_out}


def test_a_fifth_of_little_data_is_held_out(tmp_path: Path) -> None:
    found = select.choose(lines(tmp_path / "a.txt", [str(n) for n in range(50)]), 100, 0, 64)
    assert (len(found.items), len(found.held_out)) == (40, 10)


def test_no_samples(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="E0805"):
        select.choose(lines(tmp_path / "a.txt", ["", " "]))
    with pytest.raises(UsageError, match="E0805"):
        select.choose(lines(tmp_path / "a.txt", ["one"]), 0)
