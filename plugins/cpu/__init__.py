"""The CPU target: graphs to programs of kernel calls over one planned arena."""

from __future__ import annotations

from infc.plugins.cpu.target import TECHNIQUES, CpuTarget

__all__ = ["TECHNIQUES", "CpuTarget"]
