"""A target for a GPU whose engines are a few bytes: all that the driver does around one can be seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from infc.compiler.artifact.tensorrt import TensorRtEngine, encode
from infc.compiler.errors import UnsupportedError
from infc.compiler.target import PRECISIONS, BuildContext, Compiled, Handed, Layer, ProgramGraph, Section

NAME = "fake-gpu"
PLAN = b"the plan of an engine"


class FakeGpu:
    """``spoil`` changes the graph that is handed over, in place; ``refuse`` names an operator that is not known. ``context`` and
    ``programs`` are what it was called with."""

    name = NAME
    pipeline = "tensorrt"
    techniques = ("fake-technique",)
    device = "gpu"
    precisions = tuple(p for p in PRECISIONS if p != "int4")

    def __init__(self, spoil: Callable[[ir.Model], None] = lambda model: None, refuse: str = "") -> None:
        self.spoil, self.refuse = spoil, refuse
        self.context: BuildContext
        self.programs: Sequence[ProgramGraph] = ()

    def compile(self, programs: Sequence[ProgramGraph], context: BuildContext) -> Compiled:
        self.context, self.programs = context, programs
        for program in programs:
            for node in program.model.graph:
                if node.op_type == self.refuse:
                    raise UnsupportedError("E0740", f"the parser refuses {node.op_type} '{node.name}': no such operator",
                                           where=node.name or "")
        profiles = tuple(p.profile for p in programs)
        one = context.gpu.layout == "one" and len(programs) > 1
        assert context.symbolic
        graphs = [(profiles, context.symbolic.clone())] if one else [((p.profile,), p.model.clone()) for p in programs]
        made = Compiled([], {}, {"engines": {}})
        for number, (served, model) in enumerate(graphs):
            self.spoil(model)
            label = f"{'; '.join(map(str, served))}/{NAME}/sm89"
            engine = TensorRtEngine("tensorrt-rtx", (1, 7, 1, 116), 13000, context.gpu.sms or (89,),
                                    tuple(profiles.index(p) for p in served), context.command, PLAN)
            made.sections.append(Section("TENSORRT", encode(engine), "fake", number))
            made.layers[label] = [Layer("fused", "gemm", "tactic", context.precision, ["a/MatMul", "a/Add"])]
            made.memory["engines"][label] = len(PLAN)
            made.handed.append(Handed(label, served, model))
            made.notes.append("a note")
            made.engines.append({"flavour": "tensorrt-rtx", "version": "1.7.1.116", "sms": list(engine.sms), "size": len(PLAN),
                                 "profiles": [str(p) for p in served], "precision": context.precision,
                                 "programs": {label: {"layers": 1, "launches": 1, "fused_attentions": 2}},
                                 "sparsity": [{"name": "w", "state": "deferred"}]})
        return made
