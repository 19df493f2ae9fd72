"""Selects and sorts the tensors of a report: `--filter 'size>1MB'`, name globs, `--sort size:desc`, `--limit`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol

from weighbridge.base.dtypes import dtype
from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass


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

#: The value of each field of a filter or of --sort.
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
    "=": operator.eq,
    # A glob matches the whole text, anything else a part of it.
    "~": lambda value, text: fnmatchcase(value, text) if any(c in text for c in "*?[") else text in value,
}  # fmt: skip
_AND: Final = re.compile(r"\s+and\s+|\s*&&\s*")
_FILTER: Final = re.compile(r"\s*([a-z]+)\s*(>=|<=|!=|==|>|<|=|~)\s*(.+?)\s*")
# `5GB` is 5 * 10^9 and `5GiB` is binary. Counts may be written 7B or 100K.
_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtb]?)(i?)b?", re.IGNORECASE)
_SCALE: Final = {"": 0, "k": 1, "m": 2, "g": 3, "b": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class Selection:
    """The requested rows. An empty selection has all rows in file order."""

    filters: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    sort: str | None = None
    limit: int | None = None

    def __bool__(self) -> bool:
        return any((self.filters, self.include, self.exclude, self.sort, self.limit is not None))


def select(rows: Iterable[TensorRow], selection: Selection) -> list[Any]:
    """Returns the matching rows, sorted and limited. Raises UsageError for an invalid filter or sort. Rows are consumed
    one at a time, and dropped unless they match."""
    tests = [_parse_filter(part) for text in selection.filters for part in _AND.split(text)]
    selected = [r for r in rows if named(r.name, selection) and all(test(r) for test in tests)]
    if selection.sort:
        field, _, order = selection.sort.partition(":")
        if field not in FIELDS or order not in ("", "asc", "desc"):
            raise UsageError(f"can't sort by {selection.sort!r}", hint=f"{', '.join(SORTS)}, each with :asc or :desc")
        selected.sort(key=lambda r: (FIELDS[field](r), r.name), reverse=order == "desc")
    return selected if selection.limit is None else selected[: selection.limit]


def named(name: str, selection: Selection) -> bool:
    """Returns whether a name passes the globs."""
    included = not selection.include or any(fnmatchcase(name, p) for p in selection.include)
    return included and not any(fnmatchcase(name, p) for p in selection.exclude)


def _parse_filter(text: str) -> Callable[[TensorRow], bool]:
    match = _FILTER.fullmatch(text)
    if match is None or match[1] not in FIELDS:
        raise UsageError(
            f"{text!r} is not a filter", hint=f"write FIELD OP VALUE, e.g. 'size>1MB'; fields: {', '.join(FIELDS)}"
        )
    name, sign, value = match.groups()
    if name in _TEXT and sign not in ("=", "==", "!=", "~"):
        raise UsageError(f"{name} is text: compare it with =, != or ~ (a part, or a glob)")
    if name not in _TEXT and sign == "~":
        raise UsageError(f"{name} is a number: ~ is for text")
    field, compare = FIELDS[name], _OPERATORS[sign]
    operand: Any = value if name in _TEXT else _parse_number(value)
    if name == "dtype":  # patterns need not name a type
        operand = value.upper() if sign == "~" else dtype(value).name
    return lambda row: compare(field(row), operand)


def _parse_number(text: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a number", hint="write it like 4096, 1MB, 1.5GiB or 7B")
    base = 1024 if match[3] else 1000
    scale: int = base ** _SCALE[match[2].lower()]
    return float(match[1]) * scale
