"""How the operators touch their operands: what scheduling and memory planning know of them.

A role says what one thread of a ROWS split touches:
  row   only its rows, where the operand's leading dimension is the step's `rows`; else all of it
  nest  row, if the nest's outermost stride is the operand's row stride; else all
  all   anything
"""

from __future__ import annotations

from dataclasses import dataclass

from infc.compiler.artifact.ops import NEST, OPS


@dataclass(frozen=True)
class Role:
    """``has`` is the word that announces an optional operand; ``stride`` the word of a nest's outermost stride."""

    kind: str
    has: str = ""
    stride: str = ""
    in_place: bool = False  # inputs: an output may lie on the same bytes


def _row(has: str = "", in_place: bool = False) -> Role:
    return Role("row", has, in_place=in_place)


def _all(has: str = "") -> Role:
    return Role("all", has)


def _nest(stride: str, in_place: bool = False) -> Role:
    return Role("nest", stride=stride, in_place=in_place)


# inputs, outputs
ROLES: dict[str, tuple[tuple[Role, ...], tuple[Role, ...]]] = {
    "gemm": ((_row(), _all(), _all("has_bias"), _row("has_residual", in_place=True)), (_row(),)),
    "norm": ((_row(in_place=True), _all("has_gamma"), _all("has_beta"), _row("has_residual", in_place=True)),
             (_row(), _row("has_sum"))),
    "embed_sum": ((_row(), _all()), (_row(),)),  # repeated `count` times
    "pack_tokens": ((_all("has_mask"),), (_all(), _all(), _all(), _all())),
    "gather_rows": ((_all(), _row()), (_row(),)),
    "scatter_rows": ((_row(), _all()), (_all(),)),
    "attention": ((_row(), _all(), _all(), _all("has_segments"), _all("has_segments"), _all("has_bias")), (_row(),)),
    "segment_reduce": ((_all(), _all(), _all()), (_row(),)),
    "unary": ((_row(in_place=True),), (_row(),)),
    "binary": ((_nest("sa0", in_place=True), _nest("sb0", in_place=True)), (_row(),)),
    "select": ((_nest("sc0"), _nest("sa0"), _nest("sb0")), (_row(),)),
    "copy": ((_nest("sx0"),), (_nest("sy0"),)),
    "fill": ((), (_all(),)),
    "softmax": ((_row(in_place=True),), (_row(),)),
    "reduce": ((_row(),), (_row(),)),
    "gather": ((_row(), _all()), (_row(),)),
    "matmul": ((_row(), _row()), (_row(),)),
    "cast": ((_row(),), (_row(),)),
    "conv": ((_all(), _all(), _all("has_bias"), _row("has_residual", in_place=True)), (_row(),)),
    "depthwise": ((_all(), _all(), _all("has_bias")), (_row(),)),
    "pool": ((_all(),), (_row(), _row("has_argmax"))),
    "gather_elements": ((_nest("sx0"), _nest("si0")), (_row(),)),
    "scatter_elements": ((_nest("sx0"), _nest("si0")), (_nest("sy0"),)),
    "gather_nd": ((_all(), _row()), (_row(),)),
    "scatter_nd": ((_all(), _all()), (_all(),)),
    "arg": ((_row(),), (_row(),)),
    "top_k": ((_row(),), (_row(), _row())),
    "cumulate": ((_row(),), (_row(),)),
    "resample": ((_all(), _all(), _all()), (_row(),)),
    "grid_sample": ((_all(), _row()), (_row(),)),
    "roi_align": ((_all(), _all(), _all()), (_row(),)),
    "det": ((_row(),), (_row(),)),
    "branch": ((_all(),), ()),
    "repeat": ((_all("has_trip_count"), _all("has_condition")), (_all("has_iteration"),)),
    "place": ((_row(), _all()), (_row(),)),
    "recurrent": ((_all(), _all(), _all("has_bias"), _all("has_lens"), _row("has_h"), _row("has_c"), _all("has_peephole")),
                  (_all("has_y"), _row("has_y_h"), _row("has_y_c"))),
    "quantize": ((_row(), _all(), _all("has_zero")), (_row(),)),
    "dequantize": ((_row(), _all(), _all("has_zero")), (_row(),)),
    "dft": ((_row(), _all()), (_row(),)),
    "winograd": ((_all(), _all(), _all("has_bias"), _all("has_residual")), (_all(),)),
    "sum_until": ((_all(), _row(), _row()), (_row(),)),
    "grow": ((_all(),), (_row(),)),
    "crop": ((_row(),), (_all(),)),
    "quantize_rows": ((_row(),), (_row(), _row())),
    "gemm_i8": ((_row(), _row(), _all(), _all(), _all(), _all("has_bias"), _row("has_residual", in_place=True), _all("has_out")),
                (_row(),)),
    "gemm_16": ((_row(), _all(), _all("has_scales"), _all("has_bias"), _row("has_residual", in_place=True)), (_row(),)),
    "gemm_grouped": ((_row(), _row(), _all(), _all("has_bias"), _row("has_residual", in_place=True)), (_row(),)),
    "conv_i8": ((_all(), _all(), _all(), _all(), _all(), _row("has_residual", in_place=True)), (_row(),)),
    "depthwise_i8": ((_all(), _all(), _all(), _all(), _all()), (_row(),)),
    "cache_write": ((_row(), _row(), _row(), _row("has_rope"), _row("has_rope")), (_row(),)),
    "cache_attention": ((_all(),), (_all(),)),
}
assert ROLES.keys() == OPS.keys()
assert NEST > 1


def word_of(op: str, words: tuple[int, ...], name: str) -> int:
    return words[OPS[op].words.index(name)]


def roles(op: str, words: tuple[int, ...]) -> tuple[list[Role], list[Role]]:
    """Roles of the operands that are present, inputs and outputs."""
    inputs, outputs = ROLES[op]
    if op == "embed_sum":
        inputs = inputs * word_of(op, words, "count")
    return tuple([r for r in side if not r.has or word_of(op, words, r.has)] for side in (inputs, outputs))  # type: ignore[return-value]


def may_lie_under_output(op: str, words: tuple[int, ...], role: Role) -> bool:
    """Whether an output may lie on the operand's bytes: a nest must read it in the order in which it writes the output."""
    if role.kind != "nest" or not role.in_place:
        return role.in_place
    dense = 1
    for i in reversed(range(NEST)):
        d, stride = word_of(op, words, f"d{i}"), word_of(op, words, f"{role.stride[:-1]}{i}")
        if d != 1 and stride != dense:
            return False
        dense *= d
    return True


def is_row_local(op: str, words: tuple[int, ...], rows: int, role: Role, dims: tuple[int, ...], row_stride: int) -> bool:
    """Whether row r of a ROWS split touches only index r of the operand's leading dimension."""
    if role.kind == "all" or dims[0] != rows:
        return False
    return role.kind == "row" or word_of(op, words, role.stride) == row_stride
