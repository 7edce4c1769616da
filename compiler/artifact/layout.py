"""The byte layout of an artifact: every offset in the project is written here and nowhere else.

``python -m infc.compiler.artifact.layout`` prints ``runtime/src/layout.h``; a test holds the committed copy
against it. All integers are little-endian, structures have no implicit padding, sections start at multiples
of 64 bytes (WEIGHTS at 4096).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MAGIC = b"INFC\r\n\x1a\n"
VERSION_MAJOR = 1
VERSION_MINOR = 1
SECTION_ALIGN = 64
WEIGHTS_ALIGN = 4096
ARENA_ALIGN = 64
MAX_RANK = 8
NO_STRING = 0xFFFFFFFF

# Section kinds. Values are append-only: never renumber, never reuse.
SECTION_KINDS = {
    "META": 1,  # JSON: source, options, versions, layers
    "IO": 2,
    "STATE": 3,  # what a run leaves for the next: the layers of a cache of keys and values
    "PROGRAM": 4,  # one a profile and ISA
    "WEIGHTS": 5,
    "TOKENIZER": 6,  # an archive of the model's own tokenizer files
    "GOLDEN": 7,
    "REPORT": 8,  # JSON
    "TENSORRT": 9,  # a serialised engine, with the set of SMs it serves
    "GENERATION": 10,  # how tokens go in, come out and become text
    "WATCH": 11,  # which activations are held against the ranges of calibration
}
SECTION_REQUIRED = 1  # flag: a reader that does not know this kind must refuse the file

# Element types carry ONNX's TensorProto.DataType numbers. Those of 4 and 2 bits lie one element a byte, in its low bits; what
# the other bits hold is of no account.
DTYPES = {"f32": 1, "u8": 2, "i8": 3, "u16": 4, "i16": 5, "i32": 6, "i64": 7, "bool": 9, "f16": 10, "f64": 11, "u32": 12, "u64": 13,
          "bf16": 16, "f8e4m3fn": 17, "f8e4m3fnuz": 18, "f8e5m2": 19, "f8e5m2fnuz": 20, "u4": 21, "i4": 22, "f4e2m1": 23,
          "f8e8m0": 24, "u2": 25, "i2": 26}
DTYPE_SIZES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2, **dict.fromkeys(range(17, 27), 1)}

# Instruction sets, from least to most demanding; a program of a level runs on that level and above.
ISAS = {"scalar": 0, "x86-64-v3": 3, "x86-64-v4": 4}

# How an operand's elements lie in memory.
PACKINGS = {
    "ROW_MAJOR": 0,
    # B of a matrix product, [K, N] f32: panels of 32 columns, each panel K rows of 32 consecutive floats; the
    # last panel is padded with zeros. Element (k, n) is at ((n / 32) * K + k) * 32 + n % 32.
    "F32_K1N32": 1,
}

SPACES = {"ARENA": 0, "WEIGHTS": 1, "INPUT": 2, "OUTPUT": 3}

# How a step's work is divided among threads.
SPLITS = {
    "SERIAL": 0,  # thread 0 does all of it
    "ROWS": 1,  # rows of the leading dimension; every ROWS step over the same extent has the same boundaries
    "COLS": 2,  # the operator's own second axis: panels of a gemm, heads of an attention
}

# A program holds one or two schedules over the same steps; the loader picks by rows per thread.
MAX_SCHEDULES = 2

# Makers of TENSORRT engines: an engine of one is nothing to the other.
TENSORRT_FLAVOURS = {"tensorrt": 0, "tensorrt-rtx": 1}
MAX_SMS = 16

DIM_EXACT = 0  # the caller's dimension must equal the profile's
DIM_PADS = 1  # the caller may use any size from 1 to the profile's; what is not used is not computed

TENSOR_OPTIONAL = 1  # flag: an unbound input reads as `fill`


@dataclass(frozen=True)
class Struct:
    """A C structure: ``fields`` are (name, numpy type, count, comment); count 0 is a scalar."""

    name: str
    doc: str
    fields: tuple[tuple[str, str, int, str], ...]

    @property
    def dtype(self) -> np.dtype:
        return np.dtype([(n, t, (c,)) if c else (n, t) for n, t, c, _ in self.fields])

    @property
    def size(self) -> int:
        return self.dtype.itemsize


HEADER = Struct("infc_header", "The first 64 bytes of a file.", (
    ("magic", "u1", 8, "INFC\\r\\n\\x1a\\n"),
    ("version_major", "<u2", 0, "readers refuse another major"),
    ("version_minor", "<u2", 0, "readers accept any minor"),
    ("header_size", "<u4", 0, "64"),
    ("required_features", "<u8", 0, "a bit the reader does not know: refuse"),
    ("file_size", "<u8", 0, "of the whole file"),
    ("section_table_offset", "<u8", 0, ""),
    ("section_count", "<u4", 0, ""),
    ("table_crc32", "<u4", 0, "of the section table"),
    ("header_crc32", "<u4", 0, "of this header with this field zero"),
    ("reserved", "<u4", 3, "zero"),
))

SECTION = Struct("infc_section", "One entry of the section table.", (
    ("kind", "<u4", 0, "INFC_SECTION_*"),
    ("flags", "<u4", 0, "INFC_SECTION_REQUIRED"),
    ("offset", "<u8", 0, "from the start of the file"),
    ("size", "<u8", 0, "bytes"),
    ("crc32", "<u4", 0, "of the section's bytes"),
    ("ordinal", "<u4", 0, "tells sections of one kind apart"),
    ("name", "u1", 32, "NUL-padded, for people"),
))

IO_HEADER = Struct("infc_io_header", "Start of IO; arrays follow in this order: tensors (inputs, then outputs), "
                   "symbols, bounds (profile-major, one u4 a symbol), strings.", (
    ("input_count", "<u4", 0, ""),
    ("output_count", "<u4", 0, ""),
    ("symbol_count", "<u4", 0, "dimensions that vary, named; at most 16"),
    ("profile_count", "<u4", 0, "profiles, from smallest to largest"),
    ("strings_size", "<u4", 0, "bytes of NUL-terminated UTF-8; names are offsets into them"),
    ("reserved", "<u4", 3, "zero"),
))

IO_TENSOR = Struct("infc_io_tensor", "An input or output.", (
    ("name", "<u4", 0, "offset into strings"),
    ("dtype", "u1", 0, "INFC_DTYPE_*"),
    ("rank", "u1", 0, "at most 8"),
    ("flags", "u1", 0, "INFC_TENSOR_OPTIONAL"),
    ("has_range", "u1", 0, "1: integer inputs are held against range_min and range_max at every run"),
    ("range_min", "<i8", 0, "inclusive"),
    ("range_max", "<i8", 0, "inclusive"),
    ("fill", "<i8", 0, "value of an optional input that is not bound"),
    ("dims", "<i4", 8, "constant, or -(symbol + 1)"),
))

IO_SYMBOL = Struct("infc_io_symbol", "A named dimension.", (
    ("name", "<u4", 0, "offset into strings"),
    ("policy", "<u4", 0, "INFC_DIM_EXACT or INFC_DIM_PADS"),
))

PROGRAM_HEADER = Struct("infc_program_header", "Start of PROGRAM; arrays follow in this order: symbols, kernels, steps, "
                        "operands, words, strings.", (
    ("profile", "<u4", 0, "index of the profile it serves"),
    ("isa", "<u4", 0, "INFC_ISA_*: the least that its kernels need"),
    ("symbol_count", "<u4", 0, "run-time scalars; the first ones are IO's symbols, in order; at most 32"),
    ("kernel_count", "<u4", 0, ""),
    ("step_count", "<u4", 0, ""),
    ("operand_count", "<u4", 0, ""),
    ("word_count", "<u4", 0, ""),
    ("strings_size", "<u4", 0, ""),
    ("arena_size", "<u8", 0, "bytes, a multiple of 64"),
    ("prologue_steps", "<u4", 0, "leading steps the calling thread runs alone, before a schedule is chosen"),
    ("schedule_count", "<u4", 0, "1 or 2"),
    ("schedule_symbol", "<i4", 0, "symbol that chooses the schedule, or -1"),
    ("schedule_min_rows", "<u4", 0, "schedule 0 from this many rows a thread on, else schedule 1"),
    ("row_block", "<u4", 2, "per schedule: rows that a chain of ROWS steps carries through together; 0: all"),
))

PROGRAM_SYMBOL = Struct("infc_program_symbol", "A run-time scalar.", (
    ("name", "<u4", 0, "offset into strings"),
    ("max", "<u4", 0, "bound; buffers are planned for it"),
))

PROGRAM_KERNEL = Struct("infc_program_kernel", "A kernel the program calls, by name.", (
    ("name", "<u4", 0, "offset into strings"),
    ("reserved", "<u4", 0, "zero"),
))

STEP = Struct("infc_step", "One kernel call.", (
    ("kernel", "<u2", 0, "index into kernels"),
    ("input_count", "u1", 0, ""),
    ("output_count", "u1", 0, "inputs and outputs together at most 16"),
    ("first_operand", "<u4", 0, "inputs, then outputs"),
    ("first_word", "<u4", 0, "the operator's attributes; see ops.py"),
    ("word_count", "<u4", 0, ""),
    ("rows_symbol", "<i4", 0, "symbol that gives the extent of a ROWS split, or -1 for `rows`"),
    ("rows", "<u4", 0, "extent of a ROWS split, or its bound where a symbol gives it"),
    ("cols", "<u4", 0, "extent of a COLS split"),
    ("split", "u1", 2, "per schedule: INFC_SPLIT_*"),
    ("barrier", "u1", 2, "per schedule: 1 if all threads must meet before this step"),
    ("name", "<u4", 0, "offset into strings: the layer, for reports"),
    ("reserved", "<u4", 0, "zero"),
))

OPERAND = Struct("infc_operand", "Where a step finds a tensor. Rows beyond the first dimension lie row_stride apart.", (
    ("space", "u1", 0, "INFC_SPACE_*"),
    ("dtype", "u1", 0, "INFC_DTYPE_*"),
    ("rank", "u1", 0, "1 to 8; a scalar has rank 1 and one element"),
    ("packing", "u1", 0, "INFC_PACK_*"),
    ("rows_symbol", "<i4", 0, "symbol that gives dims[0] at run time, or -1; dims[0] is its bound"),
    ("offset", "<u8", 0, "bytes from the start of the arena or of WEIGHTS; or the index of the input or output"),
    ("row_stride", "<u4", 0, "elements from one index of dims[0] to the next"),
    ("reserved", "<u4", 0, "zero"),
    ("dims", "<u4", 8, "beyond rank: 1"),
))

GOLDEN_HEADER = Struct("infc_golden_header", "Start of GOLDEN: cases of inputs and expected outputs; entries follow, "
                       "then data, each array at a multiple of 64 from the section's start.", (
    ("case_count", "<u4", 0, ""),
    ("entry_count", "<u4", 0, ""),
    ("reserved", "<u4", 2, "zero"),
))

GOLDEN_ENTRY = Struct("infc_golden_entry", "One array of a golden case.", (
    ("case_index", "<u4", 0, ""),
    ("is_output", "u1", 0, "0 input, 1 expected output"),
    ("dtype", "u1", 0, "INFC_DTYPE_*"),
    ("rank", "u1", 0, ""),
    ("reserved", "u1", 0, "zero"),
    ("tensor", "<u4", 0, "index of the input or output"),
    ("tolerance", "<f4", 0, "largest accepted absolute difference, outputs only"),
    ("offset", "<u8", 0, "of the data, from the section's start"),
    ("dims", "<u4", 8, ""),
))

TENSORRT_HEADER = Struct("infc_tensorrt_header", "Start of TENSORRT; arrays follow in this order: profiles (one u4 an optimisation "
                         "profile: the artifact's profile it serves), strings; then the plan, at a multiple of 64. The engine's "
                         "tensors have the names, types and order of IO.", (
    ("flavour", "<u4", 0, "INFC_TENSORRT_*"),
    ("version", "<u4", 4, "of the library that built it: major, minor, patch, build"),
    ("cuda_version", "<u4", 0, "least CUDA version of the driver, as cuDriverGetVersion counts: 1000 * major + 10 * minor"),
    ("sm_count", "<u4", 0, "1 to 16"),
    ("sms", "<u4", 16, "compute capabilities it was built for, such as 89, ascending; beyond sm_count: 0"),
    ("profile_count", "<u4", 0, "optimisation profiles"),
    ("command", "<u4", 0, "offset into strings: the build's command line without --target and --sm"),
    ("strings_size", "<u4", 0, "bytes of NUL-terminated UTF-8"),
    ("reserved", "<u4", 2, "zero"),
    ("plan_offset", "<u8", 0, "from the section's start"),
    ("plan_size", "<u8", 0, "bytes, to the section's end"),
))

STATE_HEADER = Struct("infc_state_header", "Start of STATE; an array of layers follows.", (
    ("layer_count", "<u4", 0, "1 to 4096"),
    ("block_tokens", "<u4", 0, "tokens of a block of the cache: 32"),
    ("context", "<u4", 0, "most tokens of a sequence"),
    ("dtype", "<u4", 0, "of keys and values: INFC_DTYPE_F32, _BF16, _I8 or _F8E4M3FN"),
    ("reserved", "<u4", 4, "zero"),
))

STATE_LAYER = Struct("infc_state_layer", "Keys and values of one layer of attention.", (
    ("heads", "<u4", 0, "of keys and values"),
    ("k_dim", "<u4", 0, "elements of a key of one head"),
    ("v_dim", "<u4", 0, "of a value"),
    ("window", "<u4", 0, "tokens that a query sees, its own included; 0: all"),
))

GENERATION_HEADER = Struct("infc_generation_header", "Start of GENERATION; arrays follow in this order: stops (one u4 each), flags "
                           "(one u1 a token, padded to a multiple of 4), offsets (vocabulary + 1 u4), bytes. A token's text is "
                           "what lies from its offset to the next.", (
    ("input_ids", "<u4", 0, "index of the input of token ids, [..., tokens]"),
    ("position_ids", "<u4", 0, "of the input of positions, or INFC_NO_STRING"),
    ("logit_rows", "<u4", 0, "of the input that says which tokens' logits come out, [rows]"),
    ("logits", "<u4", 0, "index of the output, [..., rows, vocabulary] f32"),
    ("vocabulary", "<u4", 0, ""),
    ("stop_count", "<u4", 0, "tokens that end a text"),
    ("bytes_size", "<u4", 0, ""),
    ("reserved", "<u4", 5, "zero"),
))

WATCH_HEADER = Struct("infc_watch_header", "Start of WATCH; arrays follow in this order: layers, places, strings.", (
    ("layer_count", "<u4", 0, "1 to 65536"),
    ("place_count", "<u4", 0, ""),
    ("every", "<u4", 0, "runs of a context from one that counts to the next; at least 1"),
    ("strings_size", "<u4", 0, "bytes of NUL-terminated UTF-8"),
))

WATCH_LAYER = Struct("infc_watch_layer", "The range that calibration gave the activations of a quantised layer.", (
    ("name", "<u4", 0, "offset into strings"),
    ("low", "<f4", 0, "least value that the layer represents, or that calibration saw"),
    ("high", "<f4", 0, "largest value"),
    ("beyond", "<f4", 0, "part of calibration's values that lay beyond, as the places count"),
))

WATCH_PLACE = Struct("infc_watch_place", "An input of a step whose values are counted before the step; ascending by program and "
                     "step, one a step.", (
    ("program", "<u4", 0, "number of the PROGRAM section in the file's order"),
    ("step", "<u4", 0, "behind the prologue"),
    ("layer", "<u4", 0, "index into layers"),
    ("operand", "u1", 0, "index of the input: f32 or u8, in the arena; of quantize and quantize_rows an input of the model too"),
    ("by_row", "u1", 0, "1: each thread counts the rows that it computes; 0: thread 0 counts all"),
    ("reserved", "<u2", 0, "zero"),
    ("low", "<f4", 0, "in the operand's own unit: what is less is beyond"),
    ("high", "<f4", 0, "what is more is beyond, and NaN"),
))

TOKEN_SPECIAL = 1  # flag of a token: no text, such as <|endoftext|>

STRUCTS = (HEADER, SECTION, IO_HEADER, IO_TENSOR, IO_SYMBOL, PROGRAM_HEADER, PROGRAM_SYMBOL, PROGRAM_KERNEL, STEP, OPERAND,
           GOLDEN_HEADER, GOLDEN_ENTRY, TENSORRT_HEADER, STATE_HEADER, STATE_LAYER, GENERATION_HEADER,
           WATCH_HEADER, WATCH_LAYER, WATCH_PLACE)

_C_TYPES = {"u1": "uint8_t", "<u2": "uint16_t", "<u4": "uint32_t", "<i4": "int32_t", "<u8": "uint64_t", "<i8": "int64_t",
            "<f4": "float"}


def _c_enum(prefix: str, values: dict[str, int]) -> list[str]:
    clean = {k.upper().replace("-", "_"): v for k, v in values.items()}
    return [f"#define INFC_{prefix}_{k} {v}" for k, v in clean.items()] + [""]


def c_header() -> str:
    """The text of ``runtime/src/layout.h``."""
    from infc.compiler.artifact.ops import c_ops

    out = ["// Generated by `python -m infc.compiler.artifact.layout`; do not edit.", "#ifndef INFC_LAYOUT_H",
           "#define INFC_LAYOUT_H", "", "#include <stddef.h>", "#include <stdint.h>", ""]
    for name in ("VERSION_MAJOR", "VERSION_MINOR", "SECTION_ALIGN", "WEIGHTS_ALIGN", "ARENA_ALIGN", "MAX_RANK", "MAX_SCHEDULES",
                 "MAX_SMS", "SECTION_REQUIRED", "DIM_EXACT", "DIM_PADS", "TENSOR_OPTIONAL", "TOKEN_SPECIAL"):
        out.append(f"#define INFC_{name} {globals()[name]}")
    out += [f"#define INFC_NO_STRING 0x{NO_STRING:X}u", ""]
    for prefix, values in (("SECTION", SECTION_KINDS), ("DTYPE", DTYPES), ("ISA", ISAS), ("PACK", PACKINGS), ("SPACE", SPACES),
                           ("SPLIT", SPLITS), ("TENSORRT", {k.removeprefix("tensorrt-").replace("tensorrt", "enterprise"): v
                                                            for k, v in TENSORRT_FLAVOURS.items()})):
        out += _c_enum(prefix, values)
    sizes = ", ".join(f"[{code}] = {size}" for code, size in DTYPE_SIZES.items())
    out += ["// Bytes of an element by type.", f"#define INFC_DTYPE_SIZES {{{sizes}}}", ""]
    for s in STRUCTS:
        out += [f"// {s.doc}", f"typedef struct {s.name} {{"]
        for name, kind, count, comment in s.fields:
            decl = f"  {_C_TYPES[kind]} {name}{f'[{count}]' if count else ''};"
            out.append(f"{decl} // {comment}" if comment else decl)
        out += [f"}} {s.name};", f"_Static_assert(sizeof({s.name}) == {s.size}, \"{s.name}\");"]
        offsets = s.dtype.fields
        assert offsets is not None
        out += [f"_Static_assert(offsetof({s.name}, {n}) == {offsets[n][1]}, \"{s.name}.{n}\");" for n, *_ in s.fields]
        out.append("")
    return "\n".join([*out, *c_ops(), "#endif // INFC_LAYOUT_H", ""])


if __name__ == "__main__":
    print(c_header(), end="")
