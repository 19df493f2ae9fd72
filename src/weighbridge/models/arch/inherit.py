"""`like`: an architecture's table that begins as another's and says only what differs.

Tables of names (roles, sizes, kinds of layers, fused tensors, dialects, indices, drops) are laid over the other's,
entry by entry and key by key; `false` takes an entry or a key away. Classes, defaults and metadata belong to one family
and aren't inherited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from weighbridge.base.errors import UsageError

_INHERITED: Final = ("dialect", "size", "index", "layers", "role", "fuse", "drop")
_DEEPEST: Final = 8

Document = Mapping[str, Any]


def resolve(document: Document, read: Callable[[str], Document]) -> dict[str, Any]:
    """The whole table of a document. `read` gives another family's document by name."""
    chain = [document]
    while (base := chain[-1].get("like")) is not None:
        if len(chain) >= _DEEPEST:
            raise UsageError(f"the tables are like each other without end: {base}")
        chain.append(read(base))
    tables: dict[str, Any] = {}
    for link in reversed(chain):
        tables = _laid_over(tables, {key: link[key] for key in _INHERITED if key in link})
    return {**document, **tables}


def _laid_over(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(under)
    for key, value in over.items():
        if value is False:
            out.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
            out[key] = _laid_over(out[key], value)
        else:
            out[key] = _laid_over({}, value) if isinstance(value, Mapping) else value
    return out
