"""ELECTRA: BERT without a pooler, and with heads of its own."""

from infc.models.text import TextFamily

load = TextFamily(token_types=True, refuses={"is_decoder": (False, "as a decoder")}).load
