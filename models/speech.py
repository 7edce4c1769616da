"""wav2vec 2.0 and HuBERT: recordings in one rectangle, with a mask of where they end; vectors or scores of frames come out."""

from typing import Any

from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.source import Source
from infc.models.recipe import Exportable, exportable, load_model, model_class

_SAMPLES = 4000  # enough for some frames


def load(source: Source, task: str) -> Exportable:
    model = load_model(source, model_class(source))
    dims = ("batch", "samples")
    inputs = (TensorSpec("input_values", "f32", dims), TensorSpec("attention_mask", "i64", dims, fill=1, range=(0, 1)))
    least = _least(model.config)
    return exportable(model, Interface(inputs, (), task, "attention_mask", examples={"samples": max(_SAMPLES, 2 * least)},
                                       shortest={"samples": least}))


def _least(config: Any) -> int:
    """Samples of one frame."""
    frames = 1
    for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride), strict=True):
        frames = (frames - 1) * int(stride) + int(kernel)
    return frames
