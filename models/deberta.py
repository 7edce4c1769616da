"""DeBERTa v2 and v3: attention by content and by distance, which makes sizes exact."""

from infc.models.text import TextFamily

load = TextFamily(token_types=True).load
