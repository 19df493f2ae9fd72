"""Bare weights, with a config and tokenizer from another place, as one model folder for readers of folders.

joined_path(path, config)        a path like that of a folder, for this process; nothing is copied
linked_folder(place, config)     a temporary folder of links, for other programs"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.containers import BUILT_IN, folder_suffixes, sharded
from weighbridge.containers.formats import PIPELINE_INDEX
from weighbridge.io.location import TreePath, forget, open_source
from weighbridge.io.sink import write_file
from weighbridge.io.source import BytesSource, Source
from weighbridge.models.archives import resolve
from weighbridge.models.locate import Place, locate
from weighbridge.models.open import contains_config

_CONFIG: Final = "config.json"
_GGUF: Final = ".gguf"
#: A file of the folder: its path, or its bytes.
Content = Path | bytes


class _JoinedTree:
    """The files of a joined folder, by name (`io/location.py`)."""

    def __init__(self, title: str, files: Mapping[str, Content]) -> None:
        self.title, self.files = title, files

    def size(self, name: str) -> int | None:
        content = self.files.get(name)
        return None if content is None else len(content) if isinstance(content, bytes) else content.stat().st_size

    def children(self, folder: str) -> Mapping[str, bool] | None:
        start = f"{folder}/" if folder else ""
        below = [name.removeprefix(start).partition("/") for name in self.files if name.startswith(start)]
        return {name: bool(slash) for name, slash, _ in below} if below or not folder else None

    def version(self, name: str) -> str:
        content = self.files[name]
        return str(len(content)) if isinstance(content, bytes) else str(content.stat().st_mtime_ns)

    def digest(self, name: str) -> None:
        return None

    def open(self, name: str) -> Source:
        if (content := self.files.get(name)) is None:
            raise FileNotFoundError(name)
        return BytesSource(content, name) if isinstance(content, bytes) else open_source(content)


@contextmanager
def joined_path(
    path: str | os.PathLike[str], config: str | os.PathLike[str] | Mapping[str, Any], step: int | None = None
) -> Iterator[TreePath]:
    """The folder of the weights at `path` with a `config` (a dict, a file, or a folder with its tokenizer). Its files
    have the names of a model folder's, and messages call it "weights PATH with CONFIG". Raises the errors of `locate`,
    and UsageError for a GGUF."""
    place = locate(path, step)
    if any(file.suffix == _GGUF for file in place.weights):
        raise contains_config(place.path)
    lender = "a config" if isinstance(config, Mapping) else os.fspath(config)
    tree = _JoinedTree(f"weights {place.path} with {lender}", _files(place, config))
    root: TreePath = TreePath.root(f"joined://{id(tree):x}", tree)
    try:
        yield root
    finally:
        forget(root)


@contextmanager
def linked_folder(place: Place, config: str | os.PathLike[str] | Mapping[str, Any]) -> Iterator[Path]:
    """The same of located weights as a folder of links, until the end of the block. Raises UnsupportedError for files
    that aren't on this machine. Of a remote config only small files are copied."""
    weights = _weights(place)
    with tempfile.TemporaryDirectory(prefix="weighbridge-") as name:
        for file, content in _files(place, config).items():
            target = Path(name, file)
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                write_file(target, content)
            elif not isinstance(content, TreePath):
                target.symlink_to(content.absolute())
            elif file in weights:
                raise UnsupportedError(f"{content} isn't on this machine", hint="wb fetch it first")
            elif content.stat().st_size <= TOKENIZER_JSON:
                write_file(target, content.read_bytes())
        yield Path(name)


def _weights(place: Place) -> dict[str, Path]:
    """The files of the weights: a single one under the name that model folders have."""
    hub_names = {suffix: row.hub_name for row in BUILT_IN.values() if row.hub_name for suffix in row.suffixes}
    if place.single and place.index is None:
        (file,) = place.weights
        return {hub_names.get(file.suffix, file.name): file}
    files = [*place.weights, *([place.index] if place.index else ())]
    return {file.name: file for file in files}


def _files(place: Place, config: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Content]:
    if isinstance(config, Mapping):
        return {_CONFIG: json.dumps(config).encode(), **_weights(place)}
    path = resolve(config)
    if not path.is_dir():
        return {_CONFIG: path, **_weights(place)}
    if (path / PIPELINE_INDEX).is_file() and not (path / _CONFIG).is_file():
        raise UsageError(
            f"{path} has the configs of a pipeline's parts, and none of {place.path} as a whole",
            hint="leave out --config; wb convert compares the sizes in these configs with the tensors",
        )
    weights, small = folder_suffixes(), Place(path, (), path).names()
    kept = {name: path / name for name in small if Path(name).suffix not in weights and not sharded.is_index(name)}
    return {**kept, **_weights(place)}
