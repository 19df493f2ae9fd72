"""The period of full attention in mlx-lm's configs.

Some models of mlx-lm have full attention in every n-th layer and ignore `layer_types` (mlx-lm 0.32: qwen3_next.py,
qwen3_5.py, gemma3_text.py, cohere2.py). Their config gets that n. Layers without a period are refused: mlx-lm would
look for other tensors or compute another model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from weighbridge.base.errors import UnsupportedError

_FULL: Final = "full_attention"


def with_period(
    config: dict[str, Any], layer_types: Sequence[str] | None, periods: Mapping[str, int]
) -> dict[str, Any]:
    """The config with the period of its layers under the key that mlx-lm reads. `periods`: that key and its default
    (`mlx.period` of the family). UnsupportedError for layers without a period."""
    if not periods or not layer_types:
        return config
    ((key, default),) = periods.items()
    full = [i for i, kind in enumerate(layer_types) if kind == _FULL]
    period = full[0] + 1 if full else 0
    if not period or full != list(range(period - 1, len(layer_types), period)):
        numbers = ", ".join(map(str, full))
        have = f"{f'layers {numbers}' if full else 'none'} of {len(layer_types)}"
        raise UnsupportedError(
            f"mlx-lm's {config['model_type']} has {_FULL} in every n-th layer, this model in {have}",
            hint="GGUF and Hugging Face folders support any order: --to gguf, --to hf",
        )
    text = config.get("text_config")
    part = text if isinstance(text, Mapping) else config
    if part.get(key, default) == period:
        return config
    changed = {**part, key: period}
    return changed if part is config else {**config, "text_config": changed}
