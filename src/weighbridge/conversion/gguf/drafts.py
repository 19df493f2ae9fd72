"""Draft models, which propose the next tokens of a larger one, their target: its folder has their tokenizer, and
settings that their own configs don't repeat.

Follows conversion/llama.py `LlamaModel` (EAGLE-3) and conversion/qwen.py `DFlashModel` (llama.cpp b11549).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.containers.base import Index
from weighbridge.conversion.dtype_policy import TOKEN_MAP
from weighbridge.conversion.options import GgufOptions
from weighbridge.models.arch.family import Family
from weighbridge.models.archives import resolve
from weighbridge.models.inner_draft import draft_of
from weighbridge.models.locate import Place
from weighbridge.models.model import OpenModel
from weighbridge.tensors.nodes import add_position

_CONFIG: Final = "config.json"
_MASK: Final = "mask_embedding.pt"  # of MiMo's drafts
_CONFIDENCE: Final = "confidence_head.proj"  # in the names of DSpark's tensors
_FACTS: Final = ("hidden_size", "num_hidden_layers", "vocab_size")


def with_target(
    model: OpenModel, path: str | os.PathLike[str] | None, target: OpenModel | None = None
) -> tuple[OpenModel, OpenModel]:
    """Returns a draft model with its target's settings in its config, and the target without its weights. `path`: the
    target's folder; `target`: the target, if it is open.

    Raises UsageError if the model is no draft or has no target; UnsupportedError if a file next to it patches the
    target's embedding; FormatError, with both numbers, if the target has another width or vocabulary, and if the
    draft's map doesn't lead to different tokens: llama.cpp writes the logit of each there.
    """
    known_class = model.family.architecture(model.config)
    cls = known_class.name if known_class is not None else model.family.name
    if (entry := model.family.document.draft) is None:
        raise UsageError(f"--target-model doesn't apply to {cls}", hint="it applies to draft models; leave it out")
    if target is None and path is None:
        raise UsageError(
            f"{cls} is a draft model: its tokenizer and some settings are those of its target",
            hint="name the folder of the model that it drafts for: --target-model MODEL",
        )
    if _MASK in model.place.names():
        raise UnsupportedError(
            f"{_MASK} replaces a row of the target's embedding, which the GGUF would need",
            hint="llama.cpp's convert_hf_to_gguf.py writes it",
        )
    if target is None:
        folder = resolve(path or "")
        if not (folder.is_dir() and (folder / _CONFIG).is_file()):
            raise UsageError(f"{path} isn't a folder with a {_CONFIG}", hint="name the folder of the target model")
        target = OpenModel(Place(folder, (), folder), Index("safetensors", (), ()), model.arch_file)
    known = facts_of(target.config, target.family)
    heads = {"has_confidence_head": True} if any(_CONFIDENCE in name for name in model.logical) else {}
    config = {**model.config, **heads, "target": known}
    model = replace(model, texts={**model.texts, _CONFIG: json.dumps(config).encode()})
    facts = model.family.effective(model.config)
    for key, of_target in (("vocab_size", "vocab_size"), (entry.width, "hidden_size")):
        if facts.get(key) not in (None, known.get(of_target)):
            raise FormatError(
                f"the draft model is for another model than {target.place.path}", field=key, expected=facts.get(key),
                found=known.get(of_target), hint="name the model that it was trained for",
            )  # fmt: skip
    if (node := model.logical.get(TOKEN_MAP)) is not None:
        tokens, size = add_position(node).read_all().view("<i8"), model.sizes["V"]
        if (outside := tokens[(tokens < 0) | (tokens >= size)]).size:
            raise FormatError("leads to a token outside the vocabulary", field=TOKEN_MAP,
                              expected=f"0 to {size - 1:,}", found=int(outside[0]))  # fmt: skip
        numbers, counts = np.unique(tokens, return_counts=True)
        if len(numbers) < len(tokens):
            raise FormatError("leads to a token twice", field=TOKEN_MAP, found=int(numbers[counts > 1][0]))
    return model, target


def inside(model: OpenModel, options: GgufOptions) -> tuple[OpenModel, OpenModel]:
    """Returns the draft model in the folder of `model`, its target, with its target's settings, and the target. Raises
    the errors of `draft_of` and `with_target`, and UsageError for options of other files."""
    for name, value in (("--target-model", options.target_model), ("--with-mmproj", options.with_mmproj)):
        if value:
            raise UsageError(f"{name} doesn't apply with --draft", hint="leave it out; the folder is the target")
    return with_target(draft_of(model), None, model)


def facts_of(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The settings of a target that rules of drafts read, by its config."""
    facts = family.effective(config)
    known = {key: facts[key] for key in _FACTS if facts.get(key) is not None}
    sections = {"mrope": True} if "mrope_section" in facts.get("rope", {}) else {}
    return {**known, **sections, "architectures": config.get("architectures")}
