"""infc.LLM on a model made by hand, held against numpy."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import infc
from infc.runtime import Status
from infc.runtime.llm import Finish, Mask
from tests.runtime import made, made_lm

PROMPT = [5, 9, 33, 2, 61, 17, 9, 33]


@pytest.fixture(scope="module")
def lm() -> infc.LLM:
    return infc.LLM(made_lm.artifact(), threads=2)


def test_logits_are_numpys(lm: infc.LLM) -> None:
    ids = np.random.default_rng(0).integers(0, made_lm.VOCABULARY, 150)
    assert np.abs(lm.logits(ids) - made_lm.logits(ids)).max() < 1e-4
    assert np.array_equal(lm.logits(ids, 3), lm.logits(ids)[-3:])


def test_greedy_ids_are_numpys(lm: infc.LLM) -> None:
    expected = made_lm.greedy(PROMPT, 40)
    assert list(lm.generate_ids(PROMPT, max_new_tokens=40, ignore_eos=True)) == expected
    assert list(lm.generate_ids(np.array(PROMPT), 40, stream=False, ignore_eos=True)) == expected
    assert list(lm.generate_ids(PROMPT, max_new_tokens=40, prompt_lookup=True, ignore_eos=True)) == expected


def test_ids_come_one_by_one_and_requests_take_turns(lm: infc.LLM) -> None:
    a, b = (iter(lm.request(PROMPT[i:], max_new_tokens=20, ignore_eos=True)) for i in (0, 3))
    mixed = [(next(a), next(b)) for _ in range(20)]
    assert [x for x, _ in mixed] == made_lm.greedy(PROMPT, 20)
    assert [y for _, y in mixed] == made_lm.greedy(PROMPT[3:], 20)
    with pytest.raises(StopIteration):
        next(a)


def test_text_is_that_of_the_ids(lm: infc.LLM) -> None:
    options = {"max_new_tokens": 60, "temperature": 1.5, "seed": 4, "ignore_eos": True}
    ids = list(lm.generate_ids(PROMPT, **options))
    text = lm.generate(PROMPT, **options)
    assert text == lm.decode(ids) == "".join(lm.generate(PROMPT, stream=True, **options))
    assert ids != list(lm.generate_ids(PROMPT, **options | {"seed": 5}))


def test_pieces_are_whole_characters(lm: infc.LLM) -> None:
    e = made_lm.TEXTS.index("é".encode()[:1])
    pieces = list(lm.generate(PROMPT, stream=True, max_new_tokens=7, mask=lambda ids: [e + 1 if ids[-1] == e else e]))
    assert pieces == ["é", "é", "é", "�"]  # the last token is half of one


def test_stop_strings_and_tokens(lm: infc.LLM) -> None:
    options = {"max_new_tokens": 60, "temperature": 1.5, "seed": 9, "ignore_eos": True}
    text, ids = lm.generate(PROMPT, **options), list(lm.generate_ids(PROMPT, **options))
    stop = text[20:23]
    assert lm.generate(PROMPT, stop=stop, **options) == text[: text.index(stop)]
    assert lm.generate(PROMPT, stop=["nowhere", stop], **options) == text[: text.index(stop)]
    request = lm.request(PROMPT, stop_tokens=[ids[9]], **options)
    assert list(request) == ids[: ids.index(ids[9])]
    assert request.finish == Finish.STOP


def test_events_tell_probabilities(lm: infc.LLM) -> None:
    request = lm.request(PROMPT, max_new_tokens=5, log_probabilities=True, ignore_eos=True)
    tokens = list(request.tokens())
    assert (tokens[-1].id, request.finish, len(tokens)) == (None, Finish.LENGTH, 6)
    text = list(PROMPT)
    for token in tokens[:-1]:
        x = made_lm.logits(text)[-1]
        assert token.id is not None
        assert abs(x[token.id] - np.log(np.exp(x).sum()) - token.log_probability) < 1e-3
        text.append(token.id)
    stats = request.stats
    assert (stats["prompt_tokens"], stats["new_tokens"]) == (len(PROMPT), 5)
    assert stats["decode_seconds"] > 0


def test_mask_may_list_every_token(lm: infc.LLM) -> None:
    mask = lambda ids: np.arange(made_lm.VOCABULARY)  # noqa: E731
    assert list(lm.generate_ids(PROMPT, max_new_tokens=9, mask=mask)) == list(lm.generate_ids(PROMPT, max_new_tokens=9))


@pytest.mark.parametrize("mask", [lambda ids: [7, 8], lambda ids: np.isin(np.arange(made_lm.VOCABULARY), (7, 8))])
def test_mask_leaves_what_it_allows(lm: infc.LLM, mask: Mask) -> None:
    assert set(lm.generate_ids(PROMPT, max_new_tokens=30, mask=mask, temperature=2.0)) == {7, 8}


def test_a_mask_that_raises_ends_the_text(lm: infc.LLM) -> None:
    def bad(ids: object) -> object:
        raise RuntimeError("no")

    request = lm.request(PROMPT, max_new_tokens=30, mask=bad)
    with pytest.raises(RuntimeError, match="no"):
        list(request)


def test_bias(lm: infc.LLM) -> None:
    assert list(lm.generate_ids(PROMPT, max_new_tokens=4, logit_bias={11: 1000.0})) == [11] * 4


def test_text_and_chat_are_encoded(lm: infc.LLM) -> None:
    assert lm.encode("ab c").tolist() == [3, 4, 2, 5]
    messages = [{"role": "user", "content": "hi"}]
    assert lm.chat(messages) == "<s>u hi\na "
    prompt = [0, *lm.encode("u hi\na ").tolist()]
    assert lm.generate(messages, max_new_tokens=9, ignore_eos=True) == lm.generate(prompt, max_new_tokens=9, ignore_eos=True)


def test_a_draft_changes_nothing(lm: infc.LLM) -> None:
    draft = infc.LLM(made_lm.artifact(), threads=1)
    for temperature in (0.0, 1.0):
        options = {"max_new_tokens": 60, "temperature": temperature, "seed": 3, "ignore_eos": True}
        request = lm.request(PROMPT, draft=draft, **options)
        assert list(request) == list(lm.generate_ids(PROMPT, **options))
        assert request.stats["accepted"] == request.stats["guessed"] > 0


def test_prompts_that_begin_alike_are_read_once() -> None:
    lm, prompt = infc.LLM(made_lm.artifact(), threads=1), list(np.arange(100) % 50)
    first, second = (lm.request(prompt, max_new_tokens=8, ignore_eos=True) for _ in range(2))
    assert list(first) == list(second)
    third = lm.request(prompt, max_new_tokens=1)
    assert len(list(third)) == 1
    assert third.stats["cached_tokens"] == 96
    assert infc.LLM(made_lm.artifact(), threads=1, prefix_cache=False).info["prefix_hits"] == 0


def test_sequences_fork_and_are_saved(lm: infc.LLM) -> None:
    first, out = lm.lm.sequence(), np.empty((1, made_lm.VOCABULARY), np.float32)
    lm.lm.step([(first, np.array(PROMPT, np.int32), 1)], out)
    fork, restored = first.fork(), lm.lm.sequence()
    restored.restore(first.save())
    first.truncate(2)
    for sequence in (fork, restored):
        lm.lm.step([(sequence, np.array([7], np.int32), 1)], out)
        assert np.abs(out[0] - made_lm.logits([*PROMPT, 7])[-1]).max() < 1e-4
        assert np.frombuffer(sequence.tokens(), np.int32).tolist() == [*PROMPT, 7]
        assert len(sequence) == len(PROMPT) + 1
    with pytest.raises(infc.Error, match="not a saved sequence"):
        lm.lm.sequence().restore(bytes(1000))


def test_cancel_from_another_thread(lm: infc.LLM) -> None:
    request = lm.request(PROMPT, ignore_eos=True)
    next(iter(request))
    thread = threading.Thread(target=request.cancel)
    thread.start()
    thread.join()
    assert len(list(request)) < 3
    assert request.finish == Finish.CANCELLED


def test_mistakes_are_named(lm: infc.LLM) -> None:
    with pytest.raises(infc.Error, match="token 64"):
        lm.generate_ids([64])
    with pytest.raises(infc.Error, match="prompt is empty"):
        lm.generate_ids([])
    with pytest.raises(infc.Error, match="temperature"):
        lm.generate_ids([1], temperature=-1.0)
    with pytest.raises(infc.Error, match="not of a language model"):
        infc.LLM(made.cpu_artifact())


WRONG: dict[str, dict[str, Any]] = {
    "max_new_tokens is 0": {"max_new_tokens": 0},
    "max_new_tokens is 4294967299": {"max_new_tokens": 2**32 + 3},
    "top_k is -1": {"top_k": -1},
    "top_k is a whole number": {"top_k": 1.5},
    "seed is 18446744073709551616": {"seed": 2**64},
    "min_p is 1.5, not from 0 to 1": {"min_p": 1.5},
    "temperature is inf": {"temperature": float("inf")},
    "presence_penalty is inf": {"presence_penalty": float("inf")},
    "the bias of token 3 is NaN": {"logit_bias": {3: float("nan")}},
    "logit_bias is a whole number": {"logit_bias": {5.9: 1.0}},
    "a stop string is text without NUL": {"stop": "a\0b"},
    "token ids are whole numbers": {"stop_tokens": [1.5]},
    "draft is an LLM": {"draft": 5},
}


@pytest.mark.parametrize("message", WRONG)
def test_options_out_of_range_are_named(lm: infc.LLM, message: str) -> None:
    with pytest.raises(infc.Error, match=re.escape(message)) as raised:
        lm.request(PROMPT, **WRONG[message])
    assert raised.value.status in (Status.INVALID_ARGUMENT, Status.BAD_VALUE)


@pytest.mark.parametrize("ids", [[1.7, 2.2], [[1, 2], [3, 4]], [2**40], [-1], [float("nan")], 5, None, ["a", "b"]], ids=repr)
def test_what_are_no_ids_of_one_text(lm: infc.LLM, ids: Any) -> None:
    with pytest.raises(infc.Error, match="token id"):
        lm.generate_ids(ids)


@pytest.mark.parametrize(("given", "message"), [([-1], "token id .* -1"), ([64], "token 64 is not one of 64"),
                                                (np.ones(64, int), "of bool"), ([0.5], "whole numbers")])
def test_masks_of_something_else(lm: infc.LLM, given: Any, message: str) -> None:
    with pytest.raises(infc.Error, match=message):
        list(lm.generate_ids(PROMPT, max_new_tokens=4, mask=lambda ids: given))


def test_texts_and_messages_that_cannot_be_read(lm: infc.LLM) -> None:
    with pytest.raises(infc.Error, match="not UTF-8"):
        lm.generate("a\ud800")
    other = infc.LLM(made_lm.artifact(), threads=1)
    other.__dict__["chat_template"] = other.chat_template.environment.from_string("{{ 'a' + messages[0]['content'] }}")
    for messages in ([{"role": "user"}], [{"role": "user", "content": None}]):
        with pytest.raises(infc.Error, match="the chat template refuses the messages"):
            other.generate(messages)


def test_a_prompt_that_the_cache_cannot_hold() -> None:
    small = infc.LLM(made_lm.artifact(), threads=1, cache_tokens=32)
    with pytest.raises(infc.Error, match="the prompt has 40 tokens, the cache holds 32"):
        small.generate_ids([5] * 40)
    request = small.request([5] * 20, ignore_eos=True)
    list(request)
    assert request.finish == Finish.CACHE
    with pytest.raises(infc.Error, match="cache_bytes is -5"):
        infc.LLM(made_lm.artifact(), cache_bytes=-5)


def test_ids_need_numpy_alone(tmp_path: Path) -> None:
    path = tmp_path / "lm.infc"
    path.write_bytes(made_lm.artifact())
    code = (f"import sys; sys.modules |= dict.fromkeys(('tokenizers', 'jinja2', 'transformers', 'torch')); import infc;"
            f"print(len(list(infc.LLM({str(path)!r}, threads=1).generate_ids([1, 2], 5, ignore_eos=True))))")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "5\n"
