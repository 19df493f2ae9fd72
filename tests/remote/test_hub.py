"""`hf://`: every command reads a repository as it reads the folder, at one commit, with huggingface_hub's tokens and
cache; what is moved is what was asked for."""

from __future__ import annotations

import base64
import gzip
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remote.servers import COMMIT, Faults, Hub
from tests.reports.makers import llama_folder

import weighbridge as wb
from weighbridge.adapters.remote import extra
from weighbridge.adapters.remote.hub import HubUri, _parsed, _plain, parse_uri
from weighbridge.base.errors import FormatError, RemoteError, UsageError
from weighbridge.cli.main import main
from weighbridge.io import ranges

pytest.importorskip("huggingface_hub")
Connect = Callable[..., None]


@pytest.fixture
def hub(tmp_path: Path, connect: Connect) -> Iterator[Hub]:
    """A Hub with a small Llama, which huggingface_hub talks to."""
    with Hub(llama_folder(tmp_path / "model")).running() as hub:
        connect(hub)
        yield hub


def run(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    capsys.readouterr()
    found = main([*args])
    out, err = capsys.readouterr()
    assert found == code, err
    return out + err


#: Commands whose answer must be the same but for the place's name.
READERS = {
    "identify": ("identify", "{}", "--json"),
    "inspect": ("inspect", "{}", "--tensors", "--json"),
    "inspect one": ("inspect", "{}::lm_head.weight", "--json"),
    "anatomy": ("anatomy", "{}/model-00001-of-00002.safetensors", "--json"),
    "verify": ("verify", "{}", "--values", "--json"),
    "scan": ("scan", "{}", "--json"),
    "hash": ("hash", "{}", "--json"),
    "hash tensors": ("hash", "{}", "--tensors", "--json"),
    "get": ("get", "{}", "model.norm.weight", "--json"),
    "diff": ("diff", "{}", "{folder}", "--json"),
    "plan": ("plan", "{}", "x.gguf", "--no-tokenizer", "--json"),
    "arch": ("arch", "check", "{}", "--json"),
    "fit": ("fit", "{}", "--device", "8GB", "--json"),
    "choose": ("choose", "{}", "--device", "8GB", "--json"),
    "stats": ("stats", "{}", "--json"),
    "prove": ("prove", "{}", "{folder}", "--static", "--json"),
}


@pytest.mark.parametrize("name", READERS)
def test_a_command_says_of_the_repository_what_it_says_of_the_folder(
    name: str, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(place: str) -> str:
        words = [word.format(place, folder=hub.folder) for word in READERS[name]]
        out = re.sub(r'"digests":\d+', '"digests":0', run(capsys, *words))  # the Hub lists some, a folder none
        return out.replace(place, "PLACE").replace(str(hub.folder), "PLACE")

    assert answer("hf://org/model") == answer(str(hub.folder))


#: Commands that write: the same bytes.
WRITERS = {
    "convert": ("convert", "{}", "{out}.gguf", "--no-tokenizer"),
    "convert folder": ("convert", "{}", "{out}", "--to", "mlx"),
    "quantize": ("quantize", "{}", "{out}.gguf", "Q8_0", "--no-tokenizer"),
    "slice": ("slice", "{}", "{out}", "--layers", "0"),
    "split": ("split", "{}", "{out}", "--max-shard-tensors", "5"),
    "rename": ("rename", "{}", "{out}", "--add-prefix", "x."),
    "merge": ("merge", "{}", "{out}.safetensors"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_command_writes_the_bytes_that_it_writes_of_the_folder(
    name: str, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = WRITERS[name]
    written = []
    for place, out in (("hf://org/model", tmp_path / "a" / "out"), (str(hub.folder), tmp_path / "b" / "out")):
        out.parent.mkdir()
        run(capsys, *(word.format(place, out=out) for word in words))
        files = sorted(p for p in out.parent.rglob("*") if p.is_file())
        written.append({p.relative_to(out.parent): p.read_bytes() for p in files})
    assert written[0] == written[1]
    assert written[0]


@pytest.mark.parametrize("words", [(), ("--values",)])
def test_the_page_of_the_repository_is_that_of_the_folder(
    words: tuple[str, ...], hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def page(place: str) -> str:
        run(capsys, "view", place, "-o", str(tmp_path / "page.html"), "--overwrite", *words)
        text = (tmp_path / "page.html").read_text()
        if packed := re.search(r'id="answers" data-encoding="gzip">([^<]+)<', text):
            text = text.replace(packed[1], gzip.decompress(base64.b64decode(packed[1])).decode())
        return text.replace(place, "PLACE")

    assert page("hf://org/model") == page(str(hub.folder))


def test_what_runs_must_be_here(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    text = run(capsys, "prove", str(hub.folder), "hf://org/model", code=2)
    assert "not checked: run: hf://org/model isn't on this machine: wb fetch it first" in text
    assert "same: tensors" in text
    run(capsys, "prove", "hf://org/model", str(hub.folder), "--no-run")


#: Commands that need files of this machine.
LOCAL = {
    "du": ("du", "{}"),
    "dedupe": ("dedupe", "{}", "--dry-run"),
    "serve": ("serve", "{}"),
    "edit": ("edit", "{}/model-00001-of-00002.safetensors"),
    "edit in place": ("edit", "{}/model-00001-of-00002.safetensors", "--set", "a=b"),
    "ship": ("ship", "llama-server", "{}"),
    "ship to LM Studio": ("ship", "lmstudio", "{}", "org/m", "--type", "Q8_0"),
}


@pytest.mark.parametrize("name", LOCAL)
def test_a_command_that_needs_a_local_model_says_how_to_get_one(
    name: str, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run(capsys, *(word.format("hf://org/model") for word in LOCAL[name]), code=2)
    assert "hf://org/model" in text
    assert "isn't a path on this machine" in text
    assert "wb fetch hf://org/model" in text


def test_wb_open(hub: Hub) -> None:
    with wb.open("hf://org/model") as remote, wb.open(hub.folder) as local:
        assert list(remote) == list(local)
        for name in local:
            np.testing.assert_array_equal(remote[name].numpy(), local[name].numpy())


# ---------------------------------------------------------------- what is moved


def big(folder: Path) -> Path:
    """A file of 8 MB with one short tensor in the middle."""
    from safetensors.numpy import save_file

    folder.mkdir()
    tensors = {f"w{i}": np.full((1 << 20,), i, np.float16) for i in range(4)}
    save_file({**tensors, "norm": np.arange(1000, dtype=np.float32)}, folder / "model.safetensors")
    return folder


def test_get_moves_the_header_and_the_tensor(
    tmp_path: Path, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    with Hub(big(tmp_path / "m")).running() as hub:
        connect(hub)
        run(capsys, "get", "hf://org/model", "norm", "-o", str(tmp_path / "n.npy"))
        np.testing.assert_array_equal(np.load(tmp_path / "n.npy"), np.arange(1000, dtype=np.float32))
        assert hub.cdn.sent <= (32 << 10) + 4000 + 64
        assert hub.requests <= 5


def test_a_conversion_reads_each_range_once(
    tmp_path: Path, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    with Hub(big(tmp_path / "m")).running() as hub:
        connect(hub)
        run(capsys, "convert", "hf://org/model/model.safetensors", str(tmp_path / "out.npz"))
        assert hub.cdn.sent <= (hub.folder / "model.safetensors").stat().st_size + (64 << 10)
        with np.load(tmp_path / "out.npz") as found:
            np.testing.assert_array_equal(found["w3"], np.full((1 << 20,), 3, np.float16))


@pytest.mark.parametrize("memory", [8 << 20, 192 << 20])
def test_a_conversion_stays_within_its_budget(
    memory: int, tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: the bytes of all buffers that answers are read into, and of what is kept of them."""
    from weighbridge.adapters.remote import http
    from weighbridge.io import ranges

    held, flying, sizes = [0], [0], list[int]()
    few = 4 * (64 << 10)  # short reads for which there is no room
    fetch, take, lock = http.HttpClient.fetch, ranges.Frames.take, threading.Lock()

    def moved(count: int) -> None:
        with lock:
            flying.append(flying[-1] + count)

    def counting(self: http.HttpClient, file: http.HttpFile, offset: int, out: memoryview, stopped: object) -> None:
        sizes.append(len(out))
        moved(len(out))
        try:
            fetch(self, file, offset, out, stopped)  # type: ignore[arg-type]
        finally:
            moved(-len(out))

    def taking(self: ranges.Frames, size: int) -> memoryview:
        found = take(self, size)
        held.append(ranges.CACHED.bytes)
        return found

    with Hub(big(tmp_path / "m")).running() as hub:
        connect(hub)
        with wb.plan_convert("hf://org/model", tmp_path / "out.safetensors", dtype="f32", max_memory=memory) as plan:
            monkeypatch.setattr(http.HttpClient, "fetch", counting)
            monkeypatch.setattr(ranges.Frames, "take", taking)
            plan.run()
            assert plan.memory + max(held) <= memory + few
        room = min(memory // 4, ranges.CACHE)
        assert max(held) <= room + few
        assert max(flying) <= room + plan.memory + few  # what finds no room is read into the slabs
        assert len(sizes) < 6 or memory < 32 << 20
        assert sum(sizes) > 8_000_000


def test_a_conversion_that_was_cut_off_goes_on(
    tmp_path: Path, connect: Connect, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from weighbridge.adapters.remote import http
    from weighbridge.io.sink import journal

    monkeypatch.setattr(journal, "_WAIT_BYTES", 1)
    monkeypatch.setattr("weighbridge.conversion.plan.read_ahead.room", lambda memory: 3 << 19)
    out, words = tmp_path / "out.safetensors", ("--resume", "--quiet", "--jobs", "1")
    with Hub(big(tmp_path / "m")).running() as hub:
        connect(hub)
        fetch = http.HttpClient.fetch

        def failing(self: http.HttpClient, file: http.HttpFile, offset: int, *rest: object) -> None:
            if offset > 5 << 20:
                raise RemoteError("cut off", hint="later")
            fetch(self, file, offset, *rest)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(http.HttpClient, "fetch", failing)
            assert "--resume" in run(capsys, "convert", "hf://org/model", str(out), *words, code=2)
        assert not out.exists()
        before = hub.cdn.sent
        run(capsys, "convert", "hf://org/model", str(out), *words)
        assert hub.cdn.sent - before < 7 << 20
        run(capsys, "diff", str(out), str(hub.folder / "model.safetensors"))


def test_inspect_of_many_shards_is_one_request_a_shard(
    tmp_path: Path, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    with Hub(llama_folder(tmp_path / "model", shards=20)).running() as hub:
        connect(hub)
        run(capsys, "inspect", "hf://org/model")
        ranges = [r.headers["range"] for r in hub.hub.log if "safetensors" in r.path and "index" not in r.path]
        assert len(ranges) == 20


# ---------------------------------------------------------------- places


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://o/m", HubUri("model", "o/m", None, "")),
        ("hf://o/m/", HubUri("model", "o/m", None, "")),
        ("hf://models/o/m", HubUri("model", "o/m", None, "")),
        ("hf://o/m@refs/pr/3/a/b.gguf", HubUri("model", "o/m", "refs/pr/3", "a/b.gguf")),
        ("hf://o/m@feat%2Fx/f", HubUri("model", "o/m", "feat/x", "f")),
        ("hf://datasets/o/d@v1/x", HubUri("dataset", "o/d", "v1", "x")),
        ("https://huggingface.co/o/m/blob/main/a.gguf", HubUri("model", "o/m", "main", "a.gguf")),
        ("https://huggingface.co/o/m/resolve/refs%2Fpr%2F1/a.gguf?download=true",
         HubUri("model", "o/m", "refs/pr/1", "a.gguf")),
    ],
)  # fmt: skip
def test_addresses(text: str, expected: HubUri) -> None:
    assert parse_uri(text) == expected


_PARTS = st.sampled_from(
    ("o", "m", "a.b", "x-y", "a--b", "a..b", "m.git", "-m", "models", "dataset", "spaces", "..", "")
)
_TAILS = st.sampled_from(
    ("", "@v1", "@refs/pr/3", "@refs/x", "@a%2Fb", "@", "/", "/x.gguf", "/a/b", "/..", "//x", "?x")
)


@given(st.lists(_PARTS, min_size=1, max_size=4), _TAILS)
def test_plain_addresses_mean_what_huggingface_hub_reads(parts: list[str], tail: str) -> None:
    text = "hf://" + "/".join(parts) + tail
    if (plain := _plain(text)) is not None:
        parsed = _parsed(text)
        assert plain._replace(path=plain.path.rstrip("/")) == parsed._replace(path=parsed.path.rstrip("/"))


def test_most_addresses_are_plain() -> None:
    for text in ("hf://o/m", "hf://Qwen/Qwen3-8B@main/model.gguf", "hf://datasets/o/d@c0ffee/x/y.bin"):
        assert _plain(text)


@pytest.mark.parametrize(
    "text", ["hf://gpt2", "hf://model/o/m", "hf://o/m@/x", "hf://o/m/../x", "hf://o/m/a/..", "hf://o/m/a\\b",
             "hf://buckets/o/b/x", "hf://"]
)  # fmt: skip
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises((UsageError, FormatError)):
        parse_uri(text)


def test_a_repository_that_lists_names_outside_itself_is_refused(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.siblings.append({"rfilename": "../../etc/passwd", "size": 3, "blobId": "0" * 40})
    assert "leaves the repository" in run(capsys, "inspect", "hf://org/model", code=2)


def test_a_revision_is_resolved_once(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "verify", "hf://org/model@main", "--values")
    files = [p for p in hub.hub.paths() if "/resolve/" in p]
    assert files
    assert all(f"/resolve/{COMMIT}/" in path for path in files)
    assert "the revision doesn't exist" in run(capsys, "inspect", "hf://org/model@v9", code=2)


def test_a_misspelled_file_names_the_near_ones(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert "config.json" in run(capsys, "inspect", "hf://org/model/confg.json", code=2)


# ---------------------------------------------------------------- access


def test_the_token_goes_to_the_hub_alone(tmp_path: Path, connect: Connect, capsys: pytest.CaptureFixture[str]) -> None:
    with Hub(llama_folder(tmp_path / "model"), token="hf_secret").running() as hub:
        connect(hub, token="hf_secret")
        run(capsys, "verify", "-q", "hf://org/model", "--values")
        assert all(r.headers.get("authorization") == "Bearer hf_secret" for r in hub.hub.log)
        assert hub.cdn.log
        assert not any("authorization" in r.headers for r in hub.cdn.log)


@pytest.mark.parametrize(
    ("gated", "words"), [(True, "is gated"), (False, "the repository doesn't exist, or it is private")]
)
def test_who_may_not_read_is_told_how_to_log_in(
    gated: bool, words: str, tmp_path: Path, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    with Hub(llama_folder(tmp_path / "model"), token="hf_secret", gated=gated).running() as hub:
        connect(hub)
        text = run(capsys, "inspect", "hf://org/model", code=2)
        assert words in text
        assert "hf auth login" in text


@pytest.mark.parametrize("which", ["read", "refused", "cached", "absent from the cache"])
def test_a_process_of_its_own(which: str, hub: Hub, tmp_path: Path) -> None:
    """Modules of huggingface_hub that other tests of this process have imported are not there by themselves."""
    gated = which == "refused"
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_TOKEN": ""}
    if "cache" in which:
        environment["HF_HUB_OFFLINE"] = "1"
    if which == "cached":
        snapshot = tmp_path / "hub" / "models--org--model" / "snapshots" / "main"
        shutil.copytree(tmp_path / "model", snapshot)
    if gated:
        hub.token, hub.gated = "hf_secret", True
    command = [sys.executable, "-m", "weighbridge", "inspect", "hf://org/model"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    words = {"refused": "is gated", "absent from the cache": "isn't in the cache"}.get(which)
    assert (done.returncode, words is None or words in done.stderr) == (2 if words else 0, True), done.stderr


def test_a_busy_hub_is_waited_for(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.hub.faults = Faults(status=(429, 2), retry_after="0")
    run(capsys, "inspect", "hf://org/model")


def test_no_network(hub: Hub, capsys: pytest.CaptureFixture[str], connect: Connect) -> None:
    hub.hub.url = "http://127.0.0.1:1"
    connect(hub)
    text = run(capsys, "inspect", "hf://org/model", code=2)
    assert "127.0.0.1:1" in text
    assert "hint" in text


# ---------------------------------------------------------------- the cache


def test_what_is_in_the_cache_is_read_from_there(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download("org/model", cache_dir=tmp_path / "hub", endpoint=hub.endpoint)
    hub.clear()
    run(capsys, "verify", "-q", "hf://org/model", "--values")
    assert [p for p in hub.hub.paths() if "/resolve/" in p] == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.clear()
    run(capsys, "verify", "-q", "hf://org/model", "--values")
    assert "org/nothere" in run(capsys, "inspect", "hf://org/nothere", code=2)
    assert hub.requests == 0
    monkeypatch.delenv("HF_HUB_OFFLINE")
    hub.hub.url = "http://127.0.0.1:1"
    connect(hub)
    assert "hint: the local cache has a copy: --offline reads it" in run(capsys, "inspect", "hf://org/model", code=2)
    run(capsys, "--offline", "inspect", "hf://org/model")


def test_offline_reaches_for_no_network(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def connect(*args: object) -> None:
        raise AssertionError("a connection was made")

    monkeypatch.setattr("socket.socket.connect", connect)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for url in ("hf://org/model", "https://127.0.0.1/x", "s3://bucket/x", "ollama://llama"):
        assert "--offline" in run(capsys, "inspect", url, code=2)


def test_a_file_of_the_cache_that_is_cut_off_is_not_used(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import snapshot_download

    folder = Path(snapshot_download("org/model", cache_dir=tmp_path / "hub", endpoint=hub.endpoint))
    weights = (folder / "model-00001-of-00002.safetensors").resolve()
    weights.write_bytes(weights.read_bytes()[:-100])
    run(capsys, "verify", "-q", "hf://org/model", "--values")


def test_random_places(hub: Hub) -> None:
    from weighbridge.adapters.remote.schemes import resolve_path
    from weighbridge.io.location import open_source

    name = "model-00002-of-00002.safetensors"
    data = (hub.folder / name).read_bytes()
    rng = random.Random(5)
    with open_source(resolve_path(f"hf://org/model/{name}")) as source:
        for _ in range(50):
            a = rng.randrange(len(data))
            b = rng.randrange(a, len(data))
            assert source.read(a, b - a) == data[a:b]


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "config.json"])
@pytest.mark.parametrize("values", [True, False])
def test_verify_compares_bytes_with_the_digests_of_the_hub(
    name: str, values: bool, tmp_path: Path, connect: Callable[..., None]
) -> None:
    """The last byte of a tensor, or of a small file, is another one: still a model in every other respect."""
    folder = llama_folder(tmp_path / "model")
    with Hub(folder).running() as hub:
        connect(hub)
        report = wb.verify("hf://org/model", values=values)
        assert (report.verdict, report.digests) == ("ok", len(hub.siblings) if values else 0)
        data = (folder / name).read_bytes()
        other = data.replace(b": ", b":\t", 1) if name == "config.json" else data[:-1] + bytes([data[-1] ^ 1])
        (folder / name).write_bytes(other)
        extra._kept.clear()
        ranges.CACHED._files.clear()
        found = [f.rule for f in wb.verify("hf://org/model", values=values).findings if f.severity == "error"]
        assert found == (["file/digest"] if values else [])
