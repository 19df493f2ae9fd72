"""Identifies a file or folder by its content; names are only checked for contradictions.

    identify(path) -> IdentifyReport     can be encoded as JSON; a folder's report has a line for each file

A file is identified by its bytes (`containers/sniff/`), a folder by its files: a table of folder kinds, tried in order,
each with its evidence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.limits import FOLDER_FILES, FOLDER_SNIFFED
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers import BUILT_IN, MISNAMED_UNLESS, PICKLED, find, titled
from weighbridge.containers.formats import ENCLOSING, ORBAX, ORBAX_FORMAT
from weighbridge.containers.sniff.detect import sniff
from weighbridge.containers.sniff.probe import Identity
from weighbridge.io.location import open_source, walk
from weighbridge.io.source import Source
from weighbridge.reports import sidecars

SCHEMA: Final = "weighbridge/identify/1"


@dataclass(frozen=True, slots=True)
class FileLine:
    """A summary of one file of a folder."""

    name: str
    bytes: int
    format: str
    variant: str
    damage: tuple[str, ...] = ()
    name_lies: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class IdentifyReport:
    """`kind`: "file" or "folder". `format`: of a folder, one of `FOLDERS`. `readable`: Weighbridge reads it."""

    path: str
    kind: str
    format: str
    variant: str
    title: str
    confidence: str
    evidence: tuple[str, ...]
    readable: bool
    bytes: int
    detail: Mapping[str, Any] = field(default_factory=dict)
    damage: tuple[str, ...] = ()
    name_lies: str | None = None
    advice: str | None = None
    files: tuple[FileLine, ...] = ()
    schema: str = SCHEMA

    def __bool__(self) -> bool:
        return not (self.damage or self.name_lies)

    def __repr__(self) -> str:
        facts = (self.title, *(["broken"] if self.damage else []), *(["misnamed"] if self.name_lies else []))
        return f"<IdentifyReport {self.path}: {', '.join(facts)}>"


def identify(path: str | os.PathLike[str]) -> IdentifyReport:
    """Identifies `path`. Raises OSError if it can't be read, and no other error."""
    path = resolve_path(path)
    if not path.exists():
        from weighbridge.models.archives import member  # late, as below: few files are archives

        path = member(path)
    if path.is_dir():
        return _folder(path)
    with open_source(path) as source:
        file, size = _identify_bytes(source), source.size
    if not file.readable:
        file = _with_content(path, file)
    return IdentifyReport(
        str(path), "file", file.format, file.variant, file.title, file.confidence, file.evidence, file.readable,
        size, file.detail, file.damage, name_lies(path.name, file), file.advice,
    )  # fmt: skip


def _with_content(path: Path, file: Identity) -> Identity:
    """Adds the identity of an archive's content. Of a compressed file only the first bytes are decoded."""
    from weighbridge.containers.archive.wrapped import WRAPPERS
    from weighbridge.io.decompress import WITH_MAGIC
    from weighbridge.models.archives import resolve

    if file.format not in WRAPPERS:
        return file
    if file.format in WITH_MAGIC:
        inside = file.detail.get("inside", "")
        return replace(file, readable=inside in WRAPPERS or (find(inside) or BUILT_IN["unknown"]).readable)
    try:
        content = identify(resolve(path))
    except (WeighbridgeError, OSError) as error:
        reason = getattr(error, "message", error)
        return replace(file, evidence=(*file.evidence, f"its content can't be read: {reason}"))
    return replace(
        file, readable=content.readable, evidence=(*file.evidence, f"inside: {content.path}, {content.title}"),
        detail={**file.detail, "inside": content.format, "content": content.path},
        damage=(*file.damage, *content.damage), advice=file.advice if content.readable else content.advice,
    )  # fmt: skip


def _identify_bytes(source: Source) -> Identity:
    """Identifies the bytes, including damage that only a parser detects."""
    identity = sniff(source)
    format = find(identity.format)
    if identity.damage or format is None or not format.parsed_to_identify or identity.variant == "imatrix":
        return identity
    try:
        format.parse(source)
    except FormatError as error:
        return replace(identity, damage=(f"it can't be read: {error.reason}",))
    except (UnsupportedError, RefusedError):
        pass  # possibly valid
    return identity


def name_lies(name: str, identity: Identity) -> str | None:
    """Returns a message if a file's suffix contradicts its actual format, else None. A packed file may have the suffix
    of its original, by which the other files of a set refer to it."""
    suffix = Path(name).suffix.lower()
    promised = MISNAMED_UNLESS.get(suffix)
    if promised is None or not promised.isdisjoint({identity.format, identity.detail.get("inside")}):
        return None
    return f"the name ends in {suffix}, but the content is: {titled(identity.format)}"


# ---- folders ----


class Folder:
    """The properties of a folder for the table of kinds: its files by name, their identities, its JSON files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def names(self) -> list[str]:
        """The relative names of the files, two levels deep, sorted."""
        out: list[str] = []
        for base, folders, files in walk(self.path):
            inner = base.relative_to(self.path)
            folders[:] = sorted(f for f in folders if f != ".git") if len(inner.parts) < 2 else []
            out += [(inner / f).as_posix() for f in files]
            if len(out) > FOLDER_FILES:
                break
        return sorted(out[:FOLDER_FILES])

    @cached_property
    def top(self) -> frozenset[str]:
        return frozenset(n for n in self.names if "/" not in n)

    @cached_property
    def folders(self) -> frozenset[str]:
        return frozenset(n.partition("/")[0] for n in self.names if "/" in n)

    @cached_property
    def identities(self) -> dict[str, Identity]:
        """The identities of the files in `lines`, except unreadable ones."""
        return {}

    @cached_property
    def lines(self) -> tuple[FileLine, ...]:
        return tuple(map(self._line, self.names[:FOLDER_SNIFFED]))

    def _line(self, name: str) -> FileLine:
        try:
            with open_source(self.path / name) as source:
                file, size = _identify_bytes(source), source.size
        except (UnsupportedError, OSError) as error:  # a socket or a dangling link is reported, and skipped
            reason = error.message if isinstance(error, UnsupportedError) else error.strerror or str(error)
            return FileLine(name, 0, "unknown", "", (reason,))
        self.identities[name] = file
        return FileLine(name, size, file.format, file.variant, file.damage, name_lies(name, file))

    def of(self, *formats: str, top: bool = True) -> list[FileLine]:
        """The files of these formats, packed ones too."""
        lines = [line for line in self.lines if not top or line.name in self.top]
        return [line for line in lines if (line.variant if line.format in ENCLOSING else line.format) in formats]

    @cached_property
    def config(self) -> dict[str, Any]:
        return sidecars.json(self.path / "config.json")


#: Formats of frameworks in which a folder's weights may be.
_FRAMEWORKS: Final = tuple(f.name for f in BUILT_IN.values() if f.in_folders)

FolderMatch = tuple[str, tuple[str, ...], dict[str, Any]]  # variant, evidence, detail
FolderTest = Callable[[Folder], FolderMatch | None]


def _cache_repository(folder: Folder) -> FolderMatch | None:
    """Matches models--org--name in the Hugging Face cache: refs, blobs, and snapshots of links to them."""
    if not {"blobs", "snapshots", "refs"} <= {p.name for p in folder.path.iterdir()}:
        return None
    revisions = sorted(p.name for p in (folder.path / "snapshots").iterdir() if p.is_dir())
    main = sidecars.read(folder.path / "refs" / "main", 256)
    head = main.decode("ascii", "replace").strip() if main else None
    chosen = head if head in revisions else revisions[-1] if revisions else None
    name = folder.path.name.removeprefix("models--").replace("--", "/")
    detail = {"repository": name, "revision": chosen, "revisions": len(revisions)}
    if chosen:
        detail["snapshot"] = str(folder.path / "snapshots" / chosen)
    return "", (f"folders blobs, refs and snapshots ({plural(len(revisions), 'revision')})",), detail


def _layout(folder: Folder) -> FolderMatch | None:
    """Matches a layout of blobs whose models can be read: one, which is identified, or several."""
    from weighbridge.models.archives import resolve  # late: only folders need it
    from weighbridge.models.layouts import find_layout

    try:
        if (layout := find_layout(folder.path)) is None:
            return None
        names = sorted(model.name for model in layout.listing.models)
        evidence = f"{layout.listing.title} with {plural(len(names), 'manifest')}: {', '.join(names[:4])}"
        try:
            model = layout.only()
        except UsageError as error:
            return "", (evidence, str(error.hint)), {"models": names}
        content = identify(resolve(folder.path))
        detail = {"models": names, "inside": content.format, "content": content.path}
        return layout.kind_of(model), (evidence, f"inside: {content.path}, {content.title}"), detail
    except (WeighbridgeError, OSError) as error:
        return _UNREAD, (f"it can't be read: {getattr(error, 'message', error)}",), {}


#: The variant of a layout without a readable model.
_UNREAD: Final = "unreadable"


def _pipeline(folder: Folder) -> FolderMatch | None:
    index = sidecars.json(folder.path / "model_index.json")
    if "_class_name" not in index:
        return None
    parts = sorted(key for key, value in index.items() if isinstance(value, list) and key in folder.folders)
    evidence = (f"model_index.json of a {index['_class_name']}", f"components: {', '.join(parts)}")
    return str(index["_class_name"]), evidence, {"components": parts}


def _comfy_set(folder: Folder) -> FolderMatch | None:
    from weighbridge.models.diffusion.comfy_set import files_of_set  # late: few commands identify folders

    if not (files := files_of_set(folder.path)):
        return None
    names = [file.relative_to(folder.path).as_posix() for file in files]
    return "", (f"a file per part: {', '.join(names)}",), {"components": names}


def _peft(folder: Folder) -> FolderMatch | None:
    config = sidecars.json(folder.path / "adapter_config.json")
    weights = [line.name for line in folder.of("safetensors", *PICKLED) if line.name.startswith("adapter_model")]
    if "peft_type" not in config or not weights:
        return None
    base = config.get("base_model_name_or_path")
    detail = {"peft_type": config["peft_type"], "base_model": base, "rank": config.get("r")}
    evidence = (f"adapter_config.json of a {config['peft_type']} adapter", *weights)
    return str(config["peft_type"]).lower(), evidence, detail


def _sentence_transformer(folder: Folder) -> FolderMatch | None:
    if "modules.json" not in folder.top or "config.json" not in folder.top:
        return None
    return "", ("modules.json and config.json (sentence-transformers)",), _model_detail(folder)


def _mlx(folder: Folder) -> FolderMatch | None:
    weights = folder.of("safetensors")
    quantization = folder.config.get("quantization")
    by_mlx = [line for line in weights if folder.identities[line.name].detail.get("metadata_format") == "mlx"]
    if not weights or not (by_mlx or (isinstance(quantization, dict) and "bits" in quantization)):
        return None
    evidence = [f'{len(by_mlx)} of {plural(len(weights), "file")} with format "mlx"'] if by_mlx else []
    if isinstance(quantization, dict):
        bits, group = quantization.get("bits"), quantization.get("group_size")
        evidence.append(f"config.json: quantization of {bits} bits, groups of {group}")
    return "quantized" if isinstance(quantization, dict) else "", tuple(evidence), _model_detail(folder)


def _transformers(folder: Folder) -> FolderMatch | None:
    weights = folder.of("safetensors", *PICKLED, "gguf", *_FRAMEWORKS)
    if not folder.config or not weights or not ({"model_type", "architectures"} & set(folder.config)):
        return None
    kinds = sorted({line.format for line in weights})
    evidence = ("config.json of a transformers model", _weight_files(len(weights), kinds))
    return "", evidence, _model_detail(folder)


def _gguf(folder: Folder) -> FolderMatch | None:
    files = folder.of("gguf")
    if not files:
        return None
    kinds: dict[str, int] = {}
    for line in files:
        kinds[line.variant or "other"] = kinds.get(line.variant or "other", 0) + 1
    evidence = tuple(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    return "", (f"{len(files)} GGUF files: {', '.join(evidence)}",), {"kinds": kinds}


def _mistral(folder: Folder) -> FolderMatch | None:
    weights = [line for line in folder.of("safetensors", *PICKLED) if line.name.startswith("consolidated")]
    if "params.json" not in folder.top or not weights:
        return None
    return "", ("params.json and consolidated weights (Meta or Mistral native)",), _model_detail(folder)


def _files_test(*names: str, evidence: str) -> FolderTest:
    """Returns the test for a kind with these files (`*name`: a suffix)."""

    def test(folder: Folder) -> FolderMatch | None:
        for name in names:
            if not any(n.endswith(name[1:]) if name[0] == "*" else n == name for n in folder.names):
                return None
        return "", (evidence,), {}

    return test


def _distributed(folder: Folder) -> FolderMatch | None:
    """Matches `.metadata` and data files without weights that loaders prefer, or safetensors with parts of tensors."""
    from weighbridge.models.locate import DCP_DATA, distributed_shards, is_distributed  # late: only folders need it

    if is_distributed(folder.top):
        count = sum(name.endswith(DCP_DATA) for name in folder.top)
        return "", (f".metadata and {plural(count, DCP_DATA + ' file')}",), {}
    parts = distributed_shards(folder.top)
    return (
        ("safetensors", (f"{plural(len(parts), 'file')} with parts of tensors (DCP_SHARDING_INFO)",), {})
        if parts
        else None
    )


def _training_run(folder: Folder) -> FolderMatch | None:
    """Matches the folder of a run's steps."""
    from weighbridge.models import runs  # late: only folders need it

    run = runs.run_in(folder.path)
    if run is None:
        return None
    cut_off = {str(step.number): step.trouble for step in run.steps if step.trouble}
    complete = [step.number for step in run.steps if not step.trouble]
    detail = {"step": run.taken.number if run.taken else None, "steps": complete, "incomplete": cut_off}
    evidence = run.notes or tuple(f"step {number} is incomplete: {why}" for number, why in cut_off.items())
    return run.steps[-1].kind.trainer, evidence, detail


def _tensorrt(folder: Folder) -> FolderMatch | None:
    from weighbridge.models.locate import TENSORRT  # late, as above

    mapping = folder.config.get("mapping")
    if TENSORRT not in folder.top or not isinstance(mapping, dict):
        return None
    ranks = {key: mapping[key] for key in ("world_size", "tp_size", "pp_size") if key in mapping}
    return "", ("config.json with a mapping of ranks, and rank0.safetensors (TensorRT-LLM)",), ranks


def _deepspeed(folder: Folder) -> FolderMatch | None:
    from weighbridge.containers.formats import ZERO_MODEL, ZERO_OPTIMIZER  # late, as above

    model, parts = ([n for n in folder.top if n.endswith(end)] for end in (ZERO_MODEL, ZERO_OPTIMIZER))
    if not model and not parts:
        return None
    evidence = f"{plural(len(model), 'file')} *{ZERO_MODEL}, {plural(len(parts), 'file')} *{ZERO_OPTIMIZER}"
    return "", (evidence,), {}


def _megatron(folder: Folder) -> FolderMatch | None:
    from weighbridge.models.trainer_files import megatron_files  # late, as above

    ranks = megatron_files(folder.path)
    return ("", (f"{plural(len(ranks), 'rank')}, {ranks[0].parent.name}/{ranks[0].name} ...",), {}) if ranks else None


def _orbax(folder: Folder) -> FolderMatch | None:
    items = [name for name in folder.names if name.rpartition("/")[2] == ORBAX and name.count("/") <= 1]
    return ("", (f"{', '.join(items[:4])} (Orbax)",), {}) if items else None


def _weights(folder: Folder) -> FolderMatch | None:
    files = folder.of("safetensors", "npz", "npy", *PICKLED, *_FRAMEWORKS)
    if not files:
        return None
    kinds = sorted({folder.identities[line.name].title for line in files})
    return "", (f"{_weight_files(len(files), kinds)}, no config",), {}


def _weight_files(count: int, kinds: Sequence[str]) -> str:
    return f"{count} weight {'files' if count != 1 else 'file'} ({', '.join(kinds)})"


def _model_detail(folder: Folder) -> dict[str, Any]:
    from weighbridge.reports.inspect import model_info  # imports the packings' schemas

    model = model_info.of_folder(folder.path, folder.config or None)
    detail = {"architecture": model.architecture, "family": model.family}
    if model.quantization:
        detail["quantization"] = model.quantization.words
    return {key: value for key, value in detail.items() if value}


@dataclass(frozen=True, slots=True)
class FolderKind:
    """`test`: returns a match or None. `readable`: whether Weighbridge opens such a folder as a model."""

    format: str
    title: str
    test: FolderTest
    readable: bool


#: Kinds of folders, the most specific first; the first match counts.
FOLDERS: Final = (
    FolderKind("hf-cache", "Hugging Face cache of one repository", _cache_repository, False),
    FolderKind("oci-layout", "OCI image layout or store of Docker's model runner", _layout, True),
    FolderKind("diffusers", "diffusers pipeline", _pipeline, True),
    FolderKind("comfyui", "ComfyUI's files of an image or video model", _comfy_set, True),
    FolderKind("peft-adapter", "PEFT adapter", _peft, True),
    FolderKind("sentence-transformers", "sentence-transformers model", _sentence_transformer, True),
    FolderKind("mlx-model", "MLX model", _mlx, True),
    FolderKind("torch-distributed", "PyTorch distributed checkpoint", _distributed, True),
    FolderKind("tensorrt-llm", "TensorRT-LLM checkpoint", _tensorrt, True),
    FolderKind("hf-model", "transformers model", _transformers, True),
    FolderKind("native-model", "Meta or Mistral native model", _mistral, False),
    FolderKind("gguf-folder", "folder of GGUF files", _gguf, True),
    FolderKind("tf-savedmodel", "TensorFlow SavedModel",
               _files_test("saved_model.pb", "variables/variables.index",
                           evidence="saved_model.pb and variables (TensorFlow)"), True),
    FolderKind("tf-savedmodel-graph", "TensorFlow SavedModel without variables",
               _files_test("saved_model.pb", evidence="saved_model.pb (TensorFlow)"), False),
    FolderKind("training-run", "folder of a training run", _training_run, True),
    FolderKind("deepspeed", "DeepSpeed checkpoint", _deepspeed, True),
    FolderKind("megatron", "Megatron-LM checkpoint", _megatron, True),
    FolderKind(ORBAX_FORMAT, "Orbax checkpoint", _orbax, True),
    FolderKind("nemo-folder", "NeMo checkpoint",
               _files_test("weights/.metadata", evidence="weights/.metadata (NeMo 2)"), True),
    FolderKind("coreml-package", "Core ML package",
               _files_test("Manifest.json", "*.mlmodel", evidence="Manifest.json and a .mlmodel"), True),
    FolderKind("weights", "folder of weights", _weights, True),
)  # fmt: skip


def _folder(path: Path) -> IdentifyReport:
    folder = Folder(path)
    for kind in FOLDERS:
        try:
            match = kind.test(folder)
        except WeighbridgeError as error:
            raise UsageError(f"{path}: {error.message}") from error
        if match is not None:
            return _folder_report(folder, replace(kind, readable=kind.readable and match[0] != _UNREAD), *match)
    weights = folder.of("safetensors", "gguf", "npz", *PICKLED, *_FRAMEWORKS, top=False)
    evidence = f"it contains {', '.join(folder.names[:4]) or 'nothing'}"
    if weights:
        evidence = f"weights are below it, in {', '.join(sorted({os.path.dirname(w.name) for w in weights})[:4])}"
    return _folder_report(folder, _NO_WEIGHTS, "", (evidence,), {})


#: Kinds of folders that trainers write.
_TRAINED: Final = frozenset({"torch-distributed", "training-run", "deepspeed", "megatron", ORBAX_FORMAT, "nemo-folder"})
_NO_WEIGHTS: Final = FolderKind("folder", "folder without weights", _weights, False)


def _folder_report(
    folder: Folder, kind: FolderKind, variant: str, evidence: tuple[str, ...], detail: Mapping[str, Any]
) -> IdentifyReport:
    damage = tuple(f"{line.name}: {damage}" for line in folder.lines for damage in line.damage)
    if kind.format in _TRAINED:
        from weighbridge.reports.links import links_outside  # late, as above

        damage = (*links_outside([folder.path]), *damage)
    misnamed = [f"{line.name}: {line.name_lies}" for line in folder.lines if line.name_lies]
    size = sum(line.bytes for line in folder.lines)
    confidence = "guess" if kind.format in ("folder", "weights") else "likely" if damage or misnamed else "certain"
    return IdentifyReport(
        str(folder.path), "folder", kind.format, variant, kind.title, confidence, evidence, kind.readable, size, detail,
        damage, "; ".join(misnamed) or None, "run `wb verify` on it" if damage or misnamed else None, folder.lines,
    )  # fmt: skip
