"""infc.LLM: text from an artifact of a language model. Needs numpy; text and chat need the packages tokenizers and jinja2.

>>> lm = LLM("smollm2.infc", threads=2)
>>> lm.generate("The capital of France is", max_new_tokens=8)
>>> for piece in lm.generate([{"role": "user", "content": "Hello"}], stream=True, temperature=0.7):
...     print(piece, end="", flush=True)

Requests of one LLM are computed together: make several with ``request`` and read them in turn.
"""

from __future__ import annotations

import importlib
import io
import json
import operator
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from infc.runtime import Engine, Status, _error, _rt

Ids = Sequence[int] | np.ndarray[Any, np.dtype[Any]]
Message = Mapping[str, Any]
Mask = Callable[[np.ndarray[Any, np.dtype[np.int32]]], Any]


class Finish(IntEnum):
    """Why a request ended: infc_finish of infc.h."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    CACHE = 4
    NO_TOKEN = 5
    FAILED = 6


class Token(NamedTuple):
    """``text`` is what can be shown once the token is there: whole characters. ``id`` is None at the end of the text."""

    id: int | None
    text: str
    log_probability: float


class Request:
    """A prompt being continued; an iterator of token ids. The token that ends a text is not among them."""

    def __init__(self, request: _rt.Request) -> None:
        self._request = request

    def __iter__(self) -> Iterator[int]:
        return self._request

    def __next__(self) -> int:
        return next(self._request)

    def tokens(self) -> Iterator[Token]:
        """Tokens with their text; at the end one without an id, which has the rest of the text. Raises Error."""
        while True:
            token, text, probability = self._request.event()
            yield Token(token, text.decode(errors="replace"), probability)
            if token is None:
                return

    def pieces(self) -> Iterator[str]:
        """The text, a piece at a time. Raises Error."""
        return (token.text for token in self.tokens() if token.text)

    def text(self) -> str:
        """The whole text. Raises Error."""
        return "".join(self.pieces())

    def cancel(self) -> None:
        """Ends it at the next step. Any thread may call this."""
        self._request.cancel()

    @property
    def finish(self) -> Finish:
        """NONE until the end has been read."""
        return Finish(self._request.finish())

    @property
    def stats(self) -> dict[str, Any]:
        """Counts of tokens, and seconds: infc_generation_stats of infc.h."""
        return self._request.stats()


class LLM:
    """A language model. Used by one thread at a time, but for ``Request.cancel``."""

    def __init__(self, path: str | os.PathLike[str] | bytes, threads: int | None = None, *, cache_tokens: int = 0,
                 cache_bytes: int = 0, max_sequences: int = 0, prefix_cache: bool = True, max_batched_tokens: int = 0,
                 isa: str | None = None, device: str | None = None) -> None:
        """``threads`` includes the caller's; None takes as many as affinity and CPU quota allow. ``device`` as Engine's. The cache
        holds ``cache_tokens`` of all sequences together, by default one at the full context, and fewer if ``cache_bytes`` is less.
        At most ``max_batched_tokens`` are computed in a step. On a GPU each sequence has a cache for a whole context, of which
        ``cache_tokens`` says how many there may be. Raises Error, also if the artifact is not a language model's."""
        self.engine = Engine(path, threads, isa, device)
        long = (1 << 64) - 1
        self.lm = _rt.LM(self.engine._engine, _whole("cache_tokens", cache_tokens, most=long),
                         _whole("cache_bytes", cache_bytes, most=long), _whole("max_sequences", max_sequences), prefix_cache,
                         _whole("max_batched_tokens", max_batched_tokens))
        info = self.lm.info()
        self.context: int = info["context"]
        self.vocabulary: int = info["vocabulary"]

    def __repr__(self) -> str:
        return (f"<infc.LLM: {self.vocabulary} tokens, context {self.context}, "
                f"{f'{self.engine.threads} threads' if self.engine.isa else self.engine.device}>")

    @property
    def info(self) -> dict[str, int]:
        """Limits and memory: infc_lm_info of infc.h."""
        return self.lm.info()

    # ---- Generation

    def request(self, prompt: str | Sequence[Message] | Ids, *, max_new_tokens: int | None = None, ignore_eos: bool = False,
                temperature: float = 0.0, top_k: int = 0, top_p: float = 0.0, min_p: float = 0.0, repetition_penalty: float = 0.0,
                presence_penalty: float = 0.0, frequency_penalty: float = 0.0, seed: int = 0,
                logit_bias: Mapping[int, float] | None = None, stop: str | Sequence[str] = (), stop_tokens: Ids = (),
                log_probabilities: bool = False, mask: Mask | None = None, prompt_lookup: bool = False,
                draft: LLM | None = None) -> Request:
        """Submits a prompt: text, chat messages or token ids. Temperature 0 takes the most likely token.

        ``mask`` is called before each token with the ids so far and gives what is allowed next: an array of bool, one a token of
        the vocabulary, or ids. ``draft`` is a smaller model of the same tokenizer, which guesses ahead. Other options:
        infc_generate_options of infc.h. Why a request ended is in ``finish``. Raises Error.
        """
        if draft is not None and not isinstance(draft, LLM):
            raise _invalid("draft is an LLM")
        return Request(self.lm.submit(
            self._ids(prompt), max_new_tokens=0 if max_new_tokens is None else _whole("max_new_tokens", max_new_tokens, 1),
            ignore_eos=ignore_eos, temperature=temperature, top_k=_whole("top_k", top_k), top_p=top_p, min_p=min_p,
            repetition_penalty=repetition_penalty, presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
            seed=_whole("seed", seed, -(1 << 63), (1 << 64) - 1) & (1 << 64) - 1,
            bias=[(_whole("logit_bias", t, most=_ID), float(b)) for t, b in (logit_bias or {}).items()],
            stop_tokens=_int32(stop_tokens), stop_strings=[_stop(s) for s in ([stop] if isinstance(stop, str) else stop)],
            log_probabilities=log_probabilities, mask=self._mask(mask) if mask else None, prompt_lookup=prompt_lookup,
            draft=draft.lm if draft else None))

    @overload
    def generate(self, prompt: str | Sequence[Message] | Ids, *, stream: Literal[True], **options: Any) -> Iterator[str]: ...
    @overload
    def generate(self, prompt: str | Sequence[Message] | Ids, *, stream: Literal[False] = False, **options: Any) -> str: ...
    def generate(self, prompt: str | Sequence[Message] | Ids, *, stream: bool = False, **options: Any) -> str | Iterator[str]:
        """The text that follows a prompt, or an iterator of its pieces. Options are those of ``request``. Raises Error."""
        request = self.request(prompt, **options)
        return request.pieces() if stream else request.text()

    def generate_ids(self, ids: Ids, max_new_tokens: int | None = None, stream: bool = True, ignore_eos: bool = False,
                     **options: Any) -> Iterator[int]:
        """The token ids that follow; as they come, or with ``stream=False`` after the last. Options are those of ``request``.
        Raises Error."""
        request = self.request(ids, max_new_tokens=max_new_tokens, ignore_eos=ignore_eos, **options)
        return iter(request) if stream else iter(list(request))

    def logits(self, ids: Ids, last: int | None = None) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Logits f32 [rows, vocabulary] of all tokens of a text, or of the ``last`` ones. Raises Error."""
        tokens = _int32(ids)
        rows = len(tokens) if last is None else _whole("last", last, most=len(tokens))
        out = np.empty((rows, self.vocabulary), np.float32)
        self.lm.step([(self.lm.sequence(), tokens, rows)], out)
        return out

    def _mask(self, mask: Mask) -> Callable[[bytes], bytes]:
        def bits(tokens: bytes) -> bytes:
            given = np.asarray(mask(np.frombuffer(tokens, np.int32)))
            allowed = np.zeros(-(-self.vocabulary // 32) * 32, bool)
            if given.shape == (self.vocabulary,) and given.dtype == bool:
                allowed[: self.vocabulary] = given
            elif given.shape == (self.vocabulary,) and given.max() <= 1:  # flags, which read as ids would be those of two tokens
                raise _invalid(f"mask: an array of {self.vocabulary} flags is one of bool, not of {given.dtype}")
            else:
                ids = _int32(given)
                if outside := ids[(ids < 0) | (ids >= self.vocabulary)].tolist():
                    raise _invalid(f"mask: token {outside[0]} is not one of {self.vocabulary}")
                allowed[ids] = True
            return np.packbits(allowed, bitorder="little").tobytes()

        return bits

    # ---- Text

    def encode(self, text: str, special: bool = True) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Token ids, with those that the model's tokenizer puts around a text if ``special``. Needs the package tokenizers. Raises
        Error if the text is not Unicode."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _invalid(f"the text is not UTF-8: {text[error.start]!a} at {error.start}") from None
        return np.array(self.tokenizer.encode(text, add_special_tokens=special).ids, np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; special tokens have none."""
        return b"".join(self.lm.token_text(int(i)) for i in ids).decode(errors="replace")

    def chat(self, messages: Sequence[Message], **variables: Any) -> str:
        """The prompt that the model's chat template makes of messages, with the beginning of the answer. ``variables`` are for the
        template, such as ``tools``. Needs the package jinja2. Raises Error without a template."""
        variables = {"add_generation_prompt": True, "tools": None, "documents": None} | variables
        template, errors = self.chat_template, _package("jinja2").TemplateError
        try:
            return str(template.render(messages=list(messages), **self._special, **variables))
        except (errors, TypeError) as error:  # a template's way to say that it does not know such messages
            raise _invalid(f"the chat template refuses the messages: {error}") from error

    @cached_property
    def tokenizer(self) -> Any:
        """Of the package tokenizers, from the artifact. Raises Error if it has none."""
        if "tokenizer.json" not in self._files:
            raise _invalid("the artifact has no tokenizer.json: pass token ids")
        return _package("tokenizers").Tokenizer.from_str(self._files["tokenizer.json"].decode())

    @cached_property
    def _files(self) -> dict[str, bytes]:
        section = self.engine.section("TOKENIZER")
        if section is None:
            return {}
        with tarfile.open(fileobj=io.BytesIO(section)) as tar:
            return {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]

    @cached_property
    def _config(self) -> dict[str, Any]:
        return dict(json.loads(self._files.get("tokenizer_config.json", b"{}")))

    @cached_property
    def _special(self) -> dict[str, str]:
        """Texts of special tokens, for templates."""
        found = json.loads(self._files.get("special_tokens_map.json", b"{}")) | self._config
        texts = {k: v["content"] if isinstance(v, dict) else v for k, v in found.items() if k.endswith("_token")}
        return {k: v for k, v in texts.items() if isinstance(v, str)}

    @cached_property
    def chat_template(self) -> Any:
        """The model's, of the package jinja2. Raises Error if there is none."""
        source = self._files.get("chat_template.jinja", b"").decode() or self._config.get("chat_template")
        if isinstance(source, list):
            source = {t["name"]: t["template"] for t in source}.get("default")
        if not source:
            raise _invalid("the artifact has no chat template: pass text")
        return _environment().from_string(source)

    def _ids(self, prompt: str | Sequence[Message] | Ids) -> np.ndarray[Any, np.dtype[np.int32]]:
        if isinstance(prompt, str):
            return self.encode(prompt)
        if isinstance(prompt, Sequence) and len(prompt) and isinstance(prompt[0], Mapping):
            return self.encode(self.chat(prompt), special=False)  # type: ignore[arg-type]
        return _int32(prompt)  # type: ignore[arg-type]


_ID = (1 << 31) - 1  # the largest


def _invalid(message: str) -> _rt.Error:
    return _error(Status.INVALID_ARGUMENT, message)


def _whole(name: str, number: Any, least: int = 0, most: int = (1 << 32) - 1) -> int:
    """An integer that C can hold. Raises Error."""
    try:
        whole = operator.index(number)
    except TypeError:
        raise _invalid(f"{name} is a whole number, not {number!r}") from None
    if not least <= whole <= most:
        raise _invalid(f"{name} is {whole}, not from {least} to {most}")
    return whole


def _stop(string: str) -> bytes:
    if not isinstance(string, str) or "\0" in string:
        raise _invalid(f"a stop string is text without NUL, not {string!r}")
    return string.encode(errors="replace")


def _int32(ids: Ids) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Token ids of one text. Raises Error."""
    given = np.asarray(ids)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise _invalid(f"token ids are whole numbers in a row, one text's, not {str(ids)[:60]}")
    if given.size and not 0 <= int(given.min()) <= int(given.max()) <= _ID:
        raise _invalid(f"a token id is not from 0 to {_ID}: {given.min()}, {given.max()}")
    return np.ascontiguousarray(given, np.int32)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} is not installed: pip install {name}, or pass token ids") from error


def _environment() -> Any:
    """As transformers renders chat templates: in a sandbox, with its functions."""
    _package("jinja2")
    sandbox, extensions = importlib.import_module("jinja2.sandbox"), importlib.import_module("jinja2.ext")

    def fail(message: str) -> None:
        raise _invalid(f"the chat template refuses the messages: {message}")

    def as_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None,
                sort_keys: bool = False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def now(form: str) -> str:
        return str(importlib.import_module("datetime").datetime.now().strftime(form))

    made = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[extensions.loopcontrols])
    made.filters["tojson"] = as_json
    made.globals |= {"raise_exception": fail, "strftime_now": now}
    return made
