"""Places that can't be read: exit 2 with the next step, and never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.remote.servers import FileServer

from weighbridge.adapters.remote.schemes import SCHEMES
from weighbridge.cli.main import main

#: Scheme -> the package without which it isn't read, and how it is written. Those of one web server need none.
EXTRAS = {
    "hf": ("huggingface_hub", "hf://o/m"),
    **{scheme: ("obstore", f"{scheme}://bucket/x") for scheme in ("s3", "gs", "gcs", "az", "abfs")},
}
BARE = {"http", "https", "ollama", "lmstudio"}


@contextmanager
def without(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if a package weren't installed."""
    with monkeypatch.context() as patch:
        for module in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
            patch.delitem(sys.modules, module)
        patch.setitem(sys.modules, name, None)
        yield


@pytest.mark.parametrize("scheme", EXTRAS)
def test_a_missing_extra_says_what_to_install(
    scheme: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, url = EXTRAS[scheme]
    with without(name, monkeypatch):
        assert main(["inspect", url]) == 2
    shown = capsys.readouterr().err
    assert f"needs the package {name}" in shown
    assert 'hint: pip install "weighbridge[remote]"' in shown


def test_every_scheme_has_its_row() -> None:
    assert set(EXTRAS) | BARE == set(SCHEMES)


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="there the system's trust needs truststore")
def test_a_web_server_is_read_without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        without("huggingface_hub", monkeypatch), without("httpx2", monkeypatch), without("truststore", monkeypatch),
        FileServer({"/x": b"abc"}).running() as server,
    ):  # fmt: skip
        assert main(["hash", "-q", f"{server.url}/x"]) == 0
