"""Family tables as TOML files: those that are shipped, and those of plug-ins; what one inherits from others.

A table begins as the mixins that it includes (`include`), and before these as another family's table (`like`), of which
it has names alone: classes, defaults and metadata belong to one family. Its own entries are laid over these, entry by
entry and key by key; `exclude` takes away inherited ones.

Plug-ins are packages with TOML files, registered under the entry-point group `weighbridge.families`. They are looked
for where no shipped family answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from types import ModuleType
from typing import Any, Final

from weighbridge.base.errors import UsageError
from weighbridge.base.plugins import FAMILIES, plugins
from weighbridge.models.arch.tables.schema import WrapperEntry
from weighbridge.models.arch.tables.validate import convert, nearest_word

INHERITED: Final = ("dialect", "size", "index", "layers", "role", "fuse", "drop", "tensor_parallel")
_COLUMNS: Final = ("names", "layout", "shapes", "zeros", "unstacked", "as_metadata")  # of a role, by dialect
_DEEPEST: Final = 8
_COMMON: Final = "common"  # the mixin under every table

Document = Mapping[str, Any]


# ---------------------------------------------------------------------- files


def _texts(folder: Traversable) -> dict[str, str]:
    """The TOML files of a folder by their names, in alphabetical order."""
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".toml"))
    return {name.removesuffix(".toml"): (folder / name).read_text(encoding="utf-8") for name in files}


@cache
def shipped() -> Mapping[str, str]:
    """The text of every shipped table by its family's name."""
    return _texts(resources.files("weighbridge.models.arch.tables") / "families")


@cache
def plugged_in() -> Mapping[str, str]:
    """The text of every table of installed plug-ins. UsageError where two have the same name."""
    out: dict[str, str] = {}
    for package in plugins(FAMILIES, ModuleType).values():
        texts = _texts(resources.files(package))
        if twice := texts.keys() & {*out, *shipped()}:
            raise UsageError(f"the plug-in {package.__name__} brings a second family {min(twice)}")
        out |= texts
    return out


@cache
def mixin(name: str) -> Document:
    """A shipped mixin by its name."""
    folder = resources.files("weighbridge.models.arch.tables") / "mixins"
    if not (file := folder / f"{name}.toml").is_file():
        known = [f.name.removesuffix(".toml") for f in folder.iterdir()]
        raise UsageError(f"include: unknown mixin {name!r}{nearest_word(name, sorted(known))}")
    return parse(file.read_text(encoding="utf-8"))


@cache
def wrappers() -> Mapping[str, WrapperEntry]:
    """The classes of models of several parts, by name."""
    import tomllib

    text = (resources.files("weighbridge.models.arch.tables") / "wrappers.toml").read_text(encoding="utf-8")
    return {name: convert(entry, WrapperEntry) for name, entry in tomllib.loads(text).items()}


@cache
def document(name: str) -> Document:
    """The table of a family as it is written."""
    text = shipped().get(name)
    if text is None and (text := plugged_in().get(name)) is None:
        raise UsageError(f"like: unknown family {name!r}{nearest_word(name, (*shipped(), *plugged_in()))}")
    return parse(text)


def parse(text: str) -> Document:
    """A table from its TOML, its short forms written out: lists of tables, names of key-values."""
    import tomllib

    table = tomllib.loads(text)
    out = {**table, "gguf": table.get("gguf", table["name"])} if "name" in table else table
    out = {key: _joined(value) for key, value in out.items()}
    if isinstance(meta := table.get("meta"), dict):
        out = {**out, "meta": {key: _with_key_values(key, value) for key, value in meta.items()}}
    return out


def _joined(value: Any) -> Any:
    """One table of several in a list, which TOML needs where it wouldn't fit on a line."""
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        return {key: entry for part in value for key, entry in part.items()}
    return value


def _with_key_values(part: str, value: Any) -> Any:
    """The key-values of a list, of which some are named as in key_values.toml."""
    if part in ("assumed", "presence", "tokens"):
        return _joined(value)
    if part not in ("key", "tokenizer") or not isinstance(value, list):
        return value
    return [_key_value(entry) if isinstance(entry, str) else entry for entry in value]


def _key_value(name: str) -> Document:
    if (found := _key_values().get(name)) is None:
        raise UsageError(f"meta: unknown key-value {name!r}{nearest_word(name, _key_values())}")
    return found


@cache
def _key_values() -> Mapping[str, Document]:
    """The key-values that several families have, by name."""
    import tomllib

    text = (resources.files("weighbridge.models.arch.tables") / "key_values.toml").read_text(encoding="utf-8")
    rows: dict[str, dict[str, Any]] = tomllib.loads(text)
    return {name: {"name": f"{{a}}.{name.partition(' ')[0]}", **row} for name, row in rows.items()}


def mentioning(pattern: str, tables: Mapping[str, str]) -> Iterator[str]:
    """The families whose tables match a regular expression: those that are worth parsing for it."""
    matches = re.compile(pattern, re.MULTILINE).search
    return (name for name, text in tables.items() if matches(text))


# ---------------------------------------------------------------------- inheritance


def resolve(
    own: Document, read: Callable[[str], Document] = document, included: Callable[[str], Document] = mixin
) -> dict[str, Any]:
    """The whole table of a document. `read` gives another family's document by name, `included` a mixin's."""
    return _with_wrappers(_overlaid(mixin(_COMMON), _resolve(own, read, included, ())))


def _resolve(
    own: Document, read: Callable[[str], Document], included: Callable[[str], Document], seen: tuple[str, ...]
) -> dict[str, Any]:
    base: dict[str, Any] = {}
    if (like := own.get("like")) is not None:
        if len(seen) >= _DEEPEST or like in seen:
            raise UsageError(f"circular `like`: {like}")
        parent = _resolve(read(like), read, included, (*seen, like))
        base = {key: parent[key] for key in INHERITED if key in parent}
    for name in own.get("include", ()):
        base = _overlaid(base, _resolve(included(name), read, included, (*seen, name)))
    for entry in own.get("exclude", ()):
        base = _without(base, entry.split("."), entry)
    table = _overlaid(base, own)
    return (
        {**table, "role": _ordered(dict(_with_biases(roles)))}
        if isinstance(roles := table.get("role"), dict)
        else table
    )


def _with_wrappers(table: dict[str, Any]) -> dict[str, Any]:
    """The table with the classes that may have a model of the family as a part: before its own, the last of which stays
    the plain one. The part's names have their prefixes, and what is beside it is ignored."""
    names = table.get("wrappers", ())
    if unknown := next((name for name in names if name not in wrappers()), None):
        raise UsageError(f"wrappers: unknown class {unknown!r}{nearest_word(unknown, wrappers())}")
    listed = [wrappers()[name] for name in names]
    if not listed or "dialect" not in table:
        return table
    classes = {name: _class_of(entry, table["architecture"]) for name, entry in zip(names, listed, strict=True)}
    names_of_hf = table["dialect"]["hf"]
    prefixes = dict.fromkeys((*names_of_hf["prefixes"], *(p for entry in listed for p in entry.prefixes)))
    apart = dict.fromkeys((*table.get("ignored_prefixes", ()), *(start for entry in listed for start in entry.apart)))
    return {
        **table,
        "architecture": {**classes, **table["architecture"]},
        "dialect": {**table["dialect"], "hf": {**names_of_hf, "prefixes": [*prefixes]}},
        "ignored_prefixes": [*apart],
    }


def _class_of(entry: WrapperEntry, classes: Mapping[str, Any]) -> dict[str, Any]:
    """The class of a wrapper: where its config is silent it means what the part's class does."""
    own = {key: getattr(entry, key) for key in ("model_type", "part", "part_type", "part_aliases")}
    part: Mapping[str, Any] = next((c for c in classes.values() if c["model_type"] == entry.part_type), {})
    silent = {key: part[key] for key in ("defaults", "null", "full_layers") if key in part}
    return {**silent, **own, "prefix": entry.prefixes[0]}


def _with_biases(roles: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Roles, and after each with `bias` the vector that is added: all of it as the matrix has it, but one dimension."""
    for name, role in roles.items():
        if not isinstance(role, dict) or not (group := role.get("bias")):
            yield name, role
            continue
        yield name, {key: value for key, value in role.items() if key != "bias"}
        kept = {key: role[key] for key in ("layout", "when", "layers") if key in role}
        texts = role.get("names", {}).items()
        names = {d: f"{text.removesuffix('weight')}bias" for d, text in texts if str(text).endswith("weight")}
        bias = {
            "kind": "bias",
            "shape": str(role.get("shape", "")).partition(",")[0],
            "names": names,
            "after": name,
            **kept,
        }
        yield f"{name}_bias", bias if group is True else {**bias, "group": group}


def _ordered(roles: Mapping[str, Any]) -> dict[str, Any]:
    """The roles, each that says `after` behind the one that it names; `""`: the first."""
    order: list[str] = []
    for name, role in roles.items():
        after = role.get("after") if isinstance(role, dict) else None
        if after and after not in order:
            raise UsageError(f"role.{name}.after: unknown role {after!r}{nearest_word(str(after), order)}")
        order.insert(len(order) if after is None else order.index(after) + 1 if after else 0, name)
    return {name: _placed(roles[name]) for name in order}


def _placed(role: Any) -> Any:
    return {key: value for key, value in role.items() if key != "after"} if isinstance(role, dict) else role


def _overlaid(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = _overlaid(out[key], value) if both else value
    return out


def _without(table: Mapping[str, Any], path: list[str], entry: str) -> dict[str, Any]:
    """The table without the entry at a path, whose last part may be a pattern."""
    first, *rest = path
    found = [key for key in table if (fnmatchcase(key, first) if not rest else key == first)]
    if not found:
        raise UsageError(f"exclude: there is no {entry!r} to exclude{nearest_word(first, table)}")
    if not rest:
        return {key: value for key, value in table.items() if key not in found}
    left = {**table, first: _without(table[first], rest, entry)}
    return _without_column(left, rest[0]) if first == "dialect" and len(rest) == 1 else left


def _without_column(table: Mapping[str, Any], dialect: str) -> dict[str, Any]:
    """The table without what its roles, fuses and drops say of a dialect."""
    roles = {
        name: {key: _drop(value, dialect) if key in _COLUMNS else value for key, value in role.items()}
        for name, role in table.get("role", {}).items()
    }
    return {**table, "role": roles, **{key: _drop(table[key], dialect) for key in ("fuse", "drop") if key in table}}


def _drop(column: Any, dialect: str) -> Any:
    if isinstance(column, Mapping):
        return {key: value for key, value in column.items() if key != dialect}
    return [key for key in column if key != dialect]
