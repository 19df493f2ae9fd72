"""NumPy's .npy: magic, version, the length of a header, the header (a Python literal, padded), the array's bytes.

    \\x93NUMPY 1 0 [u16: n] {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }    \\n [24 bytes]

A small parser reads the header: the literals of numpy and other writers, without an evaluator. (numpy accepts any other
Python literal too; nobody writes one.) Object arrays are refused, since they are pickles. `<V2` is bfloat16, as MLX
and numpy with ml_dtypes write it; numpy's own void of two bytes is `|V2`. Other types without a name in numpy are
neither read nor silently written. Format: numpy/lib/_format_impl.py (NEP 1), versions 1.0, 2.0, 3.0. Written bytes
equal those of `np.save`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, DType
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.base.limits import DIMS, NPY_HEADER
from weighbridge.base.spec import Spec, c_strides
from weighbridge.base.words import plural
from weighbridge.containers import BUILT_IN
from weighbridge.containers.base import Entry, Finding, Index, Layout, Region, Rule, Severity, Slot
from weighbridge.io.source import Source

NAME: Final = "npy"
SUFFIX: Final = BUILT_IN[NAME].suffix
MAGIC: Final = b"\x93NUMPY"
ALIGN: Final = 64  # numpy pads its header so that the data starts at a multiple of this
RULES: Final = MappingProxyType({"trailing-bytes": Rule(Severity.WARNING, "bytes after the array")})
# Number kinds by their code in `descr`, without the byte order.
_CODES: Final = MappingProxyType(
    {
        "b1": "BOOL", "i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64", "u1": "U8", "u2": "U16", "u4": "U32",
        "u8": "U64", "f2": "F16", "f4": "F32", "f8": "F64", "c8": "C64", "c16": "C128",
    }
)  # fmt: skip
_BFLOAT16: Final = "<V2"
_NAMES: Final = MappingProxyType({name: code for code, name in _CODES.items()})
# version -> bytes of the header's length, its encoding
_VERSIONS: Final = MappingProxyType({(1, 0): (2, "latin-1"), (2, 0): (4, "latin-1"), (3, 0): (4, "utf-8")})
# Space that numpy leaves in the header for the first dimension to grow.
_GROWTH: Final = 21


class NpyHeader(NamedTuple):
    """The parsed header; the data is bytes [start, end) of its source. `order` is "<" if it doesn't matter.
    `strides`: those of an array in Fortran order, in elements; None in C order."""

    spec: Spec
    order: str
    start: int
    end: int
    version: tuple[int, int]
    text: str
    strides: tuple[int, ...] | None = None

    def entry(self, name: str, base: int = 0, file: int = 0) -> Entry:
        """The array as a tensor, if the header begins at byte `base` of a file."""
        return Entry(name, self.spec.dtype, self.spec.shape, base + self.start, self.spec.nbytes, file, self.strides)


def parse(source: Source) -> Index:
    """The one array of a file, named after it. FormatError, UnsupportedError, or RefusedError for object arrays."""
    header = read_header(source)
    path = PurePath(source.name)
    name = path.stem if path.suffix.lower() == SUFFIX else "array"
    findings = []
    if header.end < source.size:
        findings.append(
            Finding(
                "npy/trailing-bytes",
                RULES["trailing-bytes"].severity,
                f"{source.size - header.end} bytes follow the array",
                source.name,
                header.end,
            )
        )
    return Index(
        NAME, (source,), (header.entry(name),), data_start=(header.start,), alignment=ALIGN, byte_order=header.order,
        version=header.version[0], findings=tuple(findings),
    )  # fmt: skip


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named."""
    try:
        header = read_header(source)
    except (FormatError, UnsupportedError, RefusedError):
        magic = len(MAGIC) if source.head(len(MAGIC)) == MAGIC else 0
        named = [Region(0, magic, "magic", "NUMPY")] if magic else []
        return [*named, Region(magic, source.size, "unknown")] if source.size > magic else named
    data = [Region(header.start, header.end, "tensor", "array", str(header.spec))] if header.spec.nbytes else []
    after = [Region(header.end, source.size, "unknown")] if header.end < source.size else []
    return [*header_regions(header, 0), *data, *after]


def header_regions(header: NpyHeader, base: int) -> list[Region]:
    """The parts of a header that begins at byte `base` of a file."""
    width = _VERSIONS[header.version][0]
    text, start = base + 8 + width, base + header.start
    body = text + len(header.text.rstrip().encode(_VERSIONS[header.version][1]))
    version = ".".join(map(str, header.version))
    named = [
        Region(base, base + 6, "magic", "NUMPY"),
        Region(base + 6, base + 8, "version", "version", version),
        Region(base + 8, text, "length", "header length", str(start - text)),
        Region(text, body, "header", "array description", header.text.strip()),
    ]
    return [*named, Region(body, start, "padding", "spaces and a newline")] if body < start else named


# ---- reading --------------------------------------------------------------------------------------------------


def read_header(source: Source) -> NpyHeader:
    """The header at the start of `source` (a file, or a member of a zip); the data is complete."""
    version, start, text = _text(source)
    fields = _fields(text, source.name)
    dtype, order = _dtype(fields["descr"], source.name)
    shape, fortran = fields["shape"], fields["fortran_order"]
    if not isinstance(shape, tuple) or not all(type(n) is int for n in shape):
        raise FormatError("the shape is not a tuple of numbers", path=source.name, field="shape",
                          found=repr(shape)[:60])  # fmt: skip
    if len(shape) > DIMS or any(n >= 2**63 for n in shape):
        raise FormatError("the shape is impossible", path=source.name, field="shape", found=repr(shape)[:60])
    if not isinstance(fortran, bool):
        raise FormatError("fortran_order is not True or False", path=source.name, field="fortran_order",
                          found=repr(fortran))  # fmt: skip
    # If at most one axis is longer than 1, both orders are the same bytes.
    in_columns = fortran and 0 not in shape and sum(n > 1 for n in shape) > 1
    spec = Spec(shape, dtype)
    if spec.nbytes > source.size - start:
        raise FormatError(
            "the file is cut off", path=source.name, offset=source.size, field="array",
            expected=f"{spec.nbytes} bytes of data", found=source.size - start, hint="download or copy it again",
        )  # fmt: skip
    strides = c_strides(shape[::-1])[::-1] if in_columns else None
    return NpyHeader(spec, order, start, start + spec.nbytes, version, text, strides)


def objects_at(source: Source) -> int | None:
    """The offset of an object array's pickle; None for an array of plain numbers, text or records of them. An
    unknown type counts as objects: numpy accepts many spellings."""
    _, start, text = _text(source)
    return None if _is_plain(_fields(text, source.name)["descr"]) else start


# Bool, numbers, complex, bytes, text, void, dates: `descr` as numpy writes it.
_PLAIN: Final = re.compile(r"[<>|=]?(?:\?|[bBhHiIlLqQefdgFDG]|[biufcSUVa]\d+|[mM]8(?:\[\w{1,12}(?:/\d+)?\])?)")


def _is_plain(descr: object) -> bool:
    """Whether a `descr` names no objects: one type, or fields of (name, type) or (name, type, shape)."""
    if isinstance(descr, str):
        return _PLAIN.fullmatch(descr) is not None
    if isinstance(descr, tuple) and len(descr) == 2:  # (type, shape): a sub-array
        dims = descr[1] if isinstance(descr[1], tuple) else (descr[1],)  # a list would mean fields instead of a type
        return _is_plain(descr[0]) and all(isinstance(n, int) for n in dims)
    fields = descr if isinstance(descr, list) else None
    return fields is not None and all(isinstance(f, tuple) and len(f) in (2, 3) and _is_plain(f[1]) for f in fields)


def _text(source: Source) -> tuple[tuple[int, int], int, str]:
    head = source.head(12)
    if head[:6] != MAGIC:
        raise FormatError("not a NumPy array", path=source.name, offset=0, expected=MAGIC, found=head[:6])
    version = (head[6], head[7]) if len(head) >= 8 else (0, 0)
    if version not in _VERSIONS:
        raise UnsupportedError(f"{source.name}: unknown .npy version {version[0]}.{version[1]}",
                               hint="known: 1.0, 2.0, 3.0; save it again with a current numpy")  # fmt: skip
    width, encoding = _VERSIONS[version]
    length, start = int.from_bytes(head[8 : 8 + width], "little"), 8 + width
    if length > min(NPY_HEADER, source.size - start):
        limit = f"at most {min(NPY_HEADER, max(source.size - start, 0))}"
        raise FormatError("the header is too long", path=source.name, offset=8, expected=limit, found=length)
    try:
        return version, start + length, source.read(start, length).decode(encoding)
    except UnicodeDecodeError as error:
        raise FormatError("the header is not UTF-8", path=source.name, offset=start + error.start) from None


_TOKEN: Final = re.compile(
    r"""[ \t\r\n\f]*(?:('[^'\\\n]*'|"[^"\\\n]*")|(0|[1-9]\d*)L?\b|(True|False|None)\b|([\[\](){},:]))"""
)
_END: Final = re.compile(r"[ \t\r\n\f]*\Z")
_CLOSE: Final = MappingProxyType({"(": ")", "[": "]", "{": "}"})
_NESTING: Final = 8
_DIGITS: Final = 20  # of 2^64
_WORDS: Final = MappingProxyType({"True": True, "False": False, "None": None})


class _Literal:
    """Reads a Python literal of dicts, tuples, lists, strings without escapes, natural numbers, True, False, None.
    (`3L` is Python 2's; real files have it.)"""

    def __init__(self, text: str, path: str) -> None:
        self.text, self.path, self.at = text, path, 0

    def fail(self) -> FormatError:
        return FormatError(
            "the header can't be read", path=self.path, field="header",
            expected="{'descr': ..., 'fortran_order': ..., 'shape': ...}",
            found=repr(self.text[self.at : self.at + 20]),
        )  # fmt: skip

    def token(self) -> tuple[str | None, str | None, str | None, str | None]:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            raise self.fail()
        self.at = match.end()
        text, number, word, mark = match.groups()
        return text, number, word, mark

    def peek(self) -> str | None:
        """The next character, if it is punctuation."""
        match = _TOKEN.match(self.text, self.at)
        return match[4] if match else None

    def value(self, depth: int = 0) -> Any:
        text, number, word, mark = self.token()
        if text is not None:
            return text[1:-1]
        if number is not None:
            if len(number) > _DIGITS:
                raise self.fail()
            return int(number)
        if word is not None:
            return _WORDS[word]
        if mark not in _CLOSE or depth == _NESTING:
            raise self.fail()
        return self._several(mark, depth) if mark is not None else None

    def _several(self, opening: str, depth: int) -> Any:
        items: list[Any] = []
        keys: list[Any] = []
        comma = False
        while self.peek() != _CLOSE[opening]:
            if opening == "{":
                keys.append(self.value(depth + 1))
                if self.token()[3] != ":":
                    raise self.fail()
            items.append(self.value(depth + 1))
            comma = self.peek() == ","
            if not comma and self.peek() != _CLOSE[opening]:
                raise self.fail()
            if comma:
                self.token()
        self.token()
        if opening == "{":
            if not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
                raise self.fail()
            return dict(zip(keys, items, strict=True))
        if opening == "(":
            return tuple(items) if comma or len(items) != 1 else items[0]
        return items

    def document(self) -> Any:
        value = self.value()
        if not _END.match(self.text, self.at):
            raise self.fail()
        return value


_FIELDS: Final = frozenset({"descr", "fortran_order", "shape"})


def _fields(text: str, path: str) -> dict[str, Any]:
    value = _Literal(text, path).document()
    if not isinstance(value, dict) or value.keys() != _FIELDS:
        raise FormatError("the header has the wrong fields", path=path, field="header",
                          expected="a dict of descr, fortran_order and shape",
                          found=sorted(value) if isinstance(value, dict) else type(value).__name__)  # fmt: skip
    return value


_DESCR: Final = re.compile(r"([<>|=]?)([?a-zA-Z])(\d*)(\[.*\])?")


def _dtype(descr: object, path: str) -> tuple[DType, str]:
    """The type and byte order of a `descr`."""
    if isinstance(descr, list | tuple):
        raise UnsupportedError(f"{path}: an array of records has no single number type",
                               hint="save each field as a separate array")  # fmt: skip
    match = _DESCR.fullmatch(descr) if isinstance(descr, str) else None
    if match is None:
        raise FormatError("the type can't be read", path=path, field="descr", expected="like '<f4'", found=repr(descr))
    order, kind, size, _ = match.groups()
    if kind == "O":
        raise RefusedError(
            f"{path}: an object array is a pickle, which runs code when it is loaded",
            hint="save the numbers themselves as plain arrays",
        )
    name = "BF16" if descr == _BFLOAT16 else _CODES.get("b1" if kind == "?" else kind + size)
    if name is None:
        hint = "numbers of 1 to 8 bytes, complex and bool can be read"
        if kind == "V" or size == "1":
            hint = "perhaps float8 of ml_dtypes, whose name numpy loses: save array.astype('float32') instead"
        raise UnsupportedError(f"{path}: arrays of type {descr!r} have an unknown number type", hint=hint)
    dtype = BY_NAME[name]
    # "=" means the reader's byte order, which no file should have. "|" is for single bytes.
    if (order in ("=", "|", "")) and dtype.word > 1:
        raise FormatError("the type has no byte order", path=path, field="descr", expected="< or >", found=repr(descr))
    return dtype, ">" if order == ">" and dtype.word > 1 else "<"


# ---- writing --------------------------------------------------------------------------------------------------


def layout(
    tensors: Sequence[tuple[str, Spec]], metadata: Mapping[str, Any] | None = None, *, raw: bool = False
) -> Layout:
    """A file of one tensor. Types without a NumPy name are refused, or with `raw` written as bytes of their size
    (`<V2`), which the reader has to `.view` as the right type. The format stores neither a name nor metadata."""
    if len(tensors) != 1:
        raise UsageError(f"a .npy file holds one array, not {len(tensors)}", hint="write a .npz or .safetensors")
    (name, spec) = tensors[0]
    head = header_bytes(name, spec, raw=raw)
    return Layout(NAME, ((0, head),), (Slot(name, spec, len(head)),), len(head) + spec.nbytes, no_metadata(metadata))


def no_metadata(metadata: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The note about lost metadata."""
    return (f"the format has no metadata: {plural(len(metadata), 'key', 'are')} left out",) if metadata else ()


def header_bytes(name: str, spec: Spec, *, raw: bool = False) -> bytes:
    """A header as `np.save` writes it, a multiple of 64 bytes long."""
    shape = f"({spec.shape[0]},)" if len(spec.shape) == 1 else f"({', '.join(map(str, spec.shape))})"
    code, size = _NAMES.get(spec.dtype.name), spec.dtype.size
    if code is None:
        if not raw or not spec.dtype.plain:
            raise UnsupportedError(f"tensor {name!r} is {spec.dtype}, which NumPy's files can't name",
                                   hint="cast it: --dtype f32")  # fmt: skip
        code = f"V{size}"
    text = f"{{'descr': '{'|' if size == 1 else '<'}{code}', 'fortran_order': False, 'shape': {shape}, }}"
    if spec.shape:
        text += " " * (_GROWTH - len(str(spec.shape[0])))
    # Version 1.0 always: 64 dimensions of 20 digits fit its 16-bit length. numpy pads by 1 to 64 spaces, never by 0.
    start = 10
    length = ((start + len(text) + 1) // ALIGN + 1) * ALIGN - start
    return MAGIC + b"\1\0" + length.to_bytes(2, "little") + text.ljust(length - 1).encode("latin-1") + b"\n"


def check_names(names: Iterable[str]) -> None:
    """UsageError if two names are equal."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UsageError(f"two tensors are called {name!r}")
        seen.add(name)
