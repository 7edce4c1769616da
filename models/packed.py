"""Directories whose weights others have quantised: compressed-tensors, GPTQ and AWQ. Read as data, none of their code runs.

Sources: compressed-tensors `compressors/pack_quantized`, `naive_quantized`; AutoGPTQ `nn_modules/qlinear`; AutoAWQ
`utils/packing_utils.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from infc.compiler import checkpoint
from infc.compiler.errors import UsageError
from infc.compiler.stored import Stored

Array = np.ndarray[Any, Any]
Tensors = dict[str, torch.Tensor]
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column that each four bits of a word are of


def config_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What config.json says of the quantisation of the weights; None where it says nothing."""
    found = config.get("quantization_config") or config.get("compression_config")
    return found if isinstance(found, Mapping) else None


def read(folder: Path, config: Mapping[str, Any]) -> tuple[Tensors, dict[str, Stored]]:
    """All weights in f32 by name, and those that are stored in fewer bits as they are stored.

    Raises UsageError E0128 for a method or format that is not known, and for tensors that do not fit together.
    """
    settings = config_of(config) or {}
    method = str(settings.get("quant_method", ""))
    reader = _READERS.get(method)
    if reader is None:
        raise _refused(folder, f"the weights are quantised by {method or 'an unnamed method'}")
    tensors = dict(_tensors(folder))
    try:
        stored = reader(tensors, settings)
    except (ValueError, KeyError, IndexError, TypeError, ZeroDivisionError) as error:
        raise _refused(folder, f"the weights are not what {method} writes: {error}") from error
    state = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
    state |= {name: torch.from_numpy(weight.restore()) for name, weight in stored.items()}
    return state, stored


def _refused(folder: Path, what: str) -> UsageError:
    return UsageError("E0128", what, where=f"quantization_config in {folder / 'config.json'}",
                      hint=f"infc reads {', '.join(_READERS)} of 4 and 8 bits; or build from the float weights with --precision")


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for name in checkpoint.weights(folder):
        if not name.endswith(".safetensors"):
            if name.endswith(".json"):
                continue
            raise _refused(folder, f"{name} is not safetensors")
        try:
            with safe_open(folder / name, "pt") as file:
                yield from ((key, file.get_tensor(key)) for key in file.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise UsageError("E0107", f"the weights cannot be loaded: {error}", where=str(folder / name),
                             hint="download the model again") from error


# --- methods ------------------------------------------------------------------------------------------------------------------


def _compressed_tensors(tensors: Tensors, settings: Mapping[str, Any]) -> dict[str, Stored]:
    """``X.weight_packed`` int32 ``[N, K bits / 32]``, or ``X.weight`` in 8 bits; ``X.weight_scale`` ``[N, G]``, zeros packed along
    N."""
    bits = {int(group["weights"]["num_bits"]) for group in settings.get("config_groups", {}).values() if group.get("weights")}
    found = {}
    for name in [n for n in tensors if n.endswith(".weight_scale")]:
        layer = name.removesuffix("_scale")
        scale = _floats(tensors.pop(name))
        zero, shape = tensors.pop(f"{layer}_zero_point", None), tensors.pop(f"{layer}_shape", None)
        for unused in ("input_scale", "input_zero_point", "weight_global_scale"):
            tensors.pop(f"{layer.removesuffix('weight')}{unused}", None)
        order = tensors.pop(f"{layer}_g_idx", None)
        packed = tensors.pop(f"{layer}_packed", None)
        if packed is None:
            whole = tensors.pop(layer)
            if whole.dtype == torch.float8_e4m3fn:
                found[layer] = Stored.of("fp8", whole.view(torch.uint8).numpy(), scale, None)
                continue
            if whole.dtype != torch.int8:
                raise ValueError(f"{layer} is {whole.dtype}")
            found[layer] = Stored.of("int8", whole.numpy(), scale, None if zero is None else zero.numpy())
            continue
        if len(bits) != 1 or shape is None:
            raise ValueError("layers of different numbers of bits")
        width, (n, k) = next(iter(bits)), (int(d) for d in shape)
        numbers = _unpack(packed, width)[:, :k]
        zeros = None if zero is None else _unpack(zero.T.contiguous(), width)[:, :n].T
        found[layer] = _grouped(width, numbers, scale, zeros, None if order is None else order.numpy())
    return found


def _gptq(tensors: Tensors, settings: Mapping[str, Any]) -> dict[str, Stored]:
    """``X.qweight`` int32 ``[K bits / 32, N]``, ``X.qzeros`` ``[G, N bits / 32]``, of which one was taken off, ``X.scales``
    ``[G, N]``, ``X.g_idx`` ``[K]``."""
    bits = int(settings["bits"])
    less = 0 if settings.get("checkpoint_format") == "gptq_v2" else 1
    found = {}
    for name in [n for n in tensors if n.endswith(".qweight")]:
        layer = name.removesuffix("qweight")
        numbers = _unpack(tensors.pop(name).T.contiguous(), bits)
        scale = _floats(tensors.pop(f"{layer}scales")).T
        zeros = (_unpack(tensors.pop(f"{layer}qzeros"), bits).T + np.uint8(less)) & np.uint8((1 << bits) - 1)
        order = tensors.pop(f"{layer}g_idx", None)
        found[f"{layer}weight"] = _grouped(bits, numbers, scale, zeros, None if order is None else order.numpy())
    return found


def _awq(tensors: Tensors, settings: Mapping[str, Any]) -> dict[str, Stored]:
    """``X.qweight`` int32 ``[K, N / 8]``, ``X.qzeros`` ``[G, N / 8]``, columns in an order of their own; ``X.scales``
    ``[G, N]``."""
    if int(settings["bits"]) != 4 or str(settings.get("version", "gemm")).lower() != "gemm":
        raise ValueError(f"{settings['bits']} bits in the form {settings.get('version')}")
    found = {}
    for name in [n for n in tensors if n.endswith(".qweight")]:
        layer = name.removesuffix("qweight")
        numbers = _in_order(_unpack(tensors.pop(name), 4)).T
        zeros = tensors.pop(f"{layer}qzeros", None)
        found[f"{layer}weight"] = _grouped(4, numbers, _floats(tensors.pop(f"{layer}scales")).T,
                                           None if zeros is None else _in_order(_unpack(zeros, 4)).T, None)
    return found


_READERS: dict[str, Callable[[Tensors, Mapping[str, Any]], dict[str, Stored]]] = {
    "compressed-tensors": _compressed_tensors, "gptq": _gptq, "awq": _awq}


# --- pieces -------------------------------------------------------------------------------------------------------------------


def _floats(tensor: torch.Tensor) -> Array:
    found: Array = tensor.float().numpy()
    return found


def _unpack(words: torch.Tensor, bits: int) -> Array:
    """Unsigned numbers of each row, the low bits first."""
    if bits not in (4, 8) or words.dtype != torch.int32 or words.ndim != 2:
        raise ValueError(f"{bits} bits in {words.dtype}")
    data = np.ascontiguousarray(words.numpy()).view(np.uint8)
    if bits == 8:
        return data
    return np.stack([data & 15, data >> 4], axis=-1).reshape(data.shape[0], -1)


def _in_order(numbers: Array) -> Array:
    """AWQ's columns where they belong."""
    groups = numbers.reshape(numbers.shape[0], -1, len(_AWQ_ORDER))
    out = np.empty_like(groups)
    out[:, :, _AWQ_ORDER] = groups
    return out.reshape(numbers.shape)


def _grouped(bits: int, numbers: Array, scale: Array, zeros: Array | None, order: Array | None) -> Stored:
    """Unsigned numbers ``[N, K]``, whose zero is half of their range unless given."""
    k, groups = numbers.shape[1], scale.shape[1]
    middle = np.uint8(1 << bits - 1)
    if order is not None and not np.array_equal(order, np.arange(k) // -(-k // groups)):
        raise ValueError("rows of a group are no neighbours (desc_act)")
    if zeros is not None and (zeros != middle).any():
        return Stored.of(f"uint{bits}", numbers, scale, zeros)
    return Stored.of(f"int{bits}", (numbers - middle).view(np.int8), scale, None)
