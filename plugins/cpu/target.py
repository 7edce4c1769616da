"""CpuTarget: lowering, packing, scheduling, memory, tactics and the check of the result, in this order."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from infc.compiler.artifact import program as encoding
from infc.compiler.artifact import watch as watch_section
from infc.compiler.artifact.layout import DTYPES, ISAS, PACKINGS, SPACES, SPLITS
from infc.compiler.artifact.ops import OPS
from infc.compiler.artifact.program import Operand, Program
from infc.compiler.artifact.watch import Watch
from infc.compiler.errors import UsageError
from infc.compiler.target import PRECISIONS, BuildContext, Compiled, Layer, ProgramGraph, Section
from infc.plugins.cpu import checker, memory, schedule, sparse, watch
from infc.plugins.cpu.access import word_of
from infc.plugins.cpu.lower import Lowered, lower
from infc.plugins.cpu.pack import Constants, Weights
from infc.plugins.cpu.tactics import Tactics
from infc.plugins.cpu.values import DYNAMIC, Buffer, Ref, Step

TECHNIQUES = {
    "views": "movement operators become strided views instead of copies",
    "in-place": "outputs lie on inputs that are not needed any more",
    "row-chains": "row-local steps follow each other without a barrier and reuse memory row by row",
    "winograd": "3 x 3 convolutions of many pixels take a quarter of the multiplications, by transforms",
    "half-chains": "16-bit floats are rounded where a chain of operators ends, not after each of them",
    "narrow-tables": "tables of which rows are taken lie in 16 bits, where those hold all their numbers",
    "sparse-weights": "weights with two zeros in four are stored without them, where that is faster",
    "column-schedule": "a second schedule divides products by columns where rows are few",
}
ROWS = "rows of most work"  # run-time scalar of a static program that chooses its schedule


@dataclass
class _Plan:
    """One program before its kernels are chosen."""

    graph: ProgramGraph
    lowered: Lowered
    schedules: list[schedule.Schedule]
    memory: memory.Plan


class CpuTarget:
    """See compiler.target.Target."""

    name = "cpu"
    pipeline = "cpu"
    techniques = tuple(TECHNIQUES)
    device = "cpu"
    precisions = PRECISIONS

    def compile(self, programs: Sequence[ProgramGraph], context: BuildContext) -> Compiled:
        """One PROGRAM a profile and instruction set, and the WEIGHTS they share.

        Raises UnsupportedError E04xx, naming the node, for what cannot run here; UsageError E0011 for an unknown instruction set.
        """
        for isa in context.isas:
            if isa not in ISAS:
                raise UsageError("E0011", f"no instruction set is named '{isa}'", where="--isa", hint=f"one of: {', '.join(ISAS)}")
        constants = Constants()
        plans = [_plan(graph, context.disabled, constants) for graph in programs]
        for plan in plans:
            _check_memory(plan)
        steps = [s for plan in plans for s in plan.lowered.steps]
        choices = [] if "sparse-weights" in context.disabled else sparse.choose(steps, _stopwatch(plans, context), context.force)
        weights = _weights(plans)
        data = weights.tobytes()
        sections: list[Section] = []
        layers: dict[str, list[Layer]] = {}
        for number, plan in enumerate(plans):
            for isa in context.isas:
                label = f"{plan.graph.profile}/{isa}"
                context.log(f"{label}: {len(plan.lowered.steps)} steps, arena {plan.memory.size / 1e6:.1f} MB")
                program = _assemble(plan, weights, number, ISAS[isa])
                spec = replace(context.interface, profiles=[plan.graph.profile.as_dict()])
                _choose(program, plan, Tactics(context, isa, spec, data))
                encoded = encoding.encode(program)
                checker.check(encoded, {k.name: k.op for k in context.kernels}, _producers(plan.lowered.steps))
                sections.append(Section("PROGRAM", encoded, label[:31], len(sections)))
                layers[label] = [_layer(step, made) for step, made in zip(plan.lowered.steps, program.steps, strict=True)]
        sections += _watch(plans, context)
        sections.append(Section("WEIGHTS", data))
        measured = [choice.record() for choice in choices if choice.dense is not None]
        return Compiled(sections, layers, _memory(plans, len(data)), sparse.notes(choices), measured=measured)


def _watch(plans: Sequence[_Plan], context: BuildContext) -> list[Section]:
    """Programs lie in the file profile by profile, each for all instruction sets."""
    isas = len(context.isas)
    found = [place for n, plan in enumerate(plans) for program in range(n * isas, (n + 1) * isas)
             for place in watch.places(plan.lowered.steps, context.watch, program, plan.lowered.prologue)]
    if not found:
        return []
    shares = {place.layer: share for place, share in found}
    taken = sorted(shares)
    about = list(context.watch.items())
    layers = [(about[n][0], about[n][1].low, about[n][1].high, shares[n]) for n in taken]
    placed = [replace(place, layer=taken.index(place.layer)) for place, _ in found]
    return [Section("WATCH", watch_section.encode(Watch(layers, placed, context.watch_every)), required=False)]


def _weights(plans: Sequence[_Plan]) -> Weights:
    weights = Weights()
    for plan in plans:
        weights.add(plan.lowered.steps)
    return weights


def _stopwatch(plans: Sequence[_Plan], context: BuildContext) -> sparse.Seconds | None:
    """What measures steps in runs of every profile, by the best instruction set of this machine and the cost model's choices."""
    runnable = [isa for isa in context.isas if ISAS[isa] <= ISAS[context.native_isa]]
    if not context.tune or not runnable:
        return None
    isa, untuned = max(runnable, key=lambda name: ISAS[name]), replace(context, tune=False)

    def seconds(steps: Sequence[Step]) -> list[float]:
        times: dict[int, float] = {}
        weights = _weights(plans)
        data = weights.tobytes()
        for number, plan in enumerate(plans):
            program = _assemble(plan, weights, number, ISAS[isa])
            tactics = Tactics(untuned, isa, replace(context.interface, profiles=[plan.graph.profile.as_dict()]), data)
            _choose(program, plan, tactics)
            own = {id(step): n for n, step in enumerate(plan.lowered.steps)}
            wanted = [step for step in steps if id(step) in own]
            times.update(zip(map(id, wanted), tactics.step_seconds(program, [own[id(step)] for step in wanted]), strict=True))
        return [times[id(step)] for step in steps]

    return seconds


def _plan(graph: ProgramGraph, disabled: frozenset[str], constants: Constants | None = None) -> _Plan:
    chains = "row-chains" not in disabled
    lowered = lower(graph, "views" not in disabled, "half-chains" not in disabled, "winograd" not in disabled,
                    "narrow-tables" not in disabled, constants)
    schedules = schedule.plan(lowered.steps, lowered.prologue, "column-schedule" not in disabled, chains)
    if len(schedules) > 1 and _chooser(lowered) == -1:
        lowered.symbols.append((ROWS, _rows(lowered.steps)))
    placed = memory.plan(lowered.steps, schedules, lowered.prologue, "in-place" not in disabled, chains)
    return _Plan(graph, lowered, schedules, placed)


def _check_memory(plan: _Plan) -> None:
    """Raises UsageError E0209 if this machine, which replays what it builds, cannot hold a context."""
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if plan.memory.size > has:
        raise UsageError("E0209", f"activations take {plan.memory.size / 1e9:.0f} GB, this machine has {has / 1e9:.0f} GB",
                         where=f"--profile {plan.graph.profile}", hint="give smaller sizes")


def _rows(steps: Sequence[Step]) -> int:
    """Rows of most of the work."""
    weighed: Counter[int] = Counter()
    for step in steps:
        weighed[step.rows] += int(schedule.cost(step) * 1e9)
    return max(weighed, key=lambda rows: weighed[rows], default=1)


def _chooser(lowered: Lowered) -> int:
    """The run-time scalar that most of the work's rows follow, or -1."""
    weighed: Counter[str] = Counter()
    for step in lowered.steps:
        if step.symbol:
            weighed[step.symbol] += int(schedule.cost(step) * 1e9)
    names = [n for n, _ in lowered.symbols]
    if ROWS in names:
        return names.index(ROWS)
    return names.index(max(weighed, key=lambda name: weighed[name])) if weighed else -1


def _choose(program: Program, plan: _Plan, tactics: Tactics) -> None:
    tactics.kernels(program, [s.op for s in plan.lowered.steps])
    tactics.schedules(program, _rows(plan.lowered.steps))


def _assemble(plan: _Plan, weights: Weights, profile: int, isa: int) -> Program:
    """The program with every kernel still unnamed."""
    symbols = [name for name, _ in plan.lowered.symbols]
    first, last = plan.schedules[0], plan.schedules[-1]

    def operand(ref: Ref) -> Operand:
        buffer = ref.buffer
        offset = buffer.index
        if buffer.space == "ARENA":
            offset = plan.memory.offsets[buffer] + ref.start
        elif buffer.space == "WEIGHTS":
            offset = weights.offsets[buffer] + ref.start
        else:
            assert ref.offset == 0
        return Operand(SPACES[buffer.space], DTYPES[ref.dtype], ref.dims, offset, ref.row_stride,
                       symbols.index(ref.symbol) if ref.symbol else -1, PACKINGS[ref.packing or buffer.packing])

    steps = [
        encoding.Step("", tuple(map(operand, s.inputs)), tuple(map(operand, s.outputs)), s.words, s.rows,
                      symbols.index(s.symbol) if s.symbol else -1, s.cols, (SPLITS[first.split[i]], SPLITS[last.split[i]]),
                      (int(first.barrier[i]), int(last.barrier[i])), s.name)
        for i, s in enumerate(plan.lowered.steps)]
    two = len(plan.schedules) > 1
    return Program(profile, isa, plan.lowered.symbols, steps, plan.memory.size, plan.lowered.prologue, len(plan.schedules),
                   _chooser(plan.lowered) if two else -1)


def _producers(steps: Sequence[Step]) -> list[list[frozenset[int]]]:
    """For each input of each step the steps that write its buffer."""
    writers: dict[Buffer, set[int]] = {}
    for i, step in enumerate(steps):
        for ref in step.outputs:
            writers.setdefault(ref.buffer, set()).add(i)
    made = {buffer: frozenset(found) for buffer, found in writers.items()}
    return [[made.get(ref.buffer, frozenset()) for ref in step.inputs] for step in steps]


def _layer(step: Step, made: encoding.Step) -> Layer:
    shapes = {"inputs": [list(r.dims) for r in step.inputs], "outputs": [list(r.dims) for r in step.outputs]}
    skips = {"sparse": True} if "sparse" in OPS[step.op].words and word_of(step.op, step.words, "sparse") else {}
    return Layer(step.name, step.op, made.kernel, step.refs[-1].dtype, step.fused, {**shapes, **skips})


def _memory(plans: Sequence[_Plan], weights: int) -> dict[str, object]:
    largest: dict[Buffer, str] = {}
    for plan in plans:
        for step in plan.lowered.steps:
            largest |= {ref.buffer: step.name for ref in step.outputs if ref.buffer.space in DYNAMIC}
    top = sorted(largest, key=lambda buffer: -buffer.nbytes)[:5]
    return {"weights": weights, "arena": {str(p.graph.profile): p.memory.size for p in plans},
            "largest": [{"layer": largest[b], "bytes": b.nbytes} for b in top]}
