"""Who may import whom, and what the repository must not hold."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOUSES = {"compiler": "compiler", "passes": "passes", "plugins": "plugins", "models": "models", "runtime": "runtime/python"}
EXTRAS = ("torch", "transformers", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "safetensors", "huggingface_hub", "click",
          "rich", "tokenizers", "PIL")
DROP_IN = "infc.runtime.causal_lm"  # a model of transformers, imported by who asks for it
ALONE = ROOT / "plugins" / "tensorrt" / "ops"  # a package that also works outside of infc, for machines that have little else
STANDARD = sys.stdlib_module_names | {"__future__"}


def modules(house: str) -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of every module of a house."""
    base = ROOT / HOUSES[house]
    for path in sorted(base.rglob("*.py")):
        inner = path.relative_to(base).with_suffix("").parts
        yield ".".join(("infc", house, *(p for p in inner if p != "__init__"))), path


def imports(path: Path) -> set[str]:
    """Dotted names a file imports, anywhere in it; ``from a import b`` counts as a.b (and so as a)."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            alone = path.is_relative_to(ALONE) and node.level == 1
            assert alone or node.level == 0, f"{path}: relative imports hide who imports whom"
            module = ".".join(filter(None, ("infc.plugins.tensorrt.ops" if alone else "", node.module)))
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def within(name: str, *prefixes: str) -> bool:
    return any(name == p or name.startswith(p + ".") for p in prefixes)


ALL = [(house, name, path) for house in HOUSES for name, path in modules(house)]


@pytest.mark.parametrize(("house", "name", "path"), ALL, ids=[name for _, name, _ in ALL])
def test_a_module_imports_only_what_its_house_allows(house: str, name: str, path: Path) -> None:
    foreign = {i for i in imports(path) if i.split(".")[0] not in STANDARD}
    infc = {i for i in foreign if within(i, "infc")}
    if house == "passes":
        bad = {i for i in foreign if not within(i, "infc.passes", "infc.compiler.errors", "onnx_ir", "onnx", "onnxscript", "numpy")}
    elif house == "plugins":
        plugin = ".".join(name.split(".")[:3])
        allowed = (plugin, *(f"infc.compiler.{m}" for m in ("target", "artifact", "profiles", "errors", "report")))
        bad = {i for i in infc if not within(i, *allowed)}
    elif name == DROP_IN:
        bad = {i for i in foreign if not within(i, "infc.runtime", "numpy", "torch", "transformers")}
    elif house == "runtime":
        bad = {i for i in foreign if not within(i, "infc.runtime", "numpy")}
    elif house == "models":
        bad = {i for i in infc if within(i, "infc.passes", "infc.plugins", "infc.runtime", "infc.compiler.driver")}
    elif name == "infc.compiler.driver":
        bad = set()
    elif within(name, *(f"infc.compiler.{m}" for m in ("pipeline", "lowering", "calibrate", "onnx_shapes"))):  # lists, runs, feeds
        bad = {i for i in infc if within(i, "infc.plugins", "infc.runtime")}
    elif name == "infc.compiler.export":  # which runs what it wrote
        bad = {i for i in infc if within(i, "infc.passes", "infc.plugins", "infc.runtime") and not within(i, "infc.passes.domain")}
    elif within(name, "infc.compiler.cli"):
        bad = {i for i in infc if within(i, "infc.passes", "infc.plugins")}
    else:
        bad = {i for i in infc if within(i, "infc.passes", "infc.plugins", "infc.runtime")}
    assert not bad


def test_custom_operators_stand_alone() -> None:
    foreign = {i for path in ALONE.glob("*.py") for i in imports(path) if i.split(".")[0] not in STANDARD}
    assert all(within(i, "infc.plugins.tensorrt.ops", "numpy") for i in foreign)


def test_torch_is_imported_by_export_recipes_and_the_drop_in_only() -> None:
    users = {name for house, name, path in ALL for i in imports(path) if within(i, "torch", "transformers")}
    assert all(within(name, "infc.compiler.export", "infc.models", DROP_IN) for name in users)


def test_importing_infc_imports_no_extra() -> None:
    code = ("import sys, infc, infc.runtime, infc.compiler.artifact.reader; infc.Engine; infc.LLM; infc.get_include(); "
            f"print(sorted(set({EXTRAS!r}) & set(sys.modules)))")
    assert _python(code) == "[]"


def test_get_library_is_beside_the_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import infc
    from infc.runtime import _rt

    monkeypatch.setattr(_rt, "__file__", str(tmp_path / "_rt.abi3.so"))
    with pytest.raises(FileNotFoundError, match=r"libinfc\.so is not installed"):
        infc.get_library()
    (tmp_path / "libinfc.so").touch()
    assert infc.get_library() == str(tmp_path.resolve() / "libinfc.so")


def test_help_imports_neither_torch_nor_onnx() -> None:
    code = ("import sys; from infc.compiler.cli.group import run; run(['--help']); "
            f"print(sorted(set({EXTRAS!r}) - {{'click'}} & set(sys.modules)))")
    assert _python(code).splitlines()[-1] == "[]"


def _python(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd="/")
    return done.stdout.strip()


def test_no_tracked_file_names_a_path_of_somebodys_machine() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    personal = re.compile(rb"/home/\w+|/Users/\w+|/root/\w|" + re.escape(os.fsencode(ROOT)) + rb"\b")
    paths = [ROOT / t for t in tracked if t and (ROOT / t).is_file()]
    guilty = [str(p) for p in paths if p != Path(__file__).resolve() and personal.search(p.read_bytes())]
    assert not guilty
