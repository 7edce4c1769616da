"""Tables of which rows are taken lie in 16 bits where those hold all their numbers: the same results from less."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

from infc.compiler.artifact.narrow import in_16_bits
from tests.plugins.cpu.graphs import parse
from tests.plugins.cpu.harness import compile_model, native_isas, run
from tests.plugins.cpu.test_graphs import draw

IDS = np.array([[0, 5, -1], [4, 4, -9]], np.int64)
KINDS = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}


def looked_up(table: np.ndarray) -> onnx.ModelProto:
    return parse("""g (int64[2, 3] ids) => (float[2, 3, 64] y, float[2, 3, 64] z) {
        y = Gather(table, ids)
        z = infc.EmbeddingSum(ids, table, ids, other)
    }""", table=table, other=draw(9, 64, seed=1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isa", native_isas())
def test_rows_of_a_narrow_table(kind: str, isa: str) -> None:
    table = draw(9, 64).astype(KINDS[kind]).astype(np.float32)
    artifact, compiled = compile_model(looked_up(table), [isa])
    got = run(artifact, {"ids": IDS}, isa=isa)
    assert np.array_equal(got["y"], table[IDS])
    assert np.array_equal(got["z"], table[IDS] + draw(9, 64, seed=1)[IDS])
    _, wide = compile_model(looked_up(table), [isa], disabled=["narrow-tables"])
    size, before = (len(c.sections[-1].data) for c in (compiled, wide))
    assert before - size == (0 if kind == "f32" else table.nbytes // 2)


def test_a_narrow_table_keeps_every_number() -> None:
    special = np.array([[0.0, -0.0, np.inf, 2.0**-133, 3.38e38]], np.float32).astype(ml_dtypes.bfloat16)
    kept = in_16_bits(special.astype(np.float32))
    assert kept is not None
    assert kept.dtype == ml_dtypes.bfloat16
    assert kept.tobytes() == special.tobytes()
    small = np.array([[2.0**-24, 65504.0, 1 + 2.0**-10]], np.float32)
    half = in_16_bits(small)
    assert half is not None
    assert half.dtype == np.float16
    assert in_16_bits(np.array([[1 + 2.0**-11]], np.float32)) is None
    late = np.ones((3000, 2), np.float32)
    late[2999, 1] = 0.1  # only the last block tells
    assert in_16_bits(late) is None


