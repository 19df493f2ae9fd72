"""Models of mlx-lm that attend to all tokens in every n-th layer, whatever `layer_types` says (mlx-lm 0.32:
qwen3_next.py, qwen3_5.py, gemma3_text.py, cohere2.py). Their config gets that n; where the layers follow none it is
refused: mlx-lm would load no such tensors, or compute another model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import UnsupportedError

#: mlx-lm's model_type -> the key that says how many layers there are to one that attends to all tokens, and what its
#: silence means.
PERIODS: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe"), ("full_attention_interval", 4))
    | dict.fromkeys(("gemma3", "gemma3_text"), ("sliding_window_pattern", 6))
    | {"cohere2": ("sliding_window_pattern", 4)}
)
_FULL: Final = "full_attention"


def with_period(config: dict[str, Any], layer_types: Sequence[str] | None) -> dict[str, Any]:
    """The config with the period of its layers under the key that mlx-lm reads. UnsupportedError where they have
    none."""
    said = PERIODS.get(str(config.get("model_type")))
    if said is None or not layer_types:
        return config
    key, usual = said
    full = [i for i, kind in enumerate(layer_types) if kind == _FULL]
    period = full[0] + 1 if full else 0
    if not period or full != list(range(period - 1, len(layer_types), period)):
        numbers = ", ".join(map(str, full))
        told = f"{f'layers {numbers}' if full else 'none'} of {len(layer_types)}"
        raise UnsupportedError(
            f"mlx-lm's {config['model_type']} has {_FULL} in every n-th layer, this model in {told}",
            hint="GGUF and Hugging Face folders hold any order: --to gguf, --to hf",
        )
    text = config.get("text_config")
    part = text if isinstance(text, Mapping) else config
    if part.get(key, usual) == period:
        return config
    changed = {**part, key: period}
    return changed if part is config else {**config, "text_config": changed}
