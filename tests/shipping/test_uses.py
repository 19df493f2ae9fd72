"""The command that `wb convert` and `wb ship` print for a GGUF runs it: llama-server with these flags answers."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.oracles import models
from tests.oracles.families import CASES

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError
from weighbridge.models.llamacpp import table, use_of
from weighbridge.shipping.run import how_to_run
from weighbridge.shipping.targets import FLAGS, TARGETS, run_line, server_flags

#: case -> the use of its GGUF, and llama-server's endpoint for it
SERVED = {
    "smollm3": ("gguf", "completions"),
    "bert-rank": ("reranker", "rerank"),
    "bert-unnamed": ("classifier", "embeddings"),
    "gemmaembedding": ("embedding", "embeddings"),
}
#: case -> the use of its GGUF, which llama-server doesn't run
OTHERS = {"t5": "encoder-decoder", "qwen3-tts": "speech", "llada": "block diffusion"}
SERVER = """
import json, os, sys, xllamacpp as x
path, flags, endpoint = sys.argv[1], sys.argv[2].split(), sys.argv[3]
params = x.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup, params.fit_params = path, 128, 1, False, False
params.embedding = bool(flags)  # common/arg.cpp (llama.cpp b11549)
if "--reranking" in flags or flags[1:] == ["--pooling", "rank"]:
    params.pooling_type = 4
given = {"completions": {"prompt": "a b", "n_predict": 2}, "embeddings": {"input": "a b"},
         "rerank": {"query": "a", "documents": ["b c", "d"]}}
server = x.Server(params)
try:
    answer = getattr(server, f"handle_{endpoint}")(given[endpoint])
except Exception as error:
    answer = {"error": str(error)}
print("ANSWER", json.dumps(answer), flush=True)
os._exit(0)  # the server's end may wait forever
"""


def answer(path: Path, flags: tuple[str, ...], endpoint: str) -> dict[str, Any] | None:
    """The server's answer; None if the process ends before it."""
    command = [sys.executable, "-c", SERVER, str(path), " ".join(flags), endpoint]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    line = next((line for line in out.splitlines() if line.startswith("ANSWER ")), None)
    return json.loads(line.removeprefix("ANSWER ")) if line else None


@pytest.fixture(scope="module")
def ggufs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    base = tmp_path_factory.mktemp("uses")

    @cache
    def make(name: str) -> tuple[Path, str | None]:
        folder = models.build(CASES[name], base / name)
        with wb.plan_convert(folder, base / f"{name}.gguf", dtype="f32") as plan:
            plan.run()
            return base / f"{name}.gguf", how_to_run(plan)

    return make


@pytest.mark.costly
@pytest.mark.oracle
@pytest.mark.parametrize("name", SERVED)
def test_the_server_answers_with_the_printed_flags(name: str, ggufs: Any) -> None:
    use, endpoint = SERVED[name]
    path, line = ggufs(name)
    assert line == run_line(use, str(path))
    assert shlex.split(line or "")[:3] == ["llama-server", "-m", str(path)]
    assert tuple(shlex.split(line or "")[3:]) == FLAGS[use]
    given = answer(path, FLAGS[use], endpoint)
    assert given is not None
    assert "error" not in given
    report = wb.ship("llama-server", path)
    assert set(FLAGS[use]) <= set(shlex.split(report.run[0]))
    if use == "reranker":
        without = answer(path, FLAGS["embedding"], endpoint)
        assert without is not None
        assert "error" in without


@pytest.mark.parametrize("name", OTHERS)
def test_models_of_other_programs_are_refused_by_servers(name: str, ggufs: Any, tmp_path: Path) -> None:
    path, line = ggufs(name)
    assert line == run_line(OTHERS[name], str(path))
    assert line is not None
    assert not line.startswith("llama-server")
    with wb.plan_convert(path.with_suffix(""), tmp_path / "copy", to="hf", dtype="bf16") as plan:
        assert how_to_run(plan) is None
    inside, shard = tmp_path / "inside", tmp_path / "shards" / "shards-00001-of-00002.gguf"
    inside.mkdir()
    shutil.copy(path, inside)
    wb.convert(path, tmp_path / "shards", to="gguf", max_shard_size=(path.stat().st_size * 3) // 4)
    hints = {path: line, inside: line.replace(str(path), str(inside / path.name)),
             shard.parent: line.replace(str(path), str(shard))}  # fmt: skip
    for target, (source, hint) in product(("llama-server", "ollama", "lmstudio"), hints.items()):
        with pytest.raises(UnsupportedError, match=OTHERS[name]) as error:
            wb.ship(target, source, "name", store=None if target == "llama-server" else tmp_path / "store")
        merged = (target, source) == ("ollama", shard.parent)
        assert error.value.hint == (
            f"wb convert {source} model.gguf prints the command that runs it" if merged else hint
        )
    with pytest.raises(UnsupportedError, match=OTHERS[name]) as error:
        wb.ship("ollama", path.with_suffix(""), "name", store=tmp_path / "store")
    assert error.value.hint == f"wb convert {path.with_suffix('')} model.gguf prints the command that runs it"


@pytest.mark.costly
@pytest.mark.oracle
def test_the_server_ends_on_an_encoder_decoder(ggufs: Any) -> None:
    assert answer(ggufs("t5")[0], (), "completions") is None


def test_each_use_has_a_command() -> None:
    assert {*table().uses.values(), *FLAGS} == {*TARGETS["llama-server"].runs} - {"adapter gguf"}
    assert table().uses.keys() <= table().architecture.keys()
    for architecture, use in table().uses.items():
        keys = {"general.architecture": architecture}
        assert use_of(keys) == use
        if use not in FLAGS:
            with pytest.raises(UnsupportedError, match=use):
                server_flags(Path("x"), keys, Path("x.gguf"))


@pytest.mark.parametrize(
    ("keys", "use"),
    [({}, "gguf"), ({"pooling_type": 1}, "embedding"), ({"pooling_type": 4}, "reranker"),
     ({"attention.causal": False}, "embedding"), ({"classifier.output_labels": ["LABEL_0"]}, "reranker"),
     ({"classifier.output_labels": ["bad", "good"]}, "classifier"),
     ({"classifier.output_labels": 7, "pooling_type": "x"}, "embedding"),
     ({"attention.causal": False, "pooling_type": 1, "decision.type": "laya"}, "gguf"),
     ({"classifier.output_labels": ["yes", "no"], "pooling_type": 4}, "reranker"),
     ({"classifier.output_labels": "ab"}, "gguf")],
)  # fmt: skip
def test_the_keys_decide_the_use(keys: dict[str, Any], use: str) -> None:
    named = {f"bert.{key}": value for key, value in keys.items()}
    assert use_of({"general.architecture": "bert", **named}) == use


@pytest.mark.parametrize("name", OTHERS)
def test_wb_choose_names_the_program(name: str, ggufs: Any) -> None:
    path, line = ggufs(name)
    for model in (path, path.with_suffix("")):
        last = wb.choose(model=model, runtime="llama.cpp").commands[-1]
        assert shlex.split(last)[0] == shlex.split(line)[0]
        with pytest.raises(UnsupportedError, match=OTHERS[name]):
            wb.choose(model=model, runtime="ollama")


@pytest.mark.parametrize(("name", "text", "scores"), [("bert-rank", " TEXT", True), ("gemmaembedding", " TEXT", False)])
def test_ollama_is_given_a_text_to_embed(name: str, text: str, scores: bool, ggufs: Any, tmp_path: Path) -> None:
    report = wb.ship("ollama", ggufs(name)[0], "mine", store=tmp_path / "store")
    assert report.run == (f"ollama run mine:latest{text}",)
    assert any("no scores" in note for note in report.notes) == scores
