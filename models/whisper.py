"""Whisper's encoder: log-mel spectrograms of 30 seconds in, vectors out; the classifier of audio whole. The number of frames is the
model's own, for its positions are a table that is used in full."""

from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.source import Source
from infc.models.recipe import Exportable, exportable, load_model, model_class

_STRIDE = 2  # of the second convolution: frames a position


def load(source: Source, task: str) -> Exportable:
    model = load_model(source, model_class(source))
    config = model.config
    dims = ("batch", int(config.num_mel_bins), _STRIDE * int(config.max_source_positions))
    interface = Interface((TensorSpec("input_features", "f32", dims),), (), task)
    return exportable(model if task == "audio-classification" else model.get_encoder(), interface)
