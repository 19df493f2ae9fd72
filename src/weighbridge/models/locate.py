"""Finds a model's files: from the path that a user names to the weight files and the folder of the files next to them.

model/                            its index, its one file, or the files of one numbered set
model.safetensors.index.json      the set that it lists
model-00002-of-00003.gguf         the whole set (llama.cpp's splits have the metadata in the first)
checkpoint/, model.ckpt           model.ckpt.index of TensorFlow, a SavedModel's variables/variables.index
model.mlpackage/                  Data/com.apple.CoreML/model.mlmodel
checkpoint/                       .metadata of torch.distributed.checkpoint, and the files that it lists
engine/                           config.json and rank0.safetensors ... of TensorRT-LLM
global_step100/                   the files of all processes of DeepSpeed
iter_0000100/                     the files of all ranks of Megatron-LM
100/default/                      _METADATA, and the database or the arrays of Orbax
run/                              the newest complete step of a training run (`models/runs.py`)
anything.safetensors              only that file
anything.zip, .tar.gz, .gz ...    the file or folder in it (`models/archives.py`)
Modelfile                         the model of its FROM line
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, overload

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import INDEX_JSON, MIB, SHARDS
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers import BUILT_IN, folder_suffixes, formats
from weighbridge.containers.formats import ORBAX, ORBAX_ITEMS, ZERO_MODEL, ZERO_OPTIMIZER
from weighbridge.containers.numbered import Numbered, numbered
from weighbridge.io.filesystem import cached_repository, check_inside, check_link
from weighbridge.io.location import RemotePath, StoredPath, TreePath, expect, open_source
from weighbridge.models.archives import resolve
from weighbridge.models.modelfile import is_modelfile, read_modelfile, referred
from weighbridge.models.tensor_parallel.rank_set import WHOLE, is_rank_set, share_files

if TYPE_CHECKING:
    from weighbridge.containers.sharded import ShardIndex
    from weighbridge.containers.torch.dcp import DcpMetadata
    from weighbridge.models.runs import TrainingRun

# The suffixes of a folder's weights, in the order in which they are tried.
_SUFFIXES: Final = folder_suffixes()
# The name of a model's only file among others of its suffix, by suffix.
_MAIN: Final = MappingProxyType({Path(f.hub_name).suffix: f.hub_name for f in BUILT_IN.values() if f.hub_name})
# The suffix of Lightning's files, one for each step.
_LIGHTNING: Final = ".ckpt"
# Prefixes of GGUF files that accompany a model (llama.cpp skips the same when it picks a file).
_COMPANIONS: Final = ("mmproj", "imatrix", "mtp-")
# Prefixes of a training run's files, which have no weights (transformers' Trainer, accelerate).
_TRAINING: Final = ("training_args", "optimizer", "scheduler", "rng_state", "random_states", "scaler", "trainer_state")
#: The files of torch.distributed.checkpoint: the list, the suffix of the data; and names of its safetensors.
DCP_METADATA, DCP_DATA = ".metadata", ".distcp"
_DCP_OF_PROCESS: Final = re.compile(r"__\d+\.metadata", re.ASCII)
_DCP_SAFETENSORS: Final = re.compile(r"shard-\d{5,}-model-\d{5}-of-\d{5}\.safetensors", re.ASCII)
#: The first file of a TensorRT-LLM checkpoint, and all of them.
TENSORRT: Final = "rank0.safetensors"
_TENSORRT: Final = re.compile(r"rank(0|[1-9]\d{0,5})\.safetensors", re.ASCII)
# The trainers whose files are archives, by suffix; the folders of a distributed checkpoint in one: NeMo 2, NeMo 1.
_TRAINERS: Final = MappingProxyType({".nemo": "nemo"})
_NEMO: Final = ("weights", "model_weights")
# How names of files with parts of tensors begin, or end.
_SHARD: Final = "shard-"
_OF_PROCESSES: Final = (DCP_METADATA, ZERO_MODEL, ZERO_OPTIMIZER, WHOLE, TENSORRT, formats.PIPELINE_INDEX)
#: Bytes of a remote file that are requested first: of a file with tensors, and of an index.
HEADER, INDEX = 32 << 10, 4 * MIB
#: The suffix of a TensorFlow checkpoint's table, and the data's; the file that names the newest; a SavedModel's table.
TABLE, _TABLE_DATA, _NEWEST = ".index", ".data-00000-of-", "checkpoint"
_SAVED_MODEL: Final = ("saved_model.pb", "variables/variables.index")
#: The list of files of a Core ML package, and the folder of its model.
_CORE_ML: Final = ("Manifest.json", "Data/com.apple.CoreML")


def is_training(name: str) -> bool:
    """Whether a file belongs to a training run, by its name."""
    return name.startswith(_TRAINING)


@dataclass(frozen=True)
class Place:
    """`weights`: the files with tensors, in order. `folder`: the folder of config.json and the tokenizer. `index`: the
    JSON that lists the shards, if there is one; `shards`: its content until the shards are opened. `parts`: whether
    the files have parts of tensors, as the processes of a training run write them; `chunks`: the content of their
    `.metadata`, the first file, until they are opened; `trainer`: the program that wrote them, a key of
    `processes.OPENERS`. `run`: the training run with this step. `notes`: files that were ignored.
    `adapters`: those that a Modelfile or a store adds to the model; `merged`: the files of those that are merged into
    its weights. `data`: files with the tensors' data, which the header in another file names."""

    path: Path
    weights: tuple[Path, ...]
    folder: Path
    index: Path | None = None
    shards: ShardIndex | None = None
    parts: bool = False
    chunks: DcpMetadata | None = None
    trainer: str = ""
    notes: tuple[str, ...] = ()
    run: TrainingRun | None = None
    adapters: tuple[Path, ...] = ()
    merged: tuple[Path, ...] = ()
    data: tuple[Path, ...] = ()

    @property
    def single(self) -> bool:
        return len(self.weights) == 1

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the weights come from."""
        return (*self.weights, *self.data, *self.merged)

    @property
    def title(self) -> str:
        """The name of the model's folder, or of its repository if the folder is a commit in the Hub's cache."""
        repository = cached_repository(self.folder)
        return repository.rpartition("/")[2] if repository else self.folder.resolve().name

    def names(self) -> tuple[str, ...]:
        """Returns the files in the folder and in its subfolders (one level, with their paths)."""
        near = sorted(self.folder.iterdir())
        deep = (p for d in near if d.is_dir() and not d.name.startswith(".") for p in sorted(d.iterdir()))
        return tuple(p.relative_to(self.folder).as_posix() for p in (*near, *deep) if p.is_file())

    def read(self, name: str, limit: int = INDEX_JSON) -> bytes | None:
        """Returns a small file of the folder, or None if it doesn't exist. Raises FormatError if it is absurdly large,
        and RefusedError for a link that leaves the folder."""
        path = self.folder / name
        if not path.is_file():
            return None
        check_link(path, self.folder)
        with open_source(path) as source:
            if source.size > limit:
                raise FormatError("the file is too large", path=source.name, expected=f"at most {limit} bytes")
            return source.read(0, source.size)


def stands_alone(path: Path) -> bool:
    """Whether the name of a local file marks it as a whole model: not part of a numbered set, not a rank, not a
    Modelfile."""
    name = path.name
    return (
        name.endswith((".safetensors", ".gguf"))
        and "-of-" not in name
        and "modelfile" not in name.lower()
        and not isinstance(path, (TreePath, StoredPath))
    )


def locate(path: str | os.PathLike[str], step: int | None = None) -> Place:
    """Finds the files of the model at `path`; in the folder of a training run, those of `step`, or of the newest
    complete step. Raises FileNotFoundError or UsageError if there is none, and RefusedError for a training checkpoint
    with links that lead out of it."""
    path = resolve(path)
    place = _locate(path, step)
    if (place.parts or place.trainer) and not isinstance(path, (TreePath, StoredPath)):
        check_inside(place.weights, place.path)
    return place


def _locate(path: Path, step: int | None) -> Place:
    name = path.name
    if name == "-" == str(path):
        raise UsageError(
            "standard input can't be read", hint="models are read in random order: write it to a file first"
        )
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if (index := path.with_name(name + TABLE)).is_file():  # TensorFlow's name of a checkpoint, its files' prefix
            return Place(path, (index,), path.parent)
        raise FileNotFoundError(errno.ENOENT, "no such file or folder", str(path)) from None
    if stat.S_ISDIR(mode):
        return _locate_in_folder(path) if step is None else _locate_step(path, step)
    if step is not None:
        raise UsageError(f"{path} is a file: --step doesn't apply", hint="name the folder of a training run")
    if name.endswith(".index.json"):
        return _locate_indexed(path)
    if name == DCP_METADATA:
        return _locate_distributed(path.parent)
    if name.endswith(DCP_DATA):
        raise UsageError(
            f"{path} has parts of tensors of a distributed checkpoint", hint=f"name its folder, {path.parent}"
        )
    if is_modelfile(path):
        return _locate_described(path)
    if path.suffix in _TRAINERS:
        return Place(path, (path,), path.parent, trainer=_TRAINERS[path.suffix])
    if name.endswith(".gguf") and (number := numbered(name)):
        return Place(path, _siblings(path, number), path.parent)
    if not isinstance(path, (TreePath, StoredPath)):
        return Place(path, (path,), path.parent)
    adapters: tuple[Path, ...] = getattr(path, "adapters", ())
    sidecars: tuple[str, ...] = getattr(path, "sidecars", ())
    notes = [f"the adapter {adapter} of the model in Ollama is merged" for adapter in adapters]
    if sidecars:
        listed = ", ".join(sidecars)
        notes.insert(0, f"not weights: the model's {listed} in Ollama; ollama show --modelfile prints them")
    return Place(path, (path,), path.parent, notes=tuple(notes), adapters=adapters)


def locate_tokenizer(path: str | os.PathLike[str]) -> Place | None:
    """Finds a folder with a config and no weights, such as a tokenizer's. Returns None for any other path."""
    folder = resolve(path)
    if not (folder.is_dir() and (folder / "config.json").is_file()):
        return None
    names = [p.name for p in folder.iterdir()]
    weights = any(n.endswith(s) for n in names for suffix in _SUFFIXES for s in (suffix, f"{suffix}.index.json"))
    return None if weights else Place(folder, (), folder)


def _locate_described(path: Path) -> Place:
    """Finds the model that a Modelfile is made FROM, with the adapters that it adds."""
    file = read_modelfile(path)
    first, *ignored = (referred(file, value, path.parent) for value in file.values("FROM"))
    base = resolve_path(first)
    if is_modelfile(base):
        raise UsageError(f"{path} is made FROM another Modelfile", hint=f"use {base}")
    adapters = tuple(resolve_path(referred(file, value, path.parent)) for value in file.values("ADAPTER"))
    place = locate(base)
    commands = [i for i in dict.fromkeys(i.command for i in file.instructions) if i not in ("FROM", "ADAPTER")]
    notes = [f"the Modelfile also names {name}, which isn't read" for name in ignored]
    notes += [f"the Modelfile's adapter {adapter} is merged into the weights" for adapter in adapters]
    if commands:
        notes.append(f"not part of the weights: the Modelfile's {', '.join(commands)}; wb ship ollama carries them")
    return replace(place, notes=(*place.notes, *notes), adapters=adapters)


def _locate_indexed(index: Path) -> Place:
    from weighbridge.containers import sharded

    with open_source(index) as source:
        shards = sharded.parse_index(source)
    return Place(index.parent, tuple(index.parent / name for name in shards.files), index.parent, index, shards)


def _locate_distributed(folder: Path) -> Place:
    """Finds the data files that `.metadata` lists."""
    from weighbridge.containers.torch import dcp

    with open_source(folder / DCP_METADATA) as source:
        chunks = dcp.read(source)
    files = (folder / DCP_METADATA, *(folder / name for name in chunks.files))
    return Place(folder, files, folder, parts=True, chunks=chunks)


def _siblings(path: Path, number: Numbered) -> tuple[Path, ...]:
    """Returns all files of the numbered set that `path` belongs to; the caller checks that they exist."""
    if number.total > SHARDS:
        raise FormatError("the name declares too many shards", path=str(path), found=number.total)
    return tuple(path.parent / name for name in number.names())


def _locate_parts(folder: Path, names: Collection[str]) -> Place | None:
    """Finds the files with parts of tensors, or of several models, in a folder with these files. None if there are
    none."""
    if formats.PIPELINE_INDEX in names:
        from weighbridge.models.diffusion.parts import weights_of  # late: few folders are pipelines

        if weights := weights_of(folder, lambda part: _locate_in_folder(part).weights):
            return Place(folder, weights, folder, trainer=formats.PIPELINE)
    if DCP_METADATA in names and is_distributed(names):
        return _locate_distributed(folder)
    from weighbridge.models.trainer_files import zero_files  # late, as below: few folders are of trainers

    if (states := zero_files(folder, names)) is not None:
        return Place(folder, states, folder, parts=True, trainer="deepspeed")
    if TENSORRT in names and "config.json" in names:
        ranks = sorted((int(m[1]), n) for n in names if (m := _TENSORRT.fullmatch(n)))
        return Place(folder, tuple(folder / name for _, name in ranks), folder, parts=True, trainer="tensorrt-llm")
    shares = share_files(names)
    if parts := shares or ("model.safetensors" not in names and distributed_shards(names)) or []:
        _expect(folder, parts)
        files = tuple(folder / name for name in parts)
        return Place(folder, files, folder, parts=True, trainer="presharded" if shares else "")
    return None


def _locate_in_folder(folder: Path) -> Place:
    names = sorted(p.name for p in folder.iterdir() if p.is_file() or p.is_symlink())
    in_parts = any(name.startswith(_SHARD) or name.endswith(_OF_PROCESSES) for name in names)
    if in_parts and (distributed := _locate_parts(folder, names)) is not None:
        return distributed
    for suffix in _SUFFIXES:
        notes = []
        main = _MAIN.get(suffix, f"model{suffix}")
        weights = _weights(names, suffix)
        for index in (f"{main}.index.json", *(n for n in names if n.endswith(f"{suffix}.index.json"))):
            if index in names:
                _expect(folder, [n for n in weights if numbered(n)], index)
                place = _locate_indexed(folder / index)
                if weights and not any(path.exists() for path in place.weights):
                    notes.append(f"{index} is ignored: none of the files that it lists exists")
                    continue
                return place
        if not weights:
            continue
        _expect(folder, ())
        models = _first_files(weights)
        if whole := next((name for name in (main, f"{formats.PIPELINE_STEM}{suffix}") if name in weights), None):
            files: tuple[Path, ...] = (folder / whole,)
        elif len(models) > 1 and suffix == _LIGHTNING and (run := _locate_step(folder)):
            return run
        elif len(models) > 1:
            hint = f"name one of {', '.join(weights[:4])}"
            raise UsageError(f"{folder} holds {plural(len(models), 'model')}", hint=hint)
        elif number := numbered(weights[0]):
            files = _siblings(folder / weights[0], number)
        else:
            files = tuple(folder / name for name in weights)
        return Place(folder, files, folder, trainer=_TRAINERS.get(suffix, ""), notes=tuple(dict.fromkeys(notes)))
    if (below := _locate_below(folder, names)) is not None:
        return below
    if (snapshot := _main_snapshot(folder)) is not None:
        return _locate_in_folder(snapshot)
    if (step := _locate_step(folder)) is not None:
        return step
    hint = f"looked for {', '.join(_SUFFIXES)}"
    tokenizer = any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))
    if formats.PIPELINE_INDEX in names:
        parts = sorted(str(p) for p in folder.iterdir() if p.is_dir() and (p / "config.json").is_file())
        hint = f"{formats.PIPELINE_INDEX} lists no part with weights: name one of {', '.join(parts)}"
    elif (folder / "snapshots").is_dir():  # a model's folder in the cache of Hugging Face
        dated = sorted((p for p in (folder / "snapshots").iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
        hint = f"a model's folder in the cache: name one of its snapshots, {dated[-1]}" if dated else hint
    elif tokenizer and (folder / "config.json").is_file():
        hint = "it has a tokenizer, which --vocab-only converts"
    elif inner := distributed_in(folder):
        listed = ", ".join(path.relative_to(folder).as_posix() for path in inner[-4:])
        hint = f"it has distributed checkpoints below it: name one of {listed}"
    elif any(_DCP_OF_PROCESS.fullmatch(name) for name in names):
        hint = f"each process wrote a {DCP_METADATA} of its own: save with use_collectives=True, torch's default"
    elif DCP_METADATA in names:
        hint = f"it has a {DCP_METADATA} but none of its {DCP_DATA} files"
    elif any(name.endswith(DCP_DATA) for name in names):
        hint = f"it has {DCP_DATA} files but no {DCP_METADATA}, which is written last: the save didn't finish"
    raise UsageError(f"{folder} holds no weights", hint=hint)


def _locate_below(folder: Path, names: Collection[str]) -> Place | None:
    """Finds the files of frameworks and trainers in a folder with these files and in its subfolders, if any."""
    if _CORE_ML[0] in names and (folder / _CORE_ML[1]).is_dir():
        return replace(_locate_in_folder(folder / _CORE_ML[1]), path=folder)
    if (table := _tensorflow_table(folder, names)) is not None:
        return Place(folder, (table,), folder)
    if inside := next((name for name in _NEMO if (folder / name / DCP_METADATA).is_file()), None):
        return replace(_locate_distributed(folder / inside), folder=folder)
    if ORBAX in names or any((folder / item / ORBAX).is_file() for item in ORBAX_ITEMS):
        from weighbridge.models import orbax_files  # late: few models are Orbax's

        files, notes = orbax_files.files_of(folder)
        return Place(folder, files, folder, parts=True, trainer="orbax", notes=notes)
    from weighbridge.models.diffusion.comfy_set import files_of_set
    from weighbridge.models.trainer_files import megatron_files

    if files_of_parts := files_of_set(folder):
        return Place(folder, files_of_parts, folder, trainer=formats.COMFY_SET)
    ranks = megatron_files(folder)
    return Place(folder, ranks, folder, parts=True, trainer="megatron") if ranks else None


def _tensorflow_table(folder: Path, names: Collection[str]) -> Path | None:
    """The table of a SavedModel's variables, or of the checkpoint in a folder: the one that the file `checkpoint`
    names, or the only one. Raises UsageError if there are several."""
    marker, inside = _SAVED_MODEL
    if marker in names and (folder / inside).is_file():
        return folder / inside
    tables = [
        n for n in names if n.endswith(TABLE) and any(m.startswith(n[: -len(TABLE)] + _TABLE_DATA) for m in names)
    ]
    if len(tables) > 1 and _NEWEST in names and (folder / _NEWEST).stat().st_size <= MIB:
        text = (folder / _NEWEST).read_bytes().decode("utf-8", "replace")
        newest = re.search(r'^model_checkpoint_path: "([^"]*)"', text, re.MULTILINE)
        tables = [n for n in tables if newest and n == newest[1].rpartition("/")[2] + TABLE] or tables
    if len(tables) > 1:
        raise UsageError(
            f"{folder} holds {plural(len(tables), 'checkpoint')}", hint=f"name one of {', '.join(tables[:4])}"
        )
    return folder / tables[0] if tables else None


@overload
def _locate_step(folder: Path, step: int) -> Place: ...
@overload
def _locate_step(folder: Path, step: None = None) -> Place | None: ...
def _locate_step(folder: Path, step: int | None = None) -> Place | None:
    """Finds the weights of a step of a training run; config.json is the step's, or the nearest one above it. None if
    the folder has no steps."""
    from weighbridge.models import runs

    if (run := runs.choose(folder, step)) is None or run.taken is None:
        return None
    weights = runs.weights_of(run.taken)
    place = locate(weights)
    if not isinstance(folder, (TreePath, StoredPath)):
        check_inside(place.weights, folder)
    inside = [weights, *weights.parents]
    near = inside[: inside.index(folder) + 1]
    described = next((path for path in near if (path / "config.json").is_file()), place.folder)
    return replace(place, folder=described, notes=(*run.notes, *place.notes), run=run)


def path_of_step(path: str | os.PathLike[str], step: int) -> Path:
    """Returns the file or folder of a step of a training run. Raises the errors of `locate`."""
    run = locate(path, step).run
    assert run is not None
    assert run.taken is not None
    return run.taken.path


def is_distributed(names: Collection[str]) -> bool:
    """Whether a folder with these files is a distributed checkpoint. Files that loaders prefer come first."""
    loaded = any(name.endswith((".safetensors", ".gguf")) for name in names)
    return DCP_METADATA in names and not loaded and any(name.endswith(DCP_DATA) for name in names)


def distributed_shards(names: Collection[str]) -> list[str]:
    """The safetensors with parts of tensors, if a folder with these files has no others."""
    parts = sorted(name for name in names if _DCP_SAFETENSORS.fullmatch(name))
    return parts if len(parts) == len(_weights(names, ".safetensors")) else []


def distributed_in(folder: Path) -> list[Path]:
    """The distributed checkpoints in a run's folder, up to two levels below it, by the numbers in their names: those
    of a save that didn't finish have no `.metadata` and aren't listed."""
    near = sorted(path for path in folder.iterdir() if path.is_dir())
    inner = (path for top in near for path in (top, *sorted(p for p in top.iterdir() if p.is_dir())))
    found = [path for path in inner if (path / DCP_METADATA).is_file()]
    return sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", path.relative_to(folder).as_posix())])


def _expect(folder: Path, weights: Iterable[str], *more: str) -> None:
    """Starts to read a remote model: config and index whole, the headers of its files."""
    if isinstance(folder, RemotePath):
        small = (folder / name for name in ("config.json", *more))
        expect((path for path in small if path.is_file()), INDEX)
        expect((folder / name for name in weights), HEADER)


def _main_snapshot(folder: Path) -> Path | None:
    """Returns the snapshot that `main` names if this is a repository's folder in the cache of Hugging Face."""
    ref = folder / "refs" / "main"
    if not (folder / "snapshots").is_dir() or not ref.is_file() or ref.stat().st_size > 256:
        return None
    commit = ref.read_text("utf-8", "replace").strip()
    snapshot = folder / "snapshots" / commit
    return snapshot if re.fullmatch(r"[0-9a-f]{40}", commit) and snapshot.is_dir() else None


def models_in(folder: Path) -> tuple[Path, ...]:
    """Returns a file of each model in a folder with several models of one format; empty for any other path. The ranks
    of a tensor-parallel set are one model."""
    if not folder.is_dir():
        return ()
    names = sorted(p.name for p in folder.iterdir() if p.is_file() or p.is_symlink())
    if any(name.endswith((ZERO_MODEL, ZERO_OPTIMIZER)) for name in names):
        from weighbridge.models.trainer_files import zero_files

        if zero_files(folder, names):
            return ()
    for suffix in _SUFFIXES:
        if any(name.endswith(f"{suffix}.index.json") for name in names):
            return ()
        if weights := _weights(names, suffix):
            models = _first_files(weights)
            if suffix == _LIGHTNING and all("step=" in name or name.startswith("last") for name in weights):
                return ()
            single = is_rank_set(weights) or _MAIN.get(suffix, f"model{suffix}") in weights or len(models) == 1
            return () if single or share_files(weights) else tuple(folder / name for name in models)
    return ()


def _weights(names: Iterable[str], suffix: str) -> list[str]:
    """Returns the files of one format that may hold a model's weights."""
    listed = set(names)
    onnx = any(name.endswith(".onnx") for name in listed)
    candidates = sorted(
        n for n in listed if n.endswith(suffix) and not n.startswith(_COMPANIONS) and not is_training(n)
    )
    if suffix != ".bin":
        return candidates
    # the data of an OpenVINO .xml, or, without torch's name, of an .onnx
    mine = (n for n in candidates if f"{n.removesuffix(suffix)}.xml" not in listed)
    return [n for n in mine if not onnx or n.startswith(Path(_MAIN[suffix]).stem)]


def _first_files(names: Iterable[str]) -> list[str]:
    """Returns the first file of each model: of a numbered set, or a single file."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(number.set if (number := numbered(name)) else name, name)
    return [*first.values()]
