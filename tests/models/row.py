"""What was measured of one architecture: a line of the table of families."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from infc.compiler import lowering
from infc.compiler.export import Exported
from infc.compiler.options import BuildOptions
from infc.compiler.reference import Comparison

# what fusions make, and what they should leave nothing of
WATCHED = ("Linear", "LayerNormalization", "RMSNormalization", "VarlenAttention", "PaddedAttention", "Attention", "EmbeddingSum",
           "RotaryEmbedding", "Softmax", "Erf", "Tanh", "ReduceMean", "Gelu", "Conv", "BatchNormalization", "SegmentReduce",
           "SegmentPool", "AddNorm", "L2Normalize")


@dataclass
class Row:
    """``sizes`` says what becomes of the profiles' sizes: "packed", "padded" or "exact". ``nodes`` counts the exported graph's,
    ``steps`` each profile's. ``difference`` is the largest to PyTorch, ``largest`` the same relative where values are large;
    ``ops`` counts operators that fusions made or should have."""

    architecture: str
    profiles: list[str]
    sentence: bool = False
    task: str = ""
    sizes: str = ""
    nodes: int = 0
    steps: list[int] = field(default_factory=list)
    difference: float = 0.0
    largest: float = 0.0
    ops: Counter[str] = field(default_factory=Counter)

    def examine(self, exported: Exported) -> None:
        """What the passes make of the graph."""
        self.nodes = exported.model.graph.num_nodes()
        model = exported.model.clone()
        lowering.optimise(Exported(model, exported.interface, exported.reference, exported.engine), BuildOptions.of({}))
        self.sizes = "packed" if lowering.run_time_dims(model) else "padded" if lowering.padded_dims(model) else "exact"
        self.ops = Counter(n.op_type for n in model.graph if n.op_type in WATCHED)

    def add(self, found: Comparison) -> None:
        self.difference = max(self.difference, found.difference)
        self.largest = max(self.largest, found.difference / max(1.0, found.tolerance * 1e4))

    @property
    def name(self) -> str:
        return self.architecture + (" + pooling" if self.sentence else "")

    def cells(self) -> list[str]:
        """As the table of docs/families.md has them."""
        fused = ", ".join(f"{count} {op}" for op, count in sorted(self.ops.items()))
        return [self.name, "; ".join(self.profiles), self.sizes, f"{self.difference:.1e}", f"{self.largest:.1e}",
                f"{self.nodes} → {'/'.join(map(str, sorted(set(self.steps))))}", fused]

    def __str__(self) -> str:
        return "  ".join(self.cells())
