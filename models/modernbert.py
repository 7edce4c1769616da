"""ModernBERT: rotary positions; layers of local attention between those of global attention, which make sizes exact."""

from typing import Any

import torch

from infc.models.recipe import Tensors
from infc.models.text import TextFamily


def _positions(given: Tensors) -> dict[str, Any]:
    """One row of positions for each text: ONNX's RotaryEmbedding does not broadcast the batch."""
    ids = given["input_ids"]
    return {**given, "position_ids": torch.arange(ids.shape[1])[None].expand(ids.shape[0], -1)}


load = TextFamily(adapt=_positions).load
