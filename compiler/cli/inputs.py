"""Inputs of an engine: from text through the artifact's tokenizer, from photos and recordings, from files, or made up."""

from __future__ import annotations

import io
import json
import math
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from infc.compiler import audio, image, preprocessor, recordings
from infc.compiler.cli.console import say
from infc.compiler.errors import ArtifactError, UsageError
from infc.compiler.recordings import FIELDS, dtype_of, fit, largest

if TYPE_CHECKING:
    from infc.compiler.artifact.io import IoSpec
    from infc.compiler.artifact.reader import Artifact

Arrays = dict[str, NDArray[Any]]
_SMALL = 1 << 20  # bytes that a file of inputs may always have
_WIDEST = 8  # bytes of an element
_PLACES = ("position_ids", "logit_rows")  # of a language model: numbers of tokens
_LONGEST_NUMBER = 4  # bytes of a number in JSON by one of its own


class Tokenizer:
    """The model's own tokenizer, from an artifact's TOKENIZER section. Raises UsageError when there is none that can be read."""

    def __init__(self, artifact: Artifact) -> None:
        from tokenizers import Tokenizer as Fast

        files = carried(artifact)
        if not set(files) - set(preprocessor.FILES):
            raise UsageError("E0030", "the artifact holds no tokenizer", where="--text",
                             hint="give token ids as an .npz or .json file")
        if "tokenizer.json" not in files:
            raise UsageError("E0030", "the artifact's tokenizer is not in the tokenizer.json format", where="--text",
                             hint="give token ids as an .npz or .json file")
        try:
            self._fast = Fast.from_str(files["tokenizer.json"].decode())
        except Exception as error:  # the library raises nothing narrower
            raise UsageError("E0030", f"the artifact's tokenizer cannot be read: {error}", where="--text",
                             hint="build the artifact again") from error
        self._io, self._files = artifact.io, files
        self._pad_token, self._made_for = self._reads_padding(files)

    def _reads_padding(self, files: Mapping[str, bytes]) -> tuple[int | None, int]:
        """The padding token and the number of tokens that a model was made for whose tokenizer gives no mask, such as SigLIP's: it
        reads its padding. (None, 0) for others."""
        try:
            config = json.loads(files.get("tokenizer_config.json", b"{}"))
            token = config.get("pad_token")
            number = self._fast.token_to_id(token["content"] if isinstance(token, dict) else str(token))
            if "attention_mask" not in config.get("model_input_names", ["attention_mask"]) and number is not None:
                return number, int(config["model_max_length"])
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
            pass  # a file that says nothing of the kind
        return None, 0

    def batches(self, texts: Sequence[str], beside: Collection[str] = ()) -> list[tuple[Arrays, int]]:
        """Inputs for ``texts`` in batches the largest profile can take, each with its number of texts.

        Texts are cut to the largest profile and padded to the longest of their batch, or to a profile's size where a dimension
        must match exactly; a batch that must match exactly is filled up with its last text. Inputs in ``beside`` are left out.
        """
        batch_name, seq_name = self._axes()
        batch_size, longest = largest(self._io, batch_name), largest(self._io, seq_name)
        self._fast.no_padding()
        self._fast.enable_truncation(longest)
        out = []
        for at in range(0, len(texts), batch_size):
            part = list(texts[at:at + batch_size])
            encoded = self._fast.encode_batch(part)
            self._tell_cut(part, encoded, at, longest)
            sizes = fit(self._io, self._wanted(encoded))
            encoded += [encoded[-1]] * (sizes[batch_name] - len(part))
            out.append((self._arrays(encoded, sizes[seq_name], beside), len(part)))
        return out

    def beside(self, texts: Sequence[str], path: Path) -> tuple[Arrays, dict[str, int]]:
        """Inputs for all ``texts`` and for the photo in the file ``path``, and how many entries count along which dimensions.

        Raises UsageError E0031 for a model that does not take both, E0048 for more texts than the engine takes.
        """
        batch_name, seq_name = self._axes()
        self._fast.no_padding()
        self._fast.enable_truncation(largest(self._io, seq_name))
        wanted = self._wanted(self._fast.encode_batch(list(texts)))
        shown = recordings.inputs(path, self._io, self._files, say, wanted)
        ((arrays, _),) = self.batches(texts, shown)
        rows = {str(t.dims[0]): 1 for t in self._io.inputs if t.name in shown}
        return arrays | shown, {**rows, str(batch_name): len(texts)}

    def _wanted(self, encoded: Sequence[Any]) -> dict[int | str, int]:
        """The sizes that texts need: their number, and the tokens of the longest, or as many as a model was made for that reads
        its padding."""
        batch_name, seq_name = self._axes()
        length = max(len(e.ids) for e in encoded)
        if self._pad_token is not None:
            length = min(max(length, self._made_for), largest(self._io, seq_name))
        return {batch_name: len(encoded), seq_name: length}

    def _tell_cut(self, texts: Sequence[str], encoded: Sequence[Any], first: int, longest: int) -> None:
        """One line on stderr for each text that was cut."""
        self._fast.no_truncation()
        for number, (text, e) in enumerate(zip(texts, encoded, strict=True), first + 1):
            if e.overflowing:
                whole = len(self._fast.encode(text).ids)
                say(f"text {number} is cut: {len(e.ids)} of its {whole} tokens are used, as many as the largest profile takes")
        self._fast.enable_truncation(longest)

    def _axes(self) -> tuple[int | str, int | str]:
        ids = next((t for t in self._io.inputs if t.name == "input_ids"), None)
        if any(t.name == "logit_rows" for t in self._io.inputs):
            raise UsageError("E0031", "a language model is given a prompt", where="--text", hint="use --prompt")
        if ids is None or len(ids.dims) != 2:
            raise UsageError("E0031", "the model does not take token ids", where="--text",
                             hint=f"give {', '.join(t.name for t in self._io.inputs)} as an .npz or .json file")
        return ids.dims[0], ids.dims[1]

    def _arrays(self, encoded: Sequence[Any], length: int, beside: Collection[str]) -> Arrays:
        out: Arrays = {}
        for tensor in self._io.inputs:
            field = FIELDS.get(tensor.name)
            if field is None:
                if tensor.optional or tensor.name in beside:
                    continue
                raise UsageError("E0031", f"text gives no value for input '{tensor.name}'", where="--text",
                                 hint="give a photo too: infc run ENGINE photo.jpg --text …" if tensor.name == "pixel_values" else
                                 "give all inputs as an .npz or .json file")
            if field == "attention_mask" and self._pad_token is not None:
                continue
            rows = np.full((len(encoded), length), (self._pad_token or 0) if field == "ids" else 0, dtype_of(tensor))
            for row, e in zip(rows, encoded, strict=True):
                values = getattr(e, field)
                row[:len(values)] = values
            out[tensor.name] = rows
        return out


def recorded(path: Path, artifact: Artifact) -> tuple[Arrays, int]:
    """See ``recordings.inputs``; one row counts."""
    return recordings.inputs(path, artifact.io, carried(artifact), say), 1


def carried(artifact: Artifact) -> dict[str, bytes]:
    """The model's own files, by name."""
    section = artifact.section("TOKENIZER")
    return _untar(bytes(section)) if section is not None else {}


def _untar(data: bytes) -> dict[str, bytes]:
    """Not compressed and without holes, as infc writes it: what comes out is no larger than what went in."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            found = [m for m in tar.getmembers() if m.isfile() and not m.issparse() and m.size <= len(data)]
            opened = ((m.name.removeprefix("./"), tar.extractfile(m)) for m in found)
            return {name: f.read() for name, f in opened if f}
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise ArtifactError("E0610", f"the section TOKENIZER is not an archive: {error}",
                            hint="build the artifact again") from error


def read(path: Path, artifact: Artifact) -> tuple[Arrays, int]:
    """The inputs in a file of any kind, and the number of rows that count; 0 for all."""
    if path.suffix.lower() in image.SUFFIXES + audio.SUFFIXES:
        return recorded(path, artifact)
    return load(path, artifact.io), 0


def load(path: Path, spec: IoSpec) -> Arrays:
    """Arrays by input name from an ``.npz``, or from a ``.json`` object of nested lists (cast to the input's type)."""
    if path.suffix == ".npz":
        return _load_npz(path, _unpacked(spec))
    if path.suffix != ".json":
        raise UsageError("E0032", f"'{path.suffix}' is no kind of input file", where=str(path),
                         hint="use .npz or .json; .jpg, .png or .wav for models of images and speech")
    try:
        if path.stat().st_size > _LONGEST_NUMBER * _unpacked(spec):
            raise ValueError(f"{path.stat().st_size >> 20} MiB are more than the engine takes")
        data = json.loads(path.read_text())
    except (ValueError, RecursionError) as e:
        raise UsageError("E0033", f"not valid JSON: {e}", where=str(path), hint='write {"input_ids": [[101, 102]], …}') from None
    if not isinstance(data, dict):
        raise UsageError("E0033", "not a JSON object", where=str(path), hint='write {"input_ids": [[101, 102]], …}')
    types = {t.name: dtype_of(t) for t in spec.inputs}
    return {name: _array(name, value, types.get(name), path) for name, value in data.items()}


def _unpacked(spec: IoSpec) -> int:
    """The most bytes that a file of inputs may unpack to: what the engine takes at the largest profile, in the widest type, and as
    much again of what it does not know."""
    taken = sum(math.prod(largest(spec, axis) for axis in t.dims) for t in spec.inputs)
    return _SMALL + 2 * _WIDEST * taken


def _load_npz(path: Path, most: int) -> Arrays:
    try:
        with zipfile.ZipFile(path) as packed:
            if (unpacked := sum(m.file_size for m in packed.infolist())) > most:
                raise ValueError(f"it unpacks to {unpacked >> 20} MiB, more than the engine takes")
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, MemoryError,
            SyntaxError) as e:
        if isinstance(e, OSError) and e.filename is not None:
            raise
        raise UsageError("E0033", f"not arrays in an .npz file: {e}", where=str(path),
                         hint="write it with np.savez(path, input_ids=…); arrays of objects are not loaded") from None


def _array(name: str, value: Any, dtype: np.dtype[Any] | None, path: Path) -> NDArray[Any]:
    try:
        exact = np.asarray(value)
        cast = exact if dtype is None else exact.astype(dtype)
        if exact.dtype.kind not in "biuf" or (dtype is not None and dtype.kind in "iub" and not np.array_equal(exact, cast)):
            raise ValueError
    except (ValueError, OverflowError, TypeError):
        raise UsageError("E0033", f"'{name}' is no array of {dtype or 'numbers'}", where=str(path),
                         hint="give rows of equal length and numbers of the input's type") from None
    return cast


def made_up(spec: IoSpec, sizes: Mapping[str, int], seed: int = 0) -> Arrays:
    """Random inputs: integers within their range, floats normal; an optional input takes its fill value everywhere.

    So every position takes part: a mask's fill is 1. A language model's tokens follow each other, and logits are of the last.
    """
    rng = np.random.default_rng(seed)
    out: Arrays = {}
    for tensor in spec.inputs:
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in tensor.dims)
        dtype = dtype_of(tensor)
        if tensor.optional:
            out[tensor.name] = np.full(shape, tensor.fill, dtype)
        elif tensor.name in _PLACES and "tokens" in sizes:
            out[tensor.name] = np.maximum(np.arange(sizes["tokens"] - shape[-1], sizes["tokens"]), 0).astype(dtype).reshape(shape)
        elif dtype.kind == "f":
            out[tensor.name] = rng.standard_normal(shape).astype(dtype)
        else:
            low, high = tensor.range or (0, 1)
            out[tensor.name] = rng.integers(max(low, min(high, 0)), high, shape, endpoint=True).astype(dtype)
    return out


def sizes(spec: IoSpec, text: str | None) -> dict[str, int]:
    """The dimensions of ``--dims seq=77``, the rest from the largest profile. Raises UsageError for a name or size it lacks."""
    chosen = dict(spec.profiles[-1])
    if text is None:
        return chosen
    from infc.compiler.profiles import parse

    for name, size in parse(text).as_dict().items():
        if name not in chosen:
            raise UsageError("E0204", f"the artifact has no dimension '{name}'", where=f"--dims {text}",
                             hint=f"its dimensions are: {', '.join(chosen) or 'none, all are constant'}")
        largest = max(p[name] for p in spec.profiles)
        if size > largest:
            raise UsageError("E0208", f"{name}={size} is more than any profile has ({largest})", where=f"--dims {text}",
                             hint=f"build with a profile for it: infc build --profile {name}={size},…")
        chosen[name] = size
    return chosen
