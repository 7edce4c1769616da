"""The TOKENIZER section: what prepares the model's inputs, its tokenizer's and preprocessor's files, as an uncompressed tar."""

from __future__ import annotations

import io
import tarfile

from infc.compiler import preprocessor
from infc.compiler.source import Source
from infc.models.tokenizer import as_json

_FAST = "tokenizer.json"


def archive(source: Source) -> bytes | None:
    """None if the source has neither. The bytes depend on the files' names and contents alone.

    A checkpoint whose tokenizer is in an older form gets a tokenizer.json of the same meaning besides.
    """
    if not source.tokenizer:
        return None
    files = {name: (source.model_path / name).read_bytes() for name in source.tokenizer}
    if _FAST not in files and not set(files) <= set(preprocessor.FILES):
        converted = as_json(source.model_path)
        files |= {_FAST: converted} if converted else {}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            tar.addfile(member, io.BytesIO(files[name]))
    return out.getvalue()
