"""infc.CausalLM: an artifact of a language model as a model of transformers. Needs torch and transformers.

>>> model = infc.CausalLM("smollm2.infc", threads=2)
>>> pipeline("text-generation", model=model, tokenizer=model.tokenizer)
>>> HFLM(pretrained=model, tokenizer=model.tokenizer)                     # lm-evaluation-harness

``generate`` is transformers' own, with its samplers, beams, streamers and criteria. Each step gives it logits of the artifact.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from infc.runtime import Status, _error, _rt
from infc.runtime.llm import LLM

try:
    import torch
    import transformers
    from transformers.generation.configuration_utils import GenerationMode
    from transformers.modeling_outputs import CausalLMOutputWithPast
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ImportError as missing:
    raise ImportError(f"INFC-E0006: infc.CausalLM needs '{missing.name}', which is not installed\n"
                      "  try: pip install torch 'transformers>=5'; infc.LLM needs neither") from missing

Ids = np.ndarray[Any, np.dtype[np.int32]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx")
_NOT_THE_MODELS_OWN = ("quantization_config", "auto_map", "_name_or_path")  # of the checkpoint, not of what was built of it


class CausalLM(transformers.PreTrainedModel, transformers.GenerationMixin):  # type: ignore[no-untyped-call]
    """A causal language model of transformers that computes with an artifact. Used by one thread at a time.

    Keys and values of the last call's rows stay, and are found by their tokens: a call with all tokens so far computes those that
    are new. So there is no cache object; ``past_key_values`` is refused, as is whatever else the artifact cannot do.
    """

    config_class = transformers.PreTrainedConfig
    main_input_name = "input_ids"
    _supported_generation_modes = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, GenerationMode.BEAM_SEARCH,
                                   GenerationMode.BEAM_SAMPLE)

    def __init__(self, source: str | os.PathLike[str] | bytes | LLM, threads: int | None = None, **options: Any) -> None:
        """``source`` is an artifact, or a model that is open. ``options`` are those of LLM; ``cache_tokens`` should be enough for
        all rows of a batch together, by default it is for one at the full context. Raises Error as LLM does."""
        lm = source if isinstance(source, LLM) else LLM(source, threads, **options)
        super().__init__(_config(lm))
        self.llm = lm
        self._rows: dict[bytes, _rt.Sequence] = {}  # of the last call, by their tokens
        if said := lm._files.get("generation_config.json"):
            self.generation_config = transformers.GenerationConfig.from_dict(json.loads(said))
        self.generation_config.cache_implementation = None  # it is about transformers' cache
        self.train(False)

    @classmethod
    def from_pretrained(cls, source: str | os.PathLike[str], *args: Any, **options: Any) -> CausalLM:  # type: ignore[override]
        """As ``CausalLM(source, ...)``."""
        return cls(source, *args, **options)

    @cached_property
    def tokenizer(self) -> Any:
        """transformers' tokenizer, of the artifact's files. Raises Error if it has none."""
        if "tokenizer.json" not in self.llm._files:
            raise _error(Status.INVALID_ARGUMENT,
                         "the artifact has no tokenizer: take AutoTokenizer.from_pretrained of what it was built from")
        with tempfile.TemporaryDirectory() as folder:
            for name, content in self.llm._files.items():
                if Path(name).name == name:  # an artifact may be anybody's
                    (Path(folder) / name).write_bytes(content)
            self.config.save_pretrained(folder)
            return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)

    # ---- What torch and transformers ask of a model

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Of logits."""
        return torch.float32

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> CausalLM:
        """What ``to``, ``half``, ``cuda`` and their like do to weights. Raises Error for another place or type than it has."""
        wanted = fn(torch.zeros(0))
        if (wanted.device, wanted.dtype) != (self.device, self.dtype):
            raise _refusal(f"going to {wanted.device} and {wanted.dtype}", "it computes on the CPU, in the precision it was built "
                           "in, and gives float32; a pipeline takes device='cpu'")
        return self

    def train(self, mode: bool = True) -> CausalLM:
        """Raises Error but for ``mode=False``: there is nothing to train."""
        if mode:
            raise _refusal("training", "train the model that the artifact was built from")
        return super().train(False)  # type: ignore[no-any-return]

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Raises Error: the artifact is the file to copy."""
        raise _refusal("save_pretrained", "copy the artifact")

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """Raises Error: LLM has its own."""
        raise _refusal("continuous batching of transformers", "infc.LLM.request computes requests together")

    # ---- Computing

    def generate(self, inputs: Any = None, generation_config: Any = None, *more: Any, **kwargs: Any) -> Any:
        """transformers' ``generate``: greedy, sampling and beams. Raises as it does, and Error."""
        if kwargs.get("cache_implementation") or getattr(generation_config, "cache_implementation", None):
            raise _refusal("cache_implementation", "infc build --kv-cache chooses how keys and values are kept")
        if kwargs.get("inputs_embeds") is not None or (torch.is_tensor(inputs) and inputs.is_floating_point()):
            raise _refusal("inputs_embeds", _HINTS["inputs_embeds"])
        mask = kwargs.get("attention_mask")
        if torch.is_tensor(mask) and mask.ndim == 2 and mask.shape[1] and (mask[:, -1] == 0).any():
            raise _refusal("generating after padding, or a row of nothing else", _LEFT)
        kwargs["use_cache"] = False  # transformers' own: each step brings all tokens
        if generation_config is not None:
            generation_config = copy.deepcopy(generation_config)
            generation_config.use_cache = kwargs.pop("use_cache")
        return super().generate(inputs, generation_config, *more, **kwargs)

    def forward(self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
                position_ids: torch.Tensor | None = None, past_key_values: Any = None, labels: torch.Tensor | None = None,
                use_cache: bool | None = None, logits_to_keep: int | torch.Tensor = 0, return_dict: bool | None = None,
                **others: Any) -> Any:
        """Logits f32 [batch, tokens, vocabulary], or of the last ``logits_to_keep`` tokens, or of those at these indices; zeros at
        padding. ``attention_mask`` [batch, tokens] is 0 there, before a row's tokens or after; positions count a row's tokens from
        0. With ``labels`` the loss besides, the mean over tokens whose label is not -100. Raises Error for what is not here."""
        asked = {"past_key_values": past_key_values, "use_cache": use_cache, **others}
        for name in (n for n, value in asked.items() if value is not None and value is not False and n not in _HANDED_ON):
            raise _refusal(name, _HINTS.get(name, "leave it out"))
        if input_ids is None or input_ids.ndim != 2:
            raise _refusal("a call without input_ids [batch, tokens]", "give token ids")
        tokens = _tokens(input_ids, attention_mask, position_ids)
        if (longest := int(tokens.sum(1).max(initial=0))) > self.llm.context:
            raise _error(Status.BAD_SHAPE, f"{longest} tokens are more than the context of {self.llm.context}: give fewer, or a "
                         "smaller max_new_tokens, or build with a larger --context")
        kept = torch.arange(input_ids.shape[1])
        kept = kept[-logits_to_keep:] if isinstance(logits_to_keep, int) else kept[logits_to_keep]
        ids = input_ids.clamp(-1, self.llm.vocabulary).numpy().astype(np.int32)  # no number that is no token becomes one
        logits = torch.from_numpy(self._logits(ids, tokens, kept.numpy()))
        loss = None if labels is None else _loss(logits, labels)
        result = CausalLMOutputWithPast(loss=loss, logits=logits)
        return result.to_tuple() if return_dict is False else result

    def _logits(self, ids: Ids, tokens: Mask, kept: np.ndarray[Any, np.dtype[np.int64]]) -> Floats:
        """[batch, len(kept), vocabulary]: of what are ``tokens`` in the columns ``kept``."""
        out = np.zeros((len(ids), len(kept), self.llm.vocabulary), np.float32)
        keys = [row[mask].tobytes() for row, mask in zip(ids, tokens, strict=True)]
        places = [(np.cumsum(mask) - 1)[kept[mask[kept]]] for mask in tokens]  # of the logits that are wanted, in a row's tokens
        wanted: dict[bytes, int] = {}  # rows that differ, and from which of its tokens on logits are wanted
        for key, place in zip(keys, places, strict=True):
            if len(place):
                wanted[key] = min(wanted.get(key, int(place.min())), int(place.min()))
        found = self._compute(list(wanted.items()))
        for key, place, mask, result in zip(keys, places, tokens, out, strict=True):
            if len(place):
                result[mask[kept]] = found[key][place - wanted[key]]
        return out

    def _compute(self, wanted: Sequence[tuple[bytes, int]]) -> Mapping[bytes, Floats]:
        """Logits of rows from a token on. All at once if the cache can hold them, else in parts."""
        if not wanted:
            return {}
        try:
            return self._step(wanted)
        except _rt.Error as error:
            if error.status != Status.CACHE_FULL or (len(wanted) == 1 and not self._rows):
                raise
        if self._rows:  # too many sequences together with those of the last call
            self._rows = {}
            return self._compute(wanted)
        if any(first for _, first in wanted):
            warnings.warn(f"the cache holds {self.llm.info['cache_tokens']} tokens, fewer than {len(wanted)} rows need: they are "
                          "computed in parts, which is slow; CausalLM(..., cache_tokens=) makes it larger", stacklevel=2)
        half = len(wanted) // 2
        return {**self._compute(wanted[:half]), **self._compute(wanted[half:])}

    def _step(self, wanted: Sequence[tuple[bytes, int]]) -> Mapping[bytes, Floats]:
        rows = {key: self._sequence(key, first) for key, first in wanted}
        self._rows = {}  # before the step: what nobody shares is not copied when written to
        lengths = [len(key) // 4 - first for key, first in wanted]
        out = np.empty((sum(lengths), self.llm.vocabulary), np.float32)
        self.llm.lm.step([(sequence, np.frombuffer(key, np.int32)[len(sequence):], length)
                          for (key, sequence), length in zip(rows.items(), lengths, strict=True)], out)
        self._rows = rows
        return dict(zip(rows, np.split(out, np.cumsum(lengths)[:-1]), strict=True))

    def _sequence(self, tokens: bytes, most: int) -> _rt.Sequence:
        """One that begins with ``most`` tokens or fewer of these, as many as are known."""
        known = max((k for k in self._rows if len(k) <= 4 * most and tokens.startswith(k)), key=len, default=None)
        if known is not None:
            return self._rows[known].fork()
        made = self.llm.lm.sequence()
        if most:
            made.reuse(np.frombuffer(tokens, np.int32, most))
        return made


MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault("infc", CausalLM.__name__)  # pipelines ask for the class's name there
_HINTS = {
    "past_key_values": "give all tokens so far: those known from the last call are not computed again",
    "cache": "give all tokens so far: those known from the last call are not computed again",
    "use_cache": "leave it out and give all tokens at each call: those known from the last one are not computed again",
    "inputs_embeds": "give input_ids: the artifact begins with tokens",
    "output_attentions": "ask the model that the artifact was built from",
    "output_hidden_states": "ask the model that the artifact was built from",
}


_LEFT = "pad on the left (padding_side='left' of the tokenizer): what is generated follows the last column"
_HANDED_ON = ("tokenizer", "assistant_tokenizer")  # by generate, which has used them


def _refusal(what: str, hint: str) -> _rt.Error:
    return _error(Status.INVALID_ARGUMENT, f"{what} is not possible with an artifact: {hint}")


def _config(lm: LLM) -> Any:
    """The checkpoint's config.json, which META has, with the context that was built."""
    about: dict[str, Any] = json.loads(bytes(lm.engine.section("META") or b"{}")).get("config") or {}
    said = {k: v for k, v in about.items() if k not in _NOT_THE_MODELS_OWN}
    kind = said.pop("model_type", None)
    if kind in transformers.CONFIG_MAPPING:
        config = transformers.AutoConfig.for_model(kind, **said)
    else:
        config = transformers.PreTrainedConfig(**{"vocab_size": lm.vocabulary, "max_position_embeddings": lm.context, **said})
    for part in {id(c): c for c in (config, config.get_text_config())}.values():
        for name in (n for n in _LENGTHS if getattr(part, n, None) is not None):
            setattr(part, name, lm.context)
    config.use_cache = False
    return config


def _tokens(ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor | None) -> Mask:
    """Which are tokens, not padding. Raises Error for positions other than those that the artifact counts."""
    if mask is not None and mask.shape != ids.shape:
        raise _refusal(f"an attention_mask of shape {tuple(mask.shape)}", f"give {tuple(ids.shape)}: 1 for tokens, 0 for padding")
    found: Mask = np.ones(ids.shape, bool) if mask is None else mask.numpy() != 0
    if positions is not None and positions.shape not in (ids.shape, (1, ids.shape[1])):
        raise _refusal(f"position_ids of shape {tuple(positions.shape)}", f"leave them out, or give {tuple(ids.shape)}")
    if positions is None:
        begins = found & ~np.pad(found, ((0, 0), (1, 0)))[:, :-1]
        if (begins.sum(1) > 1).any():
            raise _refusal("an attention_mask with padding between tokens", "give position_ids that count a row's tokens alone")
    elif (positions.expand(ids.shape).numpy() != np.cumsum(found, 1) - 1)[found].any():
        raise _refusal("position_ids that do not count a row's tokens from 0", f"leave them out; for generate {_LEFT}")
    return found


def _loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of each token by what came before it."""
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
