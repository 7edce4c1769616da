"""The TOKENIZER section: what prepares the model's inputs, its tokenizer's and preprocessor's files, as an uncompressed tar."""

from __future__ import annotations

import io
import tarfile

from infc.compiler import preprocessor
from infc.compiler.source import Source
from infc.models.tokenizer import as_json

_FAST = "tokenizer.json"


def files(source: Source) -> dict[str, bytes]:
    """The files that prepare inputs, by name; of an .onnx file those that lie beside it.

    A checkpoint whose tokenizer is in an older form gets a tokenizer.json of the same meaning besides.
    """
    folder = source.path.parent if source.is_onnx else source.model_path
    names = [n for n in (_FAST, *preprocessor.FILES) if (folder / n).is_file()] if source.is_onnx else source.tokenizer
    found = {name: (folder / name).read_bytes() for name in names}
    if not source.is_onnx and _FAST not in found and not set(found) <= set(preprocessor.FILES):
        converted = as_json(folder)
        found |= {_FAST: converted} if converted else {}
    return found


def archive(source: Source) -> bytes | None:
    """None if a checkpoint has neither, and for an .onnx file. The bytes depend on the files' names and contents alone."""
    if not source.tokenizer:
        return None
    contents = files(source)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(contents):
            member = tarfile.TarInfo(name)
            member.size = len(contents[name])
            tar.addfile(member, io.BytesIO(contents[name]))
    return out.getvalue()
