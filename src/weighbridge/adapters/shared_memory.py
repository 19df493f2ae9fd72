"""Torch tensors that share memory: which they are, and which of them to keep. With the names, and in the order, of the
`safetensors` package, whose tests ask for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weighbridge.base.dtypes import DType

if TYPE_CHECKING:
    import torch

State = Mapping[str, "torch.Tensor"]


def storage_ptr(tensor: torch.Tensor) -> int:
    """The address of the memory that a tensor is a view of; 0 on the meta device."""
    return 0 if tensor.is_meta else int(tensor.untyped_storage().data_ptr())


def storage_size(tensor: torch.Tensor) -> int:
    """Bytes of that memory."""
    return int(tensor.untyped_storage().nbytes())


def _end_ptr(tensor: torch.Tensor) -> int:
    """Returns the address after a tensor's last element."""
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else -1
    return int(tensor.data_ptr() + (last + 1) * tensor.element_size())


def _is_complete(tensor: torch.Tensor) -> bool:
    """Whether a tensor covers its memory."""
    start = 0 if tensor.is_meta else tensor.data_ptr()
    return start == storage_ptr(tensor) and tensor.numel() * tensor.element_size() == storage_size(tensor)


def _find_shared_tensors(state_dict: State) -> list[set[str]]:
    """Groups the names of tensors that overlap; a tensor without overlap forms a group."""
    storages: dict[tuple[Any, ...], set[str]] = {}
    for name, tensor in state_dict.items():
        if not tensor.is_meta and storage_ptr(tensor) and storage_size(tensor):
            key = (str(tensor.device), storage_ptr(tensor), storage_size(tensor))
            storages.setdefault(key, set()).add(name)
    return [group for names in storages.values() for group in _overlapping(names, state_dict)]


def _overlapping(names: set[str], state_dict: State) -> list[set[str]]:
    """Views of one memory, in groups of neighbours that overlap."""
    areas = sorted((state_dict[n].data_ptr(), _end_ptr(state_dict[n]), n) for n in names)
    groups: list[set[str]] = []
    last = -1
    for start, end, name in areas:
        if groups and start < last:
            groups[-1].add(name)
        else:
            groups.append({name})
        last = max(last, end)
    return groups


def _remove_duplicate_names(
    state_dict: State, *, preferred_names: Collection[str] | None = None, discard_names: Collection[str] | None = None
) -> dict[str, list[str]]:
    """Returns, for each group of tensors that share memory, the name to keep and the others. Raises RuntimeError if
    none covers the memory."""
    found: dict[str, list[str]] = {}
    for shared in _find_shared_tensors(state_dict):
        whole = {name for name in shared if _is_complete(state_dict[name])}
        if not whole:
            raise RuntimeError(
                f"None of the tensors {sorted(shared)} covers the memory that they share, so no one of them can be "
                "saved for all. Save copies of them."
            )
        chosen = whole & {*(preferred_names or ())} or whole - {*(discard_names or ())} or whole
        kept = min(chosen)
        if len(shared) > 1:
            found[kept] = sorted(shared - {kept})
    return found


def check_savable(tensors: Any) -> None:
    """Raises ValueError unless `tensors` is a dict of dense tensors, RuntimeError for tensors that share memory."""
    import torch

    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
    if sparse := [name for name, tensor in tensors.items() if tensor.layout != torch.strided]:
        raise ValueError(
            f"You are trying to save a sparse tensors: `{sparse}` which this library does not support."
            " You can make it a dense tensor before saving with `.to_dense()` but be aware this might"
            " make a much larger file than needed."
        )
    if shared := [group for group in _find_shared_tensors(tensors) if len(group) > 1]:
        raise RuntimeError(f"Some tensors share memory, so that it would be saved several times: {shared}. "
                           "`save_model` saves it once.")  # fmt: skip


def on_cpu(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor on the CPU. Raises ValueError if it isn't in C order."""
    if not tensor.is_contiguous():
        raise ValueError(
            f"You are trying to save a non contiguous tensor: `{name}` which is not allowed. "
            "Call `.contiguous()` on it before saving."
        )
    return tensor.detach().cpu()


def from_bytes(data: bytearray, dtype: DType, shape: Sequence[int]) -> torch.Tensor:
    """A tensor over bytes in memory. `shape` in elements, as a header has it."""
    import torch

    from weighbridge.adapters.torch import torch_dtype

    *lead, last = shape or (1,)
    stored = (*lead, last // dtype.block) if shape else ()
    kind = torch_dtype(dtype)
    return torch.frombuffer(data, dtype=kind).reshape(stored) if data else torch.empty(stored, dtype=kind)
