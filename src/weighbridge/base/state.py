"""A training state as plain data: the leaves of nested dicts, lists and tuples besides numbers and strings."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from weighbridge.base.errors import UsageError
from weighbridge.base.spec import Shape

Kind = Literal["torch", "numpy", "scalar"]
KINDS: Final = ("torch", "numpy", "scalar")

#: Nesting of dicts and lists, for writing and reading. Optimizers need six levels.
DEPTH: Final = 200


class Ref(NamedTuple):
    """A tensor as a view of a stored one (`storage`: "file/name"): element (i, j ...) is number offset + i*strides[0] +
    j*strides[1] + ... of it, taken as `dtype` (a row of the type table). `kind`: a torch tensor, a numpy array, a
    numpy scalar."""

    storage: str
    dtype: str
    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0
    kind: Kind = "torch"


class Ordered(dict[object, object]):
    """A dict that was an OrderedDict."""


class Extent(NamedTuple):
    """The first and last element of a storage that a view touches; (0, -1) if there are none."""

    first: int
    last: int


def extent(shape: Shape, strides: tuple[int, ...], offset: int) -> Extent:
    if 0 in shape:
        return Extent(0, -1)
    return Extent(offset, offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)))


def path_of(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def too_deep(path: str, depth: int) -> None:
    """UsageError for data nested too deeply to be written."""
    if depth > DEPTH:
        raise UsageError(f"{path[:100]} is nested more than {DEPTH} levels deep, or is a part of itself")
