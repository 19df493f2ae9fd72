"""Where a model lies: from the path a user names to the weight files and the folder of the files beside them.

model/                            its index, its one file, or the files of one numbered set
model.safetensors.index.json      the set it lists
model-00002-of-00003.gguf         the whole set (llama.cpp's splits carry the metadata in the first)
anything.safetensors              that file alone
Modelfile                         the model of its FROM line
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import INDEX_JSON, MIB, SHARDS
from weighbridge.containers import BUILT_IN, model_suffixes
from weighbridge.containers.numbered import Numbered, numbered
from weighbridge.io.links import check_link
from weighbridge.io.location import RemotePath, StoredPath, expect, open_source
from weighbridge.models.modelfile import is_modelfile, read_modelfile, referred

if TYPE_CHECKING:
    from weighbridge.containers.sharded import ShardIndex

# What a folder's weights are looked for in, in this order; the patterns of one entry are one model's.
_SUFFIXES: Final = model_suffixes()
# What a model's one file is called where it lies among others of its suffix.
_MAIN: Final = MappingProxyType({Path(f.hub_name).suffix: f.hub_name for f in BUILT_IN.values() if f.hub_name})
# GGUF files that go with a model but are not the model (llama.cpp skips the same when it picks a file).
_COMPANIONS: Final = ("mmproj", "imatrix", "mtp-")
# Files of a training run that lie beside a model and hold none of it (transformers' Trainer, accelerate).
_TRAINING: Final = ("training_args", "optimizer", "scheduler", "rng_state", "random_states", "scaler", "trainer_state")
#: Of a file elsewhere: what its header probably needs, and what is begun to be read of an index.
HEADER: Final = 32 << 10
INDEX: Final = 4 * MIB
# Of a model's first file: a vocabulary lies in the header of a GGUF's.
_HEADERS: Final = MappingProxyType({".gguf": 4 * MIB})


def is_training(name: str) -> bool:
    """Whether a file is a training run's own, by its name."""
    return name.startswith(_TRAINING)


@dataclass(frozen=True)
class Place:
    """`weights`: the files with tensors, in order. `folder`: where config.json and the tokenizer are looked for.
    `index`: the JSON that lists the shards, and `shards` its content until they are opened, where there is one.
    `notes`: what was passed over on the way. `adapters`: those that a Modelfile or a store adds to the model;
    `merged`: the files of those that are merged into its weights."""

    path: Path
    weights: tuple[Path, ...]
    folder: Path
    index: Path | None = None
    shards: ShardIndex | None = None
    notes: tuple[str, ...] = ()
    adapters: tuple[Path, ...] = ()
    merged: tuple[Path, ...] = ()

    @property
    def single(self) -> bool:
        return len(self.weights) == 1

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the weights come from."""
        return (*self.weights, *self.merged)

    def names(self) -> tuple[str, ...]:
        """The files in the folder, subfolders' with their paths (one level)."""
        near = sorted(self.folder.iterdir())
        deep = (p for d in near if d.is_dir() and not d.name.startswith(".") for p in sorted(d.iterdir()))
        return tuple(p.relative_to(self.folder).as_posix() for p in (*near, *deep) if p.is_file())

    def read(self, name: str, limit: int = INDEX_JSON) -> bytes | None:
        """A small file beside the weights; None where there is none. FormatError where it is absurdly large,
        RefusedError for a link that leads out of the folder."""
        path = self.folder / name
        if not path.is_file():
            return None
        check_link(path, self.folder)
        with open_source(path) as source:
            if source.size > limit:
                raise FormatError("the file is too large", path=source.name, expected=f"at most {limit} bytes")
            return source.read(0, source.size)


def stands_alone(path: Path) -> bool:
    """Whether a path on this machine names a whole model, by its name alone, if it is a file: none of a numbered set,
    no rank, no Modelfile."""
    name = path.name
    return (
        name.endswith((".safetensors", ".gguf"))
        and "-of-" not in name
        and "modelfile" not in name.lower()
        and not isinstance(path, (RemotePath, StoredPath))
    )


def locate(path: str | Path) -> Place:
    """The files of the model at `path`. FileNotFoundError or UsageError where there is none."""
    path = resolve_path(path)
    name = path.name
    if name == "-" == str(path):
        raise UsageError("standard input can't be read", hint="a model is read in any order: write it to a file first")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such file or folder", str(path)) from None
    if stat.S_ISDIR(mode):
        return _folder(path)
    if name.endswith(".index.json"):
        return _indexed(path)
    if is_modelfile(path):
        return _described(path)
    if name.endswith(".gguf") and (one := numbered(name)):
        return Place(path, _siblings(path, one), path.parent)
    if not isinstance(path, (RemotePath, StoredPath)):
        return Place(path, (path,), path.parent)
    adapters: tuple[Path, ...] = getattr(path, "adapters", ())
    merged = (f"the adapter {adapter} of the model in Ollama is merged" for adapter in adapters)
    return Place(path, (path,), path.parent, notes=(*_left_in_store(path), *merged), adapters=adapters)


def _left_in_store(path: Path) -> tuple[str, ...]:
    """A note on what a store has of the model beside its weights."""
    sidecars: tuple[str, ...] = getattr(path, "sidecars", ())
    if not sidecars:
        return ()
    return (f"not part of the weights: {', '.join(sidecars)} of the model in Ollama; "
            "ollama show --modelfile prints them",)  # fmt: skip


def locate_tokenizer(path: str | os.PathLike[str]) -> Place | None:
    """A folder with a config and no weights, such as one of a tokenizer alone; None for any other path."""
    folder = resolve_path(path)
    if not (folder.is_dir() and (folder / "config.json").is_file()):
        return None
    names = [p.name for p in folder.iterdir()]
    weights = any(n.endswith(s) for n in names for suffix in _SUFFIXES for s in (suffix, f"{suffix}.index.json"))
    return None if weights else Place(folder, (), folder)


def _described(path: Path) -> Place:
    """The model that a Modelfile is made FROM, with what it adds to it."""
    file = read_modelfile(path)
    first, *others = (referred(file, value, path.parent) for value in file.values("FROM"))
    base = resolve_path(first)
    if is_modelfile(base):
        raise UsageError(f"{path} is made FROM another Modelfile", hint=f"name {base} itself")
    adapters = tuple(resolve_path(referred(file, value, path.parent)) for value in file.values("ADAPTER"))
    place = locate(base)
    rest = [i for i in dict.fromkeys(i.command for i in file.instructions) if i not in ("FROM", "ADAPTER")]
    notes = [f"the Modelfile also names {other}, which isn't read" for other in others]
    notes += [f"the Modelfile's adapter {adapter} is merged into the weights" for adapter in adapters]
    if rest:
        notes.append(f"not part of the weights: the Modelfile's {', '.join(rest)}; wb ship ollama carries them")
    return replace(place, notes=(*place.notes, *notes), adapters=adapters)


def _indexed(index: Path) -> Place:
    from weighbridge.containers import sharded

    with open_source(index) as source:
        shards = sharded.parse_index(source)
    return Place(index.parent, tuple(index.parent / name for name in shards.files), index.parent, index, shards)


def _siblings(path: Path, one: Numbered) -> tuple[Path, ...]:
    """All files of the numbered set that `path` belongs to; a missing one is the caller's finding."""
    if one.total > SHARDS:
        raise FormatError("the name speaks of too many shards", path=str(path), found=one.total)
    return tuple(path.parent / name for name in one.names())


def _folder(folder: Path) -> Place:
    names = sorted(p.name for p in folder.iterdir() if p.is_file() or p.is_symlink())
    for suffix in _SUFFIXES:
        stale = []
        main = f"{_MAIN.get(suffix, f'model{suffix}')}.index.json"
        found = [n for n in names if n.endswith(suffix) and not n.startswith(_COMPANIONS) and not is_training(n)]
        for index in (main, *(n for n in names if n.endswith(f"{suffix}.index.json"))):
            if index in names:
                _expect(folder, [n for n in found if numbered(n)], index)
                place = _indexed(folder / index)
                if found and not any(path.exists() for path in place.weights):
                    stale.append(f"{index} is passed over: none of the files that it lists is there")
                    continue
                return place
        if found:
            _expect(folder, ())
            one = tuple(folder / n for n in _one_model(folder, found, suffix))
            return Place(folder, one, folder, notes=tuple(dict.fromkeys(stale)))
    if (snapshot := _snapshot(folder)) is not None:
        return _folder(snapshot)
    raise UsageError(f"{folder} holds no weights", hint=_elsewhere(folder) or f"looked for {', '.join(_SUFFIXES)}")


def _expect(folder: Path, weights: Iterable[str], *more: str) -> None:
    """Begin to read what is needed of a model elsewhere: config and index whole, the headers of its files."""
    if isinstance(folder, RemotePath):
        small = (folder / name for name in ("config.json", *more))
        expect((path for path in small if path.is_file()), INDEX)
        expect((folder / name for name in weights), HEADER)


def header_length(name: str) -> int:
    """What the header of a model's first file probably takes, by the file's name."""
    return _HEADERS.get(os.path.splitext(name)[1], HEADER)


def expect_header(path: Path) -> None:
    """Begin to read the header of a file elsewhere."""
    expect([path], header_length(path.name))


def _snapshot(folder: Path) -> Path | None:
    """The snapshot that `main` names, if this is a repository's folder in the cache of Hugging Face."""
    ref = folder / "refs" / "main"
    if not (folder / "snapshots").is_dir() or not ref.is_file() or ref.stat().st_size > 256:
        return None
    commit = ref.read_text("utf-8", "replace").strip()
    found = folder / "snapshots" / commit
    return found if re.fullmatch(r"[0-9a-f]{40}", commit) and found.is_dir() else None


def _elsewhere(folder: Path) -> str | None:
    """Where the weights are if this is a model's folder in the cache of Hugging Face, and what a tokenizer is for."""
    snapshots = folder / "snapshots"
    if not snapshots.is_dir():
        return "it has a tokenizer: --vocab-only converts that alone" if _has_tokenizer(folder) else None
    kept = sorted((p for p in snapshots.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
    return f"a model's folder in the cache: name one of its snapshots, {kept[-1]}" if kept else None


def _has_tokenizer(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(
        (folder / n).is_file() for n in ("tokenizer.json", "tokenizer.model")
    )


def models_in(folder: Path) -> tuple[Path, ...]:
    """A file of each model in a folder that holds several of one format; empty for any other path."""
    if not folder.is_dir():
        return ()
    names = sorted(p.name for p in folder.iterdir() if p.is_file() or p.is_symlink())
    for suffix in _SUFFIXES:
        if any(name.endswith(f"{suffix}.index.json") for name in names):
            return ()
        if found := _weights(names, suffix):
            models = _models(found)
            main = _MAIN.get(suffix, f"model{suffix}") in found
            return () if main or len(models) == 1 else tuple(folder / name for name in models.values())
    return ()


def _weights(names: Iterable[str], suffix: str) -> list[str]:
    """The files of one format that may hold a model's weights."""
    return [n for n in names if n.endswith(suffix) and not n.startswith(_COMPANIONS) and not is_training(n)]


def _models(names: Iterable[str]) -> dict[str, str]:
    """The first file of each model: of a numbered set, or one alone."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(one.set if (one := numbered(name)) else name, name)
    return first


def _one_model(folder: Path, names: list[str], suffix: str) -> Iterable[str]:
    main = _MAIN.get(suffix, f"model{suffix}")
    if main in names or len(names) == 1:
        return [main] if main in names else names
    models = _models(names)
    if len(models) > 1:
        raise UsageError(f"{folder} holds {len(models)} models", hint=f"name one of {', '.join(names[:4])}")
    one = numbered(names[0])
    return [p.name for p in _siblings(folder / names[0], one)] if one else names
