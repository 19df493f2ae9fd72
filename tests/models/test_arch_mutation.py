"""Every row of every architecture table, damaged in each way that a row can be wrong: some judge must see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.models.arch_judges import convicts, doc

from weighbridge.models.arch.table import families

pytestmark = pytest.mark.mutation

Document = dict[str, Any]
Fault = Callable[[Document], None]

_F32_KINDS = ("norm", "bias", "router", "position", "types", "factors", "sinks", "conv", "state")


def _set(path: tuple[Any, ...], value: Any) -> Fault:
    """Puts a value at a path of the document; `...` takes away what is there."""

    def fault(document: Document) -> None:
        at: Any = document
        for key in path[:-1]:
            at = at[key]
        if value is ...:
            del at[path[-1]]
        else:
            at[path[-1]] = value

    return fault


def _row_faults(name: str, row: dict[str, Any], dialects: list[str]) -> Iterator[tuple[str, Fault]]:
    at = ("role", name)
    for dialect in dialects:
        if row.get(dialect) is False:
            yield f"{name}: a {dialect} name all the same", _set((*at, dialect), ...)
        elif dialect in row:
            yield f"{name}: its {dialect} name", _set((*at, dialect), row[dialect].replace("weight", "wait") + "s")
            yield f"{name}: no {dialect} name", _set((*at, dialect), ...)
    if "shape" in row:
        yield f"{name}: shape", _set((*at, "shape"), row["shape"] + "*2")
        first, _, rest = row["shape"].partition(",")
        if rest and first != rest:
            yield f"{name}: shape turned", _set((*at, "shape"), f"{rest},{first}")
    if "kind" in row:
        yield f"{name}: kind", _set((*at, "kind"), "linear" if row["kind"] in _F32_KINDS else "norm")
    yield from _via_faults(name, row)
    for attribute in ("group", "tied", "make", "when", "span", "flat", "each", "shaped", "layers", "keyed", "zeros"):
        if row.get(attribute) is False:
            yield f"{name}: {attribute} all the same", _set((*at, attribute), ...)
        elif attribute in row:
            yield f"{name}: no {attribute}", _set((*at, attribute), ...)
    if row.get("when"):
        turned = row["when"][1:] if row["when"][0] == "!" else f"!{row['when']}"
        yield f"{name}: when turned", _set((*at, "when"), turned)
    if "span" in row:
        lo, hi, *step = row["span"].split(":")
        yield f"{name}: span of the others", _set((*at, "span"), ":".join((hi, lo, *step)))


_ALIKE = {"baichuan"}  # as many heads of keys as of queries: one rotates as the other
_WRONG_VIA = {"rope(H)": "rope(KV)", "rope(KV)": "rope(H)", "shift(1)": "shift(2)", "parted(H,KV)": "parted(KV,KV)",
              "halves(H,K)": "rope(H)"}  # fmt: skip


def _via_faults(name: str, row: dict[str, Any]) -> Iterator[tuple[str, Fault]]:
    at = ("role", name, "via")
    if row.get("via") is False:
        yield f"{name}: a via all the same", _set(at, ...)
    for dialect, via in (row.get("via") or {}).items():
        yield f"{name}: via {dialect} dropped", _set((*at, dialect), ...)
        if via.startswith("times("):
            keys = via.removeprefix("times(").removesuffix(")").split(", ")
            for key in keys:
                rest = ", ".join(k for k in keys if k != key)
                yield f"{name}: not times {key}", _set((*at, dialect), f"times({rest})")
        if via in _WRONG_VIA:
            yield f"{name}: via {dialect} of others", _set((*at, dialect), _WRONG_VIA[via])
    if "gguf" in row and "shape" in row and not row.get("via") and not (row.get("make") or row.get("zeros")):
        yield f"{name}: via where none is", _set(at, {"gguf": "rope(H)"})


def _faults(document: Document) -> Iterator[tuple[str, Fault]]:
    dialects = [*families()[document["name"]].dialects]
    for part in ("dialect", "size", "index", "layers", "role", "fuse"):
        for name in (n for n, row in document.get(part, {}).items() if row is False):
            yield f"{part} {name}: still there", _set((part, name), ...)
    for name, row in document.get("role", {}).items():
        if row is not False:
            yield from _row_faults(name, row, dialects)
    if "apart" in document:
        yield "apart: nothing", _set(("apart",), [])
    for symbol, size in document.get("size", {}).items():
        for side in ("hf", "gguf"):
            if size is not False and size.get(side):
                yield f"size {symbol}: its {side} key", _set(("size", symbol, side, 0), size[side][0] + "_")
    for name, kind in document.get("layers", {}).items():
        for side in (side for side in ("hf", "gguf") if kind and kind.get(side) != ["[0:0]"]):
            yield f"layers {name}: none by {side}", _set(("layers", name, side), ["[0:0]"])
        for key in {"also", "spare"} & (kind or {}).keys():
            yield f"layers {name}: not {key}", _set(("layers", name, key), ...)
    yield from _joined_faults(document)
    for key, value in document.get("defaults", {}).items():
        yield f"default {key}", _set(("defaults", key), _other(value))
    for name, architecture in document["architecture"].items():
        yield f"{name}: model_type", _set(("architecture", name, "model_type"), "other")
        for key, value in architecture.get("defaults", {}).items():
            yield f"{name}: default {key}", _set(("architecture", name, "defaults", key), _other(value))
        for key in {"some", "none"} & architecture.keys():
            yield f"{name}: {key}", _set(("architecture", name, key), ...)
        for key in architecture.get("null", {}):
            yield f"{name}: null {key}", _set(("architecture", name, "null", key), ...)
        for i in range(len(architecture.get("full_layers", ()))):
            yield f"{name}: full layers, {i}", _set(("architecture", name, "full_layers", i), "1::2")
        if "part" in architecture:
            yield f"{name}: no part", _set(("architecture", name, "part"), ...)
        if "prefix" in architecture:
            others = (p for p in families()[document["name"]].dialects["hf"].prefixes if p != architecture["prefix"])
            yield f"{name}: another's prefix", _set(("architecture", name, "prefix"), next(others))
        if "gguf" in architecture:
            yield f"{name}: gguf", _set(("architecture", name, "gguf"), ["general.nothing"])
    for i, start in enumerate(document.get("apart", ())):
        yield f"apart: {start}", _set(("apart",), [s for n, s in enumerate(document["apart"]) if n != i])
    yield from _meta_faults(document.get("meta", {}))


def _joined_faults(document: Document) -> Iterator[tuple[str, Fault]]:
    """Faults in what dialects join, drop and order."""
    for dialect, fuses in document.get("fuse", {}).items():
        for name, fuse in (fuses or {}).items():
            if fuse is not False:
                if len(fuse["roles"]) > 1:
                    yield f"{name}: order", _set(("fuse", dialect, name, "roles"), fuse["roles"][::-1])
                yield f"{name}: name", _set(("fuse", dialect, name, "name"), fuse["name"] + "s")
                if "dealt" in fuse:
                    yield f"{name}: not dealt", _set(("fuse", dialect, name, "dealt"), ...)
                for i, via in enumerate(fuse.get("via", ())):
                    rest = [*fuse["via"][:i], *fuse["via"][i + 1 :]]
                    yield f"{name}: no {via}", _set(("fuse", dialect, name, "via"), rest)
    for dialect, names in document.get("drop", {}).items():
        for i in range(len(names or ())):
            yield f"drop {dialect}, {i}", _set(("drop", dialect), [*names[:i], *names[i + 1 :]])
    for name, options in document.get("dialect", {}).items():
        for key, value in (options or {}).items():
            if value != []:
                yield f"dialect {name}: {key}", _set(("dialect", name, key), ...)
        for old in (options or {}).get("further", ()):
            yield f"dialect {name}: further {old}", _set(("dialect", name, "further", old), "else.")
        for i, group in enumerate((options or {}).get("together") or ()):
            yield f"together: order {i}", _set(("dialect", name, "together", i), group[::-1])


_COLUMNS = (
    "layers", "others", "means", "times", "over", "root", "less", "usual", "padded", "absent", "null", "whole",
    "quantile",
)  # fmt: skip


def _meta_faults(meta: dict[str, Any]) -> Iterator[tuple[str, Fault]]:
    """Every own key-value wrong in each of its columns, and whatever else ties a config to a GGUF left out."""
    for i, row in enumerate(meta.get("key", ())):
        at, label = ("meta", "key", i), f"{row['name']}, {i}"
        yield f"{label}: name", _set((*at, "name"), row["name"] + "s")
        yield f"{label}: type", _set((*at, "type"), "i32" if row["type"] == "u32" else "u32")
        if "config" in row:
            yield f"{label}: config", _set((*at, "config"), [c + "_" for c in row["config"]])
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
    for i, row in enumerate(meta.get("graph", ())):
        rest = [r for r in meta["graph"] if r is not row]
        yield f"graph: {row['config']}, {i}", _set(("meta", "graph"), rest)
        if "when" in row:
            yield f"graph: {row['config']}, {i}, whenever", _set(("meta", "graph", i, "when"), ...)
    for key in ("base", "without", "tokens"):
        if key in meta:
            yield f"meta: {key}", _set(("meta", key), ...)
    for part in ("presence", "silent"):
        for key in meta.get(part, ()):
            yield f"{part}: {key}", _set(("meta", part, key), ...)


def _other(value: Any) -> Any:
    if isinstance(value, list):
        return [*value, 1]
    if isinstance(value, dict):
        return {key: _other(said) for key, said in value.items()}
    return not value if isinstance(value, bool) else value + (1 if isinstance(value, int | float) else "x")


def _cases() -> Iterator[Any]:
    for family in families():
        for label, fault in _faults(doc(family)):
            if family in _ALIKE and label.endswith("of others"):
                continue
            yield pytest.param(family, fault, id=f"{family}, {label}")


def test_the_undamaged_tables_pass() -> None:
    for family in families():
        assert not convicts(doc(family)), family


@pytest.mark.parametrize(("family", "fault"), list(_cases()))
def test_a_fault_is_seen(family: str, fault: Fault) -> None:
    document = doc(family)
    fault(document)
    assert convicts(document)
