"""Runs a model over texts, layer by layer: one layer's weights are in memory, and the hidden states of all texts, which
go to a temporary file if they are large."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.closeable import Closing
from weighbridge.base.errors import FormatError
from weighbridge.forward import layers, ops
from weighbridge.forward.computed import ComputedModel
from weighbridge.forward.graph import Graph
from weighbridge.forward.layers import Block, ObservedError, Observer, Rounding, Weights
from weighbridge.forward.ops import Floats
from weighbridge.models.model import OpenModel
from weighbridge.providers.base import Provider

Ids = NDArray[np.int64]
Progress = Callable[[int, int], None]

#: Bytes of hidden states that stay in memory.
IN_MEMORY: Final = 512 << 20
#: Bytes of the hidden states that experts take at once; they are read once per batch.
_BATCH: Final = 256 << 20
#: Rows of the embeddings that are decoded at once.
_TABLE_ROWS: Final = 8192


class HiddenStates(Closing):
    """The hidden states of several texts of one length, [texts, tokens, dim] in F32."""

    def __init__(self, texts: int, tokens: int, dim: int, limit: int = IN_MEMORY) -> None:
        self.shape = texts, tokens, dim
        self._bytes = tokens * dim * 4
        self._array = np.empty(self.shape, np.float32) if texts * self._bytes <= limit else None
        self._file = None if self._array is not None else tempfile.TemporaryFile(prefix="weighbridge-")  # noqa: SIM115

    def __getitem__(self, text: int) -> Floats:
        if self._file is None:
            assert self._array is not None
            kept: Floats = self._array[text]
            return kept
        self._file.seek(text * self._bytes)
        return np.fromfile(self._file, np.float32, self._bytes // 4).reshape(self.shape[1:])

    def __setitem__(self, text: int, values: Floats) -> None:
        if self._file is None:
            assert self._array is not None
            self._array[text] = values
        else:
            self._file.seek(text * self._bytes)
            self._file.write(np.ascontiguousarray(values, np.float32).data)

    def close(self) -> None:
        """Removes the file."""
        self._array = None
        if self._file is not None:
            self._file.close()


class LayerStep(NamedTuple):
    """A part of a layer. `parts`: the beginnings of its weights' names after `layers.N.`. `run`: computes it, and with
    True as its argument changes the states."""

    parts: tuple[str, ...]
    run: Callable[[bool], None]


class ForwardPass:
    """A model that runs over texts. `observer` sees the inputs of all matrix products; `rounding` changes weights.
    `limit`: bytes of hidden states in memory."""

    def __init__(
        self,
        provider: Provider,
        graph: Graph,
        observer: Observer | None = None,
        limit: int = IN_MEMORY,
        *,
        rounding: Rounding | None = None,
    ) -> None:
        self.graph, self.limit = graph, limit
        self.weights = Weights(provider, graph, observer, rounding)

    def embedded(self, ids: Ids) -> HiddenStates:
        """The hidden states before the first layer for texts of one length, ids [texts, tokens]."""
        texts, tokens = ids.shape
        states = HiddenStates(texts, tokens, self.graph.config.dim, self.limit)
        try:
            self._embed(ids, states)
        except BaseException:
            states.close()
            raise
        return states

    def hidden(self, ids: Ids, progress: Progress | None = None) -> HiddenStates:
        """The hidden states after the last layer. Raises FormatError, with the layer, for a value that isn't
        finite."""
        states = self.embedded(ids)
        try:
            for layer in range(self.graph.layers):
                self._layer(layer, states)
                if progress is not None:
                    progress(layer + 1, self.graph.layers)
        except BaseException:
            states.close()
            raise
        return states

    def observe(self, ids: Ids, progress: Progress | None = None, *, output: bool) -> None:
        """Runs the layers for the observer, and the output matrix if `output`. Raises as `hidden`."""
        with self.hidden(ids, progress) as states:
            for _ in self.logits(states) if output else ():
                pass

    def layer_inputs(self, ids: Ids) -> Iterator[HiddenStates]:
        """The hidden states before each layer, which are valid until the next ones. Raises as `hidden`."""
        with self.embedded(ids) as states:
            for layer in range(self.graph.layers):
                if layer:
                    self._layer(layer - 1, states)
                yield states

    def logits(self, states: HiddenStates, first: int = 0) -> Iterator[Floats]:
        """Each text's logits from position `first` on, [tokens - first, vocab]."""
        config, weights = self.graph.config, self.weights
        norm = weights.norm("norm")
        matrix = weights.get(self.graph.head).T
        bias = weights.optional("head.bias")
        for text in range(states.shape[0]):
            x = states[text][first:]
            x = x if norm is None else norm(x)
            if weights.observer is not None:
                weights.observer([self.graph.head], x)
            out = x @ matrix * np.float32(self.graph.logit_scale)
            out = out if bias is None else out + bias
            if cap := config.logit_softcap:
                out = np.tanh(out / np.float32(cap)) * np.float32(cap)
            yield out

    def _embed(self, ids: Ids, states: HiddenStates) -> None:
        weights, graph = self.weights, self.graph
        rows = self._rows("embed.weight", ids)
        norm = weights.norm("embed.norm") if graph.has("embed.norm.weight") else None
        position = weights.optional("position.weight")
        for text, row in enumerate(ids):
            x = rows(row) * np.float32(graph.embedding_scale)
            x = x if position is None else x + position[: len(row)]
            states[text] = x if norm is None else norm(x)

    def _rows(self, name: str, ids: Ids) -> Callable[[Ids], Floats]:
        """Looks rows of a table up; only those of `ids` are kept."""
        wanted = np.unique(ids)
        count, width = self.graph.shapes[name]
        table = np.empty((len(wanted), width), np.float32)
        for start in range(0, count, _TABLE_ROWS):
            first, last = np.searchsorted(wanted, (start, start + _TABLE_ROWS))
            if first < last:
                block = self.weights.get(name, slice(start, start + _TABLE_ROWS))
                table[first:last] = block[wanted[first:last] - start]
        return lambda row: table[np.searchsorted(wanted, row)]

    def _rotation(self, layer: int, tokens: int) -> ops.Rotation | None:
        rope = self.graph.config.rope
        if rope is None or not self.graph.is_rotated(layer):
            return None
        chosen = rope.sliding if rope.sliding is not None and self.graph.is_sliding(layer) else rope
        return ops.rotation(chosen, tokens, self.graph.config.context)

    def _layer(self, layer: int, states: HiddenStates) -> None:
        for step in self.steps(layer, states):
            step.run(True)

    def steps(self, layer: int, states: HiddenStates) -> Iterator[LayerStep]:
        """The steps of a layer: attention of all texts, then the rest, so that only one of both is in memory."""
        graph, name = self.graph, f"layers.{layer}"
        if graph.parallel:
            yield LayerStep(("attention", "mlp", "moe"), partial(self._parallel, layer, states))
            return
        if graph.has(f"{name}.attention.o.weight"):
            yield LayerStep(("attention",), partial(self._attention, layer, states))
        if graph.has(f"{name}.moe.router.weight") or graph.has(f"{name}.mlp.down.weight"):
            yield LayerStep(("mlp", "moe"), partial(self._network, layer, states))

    def _attend(self, layer: int, tokens: int) -> Block:
        block = layers.latent_attention if layers.is_latent(self.weights, layer) else layers.attention
        return block(self.weights, layer, self._rotation(layer, tokens))

    def _attention(self, layer: int, states: HiddenStates, commit: bool) -> None:
        run = self._attend(layer, states.shape[1])
        self._add(states, f"layers.{layer}.attention", run, 1, commit)

    def _network(self, layer: int, states: HiddenStates, commit: bool) -> None:
        name = f"layers.{layer}.mlp"
        if self.graph.has(f"layers.{layer}.moe.router.weight"):
            together = max(1, _BATCH // (states.shape[1] * states.shape[2] * 4))
            self._add(states, name, layers.experts(self.weights, layer), together, commit)
        else:
            self._add(states, name, layers.feed_forward(self.weights, name), 1, commit)

    def _add(self, states: HiddenStates, name: str, run: Block, batch: int, commit: bool) -> None:
        """Adds a block's output to the states of all texts, `batch` of them at a time."""
        before = self.weights.norm(f"{name}.norm")
        after = self.weights.norm(f"{name}.post_norm") if self.graph.has(f"{name}.post_norm.weight") else None
        scale = np.float32(self.graph.config.residual_scale or 1)
        for start in range(0, states.shape[0], batch):
            texts = range(start, min(start + batch, states.shape[0]))
            x = np.concatenate([states[text] for text in texts]) if len(texts) > 1 else states[start]
            try:
                out = run(x if before is None else before(x))
            except ObservedError:
                continue
            out = x + (out if after is None else after(out)) * scale
            check_finite(out, name)
            for text, part in zip(texts, np.split(out, len(texts)), strict=True) if commit else ():
                states[text] = part

    def _parallel(self, layer: int, states: HiddenStates, commit: bool) -> None:
        """Both blocks read the layer's input. The second has a norm of its own, or the first's."""
        graph, weights, name = self.graph, self.weights, f"layers.{layer}"
        first = weights.norm(f"{name}.attention.norm")
        second = weights.norm(f"{name}.mlp.norm") if graph.has(f"{name}.mlp.norm.weight") else first
        attend = self._attend(layer, states.shape[1])
        is_mixture = graph.has(f"{name}.moe.router.weight")
        rest = layers.experts(weights, layer) if is_mixture else layers.feed_forward(weights, f"{name}.mlp")
        for text in range(states.shape[0]):
            x = states[text]
            a, b = (x if norm is None else norm(x) for norm in (first, second))
            with suppress(ObservedError):
                out = x + attend(a) + rest(b)
                check_finite(out, name)
                if commit:
                    states[text] = out


def check_finite(values: Floats, name: str) -> None:
    """Raises FormatError, with the layer, for a value that isn't finite."""
    if not np.isfinite(values).all():
        raise FormatError("values aren't finite", path=name, hint="the weights or their scales are damaged")


def prompt_states(model: OpenModel, prompts: Sequence[Ids], *, average: bool) -> Floats:
    """Returns the hidden states before each layer, F32 [prompts, layers, dim]: each prompt's last, or the mean of all
    its tokens. Raises UnsupportedError for a family whose graph isn't computed."""
    computed = ComputedModel(model)
    longest = max(map(len, prompts))
    rows = np.stack([np.pad(ids, (0, longest - len(ids)), mode="edge") for ids in prompts])  # no token sees later ones
    out = np.empty((len(prompts), computed.graph.layers, computed.graph.config.dim), np.float32)
    for layer, states in enumerate(ForwardPass(computed.provider, computed.graph).layer_inputs(rows)):
        for number, ids in enumerate(prompts):
            tokens = states[number][: len(ids)]
            out[number, layer] = tokens.mean(axis=0) if average else tokens[-1]
    return out
