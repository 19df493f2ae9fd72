"""How what a conversion made is run: the command of the first target that takes it."""

from __future__ import annotations

import json
from typing import Any, Final

from weighbridge.base.limits import CONFIG_JSON
from weighbridge.conversion.plan.model import Plan
from weighbridge.shipping.model import planned_keys
from weighbridge.shipping.targets import run_line

_CONFIG: Final = "config.json"


def how_to_run(plan: Plan) -> str | None:
    """The command for the files that `plan` writes; None where no runtime takes them as they are."""
    kind = _kind(plan)
    path = plan.target / plan.files[0].name if plan.folder and plan.format == "gguf" else plan.target
    return run_line(kind, str(path)) if kind else None


def _kind(plan: Plan) -> str | None:
    """gguf, embedding, adapter gguf, mlx, hf."""
    if not plan.files or not plan.files[0].layout.slots:
        return None
    if plan.format == "gguf":
        return _gguf_kind(planned_keys(plan) or {})
    if plan.format in ("mlx", "hf"):
        return plan.format if _generates(plan.texts.get(_CONFIG) or _copied(plan)) else None
    return None


def _copied(plan: Plan) -> bytes | None:
    """The source's config.json where it is copied as it is."""
    file = next((f for f in plan.files if f.name == _CONFIG and f.layout.size <= CONFIG_JSON), None)
    return b"".join(bytes(node.read(0, node.spec.rows)) for node in file.nodes) if file else None


def _gguf_kind(keys: Any) -> str | None:
    architecture, kind = keys.get("general.architecture"), keys.get("general.type", "model")
    if kind == "adapter":
        return "adapter gguf"
    if kind != "model" or not isinstance(architecture, str) or "tokenizer.ggml.model" not in keys:
        return None
    return "embedding" if f"{architecture}.pooling_type" in keys else "gguf"


def _generates(config: bytes | None) -> bool:
    """Whether a config is of a class that generates text."""
    try:
        named = json.loads(config or b"{}").get("architectures") or [""]
        return str(named[0]).endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return False
