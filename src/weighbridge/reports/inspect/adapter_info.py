"""Reads the facts of a LoRA adapter (rank, alpha, base model, changed layers) from its config (PEFT, mlx-lm), a GGUF's
metadata, kohya's metadata, and the shapes of its tensors. Reads no tensor data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from weighbridge.base.records import dataclass
from weighbridge.models.model import OpenModel
from weighbridge.reports import sidecars

_CONFIG: Final = "adapter_config.json"
# The first matrix of a pair: [rank, in], in mlx-lm [in, rank].
_PAIR: Final = re.compile(r"\.(?:lora\.down|lora_linear_layer\.down|lora_(?:A|a|down))(?:\.|$)")
_MLX: Final = "lora_parameters"


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """A LoRA adapter. None: neither the config nor a tensor specifies it."""

    rank: int | None = None
    alpha: float | None = None
    base: str | None = None
    targets: tuple[str, ...] = ()


def of(model: OpenModel) -> AdapterInfo | None:
    """Returns the facts of `model` if it is an adapter, else None."""
    pairs = ((e, m.start()) for e in model.index.entries if (m := _PAIR.search(e.name, 1)))
    shapes = {e.name[:end].removesuffix(".weight").rpartition(".")[2]: e.shape for e, end in pairs}
    if not shapes:
        return None
    config = {} if model.format == "gguf" else sidecars.json(model.place.folder / _CONFIG)
    mlx = config.get(_MLX) if isinstance(config.get(_MLX), dict) else None
    facts = [*_declared_facts(config, mlx or {}, model.metadata)]
    shape = next(iter(shapes.values()))
    rank = shape[-1 if mlx is not None else 0] if len(shape) >= 2 else None
    targets = config.get("target_modules") or (mlx or {}).get("keys")
    return AdapterInfo(
        rank=_first(facts, "rank", int) or rank,
        alpha=_first(facts, "alpha", int | float),
        base=_first(facts, "base", str),
        targets=tuple(map(str, targets)) if isinstance(targets, list) else tuple(sorted(shapes)),
    )


def _declared_facts(
    config: Mapping[str, Any], mlx: Mapping[str, Any], metadata: Mapping[str, Any]
) -> Iterable[Mapping[str, Any]]:
    """Yields rank, alpha and base from each source."""
    yield {"rank": config.get("r"), "alpha": config.get("lora_alpha"), "base": config.get("base_model_name_or_path")}
    rank, scale = mlx.get("rank"), mlx.get("scale")  # the scale is alpha / rank
    alpha = scale * rank if isinstance(scale, int | float) and isinstance(rank, int) else None
    yield {"rank": rank, "alpha": alpha, "base": config.get("model")}
    gguf = ("general.base_model.0.repo_url", "general.base_model.0.name", "general.basename")
    yield {"alpha": metadata.get("adapter.lora.alpha"), "base": next(filter(None, map(metadata.get, gguf)), None)}
    kohya = {"rank": _number(metadata.get("ss_network_dim")), "alpha": _number(metadata.get("ss_network_alpha"))}
    yield {**kohya, "base": metadata.get("ss_sd_model_name") or metadata.get("ss_base_model_version")}


def _number(text: Any) -> int | float | None:
    try:
        value = float(text)
        return int(value) if value.is_integer() else value
    except (TypeError, ValueError, OverflowError):
        return None


def _first(facts: Sequence[Mapping[str, Any]], key: str, kind: Any) -> Any:
    return next((row[key] for row in facts if isinstance(row.get(key), kind) and not isinstance(row[key], bool)), None)
