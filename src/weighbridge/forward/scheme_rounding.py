"""Quantized folders whose layers are rounded by a text (`conversion/schemes`)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import numpy as np

from weighbridge.base.errors import FormatError, RefusedError
from weighbridge.base.options import Progress
from weighbridge.base.words import plural
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.schemes.plan import Calibrated, ToCalibrate
from weighbridge.conversion.schemes.table import integer_rule
from weighbridge.forward.calibrated import ComputedBytes, Inputs, LayerRounding, Matrices, RoundedPart
from weighbridge.forward.column_sums import stored_matrices
from weighbridge.forward.computed import ComputedModel
from weighbridge.forward.options import TextOptions
from weighbridge.forward.texts import chunks_of
from weighbridge.models.resolved import ResolvedModel
from weighbridge.packings.write.gptq import ActOrder, Gptq, RoundedMatrix
from weighbridge.tensors.nodes import LogicalTensor

_HF: Final = "hf"
#: Bytes of sums and hidden states, unless the caller limits the memory.
_MEMORY: Final = 4 << 30
#: Matrices that fewer tokens reach are rounded to nearest: GPTQ would fit these tokens only.
FEWEST_TOKENS: Final = 128
_DAMP: Final = 0.01
_ORDER: Final[ActOrder] = "static"
_LISTED: Final = 3


@dataclass(frozen=True)
class RoundedLayer:
    """A rounded matrix: errors as in `RoundedMatrix`; `tokens` that reached it; whether it was `nearest`, since these
    were too few."""

    name: str
    tokens: int
    error: float
    nearest: float
    damp: float
    is_nearest: bool


@dataclass
class GptqRounder:
    """Rounds by GPTQ, and matrices that few tokens reach to nearest."""

    order: ActOrder
    damp: float
    layers: list[RoundedLayer] = field(default_factory=list)

    def __call__(self, part: RoundedPart, inputs: Inputs | None) -> None:
        """See `calibrated.Rounder`."""
        tokens = 0 if inputs is None else inputs.rows
        is_nearest = inputs is None or tokens < FEWEST_TOKENS
        gptq, weights = Gptq(part.rule, self.order, self.damp), part.values()
        made = gptq.nearest(weights) if inputs is None or is_nearest else self._round(gptq, part, weights, inputs)
        part.put(made.codes, made.scales, made.zeros)
        self.layers.append(RoundedLayer(part.name, tokens, made.error, made.nearest, made.damp, is_nearest))

    def _round(self, gptq: Gptq, part: RoundedPart, weights: np.ndarray, inputs: Inputs) -> RoundedMatrix:
        try:
            return gptq.round(weights, inputs.products)
        except np.linalg.LinAlgError:
            raise FormatError("the sums of its inputs can't be factored", path=part.name, hint="--damp 0.1") from None

    def notes(self) -> list[str]:
        """The results in a few lines."""
        ratios = [one.error / one.nearest for one in self.layers if one.nearest and not one.is_nearest]
        lines = []
        if ratios:
            share = statistics.median(ratios)
            lines.append(f"error of the products of {plural(len(ratios), "matrix")} with the text's inputs:"
                         f" {share:.0%} of that of rounding to nearest (median)")  # fmt: skip
        few = [one.name for one in self.layers if one.is_nearest]
        if few:
            listed = ", ".join(few[:_LISTED]) + (f" and {len(few) - _LISTED:,} more" if len(few) > _LISTED else "")
            lines.append(f"rounded to nearest, since fewer than {FEWEST_TOKENS} tokens reached them: {listed}")
        raised = [one for one in self.layers if one.damp > self.damp and not one.is_nearest]
        if raised:
            worst = max(raised, key=lambda one: one.damp)
            lines.append(f"the damping was raised for {plural(len(raised), "matrix")},"
                         f" to {worst.damp:g} for {worst.name}")  # fmt: skip
        return lines


class SchemeRounding:
    """A text's rounding of a folder's layers: a `Preparation` of its plan. Raises UnsupportedError for a family whose
    graph isn't computed or a model without a usable tokenizer, UsageError for a text shorter than a chunk."""

    def __init__(self, request: ToCalibrate, text: TextOptions, write: WriteOptions) -> None:
        model, options = request.model, request.options
        self.computed = ComputedModel(model)
        chunks = chunks_of(model, text)
        self.ids = chunks.ids[: text.chunks]
        self.order: ActOrder = options.act_order or _ORDER  # type: ignore[assignment]
        self.damp = _DAMP if options.damp is None else options.damp
        self.bound = write.max_memory or _MEMORY
        settings = (self.ids.shape, self.order, self.damp)
        key = blake2b(self.ids.tobytes() + repr(settings).encode(), digest_size=16).hexdigest()
        self.bytes = ComputedBytes(key)
        self.parts = {
            name: RoundedPart.placed(name, node, integer_rule(name, node, request.scheme, node.spec.dtype), self.bytes)
            for name, node in request.layers.items()
        }
        self.rounder = GptqRounder(self.order, self.damp)
        self.matrices, self.rounded = _canonical(request, self.parts)
        self._is_done = False
        if write.max_memory is not None and self.memory > write.max_memory:
            largest = max(self.parts.values(), key=_needed)
            raise RefusedError(f"{largest.name}: rounding it by a text takes {_needed(largest):,} bytes",
                               hint=f"--max-memory {self.memory:,}".replace(",", ""))  # fmt: skip

    @property
    def calibrated(self) -> Calibrated:
        return Calibrated({name: part.form for name, part in self.parts.items()}, {}, self)

    @property
    def memory(self) -> int:
        """Bytes for the largest matrix, and for hidden states."""
        states = self.ids.size * self.computed.graph.config.dim * 4
        return max(map(_needed, self.parts.values())) + min(states, self.bound // 4)

    @property
    def notes(self) -> Sequence[str]:
        texts, tokens = self.ids.shape
        lines = self.rounder.notes()
        return [f"calibrated on {plural(texts, 'chunk')} of {plural(tokens, 'token')}", *lines] if lines else []

    def prepare(self, progress: Progress | None = None) -> None:
        if not self._is_done:
            rounding = LayerRounding(self.computed, self.parts, self.matrices, self.rounded, self.bound)
            rounding.run(self.ids, self.rounder, progress)
            self._is_done = True

    def close(self) -> None:
        self.bytes.close()


def _needed(part: RoundedPart) -> int:
    """Bytes that rounding a matrix takes: the sums, their factor and products in F64, and copies of the weights."""
    rows, columns = part.source.spec.shape
    return 4 * 8 * columns**2 + 6 * 4 * rows * columns


def _canonical(
    request: ToCalibrate, parts: Mapping[str, RoundedPart]
) -> tuple[Matrices, Mapping[str, LogicalTensor]]:
    """The matrices to round by canonical name, and all tensors with the rounded ones."""
    model, named = request.model, request.named
    prefix = model.family.prefix_of(_HF, named, model.sizes)
    matrices = {place: m for place, m in stored_matrices(model, _HF, prefix).items() if m.name in parts}
    tensors = {**named, **{name: part.decoded for name, part in parts.items()}}
    rounded = ResolvedModel(model.family, model.sizes, _HF, prefix, tensors, "safetensors", str(model.place.path))
    return matrices, rounded.canonical


def calibrate_with(text: TextOptions, write: WriteOptions) -> Callable[[ToCalibrate], Calibrated]:
    """How the layers of a folder are rounded with a text."""
    return lambda request: SchemeRounding(request, text, write).calibrated
