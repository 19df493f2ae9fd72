"""Quantized folders whose layers are rounded by a text (`conversion/schemes`)."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from hashlib import blake2b
from typing import Final

import numpy as np

from weighbridge.base.errors import FormatError, RefusedError
from weighbridge.base.options import Progress
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.conversion.calibrated import Calibrated, ToCalibrate
from weighbridge.conversion.options import SchemeOptions, WriteOptions
from weighbridge.forward.column_sums import Matrices, canonical_instances, stored_matrices
from weighbridge.forward.computed import ComputedModel
from weighbridge.forward.graph import Graph
from weighbridge.forward.ops import Floats
from weighbridge.forward.options import TextOptions
from weighbridge.forward.rounding.calibrated import ComputedBytes, Inputs, LayerRounding, Place, RoundedPart
from weighbridge.forward.rounding.folding import (
    Factors,
    FloatPart,
    Folding,
    RowRun,
    awq_factors,
    bias_of,
    folds,
    smoothed,
)
from weighbridge.forward.texts import chunks_of
from weighbridge.models.resolved import ResolvedModel
from weighbridge.packings.write.gptq import ActOrder, Gptq

#: Bytes of sums and hidden states, unless the caller limits the memory.
_MEMORY: Final = 4 << 30
#: Damping, and the increase per column and token: with few tokens GPTQ would fit these only
#: (docs/quantize-quality.md).
_DAMP: Final = 0.01
_DAMP_BY_TOKENS: Final = 0.4
#: SmoothQuant's exponent of the inputs (docs/quantize-quality.md).
_SMOOTH: Final = 0.5
_ORDER: Final[ActOrder] = "static"
_LISTED: Final = 3


@dataclass(frozen=True)
class RoundedLayer:
    """A rounded matrix: `tokens` that reached it, `columns`, and errors and damping as in `RoundedMatrix`."""

    name: str
    tokens: int
    columns: int
    error: float
    nearest: float
    damp: float


@dataclass
class SchemeRounder:
    """Rounds by GPTQ; to nearest, if no token reached a matrix. `damp` None: 0.01, and more with fewer tokens.
    `columns`: factors by name."""

    order: ActOrder
    damp: float | None
    columns: Mapping[str, Floats]
    layers: list[RoundedLayer] = field(default_factory=list)

    def __call__(self, part: RoundedPart, inputs: Inputs | None) -> None:
        """See `calibrated.Rounder`."""
        weights = part.values()
        if part.name in self.columns:
            weights = weights * self.columns[part.name]
        tokens, columns = 0 if inputs is None else inputs.rows, weights.shape[1]
        damp = _DAMP + _DAMP_BY_TOKENS * columns / max(tokens, 1) if self.damp is None else self.damp
        gptq = Gptq(part.rule, self.order, damp)
        try:
            matrix = gptq.nearest(weights) if inputs is None else gptq.round(weights, inputs.products)
        except np.linalg.LinAlgError:
            raise FormatError("the sums of its inputs can't be factored", path=part.name, hint="--damp 0.1") from None
        part.put(matrix.codes, matrix.scales, matrix.zeros)
        self.layers.append(RoundedLayer(part.name, tokens, columns, matrix.error, matrix.nearest, matrix.damp))

    def notes(self) -> list[str]:
        """The results in a few lines."""
        ratios = [layer.error / layer.nearest for layer in self.layers if layer.nearest]
        lines = []
        if ratios:
            count = plural(len(ratios), "matrix")
            lines.append(f"error of the products of {count} with the text's inputs: {statistics.median(ratios):.0%} of"
                         " that of rounding to nearest (median)")  # fmt: skip
        few = {layer.name: layer.tokens for layer in self.layers if 0 < layer.tokens < layer.columns}
        none = {layer.name: 0 for layer in self.layers if not layer.tokens}
        for reason, names in (("rounded to nearest, since no token reached them", none),
                            ("reached by fewer tokens than they have columns", few)):  # fmt: skip
            if names:
                more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
                lines.append(f"{plural(len(names), 'matrix')} {reason}: {', '.join(list(names)[:_LISTED])}{more}")
        return lines


class SchemeRounding:
    """A text's rounding of a folder's layers: a `Preparation` of its plan. Raises UnsupportedError for a family whose
    graph isn't computed or a model without a usable tokenizer, UsageError for a text shorter than a chunk."""

    def __init__(self, request: ToCalibrate, text: TextOptions, write: WriteOptions) -> None:
        model, options = request.model, request.options
        self.computed = ComputedModel(model)
        self.ids = chunks_of(model, text).ids[: text.chunks]
        self.order: ActOrder = options.act_order or _ORDER  # type: ignore[assignment]
        self.bound = write.max_memory or _MEMORY
        settings = (self.ids.shape, self.order, options.damp, request.use, _exponent(request))
        key = blake2b(self.ids.tobytes() + repr(settings).encode(), digest_size=16).hexdigest()
        self.bytes = ComputedBytes(key)
        self.parts = {
            name: RoundedPart.placed(name, node, request.rules[name], self.bytes)
            for name, node in request.layers.items()
        }
        self.floats: dict[str, FloatPart] = {}
        self.folding: Folding | None = None
        prefix = model.family.prefix_of(request.dialect, request.named, model.sizes)
        every = stored_matrices(model, request.dialect, prefix)
        choose = _factors(request)
        if choose is not None:
            self.floats = _floats(request, self.computed.graph, every, self.parts, self.bytes)
            rows = _rows(request, every, prefix)
            self.folding = Folding(self.computed.graph, self.parts, self.floats, every, rows, choose)
        self.rounder = SchemeRounder(self.order, options.damp, {} if self.folding is None else self.folding.columns)
        self.matrices = {place: m for place, m in every.items() if m.name in self.parts}
        decoded = {name: part.decoded for name, part in self.parts.items()}
        changed = {name: part.stored for name, part in self.floats.items()}
        tensors = {**request.named, **decoded, **changed}
        self.rounded = ResolvedModel(
            model.family, model.sizes, request.dialect, prefix, tensors, "safetensors", str(model.place.path)
        ).canonical
        self._is_done = False
        if write.max_memory is not None and self.memory > write.max_memory:
            largest = max(self.parts.values(), key=_peak_bytes)
            raise RefusedError(f"{largest.name}: rounding it by a text takes {_peak_bytes(largest):,} bytes",
                               hint=f"--max-memory {self.memory:,}".replace(",", ""))  # fmt: skip

    @property
    def calibrated(self) -> Calibrated:
        parts = {name: part.members for name, part in self.parts.items()}
        return Calibrated(parts, {name: part.stored for name, part in self.floats.items()}, self)

    @property
    def memory(self) -> int:
        """Bytes for the largest matrix, and for hidden states."""
        states = self.ids.size * self.computed.graph.config.dim * 4
        return max(map(_peak_bytes, self.parts.values())) + min(states, self.bound // 4)

    @property
    def notes(self) -> Sequence[str]:
        texts, tokens = self.ids.shape
        lines = self.rounder.notes()
        return [f"calibrated on {plural(texts, 'chunk')} of {plural(tokens, 'token')}", *lines] if lines else []

    def prepare(self, progress: Progress | None = None) -> None:
        if not self._is_done:
            rounding = LayerRounding(self.computed, self.parts, self.matrices, self.rounded, self.bound, self.folding)
            rounding.run(self.ids, self.rounder, progress)
            self._is_done = True

    def close(self) -> None:
        self.bytes.close()


def _exponent(request: ToCalibrate) -> float:
    """That of SmoothQuant."""
    given = request.options.smooth if isinstance(request.options, SchemeOptions) else None
    return _SMOOTH if given is None else given


def _factors(request: ToCalibrate) -> Factors | None:
    """How the factors of columns are chosen, if there are any."""
    if request.use == "smooth":
        return smoothed(_exponent(request))
    return awq_factors if request.use == "awq" else None


def _peak_bytes(part: RoundedPart) -> int:
    """Bytes that rounding a matrix takes: the sums, their factor and products in F64, and copies of the weights."""
    rows, columns = part.source.spec.shape
    return 4 * 8 * columns**2 + 6 * 4 * rows * columns


def _floats(
    request: ToCalibrate, graph: Graph, every: Matrices, parts: Mapping[str, RoundedPart], into: ComputedBytes
) -> dict[str, FloatPart]:
    """The tensors that folds may change and that stay floats; each is one tensor of the model."""
    places = {place for fold in folds(graph) for place in fold.consumers}
    places |= {(f"{fold.norm}.{kind}", None) for fold in folds(graph) if fold.norm for kind in ("weight", "bias")}
    places |= {bias_of(fold.producer) for fold in folds(graph) if fold.producer is not None}
    names = Counter(matrix.name for matrix in every.values())
    out = {}
    for place in sorted(places & every.keys(), key=str):
        name = every[place].name
        if name in parts or names[name] > 1 or name not in request.floats:
            continue
        node = request.floats[name]
        out[name] = FloatPart(node, into.place(node.spec))
    return out


def _rows(request: ToCalibrate, every: Matrices, prefix: str) -> dict[Place, RowRun]:
    """The rows of matrices in stored tensors, except those that a layout moves."""
    model = request.model
    dialect, family = request.dialect, model.family
    places = family.expansion(dialect, model.sizes, prefix).places
    starts = {
        cell.instance: RowRun(slot.name, cell.start)
        for slot in places.values() if not slot.plan.layouts and len(slot.shape) == 2
        for cell in slot.cells if family.layout_of(dialect, cell.instance[0], model.sizes) is None
    }  # fmt: skip
    return {place: starts[i] for place, i in canonical_instances(model).items() if i in starts}
