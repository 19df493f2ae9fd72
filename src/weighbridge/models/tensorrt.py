"""Checkpoints of TensorRT-LLM: config.json and rank0.safetensors ... , each with one rank's share of the tensors.

Rank = pipeline stage * tensor ranks + tensor rank. A stage counts its layers from 0. Within a stage each tensor is
divided along an axis, by the table `SPLITS`; queries, keys and values are one matrix, and each is divided. Scales of
quantized weights stay separate tensors. Reference: docs/source/architecture/checkpoint.md of TensorRT-LLM, and its
scripts convert_checkpoint.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import CONFIG_JSON, SHARDS
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.base import Entry, Index
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.io.source import Source
from weighbridge.models.jsonfile import decode
from weighbridge.models.locate import Place
from weighbridge.models.stored_tensors import FROM_FIRST_RANK, JoinedModel, StoredTensors, joined_index
from weighbridge.models.tensor_parallel.partition import Partition, Segment, gather

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

_QKV: Final = "qkv"
_EMBEDDING: Final = "embedding"
#: End of a name -> the axis that tensor ranks divide, or its kind; None: every rank has the whole tensor.
SPLITS: Final[Mapping[str, int | str | None]] = MappingProxyType(
    {
        **{f"attention.qkv.{part}": _QKV for part in ("weight", "bias", "per_channel_scale")},
        "attention.dense.weight": 1, "attention.dense.bias": None, "attention.dense.per_channel_scale": None,
        **{f"mlp.{name}.{part}": 0 for name in ("fc", "gate") for part in ("weight", "bias", "per_channel_scale")},
        "mlp.proj.weight": 1, "mlp.proj.bias": None, "mlp.proj.per_channel_scale": None,
        "vocab_embedding.weight": _EMBEDDING, "position_embedding.weight": None,
        "lm_head.weight": 0, "lm_head.bias": 0, "lm_head.per_channel_scale": 0,
        "norm.weight": None, "norm.bias": None, "ln_f.weight": None, "ln_f.bias": None, "ln_embed.weight": None,
        "ln_embed.bias": None, "_scaling_factor": None,
    }
)  # fmt: skip
#: The methods whose weights are divided as plain ones are. The others pack weights for each rank's kernels.
_DIVIDED: Final = frozenset({None, "FP8"})
_LAYER: Final = re.compile(r"(.*\blayers\.)(\d{1,6})(\..+)", re.ASCII | re.DOTALL)
_COUNT: Final = 1 << 31


@dataclass(frozen=True)
class _Config:
    """The facts of config.json that joining needs. `head`: the size of an attention head; `embedding`: the axis of a
    divided embedding, or None; `method`: of quantization."""

    tensor: int
    stages: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    embedding: int | None
    method: str | None

    def segments(self) -> tuple[Segment, ...]:
        """Returns the rows of queries, keys and values."""
        copies = max(self.tensor // self.kv_heads, 1)
        kv = Segment(self.kv_heads * self.head, copies)
        return Segment(self.heads * self.head), kv, kv


def _number(path: str, table: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Returns a positive number of a JSON object; `default` if it is missing or null."""
    value = default if table.get(key) is None else table[key]
    if type(value) is not int or not 0 < value < _COUNT:
        raise FormatError("not a positive number", path=path, field=key, found=repr(value)[:40])
    return value


def _read(place: Place) -> _Config:
    path = str(place.folder / "config.json")
    config: dict[str, Any] = decode(place.read("config.json") or b"{}", path, dict[str, Any], CONFIG_JSON)
    mapping, quantization = config.get("mapping"), config.get("quantization")
    if not isinstance(mapping, dict):
        raise FormatError("no mapping of ranks", path=path, field="mapping")

    number = partial(_number, path)
    tensor, stages = number(mapping, "tp_size", 1), number(mapping, "pp_size", 1)
    if tensor * stages != number(mapping, "world_size", tensor * stages) or tensor * stages > SHARDS:
        reason = "the ranks aren't tensor and pipeline ranks only"
        raise UnsupportedError(f"{path}: {reason}", hint="write the checkpoint without context or expert parallelism")
    heads = number(config, "num_attention_heads")
    head = number(config, "head_size", number(config, "hidden_size") // heads or 1)
    axis = config.get("embedding_sharding_dim", 0)
    embedding = (1 if axis == 1 else 0) if config.get("use_parallel_embedding") else None
    method = quantization.get("quant_algo") if isinstance(quantization, dict) else None
    return _Config(tensor, stages, number(config, "num_hidden_layers"), heads,
                   number(config, "num_key_value_heads", heads), head, embedding,
                   None if method is None else str(method))  # fmt: skip


def open_tensorrt(place: Place, sources: Sequence[Source]) -> JoinedModel:
    """Returns the whole model of all ranks. `sources`: the files in the order of the ranks.
    Raises FormatError if a rank is missing or the ranks don't fit, UnsupportedError for a tensor without a rule."""
    config = _read(place)
    ranks = config.tensor * config.stages
    if [Path(source.name).name for source in sources] != [f"rank{number}.safetensors" for number in range(ranks)]:
        raise FormatError("the files aren't those of all ranks", path=str(place.path), expected=plural(ranks, "rank"),
                          found=plural(len(sources), "file"), hint="copy the missing files")  # fmt: skip
    if config.method not in _DIVIDED and config.tensor > 1:
        raise UnsupportedError(
            f"{place.path}: weights of {config.method} are packed for each tensor rank",
            hint="write the checkpoint with tp_size 1",
        )
    indexes = [safetensors.parse(source) for source in sources]
    nodes: dict[str, Node] = {}
    entries: list[tuple[int, Entry]] = []
    layers = 0
    for first in range(0, ranks, config.tensor):
        group = indexes[first : first + config.tensor]
        numbers = {int(match[2]) for name in group[0].by_name if (match := _LAYER.fullmatch(name))}
        shift = layers if numbers and min(numbers) == 0 else 0
        if any(index.by_name.keys() != group[0].by_name.keys() for index in group):
            raise FormatError("the ranks of a stage have different tensors", path=group[0].files[0].name)
        stored = [StoredTensors(index) for index in group]
        for entry in group[0]:
            match = _LAYER.fullmatch(entry.name)
            name = f"{match[1]}{int(match[2]) + shift}{match[3]}" if match else entry.name
            if name in nodes:
                raise FormatError("two stages have one tensor", path=group[0].files[0].name, field=name)
            node = nodes[name] = _join(config, entry, [tensors[entry.name] for tensors in stored], group)
            entries.append((first, Entry(name, entry.dtype, node.spec.shape, entry.offset, node.spec.nbytes)))
        layers += len(numbers)
    if layers != config.layers:
        raise FormatError("the ranks have another number of layers than config.json", path=str(place.path),
                          expected=config.layers, found=layers)  # fmt: skip
    notes = [f"joined from {plural(config.tensor, 'tensor rank')} and {plural(config.stages, 'pipeline stage')}"]
    if scales := sum(name.endswith(("_scaling_factor", "_scale")) for name in nodes):
        method = config.method or "an unnamed method"
        notes.append(f"quantized by {method}: {plural(scales, 'tensor')} of scales, unchanged")
    notes += [FROM_FIRST_RANK] if config.tensor > 1 else []
    return JoinedModel(joined_index(indexes, entries), nodes, notes=tuple(notes))


def _join(config: _Config, entry: Entry, parts: Sequence[Node], group: Sequence[Index]) -> Node:
    """Returns a whole tensor of a stage."""
    path, ranks = group[0].files[0].name, len(parts)
    if any(part.spec != parts[0].spec for part in parts):
        raise FormatError("the ranks' shapes or types differ", path=path, field=entry.name)
    if ranks == 1:
        return parts[0]
    end = next((end for end in SPLITS if entry.name.endswith(end)), None)
    if end is None:
        raise UnsupportedError(
            f"{path}: {entry.name} has no rule in the table of splits", hint="write the checkpoint with tp_size 1"
        )
    kind = SPLITS[end]
    axis = config.embedding if kind == _EMBEDDING else 0 if kind == _QKV else kind
    if axis is None:
        return parts[0]
    assert isinstance(axis, int)
    if len(entry.shape) > 2 or axis >= len(entry.shape):
        raise UnsupportedError(f"{path}: no rule for the shape {list(entry.shape)} of {entry.name}, such as experts'",
                               hint="write the checkpoint with tp_size 1")  # fmt: skip
    segments = config.segments() if kind == _QKV else (Segment(entry.shape[axis] * ranks),)
    partition = Partition(axis, segments)
    expected = sum(partition.local_sizes(ranks))
    if entry.shape[axis] != expected or any(size * copies % ranks for size, copies in segments):
        raise FormatError("the rows don't fit the heads in config.json", path=path, field=entry.name,
                          expected=expected, found=entry.shape[axis])  # fmt: skip
    return gather(parts, partition)
