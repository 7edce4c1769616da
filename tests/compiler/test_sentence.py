"""modules.json: what is taken, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from infc.compiler.errors import UsageError
from infc.compiler.sentence import read

Writer = Callable[..., None]


def test_reads_pooling_and_length(tmp_path: Path, write_modules: Writer) -> None:
    assert read(tmp_path) is None
    write_modules(tmp_path, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, normalize=False)
    modules = read(tmp_path)
    assert modules is not None
    assert (modules.pooling, modules.normalize, modules.max_length, modules.folder) == (("cls", "mean"), False, 32, "")


@pytest.mark.parametrize(("config", "name"), [({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
                                              ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True}, "lasttoken"),
                                              ({"pooling_mode": "weightedmean"}, "weightedmean"), ({}, "nothing")])
def test_other_poolings_are_refused_by_name(tmp_path: Path, write_modules: Writer, config: dict[str, object],
                                            name: str) -> None:
    write_modules(tmp_path, config)
    with pytest.raises(UsageError, match=name) as caught:
        read(tmp_path)
    assert caught.value.code == "INFC-E0110"


@pytest.mark.parametrize(("change", "name"), [({"type": "sentence_transformers.models.Dense"}, "Dense"),
                                              ({"type": "mine.Normalize"}, "mine.Normalize"), ({"path": "../x"}, "../x")])
def test_other_modules_are_refused_by_name(tmp_path: Path, write_modules: Writer, change: dict[str, str],
                                           name: str) -> None:
    write_modules(tmp_path, {"pooling_mode_mean_tokens": True})
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[1 if "path" in change else 2].update(change)
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UsageError, match=name) as caught:
        read(tmp_path)
    assert caught.value.code == "INFC-E0109"
