"""Installs a plug-in for a test as pip would: a module and its `.dist-info` in a folder on the path."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from weighbridge.base import dtypes
from weighbridge.base.plugins import BLOCK_TYPES, FAMILIES, FORMATS, PACKINGS, plugins
from weighbridge.containers import format as format_door
from weighbridge.containers import plugged
from weighbridge.models.arch import registry as family_registry
from weighbridge.models.arch.tables import documents
from weighbridge.packings.schema import registry as packing_registry

if TYPE_CHECKING:
    from weighbridge.tensors.reference.codec import Codec

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


def toy(folder: Path, group: str, name: str, entry: str, more: str = "") -> Path:
    """One of the toys, installed in `folder` as an entry point of `group`. `more`: further code of its module."""
    module = entry.partition(":")[0]
    text = (TOYS / f"{module}.py").read_text("utf-8") + more
    return write_package(folder, module, {f"{module}.py": text}, {group: {name: entry}})


def toy_format(folder: Path) -> Path:
    """The toy format `.tnsr`, installed in `folder`."""
    return toy(folder, FORMATS, "tnsr", "toy_tnsr:FORMAT")


def toy_crate(folder: Path) -> Path:
    """The toy format in a zip, installed in `folder`."""
    return toy(folder, FORMATS, "crate", "toy_crate:FORMAT")


def toy_strips(folder: Path) -> Path:
    """The toy packing with odd axes, installed in `folder`."""
    return toy(folder, PACKINGS, "strips", "toy_strips:STRIPS")


def toy_family(folder: Path) -> Path:
    """The toy family, installed in `folder`: a package with one table."""
    files = {"toy_families/__init__.py": "", "toy_families/toy.toml": (TOYS / "toy_family.toml").read_text("utf-8")}
    return write_package(folder, "toy_families", files, {FAMILIES: {"toy": "toy_families"}})


def toy_packing(folder: Path) -> Path:
    """The toy packing, installed in `folder`."""
    return toy(folder, PACKINGS, "toy", "toy_packing:TOY")


def toy_block_type(folder: Path) -> Path:
    """The toy block type, installed in `folder`: importing its module registers it."""
    more = "\n\nfrom weighbridge.tensors.reference.registry import register\n\nregister(TOY, CODEC)\n"
    return toy(folder, BLOCK_TYPES, "q8_toy", "toy_block_type:TOY", more)


@contextmanager
def all_toys() -> Iterator[None]:
    """All toys are there inside the block: installed packages and a registered block type."""
    from tests.toys.toy_block_type import CODEC, TOY

    with TemporaryDirectory() as name:
        for install in (toy_format, toy_crate, toy_packing, toy_strips, toy_family):
            install(Path(name))
        with registered(TOY, CODEC), installed(Path(name)):
            yield


@contextmanager
def unchanged_types() -> Iterator[None]:
    """Block types that are registered inside the block are gone after it."""
    from weighbridge.tensors.reference import codec, registry

    tables: list[dict[Any, Any]] = [dtypes._by_name, dtypes._by_ggml, registry._blocks, registry._decode,
                                    registry._encode, registry._weighted]  # fmt: skip
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, rows in zip(tables, before, strict=True):
            table.clear()
            table.update(rows)
        codec.structure.cache_clear()


@contextmanager
def registered(row: dtypes.DType, block_codec: Codec) -> Iterator[None]:
    """A block type is registered inside the block."""
    from weighbridge.tensors.reference import registry

    with unchanged_types():
        registry.register(row, block_codec)
        yield


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
    for cached in (
        plugins,
        plugged,
        format_door._function,
        packing_registry.plugged,
        packing_registry._last_parts,
        documents.plugged_in,
        documents.document,
        family_registry.family,
        family_registry.families,
    ):
        cached.cache_clear()
