"""Finds the number in a config or a GGUF's keys that the tensors contradict, for messages about tensors that don't fit.

layers      all missing tensors are in layers after the last one that is present, or all leftover tensors are
experts     the same for experts
a size      it is the only symbol in a dimension with another value
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from weighbridge.base.spec import Shape
from weighbridge.models.arch.expand import TensorSlot
from weighbridge.models.arch.family import Family, Sizes
from weighbridge.models.arch.naming import MappingReport

_NUMBER: Final = re.compile(r"(?<=\.)\d{1,6}(?=\.)", re.ASCII)
_MOST: Final = 2  # numbers to report
_DAMAGED: Final = "a file of the model is missing or was changed: wb verify {path}"
_OTHERS: Final = "{where} or the weights may belong to another model: wb arch check {path}"
_STRANGE: Final = (
    "wb arch check {path} shows how each tensor fits; wb slice --drop omits tensors, wb rename renames them, "
    "--arch-file adds your own table"
)


class SizeMismatch(NamedTuple):
    """A key, its declared value, and the value of the tensors."""

    key: str
    declared: int
    actual: int

    def __str__(self) -> str:
        return f"{self.key} is {self.declared:,}, but the tensors have {self.actual:,}"


def advice(family: Family, dialect: str, sizes: Sizes, shapes: Mapping[str, Shape], report: MappingReport, path: str,
           gguf: bool) -> str:  # fmt: skip
    """A hint for tensors that don't fit."""
    likely = mismatches(family, dialect, sizes, shapes, report, gguf).most_common(_MOST)
    where = "the GGUF's keys" if gguf else "config.json"
    if likely:
        return f"{where} may belong to another model: {'; '.join(str(mismatch) for mismatch, _ in likely)}"
    usual = _STRANGE if report.unmapped else _OTHERS if report.misshapen else _DAMAGED
    return usual.format(path=path, where=where)


def mismatches(family: Family, dialect: str, sizes: Sizes, shapes: Mapping[str, Shape], report: MappingReport,
               gguf: bool) -> Counter[SizeMismatch]:  # fmt: skip
    """The sizes that tensors contradict, with the number of these tensors."""
    prefix = family.prefix_of(dialect, shapes, sizes)
    places = family.expansion(dialect, sizes, prefix).places
    out = Counter[SizeMismatch]()
    for index, symbol in family.index.items():
        if (key := _key(family, symbol, gguf)) and (count := sizes.get(symbol)):
            actual = _fewer(index, report, shapes, places, count) or _more(index, report, places, count)
            if actual and actual != count:
                out[SizeMismatch(key, count, actual)] += 1
    right = {
        symbol
        for name, shape in shapes.items()
        if name in places
        for symbol, declared, actual in _dimensions(family, dialect, places[name], shape)
        if declared == actual
    }
    for name, _, shape in report.misshapen:
        for symbol, declared, actual in _dimensions(family, dialect, places[name], shape) if name in places else ():
            if symbol not in right and (key := _key(family, symbol, gguf)):  # else only this tensor is wrong
                out[SizeMismatch(key, declared, actual)] += 1
    return out


def _key(family: Family, symbol: str, gguf: bool) -> str | None:
    """The config key or GGUF key of a size, if its first source is a single key."""
    size = family.sizes.get(symbol)  # none if a mixin has the index and the family doesn't
    sources = () if size is None else (size.gguf if gguf else size.hf)[:1]
    return next((key for key in sources if re.fullmatch(r"[\w.]+", key, re.ASCII)), None)


def _fewer(
    index: str, report: MappingReport, shapes: Mapping[str, Shape], places: Mapping[str, TensorSlot], count: int
) -> int | None:
    """The actual number of values of an index, if all tensors of the last values are missing."""
    missing = [_at(places[name], index) for name in report.missing if name in places]
    present = {n for name in shapes if name in places and (n := _at(places[name], index)) is not None}
    last = max(present, default=-1)
    numbers = [n for n in missing if n is not None]
    only_last = present and numbers and len(numbers) == len(missing) and min(numbers) > last < count - 1
    return last + 1 if only_last else None


def _more(index: str, report: MappingReport, places: Mapping[str, TensorSlot], count: int) -> int | None:
    """The actual number of values of an index, if all leftover tensors have known names with higher numbers."""
    known = {_NUMBER.sub("#", name): place for name, place in places.items()} if report.unmapped else {}
    numbers = []
    for name in report.unmapped:
        place, declared = known.get(_NUMBER.sub("#", name)), [int(n) for n in _NUMBER.findall(name)]
        if place is None or index not in place.indices[: len(place.named)] or len(declared) != len(place.named):
            return None
        numbers.append(declared[place.indices.index(index)])
    return max(numbers) + 1 if numbers and min(numbers) >= count else None


def _at(place: TensorSlot, index: str) -> int | None:
    """The number of an index in a tensor's name."""
    named = place.indices[: len(place.named)]
    return place.named[named.index(index)] if index in named else None


def _dimensions(family: Family, dialect: str, place: TensorSlot, shape: Shape) -> Iterator[tuple[str, int, int]]:
    """The symbols that are a whole dimension, with their declared and actual values."""
    row = family.rows[place.roles[0]]
    dims: list[str] = [*row.shapes.get(dialect, row.shape)]
    if len(place.roles) > 1:
        dims[0] = ""  # joined
    if (row.transposed(dialect) + sum(call.row.transposes for call, _ in place.plan.layouts)) % 2:
        dims[-2:] = dims[:-3:-1]
    stacked = [family.index[i] for i in place.indices[len(place.named) :]]
    if len(place.shape) == len(shape) == len(stacked) + len(dims):
        yield from (x for x in zip([*stacked, *dims], place.shape, shape, strict=True) if x[0] in family.sizes and x[2])
