"""Importance matrices: the weight of each column of each tensor. Read, merge, check, write.

    matrix = read(source)                       either format (containers/ggml/imatrix.py)
    matrix.weights("blk.0.attn_v.weight")       f32, as llama-quantize passes them to the encoder
    merge([a, b])                               as llama-imatrix --in-file A --in-file B
    encode(matrix, "gguf")                      the bytes of a file
    compare(matrix, tensors)                    how it fits a model

All arithmetic is f32 in the reference's order, so weights and files are bit-identical.
Reference: tools/quantize/quantize.cpp (load_imatrix), tools/imatrix/imatrix.cpp of llama.cpp b11549.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.containers.ggml import imatrix as files
from weighbridge.containers.ggml.imatrix import COUNTS, SUM, SUM2, ImatrixForm, ImatrixPart
from weighbridge.io.source import Source
from weighbridge.tensors import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float32]"

# llama-imatrix's default of tokens per chunk (n_ctx / n_parallel).
CHUNK_SIZE: Final = 512


@dataclass(frozen=True, slots=True)
class ImatrixSums:
    """One entry.

    `sums` of squares, f32[matrices, columns]; `counts` of tokens, i64[matrices]; `inputs`: sums of the inputs, if the
    file has them, f32[matrices, columns]. In a legacy file: one matrix, a count of calls, and sums of mean x calls.
    """

    sums: Floats
    counts: NDArray[np.int64]
    inputs: Floats | None = None


@dataclass(frozen=True)
class ImportanceMatrix:
    """An importance matrix; `entries` by tensor name."""

    entries: Mapping[str, ImatrixSums]
    datasets: tuple[str, ...] = ()
    chunks: int = 0
    chunk_size: int = 0
    nextn: int = 0
    legacy: bool = field(default=False)

    def weights(self, name: str) -> Floats:
        """The mean square of each column of each matrix, f32[matrices * columns]; 1 for a matrix without tokens."""
        entry = self.entries[name]
        counts = entry.counts.astype(np.float32)[:, None]
        used = counts > 0
        idle = entry.sums if self.legacy else np.float32(1)
        with np.errstate(over="ignore"):
            means = entry.sums / np.where(used, counts, np.float32(1))
        return np.where(used, means, idle).astype(np.float32).reshape(-1)

    def sizes(self) -> dict[str, int]:
        """The number of weights of each entry."""
        return {name: entry.sums.size for name, entry in self.entries.items()}

    def only(self, names: Sequence[str]) -> ImportanceMatrix:
        """A copy with these entries only."""
        return replace(self, entries={name: self.entries[name] for name in names})


def read(source: Source) -> ImportanceMatrix:
    """Reads a file of either format. Raises FormatError for another file, or a value that isn't finite."""
    parsed = files.parse(source)
    entries = {}
    for record in parsed.records:
        sums = _floats(parsed, record.sum2, record.values).reshape(record.matrices, -1)
        inputs = None if record.inputs is None else _floats(parsed, record.inputs, record.values).reshape(sums.shape)
        counts = np.array([record.calls])
        if record.counts is not None:  # stored as f32; rounded to nearest, halves away from zero (lround)
            stored = _floats(parsed, record.counts, record.matrices).astype(np.float64)
            if not (np.abs(stored) < 2.0**62).all():
                raise FormatError("count is not a valid number", path=source.name, offset=record.counts, field="counts")
            counts = np.sign(stored) * np.floor(np.abs(stored) + 0.5)
        if not np.isfinite(sums).all():
            bad = int(np.flatnonzero(~np.isfinite(sums))[0])
            offset = record.sum2 + 4 * bad
            raise FormatError(
                "value is not finite", path=source.name, offset=offset, field=record.name, found=sums.flat[bad]
            )
        entries[record.name] = ImatrixSums(sums, counts.astype(np.int64), inputs)
    return ImportanceMatrix(
        entries, parsed.datasets, parsed.chunks, parsed.chunk_size, parsed.nextn, legacy=parsed.form == "legacy"
    )


def _floats(parsed: files.Imatrix, offset: int, count: int) -> Floats:
    data = np.frombuffer(parsed.source.read(offset, 4 * count), np.dtype(parsed.byte_order + "f4"))
    return data.astype(np.float32)


# -- merging ---------------------------------------------------------------------------------------------------------


def merge(parts: Sequence[ImportanceMatrix]) -> ImportanceMatrix:
    """Adds matrices in this order. A call of a legacy file counts as `chunk_size` tokens."""
    if not parts:
        raise UsageError("nothing to merge")
    size = next((p.chunk_size for p in parts if p.chunk_size), CHUNK_SIZE)
    entries: dict[str, ImatrixSums] = {}
    for part in parts:
        for name, entry in part.entries.items():
            if part.legacy:
                entry = ImatrixSums(entry.sums * np.float32(size), entry.counts * size)
            old = entries.get(name)
            entries[name] = entry if old is None else _add(name, old, entry, part.legacy)
    most = max((int(e.counts.max()) for e in entries.values()), default=0)
    datasets = tuple(d for part in parts for d in part.datasets)
    nextn = next((p.nextn for p in parts if p.nextn), 0)
    chunks = (most + size // 2) // size  # rows_to_chunks
    return ImportanceMatrix(dict(sorted(entries.items(), key=_by_bytes)), datasets, chunks, size, nextn)


def _by_bytes(item: tuple[str, ImatrixSums]) -> bytes:
    return item[0].encode("utf-8", "surrogateescape")


def _add(name: str, old: ImatrixSums, new: ImatrixSums, legacy: bool) -> ImatrixSums:
    """Adds two entries. Raises UsageError if they have different sizes."""
    if old.sums.size != new.sums.size:
        raise UsageError(f"the matrices are of different models: {old.sums.size} and {new.sums.size} values for {name}")
    most = max(old.counts.size, new.counts.size)
    # A single count applies to all matrices if it came first or from a legacy file.
    if old.counts.size not in (1, most) or new.counts.size not in ((1, most) if legacy else (most,)):
        raise UsageError(f"the matrices have {old.counts.size} and {new.counts.size} counts for {name}")
    counts = np.broadcast_to(old.counts, most) + new.counts
    sums = (old.sums.reshape(-1) + new.sums.reshape(-1)).reshape(most, -1)
    inputs = None
    if old.inputs is not None and new.inputs is not None:
        inputs = (old.inputs.reshape(-1) + new.inputs.reshape(-1)).reshape(most, -1)
    return ImatrixSums(sums, counts, inputs)


# -- writing ---------------------------------------------------------------------------------------------------------


def encode(matrix: ImportanceMatrix, form: ImatrixForm) -> bytes:
    """The bytes of a file, as written by llama-imatrix (without `NAME.stats`, which nothing reads).

    A legacy file omits entries without tokens.
    """
    if form == "gguf":
        matrix = merge([matrix]) if matrix.legacy else matrix
        parts = [
            ImatrixPart(n, len(e.sums), e.sums[0].size, inputs=e.inputs is not None)
            for n, e in sorted(matrix.entries.items(), key=_by_bytes)
        ]
    else:
        matrix = matrix if matrix.legacy else _as_legacy(matrix)
        parts = [ImatrixPart(n, len(e.sums), e.sums[0].size, calls=int(e.counts[0])) for n, e in matrix.entries.items()]
    place = files.layout(
        parts, form, datasets=matrix.datasets, chunks=matrix.chunks, chunk_size=matrix.chunk_size, nextn=matrix.nextn
    )
    out = bytearray(place.size)
    data: dict[str, NDArray[np.generic]] = {}
    for part in parts:
        entry = matrix.entries[part.name]
        data |= {part.name + SUM2: entry.sums, part.name + COUNTS: entry.counts}
        if entry.inputs is not None:
            data[part.name + SUM] = entry.inputs
    for at, piece in (*place.pieces, *((s.offset, data[s.name].astype("<f4").tobytes()) for s in place.slots)):
        out[at : at + len(piece)] = piece
    return bytes(out)


def _as_legacy(matrix: ImportanceMatrix) -> ImportanceMatrix:
    """Sums as mean x calls, with one count per entry (save_imatrix_legacy)."""
    size, entries = matrix.chunk_size or CHUNK_SIZE, {}
    for name, entry in sorted(matrix.entries.items(), key=_by_bytes):
        if not (entry.counts != 0).any():
            continue
        calls = -(-int(entry.counts.max()) // size)
        counts = entry.counts.astype(np.float32)[:, None]
        ones = np.where(counts == 0, np.float32(1), entry.sums)
        sums = ones / np.where(counts == 0, np.float32(1), counts) * np.float32(calls)
        entries[name] = ImatrixSums(sums.astype(np.float32), np.array([calls], np.int64))
    return replace(matrix, entries=entries, legacy=True)


# -- checking --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ImatrixFit:
    """How a matrix fits a model.

    `unknown`: entries without a tensor. `missing`: tensors without an entry. `wrong_size`: name, expected and actual
    number of values.
    """

    unknown: tuple[str, ...]
    missing: tuple[str, ...]
    wrong_size: tuple[tuple[str, int, int], ...]


def compare(matrix: ImportanceMatrix, tensors: Sequence[tuple[str, Spec]]) -> ImatrixFit:
    """Compares names and sizes with a model's matrices: one weight per column, of each matrix of a stack."""
    expected = {n: s.shape[-1] * (s.shape[-3] if len(s.shape) > 2 else 1) for n, s in tensors if len(s.shape) > 1}
    sizes = matrix.sizes()
    wrong = tuple((n, size, sizes[n]) for n, size in expected.items() if sizes.get(n, size) != size)
    unknown, missing = (n for n in sizes if n not in expected), (n for n in expected if n not in sizes)
    return ImatrixFit(tuple(unknown), tuple(missing), wrong)
