"""Models that mlx-lm has a class for and transformers hasn't: what they compute is asked of mlx-lm's class, in f32."""

from __future__ import annotations

from typing import Any

from tests.oracles.plain import Config, Plain, Weights


def _forward(config: Config, weights: Weights, ids: Any) -> Any:
    import mlx.core as mx
    import numpy as np
    import torch
    from mlx_lm import utils

    model_class, args = utils._get_classes(config)
    model = model_class(args.from_dict(config))
    held = {name: mx.array(tensor.numpy()) for name, tensor in weights.items()}
    held = model.sanitize(held) if hasattr(model, "sanitize") else held
    with mx.stream(mx.cpu):
        model.load_weights(list(held.items()))
        return torch.from_numpy(np.array(model(mx.array(ids.numpy())[None])[0]))


MODELS = {name: Plain(_forward) for name in ("Spark2_5ForCausalLM", "TalkieForCausalLM", "BailingMoeV3ForCausalLM")}
