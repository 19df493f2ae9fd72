"""The checks of `verify --values`, which read every number of every tensor once: NaN and Inf in floats and in the
scales of quantized blocks, tensors that are all zero or end in a long run of zeros; and the checksums of archives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.dtypes import Kind
from weighbridge.base.errors import FormatError
from weighbridge.base.limits import SLAB, ZERO_RUN
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.base import Entry, Finding, Severity
from weighbridge.containers.zero_tail import FRESH
from weighbridge.io.source import Source
from weighbridge.models.stored_tensors import node_builder
from weighbridge.reports.verify.repo import Progress, Repo
from weighbridge.reports.verify.rules import Flaw

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node


@dataclass(slots=True)
class Values:
    """The counts of one tensor. `decoded`: whether numbers of its type could be read."""

    entry: Entry
    decoded: bool
    nan: int = 0
    inf: int = 0
    zero_tail: int = 0  # bytes at its end that are zero
    damage: str | None = None  # why its code can't be decoded

    def bad(self, count: int, kind: str) -> str | None:
        noun = "block scale" if self.entry.dtype.kind is Kind.BLOCK else "value"
        return f"{plural(count, noun, 'are')} {kind}" if count else None


class ValueRule(NamedTuple):
    """A rule on the counts of one tensor. `check` returns the message if they break it."""

    id: str
    severity: Severity
    text: str
    check: Callable[[Values], str | None]


def inf(v: Values) -> str | None:
    # Attention masks that older checkpoints store as buffers consist of -Inf.
    return None if v.entry.name.endswith(("mask", "masked_bias", ".attn_mask")) else v.bad(v.inf, "infinite")


def all_zero(v: Values) -> str | None:
    """Zero matrices are legitimate in the B side of a fresh LoRA. Vectors of zeros (biases) are common."""
    fresh = v.entry.name.endswith(FRESH)
    whole = v.zero_tail == v.entry.spec.nbytes > 0
    return "every value is zero" if whole and len(v.entry.shape) > 1 and not fresh else None


def zero_end(v: Values) -> str | None:
    if ZERO_RUN <= v.zero_tail < v.entry.spec.nbytes:
        return f"its last {v.zero_tail:,} of {v.entry.spec.nbytes:,} bytes are zero"
    return None


RULES: Final = (
    ValueRule(
        "values/code",
        Severity.ERROR,
        "the codes of packed files, ZipNN, DFloat11 and Orbax can be decoded",
        lambda v: v.damage,
    ),
    ValueRule("values/nan", Severity.ERROR, "no value and no block scale is NaN", lambda v: v.bad(v.nan, "NaN")),
    ValueRule("values/inf", Severity.ERROR, "no value and no block scale is infinite", inf),
    ValueRule("values/all-zero", Severity.WARNING, "no matrix is all zeros", all_zero),
    ValueRule("values/zero-end", Severity.INFO, "no tensor ends in 64 KiB of zeros", zero_end),
)


def damaged(repo: Repo) -> Iterator[Finding]:
    """The findings of the formats' own checksums."""
    from weighbridge.containers.numpy import npz

    for file in repo.weights:
        if file.format == npz.NAME:
            yield from npz.check(file.parsed[0])


def check_values(
    repo: Repo, progress: Progress | None = None, skip: Collection[tuple[str | None, str | None]] = ()
) -> Iterator[tuple[ValueRule, Flaw]]:
    """The flaws of all tensors, in the order of the files. `skip`: paths and tensors that are skipped, since damaged
    members may not even unpack."""
    stored = [(file.path, file.parsed[1], entry) for file in repo.weights for entry in file.parsed[1]]
    tensors = [
        *(_StoredTensor(path, entry, index.files[entry.file], partial(node_builder(index), entry))
          for path, index, entry in stored if (str(path), entry.name) not in skip),
        *_decoded_tensors(repo),
    ]  # fmt: skip
    total, done = sum(tensor.entry.nbytes for tensor in tensors), 0
    for tensor in tensors:
        path, entry = tensor.path, tensor.entry
        done += entry.nbytes
        if progress:
            progress(done, total, entry.name)
        values = _count(tensor)
        flaws = ((rule, rule.check(values)) for rule in RULES)
        yield from ((r, Flaw(text, path, entry.name, offset=entry.offset)) for r, text in flaws if text)


class _StoredTensor(NamedTuple):
    """A tensor, its source, which may be a member of an archive, and its node."""

    path: Path
    entry: Entry
    source: Source
    node: Callable[[], Node]


def _decoded_tensors(repo: Repo) -> Iterator[_StoredTensor]:
    """The tensors that several stored ones make up, and the arrays of Orbax."""
    for path, joined in repo.orbax.models:
        for entry in joined.index:
            yield _StoredTensor(
                path, entry, joined.index.files[entry.file], partial(joined.stored.__getitem__, entry.name)
            )
    model = repo.model if repo.weights else None
    decoded = {n for n, file in enumerate(model.files) if file.coder and file.is_part} if model is not None else {}
    stored = {entry.name for file in repo.weights for entry in file.parsed[1]} if decoded else {}
    for entry in model or ():
        if model is not None and entry.file in decoded and entry.name not in stored:
            yield _StoredTensor(repo.root, entry, model.files[entry.file], partial(node_builder(model), entry))


def _count(tensor: _StoredTensor) -> Values:
    from weighbridge.tensors import kernels

    entry, source = tensor.entry, tensor.source
    values = Values(entry, entry.dtype.kind in (Kind.FLOAT, Kind.BLOCK) and kernels.decodes(entry.dtype))
    if entry.offset + entry.nbytes > source.size and not source.is_part:
        return values  # truncated: the container has reported it
    try:
        _read(values, tensor.node())
    except FormatError as error:
        if not source.is_part and not source.coder:
            raise
        values.damage = error.reason
    return values


def _read(values: Values, node: Node) -> None:
    """Counts what a tensor has."""
    from weighbridge.tensors import kernels

    entry = values.entry
    step = max(SLAB // max(entry.spec.row_bytes, 1), 1)
    for lo in range(0, entry.spec.rows, step):
        data = node.read(lo, min(lo + step, entry.spec.rows))
        if values.decoded:
            counts = kernels.stats(entry.dtype, data)
            values.nan, values.inf = values.nan + counts.nan, values.inf + counts.inf
        if not data.size or data[-1]:  # true of nearly all slabs
            values.zero_tail = 0 if data.any() else values.zero_tail
        else:
            filled = data.nonzero()[0]
            zeros = int(data.size - 1 - filled[-1]) if filled.size else int(data.size) + values.zero_tail
            values.zero_tail = zeros
