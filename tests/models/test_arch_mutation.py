"""Every row of every architecture table, damaged in each way that a row can be wrong: some judge must see it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import pytest
from tests.models.arch_judges import convicts, doc

from weighbridge.models.arch.registry import families
from weighbridge.models.arch.tables.documents import TableLibrary, document, mixin

pytestmark = pytest.mark.mutation

Document = dict[str, Any]
Fault = Callable[[Document], Document]

_F32_KINDS = ("norm", "bias", "router", "position", "types", "factors", "sinks", "conv", "state")


def _set(path: tuple[Any, ...], value: Any) -> Fault:
    """Returns a copy of a document with a value at a path; `...` takes away what is there. The rest is shared."""

    def fault(document: Document) -> Document:
        changed = at = copy.copy(document)
        for key in path[:-1]:
            at[key] = copy.copy(at[key])
            at = at[key]
        if value is ...:
            del at[path[-1]]
        else:
            at[path[-1]] = value
        return changed

    return fault


def _row_faults(name: str, row: dict[str, Any]) -> Iterator[tuple[str, Fault]]:
    at = ("role", name)
    for dialect, text in row.get("names", {}).items():
        if not text:  # none: the role is a part of a fused tensor in this dialect
            continue
        yield f"{name}: its {dialect} name", _set((*at, "names", dialect), text.replace("weight", "wait") + "s")
        yield f"{name}: no {dialect} name", _set((*at, "names", dialect), ...)
    if "shape" in row:
        yield f"{name}: shape", _set((*at, "shape"), row["shape"] + "*2")
        first, _, rest = row["shape"].partition(", ")
        if rest and first != rest:
            yield f"{name}: shape turned", _set((*at, "shape"), f"{rest}, {first}")
    if "kind" in row:
        yield f"{name}: kind", _set((*at, "kind"), "linear" if row["kind"] in _F32_KINDS else "norm")
    yield from _layout_faults(name, row)
    for attribute in (
        "group",
        "tied",
        "derived",
        "copies",
        "when",
        "unstacked",
        "stacked",
        "shapes",
        "layers",
        "as_metadata",
        "zeros",
        "filled",
        "bias",
        "written_with",
        "computed",
    ):
        if attribute in row:
            yield f"{name}: no {attribute}", _set((*at, attribute), ...)
    if "computed" in row:
        function, _, roles = row["computed"].rstrip(")").partition("(")
        turned = ", ".join(reversed(roles.split(", ")))
        yield f"{name}: computed the other way", _set((*at, "computed"), f"{function}({turned})")
    if "when" in row:
        turned = row["when"].removeprefix("not ") if row["when"].startswith("not ") else f"not {row['when']}"
        yield f"{name}: when turned", _set((*at, "when"), turned)
    if row.get("layers", "").startswith("layers["):
        lo, hi, *step = row["layers"][len("layers[") : -1].split(":")
        yield f"{name}: the other layers", _set((*at, "layers"), f"layers[{':'.join((hi, lo, *step))}]")


_WRONG = {"rope(H)": "rope(KV)", "rope(KV)": "rope(H)", "shift(1)": "shift(2)", "parted(H, KV)": "parted(KV, KV)",
          "halves(H, K)": "rope(H)", "shift(0.2)": "shift(0.25)", "tiled(G, H)": "tiled(KV, H)",
          "halved(layer, X)": "halved(X, layer)"}  # fmt: skip


def _layout_faults(name: str, row: dict[str, Any]) -> Iterator[tuple[str, Fault]]:
    at = ("role", name, "layout")
    for dialect, layout in row.get("layout", {}).items():
        yield f"{name}: layout {dialect} dropped", _set((*at, dialect), ...)
        if layout.startswith("times("):
            keys = layout.removeprefix("times(").removesuffix(")").split(", ")
            for key in keys:
                rest = ", ".join(k for k in keys if k != key)
                yield f"{name}: not times {key}", _set((*at, dialect), f"times({rest})")
        if layout in _WRONG:
            yield f"{name}: layout {dialect} of others", _set((*at, dialect), _WRONG[layout])
    if "gguf" in row.get("names", {}) and "shape" in row and not any(k in row for k in ("layout", "derived", "zeros")):
        yield f"{name}: layout where none is", _set(at, {"gguf": "rope(H)"})


def _faults(document: Document) -> Iterator[tuple[str, Fault]]:
    for i, entry in enumerate(document.get("exclude", ())):
        rest = [e for n, e in enumerate(document["exclude"]) if n != i]
        yield f"exclude: {entry}, still there", _set(("exclude",), rest)
    for name, row in document.get("role", {}).items():
        yield from _row_faults(name, row)
    if "ignored_prefixes" in document:
        yield "ignored_prefixes: none", _set(("ignored_prefixes",), [])
    for symbol, size in document.get("size", {}).items():
        if size.get("by_layer"):
            yield f"size {symbol}: not by layer", _set(("size", symbol, "by_layer"), ...)
        for side in ("hf", "gguf"):
            if size.get(side):
                yield f"size {symbol}: its {side} key", _set(("size", symbol, side, 0), _misnamed(size[side][0]))
    for name, kind in document.get("layers", {}).items():
        for side in (side for side in ("hf", "gguf") if kind.get(side) != ["layers[0:0]"]):
            yield f"layers {name}: none by {side}", _set(("layers", name, side), ["layers[0:0]"])
        for key in {"include", "optional"} & kind.keys():
            yield f"layers {name}: not {key}", _set(("layers", name, key), ...)
    yield from _joined_faults(document)
    for key, value in document.get("defaults", {}).items():
        yield f"default {key}", _set(("defaults", key), _other(value))
    for name, architecture in document["architecture"].items():
        yield f"{name}: model_type", _set(("architecture", name, "model_type"), "other")
        for key, value in architecture.get("defaults", {}).items():
            yield f"{name}: default {key}", _set(("architecture", name, "defaults", key), _other(value))
        for key in {"requires", "forbids"} & architecture.keys():
            yield f"{name}: {key}", _set(("architecture", name, key), ...)
        for key in architecture.get("null", {}):
            yield f"{name}: null {key}", _set(("architecture", name, "null", key), ...)
        for i in range(len(architecture.get("full_layers", ()))):
            yield f"{name}: full layers, {i}", _set(("architecture", name, "full_layers", i), "layers[1::2]")
        if "part" in architecture:
            yield f"{name}: no part", _set(("architecture", name, "part"), ...)
        if "prefix" in architecture:
            others = (p for p in families()[document["name"]].dialects["hf"].prefixes if p != architecture["prefix"])
            yield f"{name}: another's prefix", _set(("architecture", name, "prefix"), next(others))
        if "gguf" in architecture:
            yield f"{name}: gguf", _set(("architecture", name, "gguf"), ["general.nothing"])
    for i, start in enumerate(prefixes := document.get("ignored_prefixes", ())):
        yield f"ignored_prefixes: {start}", _set(("ignored_prefixes",), [s for n, s in enumerate(prefixes) if n != i])
    yield from _meta_faults(document.get("meta", {}))


def _joined_faults(document: Document) -> Iterator[tuple[str, Fault]]:
    """Faults in what dialects join, drop and order."""
    for dialect, fuses in document.get("fuse", {}).items():
        for name, fuse in fuses.items():
            if len(fuse["roles"]) > 1:
                yield f"{name}: order", _set(("fuse", dialect, name, "roles"), fuse["roles"][::-1])
            yield f"{name}: name", _set(("fuse", dialect, name, "name"), fuse["name"] + "s")
            if "by_rank" in fuse:
                yield f"{name}: not by rank", _set(("fuse", dialect, name, "by_rank"), ...)
            if "interleave" in fuse:
                yield f"{name}: not interleaved", _set(("fuse", dialect, name, "interleave"), ...)
            for i, layout in enumerate(fuse.get("layout", ())):
                rest = [*fuse["layout"][:i], *fuse["layout"][i + 1 :]]
                yield f"{name}: no {layout}", _set(("fuse", dialect, name, "layout"), rest)
    for dialect, names in document.get("drop", {}).items():
        for i in range(len(names)):
            yield f"drop {dialect}, {i}", _set(("drop", dialect), [*names[:i], *names[i + 1 :]])
    for name, options in document.get("dialect", {}).items():
        for key, value in options.items():
            if value != []:
                yield f"dialect {name}: {key}", _set(("dialect", name, key), ...)
        for old in options.get("mtp_prefixes", ()):
            yield f"dialect {name}: mtp prefix {old}", _set(("dialect", name, "mtp_prefixes", old), "else.")
        for layers, starts in options.get("set_prefixes", {}).items():
            for old in starts:
                change = _set(("dialect", name, "set_prefixes", layers, old), "else.{n}.")
                yield f"dialect {name}: prefix {old} of {layers}", change
        for i, group in enumerate(options.get("write_groups", ())):
            yield f"write_groups: order {i}", _set(("dialect", name, "write_groups", i), group[::-1])
        for i, group in enumerate(by_layer := options.get("write_by_layer", ())):
            rest = [*by_layer[:i], *by_layer[i + 1 :]]
            yield f"write_by_layer: not {i}", _set(("dialect", name, "write_by_layer"), rest)
            if len(group) > 1:
                yield f"write_by_layer: order {i}", _set(("dialect", name, "write_by_layer", i), group[::-1])
        for source in options.get("kept_dtypes", ()):
            yield f"kept_dtypes: {source}", _set(("dialect", name, "kept_dtypes", source), ...)


_COLUMNS = (
    "layers", "others", "sets", "times", "divide_by", "divide_by_sqrt", "subtract", "omit_if", "pad_to", "absent",
    "null", "whole", "quantile",
)  # fmt: skip


def _meta_faults(meta: dict[str, Any]) -> Iterator[tuple[str, Fault]]:
    """Every own key-value wrong in each of its columns, and whatever else ties a config to a GGUF left out."""
    for i, row in enumerate(meta.get("key", ())):
        at, label = ("meta", "key", i), f"{row['name']}, {i}"
        yield f"{label}: name", _set((*at, "name"), row["name"] + "s")
        # A row that only gives a key its place has no type of its own.
        again = {r["name"] for r in meta["key"][i + 1 :]}
        if not (row.get("replaces") and row["name"] in again):
            yield f"{label}: type", _set((*at, "type"), "i32" if row["type"] == "u32" else "u32")
        if "config" in row:
            yield f"{label}: config", _set((*at, "config"), [_misnamed(c) for c in row["config"]])
        if "value" in row:
            yield f"{label}: value", _set((*at, "value"), _other(row["value"]))
        for column in _COLUMNS:
            if column in row:
                yield f"{label}: {column}", _set((*at, column), ...)
        if "absent" in row:
            yield f"{label}: absent, another", _set((*at, "absent"), _other(row["absent"]))
        if "map" in row:
            yield f"{label}: map", _set((*at, "map"), {k: _other(v) for k, v in row["map"].items()})
        if "when" in row:
            yield f"{label}: when", _set((*at, "when"), {k: ["never"] for k in row["when"]})
    for i, row in enumerate(meta.get("implied", ())):
        rest = [r for r in meta["implied"] if r is not row]
        yield f"implied: {row['config']}, {i}", _set(("meta", "implied"), rest)
    for i, row in enumerate(meta.get("requires_value", ())):
        rest = [r for r in meta["requires_value"] if r is not row]
        yield f"requires_value: {row['config']}, {i}", _set(("meta", "requires_value"), rest)
        if "when" in row:
            yield f"requires_value: {row['config']}, {i}, whenever", _set(("meta", "requires_value", i, "when"), ...)
    for key in ("base", "without", "tokens"):
        if key in meta:
            yield f"meta: {key}", _set(("meta", key), ...)
    for part in ("presence", "assumed"):
        for key in meta.get(part, ()):
            yield f"{part}: {key}", _set(("meta", part, key), ...)


def _misnamed(text: str) -> str:
    """An expression over keys that no config has; another number where it has no keys."""
    return re.sub(r"[A-Za-z_][\w.]*(?![\w.(])", r"\g<0>_", text) if not text.isdigit() else f"{int(text) + 1}"


def _other(value: Any) -> Any:
    if isinstance(value, list):
        return [*value, 1]
    if isinstance(value, dict):
        return {key: _other(said) for key, said in value.items()}
    return not value if isinstance(value, bool) else value + (1 if isinstance(value, int | float) else "x")


def _kind(label: str) -> str:
    """The kind of fault, whatever row has it: the same judge sees it."""
    return label.rpartition(": ")[2]


_WHOLE: Final = "qwen3"  # includes every mixin of names, and changes none of their rows


@cache
def _heirs(role: str) -> list[str]:
    """Families with a table that begins a role as the known one of this name."""
    documents = {family: document(family) for family in families()}
    rows = {family: own.get("role", {}) for family, own in documents.items()}
    mixins = {
        name for own in documents.values() for name in own.get("include", ()) if role in mixin(name).get("role", {})
    }
    return [
        family
        for family, named in rows.items()
        if mixins & {*documents[family].get("include", ())}
        or ("kind" not in named.get(role, {"kind": ""}))
        or any(row.get("like") == role for row in named.values())
    ]


def test_the_undamaged_tables_pass() -> None:
    for family in families():
        assert not convicts(doc(family)), family


@pytest.mark.parametrize("family", list(families()))
def test_a_fault_is_seen(family: str) -> None:
    """Every row of a family, damaged."""
    whole = dict(document(family))
    assert [label for label, fault in _faults(whole) if not convicts(fault(whole), kind=_kind(label))] == []


@pytest.mark.parametrize("name", document(_WHOLE)["include"])
def test_a_fault_in_a_mixin_is_seen(name: str) -> None:
    """Every row of a mixin, damaged for one family that includes it."""
    whole = {"name": _WHOLE, "architecture": {}, **mixin(name)}
    assert [label for label, fault in _faults(whole) if not convicts(doc(_WHOLE), {name: fault(whole)})] == []


@pytest.mark.parametrize("role", TableLibrary().roles)
def test_a_fault_in_a_known_role_is_seen(role: str) -> None:
    """Every row of roles.toml, damaged for the families that begin a role with it."""
    row, heirs, unseen = dict(TableLibrary().roles[role]), _heirs(role), []
    for label, fault in _row_faults(role, row):
        damaged = fault({"role": {role: row}})["role"]
        seen = next((heir for heir in heirs if convicts(doc(heir), roles=damaged, kind=_kind(label))), None)
        if seen is None:
            unseen.append(label)
        else:
            heirs.insert(0, heirs.pop(heirs.index(seen)))  # asked first about the next fault of this role
    assert unseen == []
