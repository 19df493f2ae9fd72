"""Keys of a GGUF that `--kv` sets: of every type, as llama.cpp reads them, in generic files and in a family's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.containers import _ggml
from tests.llama import make_folder

import weighbridge as wb
from weighbridge.base.errors import RefusedError, UsageError, WeighbridgeError
from weighbridge.cli.main import main
from weighbridge.containers.gguf.values import IDS, KV, RANGES, SCALARS
from weighbridge.conversion.edit.plan import read_metadata

# Text of a value -> its GGUF type (of an array: that of its elements) and value.
VALUES: dict[str, tuple[str, Any]] = {
    "true": ("bool", True), "false": ("bool", False), "12": ("u32", 12), "-3": ("i32", -3),
    "5000000000": ("i64", 5 * 10**9),
    "0.5": ("f32", 0.5), "some text": ("str", "some text"), "a=b:c": ("str", "a=b:c"), "str:5": ("str", "5"),
    "[1, 2]": ("i32", [1, 2]), "[0.5, 2]": ("f32", [0.5, 2.0]), '["a", "é"]': ("str", ["a", "é"]),
    "[true, false]": ("bool", [True, False]), "[INST]": ("str", "[INST]"), "arr[str]:[]": ("str", []),
    "int:7": ("i32", 7), "float:2": ("f32", 2.0),
    **{f"{kind}:{low}": (kind, low) for kind, (low, _) in RANGES.items()},
    **{f"arr[{kind}]:[{high}, 0]": (kind, [high, 0]) for kind, (_, high) in RANGES.items()},
    **{f"{kind}:0.25": (kind, 0.25) for kind in ("f32", "f64")},
    "arr[f64]:[0.1]": ("f64", [0.1]), "arr[bool]:[true]": ("bool", [True]), 'arr[str]:["[1]"]': ("str", ["[1]"]),
}  # fmt: skip
needs_llama_cpp = pytest.mark.skipif(_ggml.library() is None, reason="xllamacpp isn't installed")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.save({"a.weight": torch.arange(8.0).reshape(2, 4), "b": torch.arange(3)}, tmp_path / "weights.pt")
    return tmp_path / "weights.pt"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "hf", words=True)


def test_every_type_is_among_the_values() -> None:
    assert {kind for kind, _ in VALUES.values()} == {*SCALARS, "str"}
    assert {kind for kind, value in VALUES.values() if isinstance(value, list)} == {*SCALARS, "str"}


@needs_llama_cpp
def test_llama_cpp_reads_every_value(weights: Path) -> None:
    out = weights.with_name("out.gguf")
    options = [word for i, text in enumerate(VALUES) for word in ("--kv", f"toy.v{i}={text}")]
    assert main(["convert", str(weights), str(out), "--arch", "toy", *options]) == 0
    keys = _ggml.values(out.read_bytes())
    assert keys.pop("general.architecture") == (IDS["str"], "toy")
    assert keys.pop("general.type") == (IDS["str"], "model")
    assert keys == {f"toy.v{i}": (IDS[kind], value) for i, (kind, value) in enumerate(VALUES.values())}
    tensors = [name for name, *_ in _ggml.described(out.read_bytes())["tensors"]]
    assert tensors == [b"a.weight", b"b"]
    with wb.open(out) as model:
        assert np.array_equal(model["a.weight"].numpy(), np.arange(8, dtype=np.float32).reshape(2, 4))


def test_python_writes_the_same_file(weights: Path, tmp_path: Path) -> None:
    options = [word for i, text in enumerate(VALUES) for word in ("--kv", f"toy.v{i}={text}")]
    assert main(["convert", str(weights), str(tmp_path / "a.gguf"), "--arch", "toy", *options]) == 0
    arrays = {k: f"arr[{kind}]" if isinstance(value, list) else kind for k, (kind, value) in VALUES.items()}
    kv = {f"toy.v{i}": KV(arrays[text], VALUES[text][1]) for i, text in enumerate(VALUES)}
    wb.convert(weights, tmp_path / "b.gguf", arch="toy", kv=kv)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    plain = {"toy.a": 1, "toy.b": "2", "toy.c": [0.5], "toy.d": True, "toy.e": ["x"]}  # a text stays text
    with wb.plan_convert(weights, tmp_path / "c.gguf", arch="toy", kv=plain) as plan:
        assert {key: kv.type for key, kv in plan.keys.items()} == {
            "toy.a": "u32", "toy.b": "str", "toy.c": "arr[f32]", "toy.d": "bool", "toy.e": "arr[str]"
        }  # fmt: skip


SET = ("llama.rope.freq_base=20000", "general.name=Mine", "my.own=[1, 2]", "tokenizer.ggml.bos_token_id=3")


def metadata(path: Path) -> dict[str, Any]:
    return {key: (kv.type, kv.value) for key, kv in read_metadata(path).items()}


@pytest.mark.parametrize("source", ["folder", "gguf"])
def test_a_family_s_keys_are_those_of_wb_edit(folder: Path, tmp_path: Path, source: str) -> None:
    path = folder if source == "folder" else tmp_path / "source.gguf"
    wb.convert(folder, tmp_path / "source.gguf")
    wb.convert(path, tmp_path / "edited.gguf", overwrite=True)
    assert main(["edit", str(tmp_path / "edited.gguf"), *(w for text in SET for w in ("--set", text))]) == 0
    words = [word for text in SET for word in ("--kv", text)]
    assert main(["convert", str(path), str(tmp_path / "set.gguf"), *words]) == 0
    found, expected = metadata(tmp_path / "set.gguf"), metadata(tmp_path / "edited.gguf")
    assert {k: repr(v) for k, v in found.items()} == {k: repr(v) for k, v in expected.items()}
    assert list(found) == list(expected)
    assert found["llama.rope.freq_base"] == ("f32", 20000.0)


def test_a_replaced_value_is_a_loss_and_prove_finds_it(folder: Path, tmp_path: Path) -> None:
    kv = {"llama.rope.freq_base": 20000.0, "general.name": "Mine", "tokenizer.ggml.bos_token_id": 3, "my.own": 1}
    with wb.plan_convert(folder, tmp_path / "out.gguf", kv=kv) as plan:
        effects = {loss.message.split()[0]: loss.effect for loss in plan.losses if ", as asked, " in loss.message}
        plan.run()
    assert effects == {
        "llama.rope.freq_base": "results", "general.name": "metadata", "tokenizer.ggml.bos_token_id": "tokens"
    }  # fmt: skip
    checks = {check.name: check for check in wb.prove(folder, tmp_path / "out.gguf", static=True).checks}
    assert any("rope_theta" in line and "20000" in line for line in checks["settings"].details)


def test_prove_lists_the_keys_of_a_generic_file(weights: Path) -> None:
    wb.convert(weights, out := weights.with_name("out.gguf"), arch="toy", kv={"toy.layers": 3, "toy.s": "x" * 99})
    report = wb.prove(weights, out)
    checks = {check.name: check for check in report.checks}
    assert report.verdict == "incomplete"
    assert (checks["loads"].verdict, checks["tensors"].verdict) == ("not-checked", "same")
    assert {"toy.layers: 3", f"toy.s: {'x' * 57}..."} <= {*checks["settings"].details}


@pytest.mark.parametrize("json_output", [True, False])
def test_a_dry_run_lists_the_keys(weights: Path, json_output: bool, capsys: pytest.CaptureFixture[str]) -> None:
    out = weights.with_name("out.gguf")
    words = ["convert", str(weights), str(out), "--arch", "toy", "--kv", "toy.n=3", "--kv", "toy.a=[1,2]", "--dry-run"]
    assert main([*words, *["--json"][: int(json_output)]]) == 0
    text = capsys.readouterr().out
    if json_output:
        expected = {"toy.n": {"type": "u32", "value": 3}, "toy.a": {"type": "arr[i32]", "value": [1, 2]}}
        assert json.loads(text)["keys"] == expected
    else:
        assert "key toy.n: 3 (u32)" in text
        assert "key toy.a: arr[i32] of 2" in text
    assert not out.exists()


@pytest.mark.parametrize("command", [["quantize"], ["convert"]])
def test_a_quantized_file_has_the_keys(
    folder: Path, tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    last = ["Q4_0"] if command == ["quantize"] else ["--dtype", "q4_0"]
    words = [*command, str(folder), str(tmp_path / "q.gguf"), *last, *(w for text in SET for w in ("--kv", text))]
    assert main([*words, "--dry-run"]) == 0
    assert "key my.own: arr[i32] of 2" in capsys.readouterr().out
    assert main(words) == 0
    assert "llama.rope.freq_base is 20000.0, as asked, instead of" in capsys.readouterr().err
    found = metadata(tmp_path / "q.gguf")
    assert found["llama.rope.freq_base"] == ("f32", 20000.0)
    assert found["tokenizer.ggml.bos_token_id"] == ("u32", 3)
    assert (found["my.own"][0], list(found["my.own"][1])) == ("arr[i32]", [1, 2])


def test_shards_have_the_keys_in_the_first(folder: Path, tmp_path: Path) -> None:
    wb.convert(folder, tmp_path / "parts", to="gguf", max_shard_tensors=8, kv={"my.own": 1})
    counts = [b"my.own" in path.read_bytes() for path in sorted(tmp_path.glob("parts/*.gguf"))]
    assert counts == [True] + [False] * (len(counts) - 1)
    assert len(counts) > 1


@pytest.mark.parametrize(
    ("key", "value", "kind", "words"),
    [("general.architecture", "x", UsageError, "doesn't set general.architecture"),
     ("general.alignment", 64, UsageError, "doesn't set general.alignment"),
     ("general.name", "x", UsageError, "both set general.name"),
     ("split.count", 2, RefusedError, "split.count is protected"),
     ("tokenizer.ggml.tokens", ["a"], RefusedError, "tokens is protected"),
     ("general.type", 3, UsageError, "3 is not text"),
     ("llama.rope.freq_base", KV("f64", 1.0), RefusedError, "has the type f32, not f64"),
     ("llama.rope.freq_base", "high", RefusedError, "has the type f32, not str"),
     ("llama.block_count", 9, RefusedError, "llama.cpp would refuse"),
     ("llama.embedding_length", 32, RefusedError, "llama.cpp would refuse"),
     ("my.own", [], UsageError, "no element type"),
     ("my.own", ["a", 1], UsageError, "no single GGUF type"),
     ("", 1, UsageError, "can't be empty")],
)  # fmt: skip
def test_what_would_be_wrong_is_refused(
    folder: Path, tmp_path: Path, key: str, value: Any, kind: type[WeighbridgeError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        wb.plan_convert(folder, tmp_path / "out.gguf", name="Mine", kv={key: value})
    with pytest.raises(kind, match=words):
        wb.plan_quantize(folder, tmp_path / "out.gguf", "Q8_0", name="Mine", kv={key: value})
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("target", ["out.safetensors", "out.npz", "out/"])
def test_only_a_ggufs_keys_are_set(weights: Path, tmp_path: Path, target: str) -> None:
    for options in ({"kv": {"a": 1}}, {"arch": "toy"}):
        with pytest.raises(UsageError, match="doesn't apply to"):
            wb.plan_convert(weights, tmp_path / target, **options)


def test_a_mixture_of_types_needs_roles(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no roles") as error:
        wb.plan_convert(weights, tmp_path / "out.gguf", arch="toy", dtype="q4_k_m")
    assert error.value.hint == "--dtype q4_k"
    assert main(["convert", str(weights), str(tmp_path / "out.gguf"), "--generic", "toy", "--dtype", "q8_0"]) == 0
