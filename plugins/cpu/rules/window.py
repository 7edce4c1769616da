"""Sliding windows: what kernel_shape, strides, dilations, pads, auto_pad and ceil_mode of convolutions and pools come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infc.plugins.cpu.lower import Lowering

AXES = 3  # dimensions of a kernel's window


@dataclass(frozen=True)
class Window:
    """Sizes, steps and pads by spatial dimension; ``pad`` before the input, ``end`` after it."""

    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: tuple[int, ...]
    end: tuple[int, ...]

    def words(self) -> list[int]:
        """Words that conv, depthwise and pool have in common; see compiler/artifact/ops.py."""
        groups = ((self.size, 1), (self.out, 1), (self.kernel, 1), (self.stride, 1), (self.dilation, 1), (self.pad, 0))
        return [w for values, missing in groups for w in three(values, missing)]

    @property
    def is_pointwise(self) -> bool:
        """Whether pixel i of the output sees pixel i of the input and no other."""
        return set(self.kernel) == set(self.stride) == {1} and not any(self.pad) and self.size == self.out


def three(values: Sequence[int], missing: int) -> list[int]:
    """For d, h, w: dimensions that an operator lacks come first."""
    return [missing] * (AXES - len(values)) + list(values)


def _spatial(lo: Lowering, rank: int) -> None:
    if not 1 <= rank <= AXES:
        raise lo.unsupported(f"{rank} spatial dimensions, not 1 to {AXES}")


def _ints(lo: Lowering, name: str, rank: int, default: int) -> tuple[int, ...]:
    found = tuple(lo.attribute(name) or (default,) * rank)
    if len(found) != rank or any(v < (default and 1) for v in found):
        raise lo.unsupported(f"{name} {list(found)} for {rank} spatial dimensions")
    return found


def _pads(lo: Lowering, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    pads = tuple(lo.attribute("pads") or (0,) * (2 * rank))
    if len(pads) != 2 * rank or any(p < 0 for p in pads):
        raise lo.unsupported(f"pads {list(pads)} for {rank} spatial dimensions")
    return pads[:rank], pads[rank:]


def _halves(total: int, upper: bool) -> tuple[int, int]:
    """Pads before and after; the odd one after if ``upper``."""
    less, more = total // 2, total - total // 2
    return (less, more) if upper else (more, less)


def window(lo: Lowering, size: Sequence[int], kernel: Sequence[int]) -> Window:
    """The window of the node at hand, a Conv or a pool, over an input of ``size``."""
    rank = len(size)
    _spatial(lo, rank)
    stride, dilation = _ints(lo, "strides", rank, 1), _ints(lo, "dilations", rank, 1)
    (pad, end), auto, ceil = _pads(lo, rank), lo.attribute("auto_pad", "NOTSET"), bool(lo.attribute("ceil_mode", 0))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        out = [-(-n // s) for n, s in zip(size, stride, strict=True)]
        totals = [max((o - 1) * s + r - n, 0) for o, s, r, n in zip(out, stride, reach, size, strict=True)]
        pad, end = zip(*(_halves(t, auto == "SAME_UPPER") for t in totals), strict=True)
    elif auto in ("NOTSET", "VALID", ""):
        if auto == "VALID":
            pad = end = (0,) * rank
        out = [_steps(*a, ceil) for a in zip(size, pad, end, reach, stride, strict=True)]
    else:
        raise lo.unsupported(f"auto_pad {auto}")
    if min(out) < 1:
        raise lo.unsupported(f"a window of {reach} does not fit into {list(size)}")
    return Window(tuple(size), tuple(out), tuple(kernel), stride, dilation, tuple(pad), tuple(end))


def _steps(size: int, pad: int, end: int, reach: int, stride: int, ceil: bool) -> int:
    room = size + pad + end - reach
    out = (-(-room // stride) if ceil else room // stride) + 1
    # A last window that lies in the padding at the end alone is none.
    return out - 1 if ceil and (out - 1) * stride >= size + pad else out


def transposed_window(lo: Lowering, size: Sequence[int], kernel: Sequence[int]) -> tuple[Window, tuple[int, ...]]:
    """The window of a ConvTranspose in gather form, with the taps in reverse, and how far apart it spreads the input."""
    rank = len(size)
    _spatial(lo, rank)
    up, dilation, more = _ints(lo, "strides", rank, 1), _ints(lo, "dilations", rank, 1), _ints(lo, "output_padding", rank, 0)
    (pad, end), auto, wanted = _pads(lo, rank), lo.attribute("auto_pad", "NOTSET"), lo.attribute("output_shape")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    full = [s * (n - 1) + m + r for s, n, m, r in zip(up, size, more, reach, strict=True)]
    if auto in ("SAME_UPPER", "SAME_LOWER") and not wanted:
        wanted = [min(n * s, f) for n, s, f in zip(size, up, full, strict=True)]
    if auto == "VALID":
        pad = end = (0,) * rank
    if wanted:
        totals = [max(f - w, 0) for f, w in zip(full, list(wanted)[-rank:], strict=True)]
        pad, end = zip(*(_halves(t, auto == "SAME_UPPER") for t in totals), strict=True)
    out = list(wanted)[-rank:] if wanted else [f - p - e for f, p, e in zip(full, pad, end, strict=True)]
    if min(out) < 1:
        raise lo.unsupported(f"an output of {out}")
    ones = (1,) * rank
    before = tuple(r - 1 - p for r, p in zip(reach, pad, strict=True))
    return Window(tuple(size), tuple(out), tuple(kernel), ones, dilation, before, tuple(end)), up
