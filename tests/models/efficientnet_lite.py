"""EfficientNet-Lite0 in PyTorch, with the names of its published weights: ReLU6, no squeezing, padding as TensorFlow's."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

# of each stage: blocks, kernel, stride of the first, expansion, channels
STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
          (1, 3, 1, 6, 320))


class Same(nn.Conv2d):
    """Padded so that the output is ceil(input / stride) large, the odd pixel at the end."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        pad = []
        for size, kernel, stride in zip(reversed(input.shape[2:]), reversed(self.kernel_size), reversed(self.stride), strict=True):
            whole = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pad += [whole // 2, whole - whole // 2]
        return super().forward(functional.pad(input, pad))


def _conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Same:
    return Same(inputs, outputs, kernel, stride, groups=groups, bias=False)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expands, self.skips = expansion > 1, stride == 1 and inputs == outputs
        if self.expands:
            self._expand_conv, self._bn0 = _conv(inputs, inner), nn.BatchNorm2d(inner, eps=1e-3)
        self._depthwise_conv, self._bn1 = _conv(inner, inner, kernel, stride, inner), nn.BatchNorm2d(inner, eps=1e-3)
        self._project_conv, self._bn2 = _conv(inner, outputs), nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = self._bn2(self._project_conv(functional.relu6(self._bn1(self._depthwise_conv(y)))))
        return x + y if self.skips else y


def _blocks() -> Iterator[Block]:
    inputs = 32
    for count, kernel, stride, expansion, outputs in STAGES:
        for number in range(count):
            yield Block(inputs, outputs, kernel, 1 if number else stride, expansion)
            inputs = outputs


class EfficientNetLite0(nn.Module):
    """[n, 3, 224, 224] -> [n, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = _conv(3, 32, 3, 2), nn.BatchNorm2d(32, eps=1e-3)
        self._blocks = nn.ModuleList(_blocks())
        self._conv_head, self._bn1 = _conv(320, 1280), nn.BatchNorm2d(1280, eps=1e-3)
        self._fc = nn.Linear(1280, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        x = functional.relu6(self._bn1(self._conv_head(x)))
        found: torch.Tensor = self._fc(x.mean((2, 3)))
        return found
