"""What a language model takes of memory: weights, the cache of one sequence at the full context, activations. Estimated before it
is compiled, held against a limit then and when it is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from infc.compiler.artifact.narrow import in_16_bits
from infc.compiler.errors import UsageError
from infc.compiler.profiles import Profile

# Bytes of an element of a product's weight by precision, scales and zeros included.
_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "int8": 1 + 2 / 64, "int8-static": 1.0, "fp8": 1.0, "auto": 1.0,
          "int4": 0.5 + 3 / 32}
_PRODUCTS = ("Linear", "MatMul", "Gemm")
_LOOKUPS = ("Gather", "EmbeddingSum")


@dataclass(frozen=True)
class Footprint:
    """Bytes."""

    weights: int
    cache: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.activations

    def __str__(self) -> str:
        parts = f"weights {_size(self.weights)}, cache {_size(self.cache)}, activations {_size(self.activations)}"
        return f"{parts}: {_size(self.total)} together"

    def hold(self, limit: int | None) -> None:
        """Raises UsageError E0213 beyond the limit."""
        if limit is not None and self.total > limit:
            raise UsageError("E0213", f"the model takes more than {_size(limit)}: {self}", where="--memory-limit",
                             hint="build for a shorter --context, with --kv-cache int8, or in a lower --precision")


def estimate(model: ir.Model, precision: str, cache: int, profiles: Sequence[Profile]) -> Footprint:
    """Of a graph before it is quantised and compiled."""
    sizes = profiles[-1].as_dict()
    products = {id(v.const_value): v.const_value.size for node in model.graph if node.op_type in _PRODUCTS
                for v in node.inputs[1:2] if v is not None and v.const_value is not None}
    others = {id(v.const_value): v.const_value.nbytes for v in model.graph.initializers.values()
              if v.const_value is not None and v.uses() and id(v.const_value) not in products}
    narrow = {id(v.const_value) for node in model.graph if node.op_type in _LOOKUPS for v in node.inputs if v is not None
              and v.const_value is not None and v.dtype == ir.DataType.FLOAT and len(v.const_value.shape) == 2
              and in_16_bits(v.const_value.numpy()) is not None}
    others = {key: nbytes // 2 if key in narrow else nbytes for key, nbytes in others.items()}
    weights = int(sum(products.values()) * _BYTES[precision]) + sum(others.values())
    steps = (sum(_nbytes(v, sizes) for v in {*node.inputs, *node.outputs} if v is not None) for node in model.graph)
    return Footprint(weights, cache, max(steps, default=0))


def _nbytes(value: ir.Value, sizes: dict[str, int]) -> int:
    """Of a value that is computed; 0 of one whose size is not known."""
    if value.const_value is not None or value.shape is None:
        return 0
    count = 1
    for d in value.shape:
        count *= d if isinstance(d, int) else sizes.get(str(d.value), 0)
    return 4 * count


def built(memory: Mapping[str, object], cache: int) -> Footprint:
    """As it was compiled; ``memory`` as ``Compiled.memory``."""
    arena = memory.get("arena", {})
    assert isinstance(arena, dict)
    weights = memory.get("weights", 0)
    assert isinstance(weights, int)
    return Footprint(weights, cache, max(_numbers(arena.values()), default=0))


def _numbers(values: Iterable[object]) -> list[int]:
    return [v for v in values if isinstance(v, int)]


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10**9 else f"{count / 1e6:.1f} MB"
