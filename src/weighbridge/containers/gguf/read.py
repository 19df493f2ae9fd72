"""Walks a GGUF's header: every field once, front to back, with its offset. Arrays are skipped (strings natively) and
become `LazyArray`s, which decode their elements on access.

Layout (docs/gguf.md; llama.cpp b11549 gguf.cpp `gguf_init_from_reader`), numbers in the file's byte order:

    "GGUF"  version u32  n_tensors u64  n_kv u64
    n_kv      x { key string, type u32, value }
    n_tensors x { name string, n_dims u32, dims u64 x n_dims (fastest first), type u32, offset u64 in the data }
    padding to the alignment, then tensor data

Version 1 has u32 for the counts, the lengths and the dims; version 2 is version 3 without big-endian files.

A strict walk raises at the first field that can't be read without guessing. A lenient walk records it and continues as
far as bytes have a meaning, so that a damaged file can still be inspected.
"""

from __future__ import annotations

import math
import re
from dataclasses import field
from typing import Any, Final, NamedTuple

from weighbridge.base import limits
from weighbridge.base.dtypes import TABLE, DType, by_ggml
from weighbridge.base.errors import FormatError
from weighbridge.base.native import skip_strings
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.formats import GGUF_MAGIC
from weighbridge.containers.gguf.rules import RULES, Collector, GGUFError
from weighbridge.containers.gguf.values import KV, NAMES, SCALARS, SIZES, LazyArray, Metadata, array_of, text
from weighbridge.io.cursor import Cursor
from weighbridge.io.source import Source

MAGIC: Final = GGUF_MAGIC
VERSION: Final = 3
DEFAULT_ALIGNMENT: Final = 32
ALIGNMENT_KEY: Final = "general.alignment"
KEY_MAX: Final = 0xFFFF  # the specification's bound; llama.cpp has none below 1 GiB
I64_MAX: Final = (1 << 63) - 1

_KEY: Final = re.compile(rb"[a-z0-9_]+(\.[a-z0-9_]+)*")
_HYPHENED: Final = re.compile(rb"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Arrays up to this size keep their bytes, which are in memory anyway when they are walked.
_KEEP: Final = 1 << 16

# Types that no longer exist upstream (ggml.h keeps the ids free).
_REMOVED: Final = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}  # fmt: skip
# Types of Microsoft's BitNet (its ggml.h), which took ids that upstream had used and removed.
_BITNET: Final = {36: "I2_S", 37: "I8_S", 38: "TL1"}
# Types of the fork ik_llama.cpp (its ggml.h) that are met in the wild.
_IK_LLAMA: Final = {
    98: "Q8_0_X4", 99: "Q8_1_X4", 133: "Q6_0", 134: "IQ1_BN", 135: "IQ2_BN", 136: "Q8_K64", 137: "IQ2_K",
    138: "IQ3_K", 139: "IQ4_K", 140: "IQ5_K", 141: "IQ6_K", 142: "IQ2_TN", 143: "IQ1_TN", 144: "IQ4_KS",
    145: "IQ2_KS", 146: "IQ4_KSS", 147: "Q8_K16", 148: "Q8_K32", 149: "Q8_KR8", 150: "Q8_K128", 151: "Q8_KV",
    152: "IQ5_KS", 153: "IQ2_KT", 154: "IQ3_KT", 155: "IQ4_KT", 156: "IQ3_KS", 157: "IQ2_KL", 158: "IQ1_KT",
    202: "Q4_0_R8", 206: "Q5_0_R4", 208: "Q8_0_R8", 210: "Q2_K_R4", 211: "Q3_K_R4", 212: "Q4_K_R4", 213: "Q5_K_R4",
    214: "Q6_K_R4", 216: "IQ2_XXS_R4", 217: "IQ2_XS_R4", 218: "IQ3_XXS_R4", 219: "IQ1_S_R4", 220: "IQ4_NL_R4",
    221: "IQ3_S_R4", 222: "IQ2_S_R4", 223: "IQ4_XS_R8", 229: "IQ1_M_R4", 230: "BF16_R16", 233: "Q6_0_R4",
    335: "IQ2_BN_R4", 337: "IQ2_K_R4", 338: "IQ3_K_R4", 339: "IQ4_K_R4", 340: "IQ5_K_R4", 344: "IQ4_KS_R4",
    352: "IQ5_KS_R4", 397: "Q8_K_R16", 398: "Q8_KV_R8", 399: "Q8_K_R8",
}  # fmt: skip


class KeyValue(NamedTuple):
    """A key with its value, and the offsets of its parts."""

    key: str
    kv: KV
    start: int
    type_at: int
    value_at: int
    end: int


class TensorInfo(NamedTuple):
    """A tensor's directory entry, and the offsets of its parts. `dtype` is None if it is unknown or contradicts the
    shape."""

    name: str
    dims: tuple[int, ...]  # fastest first, as stored
    type_id: int
    offset: int  # from the start of the data
    dtype: DType | None
    nbytes: int
    start: int
    dims_at: int  # of the number of dimensions
    end: int


@dataclass
class GgufHeader:
    """The result of a walk. `broken` is set if a lenient walk had to stop."""

    source: Source
    order: str = "<"
    version: int = VERSION
    n_tensors: int = 0
    n_kv: int = 0
    pairs: list[KeyValue] = field(default_factory=list)
    infos: list[TensorInfo] = field(default_factory=list)
    end: int = 0  # of what was read completely
    alignment: int = DEFAULT_ALIGNMENT
    broken: FormatError | None = None

    @property
    def width(self) -> int:
        """Bytes of a count, a length or a dim."""
        return 4 if self.version == 1 else 8

    @property
    def data_start(self) -> int:
        """The offset of the tensor data; beyond the end if the header is truncated."""
        start = padded(self.end, self.alignment)
        return max(start, self.source.size) if self.broken else start

    @property
    def metadata(self) -> Metadata:
        kvs: dict[str, KV] = {}
        for pair in self.pairs:
            kvs.setdefault(pair.key, pair.kv)  # as in llama.cpp's lookup, the first one wins
        return Metadata(kvs)


def padded(size: int, alignment: int) -> int:
    """`size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


def peek(source: Source) -> GgufHeader:
    """The key-values up to the first list of strings, at most SNIFF_KEYS, of a file that begins with the magic;
    `broken` if it is damaged before that."""
    header = GgufHeader(source)
    reader = _HeaderWalk(source, header, Collector(source.name, strict=False), brief=True)
    try:
        reader.preamble()
        reader.body()
    except FormatError as error:
        header.broken = error
    return header


def walk(source: Source, notes: Collector) -> GgufHeader:
    """The header of a GGUF. GGUFError if `notes` is strict and the header can't be read, or if the file isn't a GGUF
    at all."""
    header = GgufHeader(source)
    reader = _HeaderWalk(source, header, notes)
    reader.preamble()
    try:
        reader.body()
    except FormatError as error:
        if notes.strict:
            raise
        header.broken = error
        rule = getattr(error, "rule", "gguf/truncated-header")
        keys, tensors = f"{len(header.pairs)} of {header.n_kv}", f"{len(header.infos)} of {header.n_tensors}"
        detail = f"{error.reason}; {keys} keys and {tensors} tensor entries were read"
        notes.note(rule, detail, offset=reader.cursor.offset)
    return header


#: Usual bytes of a tensor's entry (a name of 22, two dimensions), and of the keys after a vocabulary (a chat template).
_INFO: Final = 62
_LATER_KEYS: Final = 16 << 10
#: Entries whose average length is taken for that of all.
_MEASURED: Final = 64


class _HeaderWalk:
    def __init__(self, source: Source, header: GgufHeader, notes: Collector, *, brief: bool = False) -> None:
        self.cursor, self.header, self.notes, self.brief = Cursor(source), header, notes, brief
        self.keys: set[str] = set()
        self.names: set[str] = set()
        self.vocabulary = 0  # the offset of the first list that is longer than a chunk

    # -- preamble ------------------------------------------------------------------------------------------------

    def preamble(self) -> None:
        """Magic and version; they decide byte order and the width of all lengths."""
        head, cursor, notes = self.header, self.cursor, self.notes
        magic = cursor.source.head(4)
        if magic != MAGIC:
            notes.stop("gguf/magic", f"found {magic!r}", offset=0)
        cursor.offset = 4
        try:
            version = cursor.number("I", "version")
        except FormatError as error:
            raise _truncated(error) from None
        # gguf.cpp: a version whose low 16 bits are zero was written in the other byte order.
        if version & 0xFFFF == 0:
            head.order, cursor.order = ">", ">"
            version = int.from_bytes(version.to_bytes(4, "little"), "big")
        head.version, head.end = version, cursor.offset
        self.wide = "I" if version == 1 else "Q"  # a count, a length or a dim
        if not 1 <= version <= VERSION:
            notes.stop("gguf/version", f"found {version}", offset=4)
        if head.order == ">":
            notes.note("gguf/big-endian", offset=4)
        if version < VERSION:
            notes.note(f"gguf/version-{version}", offset=4)

    # -- body ----------------------------------------------------------------------------------------------------

    def body(self) -> None:
        head, cursor = self.header, self.cursor
        try:
            head.n_tensors, head.n_kv = cursor.numbers(self.wide * 2, "counts")
            head.end = cursor.offset
            # The smallest key-value: empty key, type, one byte. The smallest tensor: empty name, no dims, type, offset.
            least = head.n_kv * (head.width + 5) + head.n_tensors * (head.width + 16)
            if least > cursor.left:
                detail = f"{head.n_kv} keys and {head.n_tensors} tensors take {least} bytes or more"
                self.notes.fault("gguf/counts", f"{detail}, {cursor.left} are left", offset=8)
            for number in range(min(self.header.n_kv, limits.SNIFF_KEYS) if self.brief else self.header.n_kv):
                self._pair(number)
                self.header.end = self.cursor.offset
                if self.brief and self.header.pairs[-1].kv.type in ("arr[str]", "arr[arr]"):
                    return  # such lists are long
            if self.brief:
                return
            self._alignment()
            start = cursor.offset
            for number in range(self.header.n_tensors):
                if number == _MEASURED:
                    entries = (cursor.offset - start) * head.n_tensors // number
                    cursor.source.expect_header(start + entries + entries // 10 + cursor.chunk)
                self._info(number)
                self.header.end = self.cursor.offset
        except GGUFError:
            raise
        except FormatError as error:
            raise _truncated(error) from None

    def _string(self, label: str) -> bytes:
        length = self.cursor.number(self.wide, f"length of {label}")
        if self.brief and length > limits.SNIFF_STRING:
            self.cursor.skip(length, label)
            return b""
        if length > limits.GGUF_STRING:
            self.cursor.need(length, label)
            self.notes.note("gguf/string-huge", label, offset=self.cursor.offset)
        return self.cursor.take(length, label)

    def _text(self, label: str) -> str:
        raw = self._string(label)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            at = self.cursor.offset - len(raw) + error.start
            self.notes.note("gguf/utf8", f"{label}, at its byte {error.start}", offset=at)
            return text(raw)

    # -- keys and values -----------------------------------------------------------------------------------------

    def _pair(self, number: int) -> None:
        cursor, start = self.cursor, self.cursor.offset
        raw = self._string(f"key {number}")
        key = text(raw)
        label = repr(key[:80])  # a key may be a gigabyte long
        if not raw:
            self.notes.note("gguf/key-empty", offset=start)
        elif len(raw) > KEY_MAX:
            self.notes.note("gguf/key-length", f"{len(raw)} bytes, {key[:40]!r}...", offset=start)
        if raw and not _KEY.fullmatch(raw):
            rule = "gguf/key-hyphen" if _HYPHENED.fullmatch(raw) else "gguf/key-charset"
            self.notes.note(rule, label, offset=start)
        type_at = cursor.offset
        kind = self._kind(cursor.number("I", f"type of {label}"), label, type_at)
        value_at = cursor.offset
        kv = self._value(kind, label)
        if key in self.keys:
            self.notes.fault("gguf/key-duplicate", label, offset=start)
        self.keys.add(key)
        self.header.pairs.append(KeyValue(key, kv, start, type_at, value_at, cursor.offset))

    def _kind(self, number: int, label: str, at: int) -> str:
        if number >= len(NAMES):
            self.notes.stop("gguf/value-type", f"{label} has type {number}, known are 0 to {len(NAMES) - 1}", offset=at)
        return NAMES[number]

    def _value(self, kind: str, label: str) -> KV:
        if kind == "str":
            return KV(kind, self._text(f"value of {label}"))
        if kind == "arr":
            array = self._array(label, 1)
            return KV(f"arr[{array.type}]", array)
        at = self.cursor.offset
        if kind == "bool":
            byte = self.cursor.number("B", label)
            if byte > 1:
                self.notes.note("gguf/bool", f"{label} is {byte}", offset=at)
            return KV(kind, byte != 0)
        return KV(kind, self.cursor.number(SCALARS[kind], label))

    def _array(self, label: str, depth: int) -> LazyArray:
        cursor, head, at = self.cursor, self.header, self.cursor.offset
        number, count = cursor.numbers("I" + self.wide, f"array {label}")
        kind = self._kind(number, label, at)
        if count > limits.GGUF_ARRAY:
            self.notes.note("gguf/array-huge", f"{label} has {plural(count, 'element')}", offset=at)
        start = cursor.offset
        if self.brief and kind in ("str", "arr"):  # 260,000 tokens don't help to recognise the file
            return LazyArray(kind, count, cursor.source, start, 0, order=head.order, width=head.width, raw=None)
        cursor.need(count * (SIZES.get(kind) or head.width + (4 if kind == "arr" else 0)), f"array {label}")
        if kind == "str":
            self._strings(count, label)
        elif kind == "arr":
            self.notes.note("gguf/array-nested", label, offset=at)
            if depth >= limits.GGUF_NESTING:
                self.notes.stop("gguf/array-depth", f"{label}, more than {limits.GGUF_NESTING} levels", offset=at)
            kind = array_of({self._array(label, depth + 1).type for _ in range(count)})
        else:
            cursor.skip(count * SIZES[kind], label)
        size, raw = cursor.offset - start, None
        if size <= _KEEP and (raw := cursor.recall(start, start + size)) is None:
            raw = cursor.source.read(start, size)
        return LazyArray(kind, count, cursor.source, start, size, order=head.order, width=head.width, raw=raw)

    def _strings(self, count: int, label: str) -> None:
        """Skips `count` strings: natively those that are complete in the buffer, then the one across its end."""
        cursor, width, done = self.cursor, self.header.width, 0
        start = cursor.offset
        while done < count:
            at = cursor.fill(width, f"element {done} of {label}")
            view = memoryview(cursor.buffer)[: cursor.filled]
            end, walked = skip_strings(view, at, count - done, width, self.header.order == ">")
            cursor.offset += end - at
            done += walked
            if 0 < done < count:
                self._expect(start, done, count)
            if done < count:
                length = cursor.number(self.wide, f"length of element {done} of {label}")
                cursor.skip(length, f"element {done} of {label}")
                if length > limits.GGUF_STRING:
                    self.notes.note("gguf/string-huge", f"element {done} of {label}", offset=cursor.offset - length)
                done += 1

    def _expect(self, start: int, done: int, count: int) -> None:
        """Announces the header's end by the first `done` of `count` strings, which begin at `start`. A vocabulary's
        first list is followed by a number for each token, its last one by the tensors."""
        cursor = self.cursor
        rest = (cursor.offset - start) * (count - done) // done
        self.vocabulary = self.vocabulary or start
        after = 4 * count if self.vocabulary == start else self.header.n_tensors * _INFO + _LATER_KEYS
        cursor.source.expect_header(cursor.offset + rest + rest // 10 + after + cursor.chunk)

    def _alignment(self) -> None:
        """`general.alignment`, checked against the specification and llama.cpp."""
        pair = next((p for p in self.header.pairs if p.key == ALIGNMENT_KEY), None)
        if pair is None:
            return
        kv, at, notes = pair.kv, pair.value_at, self.notes
        if kv.type != "u32":
            notes.note("gguf/alignment-type", f"it is {kv.type}", offset=at)
        if not isinstance(kv.value, int) or isinstance(kv.value, bool) or kv.value <= 0:
            notes.fault("gguf/alignment-zero", f"it is {value_text(kv)}", offset=at)
            return
        self.header.alignment = kv.value
        if kv.value % 8:
            notes.note("gguf/alignment-multiple", f"it is {kv.value}", offset=at)
        if kv.value & (kv.value - 1):
            notes.note("gguf/alignment-power", f"it is {kv.value}", offset=at)

    # -- tensor directory ----------------------------------------------------------------------------------------

    def _info(self, number: int) -> None:
        cursor, start = self.cursor, self.cursor.offset
        name = self._text(f"name of tensor {number}")
        size = self.cursor.offset - start - self.header.width
        if size > limits.GGUF_NAME:
            rule = "gguf/name-64" if size == limits.GGUF_NAME + 1 else "gguf/name-length"
            self.notes.note(rule, f"{size} bytes", offset=start, tensor=name[:80])
        elif not name:
            self.notes.note("gguf/name-empty", f"number {number}", offset=start)
        if _CONTROL.search(name):
            self.notes.note("gguf/name-control", offset=start, tensor=name[:80])
        dims_at = cursor.offset
        rank = cursor.number("I", f"number of dimensions of {name}")
        if rank > limits.DIMS:
            self.notes.stop("gguf/dims-limit", f"{rank}", offset=dims_at, tensor=name)
        dims = cursor.numbers(self.wide * rank, f"dimensions of {name}")
        if rank > limits.GGUF_DIMS:
            self.notes.note("gguf/dims-count", f"{rank}", offset=dims_at, tensor=name)
        type_id, offset = cursor.numbers("IQ", f"type and offset of {name}")
        dtype, nbytes = self._size(name, dims, type_id, cursor.offset - 12)
        if name in self.names:
            self.notes.fault("gguf/name-duplicate", offset=start, tensor=name)
        self.names.add(name)
        self.header.infos.append(TensorInfo(name, dims, type_id, offset, dtype, nbytes, start, dims_at, cursor.offset))

    def _size(self, name: str, dims: tuple[int, ...], type_id: int, at: int) -> tuple[DType | None, int]:
        """The dtype and byte size of a tensor; (None, 0) if they are unknown."""
        dtype = by_ggml(type_id)
        if dtype is None:
            self.notes.fault("gguf/tensor-type", _unknown_type(type_id), offset=at, tensor=name)
            return None, 0
        row = dims[0] if dims else 1
        if row % dtype.block:
            detail = f"{row} elements a row, {dtype.block} a block of {dtype}"
            self.notes.fault("gguf/row-blocks", detail, offset=at, tensor=name)
            return None, 0
        nbytes = math.prod(dims) // dtype.block * dtype.size
        if _overflows(dims):
            self.notes.note("gguf/dims-overflow", f"{list(dims)} of {dtype}", offset=at, tensor=name)
        return dtype, nbytes


def _overflows(dims: tuple[int, ...]) -> bool:
    """Whether gguf.cpp refuses dims: a dimension or the number of elements (before a zero ends the product) exceeds an
    i64. (Its checks on bytes amount to one on the sum of all padded sizes, see gguf/checks.)"""
    product = 1
    for n in dims:
        if n > I64_MAX or (n > 1 and I64_MAX // n < product):
            return True
        product *= n
    return False


def _unknown_type(type_id: int) -> str:
    if type_id in _BITNET:
        return (
            f"{type_id} is {_BITNET[type_id]}, which only the fork bitnet.cpp can read, or "
            f"{_REMOVED[type_id]}, which was removed from llama.cpp"
        )
    if type_id in _REMOVED:
        return f"{type_id} ({_REMOVED[type_id]}) was removed from llama.cpp; the file must be made again"
    if type_id in _IK_LLAMA:
        return f"{type_id} is {_IK_LLAMA[type_id]}, which only the fork ik_llama.cpp can read"
    return f"{type_id}, known are 0 to {max(t.ggml or 0 for t in TABLE)}"


def _truncated(error: FormatError) -> GGUFError:
    """The error of a header that ends too early, with its rule."""
    return GGUFError(
        "gguf/truncated-header", error.reason, path=error.path, offset=error.offset, field=error.field,
        expected=error.expected, found=error.found, hint=RULES["gguf/truncated-header"].hint,
    )  # fmt: skip


def value_text(kv: KV, width: int = 80) -> str:
    """A value, abbreviated."""
    value: Any = kv.value
    if isinstance(value, LazyArray):
        return repr(value)[1:-1][:width]
    shown = repr(value[:width]) if isinstance(value, str) else repr(value)
    return shown[:width]
