"""Servers and LM Studio: command lines, units and compose files that parse back, and what is missing."""

from __future__ import annotations

import configparser
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]
from tests.shipping.models import write_folder

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.shipping.servers import VLLM_METHODS
from weighbridge.shipping.targets import TARGETS, run_line


def value(arguments: list[str], name: str) -> str | None:
    return arguments[arguments.index(name) + 1] if name in arguments else None


def test_llama_server_gets_what_fit_computes(gguf: Path) -> None:
    report = wb.ship("llama-server", gguf, device="rtx4090", context=64, cache_type="bf16", parallel=2)
    fit = wb.fit(gguf, device="rtx4090", context=64, cache_type="bf16", parallel=2)
    found = shlex.split(report.run[0])
    assert found[0] == "llama-server"
    given = {name: value(found, name) for name in ("-m", "-c", "-np", "-ngl", "-ctk", "-ctv", "-fa")}
    layers = str(fit.placement.offloaded)
    expected = {"-m": str(gguf), "-c": "64", "-np": "2", "-ngl": layers, "-ctk": "bf16", "-ctv": "bf16", "-fa": "on"}
    assert given == expected
    assert fit.placement.offloaded == 3


AWKWARD = "a b$c%d'e\"f.gguf"


@pytest.fixture
def awkward(gguf: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(gguf, tmp_path / AWKWARD))


def test_the_unit_quotes_what_systemd_reads(awkward: Path, tmp_path: Path) -> None:
    report = wb.ship("llama-server", awkward, device="8GB", launcher="systemd", output=tmp_path / "x.service")
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read_string((tmp_path / "x.service").read_text())
    line = unit["Service"]["ExecStart"]
    assert _systemd_words(line)[:3] == ["/usr/local/bin/llama-server", "-m", str(awkward)]
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    assert report.run[0].startswith("sudo cp ")


def _systemd_words(line: str) -> list[str]:
    """The words of a command line by systemd.service(5): quotes and backslashes as in a shell, `%%`, `$$`."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.escapedquotes, lexer.commenters = True, '"', ""
    return [word.replace("%%", "%").replace("$$", "$") for word in lexer]


def test_the_compose_file_is_one(awkward: Path) -> None:
    report = wb.ship("llama-server", awkward, "tiny", device="rtx4090", launcher="compose")
    service = yaml.safe_load(report.text)["services"]["llama-server"]
    inside = service["command"][service["command"].index("-m") + 1].replace("$$", "$")
    assert inside == f"/models/{AWKWARD}"
    assert service["volumes"][0]["source"].replace("$$", "$") == str(awkward.parent)
    assert service["ports"] == ["127.0.0.1:8080:8080"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "nvidia"
    assert "-cuda" in service["image"]


def test_llama_server_gets_the_first_of_several_shards(gguf: Path, tmp_path: Path) -> None:
    wb.convert(gguf, tmp_path / "shards", to="gguf", max_shard_size=gguf.stat().st_size // 2)
    shards = sorted((tmp_path / "shards").iterdir())
    assert len(shards) > 1
    for path in (tmp_path / "shards", shards[0]):
        assert value(shlex.split(wb.ship("llama-server", path, device="8GB").run[0]), "-m") == str(shards[0])


def test_llama_server_refuses_other_formats(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="GGUF only"):
        wb.ship("llama-server", model)


def test_an_output_is_not_overwritten(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("mine")
    with pytest.raises(RefusedError, match="exists"):
        wb.ship("llama-server", gguf, output=tmp_path / "run.sh")
    assert (tmp_path / "run.sh").read_text() == "mine"


# ------------------------------------------------------------------------------------------------ vLLM, MLX


def test_a_whole_folder_is_ready_for_vllm(model: Path) -> None:
    report = wb.ship("vllm", model, "tiny", context=64)
    assert report
    assert shlex.split(report.run[0]) == ["vllm", "serve", str(model), "--max-model-len", "64",
                                          "--served-model-name", "tiny"]  # fmt: skip


def _config(folder: Path, **more: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))


BROKEN = {
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer"),
    "bitsandbytes": (lambda f: _config(f, quantization_config={"quant_method": "bitsandbytes"}), "quantization"),
    "mlx": (lambda f: _config(f, quantization={"group_size": 64, "bits": 4}), "quantization"),
    "two formats": (lambda f: shutil.copy(f / "model.safetensors", f / "consolidated.safetensors"), "one format"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_vllm_misses_is_found(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "m")
    change, need = BROKEN[name]
    change(folder)
    path = folder / "model.safetensors" if name == "two formats" else folder
    report = wb.ship("vllm", path)
    assert not report
    assert [check.need for check in report.checks if not check.ok] == [need]


def test_the_schemes_that_we_write_are_ones_that_vllm_loads(model: Path, tmp_path: Path) -> None:
    wb.convert(model, tmp_path / "q", to="hf", scheme="w4a16", q_group_size=32)
    report = wb.ship("vllm", tmp_path / "q")
    assert report
    assert {c.message for c in report.checks if c.need == "quantization"} <= VLLM_METHODS


def test_a_gguf_is_not_for_vllm(gguf: Path) -> None:
    assert not wb.ship("vllm", gguf)


def test_mlx(model: Path, gguf: Path, tmp_path: Path) -> None:
    wb.convert(model, tmp_path / "mlx", to="mlx", quantize=True, q_group_size=32)
    report = wb.ship("mlx", tmp_path / "mlx")
    assert report
    assert report.run[0] == f"mlx_lm.chat --model {tmp_path / 'mlx'}"
    assert not wb.ship("mlx", gguf)


# ------------------------------------------------------------------------------------------------ LM Studio


def test_lm_studio_finds_a_gguf_by_its_place(gguf: Path, tmp_path: Path) -> None:
    report = wb.ship("lmstudio", gguf)
    path = Path.home() / ".lmstudio/models/local/tiny/tiny-F16.gguf"
    assert path.read_bytes() == gguf.read_bytes()
    assert report.run == ("lms load local/tiny",)
    assert wb.diff("lmstudio://local/tiny", gguf)
    with pytest.raises(RefusedError, match="files already"):
        wb.ship("lmstudio", gguf)
    wb.ship("lmstudio", gguf, overwrite=True)


# ------------------------------------------------------------------------------------------------ projectors


def projector(path: Path, width: int, kind: str = "mmproj") -> Path:
    gguf: Any = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("general.type", kind)
    writer.add_uint32("clip.vision.projection_dim", width)
    writer.add_tensor("v.post_ln.weight", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


TAKES_A_PROJECTOR = sorted(name for name, target in TARGETS.items() if "mmproj" in target.options)


@pytest.mark.costly
@pytest.mark.parametrize("form", ["gguf", "model"])
@pytest.mark.parametrize("target", TAKES_A_PROJECTOR)
def test_a_projector_is_shipped_or_refused(
    target: str, form: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Whether the model is copied or converted: the file is among those of the model, never passed over."""
    source: Path = request.getfixturevalue(form)
    if target == "llama-server" and form == "model":
        pytest.skip("llama-server reads GGUF only")
    for bad, error, words in (
        (projector(tmp_path / "wide.gguf", 96), UsageError, "96 .*64"),
        (projector(tmp_path / "other.gguf", 64, "adapter"), FormatError, "not a projector"),
    ):
        with pytest.raises(error, match=words):
            wb.ship(target, source, "me/tiny", mmproj=bad)
    good = projector(tmp_path / "p-mmproj.gguf", 64)
    report = wb.ship(target, source, "me/tiny", mmproj=good)
    stored = [Path(file.path) for file in report.files if file.what == "projector"]
    assert [path.read_bytes() for path in stored] == [good.read_bytes()] * len(stored)
    assert stored or str(good) in report.text


def test_lm_studio_takes_mlx_folders_and_converts_others(model: Path, tmp_path: Path) -> None:
    wb.convert(model, tmp_path / "mlx", to="mlx", quantize=True, q_group_size=32)
    store = tmp_path / "models"
    wb.ship("lmstudio", tmp_path / "mlx", "me/tiny-mlx", store=store)
    names = {p.name for p in (store / "me/tiny-mlx").iterdir()}
    assert names == {p.name for p in (tmp_path / "mlx").iterdir()}
    wb.ship("lmstudio", model, "me/tiny-gguf", store=store, type="Q8_0")
    assert wb.verify(store / "me/tiny-gguf/tiny-gguf-Q8_0.gguf").ok


@pytest.mark.parametrize("name", ["a/b/c", "../x", "a/", "a/..", "a/b?", "me/.x", "x" * 101, "a\\b"])
def test_names_that_lm_studio_refuses(gguf: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        wb.ship("lmstudio", gguf, name, store=tmp_path / "models")
    assert not (tmp_path / "models").exists()


# ------------------------------------------------------------------------------------------------ the table


def test_every_target_says_which_options_apply() -> None:
    from weighbridge.base.options import options_of
    from weighbridge.shipping.plan import ShipOptions

    known = {field.name for field, _ in options_of(ShipOptions)}
    assert set().union(*(row.options for row in TARGETS.values())) == known


@pytest.mark.parametrize(
    ("kind", "path", "line"),
    [("gguf", "a b.gguf", "llama-server -m 'a b.gguf'"), ("mlx", "out", "mlx_lm.chat --model out"),
     ("hf", "out", "vllm serve out"), ("npz", "x.npz", None)],
)  # fmt: skip
def test_how_to_run_what_was_made(kind: str, path: str, line: str | None) -> None:
    assert run_line(kind, path) == line
