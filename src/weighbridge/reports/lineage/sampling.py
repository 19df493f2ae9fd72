"""The sampled rows of a model, under roles that are the same for every format.

All models are sampled at the same places: a run of rows from the middle of a matrix, as many as hold a number of
elements. So a matrix of 4,096 columns needs one row, a small one all of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Final
from zlib import crc32

from weighbridge.base.dtypes import F32, DType, Kind
from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.base.records import dataclass
from weighbridge.models.module_weights import canonical_modules
from weighbridge.models.tensor_roles import TensorRole, canonical_role, unknown_role
from weighbridge.reports.lineage import thresholds
from weighbridge.reports.prove.bounds import cost, float_type, type_of

if TYPE_CHECKING:
    from weighbridge.models.model import OpenModel
    from weighbridge.tensors.likeness import Levels, Rows
    from weighbridge.tensors.nodes import LogicalTensor, Node

Place = tuple[int, str]  # layer (-1 outside of layers) and role
Request = tuple[Place, int]  # and the number of elements

#: Parts of names that mark a matrix with one row per token or position, in models without a family's table.
_TOKENS: Final = ("embed", "embd", "wte", "wpe", "lm_head", "token")
_NO_MATRICES: Final = frozenset({"embedding", "output", "norms"})
_EXTRA_PARTS: Final = ("embedding", "output", "norms")


@dataclass(eq=False)
class Sample:
    """Rows of a matrix, and the type that it is stored in."""

    rows: Rows
    type: str

    @cached_property
    def levels(self) -> Levels:
        from weighbridge.tensors.likeness import Levels

        return Levels(self.rows)


@dataclass(eq=False)
class Sampler:
    """`matrices`: those inside the model that were trained for it. `extras`: embeddings, heads and norms, which similar
    models may share. `by_table`: whether roles are a family's, not taken from names. `bytes_read`: the bytes of
    samples, without headers. `trouble`: why samples can't be read."""

    name: str
    model: OpenModel
    matrices: Mapping[Place, LogicalTensor]
    extras: Mapping[Place, LogicalTensor]
    by_table: bool = True
    bytes_read: int = 0
    skipped: set[Place] = field(default_factory=set)
    trouble: OSError | WeighbridgeError | None = None
    _cache: dict[Request, Sample] = field(default_factory=dict)
    _read: int = 0

    @cached_property
    def layers(self) -> tuple[int, ...]:
        return tuple(sorted({layer for layer, _ in self.matrices}))

    @cached_property
    def anchors(self) -> Mapping[int, Place]:
        """The matrix that identifies each layer: the first by name, such as attention.k."""
        result: dict[int, Place] = {}
        for place in sorted(self.matrices):
            result.setdefault(place[0], place)
        return result

    @cached_property
    def type(self) -> str:
        """The type that most matrices are stored in."""
        types = [type_of(node) for node in self.matrices.values()]
        return max(sorted(set(types)), key=types.count)

    @property
    def float_type(self) -> DType:
        """The type of most matrices, F32 for one that isn't a plain float."""
        return float_type(self.type) or F32

    @property
    def lossy(self) -> bool:
        return is_lossy(self.type)

    def node(self, place: Place) -> LogicalTensor:
        return self.matrices[place] if place in self.matrices else self.extras[place]

    def read(self, requests: Iterable[Request]) -> None:
        """Reads the samples of several matrices, after announcing them, so that a server is asked for all at once."""
        from weighbridge.tensors.prefetch import by_source, source_ranges

        requested: list[tuple[Request, Node, int, int]] = []
        ranges = []
        for place, elements in requests:
            run = None if (place, elements) in self._cache else self._run(place, elements)
            if run is None:
                continue
            parts = list(source_ranges(*run))
            size = sum(part.length for part in parts)
            if self._read >= thresholds.ALWAYS and self.bytes_read + size > thresholds.MODEL_BYTES:
                self.skipped.add(place)
                continue
            self.bytes_read, self._read = self.bytes_read + size, self._read + 1
            ranges += parts
            requested.append(((place, elements), *run))
        try:
            for source, extents in by_source(ranges):
                if source.remote:
                    source.advise(extents)
            for request, node, lo, hi in requested:
                rows = self._values(request[0], node, lo, hi)
                self._cache[request] = Sample(rows, type_of(self.node(request[0])))
        except (OSError, WeighbridgeError) as error:
            self.trouble = error
            raise

    def rows(self, place: Place, elements: int) -> Rows | None:
        """Returns the sampled rows of a matrix, None if they weren't read."""
        sample = self._cache.get((place, elements))
        return None if sample is None else sample.rows

    def sample(self, place: Place, elements: int) -> Sample | None:
        return self._cache.get((place, elements))

    def _run(self, place: Place, elements: int) -> tuple[Node, int, int] | None:
        """Returns the rows with as many elements, from the middle on, as F32. None for numbers that can't be cast."""
        from weighbridge.tensors.nodes import cast

        tensor = self.node(place)
        rows, width = tensor.spec.rows, max(tensor.spec.row_atoms * tensor.spec.dtype.block, 1)
        count = min(-(-elements // width), rows)
        lo = min(rows // 2, rows - count)
        with suppress(UnsupportedError):
            return cast(tensor, F32), lo, lo + count
        self.skipped.add(place)
        return None

    def _values(self, place: Place, node: Node, lo: int, hi: int) -> Rows:
        import numpy as np

        values = node.read(lo, hi).view(np.float32).reshape(hi - lo, -1)
        if not np.isfinite(values).all():
            layer = f"layer {place[0]}, " if place[0] >= 0 else ""
            raise FormatError(
                f"{layer}{place[1]} has NaN or Inf, so the model can't be compared", path=str(self.model.place.path),
                hint="wb verify --values lists the damaged tensors",
            )  # fmt: skip
        return values


def sampler_of(model: OpenModel, name: str, *, with_gguf: bool) -> Sampler:
    """Returns the sampler of an open model. `with_gguf`: whether it is compared with a GGUF, whose weights have the
    config's factors in them. Raises UnsupportedError for a model without matrices."""
    matrices: dict[Place, LogicalTensor] = {}
    extras: dict[Place, LogicalTensor] = {}
    by_table, rows = _tensors(model, with_gguf)
    modules = {*canonical_modules(model).values()} if by_table else set()  # a folder has them in other files
    for row, node in rows:
        if node.spec.dtype.kind not in (Kind.FLOAT, Kind.BLOCK) or not node.spec.elements or row.role in modules:
            continue
        is_matrix = len(node.spec.shape) > 1 and min(node.spec.shape) > 1
        (matrices if is_matrix and row.part not in _NO_MATRICES else extras)[row.layer, row.role] = node
    if not matrices:
        raise UnsupportedError(
            f"{model.place.path} has no weight matrices to compare", hint="wb inspect lists its tensors"
        )
    chosen = {place: extras[place] for place in chosen_extras(extras)} | dict(chosen_others(model, by_table))
    return Sampler(name, model, matrices, chosen, by_table)


def chosen_others(model: OpenModel, by_table: bool) -> Iterator[tuple[Place, LogicalTensor]]:
    """Yields some tensors of other parts, such as towers: those whose names have the least checksums, which are mostly
    the same for two models with other numbers of them."""
    names = sorted(model.resolved.others, key=lambda name: crc32(name.encode())) if by_table else []
    for name in names[: thresholds.OTHERS]:
        node = model.resolved.others[name]
        if node.spec.dtype.kind in (Kind.FLOAT, Kind.BLOCK) and node.spec.elements:
            yield (-1, name), node


def folded_sampler(sampler: Sampler) -> Sampler:
    """Returns the sampler of the weights as in a GGUF; the same one if they don't differ there."""
    model = sampler.model
    if sampler.by_table and model.format != "gguf" and model.resolved.folds:
        return sampler_of(model, sampler.name, with_gguf=True)
    return sampler


def _tensors(model: OpenModel, with_gguf: bool) -> tuple[bool, list[tuple[TensorRole, LogicalTensor]]]:
    """Returns whether a table matches, and all tensors with their roles: canonical ones, or from the names."""
    try:
        folded = with_gguf and model.format != "gguf" and model.resolved.folds
        view = model.resolved.as_in_gguf if folded else model.resolved.canonical
        unused = model.resolved.unused
        return True, [(canonical_role(name), node) for name, node in view.items() if name not in unused]
    except WeighbridgeError:
        rows = [(unknown_role(name), node) for name, node in model.logical.items()]
        return False, [
            (row._replace(part="embedding") if any(word in row.role for word in _TOKENS) else row, node)
            for row, node in rows
        ]


def chosen_extras(extras: Mapping[Place, LogicalTensor]) -> list[Place]:
    """Returns the extras that are compared: those outside of layers, and those of the first and the last layer."""
    layers = sorted({layer for layer, _ in extras if layer >= 0})
    return [place for place in extras if place[0] < 0 or place[0] in (layers[0], layers[-1])]


def is_lossy(name: str) -> bool:
    """Whether a type is coarser than those that models are trained in."""
    return cost(name) > cost("BF16")
