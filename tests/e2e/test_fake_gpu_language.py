"""A language model on the fake GPU: its engine is the graph that TensorRT's builder gets, run by the CPU's kernels, so that what
keeps the caches and drives the runs must give the text that the CPU gives. See tests/fake_gpu/fake.h."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from infc.compiler.artifact import tensorrt, writer
from infc.compiler.artifact.reader import Artifact
from infc.compiler.target import Section
from tests.e2e.conftest import environment

FAKES = os.environ.get("INFC_FAKE_GPU", "")
CONTEXT, PROFILES = 48, ["tokens=1,rows=1", "tokens=16,rows=4"]
pytestmark = pytest.mark.skipif(not FAKES, reason="INFC_FAKE_GPU does not name the folder of the fake driver; `make test` sets it")

RUN = """
import json, sys
import numpy as np
import infc

rng = np.random.default_rng(0)
prompts = [rng.integers(1, 64, n).tolist() for n in (1, 5, 16, 17, 39)]
lm = infc.LLM(sys.argv[1], threads=1, device=sys.argv[2], cache_tokens=400, max_sequences=8)
found = {"device": lm.engine.device[:4]}
found["greedy"] = [list(lm.generate_ids(p, max_new_tokens=9, ignore_eos=True)) for p in prompts]
requests = [lm.request(p, max_new_tokens=6, ignore_eos=True, temperature=1.0, seed=n) for n, p in enumerate(prompts)]
found["together"] = [list(r) for r in requests]
lookup = lm.request(prompts[1] * 3, max_new_tokens=12, ignore_eos=True, prompt_lookup=True)
found["lookup"] = list(lookup)
found["logits"] = lm.logits(prompts[4]).tolist()

def text(sequence, tokens):
    out = np.empty((1, lm.vocabulary), np.float32)
    said = []
    for _ in range(4):
        lm.lm.step([(sequence, np.array(tokens, np.int32), 1)], out)
        tokens = [int(out.argmax())]
        said += tokens
    return said

first = lm.lm.sequence()
found["first"] = text(first, prompts[3])
fork, saved = first.fork(), first.save()
other = lm.lm.sequence()
other.restore(saved)
found["forks"] = [text(s, [3, 5]) for s in (fork, first, other)]
first.truncate(10)
found["shorter"] = text(first, [7])
both = np.empty((2, lm.vocabulary), np.float32)
lm.lm.step([(fork, np.array([2], np.int32), 1), (other, np.array([2, 4, 6], np.int32), 1)], both)
found["both"] = both.tolist()

# Damaged memory gives nonsense, and to nobody else: the next sequence is in its place.
del first, fork, other
damaged = lm.lm.sequence()
damaged.restore(saved[:-4096] + bytes([255]) * 4096)
text(damaged, [3])
del damaged
found["after"] = list(lm.generate_ids(prompts[1], max_new_tokens=9, ignore_eos=True))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small Llama for the CPU, and with an engine for the fake GPU beside."""
    import infc

    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("language")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, intermediate_size=96, max_position_embeddings=CONTEXT)
    model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.2)
    model.save_pretrained(folder / "model")
    cpu, gpu = folder / "cpu.infc", folder / "gpu.infc"
    infc.build(folder / "model", cpu, profiles=PROFILES, context=CONTEXT, tune=False, isa=["scalar"])
    _handed(folder / "model", folder / "handed.onnx")
    infc.build(folder / "handed.onnx", folder / "engine.infc", profiles=PROFILES, tune=False, isa=["scalar"])
    data = (folder / "engine.infc").read_bytes()
    plan = struct.pack("<8sQI44x", b"FAKEPLAN", len(data), len(PROFILES)) + data
    engine = tensorrt.TensorRtEngine("tensorrt-rtx", (1, 7, 1, 116), 13000, (86, 89), (0, 1), "infc build model", plan)
    found = Artifact.open(cpu)
    sections = [Section(s.kind, bytes(found.section(s.kind, s.ordinal) or b""), ordinal=s.ordinal, required=s.required, name=s.name)
                for s in found.sections]
    writer.write(gpu, [*sections, Section("TENSORRT", tensorrt.encode(engine), required=False)])
    return cpu, gpu


def _handed(model: Path, path: Path) -> None:
    """What the builder of TensorRT would get, caches and all, as an .onnx file."""
    from infc.compiler import driver
    from infc.compiler.options import BuildOptions
    from infc.plugins.tensorrt.legalise import Request, legalise

    options = BuildOptions.of({"targets": ("tensorrt-rtx",)})
    exported = driver.export(driver._source(model, options))
    graph = driver.lower(exported, options, driver.check_names(options)).graphs["tensorrt-rtx"]
    legal = legalise(graph, Request(dynamic=True, sms=(89,), capacity=CONTEXT + 16))
    assert len(legal.state) == 1 + 2 * 2
    ir.save(legal.model, path)


def _run(artifact: Path, device: str, **settings: str) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", RUN, artifact, device], env=environment(LD_LIBRARY_PATH=FAKES, **settings),
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("settings", ["", "async=1,delay=100"], ids=["at once", "later"])
def test_texts_are_the_cpus(settings: str, artifacts: tuple[Path, Path]) -> None:
    want = _run(artifacts[0], "cpu")
    got = _run(artifacts[1], "cuda", FAKE_CUDA=settings)
    assert (want.pop("device"), got.pop("device")) == ("cpu", "cuda")
    for name in ("logits", "both"):
        np.testing.assert_allclose(got.pop(name), want.pop(name), atol=3e-4)
    assert got == want


FAILING = """
import sys
import infc

lm = infc.LLM(sys.argv[1], threads=1, device="cuda", max_sequences=2)
for _ in range(2):
    try:
        print(list(lm.generate_ids([5, 9, 2], max_new_tokens=3, ignore_eos=True)))
    except infc.Error as error:
        print(error)
"""


LIMITED = """
import sys
import infc

for limit in (70000, 1000):
    try:
        lm = infc.LLM(sys.argv[1], device="cuda", cache_bytes=limit)
        requests = [lm.request([5, 9, n], max_new_tokens=3, ignore_eos=True) for n in range(1, 6)]
        print(lm.info["max_sequences"], [len(list(r)) for r in requests], lm.info["cache_bytes"])
    except infc.Error as error:
        print(error)
"""


def test_bytes_of_the_cache_limit_the_sequences(artifacts: tuple[Path, Path]) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, artifacts[1]], capture_output=True, text=True, timeout=120,
                          env=environment(LD_LIBRARY_PATH=FAKES))
    assert done.stdout.splitlines() == ["2 [3, 3, 3, 3, 3] 65536",
                                        "1000 bytes hold no sequence's cache: that has 32768"], done.stderr


@pytest.mark.parametrize(("failure", "said"), [
    ("cuMemAlloc_v2:3:2", "a sequence's cache needs 1 MiB"),
    ("cuMemsetD8Async:2:1", "cuMemsetD8Async"),
])
def test_a_cache_that_cannot_be_had_is_an_error_and_no_more(failure: str, said: str, artifacts: tuple[Path, Path]) -> None:
    done = subprocess.run([sys.executable, "-c", FAILING, artifacts[1]], capture_output=True, text=True, timeout=120,
                          env=environment(LD_LIBRARY_PATH=FAKES, FAKE_CUDA=f"fail={failure}"))
    first, second = done.stdout.splitlines()
    assert said in first
    assert second.startswith("[")
    assert not done.stderr
