"""Tensors into torch modules: by assignment, so that parameters share the file's pages, and into transformers' classes.
torch and transformers are imported only when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from weighbridge.adapters.torch import to_torch, torch_dtype
from weighbridge.base.dtypes import BY_NAME, DType
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.tensors.nodes import LogicalTensor, Node

if TYPE_CHECKING:
    import torch

_BY_TORCH: Final = {f"torch.{t.torch}": t for t in BY_NAME.values() if t.torch}


@dataclass(frozen=True)
class LoadReport:
    """`loaded`: the names that were assigned. `missing`: of the module, not in the file; `unexpected`: the other way
    round. True where both are empty."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not (self.missing or self.unexpected)


def load_module(
    module: torch.nn.Module,
    tensors: Mapping[str, LogicalTensor],
    *,
    dtype: DType | None,
    device: str | None,
    strict: bool,
) -> LoadReport:
    """Assign `tensors` to the parameters and buffers of their names, of modules on the meta device too. Values come in
    the module's own types unless `dtype` names another (what is no floating point number stays). Parameters that the
    module shares stay shared. UsageError where names differ (`strict`) or shapes do."""
    places = module.state_dict(keep_vars=True)
    groups = _shared(places)
    wanted = {name: tensors[name] for name in places if name in tensors}
    absent = [n for n in places if n not in wanted and not groups[n] & wanted.keys()]
    unexpected = [n for n in tensors if n not in places]
    _check(wanted, places, absent if strict else [], unexpected if strict else [])
    state = {name: _as_of(node, places[name], dtype, device) for name, node in wanted.items()}
    module.load_state_dict(state, assign=True, strict=False)
    for name in wanted:
        for other in groups[name] - wanted.keys():
            _assign(module, other, _at(module, name))
    return LoadReport(tuple(wanted), tuple(absent), tuple(unexpected))


def _shared(places: Mapping[str, Any]) -> dict[str, set[str]]:
    """Of each name, the names of the same parameter."""
    groups: dict[int, set[str]] = {}
    for name, value in places.items():
        groups.setdefault(id(value), set()).add(name)
    return {name: groups[id(value)] for name, value in places.items()}


def _check(
    wanted: Mapping[str, LogicalTensor], places: Mapping[str, Any], absent: list[str], unexpected: list[str]
) -> None:
    for name, node in wanted.items():
        stored, shape = node.spec.shape, tuple(places[name].shape)
        if stored != shape:
            raise UsageError(f"{name} is {list(stored)} in the file, {list(shape)} in the module")
    words = {"not in the file": absent, "not in the module": unexpected}
    if parts := [f"{word}: {', '.join(n[:4])}{' ...' * (len(n) > 4)}" for word, n in words.items() if n]:
        raise UsageError("; ".join(parts), hint="strict=False loads the others")


def _as_of(node: LogicalTensor, place: Any, dtype: DType | None, device: str | None) -> torch.Tensor:
    """A tensor as the module has it: its type, its device (the CPU for one on the meta device)."""
    kind = _BY_TORCH.get(str(place.dtype)) if dtype is None or not place.dtype.is_floating_point else dtype
    if kind is None:
        raise UnsupportedError(f"no cast to {place.dtype}")
    where = device or (None if place.is_meta or place.device.type == "cpu" else str(place.device))
    return to_torch(node, kind, where)


def _at(module: torch.nn.Module, name: str) -> Any:
    owner, _, last = name.rpartition(".")
    return getattr(module.get_submodule(owner), last)


def _assign(module: torch.nn.Module, name: str, value: Any) -> None:
    owner, _, last = name.rpartition(".")
    setattr(module.get_submodule(owner), last, value)


# ------------------------------------------------------------------------------------------------ transformers


class LazyValue:
    """A weight as transformers takes it from a state dict: read when it is indexed, and then only the part."""

    def __init__(self, node: LogicalTensor, dtype: DType | None) -> None:
        self._node, self._dtype = node, dtype

    @property
    def dtype(self) -> torch.dtype:
        stored = self._node.spec.dtype if isinstance(self._node, Node) else None
        return torch_dtype(self._dtype or (stored if stored is not None and stored.torch else BY_NAME["F32"]))

    @property
    def shape(self) -> tuple[int, ...]:
        return self._node.spec.shape

    def get_shape(self) -> list[int]:
        """The shape, as a safetensors slice gives it."""
        return list(self.shape)

    def is_floating_point(self) -> bool:
        """Whether values are floating point numbers."""
        return bool(self.dtype.is_floating_point)

    def __getitem__(self, key: Any) -> torch.Tensor:
        if key is ... or key == (...,):
            return to_torch(self._node, self._dtype)
        from weighbridge.tensors.slicing import narrow

        rows, rest = narrow(self._node, key)
        return to_torch(rows, self._dtype)[rest]


def transformers_model(
    kind: Any,
    config: Mapping[str, Any],
    tensors: Mapping[str, LogicalTensor],
    dtype: DType | None,
    options: dict[str, Any],
) -> Any:
    """A model of a transformers class from lazy values under hub names. UsageError for a class that has no config of
    its own (an Auto class)."""
    if getattr(kind, "config_class", None) is None:
        raise UsageError(
            f"{kind.__name__} is no class of one architecture",
            hint="pass the class itself: the first of config.json's architectures",
        )
    own = kind.config_class.from_dict({k: v for k, v in config.items() if k not in _QUANTIZED})
    found = None if dtype is None else torch_dtype(dtype)
    lazy = {name: LazyValue(node, dtype) for name, node in tensors.items()}
    return kind.from_pretrained(None, config=own, state_dict=lazy, dtype=found or "auto", **options)


#: The settings of packed weights in a config; the weights are handed over decoded.
_QUANTIZED: Final = ("quantization", "quantization_config")
