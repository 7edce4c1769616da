"""The CPU target: graphs to programs of kernel calls over one planned arena. Importing it registers the lowering rules."""

from __future__ import annotations

from infc.plugins.cpu import rules
from infc.plugins.cpu.target import TECHNIQUES, CpuTarget

__all__ = ["TECHNIQUES", "CpuTarget", "rules"]
