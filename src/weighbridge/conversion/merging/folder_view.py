"""A model of any format with its tensors under the names of a Hugging Face folder, under which several models meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final

from weighbridge.base.dtypes import F32
from weighbridge.base.dtypes import dtype as dtype_of
from weighbridge.base.records import dataclass
from weighbridge.conversion.gguf.metadata import WEIGHT_TYPES, unquantized
from weighbridge.models.model import OpenModel
from weighbridge.models.transform.base import with_nodes
from weighbridge.models.transform.layer_stack import LayerStack, stacks
from weighbridge.models.transform.vocabulary import embeddings
from weighbridge.tensors.nodes import LogicalTensor, as_node, cast, is_plain, provisional

#: The dialect of the names.
HF: Final = "hf"


@dataclass(frozen=True)
class FolderView:
    """A model with its tensors under the names of a Hugging Face folder."""

    model: OpenModel

    @cached_property
    def tensors(self) -> Mapping[str, LogicalTensor]:
        if not self.by_table:
            return self.model.logical
        resolved, stored = self.model.resolved, self.model.logical
        if self.as_stored:
            return {**{name: stored[at] for name, at in self.stored_names.items() if at in stored}, **resolved.others}
        named = self.model.family.save(HF, self.model.sizes, resolved.known_roles)
        # as stored, with what no role has: the rows behind the heads of a Kimi K3's A_log
        own = {name: stored[at] for name, at in self.stored_names.items() if name in named and at in stored}
        return {**named, **own, **resolved.others}

    @cached_property
    def by_table(self) -> bool:
        return self.model.diffusion is None and self.model.described and HF in self.model.family.dialects

    @property
    def as_stored(self) -> bool:
        """Whether tensors meet as the folder has them: roles have values computed of several, which can't be saved."""
        return self.model.dialect == HF and any(row.computed for row in self.model.family.rows.values())

    @cached_property
    def stored_names(self) -> Mapping[str, str]:
        """The names in the folder, by those of `tensors`, for tensors of the table. Prefixes differ in a model
        without a head, and in a model that is part of a larger one."""
        model = self.model
        if not self.by_table or model.dialect != HF:
            return {}
        family, sizes = model.family, model.sizes
        stored = family.expansion(HF, sizes, family.prefix_of(HF, model.logical, sizes)).places
        return dict(zip(family.expansion(HF, sizes).places, stored, strict=True))

    @cached_property
    def embeddings(self) -> frozenset[str]:
        """The tensors with one row per token."""
        if not self.by_table:
            return frozenset(name for name in self.tensors if "embed_tokens" in name or "lm_head" in name)
        return frozenset(embeddings(self.model, HF, self.tensors))

    @property
    def family_name(self) -> str:
        return self.model.family.name if self.by_table else "unknown"

    @cached_property
    def stack(self) -> LayerStack | None:
        ranked = sorted(stacks(self.tensors), key=lambda stack: -stack.count)
        return ranked[0] if ranked else None

    def layer(self, name: str) -> int | None:
        return self.stack.layer(name) if self.stack else None


def decoded(model: OpenModel) -> OpenModel:
    """Returns a quantized folder as one of plain weights, under the names of a Hugging Face folder."""
    named = model.resolved.save_all(HF) if model.described and model.dialect != HF else model.logical
    stated = next((model.config[key] for key in WEIGHT_TYPES if isinstance(model.config.get(key), str)), "bfloat16")
    dtype = dtype_of(stated)
    nodes = {
        name: as_node(node if is_plain(node) else provisional(cast(node, F32), dtype)) for name, node in named.items()
    }
    texts = {**model.texts, "config.json": unquantized(model.config)}
    return replace(with_nodes(model, nodes), texts=texts)
