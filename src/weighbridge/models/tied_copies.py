"""The copies of the embedding that a GGUF of tied weights has, since llama.cpp's graph needs the output matrix
(architectures.toml, `needed`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from weighbridge.models.arch.family import Family
from weighbridge.models.model import OpenModel
from weighbridge.models.transform.base import with_entries


def copied_names(family: Family) -> Iterator[tuple[str, str, str]]:
    """Yields each role that may be a copy, its tensor's name in a GGUF, and that of the original."""
    rows = family.rows
    return ((role, rows[role].names["gguf"], rows[tied].names["gguf"]) for role, tied in family.copied.items())


def copies(model: OpenModel, named: Collection[str]) -> list[str]:
    """Notes on the tensors of a planned GGUF that are copies."""
    layouts = {name: row.layouts.get("gguf") for name, row in model.family.rows.items()}
    kinds = {r: "a copy" if layouts[r] == layouts[of] else "a multiple" for r, of in model.family.copied.items()}
    return [
        f"{name} is {kinds[role]} of {original}: llama.cpp's graph needs both"
        for role, name, original in copied_names(model.family)
        if name in named and (role, ()) not in model.roles
    ]


def without_copies(model: OpenModel) -> tuple[OpenModel, list[str]]:
    """Returns a GGUF's model without copies, and a note on each. Reads both tensors up to the first difference."""
    from weighbridge.tensors.filling import same_bytes

    stored, notes = model.stored, []
    for _, name, original in copied_names(model.family):
        if {name, original} <= stored.keys() and same_bytes(stored[name], stored[original]):
            model = with_entries(model, ((entry, entry.name) for entry in model.index if entry.name != name))
            notes.append(f"{name} is a copy of {original}: left out, and the config ties them")
    return model, notes
