"""The checks of `verify --values`: every number of every tensor is read once. NaN and Inf in floats and in the scales
of quantized blocks, tensors that are all zero, tensors that end in a long run of zeros; and the checksums of archives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.dtypes import Kind
from weighbridge.base.limits import SLAB, ZERO_RUN
from weighbridge.containers.base import Entry, Finding, Severity
from weighbridge.models.stored_tensors import node_builder
from weighbridge.reports.verify.rules import Flaw
from weighbridge.reports.verify.zeros import FRESH

if TYPE_CHECKING:
    from weighbridge.reports.verify.repo import Progress, Repo, RepoFile
    from weighbridge.tensors.nodes.base import Bytes


@dataclass(slots=True)
class Values:
    """What was counted in one tensor. `looked`: whether its type's numbers could be read."""

    file: RepoFile
    entry: Entry
    looked: bool
    nan: int = 0
    inf: int = 0
    zero_tail: int = 0  # bytes at its end that are zero

    @property
    def what(self) -> str:
        return "block scales" if self.entry.dtype.kind is Kind.BLOCK else "values"


class ValueRule(NamedTuple):
    """As `Rule`, for one tensor's counts."""

    id: str
    severity: Severity
    text: str
    check: Callable[[Values], str | None]


def nan(v: Values) -> str | None:
    return f"{v.nan:,} {v.what} are NaN" if v.nan else None


def inf(v: Values) -> str | None:
    # Attention masks that older checkpoints carry as buffers are made of -Inf.
    mask = v.entry.name.endswith(("mask", "masked_bias", ".attn_mask"))
    return f"{v.inf:,} {v.what} are infinite" if v.inf and not mask else None


def all_zero(v: Values) -> str | None:
    """Zero matrices happen: the B side of a fresh LoRA. Vectors of zeros (biases) are common and pass silently."""
    fresh = v.entry.name.endswith(FRESH)
    whole = v.zero_tail == v.entry.spec.nbytes > 0
    return "every value is zero" if whole and len(v.entry.shape) > 1 and not fresh else None


def zero_end(v: Values) -> str | None:
    if ZERO_RUN <= v.zero_tail < v.entry.spec.nbytes:
        return f"its last {v.zero_tail:,} of {v.entry.spec.nbytes:,} bytes are zero"
    return None


RULES: Final = (
    ValueRule("values/nan", Severity.ERROR, "no value and no block scale is NaN", nan),
    ValueRule("values/inf", Severity.ERROR, "no value and no block scale is infinite", inf),
    ValueRule("values/all-zero", Severity.WARNING, "no matrix is all zeros", all_zero),
    ValueRule("values/zero-end", Severity.INFO, "no tensor ends in 64 KiB of zeros", zero_end),
)


def damaged(repo: Repo) -> Iterator[Finding]:
    """What the formats' own checksums say of the bytes."""
    from weighbridge.containers.numpy import npz

    for file in repo.weights:
        if file.format == npz.NAME:
            yield from npz.check(file.parsed[0])


def found(
    repo: Repo, progress: Progress | None = None, skip: Collection[tuple[str | None, str | None]] = ()
) -> Iterator[tuple[ValueRule, Flaw]]:
    """What the value rules find, tensor after tensor in the order of the files. `skip`: paths and tensors that are
    skipped, since what is damaged may not even unpack."""
    total = sum(e.nbytes for f in repo.weights for e in f.index or ())
    done = 0
    for file in repo.weights:
        for entry in file.index or ():
            done += entry.nbytes
            if progress:
                progress(done, total, entry.name)
            if (str(file.path), entry.name) in skip:
                continue
            values = _count(file, entry)
            for rule in RULES:
                words = rule.check(values)
                if words:
                    yield rule, Flaw(words, str(file.path), entry.name, offset=entry.offset)


def _count(file: RepoFile, entry: Entry) -> Values:
    from weighbridge.tensors import kernels

    _, index = file.parsed
    source = index.files[entry.file]  # a compressed member of an archive is a file of its own
    numbers = entry.dtype.kind in (Kind.FLOAT, Kind.BLOCK) and kernels.decodes(entry.dtype)
    out = Values(file, entry, numbers)
    if entry.offset + entry.nbytes > source.size:
        return out  # truncated: the container has reported it
    node = node_builder(index)(entry)
    step = max(SLAB // max(entry.spec.row_bytes, 1), 1)
    for lo in range(0, entry.spec.rows, step):
        data = node.read(lo, min(lo + step, entry.spec.rows))
        if numbers:
            counts = kernels.stats(entry.dtype, data)
            out.nan, out.inf = out.nan + counts.nan, out.inf + counts.inf
        out.zero_tail = _zeros_at_end(data) + (out.zero_tail if not data.any() else 0)
    return out


def _zeros_at_end(data: Bytes) -> int:
    """Zero bytes at the end of a slab; a look at the last byte is enough for nearly all."""
    if data.size == 0 or data[-1]:
        return 0
    filled = data.nonzero()[0]
    return int(data.size - 1 - filled[-1]) if filled.size else int(data.size)
