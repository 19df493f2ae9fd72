"""In which order the reference converter writes tensors into a GGUF.

conversion/base.py (llama.cpp b11549), `index_tensors`, `prepare_tensors`: the shards in the order of their file names,
in each the tensors sorted by name (`SafetensorsLocal` sorts, whatever the header's order); made tensors (`rope_freqs`)
come before all. conversion/llama.py `modify_tensors`: a layer's experts are held back until the last of them has come,
then written gate, down, up (w1, w2, w3). So a tensor stands where the last tensor of its source stands. What a class
writes itself (conversion/deepseek.py, kimi_k3.py `generate_extra_tensors`) comes first, in the order of the layers: of
a Kimi K3 packed experts alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from weighbridge.models.arch.dialects import detect_dialect
from weighbridge.models.arch.expand import Instance, Sizes, TensorSlot

if TYPE_CHECKING:
    from weighbridge.models.arch.family import Family


def as_read(files: Mapping[str, str], *, pickled: bool = False) -> list[str]:
    """The names of a folder's tensors (tensor -> file, as the files list them) in the order the reference reads them:
    file by file, those of a safetensors file by name, those of a pickle (`pickled`) as it lists them."""
    return sorted(files, key=lambda name: (files[name], "" if pickled else name))


def _source(family: Family, instance: Instance) -> Instance:
    """The instance whose tensor it is written from."""
    return family.rows[instance[0]].copies or instance[0], instance[1]


def reference_order(
    family: Family, places: Mapping[str, TensorSlot], sizes: Sizes, source_order: Sequence[str] | None,
    dialect_and_prefix: tuple[str, str] | None = None, packed: Collection[str] = (),
) -> list[str]:  # fmt: skip
    """The names of `places` as the reference would write them for a source with tensors in `source_order` (see
    `as_read`), which are of this dialect and prefix; without one, for a single file under Hugging Face's names.
    `packed`: roles that are stored in codes."""
    if source_order is None:
        source_order, dialect_and_prefix = sorted(family.expansion("hf", sizes).places), None
    dialect, prefix = dialect_and_prefix or detect_dialect(family, source_order, sizes)[1:]
    source = family.expansion(dialect, sizes, prefix).places
    gguf = family.dialects["gguf"]
    first = [group for group in gguf.write_groups if gguf.write_packed_first and packed and {*group} <= {*packed}]
    together = [group for group in gguf.write_groups if group not in first]
    rank = {role: (n, place) for n, bundle in enumerate(together) for place, role in enumerate(bundle)}
    came: dict[Instance, int] = {}
    last: dict[tuple[int, tuple[int, ...]], int] = {}  # of a bundle in a layer
    for position, name in enumerate(source_order):
        for role, index in source[name].instances if name in source else ():
            if role in rank:
                last[rank[role][0], index[:1]] = position
            else:
                came[role, index] = position
    early = family.dialects[dialect].write_first
    apart = [*gguf.write_by_layer, *first]
    by_layer = {role: (n - len(apart), place) for n, bundle in enumerate(apart) for place, role in enumerate(bundle)}

    def key(name: str) -> tuple[int, int, int]:
        instances = places[name].instances
        role, index = instances[0]
        if role in by_layer:
            group, n = by_layer[role]
            return group, index[0], n
        if role in rank:
            bundle, n = rank[role]
            return role not in early, last.get((bundle, index[:1]), -1), n
        return role not in early, max(came.get(_source(family, instance), -1) for instance in instances), 0

    return sorted(places, key=key)  # stable: what has no source (made tensors) comes first
