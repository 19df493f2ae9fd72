"""A browser, models to look at, and the command that serves them. The browser is shared by the tests of a worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests import system
from tests.oracles.sharing import made_once
from tests.page.samples import HOSTILE, MANY, llama, sparse

import weighbridge as wb

WAIT = 60_000  # milliseconds: a limit for a broken page, not for a slow machine
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = system.require("chromium")
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield found
        found.close()


def until(page: Any, expression: str) -> None:
    """Waits for an expression to be true. (The page's policy forbids playwright's own way, which needs `eval`.)"""
    end = time.monotonic() + WAIT / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"{expression}\n{page.locator('body').inner_text()[:2000]}"
        page.wait_for_timeout(20)


#: Marks rows that have the tags, classes, styles and attributes of one before them, of whose texts both or neither are
#: empty: what axe finds in one it finds in the other. Bytes are compared wherever they are.
TWINS = """() => {
  const seen = new Map(), numbered = / (title|aria-label|aria-rowindex|data-row)="[^"]+"/g;
  for (const row of document.querySelectorAll("main :is(tbody tr, [role=row], li, .b)")) {
    const byte = row.matches(".b"), html = byte ? row.className : row.outerHTML;
    const group = byte ? row.parentElement.className : row.parentElement;
    const markup = html.replace(/ data-twin=""|<wbr>/g, "").replace(/>[^<]+</g, ">x<").replace(numbered, ' $1="x"');
    if (!seen.has(group)) seen.set(group, new Set());
    row.toggleAttribute("data-twin", seen.get(group).has(markup));
    seen.get(group).add(markup);
  }
}"""


def violations(page: Any, options: dict[str, Any] | None = None) -> list[Any]:
    """What axe finds on a page: rules, with the first elements that break them. Only these leave the browser."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe.axe_script)
    page.evaluate(TWINS)
    hidden = page.add_style_tag(content="[data-twin] { display: none !important }")
    found: list[Any] = page.evaluate(
        """options => axe.run(options).then(({ violations }) =>
        violations.map(({ id, nodes }) => [id, nodes.slice(0, 3).map(({ html }) => html.slice(0, 200))]))""",
        {"resultTypes": ["violations"], **(options or {})},
    )
    hidden.evaluate("style => style.remove()")
    return found


class Complaints(list[str]):
    """What a page writes to the console, and what it asks of others than its own server."""

    def watch(self, page: Any, origin: str) -> None:
        page.on("console", lambda message: self.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.append(f"error: {error}"))
        page.on("request", lambda request: self._request(request.url, origin))

    def _request(self, url: str, origin: str) -> None:
        if not url.startswith((origin, "data:", "about:")):
            self.append(f"request: {url}")


class Visits:
    """Opens addresses, each in a window of its own. Windows are closed before their server ends: one that outlives it
    complains."""

    def __init__(self, browser: Any) -> None:
        self.browser, self.contexts, self.complaints = browser, list[Any](), Complaints()

    def __call__(self, url: str, *, wait: str = "nav", **settings: Any) -> Any:
        context = self.browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        context.set_default_timeout(WAIT)
        self.contexts.append(context)
        page = context.new_page()
        self.complaints.watch(page, url.partition("#")[0])
        page.goto(url)
        page.wait_for_selector(wait)
        return page

    def close(self) -> None:
        while self.contexts:
            self.contexts.pop().close()

    @contextmanager
    def served(self, *arguments: str | os.PathLike[str]) -> Iterator[str]:
        """The address of `wb view` with these arguments, for windows of this block alone."""
        with running(*arguments) as (url, _), closing(self):
            yield url


@pytest.fixture
def visit(browser: Any) -> Iterator[Visits]:
    """At the end no page may have complained."""
    visits = Visits(browser)
    yield visits
    visits.close()
    assert visits.complaints == []


@contextmanager
def running(*arguments: str | os.PathLike[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`wb view`, its address and the process."""
    command = [sys.executable, "-m", "weighbridge", "view", *map(str, arguments), "--no-browser", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield json.loads(line)["url"], process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert errors == ""


def serving(*arguments: str | os.PathLike[str]) -> Iterator[str]:
    pytest.importorskip("uvicorn")
    with running(*arguments) as (url, _):
        yield url


@pytest.fixture(scope="package")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of these tests, made once."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return made_once(shared / "page-models", _make)


def _make(folder: Path) -> None:
    folder.mkdir()
    llama(folder / "llama")
    wb.convert(folder / "llama", folder / "f16.gguf", dtype="f16", tokenizer=False)
    wb.quantize(folder / "f16.gguf", folder / "q4.gguf", "Q4_K_M")
    save_file({name: np.full((2, 3), i, np.float32) for i, name in enumerate(HOSTILE)}, folder / "hostile.safetensors",
              metadata={"</script>": "<b>&\u2029\u202e"})  # fmt: skip
    sparse(folder / "many.safetensors", MANY)


@pytest.fixture(scope="package")
def model_url(models: Path) -> Iterator[str]:
    yield from serving(models / "q4.gguf")


@pytest.fixture(scope="package")
def many_url(models: Path) -> Iterator[str]:
    yield from serving(models / "many.safetensors")


@pytest.fixture(scope="package")
def hostile_url(models: Path) -> Iterator[str]:
    yield from serving(models / "hostile.safetensors")
