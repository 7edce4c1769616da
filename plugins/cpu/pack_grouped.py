"""Layout of weights with scales in groups along K that the kernels of op ``gemm_grouped`` read
(runtime/src/kernels/gemm_grouped/gemm_grouped.h)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infc.plugins.cpu.pack import PANEL

GROUPS = (32, 64, 128)
UNIT = 32  # of K
PARTS = 16  # of a number, that fine zeros count
QUAD, KEPT = 4, 2  # of so many weights along K a sparse one has so many that count


@dataclass(frozen=True)
class Grouped:
    """A weight [K, N] of ``bits`` 4 or 8 as uint8, scales f32 [G, N], and zeros uint8 [G, N] where they are not all the middle;
    ``fine`` ones, of 4 bits, count parts."""

    w: np.ndarray
    scale: np.ndarray
    zero: np.ndarray | None
    bits: int
    fine: bool = False

    @property
    def group(self) -> int:
        return int(self.w.shape[0] // self.scale.shape[0])

    @property
    def wide(self) -> bool:
        """Whether f16 does not hold the scales."""
        with np.errstate(over="ignore"):
            return not np.array_equal(self.scale.astype(np.float16).astype(np.float32), self.scale)

    @property
    def zeros(self) -> str:
        """Of GROUPED_ZEROS."""
        return "none" if self.zero is None else "sixteenths" if self.fine else "bytes"


def grouped(w: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, fine: bool = False) -> Grouped:
    """A weight of int4, uint4, int8 or uint8 with its scales and zeros [G, N]; of uint4 they may be ``fine``."""
    bits = 4 if "4" in w.dtype.name else 8
    middle = 1 << (bits - 1)
    shift = 0 if w.dtype.name.startswith("u") else middle
    if fine:
        return Grouped(_unsigned(w, shift), np.asarray(scale, np.float32), zero, bits, True)
    zeros = np.full(scale.shape, shift, np.uint8) if zero is None else _unsigned(zero, shift)
    return Grouped(_unsigned(w, shift), np.asarray(scale, np.float32), None if (zeros == middle).all() else zeros, bits)


def _unsigned(values: np.ndarray, shift: int) -> np.ndarray:
    return (values.astype(np.int8).view(np.uint8) if shift else values.astype(np.uint8)) + np.uint8(shift)


def is_sparse(g: Grouped) -> bool:
    """Whether it has 4 bits, zeros that are whole numbers, and the pattern 2:4 along K."""
    if g.bits != 4 or g.fine:
        return False
    zero: np.ndarray | int = 8 if g.zero is None else g.zero[:, None]
    counts = (g.w.reshape(-1, g.group, g.w.shape[1]) != zero).reshape(-1, QUAD, g.w.shape[1])
    return bool((np.count_nonzero(counts, axis=1) <= KEPT).all())


def pack(g: Grouped, sparse: bool = False) -> np.ndarray:
    """Panels of 32 columns as bytes [panels, B]; zeros in columns beyond N. ``sparse``: for what ``is_sparse``."""
    groups, n = g.scale.shape
    panels = -(-n // PANEL)
    floats = np.float32 if g.wide else np.float16
    parts = [_panels(g.scale.astype(floats), panels).view(np.uint8)]
    if g.zero is not None:
        parts.append(_panels(g.zero, panels))
    parts.append(_sparse(g, panels) if sparse else _dense(g, panels))
    return np.concatenate([p.reshape(panels, groups, -1) for p in parts], axis=2).reshape(panels, -1)


def undone(packed: np.ndarray, bits: int, wide: bool, zeros: bool, group: int, n: int) -> Grouped:
    """What ``pack`` has packed densely, zeros being whole numbers."""
    panels, scale_bytes, lines = packed.shape[0], PANEL * (4 if wide else 2), group * bits // 32
    parts = packed.reshape(panels, -1, scale_bytes + PANEL * zeros + lines * QUAD * PANEL)
    scale = np.ascontiguousarray(parts[:, :, :scale_bytes]).view(np.float32 if wide else np.float16).astype(np.float32)
    dwords = parts[:, :, scale_bytes + PANEL * zeros :].reshape(panels, -1, PANEL, QUAD)
    if bits == 4:
        dwords = np.stack([dwords & 15, dwords >> 4], axis=2)
    w = np.moveaxis(dwords, -1, -2).reshape(panels, -1, PANEL)
    zero = _columns(parts[:, :, scale_bytes : scale_bytes + PANEL], n) if zeros else None
    return Grouped(_columns(w, n), _columns(scale, n), zero, bits)


def _columns(panels: np.ndarray, n: int) -> np.ndarray:
    """[panels, R, 32] as [R, N]."""
    return panels.transpose(1, 0, 2).reshape(panels.shape[1], -1)[:, :n]


def _panels(rows: np.ndarray, panels: int) -> np.ndarray:
    """[R, N] as [panels, R, 32]."""
    padded = np.zeros((rows.shape[0], panels * PANEL), rows.dtype)
    padded[:, : rows.shape[1]] = rows
    return np.ascontiguousarray(padded.reshape(-1, panels, PANEL).transpose(1, 0, 2))


def _dense(g: Grouped, panels: int) -> np.ndarray:
    lines = _panels(g.w, panels).reshape(panels, -1, QUAD, PANEL).transpose(0, 1, 3, 2)  # dwords of four weights a column
    if g.bits == 8:
        return np.ascontiguousarray(lines)
    return np.ascontiguousarray(lines[:, 0::2] | lines[:, 1::2] << 4)


def _sparse(g: Grouped, panels: int) -> np.ndarray:
    """Units of 32 of K as three lines: codes, then values of steps 0 and 1, and of steps 2 and 3."""
    zero = np.full(g.scale.shape, 8, np.uint8) if g.zero is None else g.zero
    quads = g.w.reshape(-1, QUAD, g.w.shape[1])
    counts = quads != np.repeat(zero, g.group // QUAD, axis=0)[:, None]
    kept = np.sort(np.argsort(~counts, axis=1, kind="stable")[:, :KEPT], axis=1).astype(np.uint8)
    values = np.take_along_axis(quads, kept, axis=1)

    def steps(x: np.ndarray) -> np.ndarray:  # [panels, units, 4 steps, 32, 4 bytes]
        parts = _panels(x.reshape(-1, x.shape[2]), panels).reshape(panels, -1, 4, 4, PANEL)
        return parts.transpose(0, 1, 2, 4, 3)

    places, stored = steps(kept), steps(values)
    lines = np.empty((panels, places.shape[1], 3, PANEL, 4), np.uint8)
    lines[:, :, 0] = places[:, :, 0] | places[:, :, 1] << 2 | places[:, :, 2] << 4 | places[:, :, 3] << 6
    lines[:, :, 1] = stored[:, :, 0] | stored[:, :, 1] << 4
    lines[:, :, 2] = stored[:, :, 2] | stored[:, :, 3] << 4
    return lines
