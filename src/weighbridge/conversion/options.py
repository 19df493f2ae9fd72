"""The options for writing a model. `WriteOptions` apply to every target; each kind of target adds a class.

A field is the only declaration of its option (`base/options.py`). An option applies to the targets whose class has the
field; `resolve` refuses it for others and lists the targets that it applies to. Callers can also pass an instance:
`wb.convert(src, dst, to=wb.GgufOptions(align=64))`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, TypeVar, get_args

from weighbridge.base.dtypes import DTypeLike, requested_dtype
from weighbridge.base.errors import UsageError
from weighbridge.base.ftypes import FILE_TYPES
from weighbridge.base.limits import MEMORY
from weighbridge.base.options import flag, option, options_of
from weighbridge.base.records import dataclass
from weighbridge.containers.formats import GRAPHS
from weighbridge.conversion.option_groups import (
    GGUF,
    MLX,
    TARGET,
    AlignOptions,
    ArchOptions,
    CodeOptions,
    ComfyQuantOptions,
    ComfySetOptions,
    KeyOptions,
    NameOptions,
    RoundingOptions,
    TaskOptions,
    TokenizerOptions,
    TowersOptions,
    check_comfy_format,
)
from weighbridge.conversion.quantize import type_hints
from weighbridge.io.options import JobsOptions, OverwriteOptions

WRITING, _SCHEME = "Writing", "Quantized Hugging Face folder"
_IMATRIX: Final = "Importance matrix"
_TYPES: Final = "Types"

#: The value of `--sbom` without a FILE.
NEXT_TO_TARGET: Final = "auto"
#: The `dtype` that casts each float tensor to the narrowest type with exactly its values.
SMALLEST_EXACT: Final = "smallest-exact"

Path = str | os.PathLike[str]
Options = TypeVar("Options", bound="TargetOptions")


class Bounded:
    """A dataclass whose numbers have least values."""

    def __post_init__(self) -> None:
        for one, declared in options_of(type(self)):
            value = getattr(self, one.name)
            if declared.least == 1 and value is not None and value < 1:
                raise UsageError(f"{flag(one.name)} must be at least 1", hint=f"not {value}")


@dataclass(frozen=True, kw_only=True)
class WriteOptions(JobsOptions, OverwriteOptions, Bounded):
    """How any function writes. With `resume` the unfinished part stays next to the target; the same call continues."""

    replace_folder: bool = option(
        "Replace an existing folder and delete the files in it that aren't rewritten.", False, section=WRITING
    )
    resume: bool = option(
        "Keep finished work as DST.partial if interrupted; the next --resume continues.", False, section=WRITING
    )
    parents: bool = option(
        "Create missing parent folders of the target, more than one level deep.", False, section=WRITING
    )
    max_memory: int | None = option("Memory limit, excluding the interpreter.", kind="size", least=1, section=WRITING)

    @property
    def memory(self) -> int:
        return self.max_memory or MEMORY


@dataclass(frozen=True, kw_only=True)
class SbomKeyword:
    sbom: Path | None = option(
        "Also write a bill of materials: CycloneDX, or SPDX if FILE ends in .spdx.json [next to the target].",
        metavar="[FILE]", kind="file", bare=NEXT_TO_TARGET, section="Output",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TargetOptions(Bounded):
    """The options of one kind of target. Messages call it `title`."""

    title: ClassVar[str] = "this target"


@dataclass(frozen=True, kw_only=True)
class DTypeOptions(TargetOptions):
    """None keeps the source's type; for a GGUF "auto" is the type that most of the source has. The field of an
    instance holds the type's name, whatever it was given as. `narrows`: whether SMALLEST_EXACT applies."""

    narrows: ClassVar[bool] = False
    dtype: DTypeLike | None = option(
        "Type of the weights: f32, f16, bf16, q8_0, auto, smallest-exact (per tensor, after reading all values); GGUF: "
        "wb quantize's types, too.", metavar="TYPE", kind="type",
        section=TARGET, aliases="outtype quant",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype is None:
            return
        if self.dtype == SMALLEST_EXACT:
            if not self.narrows:
                hint = "write .safetensors, .npz, .pt or a folder of them"
                raise UsageError(f"--dtype {SMALLEST_EXACT} doesn't apply to {self.title}", hint=hint)
            return
        try:
            chosen = requested_dtype(self.dtype)
        except UsageError as error:
            raise (type_hints.refusal(self.dtype) if isinstance(self.dtype, str) else None) or error from None
        object.__setattr__(self, "dtype", "auto" if chosen is None else chosen.name)


@dataclass(frozen=True, kw_only=True)
class ShardOptions(TargetOptions):
    """With either bound the target is a sharded set."""

    max_shard_size: int | None = option(
        "Maximum size of one file, such as 5GB.", kind="size", least=1, section=TARGET, aliases="split-max-size"
    )
    max_shard_tensors: int | None = option(
        "Maximum number of tensors in one file.", metavar="N", least=1, section=TARGET,
        aliases="split-max-tensors",
    )  # fmt: skip

    @property
    def sharded(self) -> bool:
        return self.max_shard_size is not None or self.max_shard_tensors is not None


@dataclass(frozen=True, kw_only=True)
class RequantizeOptions(TargetOptions):
    allow_requantize: bool = option("Quantize tensors that are quantized already (loses more).", False, section=TARGET)


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(TargetOptions):
    """A training checkpoint, as a folder or a PyTorch file. It keeps structure and types, so it has no options."""

    title: ClassVar[str] = "a training checkpoint"


@dataclass(frozen=True, kw_only=True)
class CastOptions(DTypeOptions, RequantizeOptions):
    """`inexact` is for quantized tensors that no type of the target holds exactly; "near" rounds their scales."""

    inexact: Literal["float", "near", "refuse"] = option(
        "Quantized tensors that fit no type exactly: floats [default], rounded scales, or an error.", "float",
        section=TARGET, shorthand="lossless=refuse",
    )  # fmt: skip
    rounds_scales: ClassVar[bool] = False  # whether `near` applies

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inexact == "near" and not self.rounds_scales:
            raise UsageError(f"--inexact near doesn't apply to {self.title}", hint="it applies to GGUF and --scheme")


@dataclass(frozen=True, kw_only=True)
class NumpyOptions(CastOptions):
    title: ClassVar[str] = "a NumPy file"
    narrows: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class TorchOptions(CastOptions, ShardOptions):
    title: ClassVar[str] = "a PyTorch file"
    narrows: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class DcpOptions(CastOptions, ShardOptions):
    """A folder that `torch.distributed.checkpoint.load` reads. Either bound divides the data among files."""

    title: ClassVar[str] = "a distributed checkpoint"
    narrows: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class FolderOptions(TargetOptions):
    """A model folder with config and tokenizer next to the weights."""

    tokenizer: bool = option(
        next(d for one, d in options_of(TokenizerOptions) if one.name == "tokenizer").help, True, section=TARGET,
        sources=("gguf", "ggml"),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TorchFolderOptions(TorchOptions, FolderOptions):
    title: ClassVar[str] = "a PyTorch model folder"


@dataclass(frozen=True, kw_only=True)
class SafetensorsOptions(CastOptions, ShardOptions, AlignOptions):
    title: ClassVar[str] = "a safetensors file"
    narrows: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class ComfyOptions(ComfyQuantOptions, SafetensorsOptions):
    title: ClassVar[str] = "a quantized file of ComfyUI (--comfy-quant)"
    narrows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_comfy_format(self.comfy_quant)


@dataclass(frozen=True, kw_only=True)
class ComfyFolderOptions(ComfySetOptions, ComfyOptions):
    title: ClassVar[str] = "ComfyUI's folders of models (--comfy-folders)"


@dataclass(frozen=True, kw_only=True)
class HfFolderOptions(SafetensorsOptions, FolderOptions):
    """A folder of safetensors, also of packed weights."""


@dataclass(frozen=True, kw_only=True)
class HfOptions(HfFolderOptions):
    title: ClassVar[str] = "a Hugging Face folder"
    projector: Path | None = option(
        "If SRC is a GGUF: its mmproj file, whose towers become part of the folder.", metavar="FILE", kind="path",
        section=TARGET, sources=("gguf",),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SchemeOptions(HfFolderOptions, CodeOptions, RoundingOptions):
    title: ClassVar[str] = "a quantized Hugging Face folder (--scheme)"
    narrows: ClassVar[bool] = False
    rounds_scales: ClassVar[bool] = True
    scheme: str = option(
        "gptq, awq, fp8, w4a16 (w2 to w8), w8a8, fp8_{dynamic,static,block}, nvfp4a16, mxfp{4,6,8}a16.", "",
        metavar="NAME", section=_SCHEME,
    )  # fmt: skip
    sym: bool | None = option("Without or with zero points (integer schemes).", section=_SCHEME, off="asym")
    smooth: float | None = option(
        "--text, w8a8: SmoothQuant's exponent [0.5].", metavar="X", least=0, most=1, section=_SCHEME, aliases="alpha"
    )


@dataclass(frozen=True, kw_only=True)
class MlxFolderOptions(HfFolderOptions, CodeOptions):
    """`quantize` or any of the `q_` options quantizes. The names are those of mlx_lm.convert."""

    narrows: ClassVar[bool] = False
    quantize: bool = option("Quantize: 4 bits in groups of 64, if nothing else is given.", False, section=MLX)
    q_mode: str | None = option("Codes.", section=MLX, choices=("affine", "mxfp4", "mxfp8", "nvfp4"))


@dataclass(frozen=True, kw_only=True)
class MlxOptions(MlxFolderOptions, RoundingOptions):
    """A `recipe` quantizes, too."""

    title: ClassVar[str] = "an MLX folder"
    recipe: str | None = option(
        "mixed_2_6, mixed_3_4, mixed_3_6 or mixed_4_6.", metavar="NAME", section=MLX, aliases="quant-predicate"
    )


@dataclass(frozen=True, kw_only=True)
class MlxTowersOptions(MlxFolderOptions):
    """The whole of a model that sees or hears, for mlx-vlm."""

    title: ClassVar[str] = "an MLX folder with towers (--towers)"
    towers: bool = option(
        "Write the whole model for mlx-vlm, with its vision and audio towers.", False, section=MLX, sources=("model",)
    )


Endian = Literal["little", "big"]


@dataclass(frozen=True, kw_only=True)
class GgufFileOptions(CastOptions, ShardOptions, NameOptions, AlignOptions, KeyOptions):
    """The options of every GGUF. Big-endian files are for machines such as IBM Z."""

    rounds_scales: ClassVar[bool] = True
    endian: Endian = option("Byte order of the file [little].", "little", section=GGUF)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None and not self.name.strip():
            raise UsageError("--name is empty", hint="leave it out for the name of the source")
        if self.endian not in get_args(Endian):
            raise UsageError(f"no byte order is called {self.endian!r}", hint=", ".join(get_args(Endian)))


@dataclass(frozen=True, kw_only=True)
class GgufOptions(GgufFileOptions, TokenizerOptions, TowersOptions):
    """`tokenizer=False` writes a GGUF that accepts only token ids, `vocab_only` one without tensors."""

    title: ClassVar[str] = "a GGUF"
    vocab_only: bool = option("Write keys and tokenizer, and no tensors.", False, section=GGUF, sources=("model",))
    rerank: bool | None = option(
        "Write a Qwen 3 as a reranker [if its README or name has Qwen3-Reranker].", section=GGUF, sources=("model",)
    )
    dense_modules: bool | None = option(
        "Write an embedding model's dense modules [LFM2: yes; EmbeddingGemma: no].", section=GGUF, sources=("model",)
    )
    rms_eps: float | None = option(
        "Epsilon of a LLaMA file from before GGUF.", metavar="X", section=GGUF, sources=("ggml",)
    )
    context_length: int | None = option(
        "Context of such a file [2048].", metavar="N", least=1, section=GGUF, sources=("ggml",)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab_only and not self.tokenizer:
            raise UsageError("--vocab-only and --no-tokenizer contradict each other", hint="give one of them")
        if self.vocab_only and self.with_mmproj:
            raise UsageError("--vocab-only and --with-mmproj contradict each other", hint="--mmproj writes the towers")


@dataclass(frozen=True, kw_only=True)
class GenericGgufOptions(GgufFileOptions, ArchOptions):
    """A GGUF without config and tokenizer, for programs that build their own graph."""

    title: ClassVar[str] = "a generic GGUF"

    def __post_init__(self) -> None:
        mixture = FILE_TYPES.get(self.dtype.upper()) if isinstance(self.dtype, str) else None
        if mixture and mixture.type and mixture.name != mixture.type.name:
            message = f"{mixture.name} gives roles of a family types of their own, and --arch has no roles"
            raise UsageError(message, hint=f"--dtype {mixture.type.name.lower()}")
        super().__post_init__()
        if not re.fullmatch(r"[a-z0-9]+([-_.][a-z0-9]+)*", self.arch):
            hint = "lower-case letters, digits, - and _: --arch my-model"
            raise UsageError(f"{self.arch!r} is not the name of an architecture", hint=hint)


@dataclass(frozen=True, kw_only=True)
class MmprojOptions(GgufFileOptions):
    """The vision and audio towers of a model folder, which llama.cpp has in a GGUF of their own."""

    title: ClassVar[str] = "an mmproj file (--mmproj)"
    mmproj: bool = option(
        "Write only the vision and audio towers, for llama.cpp's --mmproj.", False, section=GGUF, sources=("model",)
    )


@dataclass(frozen=True, kw_only=True)
class TaskAdapterOptions(GgufFileOptions, TaskOptions):
    title: ClassVar[str] = "an adapter of a task (--task-adapter)"


#: The options that set each tensor's type, in place of TYPE.
IN_PLACE_OF_TYPE: Final = ("target_bpw", "target_size", "recipe")


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions(RequantizeOptions, TokenizerOptions, NameOptions, AlignOptions, TowersOptions, KeyOptions):
    """llama-quantize's options under its names, and those of the conversion to GGUF before it. The towers aren't
    quantized: the second GGUF is that of `wb convert --mmproj`."""

    title: ClassVar[str] = "a quantized GGUF"
    imatrix: Path | None = option(
        "Importance matrix (GGUF or .dat), or auto: made of --text.", metavar="FILE", kind="path", section=_IMATRIX
    )
    include_weights: Sequence[str] = option(
        "Use only its entries whose name contains NAME.", (), metavar="NAME", section=_IMATRIX
    )
    exclude_weights: Sequence[str] = option(
        "Ignore its entries whose name contains NAME.", (), metavar="NAME", section=_IMATRIX
    )
    target_size: int | None = option(
        "Choose types so that the file is at most this large.", kind="size", section=_TYPES
    )
    target_bpw: float | None = option(
        "Choose types for this many bits per weight.", metavar="BITS", above=0, most=32, section=_TYPES
    )
    search: Literal["ggml", "best"] = option(
        "How scales of blocks are chosen: as ggml does [ggml], or with the least error, so with other bytes.", "ggml",
        section=_TYPES,
    )  # fmt: skip
    pure: bool = option("Give all tensors the same type, no mixture.", False, section=_TYPES)
    leave_output_tensor: bool = option("Don't quantize output.weight.", False, section=_TYPES)
    output_tensor_type: str | None = option("Type of output.weight.", metavar="TYPE", section=_TYPES)
    token_embedding_type: str | None = option("Type of the token embeddings.", metavar="TYPE", section=_TYPES)
    recipe: Path | None = option(
        "Take each tensor's type from FILE, in place of TYPE: pairs REGEX=TYPE, separated by white space.",
        metavar="FILE", kind="path", section=_TYPES,
    )  # fmt: skip
    tensor_type: Sequence[str] = option(
        "Type of the tensors whose name matches REGEX; the first match counts.", (), metavar="REGEX=TYPE",
        section=_TYPES,
    )  # fmt: skip
    prune_layers: Sequence[int] = option("Leave these layers out.", (), metavar="L0,L1", kind="layers", section=TARGET)
    override_kv: Sequence[str] = option("Set a key; an int is a u32.", (), metavar="KEY=TYPE:VALUE", section=GGUF)
    keep_split: bool = option("Write the shards of the source, into the folder DST.", False, section=TARGET)

    def __post_init__(self) -> None:
        super().__post_init__()
        for one in fields(self):
            if isinstance(value := getattr(self, one.name), list):
                object.__setattr__(self, one.name, tuple(value))


@dataclass(frozen=True, kw_only=True)
class AdapterOptions(DTypeOptions, NameOptions):
    """A LoRA adapter in another form. `name` is the general.name of a GGUF adapter."""

    title: ClassVar[str] = "a LoRA adapter"
    base: Path | None = option(
        "If SRC is a LoRA adapter: its base model [the one it names].", metavar="MODEL", kind="path", section=TARGET
    )


@dataclass(frozen=True, kw_only=True)
class WhisperOptions(CastOptions):
    title: ClassVar[str] = "a whisper.cpp file"


@dataclass(frozen=True, kw_only=True)
class GraphOptions(TargetOptions):
    """An existing model with the weights of another. Types and shapes are those of the existing model."""

    title: ClassVar[str] = "a model with an existing graph (--graph)"
    graph: Path = option(
        "ONNX or CTranslate2 model that is written again with SRC's weights; all the rest of it is kept.", "",
        metavar="MODEL", kind="path", section=TARGET,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RankOptions(ShardOptions):
    """A folder with one file or sharded set per rank of a tensor-parallel group."""

    title: ClassVar[str] = "tensor-parallel ranks"
    tp: int = option("Split each tensor among N tensor-parallel ranks.", 2, metavar="N", least=2, section=TARGET)


#: The format of a training checkpoint's folder.
CHECKPOINT: Final = "checkpoint"
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
        "ggml": WhisperOptions,
        CHECKPOINT: CheckpointOptions,
        "dcp": DcpOptions,
        **dict.fromkeys(GRAPHS, GraphOptions),
    }
)
#: The classes that `wb convert` chooses from.
TARGETS: Final[tuple[type[TargetOptions], ...]] = (
    *dict.fromkeys(FORMATS.values()), ComfyOptions, ComfyFolderOptions, SchemeOptions, AdapterOptions, MmprojOptions,
    MlxTowersOptions, TaskAdapterOptions,
)  # fmt: skip
# Kind of source -> its name in messages.
_SOURCES: Final = MappingProxyType({"gguf": "a GGUF", "ggml": "a ggml file", "model": "a model folder"})


def names_of(options: type[TargetOptions]) -> frozenset[str]:
    """The options that a target takes."""
    return frozenset(f.name for f in fields(options))


def resolve(options: type[Options], source: str, given: Mapping[str, Any], base: Options | None = None) -> Options:
    """Returns `options` with the values of `given`, on top of `base`. `source`: its kind (`gguf`, `ggml`, `model` or
    another format). Raises UsageError for an option that doesn't apply to this target or this source; the hint lists
    where it applies."""
    declared = {one.name: row for one, row in options_of(options)}
    for name in given:
        if name not in declared:
            takers = [target.title for target in TARGETS if name in names_of(target)]
            hint = f"it applies to {', '.join(takers)}" if takers else None
            raise UsageError(f"{flag(name)} doesn't apply to {options.title}", hint=hint)
        if (allowed := declared[name].sources) and source not in allowed:
            raise UsageError(
                f"{flag(name)} doesn't apply to {_SOURCES.get(source, f'a {source} file')} as the source",
                hint=f"it applies when {options.title} is written from {' or '.join(_SOURCES[s] for s in allowed)}",
            )
    return options(**{**{name: getattr(base, name) for name in declared if base is not None}, **given})
