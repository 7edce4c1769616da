"""The declarations as C++: the table that launch.cpp and plugin.cpp are driven by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from .declare import Expression, Operand, Operator
from .dtypes import DTYPES

T = TypeVar("T")
HEADER = """// Generated from the declarations of the operators by table.py.
#include "launch.h"

namespace infc_ops {
namespace {
[[maybe_unused]] int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
[[maybe_unused]] int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
[[maybe_unused]] int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
} // namespace
"""


def generate(operators: Sequence[Operator], fatbins: Mapping[str, Path | None]) -> str:
    """``fatbins``: the compiled CUDA source of each operator by name, embedded where there is one."""
    parts = [HEADER]
    for op in operators:
        path = fatbins[op.name]
        if path is None:
            parts.append(f"static const unsigned char {op.name}_fatbin[] = \"{op.name}\";")
        else:
            parts.append(f'__asm__(".section .rodata\\n.balign 16\\n{op.name}_fatbin:\\n'
                         f'.incbin \\"{path.resolve()}\\"\\n.previous");\n'
                         f'extern "C" __attribute__((visibility("hidden"))) const unsigned char {op.name}_fatbin[];')
    parts.append(f"const std::vector<Operator> OPERATORS = {_list(operators, _operator)};\n}} // namespace infc_ops\n")
    return "\n".join(parts)


def _operator(op: Operator) -> str:
    symbols = {name: i for i, name in enumerate(op.symbols)}
    tensors = [t.name for t in (*op.inputs, *op.outputs)]
    variables = list(op.types)
    attributes = [a.name for a in op.attributes]

    def rule(text: str) -> str:
        return f"[]([[maybe_unused]] const int64_t *s) -> int64_t {{ return {Expression(text).cpp(symbols)}; }}"

    def dim(text: str) -> str:
        name = text.lstrip("*")
        if name in symbols:
            return f"{{{symbols[name]}, nullptr, {_bool(text != name)}}}"
        return f"{{-1, {rule(name)}, false}}"

    def operand(t: Operand) -> str:
        kind = f"0, {variables.index(t.dtype)}" if t.dtype in variables else f"{DTYPES[t.dtype].onnx}, -1"
        return f'{{"{t.name}", {kind}, {_list(t.dims, dim)}, {_bool(t.optional)}}}'

    def variable(name: str) -> str:
        v = op.types[name]
        choices = ", ".join(str(DTYPES[c].onnx) for c in v.choices)
        return f'{{"{name}", {{{choices}}}, {attributes.index(v.attribute) if v.attribute else -1}}}'

    def argument(name: str) -> str:
        for kind, names in (("TENSOR", tensors), ("SYMBOL", list(symbols)), ("ATTRIBUTE", attributes)):
            if name in names:
                return f"{{Argument::{kind}, {names.index(name)}}}"
        raise ValueError(f"{op.name}: no argument is named {name}")

    return ",\n".join((
        f'{{"{op.name}"', _list(op.inputs, operand), _list(op.outputs, operand), _list(variables, variable),
        _list(op.attributes, lambda a: f'{{"{a.name}", {symbols.get(a.name, -1)}, {a.default}}}'),
        _list(op.requires, lambda r: f'{{{rule(r[0])}, "{r[1]}"}}'),
        _list(op.kernels, lambda k: f'{{"{k.name}", {rule(k.when)}, {rule(k.grid)}, {rule(k.block)}}}'),
        _list(op.arguments, argument), str(len(symbols)), f"{op.name}_fatbin}}"))


def _list(items: Iterable[T], render: Callable[[T], str]) -> str:
    return "{" + ",\n ".join(render(i) for i in items) + "}"


def _bool(value: bool) -> str:
    return "true" if value else "false"
