"""Bytes of tokens, held against what the tokenizers library decodes."""

from __future__ import annotations

import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from infc.compiler import detokenise
from infc.compiler.errors import UsageError

TEXT = "The café's menu — naïve, 日本語 and 🙂.\n\tTwo  spaces; x_1 = 3."


def byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|end|>"])
    made.train_from_iterator([TEXT] * 3, trainer)
    made.add_tokens([AddedToken("<tool>", special=False)])
    return made


def pieces() -> Tokenizer:
    """As Llama 2's: a sign for spaces, and bytes by number for what is in no piece."""
    vocabulary = {"<unk>": 0, **{f"<0x{b:02X}>": b + 1 for b in range(256)}}
    for character in "▁Themnuadc,.x":
        vocabulary.setdefault(character, len(vocabulary))
    vocabulary["▁The"] = len(vocabulary)
    made = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return made


@pytest.mark.parametrize("make", [byte_level, pieces])
def test_the_bytes_of_tokens_are_the_text(make: object) -> None:
    tokenizer = make()  # type: ignore[operator]
    size = tokenizer.get_vocab_size()
    texts, special = detokenise.table(tokenizer.to_str().encode(), size + 3)
    ids = tokenizer.encode(TEXT + "<tool>").ids
    assert b"".join(texts[i] for i in ids).decode() == tokenizer.decode(ids)
    assert [i for i, s in enumerate(special) if s] == ([0] if make is byte_level else [])
    assert texts[size:] == [b""] * 3


def test_special_tokens_have_no_text() -> None:
    tokenizer = byte_level()
    texts, special = detokenise.table(tokenizer.to_str().encode(), tokenizer.get_vocab_size())
    end = tokenizer.token_to_id("<|end|>")
    assert special[end]
    assert texts[end] == b""


def test_word_pieces() -> None:
    found = {"model": {"vocab": {"the": 0, "##re": 1}}, "decoder": {"type": "WordPiece"}}
    assert detokenise.table(json.dumps(found).encode(), 2)[0] == [b" the", b"re"]


def test_no_tokenizer() -> None:
    assert detokenise.table(None, 2) == ([b"", b""], [False, False])


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"model": {"vocab": [1]}}', b'{"model": {"vocab": {"a": "b"}}}'])
def test_broken_files(data: bytes) -> None:
    with pytest.raises(UsageError, match="E0116"):
        detokenise.table(data, 4)
