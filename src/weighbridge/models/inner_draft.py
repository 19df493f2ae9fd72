"""The draft model inside a folder of its target, such as DSpark in DeepSeek V4's, as a model.

Its tensors have a prefix and the number of a block. Those that only one block has are in whichever block was saved with
them; conversion/deepseek.py `DeepseekV4DSparkModel` (llama.cpp b11549) reads them from any.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import LAYERS
from weighbridge.containers.base import Entry
from weighbridge.models.arch.registry import families_of_class
from weighbridge.models.arch.tables.schema import InnerDraftEntry
from weighbridge.models.model import OpenModel
from weighbridge.models.transform.base import with_entries

_CONFIG: Final = "config.json"
_NUMBER: Final = re.compile("[0-9]{1,5}")
_ENDS: Final = (".weight", ".scale")  # of a matrix, and of the scales of its codes


def inner_draft(model: OpenModel) -> InnerDraftEntry | None:
    """The table's entry for the draft model in the folder; None if it has none."""
    if model.format in ("gguf", "ggml") or not model.described:
        return None
    entry = model.family.document.inner_draft
    if entry is None or model.config.get(entry.keys[0]) is None:
        return None
    return entry if any(name.startswith(entry.prefix) for name in model.index.by_name) else None


def draft_of(model: OpenModel) -> OpenModel:
    """The draft model in a folder: its tensors under the names of its table, and a config of its class. Raises
    UsageError if the folder has none, UnsupportedError for a tensor without the number of a block, FormatError if
    config.json lacks a key of the draft."""
    if (entry := inner_draft(model)) is None:
        known = model.family.architecture(model.config)
        raise UsageError(
            f"--draft doesn't apply to {known.name if known else model.family.name} in {model.place.path}: "
            "it has no draft model",
            hint="leave it out; --target-model converts the folder of a draft model",
        )
    if missing := [key for key in entry.keys if model.config.get(key) is None]:
        raise FormatError(
            "is missing, and the draft needs it", path=str(model.place.folder / _CONFIG), field=missing[0]
        )
    parts = _parts(model, entry)
    count = 1 + max(part.block for part in parts)
    config = {**model.config, "architectures": [entry.architecture], "num_hidden_layers": count}
    view = replace(model, texts={**model.texts, _CONFIG: json.dumps(config).encode()})
    return with_entries(view, _placed(view, entry, parts))


class _Part(NamedTuple):
    """A tensor of a draft, the number of its block, and its name in this."""

    tensor: Entry
    block: int
    name: str


def _parts(model: OpenModel, entry: InnerDraftEntry) -> list[_Part]:
    parts = []
    for tensor in (e for e in model.index if e.name.startswith(entry.prefix)):
        number, _, name = tensor.name.removeprefix(entry.prefix).partition(".")
        if not (name and _NUMBER.fullmatch(number) and int(number) < LAYERS):
            raise UnsupportedError(
                f"{tensor.name} in {model.place.path} isn't called {entry.prefix}NUMBER.NAME",
                hint="wb convert SRC DST.gguf converts the target",
            )
        parts.append(_Part(tensor, int(number), name))
    return parts


def _placed(view: OpenModel, entry: InnerDraftEntry, parts: Sequence[_Part]) -> Iterator[tuple[Entry, str]]:
    """The tensors and their names in the table, which has each part that only one block has in a certain block. Parts
    that several blocks have keep their names, which the table lacks."""
    family = next(families_of_class(entry.architecture))
    places = [name.removeprefix(entry.prefix).partition(".") for name in family.names("hf", view.sizes)]
    blocks = Counter(_stem(name) for _, _, name in places)
    home = {_stem(name): number for number, _, name in places if blocks[_stem(name)] == 1}
    names = [f"{entry.prefix}{home.get(_stem(part.name), part.block)}.{part.name}" for part in parts]
    count = Counter(names)
    for part, name in zip(parts, names, strict=True):
        yield part.tensor, name if count[name] == 1 else part.tensor.name


def drafts_alike(a: OpenModel, b: OpenModel) -> tuple[OpenModel, OpenModel]:
    """Two models to compare: if one is a GGUF of the draft model in the other's folder, this draft model."""

    def seen_by(model: OpenModel, gguf: OpenModel) -> OpenModel:
        if gguf.format != "gguf" or (entry := inner_draft(model)) is None:
            return model
        return draft_of(model) if entry.architecture in gguf.family.architectures else model

    return seen_by(a, b), seen_by(b, a)


def _stem(name: str) -> str:
    """A name without its end, which a matrix and its scales don't share."""
    return next((name.removesuffix(end) for end in _ENDS if name.endswith(end)), name)
