"""In which order the reference converter writes tensors into a GGUF.

conversion/base.py (llama.cpp b11549), `index_tensors`, `prepare_tensors`: the shards in the order of their file names,
in each the tensors sorted by name (`SafetensorsLocal` sorts, whatever the header's order); made tensors (`rope_freqs`)
come before all. conversion/llama.py `modify_tensors`: a layer's experts are held back until the last of them has come,
then written gate, down, up (w1, w2, w3). So a tensor stands where the last tensor of its source stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from weighbridge.models.arch.expand import Instance, Sizes, TensorSlot

if TYPE_CHECKING:
    from weighbridge.models.arch.family import Family


def as_read(files: Mapping[str, str]) -> list[str]:
    """The names of a folder's tensors (tensor -> file) in the order the reference reads them."""
    return sorted(files, key=lambda name: (files[name], name))


def reference_order(
    family: Family, places: Mapping[str, TensorSlot], sizes: Sizes, source_order: Sequence[str] | None
) -> list[str]:
    """The names of `places` as the reference would write them for a source with tensors in `source_order` (see
    `as_read`); without one, for a single file under Hugging Face's names."""
    if source_order is None:
        source_order = sorted(family.expansion("hf", sizes).places)
    dialect, prefix = family.recognise(source_order, sizes)
    source = family.expansion(dialect, sizes, prefix).places
    came: dict[Instance, int] = {}
    for position, name in enumerate(source_order):
        for cell in source[name].cells if name in source else ():
            came[cell.instance] = position
    rank = {role: (bundle, n) for bundle in family.dialects["gguf"].write_groups for n, role in enumerate(bundle)}
    last = _last_of_bundles(came, rank)
    early = family.dialects[dialect].write_first

    def key(name: str) -> tuple[bool, int, int]:
        first = places[name].cells[0].instance
        if first[0] in rank:
            bundle, n = rank[first[0]]
            return first[0] not in early, last.get((bundle, first[1][:1]), -1), n
        return first[0] not in early, max(came.get(cell.instance, -1) for cell in places[name].cells), 0

    return sorted(places, key=key)  # stable: what has no source (made tensors) comes first


def _last_of_bundles(
    came: Mapping[Instance, int], rank: Mapping[str, tuple[tuple[str, ...], int]]
) -> dict[tuple[tuple[str, ...], tuple[int, ...]], int]:
    """For each bundle and layer, where the last of its tensors came."""
    last: dict[tuple[tuple[str, ...], tuple[int, ...]], int] = {}
    for (role, index), position in _known(came.items(), rank):
        key = (rank[role][0], index[:1])
        last[key] = max(last.get(key, -1), position)
    return last


def _known(
    came: Iterable[tuple[Instance, int]], rank: Mapping[str, tuple[tuple[str, ...], int]]
) -> Iterable[tuple[Instance, int]]:
    return (item for item in came if item[0][0] in rank)
