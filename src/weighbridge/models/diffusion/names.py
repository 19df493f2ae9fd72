"""The names of an image or video model in a single file and in a folder of diffusers, by the tables in names/.

    "img_in" = "x_embedder"                       a module: its weight and its bias
    "x.*.qkv" = ["y.*.to_q", "y.*.to_k", ...]     its rows, split: all parts but the last are square, or all are equal
    { to = "norm_out.linear", swap = true }       the two halves of its rows change places, if it has two (scale, shift)
    { to = "attn.to_q", pointwise = true }        a convolution with 1 x 1 kernels in the file, a matrix in the folder
    { to = "text_projection.weight", transposed = true }

`*` stands for a number. Each row works in both directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.base.words import plural

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor

_SUFFIXES: Final = (".weight", ".bias")


class NameRow(NamedTuple):
    """One tensor of a single file, and the tensors of diffusers that hold its rows."""

    original: str
    diffusers: tuple[str, ...]
    swap: bool = False
    pointwise: bool = False
    transposed: bool = False


class NamePlace(NamedTuple):
    """A tensor's row, its number among the row's parts, and the numbers in its name."""

    row: NameRow
    part: int
    numbers: tuple[str, ...]


@dataclass(frozen=True)
class NameTable:
    """The rows of a model. `classes`: of diffusers."""

    name: str
    classes: tuple[str, ...]
    rows: tuple[NameRow, ...]
    _originals: dict[str, Any] = field(default_factory=dict, compare=False)
    _diffusers: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for row in self.rows:
            _insert(self._originals, row.original, (row, 0))
            for part, name in enumerate(row.diffusers):
                _insert(self._diffusers, name, (row, part))

    def place_of(self, name: str, *, diffusers: bool) -> NamePlace | None:
        """The place of a tensor by its name in diffusers or in a single file; None if the table lacks it."""
        found = _find(self._diffusers if diffusers else self._originals, name.split("."), ())
        return found and NamePlace(*found)


def _insert(tree: dict[str, Any], name: str, leaf: tuple[NameRow, int]) -> None:
    for step in name.split("."):
        tree = tree.setdefault(step, {})
    tree[""] = leaf


def _find(
    tree: Mapping[str, Any], steps: list[str], numbers: tuple[str, ...]
) -> tuple[NameRow, int, tuple[str, ...]] | None:
    """Walks the steps of a name down a tree of templates; literal numbers have precedence."""
    if not steps:
        return (*tree[""], numbers) if "" in tree else None
    first, rest = steps[0], steps[1:]
    found = _find(tree[first], rest, numbers) if first and first in tree else None
    if found is None and "*" in tree and first.isascii() and first.isdigit():
        found = _find(tree["*"], rest, (*numbers, first))
    return found


def filled(template: str, numbers: Iterable[str]) -> str:
    """A template with its numbers."""
    values = iter(numbers)
    return ".".join(next(values) if step == "*" else step for step in template.split("."))


@cache
def table(name: str) -> NameTable | None:
    """The table of a model by the id of its row in diffusion.toml; None if it has none."""
    import tomllib

    path = resources.files(__package__ or "") / "names" / f"{name}.toml"
    return build_table(name, tomllib.loads(path.read_text("utf-8"))) if path.is_file() else None


def build_table(name: str, raw: Mapping[str, Any]) -> NameTable:
    """The rows of a parsed table."""
    classes = raw["class"]
    return NameTable(name, (classes,) if isinstance(classes, str) else tuple(classes), tuple(_rows(raw)))


def _rows(raw: Mapping[str, Any]) -> Iterator[NameRow]:
    for section, suffixes in (("modules", _SUFFIXES), ("tensors", ("",))):
        for original, value in raw.get(section, {}).items():
            columns = value if isinstance(value, dict) else {"to": value}
            names = columns["to"]
            for end in suffixes:
                parts = tuple(part + end for part in ([names] if isinstance(names, str) else names))
                flags = {flag: bool(columns.get(flag)) for flag in ("swap", "pointwise", "transposed")}
                yield NameRow(original + end, parts, **flags)


class Renaming(NamedTuple):
    """Tensors under their new names. `sources`: the old names of each. `unknown`: those that the table lacks."""

    tensors: dict[str, LogicalTensor]
    sources: dict[str, tuple[str, ...]]
    unknown: tuple[str, ...]


def to_diffusers(known: NameTable, tensors: Mapping[str, LogicalTensor]) -> Renaming:
    """The tensors of a single file under the names of diffusers."""
    out: dict[str, LogicalTensor] = {}
    sources: dict[str, tuple[str, ...]] = {}
    unknown = []
    for name, node in tensors.items():
        place = known.place_of(name, diffusers=False)
        if place is None:
            unknown.append(name)
            continue
        for template, part in zip(place.row.diffusers, _parts(name, place.row, node, tensors), strict=True):
            new = filled(template, place.numbers)
            out[new], sources[new] = part, (name,)
    return Renaming(out, sources, tuple(unknown))


def to_original(known: NameTable, tensors: Mapping[str, LogicalTensor]) -> Renaming:
    """The tensors of diffusers under the names of a single file. FormatError if a part of one is missing."""
    out: dict[str, LogicalTensor] = {}
    sources: dict[str, tuple[str, ...]] = {}
    unknown = []
    for name in tensors:
        place = known.place_of(name, diffusers=True)
        if place is None:
            unknown.append(name)
            continue
        new = filled(place.row.original, place.numbers)
        if new in out:
            continue
        parts = tuple(filled(template, place.numbers) for template in place.row.diffusers)
        if missing := [part for part in parts if part not in tensors]:
            raise FormatError(f"{new} consists of {plural(len(parts), 'tensor')}, but {missing[0]} is missing")
        out[new], sources[new] = _joined(name, place.row, [tensors[part] for part in parts], tensors), parts
    return Renaming(out, sources, tuple(unknown))


def _parts(name: str, row: NameRow, node: LogicalTensor, tensors: Mapping[str, LogicalTensor]) -> list[LogicalTensor]:
    from weighbridge.tensors.nodes import reshape, transpose

    shape = node.spec.shape
    if row.transposed:
        return [transpose(node)]
    if row.pointwise and len(shape) > 2 and set(shape[2:]) == {1}:
        return [reshape(node, shape[:2])]
    if row.swap:
        return [_swapped(node, _width(name, tensors))]
    count = len(row.diffusers)
    if count == 1:
        return [node]
    width = _width(name, tensors) if count > 3 else shape[0] // count
    rest = shape[0] - width * (count - 1)
    if rest <= 0 or (count <= 3 and rest != width):
        raise FormatError(f"{name} has {shape[0]} rows, which don't split into {count} parts")
    return [_row_range(node, i * width, width if i < count - 1 else rest) for i in range(count)]


def _joined(name: str, row: NameRow, parts: list[LogicalTensor], tensors: Mapping[str, LogicalTensor]) -> LogicalTensor:
    from weighbridge.tensors.nodes import concat, reshape, transpose

    first = parts[0]
    if row.transposed:
        return transpose(first)
    if row.pointwise and len(first.spec.shape) == 2:
        return reshape(first, (*first.spec.shape, 1, 1))
    if row.swap:
        return _swapped(first, _width(name, tensors))
    return concat(parts)


def _width(name: str, tensors: Mapping[str, LogicalTensor]) -> int:
    """The inputs of a tensor's module: the columns of its weight."""
    weight = tensors.get(f"{name.rpartition('.')[0]}.weight")
    if weight is None or len(weight.spec.shape) < 2:
        raise FormatError(f"{name} has no matrix next to it, so its rows can't be divided")
    return weight.spec.shape[1]


def _swapped(node: LogicalTensor, width: int) -> LogicalTensor:
    """The halves of a modulation of two parts (shift, scale) in the other order; one of six keeps its rows."""
    from weighbridge.tensors.nodes import concat

    if node.spec.shape[0] != 2 * width:
        return node
    return concat([_row_range(node, width, width), _row_range(node, 0, width)])


def _row_range(node: LogicalTensor, start: int, count: int) -> LogicalTensor:
    """Some of the outputs of a weight, or of the elements of a bias."""
    from weighbridge.tensors.nodes import slice_rows

    rows_per_output = node.spec.rows // node.spec.shape[0]
    return slice_rows(node, start * rows_per_output, (count, *node.spec.shape[1:]))
