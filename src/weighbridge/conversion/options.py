"""The options of everything that writes a model: `WriteOptions` for all of it, and one class per target.

An option belongs to the classes that have it as a field; `resolve` refuses it for every other target and says where it
applies. The classes are also what a caller hands over in Python: `wb.convert(src, dst, to=wb.GgufOptions(align=64))`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, TypeVar

from weighbridge.base.errors import UsageError
from weighbridge.base.limits import MEMORY

# More threads than this gain nothing: a conversion is bound by the disk, and each thread holds slabs.
_MAX_JOBS: Final = 8

Path = str | os.PathLike[str]
Options = TypeVar("Options", bound="TargetOptions")


def _check_positive(options: Any, *names: str) -> None:
    for name in names:
        value = getattr(options, name, None)
        if value is not None and value < 1:
            raise UsageError(f"{flag(name)} must be at least 1", hint=f"not {value}")


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """How any command writes.

    `overwrite`: replace an existing target, of a folder the files that are written; one with others is refused unless
    `replace_folder`, which deletes them. `resume`: keep the finished part of an interrupted run beside the target and
    continue from it. `parents`: create missing parent folders of the target, more than one level deep. `jobs`: threads.
    `max_memory`: bytes that all slabs together may take.
    """

    overwrite: bool = False
    replace_folder: bool = False
    resume: bool = False
    parents: bool = False
    jobs: int | None = None
    max_memory: int | None = None

    def __post_init__(self) -> None:
        _check_positive(self, "jobs", "max_memory")

    @property
    def workers(self) -> int:
        return self.jobs or min(os.cpu_count() or 1, _MAX_JOBS)

    @property
    def memory(self) -> int:
        return self.max_memory or MEMORY


def only_from(*sources: str, default: Any = None) -> Any:
    """A field that applies to these kinds of source only."""
    return field(default=default, metadata={"sources": sources})


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """The options of one kind of target, which `title` names in messages."""

    title: ClassVar[str] = "this target"

    def __post_init__(self) -> None:
        _check_positive(self, "max_shard_size", "max_shard_tensors", "align", "context_length")


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(TargetOptions):
    """A training checkpoint, as a folder or a PyTorch file: its structure and types are kept, nothing can be chosen."""

    title: ClassVar[str] = "a training checkpoint"


@dataclass(frozen=True, kw_only=True)
class CastOptions(TargetOptions):
    """What every target of tensors takes.

    `dtype`: the dtype of the weights; None keeps the source's, `auto` is for a GGUF the type that most of the source is
    in. `inexact`: what to do with a quantized tensor that no type of the target holds exactly: store floats, store the
    nearest type (same codes, rounded scales; GGUF and schemes), or refuse. `allow_requantize`: quantize tensors that
    are quantized already.
    """

    dtype: str | None = None
    inexact: Literal["float", "near", "refuse"] = "float"
    allow_requantize: bool = False
    rounds_scales: ClassVar[bool] = False  # whether `near` applies

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inexact == "near" and not self.rounds_scales:
            raise UsageError(f"--inexact near doesn't apply to {self.title}", hint="it applies to GGUF and --scheme")


@dataclass(frozen=True, kw_only=True)
class ShardOptions(TargetOptions):
    """Bounds on one file of the target: `max_shard_size` in bytes, `max_shard_tensors`. With either one the target is a
    sharded set."""

    max_shard_size: int | None = None
    max_shard_tensors: int | None = None

    @property
    def sharded(self) -> bool:
        return self.max_shard_size is not None or self.max_shard_tensors is not None


@dataclass(frozen=True, kw_only=True)
class NumpyOptions(CastOptions):
    """A .npz or .npy file."""

    title: ClassVar[str] = "a NumPy file"


@dataclass(frozen=True, kw_only=True)
class TorchOptions(CastOptions, ShardOptions):
    """A PyTorch state dict."""

    title: ClassVar[str] = "a PyTorch file"


@dataclass(frozen=True, kw_only=True)
class FolderOptions(TargetOptions):
    """A model folder with config and tokenizer beside the weights. `tokenizer=False` leaves out the tokenizer files
    that a GGUF's keys would become."""

    tokenizer: bool = only_from("gguf", default=True)


@dataclass(frozen=True, kw_only=True)
class TorchFolderOptions(TorchOptions, FolderOptions):
    """A model folder with pytorch_model.bin."""

    title: ClassVar[str] = "a PyTorch model folder"


@dataclass(frozen=True, kw_only=True)
class SafetensorsOptions(CastOptions, ShardOptions):
    """A safetensors file. `align`: bytes at a multiple of which the data section begins [4096]."""

    title: ClassVar[str] = "a safetensors file"
    align: int | None = None


@dataclass(frozen=True, kw_only=True)
class HfOptions(SafetensorsOptions, FolderOptions):
    """A Hugging Face folder."""

    title: ClassVar[str] = "a Hugging Face folder"


@dataclass(frozen=True, kw_only=True)
class SchemeOptions(HfOptions):
    """A quantized Hugging Face folder. `scheme`: a name in conversion/schemes; `q_bits`, `q_group_size` and `sym`
    (symmetric: no zero points) where the scheme leaves a choice."""

    title: ClassVar[str] = "a quantized Hugging Face folder (--scheme)"
    rounds_scales: ClassVar[bool] = True
    scheme: str = ""
    q_bits: int | None = None
    q_group_size: int | None = None
    sym: bool | None = None


@dataclass(frozen=True, kw_only=True)
class MlxOptions(HfOptions):
    """An MLX folder; `quantize`, any of the `q_` options or a `recipe` quantizes it, under the names of
    mlx_lm.convert."""

    title: ClassVar[str] = "an MLX folder"
    quantize: bool = False
    q_bits: int | None = None
    q_group_size: int | None = None
    q_mode: str | None = None
    recipe: str | None = None


@dataclass(frozen=True, kw_only=True)
class GgufOptions(CastOptions, ShardOptions):
    """A GGUF.

    `pre`: pre-tokenizer to write where the source's isn't recognized. `tokenizer=False` writes a GGUF that takes token
    ids only, `vocab_only` one with keys and tokenizer and without tensors. `name`: general.name. `align`: alignment of
    the tensors in bytes. `rms_eps`, `context_length`: what a LLaMA file from before GGUF doesn't state.
    """

    title: ClassVar[str] = "a GGUF"
    rounds_scales: ClassVar[bool] = True
    pre: str | None = only_from("model")
    tokenizer: bool = only_from("model", default=True)
    vocab_only: bool = only_from("model", default=False)
    name: str | None = None
    align: int | None = None
    rms_eps: float | None = only_from("ggml")
    context_length: int | None = only_from("ggml")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab_only and not self.tokenizer:
            raise UsageError("--vocab-only and --no-tokenizer contradict each other", hint="give one of them")
        if self.name is not None and not self.name.strip():
            raise UsageError("--name is empty", hint="leave it out for the name of the source")


@dataclass(frozen=True, kw_only=True)
class AdapterOptions(TargetOptions):
    """A LoRA adapter in another form. `base`: the model that it is for; None: the one that it names. `name`:
    general.name of a GGUF adapter."""

    title: ClassVar[str] = "a LoRA adapter"
    base: Path | None = None
    dtype: str | None = None
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class RankOptions(ShardOptions):
    """A folder with one file or sharded set per rank of a tensor-parallel group. `tp`: number of ranks."""

    title: ClassVar[str] = "tensor-parallel ranks"
    tp: int = 2


#: Format of a target -> its options.
FORMATS: Final[Mapping[str, type[TargetOptions]]] = MappingProxyType(
    {
        "gguf": GgufOptions,
        "hf": HfOptions,
        "mlx": MlxOptions,
        "safetensors": SafetensorsOptions,
        "torch": TorchOptions,
        "hf-torch": TorchFolderOptions,
        "npz": NumpyOptions,
        "npy": NumpyOptions,
        "checkpoint": CheckpointOptions,
    }
)
#: The classes that `wb convert` chooses from.
TARGETS: Final[tuple[type[TargetOptions], ...]] = (*dict.fromkeys(FORMATS.values()), SchemeOptions, AdapterOptions)
# Kind of source -> what messages call it.
_SOURCES: Final = MappingProxyType(
    {"gguf": "a GGUF", "ggml": "a LLaMA file from before GGUF", "model": "a model folder"}
)


def flag(name: str) -> str:
    """The command-line option of a keyword: `q_bits` -> `--q-bits`."""
    return "--" + name.replace("_", "-")


def names_of(options: type[TargetOptions]) -> frozenset[str]:
    """The options that a target takes."""
    return frozenset(f.name for f in fields(options))


def resolve(options: type[Options], source: str, given: Mapping[str, Any], base: Options | None = None) -> Options:
    """`options` with the values of `given`, on top of `base`. UsageError for an option that doesn't apply to this
    target, or to a source of this kind (`gguf`, `ggml`, `model` or another format), and says to which it applies."""
    known = {f.name: f for f in fields(options)}
    for name in given:
        if name not in known:
            raise _inapplicable(name, options)
        allowed = known[name].metadata.get("sources", ())
        if allowed and source not in allowed:
            wanted = " or ".join(_SOURCES[s] for s in allowed)
            raise UsageError(
                f"{flag(name)} doesn't apply to {_SOURCES.get(source, f'a {source} file')} as the source",
                hint=f"it applies when {options.title} is written from {wanted}",
            )
    own = {name: getattr(base, name) for name in known} if base is not None else {}
    return options(**{**own, **given})


def _inapplicable(name: str, options: type[TargetOptions]) -> UsageError:
    takers = [o.title for o in TARGETS if name in names_of(o)]
    hint = f"it applies to {', '.join(takers)}" if takers else None
    return UsageError(f"{flag(name)} doesn't apply to {options.title}", hint=hint)
