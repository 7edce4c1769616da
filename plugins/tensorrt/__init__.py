"""Targets that build TensorRT engines: TensorRT-RTX on any machine, TensorRT on one with the GPU."""

from __future__ import annotations

from infc.plugins.tensorrt.target import TECHNIQUES, TensorRtRtxTarget, TensorRtTarget

__all__ = ["TECHNIQUES", "TensorRtRtxTarget", "TensorRtTarget"]
