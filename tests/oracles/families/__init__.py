"""The small models of the families, one or a few each, so chosen that every row of a family's table is in one of them.

Each is converted for the proofs (tests/proof) with a tokenizer of its own, and recorded without one in
tests/models/golden/families/: transformers', mlx-lm's and the reference converter's names, bytes and keys.

A module of this package has `CASES`, and may have `UNSAID`: what a config of a family may not say without a loss.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from tests.oracles.case import Case

_MODULES = [import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
CASES: dict[str, Case] = {name: case for m in _MODULES for name, case in getattr(m, "CASES", {}).items()}
UNSAID: dict[str, dict[str, Any]] = {
    family: said for m in _MODULES for family, said in getattr(m, "UNSAID", {}).items()
}

# (case, type) that ours is compared with the reference converter's in.
REFERENCES = [
    *((name, case.asked) for name, case in CASES.items() if case.whole and case.judged),
    ("gpt-oss-mxfp4", "bf16"),  # its experts stay MXFP4 whatever is asked for
    ("gpt-oss-mxfp4", "q8_0"),
    ("kimi-k3-published", "q8_0"),
    ("deepseek4-published", "q8_0"),
    *(("mistral4", dtype) for dtype in ("f16", "bf16", "q8_0")),
]
