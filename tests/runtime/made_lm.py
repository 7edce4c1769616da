"""A language model made by hand: one layer of attention over random weights, a tokenizer of single letters and a chat template; and
what it computes, in numpy."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from infc.compiler.artifact import io as artifact_io
from infc.compiler.artifact import program, writer
from infc.compiler.artifact.layout import (
    DIM_PADS,
    DTYPES,
    GENERATION_HEADER,
    ISAS,
    PACKINGS,
    SPACES,
    SPLITS,
    STATE_HEADER,
    STATE_LAYER,
    TOKEN_SPECIAL,
)
from infc.compiler.target import Section

VOCABULARY = 64
WIDTH = 32  # one head of keys and values, one of queries
CONTEXT = 256
STOP = 0
PROFILES = ((1, 1), (8, 4), (32, 8))
TEXTS = ["", "\n", " ", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ,.", "é".encode()[:1], "é".encode()[1:],
         "the ", "!?", "ß", "€", "💡"]
TEMPLATE = ("{{ bos_token }}{% for m in messages %}{{ m['role'][0] }} {{ m['content'] }}\n{% endfor %}"
            "{% if add_generation_prompt %}a {% endif %}")
Floats = np.ndarray[Any, np.dtype[np.float32]]


def weights() -> dict[str, Floats]:
    rng = np.random.default_rng(3)
    shapes = {"tokens": (VOCABULARY, WIDTH), "places": (CONTEXT, WIDTH), "qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH),
              "logits": (WIDTH, VOCABULARY)}
    return {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}


def logits(ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Of all tokens, [tokens, vocabulary], in doubles."""
    w = {k: v.astype(np.float64) for k, v in weights().items()}
    h = w["tokens"][list(ids)] + w["places"][: len(ids)]
    q, k, v = np.split(h @ w["qkv"], 3, axis=1)
    scores = np.where(np.tri(len(ids), dtype=bool), q @ k.T / 4, -np.inf)
    p = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray((p / p.sum(1, keepdims=True) @ v @ w["out"] + h) @ w["logits"])


def greedy(ids: Sequence[int], count: int) -> list[int]:
    text = list(ids)
    for _ in range(count):
        text.append(int(logits(text)[-1].argmax()))
    return text[len(ids) :]


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _packed(w: Floats) -> bytes:
    """F32_K1N32."""
    return np.ascontiguousarray(w.reshape(w.shape[0], -1, 32).transpose(1, 0, 2)).tobytes()


def _weights() -> tuple[bytes, dict[str, int]]:
    data, offsets = b"", {}
    for name, w in weights().items():
        offsets[name] = len(data)
        data += _packed(w) if name in ("qkv", "out", "logits") else w.tobytes()
    return data, offsets


class _Program:
    def __init__(self, tokens: int, rows: int, offsets: dict[str, int]) -> None:
        self.bounds, self.offsets, self.arena = (tokens, rows), offsets, 0
        self.steps: list[program.Step] = []

    def values(self, width: int, symbol: int = 0) -> program.Operand:
        rows = self.bounds[symbol]
        made = program.Operand(SPACES["ARENA"], DTYPES["f32"], (rows, width), self.arena, width, symbol)
        self.arena += -(-rows * width * 4 // 64) * 64
        return made

    def ids(self, index: int, symbol: int = 0) -> program.Operand:
        return program.Operand(SPACES["INPUT"], DTYPES["i64"], (self.bounds[symbol],), index, 1, symbol)

    def weight(self, name: str) -> program.Operand:
        dims = weights()[name].shape
        packing = PACKINGS["F32_K1N32" if name in ("qkv", "out", "logits") else "ROW_MAJOR"]
        return program.Operand(SPACES["WEIGHTS"], DTYPES["f32"], dims, self.offsets[name], dims[1], -1, packing)

    def step(self, kernel: str, inputs: tuple[program.Operand, ...], output: program.Operand, words: tuple[int, ...],
             symbol: int = 0, cols: int = 1, split: str = "ROWS", barrier: int = 0) -> program.Operand:
        self.steps.append(program.Step(kernel, inputs, (output,), words, self.bounds[symbol], symbol, cols, (SPLITS[split], 0),
                                       (barrier, 0)))
        return output

    def gemm(self, x: program.Operand, name: str, y: program.Operand, *residual: program.Operand, symbol: int = 0, barrier: int = 0
             ) -> program.Operand:
        return self.step("infc_gemm_f32__scalar", (x, self.weight(name), *residual), y, (0, 0, len(residual)), symbol,
                         weights()[name].shape[1] // 32, barrier=barrier)


def _program(profile: int, offsets: dict[str, int]) -> Section:
    p = _Program(*PROFILES[profile], offsets)
    h = p.step("infc_embed_sum_f32__scalar", (p.ids(0), p.weight("tokens"), p.ids(1), p.weight("places")), p.values(WIDTH), (2,))
    qkv = p.gemm(h, "qkv", p.values(3 * WIDTH))
    parts = [program.Operand(qkv.space, qkv.dtype, (qkv.dims[0], WIDTH), qkv.offset + i * WIDTH * 4, 3 * WIDTH, 0)
             for i in range(3)]
    head = (0, 1, 1, WIDTH, WIDTH)
    q = p.step("infc_cache_write__scalar", tuple(parts), p.values(WIDTH), (*head, 0, 0))
    scale = int(np.float32(0.25).view(np.uint32))
    a = p.step("infc_cache_attention__scalar", (q,), p.values(WIDTH), (*head, scale, 0), split="COLS", barrier=1)
    out = p.gemm(a, "out", p.values(WIDTH), h, barrier=1)
    table = program.Operand(out.space, out.dtype, out.dims, out.offset, WIDTH, -1)
    rows = p.step("infc_embed_sum_f32__scalar", (p.ids(2, 1), table), p.values(WIDTH, 1), (1,), 1, barrier=1)
    p.gemm(rows, "logits", program.Operand(SPACES["OUTPUT"], DTYPES["f32"], (p.bounds[1], VOCABULARY), 0, VOCABULARY, 1), symbol=1)
    symbols = list(zip(("tokens", "rows"), p.bounds, strict=True))
    return Section("PROGRAM", program.encode(program.Program(profile, ISAS["scalar"], symbols, p.steps, p.arena)), ordinal=profile)


def _generation() -> Section:
    header = np.zeros((), GENERATION_HEADER.dtype)
    texts = [_bytes(t) for t in TEXTS]
    for i, name in enumerate(("input_ids", "position_ids", "logit_rows")):
        header[name] = i
    header["vocabulary"], header["stop_count"], header["bytes_size"] = VOCABULARY, 1, sum(map(len, texts))
    flags = bytes([TOKEN_SPECIAL]) + bytes(VOCABULARY - 1)
    offsets = np.cumsum([0, *map(len, texts)]).astype("<u4")
    return Section("GENERATION", b"".join([header.tobytes(), np.uint32(STOP).tobytes(), flags, offsets.tobytes(), *texts]))


def _tokenizer() -> Section:
    """Of letters: tokens that are not one are never made of text."""
    vocabulary = {"<s>": 0} | {t: i for i, t in enumerate(TEXTS) if isinstance(t, str) and len(t) == 1}
    special = {"id": 0, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
               "special": True}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": None, "dropout": None,
             "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": False}
    files = {"tokenizer.json": {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [special],
                                "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model},
             "tokenizer_config.json": {"bos_token": "<s>", "chat_template": TEMPLATE}}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            data = json.dumps(content).encode()
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return Section("TOKENIZER", out.getvalue(), required=False)


def artifact() -> bytes:
    tensor = artifact_io.IoTensor
    spec = artifact_io.IoSpec(
        inputs=[tensor("input_ids", "i64", ("tokens",)), tensor("position_ids", "i64", ("tokens",)),
                tensor("logit_rows", "i64", ("rows",))],
        outputs=[tensor("logits", "f32", ("rows", VOCABULARY))],
        symbols=[artifact_io.IoSymbol("tokens", DIM_PADS), artifact_io.IoSymbol("rows", DIM_PADS)],
        profiles=[{"tokens": t, "rows": r} for t, r in PROFILES])
    state = np.zeros((), STATE_HEADER.dtype)
    state["layer_count"], state["block_tokens"], state["context"], state["dtype"] = 1, 32, CONTEXT, DTYPES["f32"]
    layer = np.array([(1, WIDTH, WIDTH, 0)], STATE_LAYER.dtype)
    data, offsets = _weights()
    return writer.pack([Section("META", b"{}"), Section("IO", artifact_io.encode(spec)),
                        Section("STATE", state.tobytes() + layer.tobytes()), *(_program(i, offsets) for i in range(len(PROFILES))),
                        Section("WEIGHTS", data), _generation(), _tokenizer()])
