"""Selects and sorts the tensors of a report: `--filter 'size>1MB'`, name globs, `--sort size:desc`, `--limit`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol

from weighbridge.base.dtypes import dtype
from weighbridge.base.errors import UsageError


class TensorRow(Protocol):
    """The fields of a row that a selection needs."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def parameters(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def file(self) -> str: ...


_Field = Callable[[Any], Any]

#: Field name in a filter or after --sort -> its value.
FIELDS: Final[dict[str, _Field]] = {
    "name": lambda r: r.name,
    "dtype": lambda r: r.dtype,
    "size": lambda r: r.nbytes,
    "bytes": lambda r: r.nbytes,
    "params": lambda r: r.parameters,
    "rank": lambda r: len(r.shape),
    "rows": lambda r: r.shape[0] if r.shape else 1,
    "offset": lambda r: r.offset,
    "file": lambda r: r.file,
}
_TEXT: Final = frozenset({"name", "dtype", "file"})
SORTS: Final = tuple(FIELDS)

_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge, "<=": operator.le, "!=": operator.ne, "==": operator.eq, ">": operator.gt, "<": operator.lt,
    "=": operator.eq, "~": lambda value, pattern: _matches(value, pattern),
}  # fmt: skip
_AND: Final = re.compile(r"\s+and\s+|\s*&&\s*")
_FILTER: Final = re.compile(r"\s*([a-z]+)\s*(>=|<=|!=|==|>|<|=|~)\s*(.+?)\s*")
# Decimal as in `5GB` = 5 * 10^9; with an i binary. Counts may be written 7B, 100K too.
_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtb]?)(i?)b?", re.IGNORECASE)
_SCALE: Final = {"": 0, "k": 1, "m": 2, "g": 3, "b": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class Selection:
    """The caller's selection. Empty: all rows in file order."""

    filters: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    sort: str | None = None
    limit: int | None = None

    def __bool__(self) -> bool:
        return any((self.filters, self.include, self.exclude, self.sort, self.limit is not None))


def select(rows: Iterable[TensorRow], selection: Selection) -> list[Any]:
    """The matching rows, sorted and limited. UsageError for an invalid filter or sort. Rows are consumed one at a
    time, and those that don't match are dropped."""
    tests = [_test(part) for text in selection.filters for part in _AND.split(text)]
    kept = [r for r in rows if named(r.name, selection) and all(test(r) for test in tests)]
    if selection.sort:
        key, down = _sort(selection.sort)
        kept.sort(key=lambda r: (key(r), r.name), reverse=down)
    return kept if selection.limit is None else kept[: selection.limit]


def named(name: str, selection: Selection) -> bool:
    """Whether a name passes the globs."""
    wanted = not selection.include or any(fnmatchcase(name, p) for p in selection.include)
    return wanted and not any(fnmatchcase(name, p) for p in selection.exclude)


def _test(text: str) -> Callable[[TensorRow], bool]:
    match = _FILTER.fullmatch(text)
    if match is None or match[1] not in FIELDS:
        raise UsageError(
            f"{text!r} is not a filter", hint=f"write FIELD OP VALUE, e.g. 'size>1MB'; fields: {', '.join(FIELDS)}"
        )
    word, sign, value = match.groups()
    if word in _TEXT and sign not in ("=", "==", "!=", "~"):
        raise UsageError(f"{word} is text: compare it with =, != or ~ (a part, or a glob)")
    if word not in _TEXT and sign == "~":
        raise UsageError(f"{word} is a number: ~ is for text")
    field, compare = FIELDS[word], _OPERATORS[sign]
    wanted: Any = (_dtype(value, sign) if word == "dtype" else value) if word in _TEXT else _number(value)
    return lambda row: compare(field(row), wanted)


def _matches(value: str, pattern: str) -> bool:
    """A glob matches the whole text, anything else a part of it."""
    return fnmatchcase(value, pattern) if any(c in pattern for c in "*?[") else pattern in value


def _dtype(text: str, sign: str) -> str:
    """A dtype's name; UsageError for an unknown one, unless it is a pattern."""
    return text.upper() if sign == "~" else dtype(text).name


def _number(text: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a number", hint="write it like 4096, 1MB, 1.5GiB or 7B")
    base = 1024 if match[3] else 1000
    scale: int = base ** _SCALE[match[2].lower()]
    return float(match[1]) * scale


def _sort(text: str) -> tuple[_Field, bool]:
    word, _, way = text.partition(":")
    if word not in FIELDS or way not in ("", "asc", "desc"):
        raise UsageError(f"can't sort by {text!r}", hint=f"{', '.join(SORTS)}, each with :asc or :desc")
    return FIELDS[word], way == "desc"
