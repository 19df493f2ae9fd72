"""Recognises adapters, packings and families by tensor names. The first adapter or family that matches wins; there may
be several packings. Only names count, not shapes, so that recognisers and reports share the tables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from weighbridge.base.plugins import PACKINGS as GROUP
from weighbridge.base.plugins import plugins
from weighbridge.containers.formats import DFLOAT11
from weighbridge.packings.schema.base import PackingSchema
from weighbridge.packings.schema.registry import SHIPPED


class NamePattern(NamedTuple):
    """A name that contains `pattern` reveals the adapter, packing or family `id`."""

    id: str
    pattern: re.Pattern[str]
    evidence: str


def _rows(*rows: tuple[str, str, str]) -> tuple[NamePattern, ...]:
    return tuple(NamePattern(id, re.compile(pattern), evidence) for id, pattern, evidence in rows)


ADAPTERS: Final = _rows(
    # PEFT writes base_model.model.<path>.lora_A.weight; kohya lora_unet_...lora_down.weight; diffusers .lora.up.weight
    ("lora-peft", r"(^base_model\.model\.).*\.lora_(A|B|embedding_A|embedding_B)\b", "PEFT LoRA tensor names"),
    ("lora-kohya", r"^lora_(unet|te|te1|te2|transformer)_.*\.(lora_down|lora_up)\.", "kohya LoRA tensor names"),
    ("lora", r"(^|\.)lora_(A|B|a|b|up|down)(\.|$)|\.lora\.(up|down)\.|\.lora_linear_layer\.", "LoRA tensor names"),
    ("lokr", r"\.lokr_w[12](_[ab])?$", "LyCORIS LoKr tensor names"),
    ("loha", r"\.hada_w[12]_[ab]$", "LyCORIS LoHa tensor names"),
    ("ia3", r"\.ia3_l(\.|$)", "IA3 tensor names"),
    ("prompt", r"^prompt_embeddings$", "prompt tuning tensor names"),
    ("control-vector", r"^direction\.\d+$", "control vector tensor names"),
    ("textual-inversion", r"^emb_params$|^clip_[lg]$", "textual inversion tensor names"),
)


def _packings(schemas: Iterable[PackingSchema]) -> tuple[NamePattern, ...]:
    """The evidence that packing schemas declare; several of them may share a row."""
    patterns: dict[tuple[str, str], list[str]] = {}
    for schema in schemas:
        if evidence := schema.evidence:
            ending = f"{re.escape(schema.members[evidence.role or schema.key].suffix)}$"
            whole = (f"^{re.escape(name)}$" for name in evidence.marks)
            patterns.setdefault((evidence.what, evidence.text), []).extend((ending, *whole))
    return tuple(NamePattern(id, re.compile("|".join(rows)), text) for (id, text), rows in patterns.items())


#: The patterns of the shipped schemas, and of DFloat11, whose blocks have several weights.
PACKINGS: Final = (
    *_packings(SHIPPED), *_rows(("dfloat11", f"{re.escape(DFLOAT11)}$", "DFloat11 tensor names"))
)  # fmt: skip
# Endings of plain tensors. Plug-ins are only searched if a name has another ending: that takes some 20 ms.
_PLAIN: Final = (".weight", ".bias")

FAMILIES: Final = _rows(
    (
        "decoder-hf",
        r"(^|\.)model\.layers\.0\.self_attn\.(q_proj|qkv_proj)\.",
        "Hugging Face decoder (Llama-like) names",
    ),
    ("decoder-meta", r"^layers\.0\.attention\.wq\.", "Meta / Mistral native names"),
    ("bert", r"(^|\.)encoder\.layer\.0\.attention\.self\.query\.", "BERT-like encoder names"),
    ("gpt2", r"(^|\.)h\.0\.attn\.c_attn\.", "GPT-2 names"),
    ("gpt-neox", r"^gpt_neox\.layers\.0\.", "GPT-NeoX names"),
    ("t5", r"^encoder\.block\.0\.layer\.0\.SelfAttention\.", "T5 names"),
    ("mamba", r"\.layers\.0\.mixer\.(in_proj|A_log)", "Mamba names"),
    ("whisper", r"decoder\.layers\.0\.encoder_attn\.", "encoder-decoder with cross attention (Whisper, BART)"),
    ("clip", r"(^|\.)text_model\.encoder\.layers\.0\.", "CLIP text encoder names"),
    ("ldm", r"^model\.diffusion_model\.", "Stable Diffusion (LDM) checkpoint names"),
    ("flux", r"(^|\.)double_blocks\.0\.img_attn\.", "Flux transformer names"),
    ("dit", r"^transformer_blocks\.0\.", "diffusers transformer names"),
    ("unet", r"^down_blocks\.0\.", "diffusers UNet or VAE names"),
    ("gguf", r"^blk\.0\.attn_", "GGUF names"),
)


# A part of a name that is a number other than 0: no pattern here distinguishes these numbers.
_FURTHER: Final = re.compile(r"(?<=\.)[1-9][0-9]*(?=\.)")


def distinct(names: Iterable[str]) -> list[str]:
    """The names without those that differ only in the number of a layer or expert: some dozens of 100,000."""
    return list(dict.fromkeys(_FURTHER.sub("1", name) for name in names))


def first(patterns: Iterable[NamePattern], names: Collection[str]) -> NamePattern | None:
    """The first pattern that occurs in any of the names."""
    return next((pattern for pattern in patterns if any(pattern.pattern.search(n) for n in names)), None)


def packings(names: Iterable[str]) -> tuple[NamePattern, ...]:
    """All packings that the names reveal; those of plug-ins only if no shipped one does."""
    pool = list(names)
    shipped = _matching(PACKINGS, distinct(pool))
    if shipped or all(name.endswith(_PLAIN) for name in pool):
        return shipped
    return _matching(_packings(plugins(GROUP, PackingSchema).values()), pool)


def _matching(patterns: Iterable[NamePattern], names: list[str]) -> tuple[NamePattern, ...]:
    return tuple(pattern for pattern in patterns if any(pattern.pattern.search(n) for n in names))
