"""The last check of a plan: every setting that a loader takes from the source means the same in the target, or is
listed.

A setting that the target has no place for becomes a loss. One that it has a place for and that means something else
there stops the plan: nothing is written. The settings come from the family's table (`models/config/settings.py`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any, Final

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.containers.gguf.values import Metadata, kvs
from weighbridge.conversion.plan.builder import PlanBuilder
from weighbridge.conversion.plan.model import Loss
from weighbridge.models.arch.family import Family
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.config import settings
from weighbridge.models.config.pooling import pooling_type
from weighbridge.models.config.settings import LoaderSettings, SettingDifference
from weighbridge.tensors.nodes import Node

_FORMATS: Final = ("gguf", "mlx", "hf")  # the targets with a config of their own


def check_settings(model: Checkpoint, draft: PlanBuilder, kind: str) -> list[Loss]:
    """The losses that `draft` doesn't list yet. UnsupportedError for a setting that would mean something else in the
    target."""
    if kind not in _FORMATS or not draft.tensors or (model.format == kind == "gguf"):  # whose keys are kept
        return []
    if model.format != "gguf" and not model.config:
        return []
    target = _target(model, draft, kind)
    if target is None:
        return []
    found = settings.differences(_source(model), target)
    unlisted = [d for d in found if not any(d.named_in(loss.message) for loss in draft.losses)]
    if wrong := [d for d in unlisted if not d.lost]:
        raise _changed(wrong, target)
    return [Loss(_unheld(d, target)) for d in unlisted]


def _source(model: Checkpoint) -> LoaderSettings:
    if model.format == "gguf":
        return settings.of_gguf(model.metadata, model.family, model.index.by_name, model._vector)
    return settings.of_config(model.config, model.family, pooling_type(model.place.read))


def _target(model: Checkpoint, draft: PlanBuilder, kind: str) -> LoaderSettings | None:
    """The settings of the planned target; None where it has the source's own files."""
    if kind == "gguf":
        return _of_keys(model.family, draft)
    if (text := draft.texts.get("config.json")) is None:
        return None
    config: dict[str, Any] = json.loads(text)
    if kind == "mlx":
        return settings.of_mlx(config, model.family)
    if model.format != "gguf":
        return (
            None
            if config == dict(model.config)
            else settings.of_config(config, model.family, pooling_type(model.place.read))
        )
    return settings.of_config(config, model.family, pooling_type(draft.texts.get))


def _of_keys(family: Family, draft: PlanBuilder) -> LoaderSettings:
    return settings.of_gguf(
        Metadata(kvs(draft.metadata)), family, draft.tensors, lambda name: _vector(draft.tensors.get(name))
    )


def _vector(node: Node | None) -> tuple[float, ...] | None:
    """A short F32 tensor's values."""
    if node is None or node.spec.dtype is not F32 or node.spec.nbytes > MIB:
        return None
    return struct.unpack(f"<{node.spec.elements}f", node.read(0, node.spec.rows).tobytes())


def _changed(wrong: Iterable[SettingDifference], target: LoaderSettings) -> UnsupportedError:
    first = next(iter(wrong))
    return UnsupportedError(
        f"the target would be another model: {first.source} is {_short(first.a)} in the source, and {target.reader} "
        f"would read {_short(first.b)}",
        hint="nothing was written; wb arch check says how the model fits its family's table",
    )


def _unheld(difference: SettingDifference, target: LoaderSettings) -> str:
    why = {
        "llama.cpp": f"has no key in a {target.family.gguf} GGUF",
        "mlx-lm": "isn't read by mlx-lm",
        "transformers": "has no place in config.json",
    }
    return f"config.json: {difference.source} = {_short(difference.a)} {why[target.reader]}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
