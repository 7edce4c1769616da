"""The text towers of CLIP, whose attention looks back only, and of SigLIP. Sizes are exact."""

from typing import Any

from infc.models.recipe import Tensors
from infc.models.text import TextFamily, attended, distances, wide_mask


def adapt(given: Tensors, config: Any) -> dict[str, Any]:
    if config.model_type != "clip_text_model":
        return wide_mask(given, config)
    return {**given, "attention_mask": attended(given, config, distances(given) <= 0)}


load = TextFamily(adapt=adapt).load
