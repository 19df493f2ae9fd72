"""The options of the functions that write: one class per function, composed of the classes that declare the options.

Python spells an option as the command line does: `--q-bits 4` is `q_bits=4`. Each function accepts the fields of its
class as keywords (`base/options.py`); an option that doesn't apply to the target raises UsageError.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from weighbridge.base.options import GivenOptions, ProgressKeyword, option
from weighbridge.base.records import dataclass
from weighbridge.conversion.extraction.options import ExtractOptions
from weighbridge.conversion.merging.options import MergeOptions
from weighbridge.conversion.options import (
    TARGETS,
    AdapterOptions,
    ComfyFolderOptions,
    DTypeOptions,
    GenericGgufOptions,
    GgufOptions,
    GraphOptions,
    HfOptions,
    MlxOptions,
    MlxTowersOptions,
    MmprojOptions,
    Path,
    QuantizeOptions,
    RankOptions,
    SbomKeyword,
    SchemeOptions,
    ShardOptions,
    TargetOptions,
    TaskAdapterOptions,
    TorchFolderOptions,
    WriteOptions,
    names_of,
)
from weighbridge.forward.options import TextOptions
from weighbridge.io.options import JobsOptions
from weighbridge.models.lora.weights import WeightedAdapter, weighted_adapter
from weighbridge.models.model import FamilyOptions, SourceOptions
from weighbridge.models.transform.options import RenameRules, SliceOptions

_TO: Final = "Format of the target [from DST's extension]."
_OF_TARGETS: Final = frozenset[str]().union(
    *map(names_of, (*TARGETS, GenericGgufOptions, QuantizeOptions, RankOptions))
)


@dataclass(frozen=True, kw_only=True)
class SourceKeywords(SourceOptions, GivenOptions):
    """How a function opens its source. Only the given options of the target are checked against it."""

    @property
    def target_options(self) -> dict[str, Any]:
        """The given options of the target, by name; its class checks them."""
        return {name: getattr(self, name) for name in self.given if name in _OF_TARGETS}


@dataclass(frozen=True, kw_only=True)
class WriteKeywords(WriteOptions, SourceKeywords):
    """The options of every function that writes a model."""

    def __post_init__(self) -> None:  # the target's class checks its options
        SourceOptions.__post_init__(self)
        WriteOptions.__post_init__(self)


@dataclass(frozen=True, kw_only=True)
class SplitKeywords(WriteKeywords, RankOptions):
    pass


@dataclass(frozen=True, kw_only=True)
class TransformKeywords(WriteKeywords, DTypeOptions, ShardOptions):
    to: str | TargetOptions | None = option(_TO, kind="format", section="Target")


@dataclass(frozen=True, kw_only=True)
class LoraOptions:
    lora: Path | Sequence[Path] | None = option(
        "Merge this LoRA adapter into the weights first; repeatable.", metavar="ADAPTER[:WEIGHT]", kind="path",
        section="Target",
    )  # fmt: skip

    @property
    def adapters(self) -> list[WeightedAdapter]:
        paths = self.lora or ()
        return list(map(weighted_adapter, [paths] if isinstance(paths, str | os.PathLike) else paths))


@dataclass(frozen=True, kw_only=True)
class ConvertKeywords(
    TransformKeywords, LoraOptions, GgufOptions, GenericGgufOptions, MmprojOptions, TaskAdapterOptions,
    TorchFolderOptions, HfOptions, SchemeOptions, MlxOptions, MlxTowersOptions, ComfyFolderOptions, AdapterOptions,
    GraphOptions, TextOptions, SbomKeyword,
):  # fmt: skip
    to: str | TargetOptions | None = option(_TO, kind="format or checkpoint", section="Target")


@dataclass(frozen=True, kw_only=True)
class QuantizeKeywords(WriteKeywords, LoraOptions, QuantizeOptions, TextOptions, SbomKeyword, ProgressKeyword):
    #: A type of llama-quantize, such as Q4_K_M; "" with `target_bpw`, `target_size` or `recipe`.
    ftype: str = field(default="", kw_only=False)


@dataclass(frozen=True, kw_only=True)
class CompareKeywords(SourceKeywords, LoraOptions, QuantizeOptions, TextOptions, JobsOptions, ProgressKeyword):
    def __post_init__(self) -> None:
        SourceOptions.__post_init__(self)


@dataclass(frozen=True, kw_only=True)
class SaveKeywords(DTypeOptions, ShardOptions, WriteOptions):
    """`metadata`: texts of a safetensors header, or key-values of a GGUF."""

    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class StripKeywords(TransformKeywords):
    keep_ema: bool = option("Keep averaged (EMA) weights next to the others.", False)
    ema_as_weights: bool = option("Write averaged (EMA) weights in place of the others.", False)


@dataclass(frozen=True, kw_only=True)
class MergeKeywords(
    TransformKeywords, MergeOptions, GgufOptions, TorchFolderOptions, HfOptions, SchemeOptions, MlxOptions, SbomKeyword
):
    pass


@dataclass(frozen=True, kw_only=True)
class ExtractKeywords(WriteOptions, FamilyOptions, ExtractOptions, DTypeOptions, ProgressKeyword):
    to: str | None = option("hf (a PEFT folder) or gguf [from DST's extension].", kind="format", section="Target")

    def __post_init__(self) -> None:
        for kind in (WriteOptions, ExtractOptions, DTypeOptions):
            kind.__post_init__(self)


@dataclass(frozen=True, kw_only=True)
class RenameKeywords(TransformKeywords, RenameRules):
    pass


@dataclass(frozen=True, kw_only=True)
class SliceKeywords(TransformKeywords, SliceOptions):
    pass
