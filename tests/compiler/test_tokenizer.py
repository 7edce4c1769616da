"""The TOKENIZER section is the model's own files, in bytes that depend on nothing else."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path

from infc.compiler.source import resolve
from infc.compiler.tokenizer import archive


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]


def test_holds_the_files_and_no_trace_of_the_place(bert: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(bert, tmp_path / "other"))
    for path in other.iterdir():
        os.utime(path, (1, 1))
    data = archive(resolve(bert))
    assert data is not None
    assert data == archive(resolve(other))
    assert members(data) == {n: (bert / n).read_bytes() for n in ("tokenizer.json", "tokenizer_config.json")}


def test_old_tokenizers_are_converted(bert: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    folder = Path(shutil.copytree(bert, tmp_path / "old"))
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "harbour", "quiet"]))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    data = archive(resolve(folder))
    assert data is not None
    fast = Tokenizer.from_str(members(data)["tokenizer.json"].decode())
    assert fast.encode("Quiet harbour").ids == [2, 6, 5, 3]


def test_no_tokenizer(bert: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bert, tmp_path / "none"))
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert archive(resolve(folder)) is None
