"""Converts live training objects to plain data and back: torch tensors and numpy arrays become `Ref`s, and shared
storages stay shared. torch is imported only if a torch tensor is converted."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final

import numpy as np

from weighbridge.adapters.remote.extra import package
from weighbridge.adapters.torch import BY_TORCH
from weighbridge.base.dtypes import BY_NAME, BY_NUMPY, U8, DType
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec, c_strides
from weighbridge.base.state import Kind, Ordered, Ref, extent, path_of, too_deep
from weighbridge.tensors.nodes import Const, Node

_PLAIN: Final = (bool, int, float, str, bytes)


@dataclass
class Captured:
    """A nested value with `Ref`s, and the storages that they name, in the order of their first tensors."""

    value: Any
    storages: dict[str, Node]


def capture(parts: Mapping[str, Any], file_of: Callable[[Any], str]) -> Captured:
    """Returns everything in `parts` as data; calls `state_dict()` on objects that have it. Raises UsageError for
    other objects. Tensors on other devices are copied to the CPU; those on the CPU are not copied."""
    found = _Capture(file_of)
    value = {key: found.taken(part, key, key, 0) for key, part in parts.items()}
    return Captured(_resolved(value, found), found.storages())


@dataclass
class _Kept:
    """A tensor of any kind: its memory, and its position there. `strides` and `offset` in elements."""

    name: str
    memory: Any  # a flat array of bytes, or of the array's own base
    key: tuple[Any, ...]
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    kind: Kind


@dataclass
class _Group:
    """Tensors of one memory and type: elements `first` to `last` of it are stored once."""

    kept: list[_Kept] = field(default_factory=list)


class _Capture:
    def __init__(self, file_of: Callable[[Any], str]) -> None:
        self.file_of = file_of
        self.groups: dict[tuple[Any, ...], _Group] = {}
        self.names: set[str] = set()

    def taken(self, value: Any, path: str, top: str, depth: int) -> Any:
        too_deep(path, depth)
        if value is None or type(value) in _PLAIN:
            return value
        kept = _kept(value)
        if kept is not None:
            kept.name = self.free(f"{self.file_of(top) if depth else 'state'}/{path.removeprefix(f'{top}.')}")
            self.groups.setdefault(kept.key, _Group()).kept.append(kept)
            return kept
        if callable(getattr(value, "state_dict", None)) and not isinstance(value, type):
            value = value.state_dict()
        if isinstance(value, dict):
            made = {self.key(k, path): self.taken(v, path_of(path, k), top, depth + 1) for k, v in value.items()}
            return Ordered(made) if isinstance(value, OrderedDict) else made
        if type(value) is list:
            return [self.taken(v, path_of(path, i), top, depth + 1) for i, v in enumerate(value)]
        if type(value) is tuple or type(value).__name__ == "Size":
            return tuple(self.taken(v, path_of(path, i), top, depth + 1) for i, v in enumerate(value))
        raise UsageError(
            f"{path}: a {type(value).__name__} can't be saved as data", hint="save its state, or leave it out"
        )

    def key(self, key: Any, path: str) -> Any:
        parts = key if type(key) is tuple else (key,)
        if not all(k is None or type(k) in _PLAIN for k in parts):
            raise UsageError(f"{path}: a key of type {type(key).__name__}", hint="use texts and numbers")
        return key

    def free(self, name: str) -> str:
        number, made = 2, name
        while made in self.names:
            made, number = f"{name}#{number}", number + 1
        self.names.add(made)
        return made

    def storages(self) -> dict[str, Node]:
        return {g.kept[0].name: _storage(g) for g in self.groups.values()}


def _resolved(value: Any, found: _Capture) -> Any:
    if isinstance(value, _Kept):
        group = found.groups[value.key]
        first = min(extent(h.shape, h.strides, h.offset).first for h in group.kept) if len(group.kept) > 1 else 0
        alone = len(group.kept) == 1
        strides = c_strides(value.shape) if alone else value.strides
        offset = 0 if alone else max(value.offset - first, 0)
        return Ref(group.kept[0].name, value.dtype.name, value.shape, strides, offset, value.kind)
    if isinstance(value, dict):
        return type(value)({k: _resolved(v, found) for k, v in value.items()})
    if isinstance(value, list | tuple):
        return type(value)(_resolved(v, found) for v in value)
    return value


def _storage(group: _Group) -> Node:
    """Returns the bytes of a group: a single tensor in C order with its shape, several as one run of bytes."""
    one = group.kept[0]
    if len(group.kept) == 1:
        # In units of the memory's items: a pair of 4-bit numbers is one.
        shape = one.shape if one.dtype.block == 1 else (*one.shape[:-1], one.shape[-1] // one.dtype.block)
        array = np.lib.stride_tricks.as_strided(
            one.memory[one.offset :] if one.shape else one.memory[one.offset : one.offset + 1],
            shape, tuple(s * one.memory.itemsize for s in one.strides),
        )  # fmt: skip
        return _const(np.ascontiguousarray(array), one.dtype, one.shape)
    spans = [extent(h.shape, h.strides, h.offset) for h in group.kept]
    low, high = min(s.first for s in spans), max(s.last for s in spans)
    whole = one.strides == c_strides(one.shape) and spans[0] == (low, high) and one.dtype.block == 1
    return _const(one.memory[low : high + 1], one.dtype, one.shape if whole else (high + 1 - low,))


def _const(array: np.ndarray[Any, Any], dtype: DType, shape: tuple[int, ...]) -> Node:
    data = array.reshape(-1).view(np.uint8)
    spec = Spec(shape, dtype) if dtype.safetensors else Spec((data.size,), U8)
    return Const(spec, data.data)  # the tensor's own memory


# ---- one tensor -----------------------------------------------------------------------------------------------


def _kept(value: Any) -> _Kept | None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(value)
    if isinstance(value, np.ndarray | np.generic):
        return _of_numpy(value)
    return None


def _of_torch(tensor: Any) -> _Kept:
    import torch

    dtype = BY_TORCH.get(str(tensor.dtype))
    whole = dtype is not None and (dtype.block == 1 or tensor.dim())
    if dtype is None or not whole or tensor.layout is not torch.strided or tensor.is_meta:
        raise UnsupportedError(f"a tensor of {tensor.dtype} and layout {tensor.layout} can't be saved")
    flags = tensor.is_conj() or tensor.is_neg()
    where = tensor.device.type, tensor.device.index, tensor.untyped_storage().data_ptr()
    key = ("torch", *where, dtype.name) if tensor.numel() and not flags else ("alone", id(tensor))
    flat = tensor.detach().resolve_conj().resolve_neg()
    if dtype.block > 1:
        flat, key = flat.contiguous(), ("alone", id(tensor))
    # The whole storage, as elements: views of one storage then count from one place.
    base = torch.empty(0, dtype=torch.uint8).set_(flat.untyped_storage().cpu())
    size = base.numel() // dtype.size * dtype.size
    memory = base[:size].numpy().view(_unit(dtype.size))
    shape = tuple(tensor.shape)
    shape = (*shape[:-1], shape[-1] * dtype.block) if dtype.block > 1 and shape else shape
    return _Kept("", memory, key, dtype, shape, flat.stride(), flat.storage_offset(), "torch")


def _of_numpy(array: Any) -> _Kept:
    kind: Kind = "numpy" if isinstance(array, np.ndarray) else "scalar"
    flat = np.ascontiguousarray(array)
    name = flat.dtype.newbyteorder("=").name
    dtype = BY_NUMPY.get(name)
    if dtype is None:
        raise UnsupportedError(f"an array of {flat.dtype} can't be saved", hint="save numbers, or texts as lists")
    flat = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
    shape = tuple(np.shape(array))
    memory = flat.reshape(-1).view(_unit(dtype.size))
    same = isinstance(array, np.ndarray) and array.flags.c_contiguous and array.size
    key = ("numpy", array.__array_interface__["data"][0], shape, name) if same else ("alone", id(array))
    return _Kept("", memory, key, dtype, shape, c_strides(shape), 0, kind)


def _unit(size: int) -> np.dtype[Any]:
    """Returns an opaque type of `size` bytes."""
    return np.dtype(f"V{size}")


# ---- and back -------------------------------------------------------------------------------------------------


def restore(value: Any, storages: Mapping[str, Node], *, numpy: bool = False) -> Any:
    """The nested value with tensors in the place of `Ref`s, each storage read once. `numpy`: torch's as arrays too."""
    return _Restore(storages, numpy).made(value)


class _Restore:
    def __init__(self, storages: Mapping[str, Node], numpy: bool) -> None:
        self.storages, self.numpy = storages, numpy
        self.read: dict[str, np.ndarray[Any, Any]] = {}
        self.torch: dict[tuple[str, str], Any] = {}

    def made(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self.tensor(value)
        if isinstance(value, Ordered):
            return OrderedDict((k, self.made(v)) for k, v in value.items())
        if isinstance(value, dict):
            return {k: self.made(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.made(v) for v in value)
        return value

    def tensor(self, ref: Ref) -> Any:
        if ref.kind == "torch" and not self.numpy:
            return self.of_torch(ref)
        from weighbridge.adapters.numpy import numpy_dtype

        array = self.memory(ref.storage).view(numpy_dtype(BY_NAME[ref.dtype]))
        size = array.itemsize
        made = np.lib.stride_tricks.as_strided(array[ref.offset :], ref.shape, tuple(s * size for s in ref.strides))
        return made[()] if ref.kind == "scalar" else made

    def memory(self, storage: str) -> np.ndarray[Any, Any]:
        if storage not in self.read:
            node = self.storages[storage]
            self.read[storage] = node.read(0, node.spec.rows, np.empty(node.spec.nbytes, np.uint8))
        return self.read[storage]

    def of_torch(self, ref: Ref) -> Any:
        package("torch", "a saved torch tensor (numpy=True loads arrays)", "torch")
        import torch

        from weighbridge.adapters.torch import torch_dtype

        dtype = BY_NAME[ref.dtype]
        base = self.torch.get((ref.storage, ref.dtype))
        if base is None:
            raw = self.memory(ref.storage)
            flat = torch.from_numpy(raw) if raw.size else torch.empty(0, dtype=torch.uint8)
            base = self.torch[ref.storage, ref.dtype] = flat.view(torch_dtype(dtype))
        if dtype.block > 1:
            return base.reshape(*ref.shape[:-1], ref.shape[-1] // dtype.block)
        return base.as_strided(ref.shape, ref.strides, ref.offset)


# ---- random states --------------------------------------------------------------------------------------------


def random_states() -> dict[str, Any]:
    """Returns the states of Python's, numpy's and (if loaded) torch's random number generators."""
    import random

    name, keys, *rest = np.random.get_state(legacy=True)
    found: dict[str, Any] = {"python": random.getstate(), "numpy": (name, keys, *rest)}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def set_random_states(states: Mapping[str, Any]) -> None:
    """Continue with random numbers where `random_states` was called."""
    import random

    if "python" in states:
        random.setstate(states["python"])
    if "numpy" in states:
        np.random.set_state(states["numpy"])
    if "torch" in states:
        import torch

        torch.set_rng_state(states["torch"])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(states["cuda"])
