"""Tensors into torch modules: by assignment, so that parameters share the file's pages, and into transformers' classes.
torch and transformers are imported only when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from weighbridge.adapters.cuda import is_cuda, to_devices
from weighbridge.adapters.torch import BY_TORCH, to_torch, torch_dtype
from weighbridge.base.dtypes import BY_NAME, DType
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.tensors.nodes import LogicalTensor, Node, as_node
from weighbridge.tensors.prefetch import prefetch_behind

if TYPE_CHECKING:
    import torch
#: The keys under which config.json states packed weights: MLX's, the hub's.
QUANTIZATION_KEYS: Final = ("quantization", "quantization_config")


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
    nodes = {name: as_node(node, _type_in(places[name], dtype)) for name, node in wanted.items()}
    where = {name: device or _device_in(places[name]) for name in wanted}
    prefetch_behind((node for name, node in nodes.items() if not is_cuda(where[name])), private=True)
    state = to_devices(nodes, where)
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


def _type_in(place: Any, dtype: DType | None) -> DType:
    """The type of a parameter, or `dtype` in its place if it is of floating point numbers."""
    kind = BY_TORCH.get(str(place.dtype)) if dtype is None or not place.dtype.is_floating_point else dtype
    if kind is None:
        raise UnsupportedError(f"no cast to {place.dtype}")
    return kind


def _device_in(place: Any) -> str:
    """The device of a parameter; the CPU for one on the meta device."""
    return "cpu" if place.is_meta else str(place.device)


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
    *,
    packed: bool = False,
) -> Any:
    """A model of a transformers class from lazy values under hub names. `packed`: they are the stored parts of a method
    that the config names, for the class's own modules of it. UsageError for a class that has no config of its own (an
    Auto class), and with `packed` for a method that transformers doesn't have."""
    if getattr(kind, "config_class", None) is None:
        raise UsageError(
            f"{kind.__name__} is no class of one architecture",
            hint="pass the class itself: the first of config.json's architectures",
        )
    if packed:
        _check_method(config)
    own = kind.config_class.from_dict({k: v for k, v in config.items() if packed or k not in QUANTIZATION_KEYS})
    found = None if dtype is None else torch_dtype(dtype)
    lazy = {name: LazyValue(node, None if packed else dtype) for name, node in tensors.items()}
    return kind.from_pretrained(None, config=own, state_dict=lazy, dtype=found or "auto", **options)


def _check_method(config: Mapping[str, Any]) -> None:
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    mlx, hub = QUANTIZATION_KEYS
    method = None if mlx in config else (config.get(hub) or {}).get("quant_method")
    if not any(f"{method}{bits}" in AUTO_QUANTIZATION_CONFIG_MAPPING for bits in ("", "_4bit", "_8bit")):
        raise UsageError(
            f"transformers has no modules for weights packed by {method}" if method else
            "the config names no method of packed weights that transformers has",
            hint="leave packed out: the weights are then decoded",
        )  # fmt: skip
