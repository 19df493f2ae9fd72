"""What metadata states about a model's origin: README.md, a GGUF's keys, `_name_or_path` of config.json."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.limits import MODEL_CARD
from weighbridge.models.config.card import read_card, scalars
from weighbridge.reports import sidecars

if TYPE_CHECKING:
    from weighbridge.models.model import OpenModel

_CARD: Final = "README.md"
_KEYS: Final = ("base_model", "base_models", "base_model_sources")
_GGUF: Final = "general.base_model."
_GGUF_FIELDS: Final = frozenset({"name", "repo_url"})
_CLAIMS: Final = 64  # per model
_NAME: Final = 200  # characters of a name


class OriginClaim(NamedTuple):
    """`source`: the file or the key that names a base model; `name`: the name, as written."""

    source: str
    name: str


def claims_of(model: OpenModel) -> Sequence[OriginClaim]:
    """Returns the base models that a model's metadata names, without repetitions. Unreadable metadata names none."""
    result = dict.fromkeys(claim for claim in stated_origins(model) if 0 < len(claim.name) <= _NAME)
    return list(result)[:_CLAIMS]


def stated_origins(model: OpenModel) -> Iterator[OriginClaim]:
    if model.format == "gguf":
        for key, value in model.metadata.items():
            if key.startswith(_GGUF) and key.rpartition(".")[2] in _GGUF_FIELDS:
                yield OriginClaim(key, str(getattr(value, "value", value)))
    if model.place.path.is_dir():  # a README next to one of several files belongs to none of them
        readme = model.texts.get(_CARD) or sidecars.read(model.place.folder / _CARD, MODEL_CARD)
        card, _ = read_card(readme)
        for key in _KEYS:
            for value in scalars(card.get(key)):
                yield OriginClaim(_CARD, value)
    if model.format != "gguf":
        try:
            name = model.config.get("_name_or_path")
        except WeighbridgeError:
            name = None
        if isinstance(name, str):
            yield OriginClaim("_name_or_path", name)


def names_of(model: OpenModel, address: str) -> set[str]:
    """Returns the names by which metadata may call a model, in the form of `simple_name`."""
    names = [address, str(model.place.path)]
    if model.place.path.is_dir():
        names.append(model.place.title)
    else:
        names.append(model.place.path.stem)
    if model.format == "gguf":
        value = model.metadata.get("general.name")
        names.append(str(getattr(value, "value", value or "")))
    return {simple for name in names if (simple := simple_name(name))}


def simple_name(name: str) -> str:
    """Returns the last component of a name, an address or a path in lower case, with words joined by dashes."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return re.sub(r"[^a-z0-9.]+", "-", last.lower()).strip("-")
