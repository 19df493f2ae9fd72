"""OCI layouts in a repository of the Hub: read by ranges, like those on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.models.layout_files import LAYOUTS, Blobs, Layer, Parts, tagged, tarred, write
from tests.remote.servers import Hub

import weighbridge as wb
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.models import archives

ARRAY = np.arange(60_000, dtype="f4").reshape(300, 200)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No tree of another test is kept."""
    archives._roots.clear()
    yield
    archives._roots.clear()


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    wb.save({"a.weight": ARRAY}, tmp_path / "m.safetensors")
    wb.save({"a.weight": ARRAY}, tmp_path / "m.gguf", metadata={"general.architecture": "my-model"})
    return Parts((tmp_path / "m.gguf").read_bytes(), (), (tmp_path / "m.safetensors").read_bytes(), b"{}")


@pytest.mark.parametrize("name", ["generic", "docker-store", "modelpack", "image"])
def test_a_layout_is_read_by_ranges(name: str, parts: Parts, tmp_path: Path, connect: Callable[..., None]) -> None:
    files = LAYOUTS[name](parts)
    folder = write({**{f"layout/{n}": data for n, data in files.items()}, "layout.tar": tarred(files)}, tmp_path / "r")
    with Hub(folder).running() as hub:
        connect(hub)
        for place in ("hf://org/model/layout", "hf://org/model/layout.tar"):
            report = wb.inspect(place)
            assert [(t.name, tuple(t.shape)) for t in report.tensors] == [("a.weight", ARRAY.shape)]
            assert wb.identify(place).readable
            assert (wb.get(f"{place}::a.weight") == ARRAY).all()
            assert wb.verify(place, values=True).ok
        assert hub.hub.sent + hub.cdn.sent < 40 * len(parts.gguf)


def test_of_several_models_none_is_read(parts: Parts, tmp_path: Path, connect: Callable[..., None]) -> None:
    blobs = Blobs()
    rows = [tagged(blobs.manifest([Layer("application/octet-stream", data, name)]), name[0])
            for name, data in (("a.gguf", parts.gguf), ("b.safetensors", parts.safetensors))]  # fmt: skip
    files = blobs.layout(*rows)
    with Hub(write({f"layout/{n}": data for n, data in files.items()}, tmp_path / "r")).running() as hub:
        connect(hub)
        with pytest.raises(UsageError, match="has 2 models") as caught:
            wb.open("hf://org/model/layout")
        assert "fetch it first" in str(caught.value.hint)


def test_a_lie_about_a_digest_is_found(parts: Parts, tmp_path: Path, connect: Callable[..., None]) -> None:
    files = LAYOUTS["generic"](parts)
    blob = next(name for name, data in files.items() if data == parts.gguf)
    files[blob] = parts.gguf[:-1] + b"?"
    with Hub(write({f"layout/{n}": data for n, data in files.items()}, tmp_path / "r")).running() as hub:
        connect(hub)
        assert wb.verify("hf://org/model/layout").ok
        (found,) = [f for f in wb.verify("hf://org/model/layout", values=True).findings if f.severity == "error"]
        assert found.rule == "file/digest"
    files[blob] = parts.gguf[:-1]
    archives._roots.clear()
    with Hub(write({f"layout/{n}": data for n, data in files.items()}, tmp_path / "s")).running() as hub:
        connect(hub)
        with pytest.raises(FormatError, match="size isn't the one"):
            wb.open("hf://org/model/layout")
