"""One model in several forms: the same architecture with the same number of parameters, and which have the same
values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from weighbridge.base.errors import WeighbridgeError
from weighbridge.reports.stores.listing import StoreEntry


@dataclass(frozen=True, slots=True)
class Forms:
    """Entries that are one model in several forms, by architecture and number of parameters. `types`: of each entry's
    weights; `same`: groups of entries with the same values in every tensor, whatever the container."""

    architecture: str
    parameters: int
    names: tuple[str, ...]
    types: tuple[str, ...]
    same: tuple[tuple[str, ...], ...]
    bytes: int


def forms_of(entries: Iterable[StoreEntry]) -> tuple[tuple[Forms, ...], tuple[str, ...]]:
    """The models that are there in several forms, and what wasn't compared, with the reason."""
    alike: dict[tuple[str, int], list[StoreEntry]] = {}
    uncompared = []
    for entry in entries:
        if entry.trouble:
            uncompared.append(f"{entry.name}: {entry.trouble}")
        elif entry.architecture and entry.parameters:
            alike.setdefault((_plain(entry.architecture), entry.parameters), []).append(entry)
    found = tuple(_forms(*key, forms, uncompared) for key, forms in alike.items() if len(forms) > 1)
    return found, tuple(uncompared)


def _forms(architecture: str, parameters: int, forms: list[StoreEntry], uncompared: list[str]) -> Forms:
    types = tuple(e.quantization or "" for e in forms)
    same = tuple(_same(forms, uncompared))
    return Forms(architecture, parameters, tuple(e.name for e in forms), types, same, sum(e.bytes for e in forms))


def _same(forms: Iterable[StoreEntry], uncompared: list[str]) -> Iterator[tuple[str, ...]]:
    """The names of entries with the same values, group by group. Those of one type are read and compared."""
    groups: list[list[StoreEntry]] = []
    for entry in forms:
        candidates = (g for g in groups if g[0].quantization == entry.quantization)
        found = next((g for g in candidates if _equal(g[0], entry, uncompared)), None)
        groups.append([entry]) if found is None else found.append(entry)
    return (tuple(e.name for e in group) for group in groups if len(group) > 1)


def _equal(a: StoreEntry, b: StoreEntry, uncompared: list[str]) -> bool:
    from weighbridge.reports.diff.report import diff  # late: it needs numpy

    try:
        return a.path == b.path or diff(a.path, b.path).same
    except (OSError, WeighbridgeError) as error:
        uncompared.append(f"{a.name} with {b.name}: {str(error).splitlines()[0]}")
        return False


def _plain(architecture: str) -> str:
    """`LlamaForCausalLM` and GGUF's `llama` are one."""
    return re.sub(r"For[A-Z]\w*\Z", "", architecture).lower()
