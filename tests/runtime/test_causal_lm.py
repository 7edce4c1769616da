"""infc.CausalLM held against the model of transformers that was built."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import infc
from infc.compiler import driver
from tests.models import cache
from tests.models.families import PARITY, write
from tests.runtime import made_lm

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = ["the cat sat on the mat and", "a", "rain in the harbour"]
_LLAMA = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
          "vocab_size": 320, "max_position_embeddings": 192, "eos_token_id": 319, "bos_token_id": 318, "pad_token_id": 317}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 320, "n_positions": 192, "eos_token_id": 319, "bos_token_id": 318}
FAMILIES = {"llama": ("LlamaForCausalLM", _LLAMA), "gpt2": ("GPT2LMHeadModel", _GPT2),
            "mistral": ("MistralForCausalLM", {**_LLAMA, "sliding_window": 24})}


class Pair:
    """The same model twice."""

    def __init__(self, folder: Path, architecture: str, config: Mapping[str, Any]) -> None:
        write(architecture, config, folder)
        _tokenizer(folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "export", cache.export)
            driver.build(folder, folder.parent / "tiny.infc", tune=False, threads=1,
                         profiles=["tokens=1,rows=1", "tokens=16,rows=4"])
        self.path = folder.parent / "tiny.infc"
        self.theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        self.ours = infc.CausalLM(self.path, threads=1, cache_tokens=1024)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def padded(self, side: str, texts: list[str] = TEXTS) -> Any:
        return self.tokenizer(texts, padding=True, padding_side=side, return_tensors="pt", return_token_type_ids=False)

    def generate(self, **options: Any) -> tuple[Any, Any]:
        """Of both, from texts padded on the left."""
        ids = self.padded("left", options.pop("texts", TEXTS))
        results = []
        for model in (self.theirs, self.ours):
            torch.manual_seed(5)
            results.append(model.generate(**ids, **options))
        return results[0], results[1]


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    signs = {sign: number for number, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=signs | {"<pad>": 317, "<s>": 318, "</s>": 319}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
                                         model_max_length=192).save_pretrained(folder)


@pytest.fixture(scope="module", params=list(FAMILIES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    architecture, config = FAMILIES[request.param]
    return Pair(tmp_path_factory.mktemp("drop_in") / "model", architecture, config)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("drop_in") / "model", *FAMILIES["llama"])


def _far(ours: Any, theirs: Any) -> float:
    return float((ours - theirs).abs().max()) / max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_are_those_of_transformers_beside_padding(pair: Pair, side: str) -> None:
    ids = pair.padded(side)
    places = (ids.attention_mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        want = pair.theirs(**ids, position_ids=places).logits
    tokens = ids.attention_mask.bool()
    for given in ({}, {"position_ids": places}):
        got = pair.ours(**ids, **given).logits
        assert got.shape == want.shape
        assert _far(got[tokens], want[tokens]) <= PARITY
        assert not got[~tokens].any()


def test_without_a_mask_all_are_tokens(pair: Pair) -> None:
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 320, (3, 61)))
    with torch.no_grad():
        want = pair.theirs(ids, labels=ids)
        kept = pair.theirs(ids, logits_to_keep=5).logits
    got = pair.ours(ids, labels=ids)
    assert _far(got.logits, want.logits) <= PARITY
    assert abs(float(got.loss - want.loss)) < 1e-3
    assert torch.equal(pair.ours(ids).logits, got.logits)  # what is known from the last call changes nothing
    assert _far(pair.ours(ids, logits_to_keep=5).logits, kept) <= PARITY
    assert torch.equal(pair.ours(ids, logits_to_keep=torch.tensor([3, 60])).logits, got.logits[:, [3, 60]])
    assert torch.equal(pair.ours(ids, return_dict=False)[0], got.logits)


def test_padding_between_tokens_is_left_out(pair: Pair) -> None:
    ids = torch.tensor([[7, 317, 9, 30, 4, 317], [317, 1, 2, 3, 317, 5]])
    mask = (ids != 317).long()
    given = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    with torch.no_grad():
        want = pair.theirs(ids, **given).logits
    assert _far(pair.ours(ids, **given).logits[mask == 1], want[mask == 1]) <= PARITY


@pytest.mark.parametrize("options", [
    {"do_sample": False}, {"num_beams": 3, "num_return_sequences": 2}, {"do_sample": True, "temperature": 0.8, "top_k": 20},
    {"do_sample": True, "top_p": 0.8, "min_p": 0.02, "num_return_sequences": 2}, {"repetition_penalty": 1.3, "use_cache": True},
    {"eos_token_id": list(range(60)), "pad_token_id": 317}, {"no_repeat_ngram_size": 2, "min_new_tokens": 5},
], ids=["greedy", "beams", "top-k", "top-p", "repetition", "eos", "processors"])
def test_generates_what_transformers_generates(pair: Pair, options: dict[str, Any]) -> None:
    want, got = pair.generate(max_new_tokens=40, **options)
    assert got.tolist() == want.tolist()


def test_a_generation_config_is_kept_as_it_is(llama: Pair) -> None:
    llama.ours.generate(torch.tensor([[1, 2]]), max_new_tokens=2, use_cache=True)
    config = transformers.GenerationConfig(max_new_tokens=7, do_sample=False, return_dict_in_generate=True, output_logits=True)
    want, got = llama.generate(generation_config=config)
    assert config.use_cache is not False
    assert got.sequences.tolist() == want.sequences.tolist()
    assert _far(torch.stack(got.logits), torch.stack(want.logits)) <= PARITY


def test_criteria_processors_and_streamers(llama: Pair) -> None:
    class Stop(transformers.StoppingCriteria):  # type: ignore[misc]
        def __call__(self, ids: Any, scores: Any, **_: Any) -> Any:
            return torch.full((len(ids),), ids.shape[1] >= 40)

    class Streamer(transformers.generation.streamers.BaseStreamer):  # type: ignore[misc]
        def __init__(self) -> None:
            self.seen: list[int] = []

        def put(self, value: Any) -> None:
            self.seen += value.flatten().tolist()

        def end(self) -> None:
            self.seen.append(-1)

    def odd(ids: Any, scores: Any) -> Any:
        return scores.index_fill(1, torch.arange(0, 320, 2), -torch.inf)

    want, got = llama.generate(max_length=60, stopping_criteria=[Stop()], logits_processor=[odd])
    assert got.tolist() == want.tolist()
    assert got.shape[1] == 40
    assert (got[:, 26:] % 2 == 1).all()
    streamer = Streamer()
    found = llama.ours.generate(**llama.padded("left", TEXTS[:1]), max_new_tokens=5, streamer=streamer)
    assert streamer.seen == [*found[0].tolist(), -1]


def test_a_step_of_generation_computes_one_token_a_row(llama: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = infc.CausalLM(llama.path, threads=1, cache_tokens=1024), []

    class Counted:
        def __init__(self, lm: Any) -> None:
            self.lm = lm

        def sequence(self) -> Any:
            return self.lm.sequence()

        def step(self, parts: list[Any], out: Any) -> None:
            sizes.append([len(tokens) for _, tokens, _ in parts])
            self.lm.step(parts, out)

    monkeypatch.setattr(model.llm, "lm", Counted(model.llm.lm))
    model.generate(**llama.padded("left"), max_new_tokens=4, num_beams=1, do_sample=False)
    assert sizes == [[26, 1, 19], *[[1, 1, 1]] * 3]


def test_rows_that_the_cache_cannot_hold_together_are_computed_in_parts(llama: Pair) -> None:
    small = infc.CausalLM(llama.path, threads=1, max_sequences=3, prefix_cache=False)
    ids = torch.from_numpy(np.random.default_rng(2).integers(0, 300, (7, 100)))
    assert _far(small(ids).logits, llama.ours(ids).logits) <= 1e-6
    with pytest.warns(UserWarning, match="cache_tokens="):
        assert small.generate(ids, max_new_tokens=3).tolist() == llama.ours.generate(ids, max_new_tokens=3).tolist()


def test_pipeline(llama: Pair, caplog: pytest.LogCaptureFixture) -> None:
    made = [transformers.pipeline("text-generation", model=model, tokenizer=llama.tokenizer, device="cpu")
            for model in (llama.theirs, llama.ours)]
    want, got = (p(TEXTS, batch_size=2, max_new_tokens=12, do_sample=False) for p in made)
    assert got == want
    assert "not supported" not in caplog.text


def test_lm_evaluation_harness(llama: Pair) -> None:
    harness = pytest.importorskip("lm_eval.models.huggingface")
    instance = pytest.importorskip("lm_eval.api.instance").Instance
    pairs = [("the cat sat", " on the mat"), ("the cat sat", " in"), ("", "rain"), (TEXTS[0] * 5, " quiet")]
    found = []
    for model in (llama.theirs, llama.ours):
        lm = harness.HFLM(pretrained=model, tokenizer=llama.tokenizer, batch_size=3)
        scored = lm.loglikelihood([instance("loglikelihood", {}, pair, 0) for pair in pairs], disable_tqdm=True)
        rolled = lm.loglikelihood_rolling([instance("loglikelihood_rolling", {}, (TEXTS[0] * 12,), 0)], disable_tqdm=True)
        asked = [instance("generate_until", {}, (text, {"until": ["a"], "max_gen_toks": 20}), 0) for text in TEXTS]
        found.append((scored, rolled, lm.generate_until(asked, disable_tqdm=True)))
    (scored, rolled, written), (ours, rolled_ours, written_ours) = found
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in scored]
    assert [value for value, _ in ours] == pytest.approx([value for value, _ in scored], rel=1e-4)
    assert rolled_ours == pytest.approx(rolled, rel=1e-4)
    assert written_ours == written


def test_the_artifact_says_what_the_model_is(llama: Pair) -> None:
    ours, theirs = llama.ours.config, llama.theirs.config
    assert type(ours) is type(theirs)
    assert (ours.vocab_size, ours.hidden_size, ours.eos_token_id) == (320, 32, 319)
    assert ours.max_position_embeddings == llama.ours.llm.context
    assert llama.ours.can_generate()
    assert (llama.ours.device, llama.ours.dtype) == (torch.device("cpu"), torch.float32)
    assert llama.ours.to("cpu", torch.float32).float().eval() is llama.ours
    llama.ours.tie_weights()
    assert llama.ours.tokenizer(TEXTS).input_ids == llama.tokenizer(TEXTS).input_ids
    assert infc.CausalLM.from_pretrained(llama.path, threads=1).config.vocab_size == 320


def test_files_of_a_tokenizer_stay_in_their_folder(llama: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = infc.CausalLM(llama.path, threads=1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(model.llm, "_files", {**model.llm._files, "../out": b"", str(tmp_path / "whole"): b""})
    assert model.tokenizer(TEXTS).input_ids == llama.tokenizer(TEXTS).input_ids
    assert not list(tmp_path.iterdir())


def test_a_model_that_tells_nothing_of_itself() -> None:
    model = infc.CausalLM(made_lm.artifact(), threads=1)
    assert (model.config.vocab_size, model.config.max_position_embeddings) == (made_lm.VOCABULARY, made_lm.CONTEXT)
    prompt = [5, 9, 33, 2]
    found = model.generate(torch.tensor([prompt]), max_new_tokens=20)
    assert found[0].tolist() == prompt + made_lm.greedy(prompt, 20)
    assert model.tokenizer("ab c").input_ids == model.llm.encode("ab c").tolist()


@pytest.mark.parametrize(("given", "name"), [
    ({"past_key_values": object()}, "past_key_values"),
    ({"use_cache": True}, "use_cache"),
    ({"output_attentions": True}, "output_attentions"),
    ({"output_hidden_states": True}, "output_hidden_states"),
    ({"inputs_embeds": torch.zeros(1, 4, 32)}, "inputs_embeds"),
    ({"head_mask": torch.ones(1)}, "head_mask"),
    ({"attention_mask": torch.tensor([[1, 0, 1, 1]])}, "padding between"),
    ({"attention_mask": torch.tensor([[0, 1, 0, 1]])}, "padding between"),
    ({"attention_mask": torch.ones(1, 1, 4, 4)}, "attention_mask of shape"),
    ({"position_ids": torch.tensor([[1, 2, 3, 4]])}, "position_ids"),
    ({"position_ids": torch.arange(3)[None]}, "position_ids of shape"),
])
def test_what_an_artifact_cannot_do_is_refused_by_name(llama: Pair, given: dict[str, Any], name: str) -> None:
    with pytest.raises(infc.Error, match=f"{name}.*not possible"):
        llama.ours(torch.tensor([[1, 2, 3, 4]]), **given)


def test_so_are_ways_of_generating(llama: Pair) -> None:
    ids = torch.tensor([[1, 2, 3, 4]])
    with pytest.raises(ValueError, match="ASSISTED"):
        llama.ours.generate(ids, max_new_tokens=4, prompt_lookup_num_tokens=2)
    with pytest.raises(infc.Error, match="cache_implementation"):
        llama.ours.generate(ids, max_new_tokens=4, cache_implementation="static")
    with pytest.raises(infc.Error, match="inputs_embeds"):
        llama.ours.generate(inputs_embeds=torch.zeros(1, 4, 32), max_new_tokens=4)
    for new in (1, 4):
        with pytest.raises(infc.Error, match=r"after padding.*pad on the left"):
            llama.ours.generate(ids, attention_mask=torch.tensor([[1, 1, 1, 0]]), max_new_tokens=new)
    with pytest.raises(infc.Error, match=r"193 tokens are more than the context of 192.*max_new_tokens"):
        llama.ours.generate(ids, max_new_tokens=400, eos_token_id=None)
    with pytest.raises(infc.Error, match="output_attentions"):
        llama.ours.generate(ids, max_new_tokens=4, output_attentions=True, return_dict_in_generate=True)
    with pytest.raises(infc.Error, match="context"):
        llama.ours(torch.zeros(1, 193, dtype=torch.int64))
    with pytest.raises(infc.Error, match="token 320"):
        llama.ours(torch.tensor([[(1 << 32) + 5]]))
    with pytest.raises(infc.Error, match="continuous batching"):
        llama.ours.generate_batch([[1, 2]], generation_config=transformers.GenerationConfig(max_new_tokens=2))
    assert llama.ours(torch.zeros(2, 0, dtype=torch.int64)).logits.shape == (2, 0, 320)
    for refused in (llama.ours.train, llama.ours.half, lambda: llama.ours.to("meta"), lambda: llama.ours.save_pretrained("x")):
        with pytest.raises(infc.Error, match="not possible"):
            refused()


def test_without_transformers_an_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['transformers'] = None; import infc; infc.CausalLM"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert "INFC-E0006: infc.CausalLM needs 'transformers'" in said
