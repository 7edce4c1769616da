"""MPNet: RoBERTa's positions, and a bias by distance in every layer."""

from infc.models.text import TextFamily, positions_after_padding

load = TextFamily(limit=positions_after_padding, sentence={"add_pooling_layer": False}).load
