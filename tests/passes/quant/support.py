"""Statistics of small graphs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from infc.passes.quant.products import find
from infc.passes.quant.statistics import HALF, Channels, Histogram, Statistics, ValueStatistics
from tests.passes.support import Array, feed, session


def statistics_of(model: ir.Model, method: str = "min-max", gram: bool = False, data: dict[str, Array] | None = None) -> Statistics:
    """Of what products with constant weights read, on the inputs of ``feed``."""
    values = {p.x.name or "": p for p in find(model)[0]}
    copy = model.clone()
    made = {v.name: v for n in copy.graph for v in n.outputs}
    inputs = data or feed(model)
    extra = [name for name in values if name in made and not made[name].is_graph_output()]
    copy.graph.outputs.extend(made[name] for name in extra)
    run = session(copy)
    found = dict(zip((o.name for o in run.get_outputs()), run.run(None, inputs), strict=True)) | inputs
    taken = {}
    grams = {}
    for name, product in values.items():
        x = found[name]
        rows = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1]) if product.conv else x.reshape(-1, x.shape[-1])
        channels = Channels(1 if product.conv else -1, len(rows), rows.min(0), rows.max(0), rows.mean(0), np.abs(rows).mean(0),
                            (rows**2).mean(0))
        exponent = int(np.ceil(np.log2(np.abs(x).max() + 1e-30)))
        bins = np.clip(np.floor(x.reshape(-1) / (2.0**exponent / HALF)), -HALF, HALF - 1).astype(int) + HALF
        histogram = Histogram(exponent, np.bincount(bins, minlength=2 * HALF))
        taken[name] = ValueStatistics(x.size, 0, float(x.min()), float(x.max()), histogram, channels)
        if gram and not product.conv:
            grams[name] = (rows.T @ rows).astype(np.float32)
    return Statistics(taken, method, grams)
