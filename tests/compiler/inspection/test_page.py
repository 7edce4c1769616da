"""The page about an artifact: complete, alone, and safe with names of anybody's."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import pytest

from infc.compiler.artifact import io, writer
from infc.compiler.artifact.reader import Artifact
from infc.compiler.errors import ArtifactError
from infc.compiler.inspection import facts, page, svg
from infc.compiler.inspection.facts import Measured
from infc.compiler.inspection.work import Work
from infc.compiler.report import encode
from infc.compiler.target import Section

BAD = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
PROGRAM = "batch=1/scalar"


def artifact(name: str = "dense", **changes: Any) -> Artifact:
    step = {"name": name, "op": "gemm_i8", "kernel": f"infc_{name}", "precision": "f32", "fused": [], "shapes": {}}
    about = {"requested": "int8", "budget": 0.99, "restored": [name], "sensitivity": [[name, 0.5]],
             "layers": [{"node": name, "requested": "int8", "actual": "f32", "why": f"the budget of {name}", "error": 0.25}],
             "evaluation": {"name": name}, "accuracy": {"engine": {
                 "metric": "cosine", "mean": 0.9991, "worst": 0.9, "samples": 7, "worst_slice": name,
                 "slices": {name: {"mean": 0.91, "samples": 3}}}}}
    meta = {"source": {"name": name, "sha256": "0" * 64, "architecture": name}, "task": name, "profiles": ["batch=1"],
            "options": {"targets": ["cpu"], "precision": {"cpu": "int8"}}, "isas": ["scalar"], "versions": {"infc": name},
            "layers": {PROGRAM: [step, {**step, "name": f"{name} 2"}]}, "engines": [], "graphs": [],
            "quantisation": {"cpu": about}, **changes}
    report = {"passes": [{"target": "cpu", "name": name, "matches": [name], "near_misses": [{"node": name, "reason": name}]}],
              "memory": {"weights": 3, "arena": {name: 2_000_000}, "largest": [{"layer": name, "bytes": 5}]}, "notes": [name]}
    spec = io.IoSpec([io.IoTensor("x", "f32", (1,))], [io.IoTensor("y", "f32", (1,))], [], [{}])
    return Artifact(writer.pack([Section("META", encode(meta)), Section("IO", io.encode(spec)),
                                 Section("REPORT", encode(report), required=False)]))


def measured(name: str = "dense") -> Measured:
    steps = [{"layer": name, "seconds": 1e-3}, {"layer": name, "seconds": 1e-3}, {"layer": f"{name} 2", "seconds": 2e-3}]
    return Measured(PROGRAM, 2, 3, steps, [Work(100, 10), Work(100, 10), Work(5, 50)], 1e9, 1e8)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_a_layer_has_what_was_asked_what_it_is_why_its_error_and_its_time() -> None:
    row = facts.collect(artifact(), "a.infc", measured())["layers"][0]
    assert (row["requested"], row["actual"], row["why"], row["error"]) == ("int8", "f32", "the budget of dense", 0.25)
    assert (row["seconds"], row["operations"], row["bytes"]) == (pytest.approx(2e-3), 200, 20)
    assert row["target"] == "cpu"
    text = page.render(facts.collect(artifact(), "a.infc", measured()))
    for expected in ("the budget of dense", "0.9991", "slice", "0.91", "2000 µs", "2.000 MB", "roofline", "1 Gop/s", "3 rounds"):
        assert expected in text


def test_names_of_anybody_are_text() -> None:
    plain = Tags(page.render(facts.collect(artifact(), "a.infc", measured())))
    text = page.render(facts.collect(artifact(BAD), f"{BAD}.infc", measured(BAD)))
    hostile = Tags(text)
    assert hostile.tags == plain.tags
    assert hostile.attributes == plain.attributes
    assert not hostile.tags & {"script", "img", "link", "iframe"}


def test_the_page_loads_nothing() -> None:
    text = page.render(facts.collect(artifact(), "a.infc", measured()))
    assert not re.search(r"(src|href)=|url\(|@import|https?:", text)
    assert "default-src 'none'" in text


def test_what_was_not_measured_says_why() -> None:
    found = facts.collect(artifact(), "a.infc", None, "there is no CPU")
    assert found["measured"] is None
    assert "Not measured: there is no CPU" in page.render(found)


@pytest.mark.parametrize("changes", [{"layers": []}, {"layers": {PROGRAM: [7]}}, {"quantisation": {"cpu": {}}},
                                     {"engines": [3]}, {"options": 5}, {"layers": {PROGRAM: [{"name": "x"}]}}])
def test_meta_of_another_kind_is_an_error_of_the_artifact(changes: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match="E0611"):
        facts.collect(artifact(**changes), "a.infc", None)


def test_plots_are_well_formed_whatever_the_values() -> None:
    for text in (svg.bars([], "none"), svg.bars([(BAD, 0.0, BAD), ("b", 3.0, "")], BAD),
                 svg.roofline([], 1e9, 1e8, "none"),
                 svg.roofline([svg.Point(1e-3, 1e3, BAD), svg.Point(0, 1, "dropped"), svg.Point(1e4, 1e12, "c")], 1e9, 1e8, BAD)):
        ET.fromstring(text)
    assert "dropped" not in svg.roofline([svg.Point(0, 1, "dropped")], 1e9, 1e8, "")
