"""What a model makes of prompts: the hidden states before each layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weighbridge.forward.computed import ComputedModel
from weighbridge.forward.ops import Floats
from weighbridge.forward.run import ForwardPass, Ids
from weighbridge.models.model import OpenModel


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
