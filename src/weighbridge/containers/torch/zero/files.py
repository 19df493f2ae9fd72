"""DeepSpeed's ZeRO checkpoints: the fp32 weights, cut evenly over the processes of a training run.

    mp_rank_00_model_states.pt                       names and shapes of the weights, buffers (stages 1 and 2)
    zero_pp_rank_1_mp_rank_00_model_states.pt        the same of process 1 (stage 3)
    zero_pp_rank_1_mp_rank_00_optim_states.pt        process 1's part of the weights and of the optimizer
    layer_03-model_00-model_states.pt                a layer of a pipeline in 16 bits, with buffers and frozen weights
    layer_0_expert_5_mp_rank_00_model_states.pt      an expert in 16 bits
    zero/<weight>/fp32.pt                            a universal checkpoint: one file a weight

    stage 1, 2   a vector per group of weights, one after the other, is cut into one part a process
    stage 3      each weight is cut into one part a process, padded to equal sizes; these are stored one after the other

The number after mp_rank counts tensor-parallel parts, stage by stage of a pipeline (`checkpoint_parallel_dimensions`).
Their processes have a part of each of the stage's weights; the model states state how these are joined (`rules`).

Groups of experts are cut over fewer processes (`partition_count`): every second process, say, has the first half of
the experts. Each counts its experts from 0.

Every file is a file of torch.save; an abstract machine reads its pickle, which is never unpickled. The functions here
read the values of a file; `join` makes weights of those of all files, and `models/zero` opens folders.
Reference: deepspeed/utils/zero_to_fp32.py and deepspeed/checkpoint of DeepSpeed 0.19; the values are those that
zero_to_fp32 computes. Frozen weights of stage 1, which that omits, are read from the model states.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Mapping
from typing import Any, Final

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import DIMS, SHARDS, SIGNED_64
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.containers.base import Entry, Index
from weighbridge.containers.torch.zero.rules import RULES, PartRules, part_rules
from weighbridge.unpickle.tree import TensorLeaf

#: The folder of a universal checkpoint's weights, and a weight's file in it.
UNIVERSAL, UNIVERSAL_FILE = "zero", "fp32.pt"
_MODEL: Final = re.compile(r"(?:zero_pp_rank_(?P<rank>\d{1,6})_)?mp_rank_(?P<part>\d{2,6})_model_states\.pt", re.ASCII)
_OPTIMIZER: Final = re.compile(
    r"(?:bf16_|fp16_)?zero_pp_rank_(?P<rank>\d{1,6})_mp_rank_(?P<part>\d{2,6})_optim_states\.pt", re.ASCII
)
_LAYER: Final = re.compile(r"layer_(?P<layer>\d{2,6})-(?:model_(?P<part>\d{2,6})-)?model_states\.pt", re.ASCII)
_EXPERT: Final = re.compile(r"(?:layer_\d{1,6}_)?expert_\d{1,6}_mp_rank_(?P<part>\d{2,6})_model_states\.pt", re.ASCII)
_STATE: Final = "optimizer_state_dict"
# Stage -> the key of a process's parts of the weights.
_PARTS: Final = {1: "single_partition_of_fp32_groups", 2: "single_partition_of_fp32_groups", 3: "fp32_flat_groups"}


def files_of(names: Collection[str]) -> list[str] | None:
    """The files of a ZeRO checkpoint: model states, then optimizer states, each by tensor-parallel part and process,
    then copies in 16 bits. None in a folder without the parts of its weights."""
    kinds = (_MODEL, _OPTIMIZER, _LAYER, _EXPERT)
    named = [(match, name) for name in names if (match := next(filter(None, (k.fullmatch(name) for k in kinds)), None))]
    if not any(match.re is _OPTIMIZER or (match.re is _MODEL and match["rank"]) for match, _ in named):
        return None
    return [name for *_, name in sorted((kinds.index(m.re), *numbers_of(name), name) for m, name in named)]


def is_model(path: str) -> bool:
    """Whether a file has model states."""
    return _MODEL.fullmatch(path.rpartition("/")[2]) is not None


def numbers_of(path: str) -> tuple[int, int]:
    """The tensor-parallel part and the process of a file."""
    name = path.rpartition("/")[2]
    match = _MODEL.fullmatch(name) or _OPTIMIZER.fullmatch(name)
    return (int(match["part"]), int(match["rank"] or 0)) if match else (0, 0)


@dataclass(frozen=True)
class ModelStates:
    """The content of a file of model states. `file`: the number of its index. `shapes`: of the weights, by group of the
    optimizer. `module`: the tensors used in training, in 16 bits; none in stage 3 and in pipelines. `rules`: for its
    parts. `sizes`: the numbers of stages of the pipeline and of tensor-parallel parts. `experts_last`: whether
    processes with the same experts have consecutive numbers."""

    path: str
    file: int
    shapes: tuple[Mapping[str, Shape], ...]
    frozen: Mapping[str, Shape]
    fragments: Mapping[str, Entry]
    buffers: Mapping[str, Entry]
    shared: Mapping[str, str]
    module: Mapping[str, Entry]
    step: int | None = None
    rules: PartRules | None = None
    sizes: tuple[int, int] | None = None
    buffer_names: frozenset[str] = frozenset()
    experts_last: bool = False


@dataclass(frozen=True)
class OptimizerStates:
    """The content of a file of optimizer states. `parts`: the process's parts of the weights, by group. `gaps`: the
    padding after each weight of a group, if there is any. `counts`: of the processes that share a group, if they differ
    between groups."""

    path: str
    file: int
    stage: int
    ranks: int
    parts: tuple[Entry, ...]
    gaps: tuple[tuple[int, ...], ...] | None = None
    step: int | None = None
    counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class LayerCopies:
    """The content of a file of a layer of a pipeline, or of an expert (`layer` is None), in 16 bits."""

    path: str
    file: int
    layer: int | None
    part: int
    tensors: Mapping[str, Entry]


# ---- the values of one file ------------------------------------------------------------------------------------


def model_states(file: int, index: Index, value: Any) -> ModelStates:
    """`value`: the nested value of the file (`torch.tree`). FormatError if it isn't one of model states."""
    path = index.files[0].name
    top = _dict(value, path, "the file")
    if "param_shapes" not in top or "buffer_names" not in top:
        raise FormatError("not a file of DeepSpeed's model states", path=path, expected="param_shapes and buffer_names")
    groups = top["param_shapes"]
    shapes = [_shapes(group, path, "param_shapes") for group in (groups if isinstance(groups, list) else [groups])]
    names = top["buffer_names"] if isinstance(top["buffer_names"], list) else []
    module = top["module"] if isinstance(top.get("module"), dict) else {}
    fragments = top.get("frozen_param_fragments")
    shared = top.get("shared_params")
    pairs = shared.items() if isinstance(shared, dict) else [p for p in shared or () if isinstance(p, list | tuple)]
    step = top.get("global_steps")
    if top.get("ds_autoep_layers") is not None or top.get("autoep_layers") is not None:
        raise UnsupportedError(f"{path}: experts that DeepSpeed's AutoEP shares among processes",
                               hint="convert it by DeepSpeed's ds_to_universal first")  # fmt: skip
    sizes = top.get("checkpoint_parallel_dimensions")
    listed = [sizes.get(key) for key in ("pp_degree", "tp_degree")] if isinstance(sizes, dict) else []
    counts = [n for n in listed if type(n) is int and 0 < n <= SHARDS]
    if sizes is not None and len(counts) < 2:
        raise FormatError("not the numbers of stages and parts", path=path, field="checkpoint_parallel_dimensions",
                          found=repr(sizes)[:80])  # fmt: skip
    settings = top.get("ds_config")
    last = isinstance(settings, dict) and settings.get("use_data_before_expert_parallelism") is True
    return ModelStates(
        path, file, tuple(shapes), _shapes(top.get("frozen_param_shapes") or {}, path, "frozen_param_shapes"),
        _entries(index, fragments if isinstance(fragments, dict) else {}),
        _entries(index, {name: module[name] for name in names if name in module}),
        {str(alias): str(source) for alias, source in pairs}, _entries(index, module),
        step if type(step) is int else None, part_rules(top.get(RULES), path),
        (counts[0], counts[1]) if counts else None, frozenset(map(str, names)), last,
    )  # fmt: skip


def optimizer_states(file: int, index: Index, value: Any) -> OptimizerStates:
    """`value`: the nested value of the file. FormatError if it isn't one of ZeRO's optimizer states."""
    path = index.files[0].name
    state = _dict(_dict(value, path, "the file").get(_STATE), path, _STATE)
    stage, ranks = state.get("zero_stage"), state.get("partition_count")
    counts: tuple[int, ...] = ()
    if isinstance(ranks, list) and ranks and all(type(n) is int for n in ranks):
        counts, ranks = tuple(ranks), max(ranks)  # with experts, groups are cut over different numbers of processes
        if any(n < 1 or ranks % n for n in counts):
            raise FormatError("not numbers of processes", path=path, field="partition_count", found=counts[:8])
    if type(stage) is not int or stage not in _PARTS:
        raise FormatError("not a stage of ZeRO", path=path, field="zero_stage", expected="1, 2 or 3", found=stage)
    if type(ranks) is not int or not 0 < ranks <= SHARDS:
        raise FormatError("not a number of processes", path=path, field="partition_count", found=ranks)
    parts = state.get(_PARTS[stage])
    listed = parts if isinstance(parts, list | tuple) else [parts]
    entries = [index.by_name.get(leaf.name) if isinstance(leaf, TensorLeaf) else None for leaf in listed]
    stored = tuple(entry for entry in entries if entry is not None)
    if len(stored) < len(entries):
        raise FormatError("the process's parts of the weights are missing", path=path, field=_PARTS[stage])
    for entry in stored:
        if len(entry.shape) != 1 or entry.strides is not None or not entry.dtype.plain:
            raise FormatError("a part of the weights isn't a plain vector", path=path, field=entry.name,
                              found=str(entry.spec))  # fmt: skip
    gaps = state.get("param_alignment_paddings")
    if gaps is not None:
        nested = isinstance(gaps, list | tuple) and all(isinstance(group, list | tuple) for group in gaps)
        if not nested or not all(type(n) is int and 0 <= n < SIGNED_64 for group in gaps for n in group):
            raise FormatError("not the padding after each weight", path=path, field="param_alignment_paddings")
        gaps = tuple(map(tuple, gaps))
    return OptimizerStates(path, file, stage, ranks, stored, gaps, _step(index, state), counts)


def copies(file: int, index: Index, value: Any) -> LayerCopies:
    """`value`: the nested value of the file of a layer or an expert."""
    path = index.files[0].name
    name = path.rpartition("/")[2]
    match = _LAYER.fullmatch(name) or _EXPERT.fullmatch(name)
    if match is None:
        raise FormatError("not the file of a layer or an expert", path=path)
    layer = int(match["layer"]) if match.re is _LAYER else None
    return LayerCopies(path, file, layer, int(match["part"] or 0), _entries(index, _dict(value, path, "the file")))


def _step(index: Index, state: Mapping[Any, Any]) -> int | None:
    """The optimizer's steps, which every process counts: a number, or a tensor of one float."""
    inner: Any = state.get("base_optimizer_state") or state.get(_STATE)
    for key in ("state", 0, "step"):
        inner = inner.get(key) if isinstance(inner, dict) else None
    entry = index.by_name.get(inner.name) if isinstance(inner, TensorLeaf) else None
    if entry is not None and entry.dtype is F32 and entry.nbytes == F32.size:
        raw = index.files[entry.file].read(entry.offset, entry.nbytes)
        (number,) = struct.unpack(f"{index.byte_order}f", raw)
        return int(number) if number.is_integer() else None
    return inner if type(inner) is int else None


def _dict(value: Any, path: str, name: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise FormatError("not a dict, as DeepSpeed saves", path=path, field=name, found=type(value).__name__)
    return value


def _shapes(value: Any, path: str, name: str) -> dict[str, Shape]:
    out: dict[str, Shape] = {}
    for key, shape in _dict(value, path, name).items():
        good = isinstance(key, str) and isinstance(shape, list | tuple) and len(shape) <= DIMS
        if not good or not all(type(n) is int and 0 <= n < SIGNED_64 for n in shape):
            raise FormatError("not a weight's shape", path=path, field=f"{name}.{key}"[:200], found=repr(shape)[:80])
        out[key] = tuple(shape)
    return out


def _entries(index: Index, leaves: Mapping[Any, Any]) -> dict[str, Entry]:
    return {
        str(name): index.by_name[leaf.name]
        for name, leaf in leaves.items()
        if isinstance(leaf, TensorLeaf) and leaf.name in index.by_name
    }
