"""The `general.*` block: what a model is called and where it comes from, as the reference converter finds it.

gguf-py/gguf/metadata.py `Metadata.load` and `set_gguf_meta_model` (llama.cpp b11549). Sources in order of trust: the
model card, the config's `_name_or_path`, the folder's name; each fills what those before left open. The order of keys
is the reference's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.containers.gguf.values import KV
from weighbridge.models.arch.family import Family
from weighbridge.models.config.card import Card, scalar, scalars
from weighbridge.models.config.keys import table, to_kv
from weighbridge.models.config.naming import ModelId, count_parameters, parse_model_id, size_label, title

# field of general.* -> the card's keys that say it; the first that is set
_CARD: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "name": ("name", "model_name"),
        "author": ("author", "model_author", "model_creator"),
        "version": ("version", "model_version"),
        "organization": ("organization", "model_organization"),
        "finetune": ("finetune", "model_finetune"),
        "basename": ("basename", "model_basename", "model_type"),
        "description": ("description", "model_description"),
        "size_label": ("size_label", "model_size_label"),
        "source.url": ("url", "model_url"),
        "source.doi": ("doi", "model_doi"),
        "source.uuid": ("uuid", "model_uuid"),
        "source.repo_url": ("repo_url", "model_repo_url"),
        "license.name": ("license_name",),
        "license.link": ("license_link",),
    }
)
_ORDER: Final = (
    "name", "author", "version", "organization", "finetune", "basename", "description", "size_label", "license",
    "license.name", "license.link", "source.url", "source.doi", "source.uuid", "source.repo_url",
)  # fmt: skip
_ORIGIN: Final = ("name", "author", "version", "organization", "description", "url", "doi", "uuid", "repo_url")
_URL: Final = ("http://", "https://", "ssh://")
_HUB: Final = re.compile(r"https?://huggingface.co/([^/]+/[^/]+)$")
_LISTS: Final = (
    ("base_model", ("base_model", "base_models", "base_model_sources")),
    ("dataset", ("datasets", "dataset", "dataset_sources")),
)


def general_to_gguf(
    family: Family, *, directory: str, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]],
    generation_config: Mapping[str, Any] | None = None, card: Card | None = None, kind: str = "model",
) -> dict[str, KV]:  # fmt: skip
    """`general.*` for a model in a folder of this name. `shapes`: the GGUF's tensors, of an adapter those that it
    changes. `config`: the file as it is."""
    card = card or {}
    total = count_parameters(shapes)
    if kind == "adapter":  # as gguf-py: a size that isn't a model's
        total = total._replace(total=-total.total)
    out = {"general.architecture": KV("str", family.gguf), "general.type": KV("str", kind)}
    for row in table().sampling:
        if (kv := to_kv(row, generation_config or {})) is not None:
            out[row.name] = kv
    fields = _fields(card, config, directory, total.total)
    if fields.get("size_label") is None and total.total > 0:
        fields["size_label"] = size_label(total)
    for name in _ORDER:
        _put(out, f"general.{name}", fields.get(name))
    for kind, keys in _LISTS:
        out |= _origins(kind, card, keys, total.total)
    for name, declared in (("tags", ("tags", "pipeline_tag")), ("languages", ("languages", "language"))):
        if listed := [text for key in declared for text in scalars(card.get(key))]:
            out[f"general.{name}"] = KV("arr[str]", listed)
    return out


def _put(out: dict[str, KV], key: str, text: str | None) -> None:
    if text:  # the reference's writer skips empty strings
        out[key] = KV("str", text)


def _fields(card: Card, config: Mapping[str, Any], directory: str, parameters: int) -> dict[str, str | None]:
    """The single values, from the card, then the name the config was loaded from, then the folder's name."""
    declared = {
        name: next((t for k in keys if (t := scalar(card.get(k))) is not None), None) for name, keys in _CARD.items()
    }
    declared["license"] = ",".join(scalars(card["license"])) if "license" in card else None
    path = config.get("_name_or_path")
    if isinstance(path, str) and path.count("/") <= 1:  # a model's id, not a path on a user's disk
        _fill(declared, parse_model_id(path, parameters))
    _fill(declared, parse_model_id(directory, parameters))
    if declared["name"] is None:
        declared["name"] = directory
    return declared


def _fill(declared: dict[str, str | None], found: ModelId) -> None:
    offers = {
        "name": None if found.full is None else title(found.full),
        "organization": None if found.organization is None else title(found.organization),
        "basename": found.basename,
        "finetune": found.finetune,
        "version": found.version,
        "size_label": found.size_label,
    }
    for name, offer in offers.items():
        if declared.get(name) is None:
            declared[name] = offer


def _origins(kind: str, card: Card, keys: tuple[str, ...], parameters: int) -> dict[str, KV]:
    """`general.base_model.*` and `general.dataset.*`: a count and what is known of each."""
    key = next((k for k in keys if k in card), None)
    if key is None:
        return {}
    value = card[key]
    entries = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    out = {f"general.{kind}.count": KV("u32", len(entries))}
    for i, entry in enumerate(entries):
        known = _origin(entry, parameters)
        for name in _ORIGIN:
            _put(out, f"general.{kind}.{i}.{name}", scalar(known.get(name)))
    return out


def _origin(entry: Any, parameters: int) -> Mapping[str, Any]:
    """A base model or data set: an object as it is, a link, or an id of the hub."""
    if isinstance(entry, dict):
        return entry
    if not isinstance(entry, str):
        return {}
    link = entry.startswith(_URL)
    hub = _HUB.match(entry) if link else None
    found = parse_model_id(hub[1] if hub else entry, parameters) if hub or not link else ModelId()
    known = {
        "name": None if found.full is None else title(found.full),
        "organization": None if found.organization is None else title(found.organization),
        "version": found.version,
    }
    if link:
        return {**known, "repo_url": entry}
    if found.organization is not None and found.full is not None:
        return {**known, "repo_url": f"https://huggingface.co/{found.organization}/{found.full}"}
    return known
