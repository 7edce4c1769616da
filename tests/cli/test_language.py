"""The commands of language models: infc run --prompt, chat, eval and bench, on a tiny one with a tokenizer."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infc.compiler import driver
from infc.runtime.llm import LLM, Message
from tests.cli.conftest import Done
from tests.models import cache
from tests.models.families import write

TEXT = "the cat sat on the mat"
_CONFIG = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
           "vocab_size": 320, "max_position_embeddings": 256, "eos_token_id": 319, "bos_token_id": 319, "pad_token_id": 319}
_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"

Cli = Callable[..., Done]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = write("LlamaForCausalLM", _CONFIG, tmp_path_factory.mktemp("language") / "model")
    signs = {sign: number for number, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=signs, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "export", cache.export)
        built = driver.build(folder, folder.parent / "tiny.infc", tune=False, threads=1,
                             profiles=["tokens=1,rows=1", "tokens=16,rows=16"])
    return built.path


def test_run_continues_a_prompt(cli: Cli, engine: Path) -> None:
    want = LLM(engine, threads=1).generate(TEXT, max_new_tokens=9)
    said = cli("run", engine, "--prompt", TEXT, "--max-new-tokens", 9, "--threads", 1)
    assert (said.code, said.out) == (0, want + "\n")
    assert "22 tokens of prompt" in said.err
    found = cli("run", engine, "--prompt", TEXT, "--max-new-tokens", 9, "--json").json
    assert (found["text"], found["new_tokens"], found["finish"]) == (want, 9, "length")


def test_a_gpu_is_asked_for_and_there_is_no_engine_for_one(cli: Cli, engine: Path) -> None:
    said = cli("run", engine, "--prompt", TEXT, "--device", "cuda")
    assert said.code == 3
    assert "INFC-E0655" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(("argv", "where"), [
    (("--prompt", TEXT, "--text", TEXT), "--text"), (("--prompt", TEXT, "-o", "x.npz"), "--output"),
    (("x.npz", "--prompt", TEXT), "INPUTS"),
    (("--text", TEXT, "--temperature", 0.5), "--temperature"), (("--text", TEXT, "--prompt-lookup"), "--prompt-lookup"),
])
def test_run_takes_a_prompt_or_inputs(cli: Cli, engine: Path, argv: tuple[object, ...], where: str) -> None:
    said = cli("run", engine, *argv)
    assert said.code == 2
    assert said.err.startswith("INFC-E0034")
    assert f"where: {where}" in said.err


def test_chat_remembers_what_was_said(cli: Cli, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n\nAgain\n/reset\nHello\n/exit\nnever\n"))
    said = cli("chat", engine, "--max-new-tokens", 5, "--json")
    assert said.code == 0
    first, second, third = map(json.loads, said.out.splitlines())
    assert first["text"] == LLM(engine, threads=1).generate([{"role": "user", "content": "Hello"}], max_new_tokens=5)
    assert second["prompt_tokens"] > first["prompt_tokens"] + 5
    assert (third["text"], third["prompt_tokens"]) == (first["text"], first["prompt_tokens"])


def test_chat_forgets_the_oldest_turns_when_the_context_is_full(cli: Cli, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[list[Message]] = []

    def answer(lm: LLM, prompt: list[Message], *_: object) -> str:
        assert len(lm.encode(lm.chat(prompt), special=False)) < lm.context
        prompts.append(prompt)
        return "y" * 20

    monkeypatch.setattr("infc.compiler.cli.language.answer", answer)
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{n}{'x' * 20}\n" for n in range(9))))
    said = cli("chat", engine, "--system", "Be brief.", "--max-new-tokens", 20)
    assert said.code == 0
    assert all(p[0]["content"] == "Be brief." for p in prompts)
    assert [p[-1]["content"][0] for p in prompts] == [str(n) for n in range(9)]
    assert [len(p) for p in prompts] == [2, 4, 6, 8, 4, 6, 8, 4, 6]  # a turn is 60 tokens of 256
    assert [p[1]["content"][0] for p in prompts] == list("000033366")
    assert said.err.count("the oldest 3 of 4 turns are forgotten") == 2


@pytest.mark.parametrize("live", [True, False])
def test_chat_says_that_a_message_is_too_long(cli: Cli, engine: Path, monkeypatch: pytest.MonkeyPatch, live: bool) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{'x' * 300}\nHello\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: live)
    said = cli("chat", engine, "--max-new-tokens", 5)
    assert said.code == (0 if live else 2)
    assert "INFC-E0063" in said.err
    assert "new tokens" in said.err  # Hello is answered all the same


def test_chat_goes_on_after_bytes_that_are_no_text(cli: Cli, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\udcff\nHello\n"))
    said = cli("chat", engine, "--max-new-tokens", 5)
    assert said.code == 2
    assert "is not UTF-8" in said.err
    assert "new tokens" in said.err


def test_a_prompt_that_is_no_text(cli: Cli, engine: Path) -> None:
    said = cli("run", engine, "--prompt", "a\udcff")
    assert said.code == 2
    assert said.err.startswith("INFC-E0651: the text is not UTF-8")
    assert "Traceback" not in said.err


def test_eval_is_the_mean_log_likelihood(cli: Cli, engine: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text(f"{TEXT}\n\nx\n{TEXT * 2}\n")
    found = cli("eval", engine, "--perplexity", tmp_path / "texts.txt", "--window", 16, "--json").json["results"][0]
    lm, losses = LLM(engine, threads=1), []
    for text in (TEXT, "x", TEXT * 2):
        ids = lm.encode(text)
        for piece in (ids[i : i + 16] for i in range(0, len(ids), 16)):
            logits = lm.logits(piece).astype(np.float64)
            chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            losses += [-np.log(chances[i, token]) for i, token in enumerate(piece[1:])]
    assert found["tokens"] == len(losses)
    assert found["perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)
    both = cli("eval", engine, "--perplexity", tmp_path / "texts.txt", "--against", engine)
    assert both.out.count("+0.00%") == 1


def test_eval_says_what_it_cannot_read(cli: Cli, engine: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("x\n")
    assert cli("eval", engine, "--perplexity", tmp_path / "absent.txt").err.startswith("INFC-E0800")
    assert cli("eval", engine, "--perplexity", tmp_path / "short.txt").err.startswith("INFC-E0061")


def test_bench_counts_every_token(cli: Cli, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infc.compiler.cli.bench_language._PROBE", 1 << 12)
    argv: list[Any] = ["bench", engine, "--prompt-tokens", "3,20", "--new-tokens", 6, "--runs", 10, "--concurrency", "1,3",
                       "--burst", 2]
    found = cli(*argv, "--json").json
    for length in ("3", "20"):
        row = found["prompts"][length]
        assert (row["requests"], row["ttft"]["runs"], row["itl"]["runs"]) == (10, 10, 50)
        assert 0 < row["itl"]["minimum"] <= row["itl"]["median"]
    assert {n: row["ttft"]["runs"] for n, row in found["concurrency"].items()} == {"1": 10, "3": 9}
    assert (found["burst"]["ttft"]["runs"], found["burst"]["itl_before"]["runs"]) == (2, 5)
    assert cli(*argv).code == 0


@pytest.mark.parametrize("argv", [("--prompt-tokens", 0), ("--prompt-tokens", 250, "--new-tokens", 20), ("--concurrency", "two")])
def test_bench_says_what_it_cannot_measure(cli: Cli, engine: Path, argv: tuple[object, ...]) -> None:
    said = cli("bench", engine, *argv)
    assert said.code == 2
    assert said.err.startswith("INFC-E0062")
