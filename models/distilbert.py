"""DistilBERT: half of BERT's layers, no token types, no pooler."""

from infc.models.text import TextFamily

load = TextFamily().load
