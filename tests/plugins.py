"""Installs a plug-in for a test as pip would: a module and its `.dist-info` in a folder on the path."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from weighbridge.base.plugins import FAMILIES, FORMATS, PACKINGS, plugins
from weighbridge.models.arch import registry as family_registry
from weighbridge.models.arch.tables import documents

TOYS = Path(__file__).with_name("toys")


def write_package(folder: Path, name: str, files: Mapping[str, str], entries: Mapping[str, Mapping[str, str]]) -> Path:
    """A package `name` 1.0 installed in `folder`. `files`: relative path -> text; `entries`: group -> name -> value."""
    info = folder / f"{name}-1.0.dist-info"
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in rows.items()) for group, rows in entries.items()]
    texts = {
        f"{info.name}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info.name}/entry_points.txt": "\n".join(lines),
        **files,
    }
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")
    return folder


def toy_format(folder: Path) -> Path:
    """The toy format `.tnsr`, installed in `folder`."""
    text = (TOYS / "toy_tnsr.py").read_text("utf-8")
    return write_package(folder, "toy_tnsr", {"toy_tnsr.py": text}, {FORMATS: {"tnsr": "toy_tnsr:FORMAT"}})


def toy_family(folder: Path) -> Path:
    """The toy family, installed in `folder`: a package with one table."""
    files = {"toy_families/__init__.py": "", "toy_families/toy.toml": (TOYS / "toy_family.toml").read_text("utf-8")}
    return write_package(folder, "toy_families", files, {FAMILIES: {"toy": "toy_families"}})


def toy_packing(folder: Path) -> Path:
    """The toy packing, installed in `folder`."""
    files = {"toy_packing.py": (TOYS / "toy_packing.py").read_text("utf-8")}
    return write_package(folder, "toy_packing", files, {PACKINGS: {"toy": "toy_packing:TOY"}})


@contextmanager
def all_toys() -> Iterator[None]:
    """All four toys are there inside the block: three installed packages and a registered block type."""
    from tests.toys.toy_block_type import CODEC, TOY

    from weighbridge.tensors.reference import registry

    with TemporaryDirectory() as name:
        for install in (toy_format, toy_packing, toy_family):
            install(Path(name))
        registry.register(TOY, CODEC)
        try:
            with installed(Path(name)):
                yield
        finally:
            registry.unregister(TOY)


def environment(folder: Path) -> dict[str, str]:
    """The environment of a subprocess that has the packages in `folder` installed."""
    paths = (str(folder), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@contextmanager
def installed(folder: Path) -> Iterator[Path]:
    """The packages in `folder` are installed inside the block, and gone after it."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    _forget()
    try:
        yield folder
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]
        _forget()


def _forget() -> None:
    importlib.invalidate_caches()
    plugins.cache_clear()
    for cached in (documents.plugged_in, documents.document, family_registry.family, family_registry.families):
        cached.cache_clear()
