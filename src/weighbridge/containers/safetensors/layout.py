"""Writing safetensors: the offset of every tensor, and the header's bytes. The same input always gives the same bytes.

The format has no alignment, but the header may end in white space: `layout` pads it so that the data starts at a page,
and orders tensors by the largest power of two (up to the page) that divides their size, large ones first. Every tensor
then starts at a multiple of that power, since the sizes of all tensors before it are: matrices at pages, the others at
least at a multiple of their element's size. No other byte is needed, and any reader accepts the file.

`order="reference"` gives the bytes of the reference's own writer (dtype descending, then name; header padded to 8).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

from weighbridge.base.dtypes import RANK
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.limits import SAFETENSORS_HEADER
from weighbridge.base.spec import Spec
from weighbridge.containers import BUILT_IN
from weighbridge.containers.base import Layout, Slot

SUFFIX: Final = BUILT_IN["safetensors"].suffix
METADATA: Final = "__metadata__"
PAGE: Final = 4096
_LENGTH: Final = 8
Order = Literal["aligned", "given", "reference"]
Named = tuple[str, Spec]


def layout(
    tensors: Sequence[Named],
    metadata: Mapping[str, str] | None = None,
    *,
    align: int = PAGE,
    reserve: int = 0,
    order: Order = "aligned",
) -> Layout:
    """A file of `tensors`. The data starts at a multiple of `align`; `reserve` bytes of the header stay free for later
    edits in place. UsageError for names or metadata that no reader could read back."""
    seen = set()
    for name, spec in tensors:
        if name in seen:
            raise UsageError(f"two tensors are called {name!r}")
        if name == METADATA:
            raise UsageError(f"a tensor can't be called {METADATA}: readers take it for the metadata")
        _check_text(name, "a tensor's name")
        seen.add(name)
        if spec.dtype.safetensors is None:
            raise UnsupportedError(
                f"tensor {name!r} is {spec.dtype}, which safetensors can't store",
                hint="decode it first, e.g. --dtype f16",
            )
        if any(n >= 2**64 for n in spec.shape):
            raise UsageError(f"tensor {name!r} has a dimension that doesn't fit 64 bits")
    for key, value in (metadata or {}).items():
        _check_text(key, "a metadata key")
        _check_text(value, f"metadata {key!r}")
    if order not in _ORDERS:
        raise UsageError(f"no order is called {order!r}", hint=f"known: {', '.join(_ORDERS)}")
    ordered = sorted(tensors, key=_ORDERS[order])
    align = _LENGTH if order == "reference" else align
    head = header_bytes(ordered, metadata, align=align, reserve=reserve)
    slots, at = [], len(head)
    for name, spec in ordered:
        slots.append(Slot(name, spec, at))
        at += spec.nbytes
    return Layout("safetensors", ((0, head),), tuple(slots), at)


def header_bytes(
    tensors: Iterable[Named],
    metadata: Mapping[str, str] | None = None,
    *,
    align: int = _LENGTH,
    reserve: int = 0,
    size: int | None = None,
) -> bytes:
    """Length and JSON of tensors stored one after the other in this order, padded with spaces to a multiple of
    `align` or to exactly `size` bytes (UsageError if it doesn't fit)."""
    if align < 1 or align & (align - 1) or reserve < 0:
        raise UsageError(f"alignment must be a power of two and reserve not negative, not {align} and {reserve}")
    # Compact, and escaped as serde_json does, which is also what Python's encoder does without `ensure_ascii`.
    table: dict[str, object] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
    at = 0
    for name, spec in tensors:
        end = at + spec.nbytes
        table[name] = {"dtype": spec.dtype.safetensors, "shape": spec.shape, "data_offsets": (at, end)}
        at = end
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    need = _LENGTH + len(text) + reserve
    total = -(-need // align) * align if size is None else size
    if total < need:
        raise UsageError(f"the header needs {need} bytes, but only {size}", hint="rewrite the file")
    if total - _LENGTH > SAFETENSORS_HEADER:
        raise UsageError(
            f"the header would have {total - _LENGTH} bytes; readers refuse more than {SAFETENSORS_HEADER}",
            hint="split the tensors over several files",
        )
    return (total - _LENGTH).to_bytes(_LENGTH, "little") + text.ljust(total - _LENGTH)


def _power(size: int) -> int:
    """The largest power of two up to a page that divides `size`; empty tensors fit anywhere."""
    return min(size & -size, PAGE) if size else PAGE


_Key = Callable[[Named], Any]
#: Order -> the key by which tensors are sorted; equal ones keep the given order, which is the model's.
_ORDERS: Final[Mapping[str, _Key]] = MappingProxyType(
    {
        "aligned": lambda tensor: -_power(tensor[1].nbytes),
        "given": lambda tensor: 0,
        # tensor.rs `prepare`: dtype descending in the order of its enum, then name (Rust compares bytes, Python code
        # points: the same order for UTF-8).
        "reference": lambda tensor: (-RANK[tensor[1].dtype.name], tensor[0]),
    }
)


def _check_text(text: object, role: str) -> None:
    if not isinstance(text, str):
        raise UsageError(f"{role} must be a string, not {text!r}", hint="write other values as JSON text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{role} is not valid Unicode: {text!r}") from None
