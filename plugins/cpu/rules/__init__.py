"""Lowering rules by family; importing this package registers them."""

from infc.plugins.cpu.rules import attention, conv, elementwise, linear, movement, packed, pool, rows

__all__ = ["attention", "conv", "elementwise", "linear", "movement", "packed", "pool", "rows"]
