"""The extension for VS Code: its archive, and its code in node with a stub of the editor, against the real command."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import system
from tests.page.conftest import Complaints, until

from weighbridge.page.data import PageData

pytestmark = pytest.mark.costly

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "release/vscode"
LIGHT, DARK = "1", "2"


@pytest.fixture(scope="module")
def build() -> Any:
    spec = importlib.util.spec_from_file_location("build_vscode", SOURCE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_archive_is_what_vs_code_installs(build: Any, tmp_path: Path) -> None:
    """Every asset exists, every suffix has a type, the version is the package's, and the bytes are reproducible."""
    path = build.build(tmp_path / "a")
    assert path.read_bytes() == build.build(tmp_path / "b").read_bytes()
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        types = ET.fromstring(archive.read("[Content_Types].xml"))
        manifest = ET.fromstring(archive.read("extension.vsixmanifest"))
        package = json.loads(archive.read("extension/package.json"))
    suffixes = {row.attrib["Extension"] for row in types}
    assert {Path(name).suffix for name in names if name != "[Content_Types].xml"} <= suffixes
    vsx = "{http://schemas.microsoft.com/developer/vsx-schema/2011}"
    assert {row.attrib["Path"] for row in manifest.iter(f"{vsx}Asset")} <= {*names}
    identity = next(manifest.iter(f"{vsx}Identity")).attrib
    assert (identity["Id"], identity["Publisher"]) == (package["name"], package["publisher"])
    assert identity["Version"] == package["version"] == path.stem.partition("-")[2]
    assert f"extension/{package['main'].removeprefix('./')}" in names


@pytest.mark.parametrize(("text", "numbers"), [("1.2.3", "1.2.3"), ("1.2", "1.2.0"), ("0.1.0+local", "0.1.0")])
def test_versions_have_three_numbers(build: Any, text: str, numbers: str) -> None:
    assert build.version(text) == numbers


def test_the_manifest_opens_the_files_and_trusts_no_workspace() -> None:
    """A workspace can't choose the command that is run."""
    package = json.loads((SOURCE / "package.json").read_text("utf-8"))
    patterns = {
        row["filenamePattern"] for editor in package["contributes"]["customEditors"] for row in editor["selector"]
    }
    assert patterns == {"*.gguf", "*.safetensors", "*.pt", "*.pth", "*.ckpt", "*.bin"}
    assert package["contributes"]["configuration"]["properties"]["weighbridge.command"]["scope"] == "machine"
    assert package["capabilities"]["untrustedWorkspaces"]["restrictedConfigurations"] == ["weighbridge.command"]


class Editor:
    """The extension in node; `tell` and `hear` are the webview's messages."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def tell(self, **message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def hear(self, key: str) -> Any:
        """The next line with `key`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if key in (value := json.loads(line)):
                return value[key]
        raise AssertionError(f"the extension ended without {key}")

    def answer(self, question: str) -> Any:
        """The last message about a question."""
        self.tell(id=question, question=question)
        while "progress" in (message := self.hear("message")):
            pass
        assert message.pop("id") == question
        return message


@contextmanager
def opened(command: Path | str, *files: Path, theme: str = LIGHT) -> Iterator[Editor]:
    node = system.require("node")
    arguments = [node, str(ROOT / "tests/page/vscode_stub.js"), str(SOURCE / "extension.js"), str(command), theme,
                 *map(str, files)]  # fmt: skip
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Editor(process)
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`wb` as a program."""
    path = tmp_path_factory.mktemp("command") / "wb"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m weighbridge "$@"\n')
    path.chmod(0o755)
    return path


def test_answers_are_those_of_the_page(command: Path, models: Path) -> None:
    """Quick and slow ones, and refusals; another address than a question of the page isn't asked for."""
    with opened(command, models / "q4.gguf") as editor, PageData(models / "q4.gguf") as data:
        assert editor.hear("views") == ["weighbridge.model", "weighbridge.binary"]
        assert editor.hear("options") == {"enableScripts": True, "localResourceRoots": []}
        editor.hear("html")
        for name, params in (("start", {}), ("summary", {"model": "0"}), ("statistics", {"model": "0", "tensor": "3"})):
            question = f"{name}?{'&'.join(f'{k}={v}' for k, v in params.items())}"
            assert editor.answer(question) == {"answer": json.loads(data.answer(name, params))}
        assert editor.answer("summary?model=7")["error"] == "unknown model 7"
        assert editor.answer("../summary?model=0")["error"] == "not a question of the page"


def test_several_models_are_one_page(command: Path, models: Path) -> None:
    with opened(command, models / "f16.gguf", models / "q4.gguf") as editor:
        assert editor.hear("title") == "f16.gguf, q4.gguf"
        editor.hear("html")
        names = [model["name"] for model in editor.answer("start?")["answer"]["models"]]
        assert names == ["f16.gguf", "q4.gguf"]


def test_a_closed_editor_ends_its_server(command: Path, models: Path) -> None:
    with opened(command, models / "q4.gguf") as editor:
        editor.hear("html")
        editor.tell(dispose=True)
        for _ in range(100):
            if "error" in (message := editor.answer("start?")):
                break
        assert "error" in message


@pytest.mark.parametrize(
    ("program", "file", "shown"),
    [("no-such-command", "q4.gguf", "pip install"), ("/bin/echo", "q4.gguf", "isn&#39;t Weighbridge"),
     ("", "missing.gguf", "missing.gguf")],
)  # fmt: skip
def test_trouble_is_shown(command: Path, models: Path, program: str, file: str, shown: str) -> None:
    """A missing command, another one of this name, and a missing file."""
    with opened(program or command, models / file) as editor:
        html = editor.hear("html")
    assert "default-src 'none'" in html
    assert shown in html


def test_the_document_works_under_its_policy(browser: Any, command: Path, models: Path, tmp_path: Path) -> None:
    """In chromium, with the editor's messages; in the editor's colours; and it asks no server."""
    with opened(command, models / "q4.gguf", theme=DARK) as editor:
        (tmp_path / "page.html").write_text(editor.hear("html"), "utf-8")
        page = browser.new_page()
        complaints = Complaints()
        url = (tmp_path / "page.html").as_uri()
        complaints.watch(page, url)
        answered: list[Any] = []
        page.expose_function("carry", lambda message: answered.append(message))
        page.add_init_script("window.acquireVsCodeApi = () => ({ postMessage: (message) => window.carry(message) });")
        page.goto(url)
        frame = page.frame_locator("iframe")
        while not frame.locator("nav").count() or frame.locator(".waiting").count():
            page.wait_for_timeout(50)
            for message in [answered.pop(0) for _ in range(len(answered))]:
                reply = {"id": message["id"], **editor.answer(message["question"])}
                page.evaluate("message => window.postMessage(message, '*')", reply)
        until(page, "document.querySelector('iframe') !== null")
        assert "parameters" in frame.locator(".figures").inner_text()
        assert frame.locator("html").get_attribute("data-theme") == "dark"
        assert complaints == []
        page.close()
