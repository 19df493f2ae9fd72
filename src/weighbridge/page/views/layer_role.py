"""The layer and the role that a GGUF's tensor has by its name."""

from __future__ import annotations

import re
from typing import Final

_LAYER: Final = re.compile(r"^blk\.([0-9]{1,6})\.(.+)$")


def layer_and_role(name: str) -> tuple[int, str]:
    """Returns (3, "attn_q") for blk.3.attn_q.weight, and (-1, "output") for output.weight, outside of the layers."""
    match = _LAYER.match(name)
    layer, role = (int(match[1]), match[2]) if match else (-1, name)
    return layer, role.removesuffix(".weight")
