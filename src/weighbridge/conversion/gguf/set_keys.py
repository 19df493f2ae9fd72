"""The keys of a planned GGUF that an option sets (`--kv`), added to those of the conversion or replacing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.containers.gguf.container import ALIGNMENT_KEY, KV
from weighbridge.containers.gguf.values import kvs
from weighbridge.conversion.edit.values import Edit, edits_of, typed, why_guarded
from weighbridge.conversion.options import GgufFileOptions
from weighbridge.conversion.plan.builder import PlanBuilder
from weighbridge.conversion.result import Effect, Loss

_ARCHITECTURE: Final = "general.architecture"
# Keys with an option of their own.
_OPTIONS: Final = MappingProxyType({ALIGNMENT_KEY: "--align N", _ARCHITECTURE: "--arch NAME"})
_SHOWN: Final = 60  # characters of a value


def set_keys(draft: PlanBuilder, options: GgufFileOptions) -> dict[str, KV]:
    """Sets the keys of `kv`, after the checks of the conversion's own, and returns them with their types."""
    planned = kvs(draft.metadata)
    keys = given_keys(options.kv, planned, options.name)
    draft.losses += losses_of_keys(keys, planned)
    draft.metadata = {**planned, **keys}
    return keys


def given_keys(given: Sequence[Edit] | Mapping[str, Any], planned: Mapping[str, KV], name: str | None) -> dict[str, KV]:
    """The keys of `kv` with their types: the given one, else that of the planned key, else one that fits the value.

    `planned`: the keys of the conversion. `name`: the model name that an option sets. Raises RefusedError for a key
    that describes the file's structure, and for another type of a planned key; UsageError for an invalid value.
    """
    keys: dict[str, KV] = {}
    for edit in edits_of(given):
        if edit.key in _OPTIONS:
            raise UsageError(f"--kv doesn't set {edit.key}", hint=_OPTIONS[edit.key])
        if (reason := why_guarded(edit.key)) and (edit.key in planned or edit.key.startswith("split.")):
            raise RefusedError(f"{edit.key} is protected: {reason}", hint="wb edit --allow-guarded changes it later")
        if edit.key == "general.name" and name is not None:
            raise UsageError("--name and --kv both set general.name", hint="give one of them")
        keys[edit.key] = typed(edit, planned.get(edit.key), option=None)
    return keys


def losses_of_keys(keys: Mapping[str, KV], planned: Mapping[str, KV]) -> list[Loss]:
    """The losses of `keys`: planned values that they replace, and further keys that loaders of the model may read."""
    effects: dict[str, Effect] = {"tokenizer": "tokens"}
    if _ARCHITECTURE in planned:
        effects[str(planned[_ARCHITECTURE].value)] = "results"
    rooms = {key.partition(".")[0] for key in planned}  # a generic GGUF has no keys of its architecture
    losses = []
    for key, kv in keys.items():
        room = key.partition(".")[0]
        if key in planned:
            before = None if planned[key] == kv else f"instead of {_short(planned[key])}"
        else:
            before = "a key that the source lacks" if room in effects and room in rooms else None
        if before:
            losses.append(Loss(f"{key} is {_short(kv)}, as asked, {before}", effect=effects.get(room, "metadata")))
    return losses


def _short(kv: KV) -> str:
    text = repr(kv.value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
