"""The last check of a plan: every setting that a loader takes from the source means the same in the target, or is
listed.

A setting that the target has no place for becomes a loss. One that it has a place for and that means something else
there stops the plan: nothing is written. The settings come from the family's table (`models/config/settings.py`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.base.limits import MIB
from weighbridge.containers.gguf.values import KV, Metadata, kvs
from weighbridge.conversion.plan.builder import PlanBuilder
from weighbridge.conversion.plan.model import Loss
from weighbridge.models.arch.config import DERIVED
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.size_keys import LAYERS
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.config import settings
from weighbridge.models.config.keys import is_list
from weighbridge.models.config.pooling import pooling_type
from weighbridge.models.config.settings import LoaderSettings, SettingDifference
from weighbridge.models.transform.base import KeptLayers, Transformed
from weighbridge.models.transform.layer_stack import without_layer
from weighbridge.tensors.nodes import Node

_ARCHITECTURE: Final = "general.architecture"
_KIND: Final = "layers "  # before the name of a kind of layers, in settings
_COUNTS: Final = frozenset({*DERIVED, *LAYERS.config, "num_nextn_predict_layers"})  # follow from the number of layers
_NOT_COMPARED: Final = Loss("settings by layer aren't compared with the source's: no table describes this model")
_NAMED: Final = 4  # tensors that one loss names
_FORMATS: Final = ("gguf", "mlx", "hf")  # the targets with a config of their own


def check_settings(model: Checkpoint, draft: PlanBuilder, kind: str) -> list[Loss]:
    """The losses that `draft` doesn't list yet. UnsupportedError for a setting that would mean something else in the
    target."""
    if kind not in _FORMATS or not draft.tensors:
        return []
    if model.format == kind == "gguf":
        check_keys(kvs(model.metadata), kvs(draft.metadata))
        return []
    if model.format != "gguf" and not model.config:
        return []
    target = _target(model, draft, kind)
    if target is None:
        return []
    found = settings.differences(_of_model(model), target)
    unlisted = [d for d in found if not any(d.named_in(loss.message) for loss in draft.losses)]
    if wrong := [d for d in unlisted if not d.lost]:
        raise _changed(wrong, target)
    return [Loss(_unheld(d, target)) for d in unlisted]


def check_keys(source: Mapping[str, KV], target: Mapping[str, KV], changed: Collection[str] = ()) -> None:
    """UnsupportedError for a key of a GGUF's model or tokenizer that isn't kept by the GGUF made of it. `changed`: keys
    that were to change."""
    model = (f"{source[_ARCHITECTURE].value}.", "tokenizer.") if _ARCHITECTURE in source else ("tokenizer.",)
    for key in source.keys() | target.keys():
        if key.startswith(model) and key not in changed and source.get(key) != target.get(key):
            before, after = (side[key].value if key in side else None for side in (source, target))
            raise _another_model(key, before, after, "llama.cpp")


def slice_losses(model: Checkpoint, done: Transformed) -> list[Loss]:
    """The settings that a slice changes for the layers it keeps, without those in `done.changed`."""
    if done.layers is None:
        return []
    try:
        before, after = _of_model(model), _of_model(done.model)
    except WeighbridgeError:
        return [_NOT_COMPARED, *_unmatched(done)]
    asked = " ".join((LAYERS.gguf, *(change.key.rpartition(".")[2] for change in done.changed)))
    cut = {key: _of_kept(key, value, done.layers) for key, value in before.values.items()}
    found = (d for d in settings.differences(replace(before, values=cut), after) if d.setting in after.values)
    wrong = [d for d in found if d.a is not None and not _expected(d, before.values[d.setting], asked)]
    return [Loss(f"{d.source} was {_short(d.a)} for the layers that are left and becomes {_short(d.b)}") for d in wrong]


def _unmatched(done: Transformed) -> list[Loss]:
    """Dropped tensors that no remaining layer has: without a table, one of them may belong to the whole model."""
    left = {without_layer(entry.name) for entry in done.model.index}
    gone = [name for name in done.dropped if without_layer(name) not in left]
    if not gone:
        return []
    more = f" and {len(gone) - _NAMED:,} more" if len(gone) > _NAMED else ""
    return [Loss(f"no remaining layer has a tensor like {', '.join(gone[:_NAMED])}{more}: dropped with its layer")]


def _expected(difference: SettingDifference, before: Any, asked: str) -> bool:
    """Whether a difference follows from the number of layers, or is no setting by layer."""
    if difference.setting.startswith(_KIND):
        return difference.setting == f"{_KIND}extra"
    return difference.setting in _COUNTS or difference.b == before or difference.named_in(asked)


def _of_kept(setting: str, value: Any, layers: KeptLayers) -> Any:
    """The numbers of the kept layers of a kind, one value a layer, or what isn't by layer. Layers that predict further
    tokens come behind the others and stay."""
    if not is_list(value):
        return value
    if setting.startswith(_KIND):
        order = (*layers.kept, *range(layers.before, max((layers.before, *value)) + 1))
        return [new for new, old in enumerate(order) if old in value]
    further = range(layers.before, len(value))
    return [value[i] for i in (*layers.kept, *further)] if len(value) >= layers.before else value


def _of_model(model: Checkpoint) -> LoaderSettings:
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
    return _another_model(first.source, first.a, first.b, target.reader)


def _another_model(setting: str, before: Any, after: Any, reader: str) -> UnsupportedError:
    return UnsupportedError(
        f"the target would be another model: {setting} is {_short(before)} in the source, and {reader} would read "
        f"{_short(after)}",
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
