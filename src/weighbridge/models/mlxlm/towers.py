"""Models that see or hear in mlx-vlm: names and layouts of all their tensors, and back to those of Hugging Face.

tower_names(config)       the row of a model's type in towers.toml
from_mlx_vlm(model)       a folder of mlx-vlm under Hugging Face's names
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct, convert

from weighbridge.base.dtypes import I32, I64
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.imports.tables import read_table
from weighbridge.base.words import plural
from weighbridge.containers.base import Index
from weighbridge.models.arch.config import value_at
from weighbridge.models.mlxlm.joins import (
    AlternateRows,
    Ending,
    ExpertColumns,
    FusedHeads,
    GroupedRows,
    JoinedRows,
    PackedExperts,
    Parted,
    RenamedTogether,
    SplitHeads,
    WeightNorm,
    ones_of,
    with_joins,
    with_ones,
    without_joins,
)
from weighbridge.models.mlxlm.layouts import integers, padded, reshaped, shifted, with_axis
from weighbridge.models.model import OpenModel
from weighbridge.models.stored_tensors import Dropped
from weighbridge.models.transform.base import with_nodes
from weighbridge.models.transform.text_config import text_path

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor, Node


#: Where a key's value is, or the value.
Value: TypeAlias = str | bool | int | float | list[int]
#: The name of a language model's output, and how those of parts end.
_OUTPUT: Final = "lm_head.weight"
_OUTPUTS: Final = ("language_model.lm_head.weight", "language_model.model.lm_head.weight")
_LAYER: Final = re.compile(r"language_model\.model\.layers\.([0-9]+)\.")


class UnreadTensors(Struct, frozen=True, forbid_unknown_fields=True):
    """Tensors that the class drops; towers.toml documents the fields."""

    parts: list[str]
    layers: list[str] = []
    kept: list[str] = []
    tied: bool = False

    def has(self, name: str, config: Mapping[str, Any]) -> bool:
        """Whether these are the tensors that a name of mlx-vlm's belongs to. `config`: of the language model."""
        if not any(part in name for part in self.parts) or name.endswith(tuple(self.kept)):
            return False
        if self.tied and config.get("tie_word_embeddings") is False:
            return False
        counts = [count for key in self.layers if isinstance(count := config.get(key), int)]
        layer = _LAYER.match(name)
        return not self.layers or bool(layer and counts and int(layer[1]) >= counts[0] - sum(counts[1:]))


class TowerNames(Struct, frozen=True, forbid_unknown_fields=True):
    """One model type; towers.toml documents the fields."""

    kind: str
    like: str = ""
    module: str = ""
    architecture: str = ""
    published: str = ""
    prefixes: list[tuple[str, str]] = []
    channels_last: list[str] = []
    transposed: list[str] = []
    flat: str = ""
    inner: bool = False
    embeds: bool = False
    head: list[str] = []
    endings: list[Ending] = []
    one_added: list[str] = []
    joins: list[JoinedRows] = []
    heads: list[SplitHeads] = []
    fused: list[FusedHeads] = []
    packed: list[PackedExperts] = []
    groups: list[GroupedRows] = []
    alternate: list[AlternateRows] = []
    columns: list[ExpertColumns] = []
    together: list[RenamedTogether] = []
    ones: Mapping[str, list[str]] = {}
    weight_norms: list[WeightNorm] = []
    int32: list[str] = []
    float32: list[str] = []
    cut: Mapping[str, tuple[str, str]] = {}
    flattened: Mapping[str, list[int | str]] = {}
    unread: list[UnreadTensors] = []
    text: Mapping[str, Value] = {}
    vision: Mapping[str, Value] = {}
    parts: Mapping[str, Mapping[str, Value]] = {}
    copied: Mapping[str, str] = {}
    unquantized: list[str] = []
    eight_bits: list[str] = []
    modes: Mapping[str, list[str]] = {}
    as_published: list[str] = []
    reordered: list[str] = []
    lacks: list[str] = []
    needs: list[str] = []
    uncast: list[str] = []
    period: Mapping[str, int] = {}
    layer_types: Mapping[str, str] = {}
    text_keys: list[str] = []
    vision_keys: list[str] = []
    tower: str = ""
    towers: str = ""
    sees: list[str] = []
    reads: list[str] = []
    requires: list[str] = []
    fixed: Mapping[str, int] = {}
    half: bool = False

    @property
    def parted(self) -> list[Parted]:
        """Matrices that the class joins or splits."""
        split: list[Parted] = [*self.joins, *self.heads, *self.fused, *self.packed, *self.groups]
        return [*split, *self.alternate, *self.columns, *self.together, *self.weight_norms]

    def has_tower(self, config: Mapping[str, Any]) -> bool:
        """Whether the class supports the type of the config's tower, if it states one."""
        tower = config.get("vision_config")
        return not (self.sees and isinstance(tower, Mapping)) or tower.get("model_type") in self.sees

    def tied_outputs(self, names: Iterable[str], stated: bool | None) -> list[str]:
        """mlx-vlm's names of outputs that the class lacks because config.json ties them (`stated`) to the embedding.
        Rows of `unread` with `tied` decide themselves."""
        if not stated or self.head or self.kind in table().untied or any(row.tied for row in self.unread):
            return []
        return [name for name in names if name == _OUTPUT or name.endswith(_OUTPUTS)]

    def has_towers(self, names: Iterable[str]) -> bool:
        """Whether names of MLX are those of a whole model; mlx-lm reads the language model alone."""
        return any((self.towers and name.startswith(self.towers)) or not table().quantizes(name) for name in names)

    def to_mlx(self, name: str) -> str:
        """mlx-vlm's name of a tensor."""
        return _replaced(name, self.prefixes)

    def ending(self, name: str) -> tuple[Ending | None, str, str]:
        """The row of the end of a name of mlx-vlm's, the part before, and the expert's number."""
        for row in self.endings:
            if (found := row.start(name)) is not None:
                return row, *found
        return None, name, ""

    def in_mlx(self, name: str, node: LogicalTensor) -> LogicalTensor:
        """The tensor of a name of mlx-vlm's as the class has it: convolutions with the channels last, norms plus 1."""
        if name.endswith(tuple(self.channels_last)):
            return with_axis(name, node, 1, -1)
        if name.endswith(tuple(self.transposed)):
            return with_axis(name, node, 0, -1)
        if name.endswith(tuple(self.int32)):
            return integers(node, I32)
        if name.endswith(tuple(self.flattened)):
            return reshaped(node, [*node.spec.shape[:1], -1])
        return shifted(node, 1) if name.endswith(tuple(self.one_added)) else node

    def in_hf(self, name: str, node: LogicalTensor, config: Mapping[str, Any]) -> LogicalTensor:
        """The inverse of `in_mlx`. `config`: the language model's settings, with `vision_config`."""
        if name.endswith(tuple(self.channels_last)):
            return with_axis(name, node, -1, 1)
        if name.endswith(tuple(self.transposed)):
            return with_axis(name, node, -1, 0)
        if name.endswith(tuple(self.int32)):
            return integers(node, I64)
        if (sizes := next((s for end, s in self.flattened.items() if name.endswith(end)), None)) is not None:
            vision = config.get("vision_config") or {}
            return reshaped(node, [*node.spec.shape[:1], *(vision.get(s) if isinstance(s, str) else s for s in sizes)])
        if (sides := self.cut_sides(name, config)) is not None and node.spec.shape == sides[:1]:
            return padded(node, sides[1])
        return shifted(node, -1) if name.endswith(tuple(self.one_added)) else node

    def cut_sides(self, name: str, text: Mapping[str, Any]) -> tuple[int, int] | None:
        """How many elements of a vector the class reads, and how many the folder has; None if it reads all."""
        row = next((row for end, row in self.cut.items() if name.endswith(end)), None)
        read, stored = (value_at(text, path.split(".")[:-1]).get(path.split(".")[-1]) for path in row or ("x", "x"))
        return (read, stored) if isinstance(read, int) and isinstance(stored, int) and 0 < read < stored else None

    def is_unread(self, name: str, text: Mapping[str, Any]) -> bool:
        """Whether the class drops the tensor of this name of mlx-vlm's. `text`: the language model's settings."""
        return any(row.has(name, text) for row in self.unread)

    def is_stack(self, name: str) -> bool:
        """Whether a tensor of this name is a stack, which mlx-vlm quantizes like matrices."""
        rows: list[Ending | Parted] = [*self.endings, *self.heads, *self.packed, *self.groups, *self.alternate]
        return any(name.endswith(tuple(row.mlx)) for row in rows)

    def to_hf(self, name: str) -> str:
        """Hugging Face's name of a tensor."""
        return _replaced(name, [(there, here) for here, there in self.prefixes])


class Without(Struct, frozen=True, forbid_unknown_fields=True):
    """Modules of mlx-vlm that no row has, and the reason."""

    why: str
    modules: list[str]
    kinds: Mapping[str, str] = {}


class TowerTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The parsed towers.toml."""

    multimodal: list[str]
    untied: list[str]
    computed: list[str]
    without: Mapping[str, Without]
    model: Mapping[str, TowerNames]

    def reason(self, kind: str) -> str:
        """Why no row has a model type; empty if mlx-vlm has no module of its name, either."""
        groups = self.without.values()
        return next((group.why for group in groups if group.kinds.get(kind, module_name(kind)) in group.modules), "")

    def quantizes(self, name: str) -> bool:
        """Whether mlx-vlm quantizes the matrix of this name, if its rows are whole groups."""
        return not any(part in name for part in self.multimodal)


def module_name(kind: str) -> str:
    """The module of mlx-vlm of a model type, unless mlx-vlm declares another."""
    return kind.lower().replace("-", "_")


@cache
def table() -> TowerTable:
    """Returns the parsed towers.toml."""
    stored = read_table(__file__, "towers.toml")
    rows: dict[str, dict[str, Any]] = {}
    for name, row in stored["model"].items():  # after the row that it is like
        like = {**rows.get(row.get("like", ""), {}), "module": module_name(name)}
        rows[name] = {**like, **row, "kind": name}
    return convert({**stored, "model": rows}, TowerTable)


def tower_names(config: Mapping[str, Any]) -> TowerNames | None:
    """The row of a config's model type, or of its class and tower if mlx-vlm knows the model by another type; None if
    the table has none."""
    kind, classes = config.get("model_type"), config.get("architectures")
    if not isinstance(kind, str):
        return None
    for row in table().model.values():
        named = isinstance(classes, list) and row.architecture in classes and row.published == kind
        if named and row.has_tower(config) and not (row.sees and "vision_config" not in config):
            return row
    return table().model.get(kind)


def is_of_mlx_vlm(config: Mapping[str, Any], index: Index) -> bool:
    """Whether a folder in MLX's form has towers, so that mlx-vlm reads it and mlx-lm doesn't."""
    names = tower_names(config) if index.metadata.get("format") == "mlx" else None
    return names is not None and names.has_towers(index.by_name)


def mlx_tensors(
    names: TowerNames, tensors: Mapping[str, LogicalTensor], text: Mapping[str, Any], turned: bool
) -> dict[str, LogicalTensor]:
    """The tensors under mlx-vlm's names: stacks of experts split, single experts stacked, matrices joined. `text`:
    the language model's settings. `turned`: whether the folder has stacks with the inputs first, if their row says
    so."""
    out: dict[str, LogicalTensor] = {}
    stacks: dict[str, dict[int, LogicalTensor]] = {}
    for name, node in tensors.items():
        new = names.to_mlx(name)
        row, start, number = names.ending(new)
        if row is None:
            out[new] = node
        elif row.is_numbered:
            out[row.in_mlx(start, number)] = node
        elif number:
            end, place = row.place(int(number), text)
            stacks.setdefault(start + end, {})[place] = node
        elif len(row.mlx) == 1 and not (row.turned and turned):
            out[start + row.mlx[0]] = node
        else:
            parts = _split(name, node, len(row.mlx), row.turned and turned)
            out |= {start + end: part for end, part in zip(row.mlx, parts, strict=True)}
    out |= {name: _stacked(name, experts) for name, experts in stacks.items()}
    out = with_joins(names.parted, out, text)
    return out | with_ones(names.ones, out)


def _split(name: str, node: LogicalTensor, count: int, turned: bool) -> list[Node]:
    """The parts of a stack of experts, each [expert, output, input]. `turned`: the stack has the inputs first."""
    from weighbridge.tensors.nodes import as_node, reshape, strided  # late: numpy

    plain = as_node(node)
    experts, rows, columns = _stack_shape(name, plain)
    outputs, inputs = (columns, rows) if turned else (rows, columns)
    if outputs % count:
        raise FormatError(f"{name} has {outputs} outputs, which don't split into {count} parts")
    steps = (1, columns) if turned else (columns, 1)
    flat, each = reshape(plain, (plain.spec.elements,)), outputs // count
    shape, strides = [experts, each, inputs], [rows * columns, *steps]
    return [strided(flat, part * each * steps[0], shape, strides) for part in range(count)]


def _joined(name: str, parts: list[LogicalTensor], turned: bool) -> Node:
    """The inverse of `_split`."""
    from weighbridge.tensors.nodes import as_node, concat, reshape, strided  # late: numpy

    nodes = [as_node(part) for part in parts]
    experts, each, inputs = _stack_shape(name, nodes[0])
    if any(node.spec.shape != nodes[0].spec.shape for node in nodes):
        raise FormatError(f"{name} and its parts are stacks of experts of different shapes")
    flat = reshape(concat(nodes), (len(nodes) * experts * each * inputs,))
    of_expert, of_part = each * inputs, experts * each * inputs
    if turned:
        shape, strides = [experts, inputs, len(nodes), each], [of_expert, 1, of_part, inputs]
        return reshape(strided(flat, 0, shape, strides), (experts, inputs, len(nodes) * each))
    shape, strides = [experts, len(nodes), each, inputs], [of_expert, of_part, inputs, 1]
    return reshape(strided(flat, 0, shape, strides), (experts, len(nodes) * each, inputs))


def _stack_shape(name: str, node: Node) -> tuple[int, int, int]:
    if len(node.spec.shape) != 3:
        raise FormatError(f"{name} is no stack of experts: it has the shape {list(node.spec.shape)}")
    experts, rows, columns = node.spec.shape
    return experts, rows, columns


def _stacked(name: str, experts: Mapping[int, LogicalTensor]) -> LogicalTensor:
    """Single experts as one tensor. Raises FormatError if one is missing."""
    from weighbridge.tensors.nodes import stack  # late: numpy

    if sorted(experts) != list(range(len(experts))):
        missing = min(set(range(len(experts))) - set(experts))
        raise FormatError(f"expert {missing} of {name} is missing")
    parts = [experts[number] for number in range(len(experts))]
    if any(part.spec.shape != parts[0].spec.shape for part in parts):
        raise FormatError(f"the experts of {name} have different shapes")
    return stack(parts)


def hf_tensors(names: TowerNames, tensors: Mapping[str, LogicalTensor]) -> tuple[dict[str, Node], set[str]]:
    """Returns the tensors that have a row in `endings` in the form of published folders, and their names here."""
    from weighbridge.tensors.nodes import as_node  # late: numpy

    out: dict[str, Node] = {}
    used: set[str] = set()
    for row in names.endings:
        if row.is_numbered:
            renamed = {name: new for name in tensors if (new := row.in_hf(name)) is not None}
            out |= {names.to_hf(new): as_node(tensors[name]) for name, new in renamed.items()}
            used |= set(renamed)
        named = [name for name in tensors if name.startswith(row.within) and name.endswith(row.mlx[0])]
        for name in [name for name in named if name not in used]:
            start = name.removesuffix(row.mlx[0])
            parts = [tensors[start + end] for end in row.mlx if start + end in tensors]
            if len(parts) < len(row.mlx):
                raise FormatError(f"one of the {plural(len(row.mlx), 'tensor')} of {start}{row.hf} is missing")
            used |= {start + end for end in row.mlx}
            out |= {names.to_hf(start + end): node for end, node in _restored(row, parts).items()}
    return out, used


def _restored(row: Ending, parts: list[LogicalTensor]) -> dict[str, Node]:
    """The tensors of a row by the ends of their names."""
    from weighbridge.tensors.nodes import as_node, reshape, slice_rows  # late: numpy

    if "*" not in row.hf:
        return {row.hf: _joined(row.mlx[0], parts, row.turned) if row.turned or len(parts) > 1 else as_node(parts[0])}
    experts: list[Node] = []
    for end, part in zip(row.mlx, parts, strict=True):
        stack = as_node(part)
        count, *shape = _stack_shape(end, stack)
        each = stack.spec.rows // max(count, 1)
        experts += [reshape(slice_rows(stack, at * each, (1, *shape)), tuple(shape)) for at in range(count)]
    return {row.hf.replace("*", str(number)): expert for number, expert in enumerate(experts)}


def from_mlx_vlm(model: OpenModel) -> OpenModel | None:
    """The model under Hugging Face's names, packed weights included; None without mlx-vlm's towers. `model`: of a
    folder whose metadata has `format` = mlx."""
    from weighbridge.tensors.nodes import as_node  # late: numpy

    names = tower_names(model.config)
    if names is None or not is_of_mlx_vlm(model.config, model.index):
        return None
    if any(name in model.index.by_name for name in names.reordered):
        raise UnsupportedError(
            f"written by mlx-vlm's own converter: its loader reorders rows of {names.kind} at each load, of a converted"
            " folder, too",
            hint="convert the published folder: wb convert SRC DST --to mlx --towers",
        )
    dropped = ones_of(names.ones, model.stored)
    parts: dict[str, Node] = {}
    used: set[str] = set()
    text = value_at(model.config, text_path(model))
    settings = {**text, "vision_config": model.config.get("vision_config")}
    read = {name: names.in_hf(name, tensor, settings) for name, tensor in model.logical.items()}
    if names.parted:
        parts, used = without_joins(names.parted, read, text)
    rest = {name: tensor for name, tensor in read.items() if name not in used}
    nodes, whole = hf_tensors(names, {**rest, **parts})
    nodes |= {names.to_hf(name): node for name, node in parts.items() if name not in whole}
    turned = {
        name
        for name in rest
        if name not in whole and _is_packed(model, name) and name.endswith(tuple(names.transposed))
    }
    nodes |= {names.to_hf(name): as_node(rest[name]) for name in turned}
    used |= {*whole, *turned, *dropped}
    modules = tuple(f"{name.removesuffix('.weight')}." for name in used if name.endswith(".weight"))
    for name, node in model.stored.items():
        if name in used or (name.startswith(modules) and name not in model.logical):
            continue
        if names.head and name.startswith(names.head[1].removesuffix("weight")) and ties_output(model) is not False:
            dropped[name] = Dropped(name, "copy", f"is {names.head[0]}, too", 1, node.spec.nbytes)
        else:
            nodes[names.to_hf(name)] = as_node(names.in_hf(name, node, settings))
    config = dict(model.config)
    for key in ("quantization", "quantization_config"):  # of single modules by their paths
        if isinstance(config.get(key), dict):
            config[key] = {
                names.to_hf(f"{name}.").removesuffix(".") if isinstance(value, dict | bool) else name: value
                for name, value in config[key].items()
            }
    if names.published:
        config["model_type"] = names.published
    for key in [key for key, place in names.copied.items() if config.get(key) == config.get(place)]:
        config.pop(key, None)
    texts = {**model.texts, "config.json": json.dumps(config, indent=2).encode()}
    named = with_nodes(model, nodes)
    index = replace(named.index, metadata={**named.index.metadata, "format": "pt"})
    return replace(named, index=index, texts=texts, left_out=(*model.left_out, *dropped.values()))


def _is_packed(model: OpenModel, name: str) -> bool:
    return f"{name.removesuffix('weight')}scales" in model.stored


def ties_output(model: OpenModel) -> bool | None:
    """Whether config.json, or the default of its class, takes the embedding for the output; None if neither says."""
    text = value_at(model.config, text_path(model))
    stated = text.get("tie_word_embeddings", model.config.get("tie_word_embeddings"))
    if stated is None and model.described:
        stated = model.family.effective(model.config).get("tie_word_embeddings")
    return stated if isinstance(stated, bool) else None


def _replaced(name: str, prefixes: list[tuple[str, str]]) -> str:
    for start, new in prefixes:
        if name.startswith(start):
            return new + name[len(start) :]
    return name
