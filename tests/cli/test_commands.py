"""The commands on a small model, from build to bench."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import infc
from infc.compiler.cli import console, main


@pytest.fixture(scope="module")
def tiny(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "tiny.infc"
    profiles = ["--profile", "batch=1,seq=8", "--profile", "batch=2,seq=24"]
    assert main.main(["build", str(bert), "-o", str(path), "--no-tune", *profiles]) == 0
    return path


def ids(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(4, 30, shape)


def test_build_reports_as_json_and_names_its_stages(bert: Path, cli: Any, tmp_path: Path) -> None:
    done = cli("build", bert, "-o", tmp_path / "a.infc", "--no-tune", "--profile", "batch=1,seq=8", "--json")
    assert done.code == 0
    assert done.json["path"] == str(tmp_path / "a.infc")
    assert done.json["profiles"] == ["batch=1,seq=8"]
    for stage in ("export", "passes", "compile", "golden", "write"):
        assert re.search(rf"^{stage} +\d+\.\d\d s$", done.err, re.MULTILINE)


@pytest.mark.parametrize(("options", "code", "hint"), [
    (["--profile", "batch=1,sq=8"], "INFC-E0204", "batch, seq"), (["--profile", "8"], "INFC-E0201", "batch=1,seq=128"),
    (["--isa", "x86-64-v5"], "INFC-E0018", "x86-64-v4"), (["--disable", "fuse_gellu"], "INFC-E0016", "fuse_gelu"),
    (["--only", "merge_kqv"], "INFC-E0016", "merge_qkv"), (["--target", "gpu"], "INFC-E0010", "cpu"),
    (["-o", "absent/x.infc"], "INFC-E0021", "create")])
def test_a_wrong_build_option_is_a_usage_error(options: list[str], code: str, hint: str, bert: Path, cli: Any) -> None:
    done = cli("build", bert, *options)
    assert (done.code, done.err.split(":")[0].split("\n")[-1]) == (2, code) or code in done.err
    assert done.code == 2
    assert hint in done.err


def test_a_model_that_is_not_there_is_named(cli: Any, tmp_path: Path) -> None:
    done = cli("build", tmp_path / "absent")
    assert done.code == 2
    assert "absent" in done.err


def test_inspect_shows_source_sections_memory_and_layers(tiny: Path, cli: Any) -> None:
    done = cli("inspect", tiny)
    assert done.code == 0
    for expected in ("sha256", "batch pads, seq pads", "WEIGHTS", "arena batch=2,seq=24", "input_ids", "0 to 63", "gemm",
                     "attention", "encoder.layer.1.output.dense"):
        assert expected in done.out
    found = cli("inspect", tiny, "--json").json
    assert found["profiles"] == [{"batch": 1, "seq": 8}, {"batch": 2, "seq": 24}]
    assert sum(s["size"] for s in found["sections"]) <= found["size"] == tiny.stat().st_size
    program = found["layers"][f"batch=2,seq=24/{found['isas'][0]}"]
    assert all(step["kernel"].startswith("infc_") and step["precision"] and step["fused"] for step in program)


def test_run_tokenises_text_with_the_models_own_tokenizer(tiny: Path, cli: Any) -> None:
    """Three texts where the profile has two rows: batches, cut to 24 tokens, and the same as one by one."""
    texts = ["the harbour was quiet", "rain in the harbour . " * 20, "she measured flour"]
    together = cli("run", tiny, *(item for t in texts for item in ("--text", t)), "--json").json["outputs"]["sentence_embedding"]
    for text, row in zip(texts, together, strict=True):
        alone = cli("run", tiny, "--text", text, "--json").json["outputs"]["sentence_embedding"][0]
        np.testing.assert_allclose(row, alone, atol=1e-5)
    want = infc.Engine(tiny).run({"input_ids": np.array([[2, 14, 5, 3]])})  # [CLS] she measured … is not this
    assert not np.allclose(together[2], want["sentence_embedding"][0], atol=1e-3)


@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_run_takes_arrays_from_a_file_and_writes_them_to_one(suffix: str, tiny: Path, cli: Any, tmp_path: Path) -> None:
    given, written = tmp_path / f"in{suffix}", tmp_path / "out.npz"
    if suffix == ".npz":
        np.savez(given, input_ids=ids(2, 9))
    else:
        given.write_text(json.dumps({"input_ids": ids(2, 9).tolist()}))
    done = cli("run", tiny, given, "-o", written)
    assert done.code == 0
    assert "2×9×32" in done.out
    with np.load(written) as outputs:
        want = infc.Engine(tiny).run({"input_ids": ids(2, 9)})
        assert all(np.array_equal(outputs[name], want[name]) for name in want)


@pytest.mark.parametrize(("content", "expected"), [
    ('{"input_ids": [[1, 2], [3]]}', "rows of equal length"), ('{"input_ids": [[1.5]]}', "input_ids"), ("[1", "not valid JSON"),
    ("[1]", "not a JSON object"), ('{"input_ids": [[99]]}', "input_ids"), ('{"inptu_ids": [[1]]}', "input_ids"),
    ('{"input_ids": [["a"]]}', "input_ids")])
def test_run_names_what_is_wrong_with_a_file(content: str, expected: str, tiny: Path, cli: Any, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(content)
    done = cli("run", tiny, tmp_path / "in.json")
    assert done.code == 2
    assert expected in done.err


@pytest.mark.parametrize("reference", ["pytorch", "onnxruntime"])
def test_verify_compares_with_golden_values_and_the_model(reference: str, bert: Path, tiny: Path, cli: Any) -> None:
    done = cli("verify", tiny, bert, "--reference", reference, "--json")
    assert done.code == 0
    against = {c["against"] for c in done.json["comparisons"]}
    assert against == {"golden", reference}
    assert all(c["ok"] and c["difference"] <= c["accepted"] for c in done.json["comparisons"])


def test_verify_finds_a_flipped_weight(tiny: Path, cli: Any, tmp_path: Path) -> None:
    from infc.compiler.artifact.reader import Artifact

    weights = next(s for s in Artifact.open(tiny).sections if s.kind == "WEIGHTS")
    data = bytearray(tiny.read_bytes())
    data[weights.offset + weights.size // 2] ^= 0x40
    (tmp_path / "bad.infc").write_bytes(data)
    done = cli("verify", tmp_path / "bad.infc")
    assert done.code == 3
    assert "checksum" in done.err


def test_verify_refuses_another_model(tiny: Path, make_bert: Any, cli: Any) -> None:
    other = make_bert(num_hidden_layers=1)
    assert cli("verify", tiny, other).code == 2


def test_a_truncated_artifact_is_refused_by_every_command(tiny: Path, cli: Any, tmp_path: Path) -> None:
    (tmp_path / "cut.infc").write_bytes(tiny.read_bytes()[:-1000])
    for argv in (["inspect"], ["verify"], ["bench"], ["embed"], ["run", "--text", "rain"]):
        done = cli(argv[0], tmp_path / "cut.infc", *argv[1:])
        assert done.code == 3
        assert "INFC-E06" in done.err
        assert "Traceback" not in done.err


def test_bench_gives_intervals_beside_a_peer_and_says_which_is_missing(bert: Path, tiny: Path, cli: Any, monkeypatch: Any) -> None:
    from infc.compiler.cli import peers

    monkeypatch.setitem(peers.SYSTEMS, "openvino", ("no_such_package", peers.openvino))
    done = cli("bench", tiny, "--runs", "20", "--threads", "1", "--vs", "onnxruntime,openvino", "--model", bert, "--json")
    assert done.code == 0
    ours, theirs = (done.json["systems"][s] for s in ("infc", "onnxruntime"))
    assert 0 < ours["latency"]["minimum"] <= ours["latency"]["median_interval"][0] <= ours["latency"]["median"]
    assert ours["accuracy"]["max_abs_difference"] < 1e-4
    assert theirs["ratio"][1] <= theirs["ratio"][0] <= theirs["ratio"][2]
    assert "no_such_package" in done.json["failed"]["openvino"]


def test_bench_times_layers_and_sizes_in_use(tiny: Path, cli: Any) -> None:
    rows = cli("bench", tiny, "--layers", "--dims", "batch=1,seq=5", "--runs", "10", "--json").json
    assert rows["dims"] == {"batch": 1, "seq": 5}
    assert sum("gemm" in r["kernel"] and r["seconds"] > 0 for r in rows["layers"]) >= 8
    assert cli("bench", tiny, "--dims", "seq=25").code == 2


@pytest.mark.slow
def test_bench_ablates(bert: Path, tiny: Path, cli: Any) -> None:
    rows = cli("bench", tiny, "--ablate", "--model", bert, "--runs", "12", "--json").json["ablation"]
    assert rows[0]["without"] is None
    assert {"fuse_attention", "merge_qkv"} <= {r["without"] for r in rows}


def test_explain_names_matches(bert: Path, cli: Any) -> None:
    found = cli("explain", bert, "--json").json
    matched = {p["name"]: len(p["matches"]) for p in found["passes"]}
    assert matched["merge_qkv"] == 2
    assert found["operators"]["LayerNormalization"] == 5


def test_the_exported_files_compute_what_the_model_does(bert: Path, tiny: Path, cli: Any, tmp_path: Path) -> None:
    import onnxruntime as ort

    inputs = {"input_ids": ids(2, 6), "attention_mask": np.ones((2, 6), np.int64), "token_type_ids": np.zeros((2, 6), np.int64)}
    want = infc.Engine(tiny).run(inputs)
    for name, options in (("plain", []), ("optimized", ["--optimized"])):
        path = tmp_path / f"{name}.onnx"
        assert cli("export", bert, "-o", path, *options).code == 0
        outputs = ort.InferenceSession(str(path)).run(None, inputs)
        np.testing.assert_allclose(outputs[0], want["last_hidden_state"], atol=1e-4)


def test_embed_makes_an_object_that_holds_the_artifact(tiny: Path, cli: Any, tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if not gcc:
        pytest.skip("no gcc")
    done = cli("embed", tiny, "-o", tmp_path / "e.o", "--symbol", "model", "--json")
    assert done.json["symbols"] == ["model_start", "model_end", "model_size"]
    (tmp_path / "m.c").write_text("""
        #include <stdio.h>
        extern const unsigned char model_start[];
        extern const unsigned long model_size;
        int main(void) { return fwrite(model_start, 1, model_size, stdout) != model_size; }
    """)
    subprocess.run([gcc, "m.c", "e.o", "-o", "m"], cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "m"], capture_output=True, check=True).stdout == tiny.read_bytes()
    assert cli("embed", tiny, "--symbol", "1x").code == 2


def test_doctor_tells_about_machine_and_packages(cli: Any) -> None:
    found = cli("doctor", "--json").json
    assert found["runtime"]["ok"]
    assert found["threads"]["default"] >= 1
    assert found["packages"]["build"]["torch"]
    assert "instruction set" in cli("doctor").out


def test_export_does_not_replace_the_model(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    model = helper.make_model(helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y]))
    Path(tmp_path / "a.onnx").write_bytes(model.SerializeToString())
    monkeypatch.chdir(tmp_path)
    done = cli("export", "a.onnx")
    assert done.code == 2
    assert "E0022" in done.err
    assert Path("a.onnx").read_bytes() == model.SerializeToString()
    assert cli("export", "a.onnx", "-o", "b.onnx").code == 0


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"input_ids": {"a": 1}}', '{"input_ids": null}',
                                  '{"input_ids": [[1], [1, 2]]}'])
def test_json_that_holds_no_arrays(text: str, tiny: Path, cli: Any, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(text)
    done = cli("run", tiny, tmp_path / "in.json")
    assert done.code == 2
    assert "E0033" in done.err


@pytest.mark.parametrize("kind", ["text", "empty", "objects", "single"])
def test_files_that_hold_no_arrays(kind: str, tiny: Path, cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    if kind == "objects":
        np.savez(path, input_ids=np.array([{}], object))
    elif kind == "single":
        with open(path, "wb") as file:
            np.save(file, np.ones(3))
    else:
        path.write_text("words" if kind == "text" else "")
    done = cli("run", tiny, path)
    assert done.code == 2
    assert "E0033" in done.err


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    console.emit({"a": np.array([1.5, np.nan, -np.inf]), "b": float("inf")})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"a": [1.5, None, None], "b": None}


def test_outputs_go_to_the_file_that_was_named(tiny: Path, cli: Any, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"input_ids": [[4, 5]]}')
    assert cli("run", tiny, tmp_path / "in.json", "-o", tmp_path / "out").code == 0
    with np.load(tmp_path / "out") as file:
        assert "sentence_embedding" in file
    assert not (tmp_path / "out.npz").exists()


def test_the_passes_of_a_target(bert: Path, cli: Any, tmp_path: Path) -> None:
    import onnx

    passes = {p["name"] for p in json.loads(cli("explain", bert, "--target", "tensorrt-rtx", "--json").out)["passes"]}
    assert "merge_heads" in passes
    assert "pack_tokens" not in passes
    path = tmp_path / "m.onnx"
    assert cli("export", bert, "--optimized", "--target", "tensorrt-rtx", "-o", path).code == 0
    assert {n.domain for n in onnx.load(path).graph.node} <= {"", "ai.onnx"}, "ONNX's own operators alone"
    for command, code in ((("explain", bert, "--target", "cpu,tensorrt-rtx"), "E0017"),
                          (("explain", bert, "--target", "tpu"), "E0010"), (("export", bert, "--target", "cpu"), "E0039")):
        done = cli(*command)
        assert (done.code, done.err.split(":")[0]) == (2, f"INFC-{code}")


@pytest.mark.parametrize("command", [("explain",), ("export", "--optimized")])
def test_unknown_passes_are_named_before_the_export(command: tuple[str, ...], bert: Path, cli: Any) -> None:
    for option in ("--disable", "--only"):
        done = cli(*command, bert, option, "fuse_linera")
        assert done.code == 2
        assert "fuse_linear" in done.err
        assert not re.search(r"^export ", done.err, re.MULTILINE)


def test_an_export_without_passes_leaves_none_out(bert: Path, cli: Any) -> None:
    done = cli("export", bert, "--disable", "fuse_linear")
    assert done.code == 2
    assert "--optimized" in done.err


def test_a_variant_that_cannot_be_built_is_a_row(tiny: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from infc.compiler.cli import ablation

    def build(model: str, meta: Any, setting: Any, name: str, disable: list[str]) -> tuple[Path, dict[str, Any]]:
        if disable == ["fuse_gelu"]:
            raise RuntimeError("no kernel")
        return tiny, {}

    monkeypatch.setattr(ablation, "_build", build)
    monkeypatch.setattr(ablation, "_switches", lambda meta, report, setting: ["fuse_gelu", "merge_qkv"])
    done = cli("bench", tiny, "--ablate", "--model", "m", "--runs", "10", "--threads", "1")
    assert done.code == 0
    assert re.search(r"^without fuse_gelu +failed$", done.out, re.MULTILINE)
    assert "without fuse_gelu: failed: RuntimeError: no kernel" in done.err
    assert re.search(r"^without merge_qkv +\d", done.out, re.MULTILINE)
    assert "variant 2 of 2" in done.err


def test_run_says_which_text_it_cuts(tiny: Path, cli: Any) -> None:
    done = cli("run", tiny, "--text", "rain", "--text", "rain in the harbour . " * 20)
    assert done.code == 0
    assert re.findall(r"^text (\d+) is cut: (\d+) of its (\d+) tokens", done.err, re.MULTILINE) == [("2", "24", "102")]


def test_an_onnx_model_is_verified_against_onnxruntime(cli: Any, tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    model = helper.make_model(helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y]),
                              opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path, engine = tmp_path / "a.onnx", tmp_path / "a.infc"
    path.write_bytes(model.SerializeToString())
    assert cli("build", path, "-o", engine, "--no-tune").code == 0
    assert {c["against"] for c in cli("verify", engine, path, "--json").json["comparisons"]} == {"golden", "onnxruntime"}
    beside = cli("bench", engine, "--vs", "torch", "--model", path, "--runs", "10", "--threads", "1")
    assert beside.code == 0
    assert "torch: it needs a model directory" in beside.err
    refused = cli("verify", engine, path, "--reference", "pytorch")
    assert refused.code == 2
    assert "--reference onnxruntime" in refused.err


def test_doctor_shows_the_timing_cache(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "infc" / "timing.json"
    assert cli("doctor", "--json").json["caches"]["timing"] == {"path": str(path), "size": None}
    path.parent.mkdir()
    path.write_bytes(bytes(1536))
    assert f"{path}, 1.5 KiB" in cli("doctor").out
