"""Models that see or hear in mlx-vlm: names and layouts of all their tensors, and back to those of Hugging Face.

tower_names(config)       the row of a model's type in towers.toml
from_mlx_vlm(model)       a folder of mlx-vlm under Hugging Face's names
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert

from weighbridge.base.imports.tables import read_table
from weighbridge.models.model import OpenModel
from weighbridge.models.stored_tensors import Dropped
from weighbridge.models.transform.base import with_nodes

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor, Node


class TowerNames(Struct, frozen=True, forbid_unknown_fields=True):
    """One model type; towers.toml documents the fields."""

    like: str = ""
    prefixes: list[tuple[str, str]] = []
    channels_last: list[str] = []
    flat: str = ""
    head: list[str] = []

    def to_mlx(self, name: str) -> str:
        """mlx-vlm's name of a tensor."""
        return _replaced(name, self.prefixes)

    def to_hf(self, name: str) -> str:
        """Hugging Face's name of a tensor."""
        return _replaced(name, [(there, here) for here, there in self.prefixes])


class TowerTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The parsed towers.toml."""

    multimodal: list[str]
    computed: list[str]
    model: Mapping[str, TowerNames]

    def quantizes(self, name: str) -> bool:
        """Whether mlx-vlm quantizes the matrix of this name, if its rows are whole groups."""
        return not any(part in name for part in self.multimodal)


@cache
def table() -> TowerTable:
    """Returns the parsed towers.toml."""
    stored = read_table(__file__, "towers.toml")
    named = stored["model"]
    rows = {name: {**(named[row["like"]] if "like" in row else {}), **row} for name, row in named.items()}
    return convert({**stored, "model": rows}, TowerTable)


def tower_names(config: Mapping[str, Any]) -> TowerNames | None:
    """The row of a config's model type; None if the table has none."""
    kind = config.get("model_type")
    return table().model.get(kind) if isinstance(kind, str) else None


def channels_last(node: LogicalTensor) -> Node:
    """A convolution of shape [out, in, *kernel] as [out, *kernel, in]."""
    return _with_axis(node, 1, -1)


def channels_first(node: LogicalTensor) -> Node:
    """The inverse of `channels_last`."""
    return _with_axis(node, -1, 1)


def _with_axis(node: LogicalTensor, source: int, target: int) -> Node:
    from weighbridge.tensors.nodes import as_node, reshape, strided  # late: numpy

    plain = as_node(node)
    shape = plain.spec.shape
    axes = list(range(len(shape)))
    axes.insert(target % len(shape), axes.pop(source))
    strides = [math.prod(shape[axis + 1 :]) for axis in axes]
    return strided(reshape(plain, (plain.spec.elements,)), 0, [shape[axis] for axis in axes], strides)


def from_mlx_vlm(model: OpenModel) -> OpenModel | None:
    """The model under Hugging Face's names, packed weights included; None without mlx-vlm's towers. `model`: of a
    folder whose metadata has `format` = mlx."""
    names = tower_names(model.config)
    if names is None or all(map(table().quantizes, model.index.by_name)):
        return None
    turned, nodes, copies = set(names.channels_last), {}, []
    for name, node in model.stored.items():
        if names.head and name.startswith(names.head[1].removesuffix("weight")):
            copies.append(Dropped(name, "copy", f"is {names.head[0]}, too", 1, node.spec.nbytes))
        else:
            nodes[names.to_hf(name)] = channels_first(node) if name in turned else node
    config = dict(model.config)
    for key in ("quantization", "quantization_config"):  # of single modules by their paths
        if isinstance(config.get(key), dict):
            config[key] = {
                names.to_hf(name) if isinstance(value, dict | bool) else name: value
                for name, value in config[key].items()
            }
    texts = {**model.texts, "config.json": json.dumps(config, indent=2).encode()}
    named = with_nodes(model, nodes)
    index = replace(named.index, metadata={**named.index.metadata, "format": "pt"})
    return replace(named, index=index, texts=texts, left_out=(*model.left_out, *copies))


def _replaced(name: str, prefixes: list[tuple[str, str]]) -> str:
    for start, new in prefixes:
        if name.startswith(start):
            return new + name[len(start) :]
    return name
