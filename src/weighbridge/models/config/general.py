"""The `general.*` block: a model's name and origin, as the reference converter determines them.

Follows gguf-py/gguf/metadata.py `Metadata.load` and `set_gguf_meta_model` (llama.cpp b11549). The sources in order of
trust are the model card, the config's `_name_or_path` and the folder's name; each fills the fields that are still
empty. The order of keys is the reference's.
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

# field of general.*, in order -> the card's keys for it; the first that is set counts
_CARD: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        **{field: (field, f"model_{field}") for field in ("name", "author", "version", "organization", "finetune")},
        "author": ("author", "model_author", "model_creator"),
        "basename": ("basename", "model_basename", "model_type"),
        "description": ("description", "model_description"),
        "size_label": ("size_label", "model_size_label"),
        "license": (),
        "license.name": ("license_name",),
        "license.link": ("license_link",),
        **{f"source.{field}": (field, f"model_{field}") for field in ("url", "doi", "uuid", "repo_url")},
    }
)
_ORIGIN: Final = ("name", "author", "version", "organization", "description", "url", "doi", "uuid", "repo_url")
_ORIGINS: Final = (
    ("base_model", ("base_model", "base_models", "base_model_sources")),
    ("dataset", ("datasets", "dataset", "dataset_sources")),
)
_URL: Final = ("http://", "https://", "ssh://")
_HUB: Final = re.compile(r"https?://huggingface.co/([^/]+/[^/]+)$")


def general_to_gguf(
    family: Family, *, directory: str, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]],
    generation_config: Mapping[str, Any] | None = None, card: Card | None = None, kind: str = "model",
) -> dict[str, KV]:  # fmt: skip
    """Returns `general.*` for a model in a folder of this name.

    `shapes`: of the GGUF's tensors, or of the tensors that an adapter changes. `config`: the unmodified config.json.
    """
    card = card or {}
    total = count_parameters(shapes)
    if kind == "adapter":  # negative, as in gguf-py: not a model's size
        total = total._replace(total=-total.total)
    out = {"general.architecture": KV("str", family.gguf), "general.type": KV("str", kind)}
    for row in table().sampling:
        if (kv := to_kv(row, generation_config or {})) is not None:
            out[row.name] = kv
    fields = _fields(card, config, directory, total.total)
    if fields.get("size_label") is None and total.total > 0:
        fields["size_label"] = size_label(total)
    for name in _CARD:
        _put(out, f"general.{name}", fields.get(name))
    for origin, names in _ORIGINS:
        key = next((k for k in names if k in card), None)
        if key is None:
            continue
        value = card[key]
        entries = value if isinstance(value, list) else [value] if isinstance(value, str) else []
        out[f"general.{origin}.count"] = KV("u32", len(entries))
        for i, entry in enumerate(entries):
            described = _describe_origin(entry, total.total)
            for name in _ORIGIN:
                _put(out, f"general.{origin}.{i}.{name}", scalar(described.get(name)))
    for name, declared in (("tags", ("tags", "pipeline_tag")), ("languages", ("languages", "language"))):
        if listed := [text for key in declared for text in scalars(card.get(key))]:
            out[f"general.{name}"] = KV("arr[str]", listed)
    return out


def _put(out: dict[str, KV], key: str, text: str | None) -> None:
    if text:  # the reference's writer skips empty strings
        out[key] = KV("str", text)


def _fields(card: Card, config: Mapping[str, Any], directory: str, parameters: int) -> dict[str, str | None]:
    """Returns the single values: the card's, then those of the name that the config was loaded from, then those of the
    folder's name."""
    fields = {
        name: next((t for k in keys if (t := scalar(card.get(k))) is not None), None) for name, keys in _CARD.items()
    }
    fields["license"] = ",".join(scalars(card["license"])) if "license" in card else None
    path = config.get("_name_or_path")
    ids = [path] if isinstance(path, str) and path.count("/") <= 1 else []  # a model's id, not a path on a user's disk
    for parsed in (parse_model_id(name, parameters) for name in (*ids, directory)):
        offers = {**parsed._asdict(), "name": _title(parsed.full), "organization": _title(parsed.organization)}
        fields |= {name: offers[name] for name in fields.keys() & offers.keys() if fields[name] is None}
    if fields["name"] is None:
        fields["name"] = directory
    return fields


def _title(name: str | None) -> str | None:
    return None if name is None else title(name)


def _describe_origin(entry: Any, parameters: int) -> Mapping[str, Any]:
    """Returns the fields of a base model or data set, which is an object, a link or an id on the Hub."""
    if isinstance(entry, dict):
        return entry
    if not isinstance(entry, str):
        return {}
    link = entry.startswith(_URL)
    hub = _HUB.match(entry) if link else None
    parsed = parse_model_id(hub[1] if hub else entry, parameters) if hub or not link else ModelId()
    fields = {"name": _title(parsed.full), "organization": _title(parsed.organization), "version": parsed.version}
    if link:
        return {**fields, "repo_url": entry}
    if parsed.organization is not None and parsed.full is not None:
        return {**fields, "repo_url": f"https://huggingface.co/{parsed.organization}/{parsed.full}"}
    return fields
