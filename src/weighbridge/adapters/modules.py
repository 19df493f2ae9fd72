"""Tensors into torch modules, by assignment: parameters share the file's pages. torch is imported when asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from weighbridge.adapters.cuda import is_cuda, to_devices
from weighbridge.adapters.torch import BY_TORCH
from weighbridge.base.dtypes import DType
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.tensors.nodes import LogicalTensor, as_node
from weighbridge.tensors.prefetch import prefetch_behind

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LoadReport:
    """`loaded`: the names that were assigned. `missing`: of the module, not in the file; `unexpected`: the other way
    round. `idle`: buffers in the file that the module computes itself. `on_meta`: buffers that no file has (not
    persistent, computed as a module is built) and that are still on the meta device. True if nothing is missing,
    unexpected or on the meta device."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    on_meta: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not (self.missing or self.unexpected or self.on_meta)


def load_module(
    module: torch.nn.Module,
    tensors: Mapping[str, LogicalTensor],
    *,
    dtype: DType | None,
    device: str | None,
    strict: bool,
    idle: Collection[str] = (),
) -> LoadReport:
    """Assigns `tensors` to the parameters and buffers with their names, also in modules on the meta device. Values
    get the module's types unless `dtype` is given, which applies only to floating-point values. Shared parameters
    stay shared. `idle`: names of buffers that the module may lack. Raises UsageError if names (`strict`) or shapes
    differ."""
    places = module.state_dict(keep_vars=True)
    groups: dict[int, set[str]] = {}
    for name, value in places.items():
        groups.setdefault(id(value), set()).add(name)
    groups = {name: groups[id(value)] for name, value in places.items()}
    wanted = {name: tensors[name] for name in places if name in tensors}
    absent = [n for n in places if n not in wanted and not groups[n] & wanted.keys()]
    others = [n for n in tensors if n not in places]
    unexpected = [n for n in others if n not in idle]
    for name, node in wanted.items():
        stored, shape = node.spec.shape, tuple(places[name].shape)
        if stored != shape:
            raise UsageError(f"{name} is {list(stored)} in the file, {list(shape)} in the module")
    words = {"not in the file": absent if strict else [], "not in the module": unexpected if strict else []}
    if parts := [f"{word}: {', '.join(n[:4])}{' ...' * (len(n) > 4)}" for word, n in words.items() if n]:
        raise UsageError("; ".join(parts), hint="strict=False loads the others")
    nodes = {name: as_node(node, _type_in(places[name], dtype)) for name, node in wanted.items()}
    where = {name: device or ("cpu" if places[name].is_meta else str(places[name].device)) for name in wanted}
    prefetch_behind((node for name, node in nodes.items() if not is_cuda(where[name])), private=True)
    state = to_devices(nodes, where)
    module.load_state_dict(state, assign=True, strict=False)
    for name in wanted:
        for other in groups[name] - wanted.keys():
            owner, _, last = other.rpartition(".")
            here, _, parameter = name.rpartition(".")
            setattr(module.get_submodule(owner), last, getattr(module.get_submodule(here), parameter))
    left = tuple(name for name, buffer in module.named_buffers() if buffer.is_meta and name not in places)
    unused = tuple(n for n in others if n in idle)
    return LoadReport(tuple(wanted), tuple(absent), tuple(unexpected), unused, left)


def _type_in(place: Any, dtype: DType | None) -> DType:
    """The type of a parameter, or `dtype` in its place if it is of floating point numbers."""
    kind = BY_TORCH.get(str(place.dtype)) if dtype is None or not place.dtype.is_floating_point else dtype
    if kind is None:
        raise UnsupportedError(f"no cast to {place.dtype}")
    return kind
