"""The text towers of CLIP and SigLIP."""

from infc.models.text import TextFamily

load = TextFamily(adapt=dict).load
