"""The calibration record: statistics of graphs, and what they were made of, in one file.

The file is a zip of ``record.json`` and NumPy arrays. Ranges are not in it but what they follow from, so that one record serves
every ``--calibration-method``. The same record has the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import error as ZlibError

import numpy as np
import onnx_ir as ir
from numpy.lib import format as npy
from numpy.typing import NDArray

from infc.compiler.errors import UsageError
from infc.compiler.output import written
from infc.passes.quant.statistics import HALF, Channels, Histogram, Statistics, ValueStatistics

FORMAT = 1
_ABOUT = "record.json"
_MOST_ABOUT = 1 << 26
_MOST_VALUES = 1 << 17
_MOST_ARRAY = 1 << 33  # bytes: of a Gram matrix of 46,000 channels
_CHANNELS = ("minimum", "maximum", "mean", "absolute_mean", "square_mean")
_HINT = "make it again: infc calibrate MODEL --calibration FILE -o record.npz"

Grams = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Key:
    """What a record is made of. ``source``: SHA-256 of the model's files; ``graphs`` of each pipeline's graph after its passes;
    ``data`` describes the data (name, sha256, samples, seed, longest …)."""

    source: str
    graphs: Mapping[str, str]
    data: Mapping[str, Any]

    def digest(self) -> str:
        return hashlib.sha256(json.dumps([self.source, dict(self.graphs), dict(self.data)], sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Record:
    """Statistics by the name of the pipeline whose graph they are of."""

    key: Key
    values: Mapping[str, Mapping[str, ValueStatistics]]
    grams: Mapping[str, Grams] = field(default_factory=dict)

    def statistics(self, pipeline: str, method: str) -> Statistics:
        return Statistics(self.values[pipeline], method, self.grams.get(pipeline, {}), {**self.key.data, "method": method})

    def check(self, source: str, pipeline: str, model: ir.Model, where: str) -> None:
        """Raises UsageError E0809 for a record of another model, E0810 of another graph of it, E0811 if it lacks the graph, and
        E0808 if it has other channels of a value than that has."""
        if source != self.key.source:
            raise UsageError("E0809", "the record was made of another model, or of files with other names: the SHA-256 over names "
                             f"and contents was {self.key.source[:12]}, and is {source[:12]}", where=where,
                             hint="calibrate again: infc calibrate MODEL --calibration FILE")
        if pipeline not in self.key.graphs:
            raise UsageError("E0811", f"the record is of graphs for {', '.join(self.key.graphs)}, not for {pipeline}", where=where,
                             hint="infc calibrate --target …: name all targets that it is to serve")
        if graph_hash(model) != self.key.graphs[pipeline]:
            raise UsageError("E0810", "the record was made of another graph: other passes ran, or another version of infc",
                             where=where, hint="calibrate again with the options of this build")
        self._check_channels(pipeline, model, where)

    def _check_channels(self, pipeline: str, model: ir.Model, where: str) -> None:
        """Raises UsageError E0808 if the record has other channels of a value than that has."""
        shapes = {v.name: v.shape for node in model.graph for v in (*node.inputs, *node.outputs) if v is not None}
        for name, value in self.values[pipeline].items():
            shape, channels = shapes.get(name), value.channels
            if shape is None or channels is None or not len(shape):
                continue
            size = shape[channels.axis] if -len(shape) <= channels.axis < len(shape) else None
            if isinstance(size, int) and size != channels.mean.size:
                raise _damaged(Path(where), f"'{name}' has {size} channels, and {channels.mean.size} there")


def graph_hash(model: ir.Model) -> str:
    """SHA-256 over the nodes: operators, attributes, names of values. Weights are the source's to tell."""
    found = hashlib.sha256()
    for node in model.graph.all_nodes():
        line = [node.domain, node.op_type, [v.name if v else None for v in node.inputs], [v.name for v in node.outputs]]
        found.update(json.dumps(line).encode())
        for name in sorted(node.attributes):
            attribute = node.attributes[name]
            if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                found.update(ir.serde.serialize_attribute(attribute).SerializeToString(deterministic=True))
    return found.hexdigest()


def is_record(path: Path) -> bool:
    """Whether the file is a record rather than data."""
    try:
        with zipfile.ZipFile(path) as file:
            return _ABOUT in file.namelist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False


def save(record: Record, path: Path) -> None:
    """Raises UsageError E0023 if the file cannot be written."""
    about: dict[str, Any] = {"format": FORMAT, "source": record.key.source, "graphs": dict(record.key.graphs),
                             "data": dict(record.key.data), "values": {}, "grams": {}}
    with written(path) as aside, zipfile.ZipFile(aside, "w") as file:
        for pipeline, values in record.values.items():
            about["values"][pipeline] = [_write_value(file, f"{pipeline}/{n}", name, v)
                                         for n, (name, v) in enumerate(values.items())]
        for pipeline, grams in record.grams.items():
            about["grams"][pipeline] = list(grams)
            for n, name in enumerate(grams):
                _write(file, f"{pipeline}/gram/{n}", grams[name], zipfile.ZIP_STORED)
        file.writestr(zipfile.ZipInfo(_ABOUT), json.dumps(about, sort_keys=True))


def _write_value(file: zipfile.ZipFile, place: str, name: str, value: ValueStatistics) -> dict[str, Any]:
    about: dict[str, Any] = {"name": name, "count": value.count, "invalid": value.invalid, "range": [value.minimum, value.maximum]}
    if value.histogram is not None:
        _write(file, f"{place}/counts", value.histogram.counts)
        about["exponent"] = value.histogram.exponent
    if value.channels is not None:
        _write(file, f"{place}/channels", np.stack([getattr(value.channels, n) for n in _CHANNELS]))
        about["channels"] = {"axis": value.channels.axis, "rows": value.channels.rows}
    return about


def _write(file: zipfile.ZipFile, place: str, array: NDArray[Any], how: int = zipfile.ZIP_DEFLATED) -> None:
    about = zipfile.ZipInfo(f"{place}.npy")  # of 1980: the bytes depend on the contents alone
    about.compress_type = how
    with file.open(about, "w", force_zip64=True) as stream:
        npy.write_array(stream, np.ascontiguousarray(array), (1, 0), allow_pickle=False)


def load(path: Path) -> Record:
    """Raises UsageError E0808 for a file that is no record, or a damaged one."""
    try:
        with zipfile.ZipFile(path) as file:
            about = _about(file)
            values = {str(p): dict(_read_value(file, f"{p}/{n}", v) for n, v in enumerate(found))
                      for p, found in about["values"].items()}
            key = Key(str(about["source"]), {str(p): str(h) for p, h in about["graphs"].items()}, dict(about["data"]))
            grams = {str(p): StoredGrams(path, {str(name): f"{p}/gram/{n}" for n, name in enumerate(names)})
                     for p, names in about["grams"].items()}
    except OSError as error:
        raise _damaged(path, error.strerror or type(error).__name__) from error
    except (LookupError, TypeError, ValueError, AttributeError, EOFError, RecursionError, zipfile.BadZipFile, NotImplementedError,
            RuntimeError, SyntaxError, ZlibError) as error:
        raise _damaged(path, str(error) or type(error).__name__) from None
    return Record(key, values, grams)


def _damaged(path: Path, reason: str) -> UsageError:
    return UsageError("E0808", f"not a calibration record, or a damaged one: {reason}"[:500], where=str(path), hint=_HINT)


def _about(file: zipfile.ZipFile) -> dict[str, Any]:
    if file.getinfo(_ABOUT).file_size > _MOST_ABOUT:
        raise ValueError(f"{_ABOUT} is too large")
    about = json.loads(file.read(_ABOUT))
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}: another version of infc made it")
    if sum(len(v) for v in about["values"].values()) > _MOST_VALUES:
        raise ValueError("it tells of too many values")
    return about


def _read_value(file: zipfile.ZipFile, place: str, about: Mapping[str, Any]) -> tuple[str, ValueStatistics]:
    low, high = (_number(v) for v in about["range"])
    if low > high:
        raise ValueError(f"the range of '{about['name']}' is empty")
    histogram = channels = None
    if "exponent" in about:
        exponent = _whole(about["exponent"], -200, 200)
        histogram = Histogram(exponent, _read(file, f"{place}/counts", np.dtype(np.int64), (2 * HALF,)))
    if "channels" in about:
        stacked = _read(file, f"{place}/channels", np.dtype(np.float32), (len(_CHANNELS), None))
        channels = Channels(_whole(about["channels"]["axis"], -1, 1), _whole(about["channels"]["rows"]), *stacked)
    return str(about["name"]), ValueStatistics(_whole(about["count"]), _whole(about["invalid"]), low, high, histogram, channels)


def _number(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number"[:80])
    return float(value)


def _whole(value: object, least: int = 0, most: int = 1 << 62) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r} is not possible"[:80])
    return value


def _read(file: zipfile.ZipFile, place: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> NDArray[Any]:
    member = file.getinfo(f"{place}.npy")
    with file.open(member) as stream:
        if npy.read_magic(stream) != (1, 0):
            raise ValueError(f"{place} is of another version")
        found, _, kind = npy.read_array_header_1_0(stream)
        size = math.prod(found) * dtype.itemsize
        if kind != dtype or len(found) != len(shape) or any(w not in (None, n) for n, w in zip(found, shape, strict=True)):
            raise ValueError(f"{place} is {kind} {list(found)}")
        if size > _MOST_ARRAY or size > member.file_size:
            raise ValueError(f"{place} does not hold what it says")
        data = stream.read(size)
    if len(data) != size:
        raise EOFError(f"{place} ends early")
    array = np.frombuffer(data, dtype).reshape(found)
    if not np.isfinite(array).all() or (dtype.kind == "i" and (array < 0).any()):
        raise ValueError(f"{place} holds what no calibration finds")
    return array


class StoredGrams(Mapping[str, NDArray[np.float32]]):
    """Matrices in a record, read when they are asked for. Raises UsageError E0808 for a damaged one."""

    def __init__(self, path: Path, places: Mapping[str, str]) -> None:
        self._path, self._places = path, places

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        place = self._places[name]
        try:
            with zipfile.ZipFile(self._path) as file:
                matrix = _read(file, place, np.dtype(np.float32), (None, None))
        except (OSError, LookupError, ValueError, EOFError, zipfile.BadZipFile, RuntimeError, SyntaxError, ZlibError) as error:
            raise _damaged(self._path, str(error)) from None
        if not matrix.size or matrix.shape[0] % matrix.shape[1]:
            raise _damaged(self._path, f"{place} is not square, nor squares one above the other")
        return matrix

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places
