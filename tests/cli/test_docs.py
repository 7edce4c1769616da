"""The generated pages of docs/ are what the program says."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["docs/cli.md", "docs/errors.md", "docs/operators.md"])
def test_the_page_is_up_to_date(page: str, generate: ModuleType) -> None:
    assert (ROOT / page).read_text() == generate.PAGES[page](), "run: python docs/generate.py"


def test_every_error_has_a_code_of_a_known_family(generate: ModuleType) -> None:
    families = {prefix for prefix, _ in generate.FAMILIES}
    assert all(r.code[:3] in families and re.fullmatch(r"E\d{4}", r.code) for r in generate.raised())


def test_links_between_documents_lead_somewhere() -> None:
    broken = [(page.name, target) for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
              for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()) if not (page.parent / target).exists()]
    assert not broken
