"""Which number of a config, or of a GGUF's keys, the tensors contradict: what a message says beside their names.

layers      all that is missing is of layers behind the last one that is there, or what is left over is
experts     the same of experts
a size      it is the only one in a dimension that is another
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from weighbridge.base.spec import Shape
from weighbridge.models.arch.expand import TensorSlot
from weighbridge.models.arch.family import Family, Sizes
from weighbridge.models.arch.mapping_report import MappingReport

_NUMBER: Final = re.compile(r"(?<=\.)\d{1,6}(?=\.)", re.ASCII)
_MOST: Final = 2  # numbers to report
_DAMAGED: Final = "a file of the model is missing or was changed: wb verify {path}"
_OTHERS: Final = "{where} may be another model's, or the weights are: wb arch check {path}"
_STRANGE: Final = (
    "wb arch check {path} shows how each tensor fits; wb slice --drop leaves tensors out, wb rename changes names, "
    "--arch-file brings a table of your own"
)


class SizeMismatch(NamedTuple):
    """A key, what it says, and what the tensors have."""

    key: str
    declared: int
    found: int

    def __str__(self) -> str:
        return f"{self.key} is {self.declared:,}, by the tensors it would be {self.found:,}"


def advice(family: Family, dialect: str, sizes: Sizes, shapes: Mapping[str, Shape], report: MappingReport, path: str,
           gguf: bool) -> str:  # fmt: skip
    """What to do about tensors that don't fit."""
    found = mismatches(family, dialect, sizes, shapes, report, gguf)
    where = "the GGUF's keys" if gguf else "config.json"
    words = [str(mismatch) for mismatch, _ in found.most_common(_MOST)]
    if words:
        return f"{where} may be another model's: {'; '.join(words)}"
    usual = _STRANGE if report.unmapped else _OTHERS if report.misshapen else _DAMAGED
    return usual.format(path=path, where=where)


def mismatches(family: Family, dialect: str, sizes: Sizes, shapes: Mapping[str, Shape], report: MappingReport,
               gguf: bool) -> Counter[SizeMismatch]:  # fmt: skip
    """The sizes that tensors contradict, and how many do."""
    prefix = family.prefix_of(dialect, shapes, sizes)
    places = family.expansion(dialect, sizes, prefix).places
    return Counter(_blamed(family, dialect, sizes, shapes, report, places, gguf))


def _blamed(
    family: Family, dialect: str, sizes: Sizes, shapes: Mapping[str, Shape], report: MappingReport,
    places: Mapping[str, TensorSlot], gguf: bool,
) -> Iterator[SizeMismatch]:  # fmt: skip
    for index, symbol in family.index.items():
        if (key := _key(family, symbol, gguf)) and (count := sizes.get(symbol)):
            found = _fewer(index, report, shapes, places, count) or _more(index, report, places, count)
            if found and found != count:
                yield SizeMismatch(key, count, found)
    right = {
        symbol
        for name, shape in shapes.items()
        if name in places
        for symbol, declared, found in _dimensions(family, dialect, places[name], shape)
        if declared == found
    }
    for name, _, shape in report.misshapen:
        for symbol, declared, found in _dimensions(family, dialect, places[name], shape) if name in places else ():
            if symbol not in right and (key := _key(family, symbol, gguf)):  # else the tensor is the odd one
                yield SizeMismatch(key, declared, found)


def _key(family: Family, symbol: str, gguf: bool) -> str | None:
    """The config key or GGUF key that states a size, if one key does."""
    size = family.sizes[symbol]
    key = (size.gguf if gguf else size.hf)[:1]
    return next((k for k in key if re.fullmatch(r"[\w.]+", k, re.ASCII)), None)


def _fewer(
    index: str, report: MappingReport, shapes: Mapping[str, Shape], places: Mapping[str, TensorSlot], count: int
) -> int | None:
    """How many there are, where everything of the last ones is missing."""
    gone = [_at(places[name], index) for name in report.missing if name in places]
    here = {n for name in shapes if name in places and (n := _at(places[name], index)) is not None}
    last = max(here, default=-1)
    numbers = [n for n in gone if n is not None]
    return last + 1 if here and numbers and len(numbers) == len(gone) and min(numbers) > last < count - 1 else None


def _more(index: str, report: MappingReport, places: Mapping[str, TensorSlot], count: int) -> int | None:
    """How many there are, where what is left over is called as what is known, with higher numbers."""
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
    """The sizes that are a dimension by themselves, what they should be, and what they are."""
    row = family.rows[place.roles[0]]
    dims: list[str] = [*row.shapes.get(dialect, row.shape)]
    if len(place.roles) > 1:
        dims[0] = ""  # joined
    if (row.transposed(dialect) + sum(via.transposes for via, _ in place.plan.layouts)) % 2:
        dims[-2:] = dims[:-3:-1]
    stacked = [family.index[i] for i in place.indices[len(place.named) :]]
    if len(place.shape) == len(shape) == len(stacked) + len(dims):
        yield from (x for x in zip([*stacked, *dims], place.shape, shape, strict=True) if x[0] in family.sizes and x[2])
