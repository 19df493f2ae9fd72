"""The names of an image or video model in a single file and in a diffusers folder, by the tables in names/.

    "img_in" = "x_embedder"                       a module: its weight and its bias
    "x.*.qkv" = ["y.*.to_q", "y.*.to_k", ...]     its rows, split: all parts but the last are square, or all are equal
    { to = ["y.*.to_q", ...], grouped = true }    its rows, split: the first part is square, the others are equal
    { to = "norm_out.linear", swap = true }       the two halves of its rows change places, if it has two (scale, shift)
    { to = "attn.to_q", pointwise = 2 }           a convolution with 1 x 1 kernels in the file, a matrix in the folder
    { to = "text_projection.weight", transposed = true }

`*` matches a number, and each row works in both directions. `{ to = ..., parts = "resnet" }` is a row for each entry
of [parts.resnet], below the module. `{3b+l+1}` is computed for each b and l of [counts]. A table `like` another begins
with its rows; of two rows with one name in diffusers, the last counts. `models`: ids of rows of diffusion.toml.
`also`: classes with the names of `class`. [older] has endings of modules in older versions of diffusers, and those that
replaced them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache
from itertools import accumulate, product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.base.imports.tables import read_table, tables_in
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor

_SUFFIXES: Final = (".weight", ".bias")
_EXPRESSION: Final = re.compile(r"\{([^}]*)\}")


class NameRow(NamedTuple):
    """One tensor of a single file, and the tensors of diffusers that hold its rows."""

    original: str
    diffusers: tuple[str, ...]
    swap: bool = False
    pointwise: int = 0
    transposed: bool = False
    grouped: bool = False


class NamePlace(NamedTuple):
    """A tensor's row, its number among the row's parts, and the numbers in its name."""

    row: NameRow
    part: int
    numbers: tuple[str, ...]


@dataclass(frozen=True)
class NameTable:
    """The rows of a model, and its class in diffusers. `older`: endings of modules in older versions -> today's.
    `also`: classes with the same names."""

    class_name: str
    rows: tuple[NameRow, ...]
    older: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    _originals: dict[str, Any] = field(default_factory=dict, compare=False)
    _diffusers: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for row in self.rows:
            _insert(self._originals, row.original, (row, 0))
            for part, name in enumerate(row.diffusers):
                _insert(self._diffusers, name, (row, part))

    def count(self, names: Iterable[str]) -> int:
        """The number of names in diffusers that the table has."""
        return sum(self.place_of(self.current(name), diffusers=True) is not None for name in names)

    def place_of(self, name: str, *, diffusers: bool) -> NamePlace | None:
        """The place of a tensor by its name in diffusers or in a single file; None if the table lacks it."""
        found = _find(self._diffusers if diffusers else self._originals, name.split("."), ())
        return found and NamePlace(*found)

    def current(self, name: str) -> str:
        """A tensor's name in today's diffusers, by its name in any version."""
        module, dot, part = name.rpartition(".")
        ending = next((old for old in self.older if module.endswith(old)), None)
        return name if ending is None else f"{module.removesuffix(ending)}{self.older[ending]}{dot}{part}"


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
def documents() -> Mapping[str, Mapping[str, Any]]:
    """Returns the parsed TOML tables by name."""
    return {name: read_table(__file__, f"names/{name}.toml") for name in tables_in(__file__, "names")}


@cache
def table(model: str) -> NameTable | None:
    """The table of a model by the id of its row in diffusion.toml; None if it has none."""
    return next((build_table(raw) for raw in documents().values() if model in raw["models"]), None)


def build_table(raw: Mapping[str, Any]) -> NameTable:
    """The rows of a table."""
    return NameTable(raw["class"], tuple(_rows(raw)), raw.get("older", {}), tuple(raw.get("also", ())))


def _rows(raw: Mapping[str, Any]) -> Iterator[NameRow]:
    inherited = documents()[raw["like"]] if "like" in raw else {}
    parts = {**inherited.get("parts", {}), **raw.get("parts", {})}
    counts = {**inherited.get("counts", {}), **raw.get("counts", {})}
    for section, suffixes in (("modules", _SUFFIXES), ("tensors", ("",))):
        entries = {**inherited.get(section, {}), **raw.get(section, {})}
        for template, value in entries.items():
            columns = value if isinstance(value, dict) else {"to": value}
            to = (columns["to"],) if isinstance(columns["to"], str) else tuple(columns["to"])
            flags = {flag: columns[flag] for flag in ("swap", "pointwise", "transposed", "grouped") if flag in columns}
            below = parts[columns["parts"]] if "parts" in columns else {"": ""}
            for original, *names in _numbered((template, *to), counts):
                for inner, name in below.items():
                    for end in suffixes:
                        yield NameRow(original + inner + end, tuple(n + name + end for n in names), **flags)


def _numbered(templates: tuple[str, ...], counts: Mapping[str, int]) -> Iterator[list[str]]:
    """The templates with numbers for their letters, once for each combination of these."""
    letters = [letter for letter in counts if any(letter in e for text in templates for e in _EXPRESSION.findall(text))]
    for numbers in product(*(range(counts[letter]) for letter in letters)):
        known = dict(zip(letters, numbers, strict=True))
        yield [_EXPRESSION.sub(lambda match: str(_sum(match[1], known)), text) for text in templates]  # noqa: B023


def _sum(expression: str, numbers: Mapping[str, int]) -> int:
    """The value of a sum such as `3b+l+1`."""
    total = 0
    for term in expression.split("+"):
        letter = next((letter for letter in numbers if term.endswith(letter)), "")
        total += int(term.removesuffix(letter) or 1) * numbers.get(letter, 1)
    return total


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
        for template, part in zip(place.row.diffusers, parts_of(name, place.row, node, tensors), strict=True):
            new = filled(template, place.numbers)
            out[new], sources[new] = part, (name,)
    return Renaming(out, sources, tuple(unknown))


def to_original(known: NameTable, tensors: Mapping[str, LogicalTensor]) -> Renaming:
    """The tensors of diffusers under the names of a single file. FormatError if a part of one is missing."""
    out: dict[str, LogicalTensor] = {}
    sources: dict[str, tuple[str, ...]] = {}
    unknown = []
    stored = {known.current(name): name for name in tensors}
    tensors = {name: tensors[old] for name, old in stored.items()}
    for name, old in stored.items():
        place = known.place_of(name, diffusers=True)
        if place is None:
            unknown.append(old)
            continue
        new = filled(place.row.original, place.numbers)
        if new in out:
            continue
        parts = tuple(filled(template, place.numbers) for template in place.row.diffusers)
        if missing := [part for part in parts if part not in tensors]:
            raise FormatError(f"{new} consists of {plural(len(parts), 'tensor')}, but {missing[0]} is missing")
        out[new] = joined(name, place.row, [tensors[part] for part in parts], tensors)
        sources[new] = tuple(stored[part] for part in parts)
    return Renaming(out, sources, tuple(unknown))


def parts_of(name: str, row: NameRow, node: LogicalTensor, tensors: Mapping[str, LogicalTensor]) -> list[LogicalTensor]:
    """The tensors of diffusers that hold a tensor's rows. `tensors`: with the weight of its module."""
    from weighbridge.tensors.nodes import reshape, transpose

    shape = node.spec.shape
    if row.transposed:
        return [transpose(node)]
    if row.pointwise and len(shape) > 2 and set(shape[2:]) == {1}:
        return [reshape(node, shape[:2])]
    if row.swap:
        return [_swapped(node, _width(name, tensors))]
    return [node] if len(row.diffusers) == 1 else rows_of_parts(name, row, node, tensors)


def rows_of_parts(
    name: str, row: NameRow, node: LogicalTensor, tensors: Mapping[str, LogicalTensor]
) -> list[LogicalTensor]:
    """A tensor's rows, split into its parts."""
    rows, count = node.spec.shape[0], len(row.diffusers)
    first = _width(name, tensors) if row.grouped or count > 3 else rows // count
    each = (rows - first) // (count - 1) if row.grouped else first
    last = rows - first - each * (count - 2)
    if each <= 0 or last <= 0 or (last != each and (row.grouped or count <= 3)):
        raise FormatError(f"{name} has {rows} rows, which don't split into {count} parts")
    sizes = (first, *[each] * (count - 2), last)
    return [_row_range(node, start, size) for start, size in zip(accumulate((0, *sizes[:-1])), sizes, strict=True)]


def joined(name: str, row: NameRow, parts: list[LogicalTensor], tensors: Mapping[str, LogicalTensor]) -> LogicalTensor:
    """The tensor of a single file whose rows are in tensors of diffusers."""
    from weighbridge.tensors.nodes import concat, reshape, transpose

    first = parts[0]
    if row.transposed:
        return transpose(first)
    if row.pointwise and len(first.spec.shape) == 2:
        return reshape(first, (*first.spec.shape, *[1] * row.pointwise))
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
