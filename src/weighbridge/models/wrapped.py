"""Models as frameworks leave them. Names: torch.compile, DistributedDataParallel and PEFT put their own before each,
and models that were saved without their head, or inside another class, lack a part or have one too many. Counts:
some embeddings have more rows than config.json says, some models lack layers that it counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.models.arch.diagnose import SizeMismatch
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.transform.base import with_entries

_FURTHER: Final = "num_nextn_predict_layers"
_WRAPPERS: Final = ("_orig_mod.", "module.", "base_model.model.")


def unwrapped(model: Checkpoint) -> tuple[Checkpoint, list[str]]:
    """The model under the names and with the vocabulary of its family, and what was done to it. Nothing is done to one
    that fits, nor where no such step makes it fit."""
    if model.format in ("gguf", "ggml") or not len(model.index) or _fits(model):
        return model, []
    if (counted := _reconfigured(model)) is not None:
        return counted
    for names, words in _ways(model):
        if len(set(names.values())) < len(names):
            continue
        candidate = with_entries(model, ((e, names[e.name]) for e in model.index))
        if _fits(candidate):
            return candidate, [words]
    return model, []


def _fits(model: Checkpoint) -> bool:
    try:
        return model.resolved.report.ok
    except UnsupportedError:
        return False


def unwrapped_folder(model: Checkpoint) -> tuple[Checkpoint, list[str]]:
    """`unwrapped`, for a folder that is written under its own names: they change only where all of them begin with the
    same part and no name of the family begins with it."""
    parts = {e.name.partition(".")[0] for e in model.index}
    with suppress(WeighbridgeError):  # no family, or a config that names are kept without
        if len(parts) == 1 and not parts & {name.partition(".")[0] for name in model.family.names("hf", model.sizes)}:
            return unwrapped(model)
    return model, []


def _reconfigured(model: Checkpoint) -> tuple[Checkpoint, list[str]] | None:
    """The model with a config that counts what the tensors have, where that is all that is wrong."""
    for key, count, words in (*_more_rows(model), *_no_further_layers(model)):
        config = json.loads(json.dumps(model.config))
        text = config.get("text_config")
        (text if isinstance(text, dict) and key in text else config)[key] = count
        candidate = replace(model, texts={**model.texts, "config.json": json.dumps(config, indent=2).encode()})
        if _fits(candidate):
            return candidate, [f"config.json: {words}"]
    return None


def _more_rows(model: Checkpoint) -> Iterator[tuple[str, int, str]]:
    """As many tokens as the embedding has rows, where config.json says fewer."""
    found: Sequence[SizeMismatch] = ()
    with suppress(UnsupportedError):
        found = model.resolved.mismatches
    if len(found) == 1 and found[0].key == "vocab_size" and found[0].found > found[0].declared:
        yield "vocab_size", found[0].found, f"{found[0]}: the model has as many tokens as rows"


def _no_further_layers(model: Checkpoint) -> Iterator[tuple[str, int, str]]:
    """No layers that predict further tokens: who trains a model mostly leaves them out, and their number in."""
    text = model.config.get("text_config")
    count = (text if isinstance(text, Mapping) else model.config).get(_FURTHER)
    if isinstance(count, int) and count > 0:
        yield _FURTHER, 0, f"{_FURTHER} is {count}, but the tensors of these layers aren't there: none is counted"


def _ways(model: Checkpoint) -> Iterator[tuple[dict[str, str], str]]:
    """New names by old ones, in the order in which they are tried."""
    names = {e.name: e.name for e in model.index}
    taken = ""
    while wrapper := next((w for w in _WRAPPERS if names and all(n.startswith(w) for n in names.values())), None):
        names = {old: new.removeprefix(wrapper) for old, new in names.items()}
        taken += wrapper
        yield names, f"names begin with {taken}, which is taken away"
    parts = {new.partition(".")[0] for new in names.values()}
    if len(parts) == 1:
        part = f"{parts.pop()}."
        yield (
            {old: new.removeprefix(part) for old, new in names.items()},
            f"names begin with {taken}{part}, which is taken away",
        )
    known = model.family.names("hf", model.sizes)
    heads = dict.fromkeys(f"{name.partition('.')[0]}." for name in known)
    first = f"{taken} is taken away from names, and " if taken else ""
    for head in heads:
        fitted = {old: new if new in known else f"{head}{new}" for old, new in names.items()}
        yield fitted, f"{first}names lack {head}, which is put before them"
