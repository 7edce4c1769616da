"""The declaration of a custom operator, from which its plugin, its launches and its tests follow.

Expressions are Python over symbols (dimensions and integer attributes), limited to what C++ reads alike: see ``Expression``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
DOMAIN = "infc"
SMS = (86, 89, 90, 120)
Arrays = Mapping[str, np.ndarray]
ALLOWED = (ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Compare, ast.Lt, ast.LtE, ast.Gt,
           ast.GtE, ast.Eq, ast.NotEq, ast.BoolOp, ast.And, ast.Or, ast.Call, ast.Name, ast.Load, ast.Constant)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max, "ceil_div": ceil_div}


@dataclass(frozen=True)
class Expression:
    """Integer arithmetic over symbols, none of them negative: ``+ - * // %``, comparisons, ``and``, ``or``, min, max, ceil_div."""

    text: str

    def __post_init__(self) -> None:
        for node in ast.walk(ast.parse(self.text, mode="eval")):
            if not isinstance(node, ALLOWED) or (isinstance(node, ast.Compare) and len(node.ops) > 1):
                raise ValueError(f"'{self.text}': {type(node).__name__} means something else in C++")

    @cached_property
    def symbols(self) -> set[str]:
        return {n.id for n in ast.walk(ast.parse(self.text)) if isinstance(n, ast.Name)} - set(FUNCTIONS)

    @cached_property
    def _code(self) -> Any:
        return compile(self.text, "<declaration>", "eval")

    def __call__(self, symbols: Mapping[str, int]) -> int:
        return int(eval(self._code, {"__builtins__": {}}, {**FUNCTIONS, **symbols}))

    def cpp(self, indices: Mapping[str, int]) -> str:
        """The same in C++, over an array ``s`` of symbols."""

        class Rename(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.Name:
                return node if node.id in FUNCTIONS else ast.Name(f"s[{indices[node.id]}]")

            def visit_Constant(self, node: ast.Constant) -> ast.Name:
                return ast.Name(f"int64_t{{{node.value!r}}}")

        return ast.unparse(Rename().visit(ast.parse(self.text, mode="eval"))).replace("//", "/")


@dataclass(frozen=True)
class Operand:
    """``dtype`` is one of ``dtypes.DTYPES`` or a type variable. ``dims`` are expressions; a name not met before is bound to the
    size that is found, and ``*name`` in front stands for any number of leading dimensions and is bound to their product."""

    name: str
    dtype: str
    dims: tuple[str, ...]
    optional: bool = False  # only the last inputs


@dataclass(frozen=True)
class TypeVariable:
    """``attribute``: the integer attribute that holds the type as ONNX numbers it; "": the type of the inputs."""

    choices: tuple[str, ...]
    attribute: str = ""


@dataclass(frozen=True)
class Attribute:
    """An ONNX attribute, "int" or "float"."""

    name: str
    kind: str
    default: float


@dataclass(frozen=True)
class Kernel:
    """An entry of the CUDA source, taken if ``when`` holds and no kernel before it was. ``{T}`` in the name is the dtype of type
    variable T. ``grid`` and ``block`` are blocks and threads along x; ``registers`` bounds a thread's on every SM."""

    name: str
    when: str
    grid: str
    block: str
    registers: int


@dataclass(frozen=True)
class Operator:
    """``requires``: what must hold of the symbols, with what to say where it does not. ``arguments``: what kernels are called with:
    tensors by address (0 for an absent one), symbols as int32, float attributes as float. ``reference`` maps arrays by input name
    and attributes by name to arrays by output name; see ``dtypes`` for how NumPy holds bf16 and fp8."""

    name: str
    source: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    attributes: tuple[Attribute, ...]
    types: Mapping[str, TypeVariable]
    requires: tuple[tuple[str, str], ...]
    kernels: tuple[Kernel, ...]
    arguments: tuple[str, ...]
    reference: Callable[[Arrays, Mapping[str, float]], dict[str, np.ndarray]] = field(repr=False)

    @property
    def path(self) -> Path:
        return HERE / self.source

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Dimensions in the order in which the inputs bind them, then integer attributes."""
        bound = dict.fromkeys(d.lstrip("*") for operand in self.inputs for d in operand.dims if d.lstrip("*").isidentifier())
        return (*bound, *(a.name for a in self.attributes if a.kind == "int"))

    def entries(self) -> list[Kernel]:
        """The kernels with their type variables filled in, in every combination."""
        kernels = list(self.kernels)
        for name, variable in self.types.items():
            mark = f"{{{name}}}"
            kernels = [Kernel(k.name.replace(mark, dtype), k.when, k.grid, k.block, k.registers)
                       for k in kernels for dtype in (variable.choices if mark in k.name else ("",))]
        return kernels

    def bind(self, shapes: Mapping[str, Sequence[int]], attributes: Mapping[str, float]) -> dict[str, int]:
        """Symbols from the shapes of the inputs that are there. Raises ValueError if a shape or a requirement does not hold."""
        symbols = {a.name: int(attributes.get(a.name, a.default)) for a in self.attributes if a.kind == "int"}
        for operand in self.inputs:
            if operand.name not in shapes:
                if not operand.optional:
                    raise ValueError(f"{self.name}: input {operand.name} is missing")
                continue
            sizes = list(shapes[operand.name])
            if operand.dims and operand.dims[0].startswith("*"):
                lead = len(sizes) - len(operand.dims) + 1
                sizes = [int(np.prod(sizes[:lead], dtype=np.int64)), *sizes[max(lead, 0):]]
            if len(sizes) != len(operand.dims):
                raise ValueError(f"{self.name}: {operand.name} has shape {tuple(shapes[operand.name])}, not {operand.dims}")
            for rule, size in zip(operand.dims, sizes, strict=True):
                name = rule.lstrip("*")
                expected = symbols.setdefault(name, size) if name.isidentifier() else Expression(name)(symbols)
                if size != expected:
                    raise ValueError(f"{self.name}: {operand.name} has {size} for {name}, not {expected}")
        for condition, text in self.requires:
            if not Expression(condition)(symbols):
                raise ValueError(f"{self.name}: {text}")
        return symbols

    def kernel(self, symbols: Mapping[str, int], types: Mapping[str, str]) -> Kernel:
        """The entry that is launched. ``types``: dtype by type variable."""
        for kernel in self.kernels:
            if Expression(kernel.when)(symbols):
                return Kernel(kernel.name.format(**types), kernel.when, kernel.grid, kernel.block, kernel.registers)
        raise ValueError(f"{self.name}: no kernel for {dict(symbols)}")

    def grid(self, kernel: Kernel, symbols: Mapping[str, int]) -> tuple[int, int]:
        """Blocks, and threads of a block."""
        return Expression(kernel.grid)(symbols), Expression(kernel.block)(symbols)

    def output_shapes(self, shapes: Mapping[str, Sequence[int]], symbols: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Output dims are symbols, or the leading dimensions of the input that has the same first rule."""
        result = {}
        for output in self.outputs:
            dims: list[int] = []
            for rule in output.dims:
                if rule.startswith("*"):
                    source = next(i for i in self.inputs if i.dims and i.dims[0] == rule)
                    dims += shapes[source.name][:len(shapes[source.name]) - len(source.dims) + 1]
                else:
                    dims.append(symbols[rule])
            result[output.name] = tuple(int(d) for d in dims)
        return result
