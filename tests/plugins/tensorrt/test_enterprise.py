"""Everything the worker uses of the bindings exists in both flavours; Enterprise's are imported over stub libraries."""

from __future__ import annotations

import ast
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infc.plugins.tensorrt import build
from infc.plugins.tensorrt.flavour import ENTERPRISE, RTX, Flavour

WORKER = Path(build.__file__).with_name("worker.py")
# What each variable of the worker holds, and what these calls give; "" for what is no object of the bindings.
HELD = {"builder": "Builder", "network": "INetworkDefinition", "parser": "OnnxParser", "config": "IBuilderConfig",
        "profile": "IOptimizationProfile", "layer": "ILayer", "tensor": "ITensor", "attention": "IAttention",
        "error": "ParserError", "logger": "ILogger", "severity": "ILogger.Severity",
        "contextlib": "", "ctypes": "", "importlib": "", "json": "", "os": "", "resource": "", "signal": "", "sys": "",
        "threading": "", "failure": "",
        "traceback": "", "thread": "", "result": "", "request": "", "file": "", "log": "", "errors": "",
        "shapes": "", "line": "", "library": ""}
GIVEN = {"get_timing_cache": "ITimingCache", "get_plugin_registry": "IPluginRegistry",
         "code": "ErrorCode", "CDLL": "", "getrusage": ""}
CAST = {("ILayer", "attention"): "IAttentionOutputLayer", ("ILayer", "__class__"): "object"}
LIBRARIES = {
    "libnvinfer.so.11": ("createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL",
                         "getBuilderPluginRegistry", "getPluginRegistry"),
    "libnvinfer_plugin.so.11": ("initLibNvInferPlugins",),
    "libnvonnxparser.so.11": ("createNvOnnxParser_INTERNAL", "createNvOnnxParserRefitter_INTERNAL", "getNvOnnxParserVersion"),
}
_LOOK = """
import importlib, json, sys
module = importlib.import_module(sys.argv[1])
def has(path):
    found = module
    for name in path.split("."):
        if not hasattr(found, name):
            return False
        found = getattr(found, name)
    return True
print(json.dumps({path: has(path) for path in json.load(sys.stdin)}))
"""


def used(*, cross: bool) -> set[str]:
    """Paths in the bindings, such as Builder.create_network. Without ``cross``: not what is done for other machines' devices."""
    found: set[str] = set()
    for item in _walk(ast.parse(WORKER.read_text()), cross):
        if isinstance(item, ast.Attribute):
            path = _path(item)
            if path:
                found.add(path)
    return found


def _walk(tree: ast.AST, cross: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        if not cross and isinstance(child, ast.If) and ast.unparse(child.test) == "request['cross']":
            continue
        yield child
        yield from _walk(child, cross)


def _path(item: ast.Attribute) -> str:
    """Of an attribute, or "" if it is not one of the bindings'. An unknown variable fails: HELD has to say what it is."""
    base = item.value
    if isinstance(base, ast.Attribute):
        path = _path(base)
        return f"{path}.{item.attr}" if path else ""
    if isinstance(base, ast.Call):
        name = base.func.attr if isinstance(base.func, ast.Attribute) else ""
        assert name in GIVEN or not name or name in dir(str), f"what does {ast.unparse(base)} give?"
        return f"{GIVEN[name]}.{item.attr}" if GIVEN.get(name) else ""
    if not isinstance(base, ast.Name):
        return ""
    if base.id == "trt":
        return item.attr
    assert base.id in HELD, f"what does the variable {base.id} hold?"
    kind = HELD[base.id]
    kind = CAST.get((kind, item.attr), kind)
    return f"{kind}.{item.attr}" if kind not in ("", "object") else ""


def look(flavour: Flavour, paths: set[str], **options: object) -> dict[str, bool]:
    done = subprocess.run([sys.executable, "-c", _LOOK, flavour.module], input=json.dumps(sorted(paths)), capture_output=True,
                          text=True, timeout=60, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    found: dict[str, bool] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Libraries with the symbols that the bindings need to be loaded, and nothing behind them."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("stubs")
    for library, symbols in LIBRARIES.items():
        source = folder / f"{library}.c"
        source.write_text("".join(f"void *{symbol}(void) {{ return 0; }}\n" for symbol in symbols))
        subprocess.run([compiler, "-shared", "-fPIC", f"-Wl,-soname,{library}", "-o", str(folder / library), str(source)],
                       check=True)
    return folder


def test_the_walk_sees_what_the_worker_does() -> None:
    paths = used(cross=True)
    assert {"Builder.create_network", "IBuilderConfig.num_compute_capabilities", "IOptimizationProfile.set_shape",
            "LayerType.ATTENTION_OUTPUT", "IAttention.decomposable", "ParserError.desc", "ITimingCache.serialize",
            "BuilderFlag.SPARSE_WEIGHTS", "ILogger.INTERNAL_ERROR", "ITensor.dtype.name"} <= paths


def test_enterprise_is_not_asked_for_other_machines_devices() -> None:
    only_rtx = used(cross=True) - used(cross=False)
    assert only_rtx == {"IBuilderConfig.num_compute_capabilities", "IBuilderConfig.set_compute_capability", "ComputeCapability"}


@pytest.mark.skipif(importlib.util.find_spec(ENTERPRISE.module) is None, reason="tensorrt-cu13-bindings is not installed")
def test_the_real_bindings_of_enterprise_have_it_all(stubs: Path) -> None:
    found = look(ENTERPRISE, _types(used(cross=False)) | {"ComputeCapability"}, env={"LD_LIBRARY_PATH": str(stubs), "PATH": ""})
    assert [path for path, has in found.items() if not has] == ["ComputeCapability"]


@pytest.mark.skipif(importlib.util.find_spec(RTX.module) is None, reason=f"{RTX.package} is not installed")
def test_rtx_has_it_all() -> None:
    names = {f"ComputeCapability.SM{sm}" for sm in RTX.sms}
    assert all(look(RTX, _types(used(cross=True)) | names).values())


def _types(paths: set[str]) -> set[str]:
    """Properties are known of their class only: what lies behind one is left out."""
    return {".".join(path.split(".")[:2]) for path in paths}
