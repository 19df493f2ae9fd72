"""The files of a checkpoint of Orbax: of a tree of arrays, or of the item of a step that is a model."""

from __future__ import annotations

from pathlib import Path

from weighbridge.base.errors import FormatError
from weighbridge.containers.formats import ORBAX, ORBAX_ITEMS
from weighbridge.io.location import walk


def item_of(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The folder of the tree that is read: this one, or the likeliest item in it; and a note on the other items."""
    if (folder / ORBAX).is_file():
        return folder, ()
    items = [path.name for path in sorted(folder.iterdir()) if (path / ORBAX).is_file()]
    chosen = next((name for name in ORBAX_ITEMS if name in items), None)
    if chosen is None:
        raise FormatError("a step has no item with a model", path=str(folder), expected=", ".join(ORBAX_ITEMS))
    others = ", ".join(name for name in items if name != chosen)
    return folder / chosen, (f"the item {chosen} is read, not {others}",) if others else ()


def files_of(folder: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """The files of the tree that is read, and a note on the other items."""
    item, notes = item_of(folder)
    return tuple(sorted(base / name for base, _, names in walk(item) for name in names)), notes
