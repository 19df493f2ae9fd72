"""HRM-Text: how often its layers run, and the scale of its embedding (configuration_hrm_text.py, transformers 5.23)."""

from __future__ import annotations

from typing import Any

from weighbridge.models.arch.tables.expression import evaluate, layer_count
from weighbridge.models.arch.tables.values import Config, integer

_RUNS = "H_cycles * (L_cycles + 1)"


def complete(config: Config) -> dict[str, Any]:
    """Adds `num_layers_per_stack`, which `num_hidden_layers` is in older configs, and `embedding_scale`."""
    added: dict[str, Any] = {}
    if config.get("num_layers_per_stack") is None:
        runs = integer(evaluate(_RUNS, config) or 0, _RUNS)
        added |= {"num_layers_per_stack": layer_count(config), "num_hidden_layers": layer_count(config) * runs}
    spread = config.get("initializer_range")
    if config.get("embedding_scale") is None and isinstance(spread, float) and spread > 0:
        added["embedding_scale"] = 1.0 / spread
    return added
