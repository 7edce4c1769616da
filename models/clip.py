"""CLIP and SigLIP with both towers: texts and images in, their vectors and scores out. There may be more texts than images."""

from infc.compiler.interface import Interface
from infc.compiler.source import Source
from infc.models.clip_text import adapt
from infc.models.image import image_inputs
from infc.models.recipe import Exportable, exportable, load_model, model_class
from infc.models.text import text_inputs


def load(source: Source, task: str) -> Exportable:
    model = load_model(source, model_class(source))
    text = model.config.text_config
    inputs = text_inputs(int(text.vocab_size), batch="texts") + image_inputs(source, model.config)
    interface = Interface(inputs, (), task, "attention_mask", {"seq": int(text.max_position_embeddings)})
    return exportable(model, interface, adapt=lambda given: adapt(given, text))
