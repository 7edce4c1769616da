"""Whisper in CTranslate2's form, as faster-whisper carries it, into a directory of transformers.

``python -m infc.models.ctranslate2 FROM TO``; FROM holds model.bin with weights that are not quantised.
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from infc.compiler.errors import UsageError, exit_code

_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_HEAD = 64  # width of an attention head, in every Whisper
_PARTS = {"gamma": "weight", "beta": "bias", "weight": "weight", "bias": "bias"}

Arrays = dict[str, np.ndarray]


def convert(folder: Path, target: Path) -> Path:
    """Writes the model and its feature extractor, in float32. Raises UsageError E0125 for a file of another kind."""
    import torch
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    found = read(folder / "model.bin")
    try:
        weights = {name: torch.from_numpy(np.array(value, np.float32)) for name, value in _renamed(found)}
        config = WhisperConfig(**_config(found))
        model = WhisperForConditionalGeneration(config)
        model.load_state_dict(weights)
    except (KeyError, IndexError, ValueError, RuntimeError) as error:
        raise _other(folder / "model.bin", next(iter(str(error).splitlines()))) from error
    model.save_pretrained(target)
    WhisperFeatureExtractor(feature_size=config.num_mel_bins).save_pretrained(target)  # type: ignore[no-untyped-call]
    return target


def read(path: Path) -> Arrays:
    """The variables of a model.bin: version, name, revision, then each variable's name, shape, type and bytes."""
    data = path.read_bytes()
    at = 0

    def number(kind: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f"<{kind}", data, at)
        at += struct.calcsize(kind)
        return int(value)

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        return data[at - count:at]

    try:
        number("I"), take(number("H")), number("I")
        found = {}
        for _ in range(number("I")):
            name = take(number("H"))[:-1].decode()
            shape = [number("I") for _ in range(number("B"))]
            kind = _TYPES[number("B")]
            found[name] = np.frombuffer(take(number("I")), kind).reshape(shape)
    except (struct.error, KeyError, ValueError) as error:
        raise _other(path, str(error)) from error
    return found


def _other(path: Path, why: str) -> UsageError:
    return UsageError("E0125", f"not a Whisper model of CTranslate2 without quantisation: {why}", where=str(path),
                      hint="download it again")


def _config(found: Arrays) -> dict[str, Any]:
    width = found["encoder/layer_norm/gamma"].shape[0]
    hidden = found["encoder/layer_0/ffn/linear_0/weight"].shape[0]
    vocabulary = found["decoder/embeddings/weight"].shape[0]
    end = vocabulary - 1607 - (vocabulary > 51864)  # special tokens follow; the models of several languages have one more word
    sides: dict[str, Any] = {}
    for side, places in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
        sides |= {f"{side}_layers": len({n.split("/")[1] for n in found if n.startswith(f"{side}/layer_")} - {"layer_norm"}),
                  f"{side}_attention_heads": width // _HEAD, f"{side}_ffn_dim": hidden,
                  places: found[f"{side}/position_encodings/encodings"].shape[0]}
    return {**sides, "d_model": width, "vocab_size": vocabulary, "num_mel_bins": found["encoder/conv1/weight"].shape[1],
            "bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": end + 1}


def _renamed(found: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """The variables by their names in transformers; queries, keys and values, which CTranslate2 keeps in one, apart."""
    yield "proj_out.weight", found["decoder/embeddings/weight"]
    yield "model.decoder.embed_tokens.weight", found["decoder/embeddings/weight"]
    for name, value in found.items():
        side, *path = name.split("/")
        if side in ("encoder", "decoder") and value.ndim and path[0] != "embeddings":
            prefix, inner = f"model.{side}.", path[:-1]
            if inner[0] == "position_encodings":
                yield f"{prefix}embed_positions.weight", value
            elif inner[0].startswith("layer_") and inner[0] != "layer_norm":
                yield from _of_layer(f"{prefix}layers.{inner[0][6:]}.", inner[1:], _PARTS[path[-1]], value)
            elif inner[0] != "projection":
                yield f"{prefix}{inner[0]}.{_PARTS[path[-1]]}", value


def _of_layer(prefix: str, path: list[str], part: str, value: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    if path[0] == "ffn":
        kind = {"linear_0": "fc1", "linear_1": "fc2", "layer_norm": "final_layer_norm"}[path[1]]
        yield f"{prefix}{kind}.{part}", value
        return
    block = {"self_attention": "self_attn", "attention": "encoder_attn"}[path[0]]
    crossed = path[0] == "attention"
    names = (("q",), ("k", "v"), ("out",)) if crossed else (("q", "k", "v"), ("out",))
    if path[1] == "layer_norm":
        yield f"{prefix}{block}_layer_norm.{part}", value
        return
    parts = names[int(path[1].removeprefix("linear_"))]
    for one, chunk in zip(parts, np.split(value, len(parts)), strict=True):
        if (one, part) != ("k", "bias"):  # the keys have none
            yield f"{prefix}{block}.{one}_proj.{part}", chunk


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infc.models.ctranslate2", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    chosen = parser.parse_args(arguments)
    return exit_code(lambda: convert(chosen.source, chosen.target))


if __name__ == "__main__":
    sys.exit(main())
