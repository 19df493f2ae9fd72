"""The order in which the reference converter writes tensors to a GGUF.

conversion/base.py (llama.cpp b11549), `index_tensors` and `prepare_tensors`: shards in the order of their file names,
in each the tensors sorted by name (`SafetensorsLocal` sorts, whatever the header's order); computed tensors
(`rope_freqs`) come first. conversion/llama.py `modify_tensors`: a layer's experts are held back until the last of
them is read, then written as gate, down, up (w1, w2, w3). So a tensor's position is that of the last tensor of its
source. Tensors that a class writes itself (conversion/deepseek.py, kimi_k3.py `generate_extra_tensors`; of Kimi K3
only packed experts) come first, layer by layer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from weighbridge.models.arch.dialects import detect_dialect
from weighbridge.models.arch.expand import Instance, Sizes, TensorSlot
from weighbridge.models.arch.naming import FamilyNames


def as_read(files: Mapping[str, str], *, pickled: bool = False) -> list[str]:
    """A folder's tensor names (tensor -> file) in the order in which the reference reads them: file by file, those of
    safetensors files by name, those of pickles (`pickled`) as listed."""
    return sorted(files, key=lambda name: (files[name], "" if pickled else name))


def reference_order(
    family: FamilyNames, places: Mapping[str, TensorSlot], sizes: Sizes, source_order: Sequence[str] | None,
    dialect_and_prefix: tuple[str, str] | None = None, packed: Collection[str] = (),
) -> list[str]:  # fmt: skip
    """The names of `places` in the order in which the reference would write them.

    `source_order`: the source's tensors as read (see `as_read`), of this dialect and prefix; None stands for a single
    file under Hugging Face names. `packed`: roles that are stored as codes.
    """
    if source_order is None:
        source_order, dialect_and_prefix = sorted(family.expansion("hf", sizes).places), None
    dialect, prefix = dialect_and_prefix or detect_dialect(family, source_order, sizes)[1:]
    source = family.expansion(dialect, sizes, prefix).places
    gguf = family.dialects["gguf"]
    first = [group for group in gguf.write_groups if gguf.write_packed_first and packed and {*group} <= {*packed}]
    together = [group for group in gguf.write_groups if group not in first]
    group_of = {role: (n, place) for n, group in enumerate(together) for place, role in enumerate(group)}
    read_at: dict[Instance, int] = {}
    last_read: dict[tuple[int, tuple[int, ...]], int] = {}  # of a group in a layer
    for position, name in enumerate(source_order):
        for role, index in source[name].instances if name in source else ():
            if role in group_of:
                last_read[group_of[role][0], index[:1]] = position
            else:
                read_at[role, index] = position
    early = family.dialects[dialect].write_first
    apart = [*gguf.write_by_layer, *first]
    by_layer = {role: (n - len(apart), place) for n, group in enumerate(apart) for place, role in enumerate(group)}

    def key(name: str) -> tuple[int, int, int]:
        instances = places[name].instances
        role, index = instances[0]
        if role in by_layer:
            group, n = by_layer[role]
            return group, index[0], n
        if role in group_of:
            group, n = group_of[role]
            return role not in early, last_read.get((group, index[:1]), -1), n
        sources = ((family.rows[name].copies or name, index) for name, index in instances)
        return role not in early, max(read_at.get(instance, -1) for instance in sources), 0

    return sorted(places, key=key)  # stable: computed tensors, which have no source, come first
