"""Arguments and results of the functions of formats (`format.py` lists the functions). Containers never see tensors:
they turn bytes into an `Index` and entries into a `Layout`, as pure functions over untrusted bytes. A parser returns an
index or raises a FormatError, in time linear in the header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from weighbridge.base.dtypes import DType
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape, Spec, spec_of
from weighbridge.base.words import name_ends
from weighbridge.io.source import Source


class Severity(StrEnum):
    """Severity of a finding. ERROR: violates the format or can't be loaded. WARNING: works, but is probably
    unintended."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Stage(StrEnum):
    """The stage at which llama.cpp refuses a GGUF: never, `gguf_init` without data, with data, or the model loader."""

    NEVER = ""
    HEADER = "header"
    DATA = "data"
    MODEL = "model"


class Rule(NamedTuple):
    """A row of a format's table of rules. A finding's id is the format and the row's name: `npz/checksum`.

    text      the problem of a file that breaks it
    hint      the next step
    refused   GGUF: the stage at which llama.cpp refuses such a file
    spec      safetensors: the README forbids it, the reference accepts it"""

    severity: Severity
    text: str
    hint: str | None = None
    refused: Stage = Stage.NEVER
    spec: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem or oddity: a stable `rule` id (`format/rule`), a message, and the place."""

    rule: str
    severity: Severity
    message: str
    path: str | None = None
    offset: int | None = None
    tensor: str | None = None
    hint: str | None = None


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One stored tensor: bytes [offset, offset + nbytes) of `files[file]` of its index, in C order, little-endian
    unless the index has another byte order. (A Struct is created eight times faster than a dataclass; files have
    100,000.)

    With `strides` (in elements, not negative) it is a view in another order: element (i, j ...) is element
    i*strides[0] + j*strides[1] ... of those bytes, which may be fewer or more than the tensor's size."""

    name: str
    dtype: DType
    shape: Shape
    offset: int
    nbytes: int
    file: int = 0
    strides: tuple[int, ...] | None = None

    @property
    def spec(self) -> Spec:
        return spec_of(self.shape, self.dtype)


#: The rule of the finding about `Index.capped`.
CAPPED: Final = "pickle.expanded"


@dataclass(frozen=True)
class Index:
    """The result of a parser: tensors in file order, metadata, the sources of the bytes.

    `metadata` maps keys to Python values. GGUF arrays are lazy (`Sequence` objects that decode on access).
    `findings` are oddities that don't stop the parser (duplicate names, non-zero padding ...).
    """

    format: str
    files: tuple[Source, ...]
    entries: tuple[Entry, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    data_start: tuple[int, ...] = (0,)  # per file: where tensor data begins
    alignment: int = 1
    byte_order: str = "<"
    version: int | None = None
    findings: tuple[Finding, ...] = ()
    capped: tuple[Entry, ...] = ()  # views far larger than their bytes: left out, with a finding

    def whole(self) -> Index:
        """The same index, with the oversized views replaced."""
        findings = tuple(f for f in self.findings if f.rule != CAPPED)
        return replace(self, entries=(*self.entries, *self.capped), capped=(), findings=findings)

    @cached_property
    def by_name(self) -> Mapping[str, Entry]:
        return {entry.name: entry for entry in self.entries}

    @cached_property
    def name_ends(self) -> frozenset[str]:
        return name_ends(self.by_name)

    def __getitem__(self, name: str) -> Entry:
        return self.by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data."""
        return sum(e.nbytes for e in self.entries)

    def close(self) -> None:
        for source in self.files:
            source.close()


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes [start, end) of a file and their meaning. `kind` is a word of a small vocabulary (magic, version, count,
    key, type, length, value, name, dims, offset, header, json, padding, tensor, checksum, unknown); `label` names the
    thing; `value` is its decoded content, short."""

    start: int
    end: int
    kind: str
    label: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor's place in a file to be written: bytes [offset, offset + spec.nbytes)."""

    name: str
    spec: Spec
    offset: int


@dataclass(frozen=True)
class Layout:
    """A file to be written: fixed `pieces` (offset, bytes: headers, non-zero padding, trailers), tensor `slots`, total
    `size`. All other bytes are zero. If the format stores checksums, `fixups` is called with `{slot name: crc32}` after
    the data is written and returns further pieces."""

    format: str
    pieces: tuple[tuple[int, bytes], ...]
    slots: tuple[Slot, ...]
    size: int
    notes: tuple[str, ...] = ()  # notes for the caller (how many tensors are page-aligned ...)
    fixups: Callable[[Mapping[str, int]], Sequence[tuple[int, bytes]]] | None = None
