"""Names as frameworks leave them: torch.compile, DistributedDataParallel and PEFT put their own before each, and models
that were saved without their head, or inside another class, lack a part or have one too many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.transform.base import with_entries

_WRAPPERS: Final = ("_orig_mod.", "module.", "base_model.model.")


def unwrapped(model: Checkpoint) -> tuple[Checkpoint, list[str]]:
    """The model under the names of its family, and what was done to them. Nothing is done to names that fit, nor where
    no such step makes all of them fit."""
    if model.format == "gguf" or _fits(model):
        return model, []
    for names, words in _ways(model):
        candidate = with_entries(model, ((e, names[e.name]) for e in model.index))
        if _fits(candidate):
            return candidate, [words]
    return model, []


def _fits(model: Checkpoint) -> bool:
    try:
        return model.resolved.report.ok
    except UnsupportedError:
        return False


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
