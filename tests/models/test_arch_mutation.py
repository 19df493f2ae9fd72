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

_F32_KINDS = ("norm", "bias", "router", "position", "types", "factors")


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
        if dialect in row:
            yield f"{name}: its {dialect} name", _set((*at, dialect), row[dialect].replace("weight", "wait") + "s")
            yield f"{name}: no {dialect} name", _set((*at, dialect), ...)
    yield f"{name}: shape", _set((*at, "shape"), row["shape"] + "*2")
    first, _, rest = row["shape"].partition(",")
    if rest and first != rest:
        yield f"{name}: shape turned", _set((*at, "shape"), f"{rest},{first}")
    yield f"{name}: kind", _set((*at, "kind"), "linear" if row["kind"] in _F32_KINDS else "norm")
    for dialect, via in row.get("via", {}).items():
        yield f"{name}: via dropped", _set((*at, "via", dialect), ...)
        yield (
            f"{name}: via of others' heads",
            _set((*at, "via", dialect), "rope(KV)" if via == "rope(H)" else "rope(H)"),
        )
    if not row.get("via") and name not in ("factors",):
        yield f"{name}: via where none is", _set((*at, "via"), {"gguf": "rope(H)"})
    for attribute in ("group", "tied", "make", "when"):
        if attribute in row:
            yield f"{name}: no {attribute}", _set((*at, attribute), ...)
    if "when" in row:
        yield (
            f"{name}: when turned",
            _set((*at, "when"), row["when"][1:] if row["when"][0] == "!" else f"!{row['when']}"),
        )


def _faults(document: Document) -> Iterator[tuple[str, Fault]]:
    dialects = list(document["dialect"])
    for name, row in document["role"].items():
        yield from _row_faults(name, row, dialects)
    for symbol, size in document["size"].items():
        for side in ("hf", "gguf"):
            yield f"size {symbol}: its {side} key", _set(("size", symbol, side, 0), size[side][0] + "_")
    for dialect, fuses in document.get("fuse", {}).items():
        for name, fuse in fuses.items():
            yield f"{name}: order", _set(("fuse", dialect, name, "roles"), fuse["roles"][::-1])
            yield f"{name}: name", _set(("fuse", dialect, name, "name"), fuse["name"] + "s")
    for dialect, names in document.get("drop", {}).items():
        yield f"drop {dialect}", _set(("drop", dialect), names[1:])
    for name, options in document["dialect"].items():
        for key in options:
            yield f"dialect {name}: {key}", _set(("dialect", name, key), ...)
        for group in options.get("together", ()):
            yield "together: order", _set(("dialect", name, "together", 0), group[::-1])
    for key, value in document["defaults"].items():
        yield f"default {key}", _set(("defaults", key), _other(value))
    for name, architecture in document["architecture"].items():
        yield f"{name}: model_type", _set(("architecture", name, "model_type"), "other")
        for key, value in architecture.get("defaults", {}).items():
            yield f"{name}: default {key}", _set(("architecture", name, "defaults", key), _other(value))
        for key in architecture.get("null", {}):
            yield f"{name}: null {key}", _set(("architecture", name, "null", key), ...)
        if "gguf" in architecture:
            yield f"{name}: gguf", _set(("architecture", name, "gguf"), ["general.nothing"])


def _other(value: Any) -> Any:
    return not value if isinstance(value, bool) else value + (1 if isinstance(value, int | float) else "x")


def _cases() -> Iterator[Any]:
    for family in families():
        for label, fault in _faults(doc(family)):
            yield pytest.param(family, fault, id=f"{family}, {label}")


def test_the_undamaged_tables_pass() -> None:
    for family in families():
        assert not convicts(doc(family)), family


@pytest.mark.parametrize(("family", "fault"), list(_cases()))
def test_a_fault_is_seen(family: str, fault: Fault) -> None:
    document = doc(family)
    fault(document)
    assert convicts(document)
