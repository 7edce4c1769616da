"""A recording as a model of transformers takes it, by the model's own preprocessor_config.json: its samples, or their log-mel
spectrogram as Whisper computes it; in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infc.compiler import wav
from infc.compiler.errors import UsageError

SUFFIXES = (".wav",)
_MOST_BYTES = 1 << 28  # of samples: 2.3 hours at 16 kHz
_MOST = 1 << 16  # of a setting
_SLOWEST, _FASTEST = 1000, 400000  # samples a second of a recording
_ZEROS, _ROLL_OFF = 32, 0.96  # of the resampler: crossings of zero on either side, where it begins to cut
_AT_ONCE = 1 << 22  # elements of a product
_QUIET = 1e-10  # the least power of a band

_RAW: dict[str, Any] = {"sampling_rate": 16000, "do_normalize": True}
_MEL: dict[str, Any] = {"sampling_rate": 16000, "do_normalize": False, "feature_size": 80, "hop_length": 160, "chunk_length": 30,
                        "n_fft": 400}


def samples(path: Path, config: Mapping[str, Any], most: int, tell: Callable[[str], None] = lambda line: None,
            size: Callable[[int], int] = lambda count: count, masked: bool = False) -> tuple[NDArray[Any], int]:
    """[samples] f32 as wav2vec 2.0 and HuBERT take them, and how many of them are the recording's, ``most`` at most; ``tell`` hears
    of one that is cut or padded. Silence makes them as many as ``size`` says of their number: as transformers' processors put it,
    before the samples are normalised, and after that where a mask (``masked``) says where they end.

    Raises UsageError E0042 for a configuration that infc cannot follow, E0044 for a file that is no usable recording.
    """
    found = _settings(config, "Wav2Vec2FeatureExtractor", _RAW)
    signal = _cut(_read(path, found["sampling_rate"]), most, found, tell)
    silence = (0, size(signal.size) - signal.size)
    if silence[1] > 0:
        tell(f"the recording is padded: its {signal.size / found['sampling_rate']:.2f} seconds are the first "
             f"{signal.size / (signal.size + silence[1]):.0%} of what the engine takes, and so of the frames of its result")
    return np.pad(_normalised(signal, found), silence) if masked else _normalised(np.pad(signal, silence), found), signal.size


def log_mel(path: Path, config: Mapping[str, Any], tell: Callable[[str], None] = lambda line: None) -> NDArray[Any]:
    """[bands, frames] f32 as Whisper takes them: 30 seconds, silence after the end. Raises UsageError as ``samples``."""
    found = _settings(config, "WhisperFeatureExtractor", _MEL)
    rate, size, hop = found["sampling_rate"], found["n_fft"], found["hop_length"]
    length = found["chunk_length"] * rate
    if length > _MOST_BYTES // 4 or length < size or length // hop * size > _MOST_BYTES:
        raise _cannot(f"chunks of {length} samples in steps of {hop}")
    signal = _normalised(_cut(_read(path, rate), length, found, tell), found)
    silent = np.pad(signal.astype(np.float64), (0, length - signal.size))
    padded = np.pad(silent, size // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop][:length // hop]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    power = np.abs(np.fft.rfft(frames * window)) ** 2
    bands = np.log10(np.maximum(_filters(found["feature_size"], size // 2 + 1, rate) @ power.T, _QUIET))
    return np.asarray((np.maximum(bands, bands.max() - 8) + 4) / 4, np.float32)


def _settings(config: Mapping[str, Any], kind: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """The whole numbers of ``known``, by the file where it says so."""
    if config.get("feature_extractor_type", kind) != kind:
        raise _cannot(f"it is of a kind that infc does not know for this input: {config['feature_extractor_type']}")
    found = {name: config.get(name, value) for name, value in known.items()}
    for name, value in found.items():
        whole = isinstance(value, int) and 0 <= value <= _MOST
        if not whole or (name != "do_normalize" and (value == 0 or isinstance(value, bool))):
            raise _cannot(f"{name} is {value!r}"[:80])
    return found


def _cannot(why: str) -> UsageError:
    return UsageError("E0042", f"the model's preprocessor_config.json cannot be followed: {why}", where="infc run",
                      hint="prepare the input yourself and give it as an .npz file")


def _read(path: Path, rate: int) -> NDArray[Any]:
    """[samples] of a WAV file, its channels' mean, within ±1."""
    try:
        found, values = wav.read(path, _MOST_BYTES)
    except OSError as error:
        raise _unusable(path, error.strerror or type(error).__name__) from None
    except (ValueError, OverflowError) as error:
        raise _unusable(path, str(error), rate) from None
    signal = np.asarray(values.mean(1, dtype=np.float64), np.float32)
    if found == rate:
        return signal
    if not _SLOWEST <= found <= _FASTEST:
        raise _unusable(path, f"it has {found} samples a second", rate)
    if signal.size * rate // found * 4 > _MOST_BYTES:
        raise _unusable(path, f"{signal.size} samples at {found} a second are more than {_MOST_BYTES // 4} at {rate}", rate)
    return resampled(signal, found, rate)


def resampled(signal: NDArray[Any], old: int, new: int) -> NDArray[Any]:
    """[samples] f32 at ``new`` samples a second of a ``signal`` at ``old``: ⌈samples·new/old⌉ of them, silence around it.

    Band-limited interpolation by a sinc under a Hann window, as torchaudio's ``resample`` with its default
    "sinc_interp_hann" does, with a wider window: J. O. Smith, Digital Audio Resampling Home Page.
    """
    shared = math.gcd(old, new)
    step, phases = old // shared, new // shared  # of the input a block, outputs a block
    cut = min(step, phases) * _ROLL_OFF / step  # of a period of the input
    reach = math.ceil(_ZEROS / cut)
    out = np.zeros((-(-signal.size // step), phases), np.float32)
    padded = np.pad(signal, (reach, reach + step + 2 + step * len(out) - signal.size))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 2)
    rows = max(1, _AT_ONCE // (2 * reach + 2))  # a product copies its windows
    for phase in range(phases):
        whole, part = divmod(phase * step, phases)
        time = np.clip((np.arange(-reach, reach + 2) - part / phases) * cut, -_ZEROS, _ZEROS)
        kernel = (np.sinc(time) * np.cos(np.pi * time / _ZEROS / 2) ** 2 * cut).astype(np.float32)
        for first in range(0, len(out), rows):
            block = windows[whole + first * step::step][:min(rows, len(out) - first)]
            out[first:first + rows, phase] = block @ kernel
    return out.reshape(-1)[:-(-signal.size * new // old)]


def _unusable(path: Path, reason: str, rate: int = 16000) -> UsageError:
    return UsageError("E0044", f"the recording cannot be used: {reason}", where=str(path),
                      hint=f"ffmpeg -i RECORDING -ar {rate} -ac 1 -c:a pcm_s16le out.wav")


def _cut(signal: NDArray[Any], length: int, found: Mapping[str, Any], tell: Callable[[str], None]) -> NDArray[Any]:
    if signal.size > length:
        rate = found["sampling_rate"]
        tell(f"the recording is cut: the first {length / rate:.1f} of its {signal.size / rate:.1f} seconds are used")
    return signal[:length]


def _normalised(signal: NDArray[Any], found: Mapping[str, Any]) -> NDArray[Any]:
    """With mean 0 and variance 1 where the model wants that."""
    if not found["do_normalize"]:
        return signal
    return np.asarray((signal - signal.mean()) / np.sqrt(signal.var() + 1e-7), np.float32)


def _filters(bands: int, bins: int, rate: int) -> NDArray[Any]:
    """[bands, bins]: triangles of equal area over Slaney's mel scale to 8000 Hz: linear below 1000 Hz, logarithmic above."""
    def hertz(mel: NDArray[Any]) -> NDArray[Any]:
        return np.where(mel < 15, 200 * mel / 3, 1000 * np.exp(np.log(6.4) / 27 * (mel - 15)))

    top = 15 + 27 * np.log(8) / np.log(6.4)
    edges = hertz(np.linspace(0, top, bands + 2))
    slopes = edges[:, None] - np.linspace(0, rate // 2, bins)
    width = np.diff(edges)[:, None]
    rising, falling = -slopes[:-2] / width[:-1], slopes[2:] / width[1:]
    return np.asarray(np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))[:, None])
