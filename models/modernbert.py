"""ModernBERT: rotary positions; layers of local attention between those of global attention."""

from typing import Any

import torch

from infc.models.recipe import Tensors
from infc.models.text import TextFamily, attended, distances


def _adapt(given: Tensors, config: Any) -> dict[str, Any]:
    """Both masks, and a row of positions for each text: ONNX's RotaryEmbedding does not broadcast the batch."""
    ids = given["input_ids"]
    near = distances(given).abs() <= config.sliding_window
    return {**given, "position_ids": torch.arange(ids.shape[1])[None].expand(ids.shape[0], -1),
            "attention_mask": {"full_attention": attended(given, config), "sliding_attention": attended(given, config, near)}}


load = TextFamily(adapt=_adapt).load
