"""The TOML files of family tables, shipped and from plug-ins, and what one table inherits from others.

A table begins as another family's: all of it but its classes (`like`), or only its names, sizes and layers
(`names_from`). The mixins that it includes (`include`) are laid over that, then `exclude` removes inherited entries,
then its own entries are laid over the rest, entry by entry and key by key.

Plug-ins are packages with TOML files, registered under the entry-point group `weighbridge.families`. They are
searched if no shipped family matches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from functools import cache
from types import ModuleType
from typing import Any, Final

from weighbridge.base.errors import UsageError
from weighbridge.base.imports.tables import read_table, tables_in
from weighbridge.base.plugins import FAMILIES, plugins
from weighbridge.base.records import dataclass
from weighbridge.models.arch.tables.schema import WrapperEntry
from weighbridge.models.arch.tables.short_forms import Document, expanded, overlaid, parse, shared
from weighbridge.models.arch.tables.validate import convert, nearest_word

_NAMES: Final = ("dialect", "size", "index", "layers", "role", "fuse", "drop", "tensor_parallel")
_NOT_INHERITED: Final = ("name", "like", "names_from", "include", "exclude", "architecture", "wrappers", "inner_draft")
_OF_CLASS: Final = ("null", "full_layers")  # inherited by a class, in addition to the defaults
_COLUMNS: Final = (
    "names",
    "layout",
    "shapes",
    "zeros",
    "unstacked",
    "as_metadata",
)  # columns of a role that are keyed by dialect
_DEEPEST: Final = 8
_COMMON: Final = "common"  # the mixin below every table


# ---------------------------------------------------------------------- files


def _texts(folder: str) -> dict[str, str]:
    """The texts of the TOML files in one of our folders by their names, in the order of `tables_in`."""
    texts = {}
    for name in tables_in(__file__, folder):
        with open(os.path.join(os.path.dirname(__file__), folder, f"{name}.toml"), "rb") as file:
            texts[name] = file.read().decode()
    return texts


@cache
def projector_texts() -> Mapping[str, str]:
    """The text of every projector's table by projector type, which is the file's name."""
    texts = _texts("projectors")
    return {name: f'name = "{name}"\ngguf = "clip"\n{text}' for name, text in texts.items()}


@cache
def _projector_mixin(name: str) -> Document:
    return expanded(read_table(__file__, f"projectors/mixins/{name}.toml"))


@cache
def projector_document(name: str) -> Document:
    """The whole table of a projector. Its key-values follow those of the mixins that it includes; one with a name that
    these have replaces theirs."""
    library = TableLibrary(mixin=_projector_mixin)
    own = parse(projector_texts()[name])
    table = resolve(own, library)
    keys: dict[str, Any] = {}
    for layer in (*_mixins(own, library, ()), own):
        keys |= {row["name"]: row for row in layer.get("meta", {}).get("key", ())}
    return {**table, "meta": {**table["meta"], "key": [*keys.values()]}}


@cache
def shipped() -> Mapping[str, str]:
    """The text of every shipped table by its family's name, which is its file's."""
    texts = _texts("families")
    return {name: f'name = "{name}"\n{text}' for name, text in texts.items()}


@cache
def plugged_in() -> Mapping[str, str]:
    """The text of every table of installed plug-ins. UsageError if two have the same name."""
    out: dict[str, str] = {}
    for package in plugins(FAMILIES, ModuleType).values():
        from importlib import resources  # late: it loads readers of archives, too

        files = sorted(f.name for f in resources.files(package).iterdir() if f.name.endswith(".toml"))
        texts = {f.removesuffix(".toml"): (resources.files(package) / f).read_text(encoding="utf-8") for f in files}
        if twice := texts.keys() & {*out, *shipped()}:
            raise UsageError(f"the plug-in {package.__name__} brings a second family {min(twice)}")
        out |= texts
    return out


@cache
def mixin(name: str) -> Document:
    """A shipped mixin by its name."""
    if name not in (known := tables_in(__file__, "mixins")):  # a user's table may include anything
        raise UsageError(f"include: unknown mixin {name!r}{nearest_word(name, known)}")
    return expanded(read_table(__file__, f"mixins/{name}.toml"))


@cache
def wrappers() -> Mapping[str, WrapperEntry]:
    """The classes of models of several parts, by name."""
    return {name: convert(entry, WrapperEntry) for name, entry in shared("wrappers.toml").items()}


@cache
def document(name: str) -> Document:
    """The table of a family in its file."""
    if name in shipped():
        return expanded({"name": name, **read_table(__file__, f"families/{name}.toml")})
    if (text := plugged_in().get(name)) is None:
        raise UsageError(f"like: unknown family {name!r}{nearest_word(name, (*shipped(), *plugged_in()))}")
    return parse(text)


# ---------------------------------------------------------------------- inheritance


@dataclass(frozen=True)
class TableLibrary:
    """Where tables find what they refer to: other families and mixins by name, and the known roles."""

    document: Callable[[str], Document] = document
    mixin: Callable[[str], Document] = mixin
    roles: Mapping[str, Document] = field(default_factory=lambda: shared("roles.toml")["role"])


def resolve(own: Document, library: TableLibrary | None = None) -> dict[str, Any]:
    """The whole table of a document, with everything that it inherits, and with the classes that may contain a model of
    the family: before its own classes, of which the last stays the plain one. Names get the prefixes of these classes,
    and the names of other parts are ignored."""
    table = overlaid(mixin(_COMMON), _resolve(own, library or TableLibrary(), ()))
    names = table.get("wrappers", ())
    if unknown := next((name for name in names if name not in wrappers()), None):
        raise UsageError(f"wrappers: unknown class {unknown!r}{nearest_word(unknown, wrappers())}")
    if not names or "dialect" not in table:
        return table
    entries = {name: wrappers()[name] for name in names}
    classes: dict[str, dict[str, Any]] = {}
    for name, entry in entries.items():
        part: Document = next((c for c in table["architecture"].values() if c.get("model_type") == entry.part_type), {})
        inherited = ("defaults", "null", "full_layers", "requires", "forbids")
        classes[name] = {key: part[key] for key in inherited if key in part}
        copied = ("model_type", "aliases", "part", "part_type", "part_aliases")
        classes[name] |= {key: getattr(entry, key) for key in copied}
        classes[name]["prefix"] = entry.prefixes[0]
    hf = table["dialect"]["hf"]
    prefixes = dict.fromkeys((*hf["prefixes"], *(prefix for entry in entries.values() for prefix in entry.prefixes)))
    apart = (*table.get("ignored_prefixes", ()), *(start for entry in entries.values() for start in entry.apart))
    return {
        **table,
        "architecture": {**classes, **table["architecture"]},
        "dialect": {**table["dialect"], "hf": {**hf, "prefixes": [*prefixes]}},
        "ignored_prefixes": [*dict.fromkeys(apart)],
    }


def _resolve(own: Document, library: TableLibrary, seen: tuple[str, ...]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    if (parent := own.get("like", own.get("names_from"))) is not None:
        if len(seen) >= _DEEPEST or parent in seen:
            raise UsageError(f"circular `like` or `names_from`: {parent}")
        whole = _resolve(library.document(parent), library, (*seen, parent))
        if "like" in own:
            table, own = _alike(own, whole)
        else:
            table = {key: whole[key] for key in _NAMES if key in whole}
    for layer in _mixins(own, library, seen):
        table = _with_layer(table, layer, library)
    for entry in own.get("exclude", ()):
        table = _without(table, entry.split("."), entry)
    return _with_layer(table, own, library)


def _alike(own: Document, parent: Document) -> tuple[dict[str, Any], Document]:
    """The base of a table that is `like` its parent, and the table with the parent's class and key-values below its
    own. The defaults of the parent's plain class, the last one, become the family's, so that the table's own win."""
    plain: Document = [*parent["architecture"].values()][-1]
    base = {key: value for key, value in parent.items() if key not in _NOT_INHERITED}
    base["defaults"] = {**parent.get("defaults", {}), **plain.get("defaults", {})}
    own = dict(own)
    if isinstance(classes := own.get("architecture"), Mapping):
        below = {key: value for key, value in plain.items() if key in _OF_CLASS}
        below["known_as"] = plain.get("model_type", plain.get("shared_type"))
        own["architecture"] = {n: overlaid(below, c) if isinstance(c, Mapping) else c for n, c in classes.items()}
    if isinstance(meta := own.get("meta"), Mapping):
        own["meta"] = dict(meta)
        for key, inherited in parent.get("meta", {}).items():  # rows follow the inherited ones, but for those below
            if isinstance(inherited, list) and isinstance(rows := meta.get(key), list):
                restated = [row["name"] for row in rows if isinstance(row, Mapping) and "name" in row]
                restated += meta.get("without", [])
                kept = (row for row in inherited if not isinstance(row, Mapping) or row.get("name") not in restated)
                own["meta"][key] = [*kept, *rows]
    return base, own


def _mixins(own: Document, library: TableLibrary, seen: tuple[str, ...]) -> Iterator[Document]:
    """The mixins that a table includes, each after those that it includes in turn."""
    for name in own.get("include", ()):
        if len(seen) >= _DEEPEST or name in seen:
            raise UsageError(f"circular `include`: {name}")
        layer = library.mixin(name)
        yield from _mixins(layer, library, (*seen, name))
        yield {key: value for key, value in layer.items() if key != "include"}


def _with_layer(table: Document, layer: Document, library: TableLibrary) -> dict[str, Any]:
    """A table with a mixin or a family's own entries laid over it."""
    if not isinstance(roles := layer.get("role"), dict):
        return overlaid(table, layer)
    inherited = table.get("role", {})
    begun = {n: role if n in inherited else _begin_role(n, role, library.roles) for n, role in roles.items()}
    out = overlaid(table, {**layer, "role": begun})
    return {**out, "role": _ordered(dict(_with_limits(dict(_with_biases(out["role"])))))}


def _begin_role(name: str, row: Any, known: Mapping[str, Document]) -> Any:
    """A new role; without a `kind` it begins as the known role of its name, or of `like`. `""` omits a name."""
    if not isinstance(row, dict) or ("like" not in row and ("kind" in row or name not in known)):
        return row
    if (base := known.get(row.get("like", name))) is None:
        raise UsageError(f"role.{name}.like: unknown role {row['like']!r}{nearest_word(row['like'], known)}")
    role = overlaid(base, {key: value for key, value in row.items() if key != "like"})
    omitted = {d for d, text in row.get("names", {}).items() if text == "" and d in base["names"]}
    return {**role, "names": {d: text for d, text in role["names"].items() if d not in omitted}}


def _with_biases(roles: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The roles, and after each one with `bias` its bias: like the matrix, but with one dimension; a vector's has its
    shapes. A row of the bias's name states what differs."""
    stated = {f"{name}_bias" for name, role in roles.items() if isinstance(role, dict) and role.get("bias")}
    for name, role in roles.items():
        if name in stated:
            continue
        if not isinstance(role, dict) or not (group := role.get("bias")):
            yield name, role
            continue
        yield name, {key: value for key, value in role.items() if key != "bias"}
        shape, matrix, _ = str(role.get("shape", "")).partition(",")
        kept = {key: role[key] for key in ("layout", "when", "layers", *(() if matrix else ["shapes"])) if key in role}
        texts = role.get("names", {}).items()
        names = {d: f"{text.removesuffix('weight')}bias" for d, text in texts if str(text).endswith("weight")}
        bias = {"kind": "bias", "shape": shape, "names": names, "after": name, **kept}
        bias = bias if group is True else {**bias, "group": group}
        yield f"{name}_bias", overlaid(bias, roles.get(f"{name}_bias", {}))


#: Ends of the names of a matrix's limits: of roles, and of tensors.
_LIMITS: Final = {"in_min": "input_min", "in_max": "input_max", "out_min": "output_min", "out_max": "output_max"}


def _with_limits(roles: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The roles, and after each one with `clips` the limits of its inputs and outputs: scalars."""
    for name, role in roles.items():
        group = role.get("clips") if isinstance(role, dict) else None
        yield name, {key: value for key, value in role.items() if key != "clips"} if group else role
        for part, end in _LIMITS.items() if group else ():
            starts = {d: text.removesuffix("weight").removesuffix("linear.") for d, text in role["names"].items()}
            names = {d: f"{start}{end}" for d, start in starts.items()}
            yield f"{name}_{part}", {"kind": "bias", "shape": "1", "shapes": {"hf": ""}, "names": names, "group": group}


def _ordered(roles: Mapping[str, Any]) -> dict[str, Any]:
    """The roles in order: one with `after` follows the role that it names; `""` puts it first."""
    order: list[str] = []
    out = dict(roles)
    for name, role in roles.items():
        after = role.get("after") if isinstance(role, dict) else None
        if after and after not in order:
            raise UsageError(f"role.{name}.after: unknown role {after!r}{nearest_word(str(after), order)}")
        order.insert(len(order) if after is None else order.index(after) + 1 if after else 0, name)
        if after is not None:
            out[name] = {key: value for key, value in role.items() if key != "after"}
    return {name: out[name] for name in order}


def _without(table: Document, path: list[str], entry: str) -> dict[str, Any]:
    """The table without the entry at a path, whose last part may be a pattern. An excluded dialect is removed from the
    columns of all roles, fuses and drops, too."""
    first, *rest = path
    matches = [key for key in table if (fnmatchcase(key, first) if not rest else key == first)]
    if not matches:
        raise UsageError(f"exclude: there is no {entry!r} to exclude{nearest_word(first, table)}")
    if not rest:
        return {key: value for key, value in table.items() if key not in matches}
    out = {**table, first: _without(table[first], rest, entry)}
    if first == "dialect" and len(rest) == 1:
        roles = {name: dict(role) for name, role in out.get("role", {}).items()}
        for role in roles.values():
            role.update({key: _drop(role[key], rest[0]) for key in _COLUMNS if key in role})
        out["role"] = roles
        for key in {"fuse", "drop"} & out.keys():
            out[key] = _drop(out[key], rest[0])
    return out


def _drop(column: Any, dialect: str) -> Any:
    if isinstance(column, Mapping):
        return {key: value for key, value in column.items() if key != dialect}
    return [key for key in column if key != dialect]
