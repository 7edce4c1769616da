"""Tokenizers in transformers' older forms, as the tokenizer.json that the tokenizers library reads."""

from __future__ import annotations

from pathlib import Path


def as_json(folder: Path) -> bytes | None:
    """None if transformers cannot convert it; the model builds without, and `infc run --text` says what is missing."""
    from transformers import AutoTokenizer

    try:
        backend = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False).backend_tokenizer
    except Exception:  # anything at all, depending on the tokenizer's files
        return None
    text: str = backend.to_str(pretty=False)
    return text.encode()
