"""Matrices that mlx-vlm's classes join or split: stacks of experts, rows in one matrix, and the halves of a latent
attention.

with_joins(rows, tensors)     the tensors of a Hugging Face folder, joined
without_joins(rows, tensors)  the inverse
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from weighbridge.base import limits
from weighbridge.base.dtypes import F32, Kind
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.base.words import plural
from weighbridge.models.stored_tensors import Dropped

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor, Node


class Ending(Struct, frozen=True, forbid_unknown_fields=True):
    """The end of a tensor's name there, and those of its parts here; towers.toml documents the fields."""

    hf: str
    mlx: list[str]
    turned: bool = False
    within: str = ""
    counts: str = ""

    def start(self, name: str) -> tuple[str, str] | None:
        """The part of a name before this end, and the expert's number; None if the name ends otherwise."""
        return self._numbered(name, self.hf)

    @property
    def is_numbered(self) -> bool:
        """Whether the class has the number in the name, too."""
        return "*" in self.mlx[0]

    def in_mlx(self, start: str, number: str) -> str:
        """mlx-vlm's name of a tensor of one part."""
        return start + self.mlx[0].replace("*", number)

    def in_hf(self, name: str) -> str | None:
        """The name that ends as in the folder, of one of mlx-vlm's with a number; None if the name ends otherwise."""
        parts = self._numbered(name, self.mlx[0])
        return parts and parts[0] + self.hf.replace("*", parts[1])

    def _numbered(self, name: str, end: str) -> tuple[str, str] | None:
        if not name.startswith(self.within):
            return None
        pattern = re.escape(end).replace(r"\*", "([0-9]+)")
        match = re.fullmatch(f"(.*){pattern}", name, re.DOTALL)
        return match and (match[1], match[2] if "*" in end else "")

    def place(self, number: int, text: Mapping[str, Any]) -> tuple[str, int]:
        """The end of the name of an expert's stack, and the expert's place there. `text`: the language model's
        settings, which count the experts of each stack if there are several."""
        stated = text.get(self.counts) if self.counts else None
        counts = stated if isinstance(stated, list) else []
        if len(counts) != len(self.mlx) or not all(isinstance(count, int) and count > 0 for count in counts):
            if self.counts:
                numbers = plural(len(self.mlx), "number")
                raise FormatError("doesn't count the experts", field=self.counts, expected=numbers, found=stated)
            return self.mlx[0], number
        for end, count in zip(self.mlx, counts, strict=True):
            if number < count:
                return end, number
            number -= count
        raise FormatError("counts fewer experts than the folder has", field=self.counts, found=stated)


class JoinedRows(Struct, frozen=True, forbid_unknown_fields=True):
    """Matrices whose rows one side has in one; towers.toml documents the fields."""

    hf: list[str]
    mlx: list[str]
    within: str = ""
    rows: list[str] = []
    single: bool = False

    def to_mlx(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        return _joined_rows(name, parts) if len(self.mlx) == 1 else self._split(name, parts[0], self.mlx, config)

    def to_hf(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        from weighbridge.tensors.nodes import as_node, reshape  # late: numpy

        if len(self.hf) > 1:
            return self._split(name, parts[0], self.hf, config)
        nodes = [as_node(part) for part in parts]
        return _joined_rows(name, [reshape(x, (1, *x.spec.shape)) for x in nodes] if self.single else nodes)

    def _split(self, name: str, whole: LogicalTensor, ends: Sequence[str], config: Mapping[str, Any]) -> list[Node]:
        from weighbridge.tensors.nodes import as_node, flat_range  # late: numpy

        node = as_node(whole)
        total, *inner = node.spec.shape
        counts = [_size(config, key) for key in self.rows] or [total // len(ends)] * (len(ends) - 1)
        counts.append(total - sum(counts))
        if counts[-1] < 1 or (not self.rows and len(set(counts)) > 1):
            raise FormatError(f"{name} has {total} rows, which don't split into {plural(len(ends), 'part')}")
        each = node.spec.elements // total
        starts = [sum(counts[:at]) * each for at in range(len(counts))]
        shapes = [tuple(inner) if self.single else (count, *inner) for count in counts]
        return [flat_range(node, start, shape) for start, shape in zip(starts, shapes, strict=True)]


def _joined_rows(name: str, parts: Sequence[LogicalTensor]) -> list[Node]:
    from weighbridge.tensors.nodes import as_node, concat  # late: numpy

    nodes = [as_node(part) for part in parts]
    if len({node.spec.shape[1:] for node in nodes}) > 1:
        raise FormatError(f"{name} and its parts have rows of different lengths")
    return [concat(nodes)]


class FusedHeads(Struct, frozen=True, forbid_unknown_fields=True):
    """Queries, keys and values in one matrix, which the class has in three; towers.toml documents the fields."""

    hf: list[str]
    mlx: list[str]
    within: str = ""
    layout: str = ""

    def to_mlx(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        from weighbridge.tensors.nodes import Node, flat_range  # late: numpy

        node, counts = parts[0], self._counts(name, config)
        if not isinstance(node, Node):
            raise UnsupportedError(
                f"{name} is quantized, rank by rank as published, which can't be split",
                hint="convert a folder of floats",
            )
        if len(node.spec.shape) != 2 or node.spec.shape[0] != sum(counts):
            raise FormatError(f"{name} has the shape {list(node.spec.shape)}, expected {sum(counts)} rows")
        columns = node.spec.shape[1]
        starts = [sum(counts[:at]) * columns for at in range(3)]
        return [flat_range(node, start, (count, columns)) for start, count in zip(starts, counts, strict=True)]

    def to_hf(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        return _joined_rows(name, parts)

    def is_fused(self, config: Mapping[str, Any]) -> bool:
        """Whether the folder of a config has one matrix."""
        return config.get(self.layout) == "fused_qkv"

    @staticmethod
    def _counts(name: str, config: Mapping[str, Any]) -> list[int]:
        """Rows of queries, keys and values. Layers with a window have keys of their own."""
        number, kinds = re.search(r"\.layers\.([0-9]+)\.", name), config.get("hybrid_layer_pattern")
        if not number or not isinstance(kinds, list) or int(number[1]) >= len(kinds):
            raise FormatError(f"config.json's hybrid_layer_pattern has no kind of the layer of {name}")
        swa = "swa_" if kinds[int(number[1])] else ""
        heads, keys = _size(config, f"{swa}num_attention_heads"), _size(config, f"{swa}num_key_value_heads")
        of_key, of_value = _size(config, f"{swa}head_dim"), _size(config, f"{swa}v_head_dim")
        return [heads * of_key, keys * of_key, keys * of_value]


class SplitHeads(Struct, frozen=True, forbid_unknown_fields=True):
    """A matrix of keys and values, which the class has by heads; towers.toml documents the fields."""

    hf: list[str]
    mlx: list[str]
    within: str = ""

    def to_mlx(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        from weighbridge.tensors.nodes import as_node, reshape, strided  # late: numpy

        node = as_node(parts[0])
        heads, keys, values = self._sizes(config)
        if len(node.spec.shape) != 2 or node.spec.shape[0] != heads * (keys + values):
            raise FormatError(f"{name} has the shape {list(node.spec.shape)}, expected {heads * (keys + values)} rows")
        inner = node.spec.shape[1]
        flat, each = reshape(node, (node.spec.elements,)), (keys + values) * inner
        return [
            strided(flat, 0, [heads, inner, keys], [each, 1, inner]),
            strided(flat, keys * inner, [heads, values, inner], [each, inner, 1]),
        ]

    def to_hf(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        from weighbridge.tensors.nodes import as_node, concat, reshape, strided  # late: numpy

        of_keys, of_values = (as_node(part) for part in parts)
        heads, keys, values = self._sizes(config)
        inner = of_values.spec.shape[-1]
        if (of_keys.spec.shape, of_values.spec.shape) != ((heads, inner, keys), (heads, values, inner)):
            raise FormatError(f"{name} and its part have shapes that config.json doesn't have")
        flat = reshape(of_keys, (of_keys.spec.elements,))
        turned = strided(flat, 0, [heads, keys, inner], [inner * keys, 1, keys])
        both = concat([turned, of_values], axis=1)
        return [reshape(both, (heads * (keys + values), inner))]

    @staticmethod
    def _sizes(config: Mapping[str, Any]) -> tuple[int, int, int]:
        keys = ("num_attention_heads", "qk_nope_head_dim", "v_head_dim")
        heads, of_key, of_value = (_size(config, key) for key in keys)
        return heads, of_key, of_value


class PackedExperts(Struct, frozen=True, forbid_unknown_fields=True):
    """Stacks of experts and the shared expert, which the class has as one more; towers.toml documents the fields."""

    hf: list[str]
    mlx: list[str]
    within: str = ""

    def to_mlx(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        from weighbridge.tensors.nodes import as_node, concat, reshape  # late: numpy

        nodes = [as_node(part) for part in parts]
        half = len(nodes) // 2
        experts, shared = concat(nodes[:half], axis=1), concat(nodes[half:])
        if experts.spec.shape[1:] != shared.spec.shape:
            raise FormatError(f"{name} has experts whose shape isn't that of the shared one")
        return [concat([experts, reshape(shared, (1, *shared.spec.shape))])]

    def to_hf(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        from weighbridge.tensors.nodes import as_node, reshape, strided  # late: numpy

        node, half = as_node(parts[0]), len(self.hf) // 2
        if len(node.spec.shape) != 3 or node.spec.shape[0] < 2 or node.spec.shape[1] % half:
            raise FormatError(f"{name} has the shape {list(node.spec.shape)}, which doesn't split into experts")
        count, rows, columns = node.spec.shape
        flat, each = reshape(node, (node.spec.elements,)), rows // half
        starts = [part * each * columns for part in range(half)]
        strides, last = [rows * columns, columns, 1], (count - 1) * rows * columns
        experts = [strided(flat, start, [count - 1, each, columns], strides) for start in starts]
        return experts + [strided(flat, last + start, [each, columns], strides[1:]) for start in starts]


class GroupedRows(Struct, frozen=True, forbid_unknown_fields=True):
    """A matrix that the class has by groups of rows; towers.toml documents the fields."""

    hf: list[str]
    mlx: list[str]
    count: str
    within: str = ""

    def to_mlx(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[LogicalTensor]:
        from weighbridge.tensors.nodes import reshape  # late: numpy

        node, groups = parts[0], _size(config, self.count)
        if len(node.spec.shape) != 2 or node.spec.shape[0] % groups:
            raise FormatError(f"{name} has the shape {list(node.spec.shape)}, which doesn't split into {groups} groups")
        rows, columns = node.spec.shape
        return [reshape(node, (groups, rows // groups, columns))]

    def to_hf(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        from weighbridge.tensors.nodes import as_node, reshape  # late: numpy

        node = as_node(parts[0])
        return [reshape(node, (node.spec.rows, node.spec.shape[-1]))]


class AlternateRows(Struct, frozen=True, forbid_unknown_fields=True):
    """Two matrices, or stacks, whose rows alternate in the folder; towers.toml documents the fields."""

    hf: list[str]
    mlx: list[str]
    within: str = ""
    flat: str = ""

    def to_mlx(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        from weighbridge.tensors.nodes import reshape, strided  # late: numpy

        node = _floats(name, parts[0])
        *lead, rows, columns = node.spec.shape if len(node.spec.shape) > 1 else (1, 1)
        if rows % 2 or len(lead) > 1:
            raise FormatError(f"{name} has the shape {list(node.spec.shape)}, expected an even number of rows")
        if self.flat:
            _same_count(name, lead, _size(config, self.flat), self.flat)
        flat, each = reshape(node, (node.spec.elements,)), rows // 2 * columns
        shape, count = [rows // 2, columns], lead[0] if lead else 1
        halves = [strided(flat, at * columns, [count, *shape], [2 * each, 2 * columns, 1]) for at in (0, 1)]
        whole = (count * shape[0], columns) if self.flat else (*lead, *shape)
        return [reshape(half, whole) for half in halves]

    def to_hf(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        from weighbridge.tensors.nodes import as_node, concat, reshape, strided  # late: numpy

        nodes = [as_node(part) for part in parts]
        *lead, rows, columns = nodes[0].spec.shape if len(nodes[0].spec.shape) > 1 else (0, 1)
        if nodes[0].spec.shape != nodes[1].spec.shape or not rows * columns:
            raise FormatError(f"{name} and its part have different shapes")
        if self.flat:
            lead = [_size(config, self.flat)]
            if rows % lead[0]:
                raise FormatError(f"{name} has {rows} rows, which don't split into {plural(lead[0], 'expert')}")
            rows //= lead[0]
        size = nodes[0].spec.elements
        both = strided(reshape(concat(nodes), (2 * size,)), 0, [size // columns, 2, columns], [columns, size, 1])
        return [reshape(both, (*lead, 2 * rows, columns))]


class ExpertColumns(Struct, frozen=True, forbid_unknown_fields=True):
    """A stack of experts whose columns the class has side by side; towers.toml documents the fields."""

    hf: list[str]
    mlx: list[str]
    count: str
    within: str = ""

    def to_mlx(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        from weighbridge.tensors.nodes import reshape, strided  # late: numpy

        node = _floats(name, parts[0])
        if len(node.spec.shape) != 3:
            raise FormatError(f"{name} has the shape {list(node.spec.shape)}, expected a stack of experts")
        experts, rows, columns = node.spec.shape
        _same_count(name, [experts], _size(config, self.count), self.count)
        flat = reshape(node, (node.spec.elements,))
        turned = strided(flat, 0, [rows, experts, columns], [columns, rows * columns, 1])
        return [reshape(turned, (rows, experts * columns))]

    def to_hf(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        from weighbridge.tensors.nodes import as_node, reshape, strided  # late: numpy

        node, experts = as_node(parts[0]), _size(config, self.count)
        if len(node.spec.shape) != 2 or node.spec.shape[1] % experts:
            parted = plural(experts, "expert")
            raise FormatError(f"{name} has the shape {list(node.spec.shape)}, which doesn't split into {parted}")
        rows, columns = node.spec.shape[0], node.spec.shape[1] // experts
        flat = reshape(node, (node.spec.elements,))
        return [strided(flat, 0, [experts, rows, columns], [columns, experts * columns, 1])]


class RenamedTogether(Struct, frozen=True, forbid_unknown_fields=True):
    """Tensors of a module that have other names if the module has all of them; towers.toml documents the fields."""

    hf: list[str]
    mlx: list[str]
    within: str = ""

    def to_mlx(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[LogicalTensor]:
        return list(parts)

    def to_hf(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        from weighbridge.tensors.nodes import as_node  # late: numpy

        return [as_node(part) for part in parts]


class WeightNorm(Struct, frozen=True, forbid_unknown_fields=True):
    """The lengths and directions of a matrix's rows (torch's weight_norm), which the class multiplies; towers.toml
    documents the fields."""

    hf: list[str]
    mlx: list[str]
    within: str = ""

    def to_mlx(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        from weighbridge.tensors.nodes import rescale_rows, reshape  # late: numpy

        lengths, directions = parts
        if len(directions.spec.shape) != 2 or lengths.spec.elements != directions.spec.rows:
            raise FormatError(f"{name} has the shape {list(lengths.spec.shape)}, expected a length for each row")
        return [rescale_rows(directions, reshape(lengths, (directions.spec.rows, 1)))]

    def to_hf(self, name: str, parts: Sequence[LogicalTensor], config: Mapping[str, Any]) -> list[Node]:
        from weighbridge.tensors.nodes import as_node, cast  # late: numpy
        from weighbridge.tensors.nodes.reduced import row_lengths  # late: numpy

        matrix = as_node(parts[0])
        return [cast(row_lengths(matrix), matrix.spec.dtype), matrix]

    def is_pair(self, name: str) -> bool:
        """Whether a name of mlx-vlm's is that of directions."""
        return name.startswith(self.within) and name.endswith(self.hf[1])


def _floats(name: str, node: LogicalTensor) -> Node:
    """A tensor whose rows can be moved. Raises UnsupportedError for packed codes, which have scales of their own."""
    from weighbridge.tensors.nodes import Node  # late: numpy

    if not isinstance(node, Node) or node.spec.dtype.kind is not Kind.FLOAT:
        raise UnsupportedError(f"{name} is quantized, which can't be split", hint="convert a folder of floats")
    return node


def _same_count(name: str, shape: Sequence[int], count: int, key: str) -> None:
    if list(shape) != [count]:
        raise FormatError(f"{name} has {shape[0] if shape else 'no'} experts", field=key, expected=count)


Parted: TypeAlias = (
    JoinedRows
    | FusedHeads
    | SplitHeads
    | PackedExperts
    | GroupedRows
    | AlternateRows
    | ExpertColumns
    | RenamedTogether
    | WeightNorm
)


def with_joins(
    rows: Sequence[Parted], tensors: Mapping[str, LogicalTensor], config: Mapping[str, Any]
) -> dict[str, LogicalTensor]:
    """The tensors under mlx-vlm's names in its parts. `config`: the language model's."""
    out = dict(tensors)
    for row in rows:
        for start in _starts(row.hf, row.within, out):
            parts = _with_rows({start + end: out.pop(start + end) for end in row.hf})
            made = row.to_mlx(f"{start}{row.hf[0]}", parts, config)
            out |= {start + end: node for end, node in zip(row.mlx, made, strict=True)}
    return out


def _with_rows(tensors: Mapping[str, LogicalTensor]) -> list[LogicalTensor]:
    """The tensors. Raises FormatError for one without axes."""
    if numbers := [name for name, tensor in tensors.items() if not tensor.spec.shape]:
        raise FormatError(f"{numbers[0]} is a single number, expected rows")
    return [*tensors.values()]


def without_joins(
    rows: Sequence[Parted], tensors: Mapping[str, LogicalTensor], config: Mapping[str, Any]
) -> tuple[dict[str, Node], set[str]]:
    """The parts of a Hugging Face folder under mlx-vlm's names, and the names of the tensors that have them."""
    out: dict[str, Node] = {}
    used: set[str] = set()
    for row in rows:
        if isinstance(row, FusedHeads) and not row.is_fused(config):
            continue
        for start in _starts(row.mlx, row.within, tensors):
            names = [start + end for end in row.mlx]
            sizes = _sizes_of(row, start, tensors) if isinstance(row, JoinedRows) else {}
            made = row.to_hf(names[0], _with_rows({name: tensors[name] for name in names}), {**config, **sizes})
            out |= {start + end: node for end, node in zip(row.hf, made, strict=True)}
            used |= set(names)
    return out, used


def with_ones(rows: Mapping[str, Sequence[str]], tensors: Mapping[str, LogicalTensor]) -> dict[str, LogicalTensor]:
    """The vectors of ones of each tensor that a row belongs to, as long as its first axis."""
    from weighbridge.tensors.nodes import Const, strided  # late: numpy

    one = Const(Spec((1,), F32), struct.pack("<f", 1))
    out: dict[str, LogicalTensor] = {}
    for end, vectors in rows.items():
        for name in [name for name in tensors if name.endswith(end)]:
            count = (*tensors[name].spec.shape, 0)[0]
            if not 0 < count <= limits.EXPERTS:
                raise FormatError("no plausible number of experts", field=name, found=count)
            out |= {name.removesuffix(end) + vector: strided(one, 0, [count], [0]) for vector in vectors}
    return out


def ones_of(rows: Mapping[str, Sequence[str]], tensors: Mapping[str, Node]) -> dict[str, Dropped]:
    """The vectors that `with_ones` makes, by name. Raises UnsupportedError if one has other values."""
    from weighbridge.tensors.nodes import cast  # late: numpy

    ends = tuple(end for vectors in rows.values() for end in vectors)
    out: dict[str, Dropped] = {}
    for name in [name for name in tensors if name.endswith(ends)] if ends else []:
        node = tensors[name]
        if node.spec.dtype.kind is not Kind.FLOAT or node.spec.elements > limits.EXPERTS:
            raise FormatError(f"{name} has no factor for each expert: it is {node.spec}")
        if (cast(node, F32).read_all().view("<f4") != 1).any():
            raise UnsupportedError(
                f"{name} scales experts, and no Hugging Face folder has a tensor for that",
                hint="convert a folder of floats",
            )
        out[name] = Dropped(name, "factors", "1 of each expert", 1, node.spec.nbytes)
    return out


def _sizes_of(row: JoinedRows, start: str, tensors: Mapping[str, LogicalTensor]) -> dict[str, int]:
    """The sizes that a row takes from other tensors of the module. Raises FormatError if one is missing."""
    out: dict[str, int] = {}
    for place in row.rows:
        end, _, axis = place.partition(" ")
        if axis:
            shape = tensors[start + end].spec.shape if start + end in tensors else ()
            if len(shape) <= int(axis):
                raise FormatError(f"{start}{end} is missing, or has too few axes")
            out[place] = shape[int(axis)]
    return out


def _starts(ends: Sequence[str], within: str, tensors: Mapping[str, object]) -> list[str]:
    """The starts of names to which a tensor of each end exists."""
    named = [name for name in tensors if name.startswith(within) and name.endswith(ends[0])]
    starts = [name.removesuffix(ends[0]) for name in named]
    return [start for start in starts if all(start + end in tensors for end in ends)]


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise FormatError(f"config.json has no {key}")
    return value
