"""RoBERTa, XLM-RoBERTa, CamemBERT: positions count from the padding token's id on, and padding has no position."""

from infc.models.text import TextFamily, positions_after_padding

load = TextFamily(
    limit=positions_after_padding,
    sentence={"add_pooling_layer": False},
    refuses={"is_decoder": (False, "as a decoder"), "position_embedding_type": ("absolute", "with relative positions")},
).load
