"""The checks of `verify` on importance matrices, of either form. Their numbers are all that they are, so they are read
with and without `--values`; what fits which model is `wb inspect --model`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.containers.base import Severity
from weighbridge.containers.ggml import imatrix
from weighbridge.containers.ggml.imatrix import Imatrix, ImatrixRecord
from weighbridge.reports.verify.repo import File, Repo
from weighbridge.reports.verify.rules import Found, Rule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class _Opened(NamedTuple):
    """A file, and what its parser made of it or why it made nothing."""

    file: File
    parsed: Imatrix | None
    error: FormatError | None


def _opened(repo: Repo) -> list[_Opened]:
    if "imatrix" not in repo.memo:
        repo.memo["imatrix"] = [_open(file) for file in repo.files if _is_one(file)]
    found: list[_Opened] = repo.memo["imatrix"]
    return found


def _is_one(file: File) -> bool:
    """A GGUF that can't be read as such is its container's finding."""
    variant = file.identity.variant if file.identity else ""
    return file.format == "imatrix-dat" or (file.format == "gguf" and variant == "imatrix" and file.index is not None)


def _open(file: File) -> _Opened:
    assert file.source is not None
    try:
        return _Opened(file, imatrix.parse(file.source), None)
    except FormatError as error:
        return _Opened(file, None, error)


def broken(repo: Repo) -> Iterator[Found]:
    for file, _, error in _opened(repo):
        if error is not None:
            words = str(FormatError(error.reason, expected=error.expected, found=error.found))
            yield Found(words, str(file.path), error.field, "make it or download it again", error.offset)


def not_finite(repo: Repo) -> Iterator[Found]:
    """llama-quantize refuses such sums, and rounds such counts to whatever the processor makes of them."""
    for file, parsed, record in _records(repo):
        spans = [(record.sum2, record.values)]
        if record.counts is not None:
            spans.append((record.counts, record.matrices))
        for offset, count in spans:
            bad = _not_finite(parsed, offset, count)
            if bad.size:
                words = f"{bad.size:,} numbers are NaN or infinite"
                yield Found(words, str(file.path), record.name, offset=offset + 4 * int(bad[0]))


def negative(repo: Repo) -> Iterator[Found]:
    for file, parsed, record in _records(repo):
        bad = _floats(parsed, record.sum2, record.values) < 0
        if bad.any():
            at = record.sum2 + 4 * int(bad.argmax())
            words = f"{int(bad.sum()):,} values are below zero, which no sum of squares is"
            yield Found(words, str(file.path), record.name, offset=at)


def unused(repo: Repo) -> Iterator[Found]:
    for file, parsed, record in _records(repo):
        idle = _idle(parsed, record)
        if idle:
            words = f"{idle:,} of its {record.matrices:,} matrices were never used: all their columns count alike"
            yield Found(words, str(file.path), record.name, "a longer or more varied text reaches more experts")


def _records(repo: Repo) -> Iterator[tuple[File, Imatrix, ImatrixRecord]]:
    for file, parsed, _ in _opened(repo):
        if parsed is not None:
            yield from ((file, parsed, record) for record in parsed.records)


def _idle(parsed: Imatrix, record: ImatrixRecord) -> int:
    if record.counts is None:
        return int(record.calls == 0)
    return int((_floats(parsed, record.counts, record.matrices) < 0.5).sum())


def _not_finite(parsed: Imatrix, offset: int, count: int) -> NDArray[np.intp]:
    import numpy as np

    return np.flatnonzero(~np.isfinite(_floats(parsed, offset, count)))


def _floats(parsed: Imatrix, offset: int, count: int) -> NDArray[np.float32]:
    import numpy as np

    return np.frombuffer(parsed.source.read(offset, 4 * count), np.dtype(parsed.byte_order + "f4"))


RULES: Final = (
    Rule("imatrix/broken", Severity.ERROR, "an importance matrix can be read to its end", broken),
    Rule("imatrix/not-finite", Severity.ERROR, "no number of an importance matrix is NaN or infinite", not_finite),
    Rule("imatrix/negative", Severity.WARNING, "no value of an importance matrix is below zero", negative),
    Rule("imatrix/unused", Severity.INFO, "every matrix (expert) of an entry was used at least once", unused),
)
