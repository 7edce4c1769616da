"""ALBERT: one layer's weights serve all layers, and embeddings are narrower than hidden states."""

from infc.models.text import TextFamily

load = TextFamily(token_types=True, sentence={"add_pooling_layer": False}).load
