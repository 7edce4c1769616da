"""Two plots as SVG, without a library and without anything from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _LEFT, _BAR = 860, 300, 18
_HEIGHT, _MARGIN = 420, 56
_SHORT = 44  # characters of a label


@dataclass(frozen=True)
class Point:
    """A step: operations a byte, operations a second, and its name."""

    intensity: float
    speed: float
    label: str


def bars(rows: Sequence[tuple[str, float, str]], title: str) -> str:
    """Horizontal bars: label, length, and what is written behind it."""
    most = max((length for _, length, _ in rows), default=0.0) or 1.0
    height = _BAR * len(rows) + 8
    lines = [_open(height, title)]
    for n, (label, length, text) in enumerate(rows):
        y, width = 4 + _BAR * n, (_WIDTH - _LEFT - 110) * length / most
        lines += [f'<text x="{_LEFT - 6}" y="{y + 13}" text-anchor="end">{_label(label)}<title>{escape(label)}</title></text>',
                  f'<rect x="{_LEFT}" y="{y + 2}" width="{max(width, 1):.1f}" height="{_BAR - 4}"/>',
                  f'<text x="{_LEFT + max(width, 1) + 5:.1f}" y="{y + 13}">{escape(text)}</text>']
    return "".join([*lines, "</svg>"])


def roofline(points: Sequence[Point], peak: float, bandwidth: float, title: str) -> str:
    """Both axes logarithmic. ``peak`` in operations a second, ``bandwidth`` in bytes a second."""
    shown = [p for p in points if p.intensity > 0 and p.speed > 0]
    x = _Axis([*(p.intensity for p in shown), peak / bandwidth], _MARGIN, _WIDTH - 20)
    y = _Axis([*(p.speed for p in shown), peak], _HEIGHT - 40, 20)
    lines = [_open(_HEIGHT, title)]
    for at in x.ticks():
        lines.append(f'<path class="grid" d="M{x(at):.1f} 20V{_HEIGHT - 40}"/>'
                     f'<text x="{x(at):.1f}" y="{_HEIGHT - 24}" text-anchor="middle">{at:g}</text>')
    for at in y.ticks():
        lines.append(f'<path class="grid" d="M{_MARGIN} {y(at):.1f}H{_WIDTH - 20}"/>'
                     f'<text x="{_MARGIN - 5}" y="{y(at) + 4:.1f}" text-anchor="end">{at / 1e9:g}</text>')
    knee = peak / bandwidth
    start = max(x.least, y.least / bandwidth)
    lines.append(f'<path class="roof" d="M{x(start):.1f} {y(start * bandwidth):.1f}L{x(knee):.1f} {y(peak):.1f}H{_WIDTH - 20}"/>')
    lines += [f'<circle cx="{x(p.intensity):.1f}" cy="{y(p.speed):.1f}" r="4"><title>{escape(p.label)}: {p.speed / 1e9:.3g} Gop/s, '
              f'{p.intensity:.3g} operations a byte</title></circle>' for p in shown]
    lines.append(f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">operations a byte</text>'
                 f'<text x="{_MARGIN}" y="12">Gop/s</text>')
    return "".join([*lines, "</svg>"])


class _Axis:
    """Logarithmic, in whole powers of ten."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        self._span, self._start, self._end = max(high - self._low, 1), start, end

    @property
    def least(self) -> float:
        return 10.0 ** self._low

    def __call__(self, value: float) -> float:
        return self._start + (self._end - self._start) * (math.log10(value) - self._low) / self._span

    def ticks(self) -> list[float]:
        return [10.0 ** (self._low + n) for n in range(self._span + 1)]


def _open(height: int, title: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img" aria-label="{escape(title)}">'


def _label(text: str) -> str:
    return escape(text if len(text) <= _SHORT else f"…{text[1 - _SHORT:]}")
