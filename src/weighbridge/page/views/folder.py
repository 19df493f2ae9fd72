"""The folder of a model: settings with their meaning and their place in a GGUF, settings of generation, the card, and
the purpose of each file. Reads small files only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final

import msgspec

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.imports.tables import read_table
from weighbridge.base.records import dataclass
from weighbridge.models.arch.config import DERIVED, LOCAL_THETA, THETA
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.tables.schema import KeyEntry
from weighbridge.models.config.card import read_card, scalars
from weighbridge.models.config.keys import lookup, rules, table, to_kv
from weighbridge.models.config.losses import config_losses
from weighbridge.models.config.settings import why_harmless, words_of
from weighbridge.models.locate import DCP_METADATA
from weighbridge.models.model import OpenModel

SCHEMA: Final = "weighbridge/folder/1"
_LONG: Final = 300  # characters of a value
_FILES: Final = 2000  # that are listed
_CARD_KEYS: Final = (
    "license", "license_name", "license_link", "base_model", "base_model_relation", "language", "library_name",
    "pipeline_tag", "tags", "datasets", "metrics", "model_name", "model_creator", "quantized_by",
)  # fmt: skip
_ROTATION: Final = ("rope_parameters", "rope_scaling", *THETA)
_ROTATION_FACTS: Final = frozenset({"rope", "rope_sliding", "rope_dim", "sliding_rope_dim", "ntk_alpha_base"})


class FileKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files by name: their kind, and what they are for."""

    kind: str
    why: str
    names: tuple[str, ...]


class FolderTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`gguf`, `config`: meanings of settings, by the key of a GGUF or of a config."""

    file: tuple[FileKind, ...]
    gguf: Mapping[str, str]
    config: Mapping[str, str]


@cache
def folder_table() -> FolderTable:
    return msgspec.convert(read_table(__file__, "folder.toml"), FolderTable)


@dataclass(frozen=True, slots=True)
class FolderSetting:
    """A setting with its effective value. `stated`: the file has it; otherwise it is the default of the model's class.
    `gguf`: the keys of a GGUF that hold it, with their values. `note`: why it has none, and "" otherwise. `lost`: a
    GGUF can't hold it."""

    key: str
    value: str
    stated: bool
    meaning: str
    gguf: tuple[tuple[str, str], ...]
    note: str = ""
    lost: bool = False


@dataclass(frozen=True, slots=True)
class FolderFile:
    """A file with its kind and purpose."""

    name: str
    nbytes: int
    kind: str
    why: str


@dataclass(frozen=True, slots=True)
class FolderContents:
    """`settings`: of config.json, stated ones first. `losses`: settings that a GGUF of the model couldn't hold. `card`:
    the front matter of the model card. `licence`: licence files with their first line. `unlisted`: files beyond
    the first 2,000."""

    settings: tuple[FolderSetting, ...]
    losses: tuple[str, ...]
    generation: tuple[FolderSetting, ...]
    card: tuple[tuple[str, str], ...]
    card_trouble: str | None
    licence: tuple[tuple[str, str], ...]
    files: tuple[FolderFile, ...]
    unlisted: int
    schema: str = SCHEMA


def folder_view(model: OpenModel) -> FolderContents:
    """Describes the folder of an open model. Raises FormatError for a damaged config."""
    config, place = model.config, model.place
    family = None
    with suppress(WeighbridgeError):
        family = model.family if model.format != "gguf" else None
    card, trouble = read_card(place.read("README.md"))
    names = [name for name in place.names() if name.rpartition("/")[2]]
    losses = tuple(config_losses(config, family)) if family is not None else ()
    return FolderContents(
        settings=_settings(config, family, losses),
        losses=losses,
        generation=_generation(place.read("generation_config.json")),
        card=tuple((key, ", ".join(scalars(card[key]))) for key in _CARD_KEYS if key in card and scalars(card[key])),
        card_trouble=trouble,
        licence=tuple(_licences(model, names)),
        files=tuple(_files(model, names[:_FILES])),
        unlisted=max(len(names) - _FILES, 0),
    )


def shown(value: Any) -> str:
    """A value as JSON, cut if it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONG else f"{text[:_LONG]} …"


# ---------------------------------------------------------------------- settings


def _settings(config: Mapping[str, Any], family: Family | None, losses: Iterable[str]) -> tuple[FolderSetting, ...]:
    """Returns the settings of a config: those that it states, then defaults of its class that a GGUF has keys for."""
    architecture = family.architecture(config) if family is not None else None
    if family is None or architecture is None:
        meanings = folder_table().config
        return tuple(FolderSetting(key, shown(value), True, meanings.get(key, ""), ()) for key, value in config.items())
    part = (architecture.part or "").partition(".")[0]
    whole = {key: value for key, value in architecture.merged(config).items() if key != part}
    facts = family.effective(config)
    written = _gguf_keys(facts, whole, family)
    lost = {word for loss in losses for word in words_of(loss.removeprefix("config.json: ").partition(" ")[0])[:1]}
    stated = (
        _setting(key, value, True, written.get(key, []), family, whole, key in lost) for key, value in whole.items()
    )
    unstated = (key for key in written if key not in whole)
    defaults = (_setting(key, facts.get(key), False, written[key], family, whole, False) for key in unstated)
    return (*stated, *defaults)


def _gguf_keys(
    facts: Mapping[str, Any], whole: Mapping[str, Any], family: Family
) -> dict[str, list[tuple[KeyEntry, str, str]]]:
    """Returns the key-values that hold each setting: (row, key, value) by the setting's key in the config."""
    out: dict[str, list[tuple[KeyEntry, str, str]]] = {}
    for row in rules(family).keys:
        path = next((text for text in row.config if lookup(facts, text) is not None), None)
        kv = to_kv(row, facts)
        if path is None or kv is None:
            continue
        word = next(iter(words_of(path)), "")
        if word in _ROTATION_FACTS:
            candidates = LOCAL_THETA if word.startswith("rope_sliding") and path.endswith("rope_theta") else ()
            order = ("rope_theta", *_ROTATION) if path.endswith("rope_theta") else _ROTATION
            word = next((key for key in (*candidates, *order) if whole.get(key) is not None), "rope_theta")
        if word not in DERIVED:
            out.setdefault(word, []).append((row, row.key(family.gguf), shown(kv.value)))
    return out


def _setting(
    key: str, value: Any, stated: bool, written: list[tuple[KeyEntry, str, str]], family: Family,
    whole: Mapping[str, Any], lost: bool,
) -> FolderSetting:  # fmt: skip
    meanings = folder_table()
    names = [row.name.removeprefix("{a}.") for row, *_ in written]
    meaning = meanings.config.get(key) or next((meanings.gguf[name] for name in names if name in meanings.gguf), "")
    note = ""
    if not written and not lost:
        note = _why_without_key(key, value, family, whole)
    return FolderSetting(
        key, shown(value), stated, meaning, tuple((name, text) for _, name, text in written), note, lost
    )


def _why_without_key(key: str, value: Any, family: Family, whole: Mapping[str, Any]) -> str:
    """Returns why a setting needs no key in a GGUF."""
    table = rules(family)
    if key in table.presence:
        return "the tensors show it"
    assumed = table.assumed.get(key)
    if assumed is not None and value in assumed:
        return f"built into llama.cpp’s graph of {family.gguf}"
    if key in table.tokens:
        return f"as {table.tokens[key]}"
    if key in {word for size in family.sizes.values() for text in size.hf for word in words_of(text)}:
        return "the shapes of the tensors show it"
    if key in {word for layers in family.layer_sets.values() for text in layers.hf for word in words_of(text)}:
        return "the tensors of each layer show it"
    if value is None:
        return "not set"
    # A setting that a GGUF couldn't express would be a loss.
    return why_harmless(key, family, whole) or "other keys of a GGUF or its tensors express it"


def _generation(data: bytes | None) -> tuple[FolderSetting, ...]:
    """Returns the settings of generation_config.json, none of a damaged one."""
    config = None
    with suppress(ValueError, RecursionError):
        config = json.loads(data or b"")
    if not isinstance(config, Mapping):
        return ()
    keys = {path: row for row in table().sampling for path in row.config}
    meanings = folder_table().config
    return tuple(
        FolderSetting(
            key, shown(value), True, meanings.get(key, ""), ((keys[key].name, shown(value)),) if key in keys else ()
        )
        for key, value in config.items()
    )


# ---------------------------------------------------------------------- files


def _files(model: OpenModel, names: Iterable[str]) -> Iterator[FolderFile]:
    """Yields the files of the folder with their kinds."""
    place = model.place
    weights = {path.name for path in place.files}
    for name in names:
        nbytes = 0
        with suppress(OSError, WeighbridgeError):
            nbytes = (place.folder / name).stat().st_size
        base = name.rpartition("/")[2]
        if name in weights and base != DCP_METADATA:
            yield FolderFile(name, nbytes, "weights", "the tensors that are shown here")
            continue
        kinds = (row for row in folder_table().file if any(fnmatchcase(n, p) for p in row.names for n in (base, name)))
        row = next(kinds, None)
        kind, purpose = (row.kind, row.why) if row is not None else ("other", "Weighbridge doesn’t read it")
        yield FolderFile(name, nbytes, kind, purpose)


def _licences(model: OpenModel, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields licence files with their first line of text."""
    row = next(row for row in folder_table().file if row.kind == "licence")
    for name in names:
        if "/" not in name and any(fnmatchcase(name, pattern) for pattern in row.names):
            with suppress(WeighbridgeError, OSError):
                text = (model.place.read(name) or b"").decode("utf-8", "replace")
                yield name, next((line.strip() for line in text.splitlines() if line.strip()), "")[:_LONG]
