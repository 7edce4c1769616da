"""Trains a small Llama on a folder of texts: ``python bench/train_llama.py TEXTS_DIR OUT_DIR [--minutes 5]``.

The weights of models that come from 4-bit files say little about what 4 bits cost; these have never been quantised. A byte-level
BPE of 4,096 tokens and a network of 6 layers of 256 learn all ``.cor`` and ``.txt`` files of the folder but one line in ten of
``lee_background.cor``, which ``infc eval --perplexity`` can be given: ``OUT_DIR/held_out.txt``. Fixed seeds; how far it gets in
the time depends on the machine.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
LENGTH, BATCH = 256, 8
HELD_OUT = "lee_background.cor"
END = "<|endoftext|>"


def texts(folder: Path) -> tuple[list[str], list[str]]:
    """Lines to learn, and lines held out."""
    learn: list[str] = []
    held: list[str] = []
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".cor", ".txt")):
        lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.count(" ") > 20]
        if path.name == HELD_OUT:
            held = lines[::10]
            lines = [line for number, line in enumerate(lines) if number % 10] * 4
        learn += lines
    return learn, held


def tokenizer(lines: list[str]) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[END], show_progress=False,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, bos_token=END)  # type: ignore[no-untyped-call]


def train(model: LlamaForCausalLM, tokens: torch.Tensor, seconds: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    generator = torch.Generator().manual_seed(0)
    fast_bf16 = "avx512_bf16" in Path("/proc/cpuinfo").read_text()  # elsewhere it is slower than float32
    start, step = time.monotonic(), 0
    while (done := (time.monotonic() - start) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 50) * max(1 - done, 0.02)
        at = torch.randint(len(tokens) - LENGTH, (BATCH,), generator=generator)
        batch = torch.stack([tokens[i : i + LENGTH] for i in at.tolist()])
        with torch.autocast("cpu", torch.bfloat16, enabled=fast_bf16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {100 * done:.0f} % of the time", flush=True)
        step += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=5)
    chosen = parser.parse_args()
    learn, held = texts(chosen.texts)
    tok = tokenizer(learn)
    tokens = torch.tensor(tok(END.join(learn))["input_ids"])
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=704, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=2048, bos_token_id=0, eos_token_id=0))
    print(f"{len(tokens)} tokens, {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    train(model, tokens, 60 * chosen.minutes)
    model.save_pretrained(chosen.out)
    tok.save_pretrained(chosen.out)
    (chosen.out / "held_out.txt").write_text("\n".join(held) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
