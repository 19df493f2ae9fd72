"""Weights that are rounded by the inputs that a text gives them, layer by layer.

Matrices of one input are rounded together, in the order in which the model computes them: a layer's q, k and v, then o,
gate and up, down. Inputs are those of the model whose earlier matrices are rounded already, so later ones repair a part
of the earlier error. Experts see their own tokens. One step of a layer is in memory in F32, with sums of as many inputs
as the memory allows; hidden states and rounded weights are in temporary files.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import IO, Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F32, I32, U8
from weighbridge.base.errors import FormatError
from weighbridge.base.options import Progress
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.forward.column_sums import Matrices
from weighbridge.forward.computed import ComputedModel
from weighbridge.forward.layers import ObservedError
from weighbridge.forward.ops import Floats
from weighbridge.forward.run import ForwardPass, Ids, LayerStep
from weighbridge.io.source import Source
from weighbridge.packings.write.packers import as_bytes, finite, rounded
from weighbridge.packings.write.rounding import GroupRule
from weighbridge.providers.files import FileProvider
from weighbridge.tensors import bits, nodes
from weighbridge.tensors.nodes import LogicalTensor, Node
from weighbridge.tensors.nodes.base import Bytes, Stored

Doubles = NDArray[np.float64]
Place = tuple[str, int | None]  # a matrix's canonical name, and its number for an expert

#: Rows of inputs whose products are summed in F32.
_ROWS: Final = 2048
_STREAM: Final = "stream"
#: The largest relative error of a scale that is changed: half a unit in the last place of BF16.
_SCALE_ERROR: Final = 2.0**-8


class ComputedBytes(Source):
    """Bytes that are computed while a plan runs, in a temporary file. `key`: everything that they depend on."""

    def __init__(self, key: str) -> None:
        self.name, self.key, self.size = "calibrated weights", key, 0
        self._made: IO[bytes] | None = None

    @property
    def _file(self) -> IO[bytes]:
        if self._made is None:
            self._made = tempfile.TemporaryFile(prefix="weighbridge-")  # noqa: SIM115
        return self._made

    def place(self, spec: Spec) -> Stored:
        """A tensor after those before."""
        node = Stored(spec, self, self.size)
        self.size += spec.nbytes
        return node

    def put(self, node: Stored, data: NDArray[Any]) -> None:
        """Sets a tensor's bytes."""
        file = self._file
        file.seek(node.offset)
        file.write(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
        file.flush()

    def _readinto(self, offset: int, out: memoryview) -> int:
        done = 0
        while done < len(out) and (got := os.preadv(self._file.fileno(), [out[done:]], offset + done)):
            done += got
        return done

    def close(self) -> None:
        """Removes the file."""
        if self._made is not None:
            self._made.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key}>"


class RoundedPart(NamedTuple):
    """A matrix to be rounded: its values, the rule, and the tensors that hold the result."""

    name: str
    source: Node
    rule: GroupRule
    packed: Stored
    scales: Stored
    zeros: Stored | None

    @classmethod
    def placed(cls, name: str, source: Node, rule: GroupRule, into: ComputedBytes) -> RoundedPart:
        rows, columns = source.spec.shape
        groups = (rows, columns // rule.group)
        packed = into.place(Spec((rows, -(-columns * rule.bits // 32)), I32))
        zeros = None if rule.zero_dtype is None else into.place(Spec(groups, rule.zero_dtype))
        return cls(name, source, rule, packed, into.place(Spec(groups, rule.scale_dtype)), zeros)

    @property
    def members(self) -> dict[str, Node]:
        """What is stored, by role."""
        return self.rule.members(self.packed, self.scales, self.zeros, self.source.spec.shape[-1])

    @property
    def decoded(self) -> LogicalTensor:
        """The values that a reader decodes."""
        return self.rule.logical(self.source.spec.with_dtype(F32), self.members)

    def values(self) -> Floats:
        """The values to round. Raises RefusedError for one that isn't finite."""
        return finite(self.name, nodes.cast(self.source, F32).read_all()).reshape(self.source.spec.shape)

    def divide_rows(self, start: int, factors: Floats) -> bool:
        """Divides rows from `start` on by factors. Returns False, and changes nothing, if the scales' type can't hold
        the quotients."""
        quotients = []
        for node in (self.scales, self.zeros if self.zeros and self.zeros.spec.dtype is not U8 else None):
            if node is None:
                continue
            values = nodes.cast(node, F32).read_all().view(np.float32).reshape(node.spec.shape)
            exact = values[start : start + len(factors)] / factors[:, None]
            values[start : start + len(factors)] = stored = rounded(node.spec.dtype, exact)
            if not (np.abs(stored - exact) <= _SCALE_ERROR * np.abs(exact)).all():
                return False
            quotients.append((node, values))
        for node, values in quotients:
            self._into.put(node, as_bytes(node.spec.dtype, values))
        return True

    @property
    def _into(self) -> ComputedBytes:
        assert isinstance(self.packed.source, ComputedBytes)
        return self.packed.source

    def put(self, codes: Bytes, scales: Bytes, zeros: Bytes) -> None:
        """Stores codes U8 [rows, columns], and the scales' bytes and zero points of groups."""
        into = self._into
        into.put(self.packed, bits.pack(_STREAM, self.rule.bits, codes))
        into.put(self.scales, scales)
        if self.zeros is not None:
            into.put(self.zeros, zeros)


@dataclass
class Inputs:
    """The inputs of matrices: X^T X [columns, columns], the sums of |X| and the largest |X| [columns], the number of
    rows of X, and the names of the tensors with these matrices."""

    products: Doubles
    magnitudes: Doubles
    peaks: Doubles
    parts: tuple[str, ...]
    rows: int = 0

    @classmethod
    def empty(cls, columns: int, parts: tuple[str, ...]) -> Inputs:
        return cls(np.zeros((columns, columns)), np.zeros(columns), np.zeros(columns), parts)

    def add(self, x: Floats) -> None:
        for at in range(0, len(x), _ROWS):
            part = x[at : at + _ROWS]
            magnitudes = np.abs(part)
            self.products += part.T @ part
            self.magnitudes += magnitudes.sum(0)
            self.peaks = np.maximum(self.peaks, magnitudes.max(0))
        self.rows += len(x)


@dataclass
class InputSums:
    """An observer that sums the inputs of pending matrices, and stops there. `memory`: bytes of sums at once."""

    matrices: Matrices
    memory: int
    pending: set[str] = field(default_factory=set)
    by_input: dict[tuple[tuple[str, ...], int | None], Inputs] = field(default_factory=dict)

    def __call__(self, names: Sequence[str], x: Floats, expert: int | None = None) -> None:
        """See `layers.Observer`."""
        stored = (self.matrices.get((name, expert)) for name in names)
        parts = tuple(dict.fromkeys(m.name for m in stored if m is not None and m.name in self.pending))
        if not parts:
            return
        key, size = (tuple(names), expert), 8 * x.shape[1] ** 2
        if key not in self.by_input:
            if self.by_input and size + sum(inputs.products.nbytes for inputs in self.by_input.values()) > self.memory:
                raise ObservedError
            self.by_input[key] = Inputs.empty(x.shape[1], parts)
        self.by_input[key].add(x)
        raise ObservedError


class RoundedProvider(FileProvider):
    """A model with some matrices replaced. `rounded`: all tensors by canonical name, with the new ones; `done`:
    those that are used."""

    def __init__(self, computed: ComputedModel, rounded: Mapping[str, LogicalTensor]) -> None:
        super().__init__(computed.model, options=computed.provider.options)
        self.rounded, self.done = rounded, set[Place]()

    def get(self, name: str, index: Any = ..., *, dtype: Any = None) -> Any:
        place = (name, index if isinstance(index, int) else None)
        if place not in self.done:
            return super().get(name, index, dtype=dtype)
        return self._placed(self.rounded[name], index, F32)


class Rounder(Protocol):
    """How a matrix is rounded."""

    def __call__(self, part: RoundedPart, inputs: Inputs | None) -> None:
        """Stores the result. `inputs`: None if no token reached it."""


class Folds(Protocol):
    """Moves factors between matrices and what makes their inputs. `routers`: their inputs are needed, too."""

    changed: set[Place]

    @property
    def routers(self) -> Matrices: ...

    def apply(self, place: Place, inputs: Inputs) -> None:
        """Does so for `place` and the other matrices that read these inputs, and adapts the inputs."""

    def finish(self) -> None:
        """Called after the last layer."""


class LayerRounding:
    """Rounds the matrices of a model, layer by layer, over texts `ids` [texts, tokens]."""

    def __init__(
        self, computed: ComputedModel, parts: Mapping[str, RoundedPart], matrices: Matrices,
        rounded: Mapping[str, LogicalTensor], memory: int, folds: Folds | None = None,
    ) -> None:  # fmt: skip
        self.parts, self.provider, self.folds = parts, RoundedProvider(computed, rounded), folds
        self.sums = InputSums(matrices if folds is None else {**matrices, **folds.routers}, memory // 2)
        self.forward = ForwardPass(self.provider, computed.graph, self.sums, memory // 4)
        self._places: dict[str, list[Place]] = {}
        for place, matrix in matrices.items():
            self._places.setdefault(matrix.name, []).append(place)

    def run(self, ids: Ids, rounder: Rounder, progress: Progress | None) -> None:
        """Rounds every matrix that the model computes with, and the others to nearest."""
        layers, left = self.forward.graph.layers, set(self.parts)
        with np.errstate(over="ignore", invalid="ignore"), self.forward.embedded(ids) as states:
            for layer in range(layers):
                for step in self.forward.steps(layer, states):
                    starts = tuple(f"layers.{layer}.{part}." for part in step.parts)
                    names = {m.name for (name, _), m in self.sums.matrices.items() if name.startswith(starts)}
                    self._round(step, names, rounder)
                    step.run(True)
                    left -= names
                if progress is not None:
                    progress(layer + 1, layers, f"calibrating layer {layer}")
        for name in sorted(left):
            rounder(self.parts[name], None)
        if self.folds is not None:
            self.folds.finish()

    def _round(self, step: LayerStep, names: set[str], rounder: Rounder) -> None:
        sums = self.sums
        sums.pending = set(names)
        while sums.pending:
            step.run(False)
            for (matrices, expert), inputs in sums.by_input.items():
                if not np.isfinite(inputs.products).all():
                    raise FormatError("activations aren't finite", path=inputs.parts[0],
                                      hint="the weights or their scales are damaged")  # fmt: skip
                if self.folds is not None:
                    self.folds.apply((matrices[0], expert), inputs)
                    self.provider.done |= self.folds.changed
                for name in inputs.parts:
                    self._finish(name, rounder, inputs)
            if not sums.by_input:  # the rest are experts that no token reached
                for name in sorted(sums.pending):
                    self._finish(name, rounder, None)
            sums.by_input.clear()

    def _finish(self, name: str, rounder: Rounder, inputs: Inputs | None) -> None:
        self.sums.pending.discard(name)
        if name in self.parts:
            rounder(self.parts[name], inputs)
            self.provider.done.update(self._places[name])
