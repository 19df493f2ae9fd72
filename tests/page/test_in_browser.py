"""The page in a browser's own Python: the same answers without numpy, threads and the extension; and the built page in
a real browser."""

from __future__ import annotations

import functools
import http.server
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import system
from tests.llama import make_folder
from tests.page.conftest import Complaints, until

import weighbridge as wb
from weighbridge.page.data import PageData
from weighbridge.page.export import header_questions, key

pytestmark = pytest.mark.costly

ROOT = Path(__file__).parents[2]


class Call:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("hello",))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("dropped")
    folder = make_folder(root / "folder", words=True)
    wb.convert(folder, root / "model.gguf", pre="gpt-2")
    wb.convert(folder, root / "model.pt")
    wb.split(folder, root / "shards", max_shard_tensors=9)
    (root / "call.pkl").write_bytes(pickle.dumps({"a": Call()}))
    np.savez(root / "arrays.npz", a=np.ones((4, 4), np.float32))
    whole = (root / "model.gguf").read_bytes()
    (root / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    (root / "notes.txt").write_text("no model")
    return {path.name: path for path in root.iterdir()}


BYTES = ("bytes", {"model": 0, "file": 0, "offset": 0, "length": 64})
MODELS = ("folder", "shards", "model.gguf", "model.pt", "call.pkl", "arrays.npz", "cut.gguf")
# What a browser's Python lacks is made missing before anything is imported.
BARE = """
import json, sys, threading
for name in ("numpy", "ml_dtypes", "weighbridge._native"):
    sys.modules[name] = None
def start(self):
    raise RuntimeError("can't start new thread")
threading.Thread.start = start
import weighbridge.io.workers as workers
workers.Workers.submit = workers.run_now
from weighbridge.page.in_browser import Desk
desk = Desk()
opened = json.loads(desk.open(sys.argv[1]))
answers = {question: json.loads(desk.answer(question)) for question in json.loads(sys.argv[2])}
print(json.dumps({"opened": opened, "answers": answers}))
"""


def bare(path: Path, questions: list[str]) -> dict[str, Any]:
    run = [sys.executable, "-c", BARE, str(path), json.dumps(questions)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_the_answers_are_the_installed_version_s(name: str, models: Mapping[str, Path]) -> None:
    with PageData(models[name]) as data:
        data.read_here = False
        questions = [*header_questions(data, findings=True), BYTES]
        expected = {key(q): json.loads(data.answer(q[0], {k: str(v) for k, v in q[1].items()})) for q in questions}
    found = bare(models[name], list(expected))
    assert 'id="framed"' in found["opened"]["document"]
    for question, answer in expected.items():
        assert found["answers"][question] in ({"answer": answer}, NO_VALUES), question
    lacking = {question for question in expected if found["answers"][question] == NO_VALUES}
    assert lacking <= {"findings?model=0"}
    assert not lacking or name in NEEDS_VALUES


NO_VALUES = {
    "error": "this needs the values of tensors, and a browser's Python has no numpy to read them",
    "hint": "pip install weighbridge, and wb view FILE",
}
#: Models of which verify decodes something.
NEEDS_VALUES = frozenset({"cut.gguf"})


def test_what_cannot_be_opened_or_answered_is_said(models: Mapping[str, Path]) -> None:
    found = bare(models["notes.txt"], ["summary?model=0"])
    assert found["opened"].keys() == {"error", "hint"}
    assert found["answers"]["summary?model=0"] == {"error": "no model is open", "hint": None}
    values, unknown = "statistics?model=0&tensor=0", "nothing?"
    answers = bare(models["folder"], [values, unknown])["answers"]
    assert answers[values] == NO_VALUES
    assert "unknown question" in answers[unknown]["error"]


# ------------------------------------------------------------------------------------------------ in a real browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The built page, served as files."""
    system.require("npm")
    system.require("chromium")
    out = tmp_path_factory.mktemp("site") / "browser"
    built = subprocess.run(
        [sys.executable, ROOT / "release/browser/build.py", "--out", out], capture_output=True, text=True, check=False
    )
    if built.returncode:
        pytest.skip(f"the page wasn't built: {built.stderr.strip()[-300:]}")
    handler = functools.partial(Quiet, directory=str(out))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.slow
def test_dropped_files_are_shown(site: str, browser: Any, models: Mapping[str, Path]) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page, complaints = context.new_page(), Complaints()
    complaints.watch(page, site)
    page.goto(f"{site}index.html")
    until(page, "document.querySelector('#say').textContent === ''")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    context.set_offline(True)
    for name, words in (
        ("model.gguf", "llama"), ("folder", "LlamaForCausalLM"), ("shards", "LlamaForCausalLM"),
        ("call.pkl", "print"), ("arrays.npz", "npz"), ("cut.gguf", "gguf"),
    ):  # fmt: skip
        path = models[name]
        page.locator("input").nth(1 if path.is_dir() else 0).set_input_files(path)
        frame = page.frame_locator("iframe")
        frame.locator("nav").wait_for()
        frame.locator("body", has_text=words).wait_for()
        page.locator("#another").click()
    page.locator("input").first.set_input_files(models["notes.txt"])
    until(page, "document.querySelector('#say').textContent.includes('notes.txt')")
    assert [url for url in requests if not url.startswith(("about:", "data:"))] == []
    assert complaints == []
    context.close()
