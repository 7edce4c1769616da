"""RoBERTa, XLM-RoBERTa, CamemBERT: positions count from the padding token's id on, and padding has no position."""

from typing import Any

from infc.models.recipe import Tensors
from infc.models.text import TextFamily, positions_after_padding, wide_mask


def _adapt(given: Tensors, config: Any) -> dict[str, Any]:
    """There is one token type, which the model else looks up by position."""
    return {**wide_mask(given, config), "token_type_ids": given["input_ids"] * 0}


load = TextFamily(
    limit=positions_after_padding,
    adapt=_adapt,
    sentence={"add_pooling_layer": False},
    refuses={"is_decoder": (False, "as a decoder"), "position_embedding_type": ("absolute", "with relative positions")},
).load
