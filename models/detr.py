"""DETR: photos of any shape in one square, with a mask of where they are; boxes and their classes come out."""

from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.source import Source
from infc.models.image import image_inputs
from infc.models.recipe import Exportable, exportable, load_model, model_class


def load(source: Source, task: str) -> Exportable:
    model = load_model(source, model_class(source))
    (photo,) = image_inputs(source, model.config)
    place = TensorSpec("pixel_mask", "i64", (photo.dims[0], *photo.dims[2:]), fill=1, range=(0, 1))
    return exportable(model, Interface((photo, place), (), task))
