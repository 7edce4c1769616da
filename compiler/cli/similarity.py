"""How well texts and a photo go together, by a model that gives a vector for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from infc.compiler.cli.console import table

if TYPE_CHECKING:
    from infc.compiler.artifact.reader import Artifact

_IMAGE, _TEXT, _SCORES = "image_embeds", "text_embeds", "logits_per_image"


def _softmax(scores: NDArray[Any]) -> NDArray[Any]:
    shifted = np.exp(scores - scores.max())
    return np.asarray(shifted / shifted.sum())


def _sigmoid(scores: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(0.5 + 0.5 * np.tanh(scores / 2))


# What an architecture's scores were trained as: shares among the texts, or a probability for each.
_READINGS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {"CLIPModel": _softmax, "SiglipModel": _sigmoid}


def similarity(artifact: Artifact, outputs: Mapping[str, NDArray[Any]], texts: Sequence[str]) -> list[dict[str, Any]]:
    """For each text its cosine similarity with the photo and, where the architecture's scores mean one, its probability. Empty for
    outputs without such vectors."""
    if _IMAGE not in outputs or _TEXT not in outputs:
        return []
    photo, rows = (np.asarray(outputs[name], np.float64) for name in (_IMAGE, _TEXT))
    norms = np.linalg.norm(rows, axis=-1) * np.linalg.norm(photo[0])
    cosines = rows @ photo[0] / np.maximum(norms, 1e-30)
    found = [{"text": text, "cosine": float(c)} for text, c in zip(texts, cosines, strict=True)]
    reading = _READINGS.get(artifact.meta.get("source", {}).get("architecture", ""))
    if reading and _SCORES in outputs:
        for row, value in zip(found, reading(np.asarray(outputs[_SCORES], np.float64)[0]), strict=True):
            row["probability"] = float(value)
    return found


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    table(("text", ">similarity", ">probability"),
          [(r["text"], f"{r['cosine']:.4f}", f"{r['probability']:.4f}" if "probability" in r else "") for r in rows])
