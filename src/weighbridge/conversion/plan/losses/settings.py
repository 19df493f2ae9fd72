"""The last check of a plan: every setting that a loader reads from the source means the same in the target.

A setting that the target can't hold becomes a loss. One that it can hold, but that would mean something else there,
stops the plan: nothing is written. The settings come from the family's table (`models/config/settings.py`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.base.limits import MIB
from weighbridge.containers.gguf.values import KV, Metadata, kvs
from weighbridge.conversion.gguf import metadata
from weighbridge.conversion.plan.builder import PlanBuilder
from weighbridge.conversion.result import Loss
from weighbridge.models.arch.config import DERIVED
from weighbridge.models.arch.size_keys import LAYERS
from weighbridge.models.config import settings
from weighbridge.models.config.keys import is_list
from weighbridge.models.config.pooling import pooling_type
from weighbridge.models.config.reranker import is_named, pooling_of
from weighbridge.models.config.settings import LoaderSettings
from weighbridge.models.llamacpp import RANK
from weighbridge.models.model import OpenModel
from weighbridge.models.transform.base import KeptLayers, Transformed
from weighbridge.models.transform.layer_stack import without_layer

_ARCHITECTURE: Final = "general.architecture"
_KIND: Final = "layers "  # before the name of a kind of layers, in settings
_COUNTS: Final = frozenset({*DERIVED, *LAYERS.config, "num_nextn_predict_layers"})  # follow from the number of layers
_NOT_COMPARED: Final = Loss("settings by layer aren't compared with the source's: no table describes this model")
_NAMED: Final = 4  # tensors that one loss names


def check_settings(model: OpenModel, draft: PlanBuilder, kind: str) -> list[Loss]:
    """Returns the losses that `draft` doesn't list yet.

    Raises UnsupportedError for a setting that would mean something else in the target.
    """
    kind_of_file = draft.metadata.get("general.type")
    if not draft.tensors or (isinstance(kind_of_file, KV) and kind_of_file.value == "adapter"):
        return []
    model = draft.described or model
    if model.format == kind == "gguf":
        check_keys(kvs(model.metadata), kvs(draft.metadata))
        return []
    if model.format != "gguf" and (not model.config or model.diffusion is not None):
        return []
    target = _target(model, draft, kind)
    if target is None:
        return []
    differences = [
        d
        for d in settings.differences(_of_model(model), target)
        if d.setting not in draft.requested and not any(d.named_in(loss.message) for loss in draft.losses)
    ]
    if changed := next((d for d in differences if not d.lost), None):
        raise _another_model(changed.source, changed.a, changed.b, target.reader)
    place = {
        "llama.cpp": f"has no key in a {target.family.gguf} GGUF",
        "mlx-lm": "isn't read by mlx-lm",
        "transformers": "has no place in config.json",
    }[target.reader]
    return [Loss(f"config.json: {d.source} = {_short(d.a)} {place}", effect="results") for d in differences]


def check_keys(source: Mapping[str, KV], target: Mapping[str, KV], changed: Collection[str] = ()) -> None:
    """Raises UnsupportedError if a GGUF made from another loses or changes a key of the model or tokenizer.

    `changed`: keys that change on purpose.
    """
    model = (f"{source[_ARCHITECTURE].value}.", "tokenizer.") if _ARCHITECTURE in source else ("tokenizer.",)
    for key in source.keys() | target.keys():
        if key.startswith(model) and key not in changed and source.get(key) != target.get(key):
            before, after = (side[key].value if key in side else None for side in (source, target))
            raise _another_model(key, before, after, "llama.cpp")


def slice_losses(model: OpenModel, result: Transformed) -> list[Loss]:
    """The losses of settings that a slice changes for the layers it keeps, except those in `result.changed`."""
    if result.layers is None:
        return []
    try:
        before, after = _of_model(model), _of_model(result.model)
    except WeighbridgeError:  # without a table, a dropped tensor that no layer has may belong to the whole model
        kept = {without_layer(entry.name) for entry in result.model.index}
        unique = [name for name in result.dropped if without_layer(name) not in kept]
        more = f" and {len(unique) - _NAMED:,} more" if len(unique) > _NAMED else ""
        message = f"no remaining layer has a tensor like {', '.join(unique[:_NAMED])}{more}: dropped with its layer"
        return [_NOT_COMPARED, *([Loss(message)] if unique else [])]
    changed = " ".join((LAYERS.gguf, *(change.key.rpartition(".")[2] for change in result.changed)))
    cut = {key: _cut(key, value, result.layers) for key, value in before.values.items()}
    losses = []
    for d in settings.differences(replace(before, values=cut), after):
        if d.setting.startswith(_KIND):
            expected = d.setting == f"{_KIND}extra"
        else:  # it follows from the number of layers, or isn't by layer
            expected = d.setting in _COUNTS or d.b == before.values.get(d.setting) or d.named_in(changed)
        if d.setting in after.values and d.a is not None and not expected:
            text = f"{d.source} was {_short(d.a)} for the layers that are left and becomes {_short(d.b)}"
            losses.append(Loss(text, effect="results"))
    return losses


def _cut(setting: str, value: Any, layers: KeptLayers) -> Any:
    """A setting for the kept layers: numbers of the layers of a kind, a list with one value per layer, or unchanged.

    Layers that predict further tokens follow the others and are kept.
    """
    if not is_list(value):
        return value
    if setting.startswith(_KIND):
        order = (*layers.kept, *range(layers.before, max((layers.before, *value)) + 1))
        return [new for new, old in enumerate(order) if old in value]
    further = range(layers.before, len(value))
    return [value[i] for i in (*layers.kept, *further)] if len(value) >= layers.before else value


def _of_model(model: OpenModel) -> LoaderSettings:
    if model.format == "gguf":
        return settings.of_gguf(model.metadata, model.family, model.index.by_name, model.vector)
    return settings.of_config(model.config, model.family, pooling_of(model))


def _target(model: OpenModel, draft: PlanBuilder, kind: str) -> LoaderSettings | None:
    """The settings of the planned target; None if it has the source's files."""
    if kind == "gguf":

        def vector(name: str) -> tuple[float, ...] | None:
            """The values of a short F32 tensor."""
            node = draft.tensors.get(name)
            if node is None or node.spec.dtype is not F32 or node.spec.nbytes > MIB:
                return None
            return struct.unpack(f"<{node.spec.elements}f", node.read(0, node.spec.rows).tobytes())

        from weighbridge.models.tied_copies import copied_names  # late: few models have copies

        tensors = dict(draft.tensors)
        for role, name, _ in copied_names(model.family):  # the source ties them
            if (role, ()) not in model.roles:
                tensors.pop(name, None)
        return settings.of_gguf(Metadata(kvs(draft.metadata)), model.family, tensors, vector)
    if (text := draft.texts.get("config.json")) is None:
        return None
    config: dict[str, Any] = json.loads(text)
    if kind == "mlx":
        return settings.of_mlx(config, model.family)
    if model.format != "gguf":
        if _without_storage(config) == _without_storage(model.config):
            return None
        return settings.of_config(config, model.family, pooling_of(model))
    pooling = RANK if is_named(config, model.family) else pooling_type(draft.texts.get)
    return settings.of_config(config, model.family, pooling)


def _without_storage(config: Any) -> Any:
    """A config without the keys that a cast changes: those that describe how weights are stored."""
    if not isinstance(config, Mapping):
        return config
    storage = (*metadata.WEIGHT_TYPES, *metadata.PACKINGS)
    return {key: _without_storage(value) for key, value in config.items() if key not in storage}


def _another_model(setting: str, before: Any, after: Any, reader: str) -> UnsupportedError:
    return UnsupportedError(
        f"the target would be another model: {setting} is {_short(before)} in the source, and {reader} would read "
        f"{_short(after)}",
        hint="nothing was written; wb arch check shows how the model fits its family's table",
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
