"""The `general.*` block: a model's name and origin, as the reference converter determines them.

Follows gguf-py/gguf/metadata.py `Metadata.load` and `set_gguf_meta_model` (llama.cpp b11549). The sources in order of
trust are the model card, the config's `_name_or_path` and the folder's name; each fills the fields that are still
empty. The order of keys is the reference's.

A name is parsed by its rules, too (`Metadata.get_model_id_components`; gguf-py/gguf/utility.py `size_label`): into
organization, base name, size, fine-tune, version. A part of a name can be of several kinds until its neighbours are
known, hence the passes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.records import dataclass
from weighbridge.containers.gguf.values import KV
from weighbridge.models.arch.family import Family
from weighbridge.models.config.card import Card, scalar, scalars
from weighbridge.models.config.keys import table, to_kv

_VERSION: Final = re.compile(r"(v|iter)?\d+([.]\d+)*", re.IGNORECASE)
_TYPE: Final = re.compile(r"i?q\d(_\w)*|b?fp?(16|32)", re.IGNORECASE)
_SIZE: Final = re.compile(r"(([A]|\d+[x])?\d+([._]\d+)?[KMBT][\d]?|small|mini|medium|large|x?xl)", re.IGNORECASE)
_FINETUNE: Final = re.compile(r"chat|instruct|vision|lora", re.IGNORECASE)
_KEEPS_CASE: Final = re.compile(r"^(v\d+(?:\.\d+)*|\d.*)$")


class ModelId(NamedTuple):
    """The parts of `organization/Full-Name-7B-Instruct-v0.1`; None for parts that the name doesn't have."""

    full: str | None = None
    organization: str | None = None
    basename: str | None = None
    finetune: str | None = None
    version: str | None = None
    size_label: str | None = None


@dataclass
class _Part:
    """One word between dashes and the kinds that it may be of."""

    text: str
    kinds: set[str] = field(default_factory=set)


def title(name: str) -> str:
    """Capitalises words other than acronyms, versions and numbers: `llama-2-7b-hf` becomes `Llama 2 7b Hf`."""
    parts = name.strip().replace("-", " ").split()
    return " ".join(w.title() if w.islower() and not _KEEPS_CASE.match(w) else w for w in parts)


def parse_model_id(model_id: str | None, parameters: int = 0) -> ModelId:
    """Returns the components of a model's id or folder name. `parameters` distinguishes a size from a context length; a
    negative number is a lower bound, for an adapter."""
    if model_id is None:
        return ModelId()
    if " " in model_id:
        return ModelId(model_id)  # a sentence, not an id
    organization, slash, full = model_id.partition("/")
    if not slash:
        organization, full = "", model_id
    parts = [_Part(p) for p in full.split("-") if p]
    for i, part in enumerate(parts):
        if _VERSION.fullmatch(part.text):
            part.kinds.add("version")
        elif _TYPE.fullmatch(part.text):
            part.kinds.add("type")
            part.text = part.text.upper()
        elif i and _SIZE.fullmatch(part.text):
            _annotate_size(part, parameters)
        elif i and _FINETUNE.fullmatch(part.text):
            redundant = parameters < 0 and part.text.lower() == "lora"
            part.kinds.add("type" if redundant else "finetune")
    sizes = [p for p in parts if "size_label" in p.kinds]
    if any(c.isdecimal() for p in sizes for c in p.text):  # `large` isn't a size next to a number
        for part in sizes:
            if part.text.isalpha():
                part.kinds.discard("size_label")
    _find_basename(parts)

    def joined(kind: str, without: str = "") -> str | None:
        return "-".join(p.text for p in parts if kind in p.kinds and without not in p.kinds) or None

    size = "-".join(dict.fromkeys(p.text for p in parts if "size_label" in p.kinds)) or None
    finetune, version = joined("finetune"), joined("version", "basename")
    basename = joined("basename") if size or finetune or version else None  # too ambiguous without these
    owner = organization if slash and not organization.startswith(".") else None
    return ModelId(full, owner, basename, finetune, version, size)


def _annotate_size(part: _Part, parameters: int) -> None:
    """Annotates a size: `7b1` is 7.1B, `8_0B` is 8.0B. A "size" that doesn't match the parameters is a context length,
    which belongs to the fine-tune."""
    text = part.text.replace("_", ".")
    if text[-1].isdecimal():
        text = f"{text[:-2]}.{text[-1]}{text[-2]}"
    if len(text) > 1 and text[-2].isdecimal() and text[-1] in "kmbt":
        text = text[:-1] + text[-1].upper()
    wrong = False
    with suppress(ValueError):
        claimed = float(text[:-1]) * 1000.0 ** " KMBT".find(text[-1])
        # An adapter may cover a part of its model, so a larger label doesn't contradict its parameters.
        wrong = claimed < -parameters // 8 if parameters < 0 else abs(claimed - parameters) > 7 * parameters // 8
    if parameters and wrong:
        part.kinds.add("finetune")
        text = text[:-1] + text[-1].lower()
    if not part.kinds:
        part.kinds.add("size_label")
    part.text = text


def _find_basename(parts: list[_Part]) -> None:
    """Marks the base name: the plain words and versions at the start, without the versions at their end."""
    at_start = True
    for part in parts:
        if at_start and ((not part.kinds and part.text[0].isalpha()) or "version" in part.kinds):
            part.kinds.add("basename")
        else:
            at_start = False
            if not part.kinds:
                part.kinds.add("finetune")
    for part in reversed(parts):
        if "basename" not in part.kinds or len(part.kinds) == 1:
            break
        part.kinds.discard("basename")


# ---------------------------------------------------------------------- size


class Parameters(NamedTuple):
    """The elements of all tensors, of those that every token uses, and of one expert; the number of experts."""

    total: int
    shared: int
    expert: int
    experts: int


def count_parameters(shapes: Mapping[str, tuple[int, ...]]) -> Parameters:
    """Counts the parameters of a GGUF's tensors (gguf-py `GGUFWriter.get_total_parameter_count`). `shapes`: in C
    order."""
    total = shared = expert = experts = stacks = 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        total += size
        if "_exps." in name and len(shape) >= 3:
            count = shape[-2 if ".bias" in name else -3]
            expert += size // max(count, 1)
            experts += count
            stacks += 1
        else:
            shared += size
    return Parameters(total, shared, expert, experts // stacks if stacks else 0)


def size_label(parameters: Parameters) -> str:
    """Returns a label such as `8.0B`, `8x7B` or `23M`."""
    if parameters.experts > 0:
        return f"{parameters.experts}x{_rounded(parameters.shared + parameters.expert)}"
    return _rounded(parameters.total)


def _rounded(count: int) -> str:
    suffix, factor = next(
        ((s, f) for s, limit, f in (("T", 1e12, 1e-12), ("B", 1e9, 1e-9), ("M", 1e6, 1e-6)) if count > limit),
        ("K", 1e-3),
    )
    scaled = count * factor
    digits = max(2 - len(str(round(scaled)).lstrip("0")), 0)
    return f"{scaled:.{digits}f}{suffix}"


# ---------------------------------------------------------------------- general.*


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
    # The card's, then those of the name that the config was loaded from, then those of the folder's name.
    fields = {
        name: next((t for k in keys if (t := scalar(card.get(k))) is not None), None) for name, keys in _CARD.items()
    }
    fields["license"] = ",".join(scalars(card["license"])) if "license" in card else None
    path = config.get("_name_or_path")
    ids = [path] if isinstance(path, str) and path.count("/") <= 1 else []  # a model's id, not a path on a user's disk
    for parsed in (parse_model_id(name, total.total) for name in (*ids, directory)):
        offers = {**parsed._asdict(), "name": _title(parsed.full), "organization": _title(parsed.organization)}
        fields |= {name: offers[name] for name in fields.keys() & offers.keys() if fields[name] is None}
    if fields["name"] is None:
        fields["name"] = directory
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
