"""The bytes of each token, out of tokenizer.json: byte-level BPE, pieces with a sign for spaces and bytes by number, WordPiece."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from infc.compiler.errors import UsageError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"


def table(tokenizer: bytes | None, vocabulary: int) -> tuple[list[bytes], list[bool]]:
    """By token, its text as it stands within one, and whether it is special; such have none. Texts end anywhere, within a
    character too.

    Raises UsageError E0116 for what is no tokenizer.json.
    """
    texts, special = [b""] * vocabulary, [False] * vocabulary
    if tokenizer is None:
        return texts, special
    try:
        found: dict[str, Any] = json.loads(tokenizer)
        pieces = _pieces(found["model"]["vocab"])
        decode = _decoder(found)
        for text, number in pieces:
            if 0 <= number < vocabulary:
                texts[number] = decode(text)
        for added in found.get("added_tokens") or []:
            number = added["id"]
            if 0 <= number < vocabulary:
                special[number] = bool(added["special"])
                texts[number] = b"" if special[number] else str(added["content"]).encode()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError("E0116", f"not a tokenizer: {error}", where="tokenizer.json", hint="download the file again") from error
    return texts, special


def _pieces(vocab: Any) -> list[tuple[str, int]]:
    """Of BPE and WordPiece a mapping, of Unigram a list of pieces and scores."""
    return list(vocab.items()) if isinstance(vocab, dict) else [(piece, number) for number, (piece, _) in enumerate(vocab)]


def _decoder(found: dict[str, Any]) -> Callable[[str], bytes]:
    kinds = set(_kinds(found.get("decoder"))) | set(_kinds(found.get("pre_tokenizer")))
    if "ByteLevel" in kinds:
        return _byte_level
    if "WordPiece" in kinds:
        return lambda text: text.removeprefix("##").encode() if text.startswith("##") else b" " + text.encode()
    return _sentence_piece


def _kinds(part: Any) -> list[str]:
    """The types of a decoder or pre-tokenizer, and of those it is a sequence of."""
    if not isinstance(part, dict):
        return []
    inner = [*(part.get("decoders") or []), *(part.get("pretokenizers") or [])]
    return [str(part.get("type")), *(kind for p in inner for kind in _kinds(p))]


def _bytes_by_sign() -> dict[str, int]:
    """GPT-2's: a printable byte is its own sign, others follow from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_SIGNS = _bytes_by_sign()


def _byte_level(text: str) -> bytes:
    return b"".join(bytes([_SIGNS[c]]) if c in _SIGNS else c.encode() for c in text)


def _sentence_piece(text: str) -> bytes:
    byte = _BYTE.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(_SPACE, " ").encode()
