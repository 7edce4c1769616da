"""What the compiled kernels use: no spills, 16-byte accesses, registers within bounds; and docs/tensorrt-kernels.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.operators import OPERATORS, build, declare, resources

DOCUMENT = Path(__file__).parents[4] / "docs" / "tensorrt-kernels.md"
pytestmark = pytest.mark.skipif(
    build.cuda_tool("nvcc") is None or build.cuda_tool("cuobjdump") is None, reason="no nvcc or no cuobjdump"
)


@pytest.fixture(scope="module")
def usages() -> list[resources.Usage]:
    return [u for op in OPERATORS for u in resources.measure(op)]


def test_kernels_keep_to_what_they_declare(usages: list[resources.Usage]) -> None:
    print(resources.document(usages))
    assert len(usages) == len(declare.SMS) * sum(len(op.entries()) for op in OPERATORS)
    for u in usages:
        assert (u.stack, u.local, u.spills) == (0, 0, 0), u
        assert u.registers <= u.bound, u
        assert u.loads >= 4, u
        assert u.stores >= 4 or u.kernel.startswith("int4"), u  # its output is a few halves


def test_the_document_is_up_to_date(usages: list[resources.Usage]) -> None:
    """Made by `python -m infc.plugins.tensorrt.ops.resources`; what another version of nvcc makes is its own."""
    text = DOCUMENT.read_text()
    if f"What nvcc {resources.nvcc_version()} makes" not in text:
        pytest.skip(f"the document is of another nvcc than {resources.nvcc_version()}")
    assert text == resources.document(usages)


def test_a_kernel_that_spills_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading of the machine code is no formality."""
    source = tmp_path / "spills.cu"
    source.write_text("""extern "C" __global__ void __launch_bounds__(1024, 2) spills(const float4 *x, float4 *y) {
  float4 v[24];
  for (int i = 0; i < 24; i++) v[i] = x[threadIdx.x * 24 + i];
  __syncthreads();
  for (int i = 0; i < 24; i++) y[threadIdx.x * 24 + (23 - i)] = v[i];
}""")
    op = declare.Operator(
        "Spills", "spills.cu", (), (), (), {}, (), (declare.Kernel("spills", "1", "1", "1024", 255),), (), lambda *_: {}
    )
    monkeypatch.setattr(declare.Operator, "path", property(lambda self: source))
    (usage,) = resources.measure(op, [89])
    assert usage.spills > 0
    assert usage.stack > 0
    assert usage.loads >= 24
    assert usage.stores >= 24
