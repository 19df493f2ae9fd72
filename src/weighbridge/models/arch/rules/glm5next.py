"""GLM-5.3 Flash: the delta attention under the names of transformers (configuration_glm5_next.py, 5.23)."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.models.arch.tables.values import Config

KEYS: Final = ("linear_attn_config",)
_NAMES: Final = {
    "head_dim": "linear_head_dim", "num_heads": "linear_num_heads", "short_conv_kernel_size": "linear_conv_kernel_dim",
    "gate_lower_bound": "linear_lower_bound",
}  # fmt: skip


def complete(config: Config) -> dict[str, Any]:
    """Adds the settings that a published config has in an object, `linear_attn_config`."""
    own = config.get("linear_attn_config")
    return {name: own[key] for key, name in _NAMES.items() if key in own} if isinstance(own, dict) else {}
