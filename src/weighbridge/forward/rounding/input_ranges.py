"""Folders that also store a scale for the inputs of each matrix: the largest magnitude that a text makes of them.

Matrices that no token reaches, such as some experts, get the largest scale of their like: of the layer's other experts,
else of the same matrix in other layers. The model that is observed isn't rounded. Source: llm-compressor 0.14 (observer
`static_minmax`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import prod
from typing import Final

import numpy as np

from weighbridge.base.errors import FormatError
from weighbridge.base.options import Progress
from weighbridge.base.spec import Spec
from weighbridge.base.words import plural
from weighbridge.conversion.calibrated import Calibrated, ToCalibrate
from weighbridge.conversion.options import WriteOptions
from weighbridge.forward.column_sums import stored_matrices
from weighbridge.forward.computed import ComputedModel
from weighbridge.forward.graph import Graph
from weighbridge.forward.ops import Floats
from weighbridge.forward.options import TextOptions
from weighbridge.forward.rounding.calibrated import ComputedBytes, Place
from weighbridge.forward.run import IN_MEMORY, ForwardPass
from weighbridge.forward.texts import chunks_of
from weighbridge.packings.write.packers import as_bytes
from weighbridge.packings.write.rounding import e4m3_scales

_LAYER: Final = re.compile(r"layers\.\d+\.")
_LISTED: Final = 3


class InputPeaks(dict[Place, float]):
    """An observer of the largest magnitudes of what enters each matrix."""

    def __call__(self, names: Sequence[str], x: Floats, expert: int | None = None) -> None:
        """See `layers.Observer`."""
        peak = float(np.abs(x).max(initial=0))
        for place in ((name, expert) for name in names):
            self[place] = max(peak, self.get(place, 0.0))

    def of_others(self) -> Mapping[str, float]:
        """The largest of all experts by name, and of all layers by name without the layer."""
        largest = defaultdict[str, float](float)
        for (name, _), peak in self.items():
            for key in (name, _LAYER.sub("", name)):
                largest[key] = max(peak, largest[key])
        return largest


class InputRanges:
    """A text's scales of inputs: a `Preparation` of a folder's plan. Raises UnsupportedError for a family whose graph
    isn't computed or a model without a usable tokenizer, UsageError for a text shorter than a chunk."""

    def __init__(self, request: ToCalibrate, text: TextOptions, write: WriteOptions) -> None:
        model = request.model
        self.computed = ComputedModel(model)
        self.ids = chunks_of(model, text).ids[: text.chunks]
        self.limit = min(IN_MEMORY, (write.max_memory or 4 * IN_MEMORY) // 4)
        self.bytes = ComputedBytes(blake2b(self.ids.tobytes(), digest_size=16).hexdigest())
        self.scales = {name: self.bytes.place(Spec((1,), node.spec.dtype)) for name, node in request.layers.items()}
        self.places: dict[str, list[Place]] = {}
        prefix = model.family.prefix_of(request.dialect, request.named, model.sizes)
        for place, matrix in stored_matrices(model, request.dialect, prefix).items():
            self.places.setdefault(matrix.name, []).append(place)
        self.unseen: list[str] = []
        self._is_done = False

    @property
    def calibrated(self) -> Calibrated:
        return Calibrated({name: {"inputs": node} for name, node in self.scales.items()}, {}, self)

    @property
    def memory(self) -> int:
        """Bytes for the weights of a layer, of experts one, and for hidden states."""
        return _layer_bytes(self.computed.graph) + min(self.ids.size * self.computed.graph.config.dim * 4, self.limit)

    @property
    def notes(self) -> Sequence[str]:
        if not self._is_done:
            return []
        texts, tokens = self.ids.shape
        lines = [f"calibrated on {plural(texts, 'chunk')} of {plural(tokens, 'token')}"]
        if self.unseen:
            more = f" and {len(self.unseen) - _LISTED:,} more" if len(self.unseen) > _LISTED else ""
            lines.append(f"no token reached {plural(len(self.unseen), 'matrix')}, whose inputs get the largest scale of"
                         f" their like: {', '.join(self.unseen[:_LISTED])}{more}")  # fmt: skip
        return lines

    def prepare(self, progress: Progress | None = None) -> None:
        if self._is_done:
            return
        peaks, layers = InputPeaks(), self.computed.graph.layers
        step = None if progress is None else lambda done, _: progress(done, layers, f"calibrating layer {done - 1}")
        ForwardPass(self.computed.provider, self.computed.graph, peaks, self.limit).hidden(self.ids, step).close()
        others = peaks.of_others()
        for name, node in self.scales.items():
            places = self.places.get(name, [])
            seen = [peaks[place] for place in places if place in peaks]
            if not seen:
                self.unseen.append(name)
                seen = [others[key] for p, _ in places for key in (p, _LAYER.sub("", p)) if key in others][:1]
            if not seen:
                raise FormatError("no token reached it, nor any matrix like it", path=name, hint="another --scheme")
            scales = e4m3_scales(np.full(1, max(seen), np.float32), node.spec.dtype)
            self.bytes.put(node, as_bytes(node.spec.dtype, scales))
        self._is_done = True

    def close(self) -> None:
        self.bytes.close()


def _layer_bytes(graph: Graph) -> int:
    """Bytes of the matrices of the largest layer in F32; of experts one."""
    sizes = defaultdict[str, int](int)
    for name, shape in graph.shapes.items():
        if layer := _LAYER.match(name):
            sizes[layer[0]] += 4 * prod(shape[1:] if ".experts." in name else shape)
    return max(sizes.values(), default=0)
