"""BERT."""

from infc.models.text import TextFamily

load = TextFamily(
    token_types=True,
    sentence={"add_pooling_layer": False},
    refuses={"is_decoder": (False, "as a decoder"), "position_embedding_type": ("absolute", "with relative positions")},
).load
