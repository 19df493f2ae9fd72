"""Finds models that are stored in several forms: equal in architecture and parameters, and possibly in values."""

from __future__ import annotations

import re
from collections.abc import Iterable

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.records import dataclass
from weighbridge.reports.stores.listing import StoreEntry


@dataclass(frozen=True, slots=True)
class Forms:
    """Entries with equal architecture and number of parameters. `types`: the type of each entry's weights. `same`:
    groups of entries with equal values in every tensor, regardless of the container."""

    architecture: str
    parameters: int
    names: tuple[str, ...]
    types: tuple[str, ...]
    same: tuple[tuple[str, ...], ...]
    bytes: int


def forms_of(entries: Iterable[StoreEntry]) -> tuple[tuple[Forms, ...], tuple[str, ...]]:
    """Returns the models stored in several forms, and the entries that weren't compared, with the reason."""
    alike: dict[tuple[str, int], list[StoreEntry]] = {}
    uncompared = []
    for entry in entries:
        if entry.trouble:
            uncompared.append(f"{entry.name}: {entry.trouble}")
        elif entry.architecture and entry.parameters:
            # `LlamaForCausalLM` and GGUF's `llama` are equal
            architecture = re.sub(r"For[A-Z]\w*\Z", "", entry.architecture).lower()
            alike.setdefault((architecture, entry.parameters), []).append(entry)
    forms = []
    for (architecture, parameters), group in alike.items():
        if len(group) > 1:
            names, types = tuple(e.name for e in group), tuple(e.quantization or "" for e in group)
            equal: list[list[StoreEntry]] = []  # entries with equal values; those with equal types are compared
            for entry in group:
                candidates = (g for g in equal if g[0].quantization == entry.quantization)
                match = next((g for g in candidates if _equal(g[0], entry, uncompared)), None)
                equal.append([entry]) if match is None else match.append(entry)
            same = tuple(tuple(e.name for e in g) for g in equal if len(g) > 1)
            forms.append(Forms(architecture, parameters, names, types, same, sum(e.bytes for e in group)))
    return tuple(forms), tuple(uncompared)


def _equal(a: StoreEntry, b: StoreEntry, uncompared: list[str]) -> bool:
    from weighbridge.reports.diff.report import diff  # late: imports numpy

    try:
        return a.path == b.path or diff(a.path, b.path).same
    except (OSError, WeighbridgeError) as error:
        uncompared.append(f"{a.name} with {b.name}: {str(error).splitlines()[0]}")
        return False
