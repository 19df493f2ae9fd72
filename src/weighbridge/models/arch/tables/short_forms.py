"""Expands the short forms of family tables when a table is read, so the rest of the code sees only full forms.

    role.q = ".self_attn.q_proj."           its `hf` name; the dots stand for the layer's prefix and `.weight`
    role.q = true                           the role as roles.toml has it
    role."q k v".layers = "full"            several roles; with `after`, each follows the one before
    role.q.layout."gguf mlx" = "times(2)"   the layout, or `shapes`, of several dialects
    role."q k v" = ".attn.{}_proj."         `{}` is the first word of the role's name: `gate` for gate_shared
    exclude = ["role.q_norm k_norm"]        several entries
    size.E = "num_experts"                  a size of usual.toml, by its config key
    meta.key = ["block_count = n_layers"]   a key-value; key_values.toml has its type
    meta.assumed = ["silu", {...}]          assumed values in usual.toml; `defaults` work the same way

A list of tables is merged into one table, since inline tables of TOML can't contain line breaks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache, reduce
from typing import Any, Final

from weighbridge.base.errors import UsageError
from weighbridge.base.imports.tables import read_table
from weighbridge.models.arch.tables.validate import nearest_word

Document = Mapping[str, Any]

_DIALECTS: Final = (
    "hf",
    "gguf",
    "canonical",
    "mlx",
    "hf5",
    "hf5s",
    "mxfp4",
    "remote",
)  # that a row may have outside `names`
_LAYER: Final = {
    "gguf": "blk.{l}",
    "canonical": "layers.{l}",
}  # in front of a name that starts with a dot; else Llama's
_KEY_VALUE: Final = re.compile(r"(?P<name>\S+) (?P<sign>:?(?:=|<-)) (?P<source>.+)")


def parse(text: str) -> Document:
    """A table from its TOML, its short forms expanded."""
    import tomllib

    return expanded(tomllib.loads(text))


def expanded(table: Document) -> Document:
    """A table with its short forms expanded."""
    out = {"gguf": table["name"], **table} if "name" in table and "like" not in table else table
    out = {key: _joined(value, key if key == "defaults" else "") for key, value in out.items()}
    if isinstance(excluded := out.get("exclude"), list) and all(isinstance(entry, str) for entry in excluded):
        out["exclude"] = [f"{start}{dot}{name}" for entry in excluded for start, dot, names in [entry.rpartition(".")]
                          for name in names.split()]  # fmt: skip
    sections = {key: _SECTIONS[key](out[key]) for key in _SECTIONS.keys() & out.keys() if isinstance(out[key], dict)}
    return {**out, **sections}


@cache
def shared(file: str) -> Document:
    """One of the files next to the tables, with entries that several families have."""
    table = read_table(__file__, file)
    out = {name: _entries(entry) if isinstance(entry, dict) else _joined(entry) for name, entry in table.items()}
    return {**out, "role": _roles(table["role"])} if "role" in table else out


def overlaid(under: Document, over: Document) -> dict[str, Any]:
    """A table laid over another, entry by entry and key by key."""
    out = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = overlaid(out[key], value) if both else value
    return out


def _joined(value: Any, place: str = "") -> Any:
    """One table from a list of tables, in which a text names an entry of usual.toml at `place`."""
    if (
        not value
        or not isinstance(value, list)
        or not all(isinstance(part, dict | (str if place else dict)) for part in value)
    ):
        return value
    parts = (_usual(place, part) if isinstance(part, str) else part for part in value)
    return reduce(overlaid, parts, dict[str, Any]())


def _usual(place: str, name: str) -> Any:
    entries: Document = shared("usual.toml")[place]
    if (entry := entries.get(name)) is None:
        raise UsageError(f"{place}: unknown name {name!r}{nearest_word(name, entries)}")
    return entry


# ---------------------------------------------------------------------- roles, sizes, classes


def _roles(rows: Document) -> Document:
    out: dict[str, Any] = {}
    for names, row in ((key.split(), _joined(value)) for key, value in rows.items()):
        row = {"hf": row} if isinstance(row, str) else {} if row is True else row
        if isinstance(row, dict) and isinstance(named := row.get("names", {}), dict):
            columns = (*named.items(), *row.items())
            whole = {d: _whole_name(d, name) for d, name in columns if d in named or d in _DIALECTS}
            row = {key: value for key, value in row.items() if key not in (*_DIALECTS, "names")}
            row = {**row, "names": whole} if whole else row
        if isinstance(row, dict):
            row = {k: _splits(v) if k in ("layout", "shapes") and isinstance(v, dict) else v for k, v in row.items()}
        for n, name in enumerate(names):
            entry = _filled(row, name.partition("_")[0])
            follows = n and isinstance(entry, dict) and "after" in entry
            out = overlaid(out, {name: {**entry, "after": names[n - 1]} if follows else entry})
    return out


def _filled(value: Any, word: str) -> Any:
    """An entry with a word in place of each `{}`."""
    if isinstance(value, str):
        return value.replace("{}", word)
    return {key: _filled(part, word) for key, part in value.items()} if isinstance(value, dict) else value


def _whole_name(dialect: str, name: Any) -> Any:
    if not isinstance(name, str):
        return name
    start = _LAYER.get(dialect, "model.layers.{l}") if name.startswith(".") else ""
    return f"{start}{name}weight" if name.endswith(".") else start + name


def _fuses(dialects: Document) -> Document:
    return {
        dialect: {
            key: {**fuse, "name": _whole_name(dialect, fuse["name"])} if "name" in fuse else fuse
            for key, fuse in fuses.items()
        }
        for dialect, fuses in dialects.items()
    }


def _sources(entries: Document) -> Document:
    """Sizes, or sets of layers: a text stands for a size of usual.toml, in an entry for a list of one expression."""
    out: dict[str, Any] = {}
    for symbol, entry in entries.items():
        entry = _joined(entry)
        if isinstance(entry, str):
            entry = {"hf": entry.split(", "), "gguf": _usual("size", entry)}
        listed = isinstance(entry, dict) and {s: [entry[s]] for s in ("hf", "gguf") if isinstance(entry.get(s), str)}
        out[symbol] = {**entry, **listed} if listed else entry
    return out


def _splits(section: Document) -> Document:
    return {name: split for names, split in section.items() for name in names.split()}


def _entries(section: Document) -> Document:
    return {name: _joined(entry) for name, entry in section.items()}


def _classes(entries: Document) -> Document:
    return {
        name: {**entry, "defaults": _joined(entry["defaults"], "defaults")} if "defaults" in entry else entry
        for name, entry in _entries(entries).items()
    }


# ---------------------------------------------------------------------- key-values


def _meta(section: Document) -> Document:
    """`meta` with its key-values and assumed values expanded."""
    out = dict(section)
    for part in {"key", "tokenizer", "implied", "requires_value"} & out.keys():
        if isinstance(out[part], list):
            out[part] = [(key_value if part in ("key", "tokenizer") else _joined)(entry) for entry in out[part]]
    return {
        key: _joined(value, key) if key in ("assumed", "presence", "tokens") else value for key, value in out.items()
    }


def _mlx(section: Document) -> Document:
    """`mlx` with the values that it requires expanded."""
    required = [*map(_joined, section.get("requires_value", ()))]
    return {**_entries(section), **({"requires_value": required} if required else {})}


def key_value(entry: Any) -> Any:
    """A key-value from its short form: its name in key_values.toml, `NAME = CONFIG` for a key of config.json that a
    GGUF holds, `NAME <- CONFIG` (or a value) for one that is only written; `:=` and `:<-` replace the shared key-value.
    A table without a `type` has that of its name in key_values.toml, and no architecture in its name."""
    entry = _joined(entry)
    if isinstance(entry, str):
        if (short := _KEY_VALUE.fullmatch(entry)) is None:
            if (named := _key_values().get(entry)) is None:
                raise UsageError(f"meta: unknown key-value {entry!r}{nearest_word(entry, _key_values())}")
            return key_value(named)
        source, sign = short["source"], short["sign"]
        is_value = "<" in sign and re.fullmatch(r'-?[0-9.e-]+|true|false|".*"', source)
        entry = {"name": short["name"]} | (
            {"value": json.loads(source)} if is_value else {"config": source.split(", ")}
        )
        entry |= {"restore": False} if "<" in sign else {}
        entry |= {"replaces": True} if sign.startswith(":") else {}
    if not isinstance(entry, dict) or "type" in entry or (kind := _types().get(entry.get("name", ""))) is None:
        return entry
    return {**entry, "name": _whole_key(entry["name"]), "type": kind}


#: Starts of the names of keys without an architecture. The last is Kimi K2.5's, for which the reference has no other.
_GLOBAL: Final = ("general.", "tokenizer.", "vision.pos_emb_")


def _whole_key(name: str) -> str:
    return name if name.startswith(_GLOBAL) else f"{{a}}.{name}"


@cache
def _key_values() -> Mapping[str, Document]:
    """The key-values of key_values.toml, by name."""
    rows: dict[str, dict[str, Any]] = shared("key_values.toml")["key"]
    names = {name: name.partition(" ")[0] for name in rows}
    return {n: {"name": _whole_key(names[n]) if "type" in row else names[n], **row} for n, row in rows.items()}


@cache
def _types() -> Mapping[str, str]:
    """The types of key-values by name."""
    return {name: kind for kind, names in shared("key_values.toml")["types"].items() for name in names}


_SECTIONS: Final = {
    "role": _roles, "fuse": _fuses, "size": _sources, "layers": _sources, "architecture": _classes, "meta": _meta,
    "dialect": _entries, "mlx": _mlx, "tensor_parallel": _splits,
}  # fmt: skip
