"""Every family as its table expands, as text: `python -m tests.models.expanded_tables FOLDER` writes a file per family.

Run it before and after a change to the tables or to the code that expands them, and compare the folders with `diff -r`.
Each file has the expanded table, in order, and the names and shapes in each dialect of the recorded models.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
from tests.models.family_judges import golden, models_of

from weighbridge.models.arch.family import Family
from weighbridge.models.arch.registry import families

_INHERITANCE = ("like", "names_from", "include", "exclude")  # how a table is written, not what it says


def _plain(value: Any) -> Any:
    """JSON values of a family's parts; mappings keep their order but for names by dialect and defaults."""
    if isinstance(value, Mapping):
        items = sorted(value.items()) if isinstance(value.get("canonical"), str) else value.items()
        plain = {str(key): _plain(item) for key, item in items if key not in _INHERITANCE}
        return plain | {key: dict(sorted(plain[key].items())) for key in {"defaults", "tensor_parallel"} & plain.keys()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        shown = (f.name for f in fields(value) if f.repr)
        return _plain({name: getattr(value, name) for name in shown})
    if isinstance(value, msgspec.Struct):
        return _plain({name: getattr(value, name) for name in value.__struct_fields__})
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def lines_of(family: Family) -> Iterator[str]:
    """The expanded table, one entry per line, then the generated names of each recorded model."""
    table = _plain(family)
    for section, entries in table.items():
        parts = entries.items() if isinstance(entries, dict) else [("", entries)]
        for key, entry in parts:
            yield f"{section} {key}: {json.dumps(entry)}"
    for model in models_of(family):
        sizes = family.sizes_from_hf(golden()[model]["config"])
        for dialect in family.dialects:
            for name, shape in family.names(dialect, sizes).items():
                yield f"{model} {dialect}: {name} {list(shape)}"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for family in families().values():
        (folder / f"{family.name}.txt").write_text("\n".join(lines_of(family)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
