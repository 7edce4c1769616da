"""The PROGRAM section: the steps of one profile for one instruction set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from infc.compiler.artifact.cursor import Cursor, Strings, StringTable
from infc.compiler.artifact.layout import (
    ARENA_ALIGN,
    DTYPE_SIZES,
    ISAS,
    MAX_RANK,
    MAX_SCHEDULES,
    OPERAND,
    PACKINGS,
    PROGRAM_HEADER,
    PROGRAM_KERNEL,
    PROGRAM_SYMBOL,
    SPACES,
    SPLITS,
    STEP,
)

MAX_SYMBOLS = 32
MAX_OPERANDS = 16


@dataclass(frozen=True)
class Operand:
    """``space``, ``dtype`` and ``packing`` are the codes of layout.py; ``offset`` in bytes, or the index of the input or output."""

    space: int
    dtype: int
    dims: tuple[int, ...]
    offset: int
    row_stride: int
    rows_symbol: int = -1
    packing: int = 0


@dataclass(frozen=True)
class Step:
    """``split`` and ``barrier`` have one entry a schedule; ``words`` follow ops.py."""

    kernel: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    words: tuple[int, ...]
    rows: int
    rows_symbol: int = -1
    cols: int = 1
    split: tuple[int, int] = (0, 0)
    barrier: tuple[int, int] = (0, 0)
    name: str = ""


@dataclass
class Program:
    """``symbols`` are (name, bound); ``isa`` is a code of layout.ISAS."""

    profile: int
    isa: int
    symbols: Sequence[tuple[str, int]]
    steps: Sequence[Step]
    arena_size: int
    prologue_steps: int = 0
    schedule_count: int = 1
    schedule_symbol: int = -1
    schedule_min_rows: int = 0
    row_block: tuple[int, int] = (0, 0)
    kernels: list[str] = field(default_factory=list)  # in order of first use; filled in by encode and decode


def encode(program: Program) -> bytes:
    """The bytes of a PROGRAM section."""
    strings = StringTable()
    strings.add("")  # the table of a program without steps is not empty
    program.kernels = list(dict.fromkeys(step.kernel for step in program.steps))
    kernel_index = {name: i for i, name in enumerate(program.kernels)}
    symbols = np.zeros(len(program.symbols), PROGRAM_SYMBOL.dtype)
    for record, (name, bound) in zip(symbols, program.symbols, strict=True):
        record["name"], record["max"] = strings.add(name), bound
    kernels = np.zeros(len(program.kernels), PROGRAM_KERNEL.dtype)
    kernels["name"] = [strings.add(name) for name in program.kernels]
    operands = [operand for step in program.steps for operand in (*step.inputs, *step.outputs)]
    words = [word for step in program.steps for word in step.words]
    steps = np.zeros(len(program.steps), STEP.dtype)
    first_operand = first_word = 0
    for record, step in zip(steps, program.steps, strict=True):
        record["kernel"] = kernel_index[step.kernel]
        record["input_count"], record["output_count"] = len(step.inputs), len(step.outputs)
        record["first_operand"], record["first_word"], record["word_count"] = first_operand, first_word, len(step.words)
        record["rows_symbol"], record["rows"], record["cols"] = step.rows_symbol, step.rows, step.cols
        record["split"], record["barrier"] = step.split, step.barrier
        record["name"] = strings.add(step.name)
        first_operand += len(step.inputs) + len(step.outputs)
        first_word += len(step.words)
    header = np.zeros((), PROGRAM_HEADER.dtype)
    header["profile"], header["isa"] = program.profile, program.isa
    header["symbol_count"], header["kernel_count"], header["step_count"] = len(symbols), len(kernels), len(steps)
    header["operand_count"], header["word_count"], header["strings_size"] = len(operands), len(words), len(strings.data)
    header["arena_size"], header["prologue_steps"] = program.arena_size, program.prologue_steps
    header["schedule_count"], header["schedule_symbol"] = program.schedule_count, program.schedule_symbol
    header["schedule_min_rows"], header["row_block"] = program.schedule_min_rows, program.row_block
    return b"".join((header.tobytes(), symbols.tobytes(), kernels.tobytes(), steps.tobytes(), _operands(operands).tobytes(),
                     np.array(words, "<u4").tobytes(), bytes(strings.data)))


def _operands(operands: Sequence[Operand]) -> np.ndarray:
    records = np.zeros(len(operands), OPERAND.dtype)
    records["dims"] = 1
    for record, operand in zip(records, operands, strict=True):
        record["space"], record["dtype"], record["packing"] = operand.space, operand.dtype, operand.packing
        record["rank"], record["rows_symbol"] = len(operand.dims), operand.rows_symbol
        record["offset"], record["row_stride"] = operand.offset, operand.row_stride
        record["dims"][: len(operand.dims)] = operand.dims
    return records


def decode(data: memoryview | bytes, base: int = 0) -> Program:
    """Raises ArtifactError E0606; ``base`` is the section's offset in its file."""
    cursor = Cursor(memoryview(data), "E0606", "section PROGRAM", base)
    header = cursor.one(PROGRAM_HEADER)
    symbol_count = int(header["symbol_count"])
    cursor.require(symbol_count <= MAX_SYMBOLS, f"{symbol_count} symbols, at most {MAX_SYMBOLS} are allowed")
    cursor.require(int(header["isa"]) in ISAS.values(), f"unknown instruction set {header['isa']}")
    symbols = cursor.array(PROGRAM_SYMBOL, symbol_count)
    kernels = cursor.array(PROGRAM_KERNEL, int(header["kernel_count"]))
    steps = cursor.array(STEP, int(header["step_count"]))
    operands = cursor.array(OPERAND, int(header["operand_count"]))
    words = cursor.words(int(header["word_count"]))
    strings = cursor.strings(int(header["strings_size"]))
    cursor.end()
    names = [strings[int(k)] for k in kernels["name"]]
    schedules, chooser = int(header["schedule_count"]), int(header["schedule_symbol"])
    cursor.require(1 <= schedules <= MAX_SCHEDULES, f"{schedules} schedules")
    cursor.require(-1 <= chooser < symbol_count, f"unknown symbol {chooser}")
    cursor.require(int(header["arena_size"]) % ARENA_ALIGN == 0, f"arena of {header['arena_size']} bytes")
    cursor.require(int(header["prologue_steps"]) <= len(steps), "a prologue longer than the program")
    values = [_operand(cursor, record, symbol_count) for record in operands]
    return Program(
        profile=int(header["profile"]), isa=int(header["isa"]),
        symbols=[(strings[int(s["name"])], int(s["max"])) for s in symbols],
        steps=[_step(cursor, record, names, values, words, strings, symbol_count) for record in steps],
        arena_size=int(header["arena_size"]), prologue_steps=int(header["prologue_steps"]), schedule_count=schedules,
        schedule_symbol=chooser, schedule_min_rows=int(header["schedule_min_rows"]),
        row_block=(int(header["row_block"][0]), int(header["row_block"][1])), kernels=names)


def _step(cursor: Cursor, record: np.void, kernels: list[str], operands: list[Operand], words: np.ndarray, strings: Strings,
          symbol_count: int) -> Step:
    inputs, outputs, first = int(record["input_count"]), int(record["output_count"]), int(record["first_operand"])
    cursor.require(int(record["kernel"]) < len(kernels), f"step of unknown kernel {record['kernel']}")
    end = first + inputs + outputs
    cursor.require(inputs + outputs <= MAX_OPERANDS and end <= len(operands), "a step's operands leave the table")
    start, count = int(record["first_word"]), int(record["word_count"])
    cursor.require(start + count <= len(words), "a step's words leave the table")
    symbol = int(record["rows_symbol"])
    cursor.require(-1 <= symbol < symbol_count, f"unknown symbol {symbol}")
    split = (int(record["split"][0]), int(record["split"][1]))
    cursor.require(set(split) <= set(SPLITS.values()), f"unknown split {split}")
    return Step(kernels[int(record["kernel"])], tuple(operands[first : first + inputs]),
                tuple(operands[first + inputs : end]), tuple(map(int, words[start : start + count])),
                int(record["rows"]), symbol, int(record["cols"]), split, (int(record["barrier"][0]), int(record["barrier"][1])),
                strings[int(record["name"])])


def _operand(cursor: Cursor, record: np.void, symbol_count: int) -> Operand:
    space, dtype, packing, rank = (int(record[n]) for n in ("space", "dtype", "packing", "rank"))
    symbol = int(record["rows_symbol"])
    cursor.require(space in SPACES.values() and dtype in DTYPE_SIZES and packing in PACKINGS.values(),
                   f"operand of unknown space {space}, type {dtype} or packing {packing}")
    cursor.require(1 <= rank <= MAX_RANK, f"operand of rank {rank}")
    cursor.require(-1 <= symbol < symbol_count, f"unknown symbol {symbol}")
    dims = tuple(map(int, record["dims"][:rank]))
    cursor.require(min(dims) > 0, "operand with a dimension of zero")
    return Operand(space, dtype, dims, int(record["offset"]), int(record["row_stride"]), symbol, packing)
