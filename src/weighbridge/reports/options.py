"""Options of the read-only commands: what to read, how to compare it, and when to fail.

The functions of Python accept the fields of these classes as keywords (`base/options.py`). Options that only change
what a command prints are declared by the command.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import field
from typing import Final, Literal

from weighbridge.base.dtypes import DTypeLike
from weighbridge.base.options import ProgressKeyword, option
from weighbridge.base.records import dataclass
from weighbridge.io.options import JobsOptions
from weighbridge.models.model import ConfigOptions, FamilyOptions, StepOptions
from weighbridge.reports.signature.options import SignatureCheckOptions

Path = str | os.PathLike[str]
Names = Literal["auto", "stored", "logical", "canonical"]
#: Digests of files.
FILE_ALGORITHMS: Final = ("sha256", "sha1", "sha512", "md5", "blake2b", "blake3", "xxh3", "xxh64", "git")
_EXPR: Final = "'size>1MB and dtype=F16'"


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    values: bool = option("Also check every number: NaN, Inf, broken block scales, zeros.", False)


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(CheckOptions, ConfigOptions, SignatureCheckOptions, StepOptions, ProgressKeyword):
    mmproj: str | Path | None = option("Also check whether this projector belongs to the model.", metavar="FILE",
                                       kind="path")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DiffOptions(JobsOptions, FamilyOptions, ProgressKeyword):
    names: Names = option("Compare under these names [auto: canonical if the names differ].", "auto")
    tolerance: float = option("Differences up to X count as none [0].", 0.0, metavar="X", least=0)
    lineage: bool = option("Also report how the models are related.", False)


@dataclass(frozen=True, kw_only=True)
class ProveOptions(JobsOptions, ConfigOptions, ProgressKeyword):
    static: bool = option("Compare only settings and tokenizer; reads only headers.", False)
    run: bool = option("Run both models [on].", True)
    text: Path | None = option("Also compare the perplexity of this text.", metavar="FILE", kind="file")
    tokens: int = option("Positions to compare [256].", 256, metavar="N", least=1)


@dataclass(frozen=True, kw_only=True)
class LineageOptions(FamilyOptions, ProgressKeyword):
    """How models are opened."""


@dataclass(frozen=True, kw_only=True)
class InspectOptions(StepOptions, FamilyOptions):
    filter: Sequence[str] = option(f"Only tensors that satisfy it: {_EXPR}.", (), metavar="EXPR")
    include: Sequence[str] = option("Only tensors whose name matches.", (), metavar="GLOB")
    exclude: Sequence[str] = option("Not those whose name matches.", (), metavar="GLOB")
    sort: str | None = option("name, size, params, offset, dtype, rank, rows or file.", metavar="FIELD[:desc]")
    limit: int | None = option("Show the first N rows.", metavar="N", least=0)


@dataclass(frozen=True, kw_only=True)
class LsOptions(ProgressKeyword):
    paths: Sequence[Path] = field(default=(), kw_only=False)
    include: Sequence[str] = option("Only models whose name matches.", (), metavar="GLOB")
    sort: str | None = option("name, size, used, params, format or store.", metavar="FIELD[:desc]")
    lineage: bool = option("Also report how the models are related.", False)


@dataclass(frozen=True, kw_only=True)
class AnatomyOptions:
    """`cells`: the resolution of the strip."""

    at: int | None = option("Explain the byte at OFFSET.", metavar="OFFSET", kind="offset")
    start: int = option("Only regions after this byte.", 0, metavar="OFFSET", kind="offset")
    end: int | None = option("Only regions before this byte.", metavar="OFFSET", kind="offset")
    kind: Sequence[str] = option("Only regions of a kind (key, value, tensor, padding ...).", (), metavar="KIND")
    head: int = option("Bytes of a region to dump [32].", 32, metavar="N", least=0, most=1 << 20)
    limit: int | None = option("Show the first N regions.", metavar="N", least=0)
    cells: int = 64


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    member: str | None = option("Only this pickle of the file (data.pkl, object ...).", metavar="NAME")
    calls: bool = option("Only steps that import, call, or set a state.", False)
    limit: int = option("Steps of each pickle to show [200].", 200, metavar="N", least=0)
    all: bool = option("Show every step.", False)


@dataclass(frozen=True, kw_only=True)
class TensorOptions:
    tensor: str | None = option("Only this tensor; same as PATH::NAME.", metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class StatsOptions(TensorOptions, StepOptions, FamilyOptions, ProgressKeyword):
    bins: int | None = option("Bins of a tensor's histogram [64].", metavar="N", least=1, most=4096)
    statistic: str | None = option(
        "bytes, parameters, bits, mean, std, rms [default], kurtosis, absmax ...", metavar="NAME"
    )


@dataclass(frozen=True, kw_only=True)
class GetOptions(StepOptions):
    slice: str | None = option("Only a part, in numpy syntax: '[0:10, :]'.", metavar="SLICE")
    dtype: DTypeLike | None = option(
        "Write numbers of this type [as stored; F32 where numpy has no such type].", metavar="TYPE", kind="dtype"
    )


@dataclass(frozen=True, kw_only=True)
class HashOptions(JobsOptions, ProgressKeyword):
    algo: str | Sequence[str] = option("The digest [sha256].", "sha256", letter="a", choices=(*FILE_ALGORITHMS, "uuid"))
    tensors: bool = option("Hash each tensor, whatever its container, and all weights.", False)


@dataclass(frozen=True, kw_only=True)
class ScanOptions(ProgressKeyword):
    allow_library: Sequence[str] = option(
        "Accept the classes of this Python package, such as sklearn. Repeatable.", (), metavar="NAME"
    )
