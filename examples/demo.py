"""`make demo`: fetch MiniLM, compile it, compare sentences, measure it beside PyTorch and ONNX Runtime."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import infc
from infc.compiler.artifact.reader import Artifact
from infc.compiler.cli.inputs import Tokenizer
from infc.compiler.cli.main import main as cli
from infc.models.fetch import fetch

SENTENCES = [
    "The ferry to the islands was cancelled because of the storm.",
    "High winds kept the boats in the harbour today.",
    "My sourdough starter needs to be fed every morning.",
    "Bread dough rises faster in a warm kitchen.",
]
ARTIFACT = Path("build/minilm.infc")


def similarities(path: Path, sentences: list[str]) -> np.ndarray:
    """[n, n] float32: cosine similarity of the sentences' embeddings."""
    engine = infc.Engine(path)
    tokenizer = Tokenizer(Artifact.open(path))
    rows = [engine.run(arrays)["sentence_embedding"][:count] for arrays, count in tokenizer.batches(sentences)]
    embeddings = np.concatenate(rows)
    return np.asarray(embeddings @ embeddings.T)


def main() -> int:
    model = fetch("minilm")
    print(f"model      {model}", flush=True)
    ARTIFACT.parent.mkdir(exist_ok=True)
    code = cli(["build", str(model), "-o", str(ARTIFACT), "--profile", "batch=1,seq=16", "--profile", "batch=1,seq=128"])
    if code:
        return code
    print("\nsimilarity of")
    for i, (sentence, row) in enumerate(zip(SENTENCES, similarities(ARTIFACT, SENTENCES), strict=True), 1):
        print(f"  {i} {sentence:<62} {'  '.join(f'{s:5.2f}' for s in row)}")
    print("\nlatency at batch 1, 128 tokens", flush=True)
    code = cli(["bench", str(ARTIFACT), "--vs", "torch,onnxruntime", "--model", str(model), "--runs", "100"])
    print(f"\nartifact   {ARTIFACT.resolve()}")
    return code


if __name__ == "__main__":
    sys.exit(main())
