"""Pooling and normalisation of sentence-transformers, as a module that exports well."""

from __future__ import annotations

import torch

from infc.compiler.sentence import SentenceModules


class SentencePooling(torch.nn.Module):
    """[batch, seq, N] token vectors and their [batch, seq] mask -> [batch, N times the number of poolings]."""

    def __init__(self, modules: SentenceModules) -> None:
        super().__init__()
        self.pooling = modules.pooling
        self.normalize = modules.normalize

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        parts = [_POOLINGS[name](hidden, mask) for name in self.pooling]
        pooled = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return torch.nn.functional.normalize(pooled, p=2.0, dim=1) if self.normalize else pooled


def _mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weight = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)


def _max(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    lowest = torch.tensor(-1e9, dtype=hidden.dtype)
    return torch.where(mask.unsqueeze(-1) != 0, hidden, lowest).amax(1)


def _cls(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return hidden[:, 0]


_POOLINGS = {"mean": _mean, "max": _max, "cls": _cls}
