"""The checks of `verify` on importance matrices of either format. They are nothing but numbers, so these are read with
and without `--values`. `wb inspect --model` checks whether they fit a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.base.words import plural
from weighbridge.containers.base import Severity
from weighbridge.containers.formats import IMATRIX_DAT
from weighbridge.containers.ggml import imatrix
from weighbridge.containers.ggml.imatrix import Imatrix, ImatrixRecord
from weighbridge.reports.verify.repo import Repo, RepoFile
from weighbridge.reports.verify.rules import Check, Flaw

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class _ImatrixFile(NamedTuple):
    """A file, and its matrix or the error of its parser."""

    file: RepoFile
    parsed: Imatrix | None
    error: FormatError | None


def _imatrix_files(repo: Repo) -> list[_ImatrixFile]:
    if "imatrix" not in repo.memo:
        repo.memo["imatrix"] = []
        for file in repo.files:
            # The findings of its container cover a file that can't be read.
            if file.source is None or file.index is None or file.identity is None:
                continue
            if file.format == IMATRIX_DAT or (file.format == "gguf" and file.identity.variant == "imatrix"):
                try:
                    parsed, failure = imatrix.parse(file.source), None
                except FormatError as error:
                    parsed, failure = None, error
                repo.memo["imatrix"].append(_ImatrixFile(file, parsed, failure))
    files: list[_ImatrixFile] = repo.memo["imatrix"]
    return files


def broken(repo: Repo) -> Iterator[Flaw]:
    for file, _, error in _imatrix_files(repo):
        if error is not None:
            message = str(FormatError(error.reason, expected=error.expected, found=error.found))
            yield Flaw(message, file.path, error.field, "create it or download it again", error.offset)


def not_finite(repo: Repo) -> Iterator[Flaw]:
    """llama-quantize refuses such sums, and rounds such counts to a number that depends on the processor."""
    for file, parsed, record in _records(repo):
        import numpy as np  # late: most models have no importance matrix

        spans = [(record.sum2, record.values)]
        if record.counts is not None:
            spans.append((record.counts, record.matrices))
        for offset, count in spans:
            bad = np.flatnonzero(~np.isfinite(_floats(parsed, offset, count)))
            if bad.size:
                message = f"{plural(bad.size, 'number', 'are')} NaN or infinite"
                yield Flaw(message, file.path, record.name, offset=offset + 4 * int(bad[0]))


def negative(repo: Repo) -> Iterator[Flaw]:
    for file, parsed, record in _records(repo):
        bad = _floats(parsed, record.sum2, record.values) < 0
        if bad.any():
            message = f"{plural(int(bad.sum()), 'value', 'are')} negative, which is impossible for a sum of squares"
            yield Flaw(message, file.path, record.name, offset=record.sum2 + 4 * int(bad.argmax()))


def unused(repo: Repo) -> Iterator[Flaw]:
    for file, parsed, record in _records(repo):
        if record.counts is None:
            idle = int(record.calls == 0)
        else:
            idle = int((_floats(parsed, record.counts, record.matrices) < 0.5).sum())
        if idle:
            message = f"{idle:,} of its {plural(record.matrices, 'matrix', 'were')} never used: all columns count alike"
            yield Flaw(message, file.path, record.name, "a longer or more varied text reaches more experts")


def _records(repo: Repo) -> Iterator[tuple[RepoFile, Imatrix, ImatrixRecord]]:
    for file, parsed, _ in _imatrix_files(repo):
        if parsed is not None:
            yield from ((file, parsed, record) for record in parsed.records)


def _floats(parsed: Imatrix, offset: int, count: int) -> NDArray[np.float32]:
    """`count` float32 values at the byte `offset`, of shape (count,)."""
    import numpy as np

    return np.frombuffer(parsed.source.read(offset, 4 * count), np.dtype(parsed.byte_order + "f4"))


RULES: Final = (
    Check("imatrix/broken", Severity.ERROR, "an importance matrix can be read to its end", broken),
    Check("imatrix/not-finite", Severity.ERROR, "no number of an importance matrix is NaN or infinite", not_finite),
    Check("imatrix/negative", Severity.WARNING, "no value of an importance matrix is negative", negative),
    Check("imatrix/unused", Severity.INFO, "every matrix (expert) of an entry was used at least once", unused),
)
