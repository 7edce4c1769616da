"""DeBERTa v2 and v3: attention by content and by distance."""

from typing import Any

from infc.models.recipe import Tensors
from infc.models.text import TextFamily


def _adapt(given: Tensors, config: Any) -> dict[str, Any]:
    return dict(given)  # its mask is simple as it is


load = TextFamily(token_types=True, adapt=_adapt).load
