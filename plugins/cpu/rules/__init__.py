"""Lowering rules by family; importing this package registers them."""

from infc.plugins.cpu.rules import attention, elementwise, linear, movement, packed, rows

__all__ = ["attention", "elementwise", "linear", "movement", "packed", "rows"]
