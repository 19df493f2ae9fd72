"""From what a pickle says to entries: each tensor's window of the file, in place. A tensor that can't be had is a
finding, never an error: the others can."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import EXPANDED, PICKLE_FINDINGS
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Entry, Finding, Severity
from weighbridge.unpickle.torch import Reading, Remark, Storage, Tensor

_MOST: Final = 1 << 63  # bytes of one tensor


class Place(NamedTuple):
    """Where a storage lies: `size` bytes from `start` on of file number `file`."""

    file: int
    start: int
    size: int


@dataclass(frozen=True)
class Found:
    entries: tuple[Entry, ...]
    findings: tuple[Finding, ...]


def entries_of(reading: Reading, find: Callable[[Storage], Place], path: str, shift: int) -> Found:
    """`find` places a storage, FormatError where it can't; `shift`: where the pickle begins in the file."""
    entries: list[Entry] = []
    remarks = list(reading.remarks)
    for name, tensor in reading.tensors.items():
        try:
            entries.append(_entry(name, tensor, find(tensor.storage)))
        except FormatError as error:
            remarks.append(Remark("pickle.left-out", f"{name} is left out: {error.message}", tensor.at, name))
    return Found(tuple(entries), tuple(_findings(remarks, path, shift)))


def _entry(name: str, t: Tensor, place: Place) -> Entry:
    if place.size != t.storage.nbytes:
        raise FormatError("its storage has another length", expected=t.storage.nbytes, found=place.size)
    offset = place.start + t.storage.start * t.storage.dtype.size + t.offset * t.dtype.size
    shape, strides = _logical(t)
    spec = Spec(shape, t.dtype)
    if spec.nbytes >= _MOST:
        raise FormatError("it has too many elements", found=list(shape))
    if spec.elements == 0:
        return Entry(name, t.dtype, shape, place.start, 0, place.file)
    if strides is None:
        return Entry(name, t.dtype, shape, offset, spec.nbytes, place.file)
    reach = (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * t.dtype.size
    if spec.nbytes > max(EXPANDED, reach):
        raise FormatError(f"{reach} bytes are expanded to {spec.nbytes}", hint="expand it after loading instead")
    return Entry(name, t.dtype, shape, offset, reach, place.file, strides)


def _logical(t: Tensor) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Shape, and strides where the elements don't lie in C order. A torch element of two 4-bit numbers is two here."""
    dense = _dense(t.shape, t.strides)
    if t.dtype.block == 1:
        return t.shape, None if dense else t.strides
    if not dense or not t.shape:
        raise FormatError(f"{t.dtype} that does not lie in C order")
    return (*t.shape[:-1], t.shape[-1] * t.dtype.block), None


def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements lie in C order without a gap."""
    if 0 in shape:
        return True
    step = 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and s != step:
            return False
        step *= n
    return True


def _findings(remarks: list[Remark], path: str, shift: int) -> Iterable[Finding]:
    """As findings; of many of one kind the first, and their number."""
    seen: dict[str, int] = {}
    for r in remarks:
        seen[r.rule] = seen.get(r.rule, 0) + 1
        if seen[r.rule] <= PICKLE_FINDINGS:
            severity = Severity.INFO if r.harmless else Severity.WARNING
            yield Finding(r.rule, severity, r.words, path, shift + r.at, r.tensor)
    for rule, count in seen.items():
        if count > PICKLE_FINDINGS:
            yield Finding(rule, Severity.WARNING, f"and {count - PICKLE_FINDINGS} more of this kind", path)
