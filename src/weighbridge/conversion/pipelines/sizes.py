"""Compares the sizes that a part's config.json declares with the shapes of its tensors (sizes.toml): the config of
another version of a model has the right class and the wrong numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import UsageError
from weighbridge.base.imports.tables import read_table
from weighbridge.base.spec import Shape
from weighbridge.models.model import OpenModel

_LIST: Final = "#"
_COUNT: Final = ".*"
_OPTIONAL: Final = "?"
_BELOW: Final = "below"


class Size(NamedTuple):
    """A size in a config, and its measure in the tensors. `keys`: its factors. `axis`: -1 if the names that begin with
    `name` are counted, None if the tensor only has to exist. `optional`: null is the absence of the tensor."""

    keys: tuple[str, ...]
    name: str
    axis: int | None
    optional: bool

    @property
    def title(self) -> str:
        return " * ".join(self.keys)


class ClassSizes(NamedTuple):
    """The sizes of a class. `below`: beginnings of its names, which some files lack."""

    sizes: tuple[Size, ...]
    below: tuple[str, ...]


@cache
def sizes_of(class_name: str) -> ClassSizes | None:
    """The sizes of a class of diffusers or transformers; None if the table lacks it."""
    rows: dict[str, Any] = read_table(__file__, "sizes.toml")
    row = next((row for names, row in rows.items() if class_name in names.split()), None)
    return None if row is None else build_sizes(row)


def build_sizes(row: Mapping[str, Any]) -> ClassSizes:
    """The sizes of a row."""
    sizes = (_size(keys, measure) for keys, measure in row.items() if keys != _BELOW)
    return ClassSizes(tuple(sizes), tuple(row.get(_BELOW, ())))


def _size(keys: str, measure: str) -> Size:
    name, _, axis = measure.removesuffix(_OPTIONAL).partition(" ")
    factors = tuple(key.strip() for key in keys.split(" * "))
    optional = measure.endswith(_OPTIONAL)
    if name.endswith(_COUNT):
        return Size(factors, name.removesuffix("*"), -1, optional)
    return Size(factors, name, int(axis) if axis else None, optional)


def check_sizes(
    class_name: str, config: Mapping[str, Any], model: OpenModel, path: Path, title: str, hint: str
) -> bool:  # fmt: skip
    """Whether sizes were compared. Raises UsageError if the config at `path` declares others than the tensors have.
    `title`: of their file."""
    row = sizes_of(class_name)
    if row is None:
        return False
    start = next((start for start in row.below if any(entry.name.startswith(start) for entry in model.index)), "")
    shapes = {entry.name.removeprefix(start): entry.shape for entry in model.index}
    compared = False
    for size in row.sizes:
        declared = _value(size, config)
        if declared is None and not (size.optional and size.keys[0] in config):
            continue
        for place, stated, measured in _pairs(size, declared, shapes):
            compared = True
            if stated != measured:
                raise UsageError(
                    f"{path} has {size.title}{place} = {_number(stated)}, but {title} has {_number(measured)} "
                    f"({size.name}{'*' if size.axis == -1 else ''})",
                    hint=hint,
                )
    return compared


def _value(size: Size, config: Mapping[str, Any]) -> Any:
    """A size in a config, or the product of its factors; None if it isn't a number there."""
    values: list[Any] = []
    for key in size.keys:
        value: Any = config
        for step in key.split("."):
            if isinstance(value, list | tuple) and step.isdigit():
                value = value[int(step)] if int(step) < len(value) else None
            else:
                value = value.get(step) if isinstance(value, Mapping) else None
        numbers = isinstance(value, list | tuple) and all(isinstance(number, int) for number in value)
        values.append(list(value) if numbers else value if isinstance(value, int) else None)
    if len(values) == 1:
        return values[0]
    flat = [prod(value) if isinstance(value, list) else value for value in values]
    return None if None in flat else prod(flat)


def _pairs(size: Size, stated: Any, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Any, Any]]:
    """Yields (index in a list, size in the config, size of the tensors)."""
    if _LIST not in size.name:
        if not isinstance(stated, list):
            yield "", stated, _measure(size, size.name, shapes)
        return
    front, _, back = size.name.partition(_LIST)
    count = _count(front, shapes)
    if isinstance(stated, list) and len(stated) != count:
        yield " (entries)", len(stated), count
    for number in range(count):
        if (measured := _measure(size, f"{front}{number}{back}", shapes)) not in (None, 0):
            expected = stated[number] if isinstance(stated, list) and number < len(stated) else stated
            yield f"[{number}]" if isinstance(stated, list) else "", expected, measured


def _measure(size: Size, name: str, shapes: Mapping[str, Shape]) -> Any:
    if size.axis == -1:
        return _count(name, shapes)
    shape = shapes.get(name)
    if size.axis is None:
        return shape is not None
    return shape[size.axis] if shape is not None and size.axis < len(shape) else None


def _count(front: str, shapes: Mapping[str, Shape]) -> int:
    """The number of modules in a list."""
    return len({name.removeprefix(front).partition(".")[0] for name in shapes if name.startswith(front)})


def _number(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else f"{value:,}"
