"""Which steps are divided among threads, how, and where the threads must meet.

Schedule 0 is for many rows: everything by rows, so that chains of row-local steps run without a barrier. Schedule 1 is for few
rows: products by columns, attention by heads, so that no thread reads all weights. Both are free of any thread count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from infc.compiler.artifact.ops import OPS
from infc.plugins.cpu.access import is_row_local, may_lie_under_output, roles, word_of
from infc.plugins.cpu.regions import Region, regions
from infc.plugins.cpu.values import DYNAMIC, Buffer, Ref, Step, product

MIN_STEP = 1.5e-6  # seconds; a step below this is not worth a barrier
MIN_COLUMNS = 8  # panels from which columns give every thread something to do
MIN_PROGRAM = 10e-6  # seconds; a program below this is not worth waking a thread
PAST = 256  # tokens in a cache, which are not known
TRIPS = 16  # a loop's, where they are not known
FLOPS, BYTES, CALL = 100e9, 10e9, 20e-9  # what one thread does in a second; seconds a call


@dataclass(frozen=True)
class Access:
    """One operand of one step: ``local`` if a split by rows keeps row r to itself; ``in_place`` if an output may lie on it."""

    step: int
    ref: Ref
    writes: bool
    local: bool
    in_place: bool


@dataclass
class Schedule:
    """``split`` is a key of layout.SPLITS for each step, ``barrier`` whether threads meet before it."""

    split: list[str]
    barrier: list[bool]

    def regions(self, prologue: int) -> list[int]:
        """The number of the region of each step: steps between two meetings of all threads share one."""
        numbers, region = [], 0
        for i, barrier in enumerate(self.barrier):
            region += barrier or i == prologue
            numbers.append(region)
        return numbers


def accesses(steps: Sequence[Step]) -> list[list[Access]]:
    """Every step's accesses to memory that steps write."""
    result = []
    for i, step in enumerate(steps):
        inputs, outputs = roles(step.op, step.words)
        found = []
        for ref, role, writes in [*((r, o, False) for r, o in zip(step.inputs, inputs, strict=True)),
                                  *((r, o, True) for r, o in zip(step.outputs, outputs, strict=True))]:
            if ref.buffer.space in DYNAMIC:
                local = is_row_local(step.op, step.words, step.rows, role, ref.dims, ref.row_stride)
                found.append(Access(i, ref, writes, local, may_lie_under_output(step.op, step.words, role)))
        result.append(found)
    return result


def cost(step: Step) -> float:
    """Seconds one thread needs, roughly."""
    if step.op == "gemm":
        (rows, k), n = step.inputs[0].dims, step.outputs[0].dims[-1]
        return CALL + 2 * rows * k * n / FLOPS
    if step.op == "gemm_i8":
        k, n = word_of("gemm_i8", step.words, "k"), step.outputs[0].dims[-1]
        return CALL + 2 * step.rows * k * n / (4 * FLOPS)
    if step.op == "gemm_16":
        k, n = (word_of("gemm_16", step.words, name) for name in "kn")
        return CALL + 2 * step.rows * k * n / (FLOPS if step.inputs[0].dtype == "f32" else 2 * FLOPS)
    if step.op == "gemm_grouped":
        k, n = (word_of("gemm_grouped", step.words, name) for name in "kn")
        return CALL + 2 * step.rows * k * n / (3 * FLOPS)
    if step.op in ("conv", "winograd"):
        k, n = step.inputs[1].dims
        return CALL + 2 * step.rows * k * n / FLOPS
    if step.op == "depthwise":
        return CALL + 2 * step.rows * product(step.inputs[1].dims) / (FLOPS / 8)
    if step.op == "conv_i8":
        return CALL + 2 * step.rows * product(step.inputs[1].dims) / (4 * FLOPS)
    if step.op == "depthwise_i8":
        return CALL + 2 * step.rows * product(step.inputs[1].dims) / (FLOPS / 3)
    if step.op == "matmul":
        m, n, k = step.words[:3]
        return CALL + 2 * step.rows * m * n * k / FLOPS
    if step.op == "attention":
        heads, _, dim, v_dim = step.words[:4]
        keys = word_of("attention", step.words, "kv_len") or step.rows
        return CALL + 2 * step.rows * keys * heads * (dim + v_dim) / (FLOPS / 2)
    if step.op == "cache_attention":
        heads, _, dim, v_dim = step.words[1:5]
        return CALL + 2 * step.rows * PAST * heads * (dim + v_dim) / (FLOPS / 8)
    if step.op == "recurrent":
        return CALL + 2 * word_of("recurrent", step.words, "seq") * step.rows * product(step.inputs[1].dims[1:]) / (FLOPS / 4)
    size = sum(product(r.dims) for r in step.outputs) + sum(product(r.dims) for r in step.inputs if r.buffer.space in DYNAMIC)
    return CALL + 4 * size / BYTES


def plan(steps: Sequence[Step], prologue: int, columns: bool = True, chains: bool = True) -> list[Schedule]:
    """One schedule, or two where they differ. Without ``columns``: schedule 0 alone; without ``chains``: divided steps that share
    data always meet."""
    touched = accesses(steps)
    found = regions_of(steps)
    schedules = []
    for few in (False, True) if columns else (False,):
        split = _splits(steps, found, prologue, few)
        schedules.append(Schedule(split, _barriers(steps, found, touched, split, prologue, chains)))
    return schedules[:1] if len(schedules) == 2 and schedules[0].split == schedules[1].split else schedules


def regions_of(steps: Sequence[Step]) -> list[Region]:
    return regions([(s.op, s.words) for s in steps])


def trips(step: Step) -> int:
    """Iterations of a repeat, roughly."""
    count = step.inputs[0].buffer.data if word_of("repeat", step.words, "has_trip_count") else None
    return TRIPS if count is None else int(count.reshape(-1)[0])


def _total(steps: Sequence[Step], found: Sequence[Region], costs: Sequence[float], prologue: int) -> float:
    """Seconds of a run."""
    weighed = list(costs)
    for region in found:
        if region.repeats:
            for i in range(region.control, region.end):
                weighed[i] *= trips(steps[region.control])
    return sum(weighed[prologue:])


def _splits(steps: Sequence[Step], found: Sequence[Region], prologue: int, few: bool) -> list[str]:
    costs = [cost(s) for s in steps]
    split = ["SERIAL"] * len(steps)
    if _total(steps, found, costs, prologue) < MIN_PROGRAM:
        return split
    for i in range(prologue, len(steps)):
        if costs[i] >= MIN_STEP:
            split[i] = _best(steps[i], few)
    # A small step between steps of the same rows costs no barrier if it is divided as they are.
    for order in (range(prologue + 1, len(steps)), range(len(steps) - 2, prologue - 1, -1)):
        for i in order:
            near = i - order.step
            if split[i] == "SERIAL" and split[near] == "ROWS" and _by_rows(steps[i]) and steps[i].rows_key == steps[near].rows_key:
                split[i] = "ROWS"
    for region in reversed(found):  # inner ones first
        if set(split[region.control + 1 : region.end]) - {"SERIAL"}:
            split[region.control] = "ROWS"
    return split


def _best(step: Step, few: bool) -> str:
    by_columns = bool(OPS[step.op].cols) and step.cols > 1
    if by_columns and (few or not _by_rows(step) or _is_mostly_weights(step)):
        return "COLS"
    return "ROWS" if _by_rows(step) else "SERIAL"


def _is_mostly_weights(step: Step) -> bool:
    """Whether a convolution of few pixels reads so many weights that each thread should read only its columns'. It meets the other
    threads before it anyway."""
    if step.op not in ("conv", "conv_i8", "winograd") or step.cols < MIN_COLUMNS:
        return False
    return product(step.inputs[1].dims) > 4 * (product(step.inputs[0].dims) + product(step.outputs[0].dims))


def _by_rows(step: Step) -> bool:
    return bool(OPS[step.op].rows) and step.rows > 1


def _barriers(steps: Sequence[Step], found: Sequence[Region], touched: Sequence[Sequence[Access]], split: Sequence[str],
              prologue: int, chains: bool) -> list[bool]:
    barrier = [False] * (len(steps) + 1)
    inside: dict[int, range] = {}  # by step, the region that thread 0 runs alone: others meet all of it in front of its control
    for region in found:
        if split[region.control] != "SERIAL":
            for i in (region.control, *region.boundaries):
                barrier[i] = True
        elif region.control not in inside:
            around = range(region.control, region.end)
            inside |= dict.fromkeys(around, around)
    since = _Since(steps, split, chains)
    for i in range(prologue, len(steps)):
        ahead: Iterable[Access] = touched[i]
        if i in inside:
            ahead = chain.from_iterable(touched[j] for j in inside[i]) if i == inside[i].start else ()
        if barrier[i] or any(since.crosses(b) for b in ahead):
            barrier[i] = True
            since = _Since(steps, split, chains)
        for access in touched[i]:
            since.add(access)
    return barrier[: len(steps)]


class _Since:
    """Accesses since the last barrier, by buffer, by whether they write and whether thread 0 makes them; one of each kind."""

    def __init__(self, steps: Sequence[Step], split: Sequence[str], chains: bool) -> None:
        self._steps, self._split, self._chains = steps, split, chains
        self._found: dict[tuple[Buffer, bool, bool], dict[tuple[object, ...], Access]] = {}

    def add(self, access: Access) -> None:
        step, split, ref = self._steps[access.step], self._split[access.step], access.ref
        kind = (split, step.rows_key, access.local, ref.start, ref.pitch, ref.row_bytes, ref.dims[0])
        self._found.setdefault((ref.buffer, access.writes, split == "SERIAL"), {})[kind] = access

    def crosses(self, b: Access) -> bool:
        """Whether a thread may meet in the access what another one did. Two reads never do, nor what one thread does."""
        alone = (False,) if self._split[b.step] == "SERIAL" else (False, True)
        return any(_crosses(self._steps, self._split, a, b, self._chains) for writes in ((True, False) if b.writes else (True,))
                   for serial in alone for a in self._found.get((b.ref.buffer, writes, serial), {}).values())


def _crosses(steps: Sequence[Step], split: Sequence[str], a: Access, b: Access, chains: bool) -> bool:
    """Whether what one thread does to a buffer in one step may meet what another does to it in a later one, where one writes and
    not both are thread 0's."""
    if columns_apart(a.ref, b.ref):
        return False
    rows = chains and split[a.step] == split[b.step] == "ROWS" and steps[a.step].rows_key == steps[b.step].rows_key
    return not (rows and a.local and b.local and rows_aligned(a.ref, b.ref))


def rows_aligned(a: Ref, b: Ref) -> bool:
    """Whether row r of one can only meet row r of the other."""
    return a.pitch == b.pitch and max(a.start + a.row_bytes, b.start + b.row_bytes) - min(a.start, b.start) <= a.pitch


def columns_apart(a: Ref, b: Ref) -> bool:
    """Whether the two are disjoint: one after the other, or side by side in rows of one pitch."""
    if a.start + a.span <= b.start or b.start + b.span <= a.start:
        return True
    first, second = (a, b) if a.start <= b.start else (b, a)
    return rows_aligned(a, b) and first.start + first.row_bytes <= second.start
