"""What every method of merging has: a first pass over whole tensors, if it needs one, and a function of rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.records import dataclass

F32Array = NDArray[np.float32]


class Band(NamedTuple):
    """Consecutive rows of all inputs, each F32 [rows, columns]. `first`: the index of their first element in the
    flattened tensor."""

    first: int
    inputs: tuple[F32Array, ...]


#: Reads all inputs, band after band. Bands are the same in every run, and so are sums over them.
Bands = Callable[[], Iterator[Band]]


@dataclass(frozen=True)
class MergeMethod:
    """A method with its numbers for one tensor; immutable. `scratch`: the F32 arrays of the size of one input's rows
    that `rows` allocates."""

    scratch: ClassVar[int] = 4

    @property
    def for_vector(self) -> MergeMethod:
        """The method for a vector, which is passed as a matrix of one row."""
        return self

    def survey(self, bands: Bands, size: int) -> Any:
        """Returns what `rows` needs to know about whole tensors of `size` elements."""

    @abstractmethod
    def rows(self, band: Band, survey: Any) -> F32Array:
        """Returns the merged rows, F32 [rows, columns]."""


def total(values: NDArray[Any]) -> float:
    """The sum in F64, in an order that doesn't depend on threads, unlike a dot product of a library."""
    return float(np.add.reduce(values, axis=None, dtype=np.float64))
