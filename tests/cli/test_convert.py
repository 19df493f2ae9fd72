"""`wb convert`, `plan`, `split`, `merge`, `edit` as people type them: what reaches the library, what is told, what is
written. What a conversion does is tested where it is done."""

from __future__ import annotations

import json
import os
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.reports import bad_packings
from tests.reports.bad_packings import BAD

from weighbridge.cli.main import main
from weighbridge.cli.views import plan as plans
from weighbridge.conversion.result import Loss


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    tensors = {f"layer.{i}.weight": rng.standard_normal((16, 32)).astype(np.float32) for i in range(4)}
    save_file(tensors, tmp_path / "m.safetensors", {"format": "pt"})
    return tmp_path / "m.safetensors"


def tensors(path: Path) -> dict[str, bytes]:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return {k: v.tobytes() for file in files for k, v in load_file(file).items()}


@pytest.mark.parametrize(("dtype", "slow"), [("f16", True), ("f32", False)])
def test_the_slow_version_warns_before_it_computes(
    source: Path, dtype: str, slow: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("weighbridge.base.native.SLOW_JOB", 1)
    monkeypatch.setattr("weighbridge.base.native.slow_version", lambda: "pure Python")
    assert main(["convert", str(source), str(source.with_name("out.safetensors")), "--dtype", dtype]) == 0
    assert ("this takes long: pure Python" in capsys.readouterr().err) is slow


@pytest.mark.parametrize("command", [["plan"], ["convert", "--dry-run"]])
def test_a_plan_writes_nothing(source: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    target = source.with_name("out.safetensors")
    before = sorted(source.parent.iterdir())
    assert main([*command, str(source), str(target), "--dtype", "f16", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["schema"] == "weighbridge/plan/1"
    assert [t["dtype"] for f in plan["files"] for t in f["tensors"]] == ["F16"] * 4
    assert main([*command, str(source), str(target), "--dtype", "f16"]) == 0
    out = capsys.readouterr().out
    assert "out.safetensors" in out
    assert "cast" in out
    assert sorted(source.parent.iterdir()) == before


def test_convert_tells_what_it_wrote(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = source.with_name("out.safetensors")
    assert main(["convert", str(source), str(target)]) == 0
    assert capsys.readouterr().out.startswith(f"{target}: ")
    assert tensors(target) == tensors(source)
    assert main(["convert", str(source), str(target)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["convert", str(source), "-o", str(target), "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == ["out.safetensors"]


def test_losses_of_a_cast_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"a": np.array([1e30, 1e-30, 1.0], np.float32)}, tmp_path / "m.safetensors")
    assert main(["convert", str(tmp_path / "m.safetensors"), str(tmp_path / "o.safetensors"), "--dtype", "fp16"]) == 0
    err = capsys.readouterr().err
    assert "1 value was too large for the type and became infinity, in a\n" in err
    assert "1 value was too small for the type and became zero, in a\n" in err


def test_losses_alike_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    losses = [Loss("decoded", f"t{i}") for i in range(5)] + [Loss("left out: the tokenizer")]
    plans.print_losses(losses)
    assert capsys.readouterr().err == "warning: t0, t1, t2 and 2 more: decoded\nwarning: left out: the tokenizer\n"
    plans._counted("too small", {"a": 2, "b": 3})
    assert capsys.readouterr().err == "warning: 5 values were too small, most in b (3)\n"


def test_every_option_reaches_the_library(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import weighbridge

    seen: dict[str, Any] = {}

    class Done(Exception):
        pass

    @wraps(weighbridge.plan_convert)
    def plan_convert(src: Path, dst: Path, **given: Any) -> None:
        seen.update(given, dst=dst)
        raise Done

    monkeypatch.setattr(weighbridge, "plan_convert", plan_convert, raising=False)
    words = (
        "--to gguf --outtype q8_0 --split-max-size 2G --split-max-tensors 7 --pre qwen2 --no-tokenizer --name Tiny "
        "--align 64 --allow-requantize --max-memory 64MiB --overwrite --replace-folder -j 3"
    )
    assert main(["convert", str(source), "x.gguf", *words.split()]) == 70
    assert seen == dict(
        dst="x.gguf",
        to="gguf",
        dtype="q8_0",
        max_shard_size=2 * 10**9,
        max_shard_tensors=7,
        pre="qwen2",
        tokenizer=False,
        name="Tiny",
        align=64,
        allow_requantize=True,
        max_memory=64 * 2**20,
        overwrite=True,
        replace_folder=True,
        jobs=3,
    )


def test_split_and_merge_are_inverse(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, back = source.with_name("shards"), source.with_name("back.safetensors")
    assert main(["split", str(source), str(folder), "--max-shard-tensors", "1"]) == 0
    assert len(list(folder.glob("*.safetensors"))) == 4
    assert (folder / "model.safetensors.index.json").exists()
    assert tensors(folder) == tensors(source)
    assert main(["merge", str(folder), str(back)]) == 0
    assert tensors(back) == tensors(source)
    next(folder.glob("*00002*")).unlink()
    capsys.readouterr()
    assert main(["merge", str(folder), str(back), "--overwrite"]) == 2
    assert "00002" in capsys.readouterr().err
    assert tensors(back) == tensors(source), "nothing was written"


def test_a_gguf_is_split_into_ggufs(source: Path) -> None:
    whole, folder, back = (source.with_name(n) for n in ("m.gguf", "shards", "back.gguf"))
    from weighbridge.base.dtypes import dtype
    from weighbridge.base.spec import Spec
    from weighbridge.containers.gguf import container as gguf

    plan = gguf.layout([(f"t{i}", Spec((4, 32), dtype("F32"))) for i in range(3)], {"general.architecture": "llama"})
    data = bytearray(plan.size)
    for slot in plan.slots:
        data[slot.offset : slot.offset + slot.spec.nbytes] = np.random.default_rng(0).bytes(slot.spec.nbytes)
    for at, piece in plan.pieces:
        data[at : at + len(piece)] = piece
    whole.write_bytes(data)
    assert main(["split", str(whole), str(folder), "--max-shard-tensors", "2"]) == 0
    assert sorted(p.name for p in folder.iterdir()) == ["shards-00001-of-00002.gguf", "shards-00002-of-00002.gguf"]
    assert main(["merge", str(folder / "shards-00002-of-00002.gguf"), str(back)]) == 0
    assert back.read_bytes() == whole.read_bytes()


# edit


def test_edit_lists_gets_sets_and_removes(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(source)
    assert main(["edit", file]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["format", "str", "pt"]
    assert main(["edit", file, "--set", "license=mit", "--set", "a=b=c", "-q"]) == 0
    assert capsys.readouterr().out == "license: (none) -> mit\na: (none) -> b=c\n"
    assert main(["edit", file, "--get", "a", "--get", "license"]) == 0
    assert capsys.readouterr().out == "b=c\nmit\n"
    assert main(["edit", file, "--remove", "a", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["written"] is True
    assert answer["changes"] == [{"key": "a", "before": {"type": "str", "value": "b=c"}, "after": None}]
    assert main(["edit", file, "--get", "a"]) == 2
    assert main(["edit", file, "--list", "--set", "a=b"]) == 2


def test_edit_dry_run_writes_nothing(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = source.read_bytes()
    assert main(["edit", str(source), "--set", "a=b", "--dry-run"]) == 0
    assert "would be" in capsys.readouterr().err
    assert source.read_bytes() == before


def test_edit_takes_a_chat_template_and_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from weighbridge.containers.gguf import container as gguf

    path, template = tmp_path / "m.gguf", tmp_path / "t.jinja"
    path.write_bytes(gguf.header_bytes([], {"general.architecture": "llama"}))
    template.write_text("{{ messages }}\n", "utf-8")
    (tmp_path / "n.json").write_text("[1, 2]", "utf-8")
    arrays = ["--set-array", 'tags=str:["a","b"]', "--set-array", f"n=i32:@{tmp_path / 'n.json'}"]
    assert main(["edit", str(path), "--chat-template", str(template), *arrays, "--reserve", "4k"]) == 0
    capsys.readouterr()
    assert main(["edit", str(path), "--get", "tokenizer.chat_template", "--get", "tags", "--get", "n"]) == 0
    assert capsys.readouterr().out == '{{ messages }}\n\n["a", "b"]\n[1, 2]\n'
    inode = path.stat().st_ino
    assert main(["edit", str(path), "--set", "tags2=" + "x" * 2000]) == 0
    assert path.stat().st_ino == inode, "there was room"


def test_an_interrupted_edit_is_undone_by_the_next(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, old = source.read_bytes(), tensors(source)
    head = {"weighbridge": "journal", "offset": 20, "size": len(before), "pid": 2**22 + 1}
    journal = source.with_name(f".{source.name}.journal")
    journal.write_bytes(json.dumps(head).encode() + b"\n" + before[20:40])
    source.write_bytes(before[:20] + b"rubbish rubbish rubb" + before[40:])
    assert main(["edit", str(source), "--set", "a=b"]) == 0
    assert "has been undone" in capsys.readouterr().err
    assert not journal.exists()
    assert tensors(source) == old


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["convert", "-", "x.gguf"], ("standard input", "write it to a file")),
        (["identify", "gone"], ("gone: no such file or folder",)),
        (["convert", "gone", "x.gguf"], ("gone: no such file or folder",)),
        (["verify", "gone"], ("gone: no such file or folder",)),
        (["convert", "hub/models--a--b", "x.gguf"], ("models--a--b holds no weights", "b/snapshots/two")),
        (["convert", "bert", "mlx", "--to", "mlx"], ("bert family", "wb arch list")),
    ],
)  # fmt: skip
def test_what_can_t_be_is_told_with_what_to_do(
    arguments: list[str], words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("one", "two")):
        (tmp_path / "hub/models--a--b/snapshots" / name).mkdir(parents=True)
        os.utime(tmp_path / "hub/models--a--b/snapshots" / name, (number, number))
    (tmp_path / "bert").mkdir()
    save_file({"embeddings.LayerNorm.weight": np.zeros(8, np.float32)}, tmp_path / "bert/model.safetensors")
    (tmp_path / "bert/config.json").write_text(json.dumps({"architectures": ["BertModel"], "model_type": "bert"}))
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert all(word in told for word in words), told


def test_a_plain_conversion_has_nothing_to_remark(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(source), str(source.with_name("out.safetensors"))]) == 0
    assert capsys.readouterr().err == ""


PACKED = {name for name, bad in BAD.items() if bad.rules & {"config/packing", "config/packing-unread"}}


@pytest.mark.parametrize("case", sorted(PACKED))
@pytest.mark.parametrize("command", ["safetensors", "gguf", "scheme"])
def test_packed_weights_that_cannot_be_read_are_told(
    case: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file, the weight, what was expected and found, and the next step; nothing is written."""
    bad = BAD[case]
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1, **bad.config}
    folder = bad_packings.write(tmp_path / "m", bad.arrays(), config)
    target = tmp_path / ("out" if command == "scheme" else f"out.{command}")
    asked = ["convert", str(folder), str(target), "--dtype", "f16"]
    assert main(asked if command != "scheme" else ["convert", str(folder), str(target), "--scheme", "gptq"]) == 2
    told = capsys.readouterr().err
    assert str(folder / "model.safetensors") in told
    assert bad_packings.P in told
    assert bad.words in told
    assert "hint: " in told
    if "config/packing" in bad.rules:
        assert "expected" in told
        assert "found" in told
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("convert", "SRC", "o.gguf"), "llama-server -m o.gguf"),
        (("quantize", "SRC", "o.gguf", "Q8_0"), "llama-server -m o.gguf"),
        (("convert", "SRC", "o", "--to", "mlx"), "mlx_lm.chat --model o"),
        (("convert", "SRC", "o", "--to", "hf"), "vllm serve o"),
        (("convert", "SRC", "o.npz"), None),
    ],
)
def test_a_conversion_ends_with_how_to_run_it(
    words: tuple[str, ...], line: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from tests.shipping.models import write_folder

    folder = write_folder(tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    given = [str(folder) if word == "SRC" else word for word in words]
    for quiet in ("--quiet", "--json"):
        assert main([*given, quiet, "--overwrite"]) == 0
        assert "run it" not in capsys.readouterr().err
    assert main([*given, "--overwrite"]) == 0
    err = capsys.readouterr().err
    assert ("run it" in err) == (line is not None)
    assert line is None or err.endswith(f"run it: {line}\n")
