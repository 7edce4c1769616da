"""Families of vision and audio models with few layers of random weights, built and held against PyTorch at two profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import infc
from infc.compiler import driver, profiles, samples
from infc.compiler.reference import compare
from infc.compiler.source import resolve
from infc.models import registry
from tests.models import cache
from tests.models.row import Row

PARITY = 2e-4  # largest accepted difference, relative where values are large
_SIZES = ({"batch": 1, "texts": 2, "seq": 7, "samples": 400}, {"batch": 2, "texts": 3, "seq": 16, "samples": 1000})

_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_LABELS = {"num_labels": 5}
_VIT = {**_LAYERS, "image_size": 32, "patch_size": 8, **_LABELS}
_DINO = {**_LAYERS, "mlp_ratio": 2, "image_size": 28, "patch_size": 7, **_LABELS}
_TEXT = {**_LAYERS, "vocab_size": 64, "max_position_embeddings": 16, "bos_token_id": 62, "eos_token_id": 63, "pad_token_id": 1}
_CLIP = {"projection_dim": 24, "text_config": {**_TEXT, "projection_dim": 24}, "vision_config": {**_VIT, "projection_dim": 24}}
_SIGLIP = {"text_config": {**_TEXT, "projection_size": 32}, "vision_config": _VIT}
_RESNET = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [2, 2], "layer_type": "bottleneck", **_LABELS}
_MOBILE = {"depth_multiplier": 0.25, "image_size": 64, **_LABELS}
_SEGFORMER = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 3, 4],
              "sr_ratios": [8, 4, 2, 1], "decoder_hidden_size": 16, "image_size": 64, **_LABELS}
_BACKBONE = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
             "out_features": ["stage4"]}
_SIDES = {f"{side}_{name}": value for side in ("encoder", "decoder")
          for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))}
_DETR = {**_SIDES, "use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False, "backbone_config": _BACKBONE,
         "d_model": 32, "num_queries": 7, **_LABELS}
_SPEECH = {**_LAYERS, "conv_dim": [16] * 3, "conv_kernel": [10, 3, 2], "conv_stride": [5, 2, 2], "num_feat_extract_layers": 3,
           "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "vocab_size": 12}
_STABLE = {**_SPEECH, "feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
_WHISPER = {**_SIDES, "d_model": 32, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 10, "vocab_size": 64,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, **_LABELS}


@dataclass(frozen=True)
class Family:
    """``photo`` is the preprocessor's file where it decides the images' size."""

    config: Mapping[str, Any]
    photo: Mapping[str, Any] | None = None


VISION: dict[str, Family] = {
    "ViTForImageClassification": Family(_VIT),
    "DeiTForImageClassificationWithTeacher": Family(_VIT),
    "Dinov2ForImageClassification": Family(_DINO),
    "Dinov2Model": Family({**_DINO, "image_size": 56}, {"size": {"shortest_edge": 32}, "crop_size": {"height": 28, "width": 21},
                                                        "do_center_crop": True}),
    "CLIPModel": Family(_CLIP),
    "CLIPVisionModelWithProjection": Family(_CLIP["vision_config"]),  # type: ignore[arg-type]
    "SiglipModel": Family(_SIGLIP),
    "SiglipVisionModel": Family(_VIT),
    "SwinForImageClassification": Family({"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
                                          "image_size": 32, "patch_size": 4, **_LABELS}),
    "ResNetForImageClassification": Family(_RESNET, {"size": {"shortest_edge": 64}, "crop_pct": 0.9}),
    "ConvNextForImageClassification": Family({"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1],
                                              "image_size": 64, **_LABELS}),
    "MobileNetV1ForImageClassification": Family(_MOBILE),
    "MobileNetV2ForImageClassification": Family(_MOBILE),
    "EfficientNetForImageClassification": Family({"image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.5,
                                                  "hidden_dim": 320, **_LABELS}),
    "SegformerForSemanticSegmentation": Family(_SEGFORMER),
    "DetrForObjectDetection": Family(_DETR, {"size": {"shortest_edge": 96, "longest_edge": 160}}),
}
AUDIO: dict[str, Family] = {
    "Wav2Vec2Model": Family(_SPEECH),
    "Wav2Vec2ForCTC": Family(_STABLE),
    "HubertForCTC": Family(_SPEECH),
    "WhisperForConditionalGeneration": Family(_WHISPER),
    "WhisperForAudioClassification": Family(_WHISPER),
}


def randomise(model: Any) -> None:
    """Every parameter and running statistic of its own: scales around 1, variances positive, matrices that keep magnitudes."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            drawn = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(drawn / max(1, parameter[0].numel()) ** 0.5)
            else:
                parameter.copy_(1 + drawn / 4 if name.endswith("weight") else drawn / 3)
        for name, buffer in sorted(model.named_buffers()):
            if name.endswith("running_mean"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) / 3)
            elif name.endswith("running_var"):
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)


def write(architecture: str, family: Family, folder: Path) -> Any:
    """A checkpoint of transformers with such weights; gives the model."""
    import json

    import transformers

    cls = getattr(transformers, architecture)
    model = cls(cls.config_class(**family.config)).eval()
    randomise(model)
    model.save_pretrained(folder)
    if family.photo:
        (folder / "preprocessor_config.json").write_text(json.dumps(family.photo))
    return model


def users(model: Any, architecture: str, inputs: Mapping[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    """What the model's users get of it, with nothing of infc in between."""
    import torch

    called = model.get_encoder() if architecture == "WhisperForConditionalGeneration" else model
    with torch.no_grad():
        found = called(**{name: torch.from_numpy(value) for name, value in inputs.items()})
    return {name: found[name].numpy() for name in names}


def measure(architecture: str, family: Family, folder: Path) -> Row:
    """Builds the model by the way of ``infc build`` and runs it beside PyTorch at both profiles, masks and all."""
    model = write(architecture, family, folder / "model")
    source = resolve(folder / "model")
    interface = registry.load(source).interface
    wanted = [",".join(f"{s}={sizes[s]}" for s in interface.symbols) for sizes in _SIZES]
    with mock.patch.object(driver, "export", cache.export):
        built = driver.build(source.path, folder / "model.infc", profiles=wanted, tune=False, threads=1)
    engine = infc.Engine(folder / "model.infc", threads=2)
    names = [t.name for t in interface.outputs]
    row = Row(architecture, wanted, task=built.report["task"], steps=[len(layers) for layers in built.report["layers"].values()])
    row.examine(cache.export(source))
    for profile in wanted:
        for case in samples.cases(interface, profiles.parse(profile).as_dict(), trim=False):
            for found in compare(engine.run(case.inputs), users(model, architecture, case.inputs, names), case.inputs, interface):
                assert not found.note, f"{architecture}, {profile}, {case.name}: {found}"
                row.add(found)
    return row
