"""How much each tensor's rounding changes what a model predicts, measured on a text.

The KL divergence of the model with a group of rounded tensors is taken as a sum over its tensors: gain x error. Errors
are relative, as the choice of types probes them (conversion/quantize/size_target.py), with that of rounded inputs added
(rounding/input_errors.py), which sets a floor for types of large blocks. Groups are all tensors of a role,
and all of a layer, so a model with 9 roles and 32 layers takes 42 passes; proportional fitting gives the gain of each
tensor. That the divergence is about linear in the errors: V. Malinovskii et al., "Pushing the Limits of Large Language
Model Quantization via the Linearity Theorem", arXiv 2411.17525.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from weighbridge.base.dtypes import DType
from weighbridge.base.options import Progress
from weighbridge.conversion.quantize.allocation import Offer
from weighbridge.conversion.quantize.imatrix import ImportanceMatrix
from weighbridge.conversion.quantize.inputs import QuantizeInputs
from weighbridge.conversion.quantize.size_target import rounded
from weighbridge.forward.column_sums import ColumnSums, gguf_matrices
from weighbridge.forward.computed import ComputedModel
from weighbridge.forward.layers import Observer
from weighbridge.forward.ops import Floats
from weighbridge.forward.options import TextOptions
from weighbridge.forward.rounding.input_errors import BLOCKS, InputErrors
from weighbridge.forward.run import ForwardPass
from weighbridge.forward.scores import log_softmax, mean, score
from weighbridge.forward.texts import TextChunks
from weighbridge.models.model import OpenModel

#: Chunks on which effects are measured, spread over the text.
_CHUNKS: Final = 8
#: The relative error at which gains are measured: that of about 3 bits per weight.
_ERROR: Final = 0.01
#: Bytes of the reference's log-probabilities, in F32; positions are left out evenly beyond.
_REFERENCE: Final = 256 << 20
_ROUNDS: Final = 50


def matrix_of(
    computed: ComputedModel, chunks: TextChunks, options: TextOptions, *, output: bool = False
) -> ImportanceMatrix:
    """Returns the importance matrix of a text. `output`: also of the output matrix."""
    sums, ids = ColumnSums(computed.model, output=output), chunks.ids[: options.chunks]
    ForwardPass(computed.provider, computed.graph, sums).observe(ids, output=output)
    return ImportanceMatrix(sums.entries(), tuple(Path(p).name for p in options.text), len(ids), options.context)


class RoundedTensors:
    """A rounding (`layers.Rounding`) of some tensors of a GGUF: `types` by their names. `used`: those that are run.
    `input_errors` sees all weights while it is set."""

    def __init__(self, model: OpenModel, inputs: QuantizeInputs) -> None:
        self.matrices, self._inputs = gguf_matrices(model), inputs
        self.types: Mapping[str, DType] = {}
        self.used: set[str] = set()
        self.input_errors: InputErrors | None = None

    def __call__(self, name: str, expert: int | None, values: Floats) -> Floats:
        matrix = self.matrices.get((name, expert))
        if matrix is None:
            return values
        self.used.add(matrix.name)
        if self.input_errors is not None and values.ndim == 2:
            self.input_errors.weigh(matrix, values.T if matrix.is_transposed else values)
        if (dtype := self.types.get(matrix.name)) is None:
            return values
        weights = self._inputs.weights(matrix.name)
        if weights is not None:
            weights = weights[matrix.number]
        return rounded(values.T, dtype, weights).T if matrix.is_transposed else rounded(values, dtype, weights)


class Measurement:
    """Passes of a model with rounded tensors over the same text."""

    def __init__(
        self, computed: ComputedModel, chunks: TextChunks, limit: int | None, progress: Progress | None
    ) -> None:
        self.computed, self.progress = computed, progress
        texts = len(chunks.ids[:limit])
        picked = np.unique(np.linspace(0, texts - 1, min(texts, _CHUNKS)).astype(np.int64))
        self.ids, self.tokens = chunks.ids[picked], chunks.tokens[picked]
        self.first = self.ids.shape[1] // 2
        bytes_needed = len(picked) * (self.ids.shape[1] - self.first) * computed.vocab * 4
        self.step = math.ceil(bytes_needed / _REFERENCE)

    def effects(self, inputs: QuantizeInputs, offers: Mapping[str, Sequence[Offer]]) -> Mapping[str, list[Offer]]:
        """The offers with the change of the output as their errors, as `size_target.Effects`."""
        rounding = RoundedTensors(self.computed.model, inputs)
        seen = rounding.input_errors = InputErrors(rounding.matrices)
        reference = [log_softmax(logits).astype(np.float32) for logits in self._logits(rounding, seen.observe)]
        rounding.input_errors = None
        gains, added = self._gains(rounding, reference, offers), {block: seen.relative(block) for block in BLOCKS}
        return {
            name: [
                # rounded, so that the order of sums in a matrix product doesn't change the choice
                o._replace(error=float(f"{(o.error + added.get(o.dtype.block, {}).get(name, 0)) * gains[name]:.3g}"))
                for o in rows
            ]
            for name, rows in offers.items()
        }

    def _gains(
        self, rounding: RoundedTensors, reference: Sequence[Floats], offers: Mapping[str, Sequence[Offer]]
    ) -> Mapping[str, float]:
        """The change of the output per error of each tensor."""
        usual = {name: min(rows, key=_distance) for name, rows in offers.items() if name in rounding.used}
        changes, every = {}, groups(usual)
        for number, group in enumerate(every, 1):
            rounding.types = {name: usual[name].dtype for name in group}
            changes[group] = self._divergence(reference, rounding)
            if self.progress is not None:
                self.progress(number, len(every), "measuring effects")
        gains = fitted({name: offer.error for name, offer in usual.items()}, changes)
        # what isn't run, such as the layers that predict further tokens, counts like the others
        return {name: gains.get(name, statistics.median(gains.values())) for name in offers}

    def _logits(self, rounding: RoundedTensors, observer: Observer | None = None) -> Iterator[Floats]:
        forward = ForwardPass(self.computed.provider, self.computed.graph, observer, rounding=rounding)
        with forward.hidden(self.ids) as states:
            for logits in forward.logits(states, self.first):
                yield logits[: -1 : self.step]

    def _divergence(self, reference: Sequence[Floats], rounding: RoundedTensors) -> float:
        found = zip(reference, self._logits(rounding), self.tokens[:, self.first + 1 :: self.step], strict=True)
        scores = (score(p.astype(np.float64), logits, following, -math.inf) for p, logits, following in found)
        return mean([s.kl for s in scores]).value


def _distance(offer: Offer) -> float:
    return abs(math.log(max(offer.error, 1e-12) / _ERROR))


def groups(names: Mapping[str, object]) -> list[tuple[str, ...]]:
    """The tensors of each role, and those of each layer."""
    roles, layers = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name in names:
        layer = re.match(r"blk\.\d+\.", name)
        roles[name if layer is None else name[layer.end() :]].append(name)
        if layer is not None:
            layers[layer[0]].append(name)
    return [tuple(group) for group in (*roles.values(), *layers.values())]


def fitted(errors: Mapping[str, float], changes: Mapping[tuple[str, ...], float]) -> dict[str, float]:
    """Gains for which each group's sum of gain x error is its change. Proportional fitting from equal gains."""
    gains = dict.fromkeys(errors, 1.0)
    for _ in range(_ROUNDS):
        for group, change in changes.items():
            total = sum(gains[name] * errors[name] for name in group)
            if total > 0:
                factor = max(change, 1e-12) / total
                gains |= {name: gains[name] * factor for name in group}
    return gains
