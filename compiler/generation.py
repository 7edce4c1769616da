"""Sections of a language model: STATE, the cache's layers, and GENERATION, how tokens go in, come out and become text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.compiler import detokenise, footprint, tokenizer
from infc.compiler.artifact.layout import DTYPE_SIZES, DTYPES, GENERATION_HEADER, STATE_HEADER, STATE_LAYER, TOKEN_SPECIAL
from infc.compiler.errors import UsageError
from infc.compiler.footprint import Footprint
from infc.compiler.interface import Interface
from infc.compiler.options import BuildOptions
from infc.compiler.profiles import Profile
from infc.compiler.source import Source
from infc.compiler.target import Section

BLOCK = 32  # tokens
_ALIGN = 64
_SLACK = 64  # tokens: INFC_LM_SLACK
_NODE = "CachedAttention"
_OPTIONS = {"context": "--context", "kv_cache": "--kv-cache", "memory_limit": "--memory-limit"}
_STOPS = "eos_token_id"


@dataclass(frozen=True)
class CacheLayer:
    """``heads`` of keys and values, with the elements of each; ``window`` tokens that a query sees, 0 for all."""

    heads: int
    k_dim: int
    v_dim: int
    window: int

    def block_bytes(self, dtype: str) -> int:
        """Of one block, as runtime/src/kernels/cache/cache.h lays it out."""
        size = DTYPE_SIZES[DTYPES[dtype]]
        parts = [self.k_dim * BLOCK * size, -(-self.v_dim // 32) * 32 * BLOCK * size, 2 * BLOCK * 4 if size == 1 else 0]
        return self.heads * sum(-(-part // _ALIGN) * _ALIGN for part in parts)


def cache_layers(model: ir.Model) -> list[CacheLayer]:
    """Those of a graph, in order; none of a model without a cache."""
    found: dict[int, CacheLayer] = {}
    for node in model.graph:
        if node.op_type != _NODE:
            continue
        heads, window = (int(node.attributes[name].value) for name in ("kv_num_heads", "window"))
        k, v = (int(node.inputs[i].shape[-1]) // heads for i in (1, 2))  # type: ignore[union-attr, index, arg-type]
        found[int(node.attributes["layer"].value)] = CacheLayer(heads, k, v, window)
    assert sorted(found) == list(range(len(found)))
    return [found[i] for i in range(len(found))]


def cache_bytes(layers: Iterable[CacheLayer], context: int, dtype: str, step: int) -> int:
    """Of one sequence as long as the context, as runtime/src/lm/lm.c allots it. A layer with a window keeps that, tokens that may
    be taken back and those of a run, which are ``step`` at most, and a block at either end."""
    total = 0
    for layer in layers:
        blocks = -(-context // BLOCK)
        if 0 < layer.window < context:
            blocks = min(blocks, (layer.window + _SLACK + step) // BLOCK + 2)
        total += layer.block_bytes(dtype) * blocks
    return total


@dataclass(frozen=True)
class Cache:
    """Of one model as it is built: element type ``dtype``, at most ``context`` tokens of a sequence."""

    layers: Sequence[CacheLayer]
    context: int
    dtype: str
    step: int  # most tokens of a run
    interface: Interface
    options: BuildOptions

    @classmethod
    def of(cls, graphs: Iterable[ir.Model], interface: Interface, options: BuildOptions, profiles: Sequence[Profile]
           ) -> Cache | None:
        """None for a model without one. Raises UsageError E0212 for options of a cache then."""
        layers = next(filter(None, map(cache_layers, graphs)), [])
        if layers:
            step = max(profile[interface.indices["position_ids"]] for profile in profiles)
            return cls(layers, interface.context, options.cache_type(), step, interface, options)
        default = BuildOptions()
        given = next((o for n, o in _OPTIONS.items() if getattr(options, n) != getattr(default, n)), None)
        if given:
            raise UsageError("E0212", f"{given} is for language models, which keep keys and values of past tokens", where=given,
                             hint="leave it out")
        return None

    @property
    def nbytes(self) -> int:
        """Of one sequence as long as the context."""
        return cache_bytes(self.layers, self.context, self.dtype, self.step)

    def mark(self, graphs: Iterable[ir.Model]) -> None:
        """Has the graphs compute with keys and values as the cache keeps them."""
        for node in (n for graph in graphs for n in graph.graph if n.op_type == _NODE):
            node.attributes["cache"] = ir.AttrString("cache", self.dtype)

    def lossy(self, graphs: Mapping[str, ir.Model]) -> ir.Model | None:
        """The CPU's graph, if the cache keeps less than was computed."""
        return graphs.get("cpu") if self.dtype != "f32" else None

    def planned(self, graphs: Mapping[str, ir.Model], profiles: Sequence[Profile]) -> Footprint:
        """Before the build, of the first target's graph. Raises UsageError E0213 beyond the limit."""
        name, graph = next(iter(graphs.items()))
        found = footprint.estimate(graph, self.options.precision_of(name), self.nbytes, profiles)
        found.hold(self.options.memory_limit)
        return found

    def measured(self, memory: Mapping[str, object]) -> dict[str, object]:
        """What else the report says of the memory. Raises as ``planned``."""
        footprint.built(memory, self.nbytes).hold(self.options.memory_limit)
        return {"cache": self.nbytes}

    def sections(self, source: Source) -> list[Section]:
        """STATE and GENERATION."""
        return [state(self.layers, self.context, self.dtype), generation(source, self.interface, tokenizer.files(source))]


def state(layers: Sequence[CacheLayer], context: int, dtype: str) -> Section:
    header = np.zeros((), STATE_HEADER.dtype)
    header["layer_count"], header["block_tokens"], header["context"], header["dtype"] = len(layers), BLOCK, context, DTYPES[dtype]
    rows = np.array([(c.heads, c.k_dim, c.v_dim, c.window) for c in layers], STATE_LAYER.dtype)
    return Section("STATE", header.tobytes() + rows.tobytes())


def generation(source: Source, interface: Interface, files: Mapping[str, bytes]) -> Section:
    """``files`` are the tokenizer's. Without tokenizer.json all tokens are without text."""
    inputs = [t.name for t in interface.inputs]
    vocabulary = interface.outputs[0].dims[-1]
    assert isinstance(vocabulary, int)
    texts, special = detokenise.table(files.get("tokenizer.json"), vocabulary)
    stops = _stops(source, files, vocabulary)
    header = np.zeros((), GENERATION_HEADER.dtype)
    for name in ("input_ids", "position_ids", "logit_rows"):
        header[name] = inputs.index(name)
    header["vocabulary"], header["stop_count"] = vocabulary, len(stops)
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.uint64).astype("<u4")
    header["bytes_size"] = offsets[-1]
    flags = np.where(special, TOKEN_SPECIAL, 0).astype("u1").tobytes()
    return Section("GENERATION", b"".join([header.tobytes(), np.array(stops, "<u4").tobytes(), flags, bytes(-len(flags) % 4),
                                           offsets.tobytes(), *texts]))


def _stops(source: Source, files: Mapping[str, bytes], vocabulary: int) -> list[int]:
    """Tokens that end a text: by generation_config.json, else by config.json."""
    said: Any = (source.config or {}).get(_STOPS)
    if "generation_config.json" in files:
        try:
            said = json.loads(files["generation_config.json"]).get(_STOPS, said)
        except (ValueError, AttributeError) as error:
            raise UsageError("E0105", f"not a JSON object: {error}", where="generation_config.json",
                             hint="download the file again") from error
    tokens = said if isinstance(said, list) else [said]
    return sorted({t for t in tokens if isinstance(t, int) and 0 <= t < vocabulary})
