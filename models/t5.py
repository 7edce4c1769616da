"""The encoders of T5 and its kin, out of checkpoints with a decoder too: a bias by distance."""

from infc.models.text import TextFamily, boundless

load = TextFamily(limit=boundless, base="T5EncoderModel").load
