"""Faults of the tables that give other programs' names their roles."""

from __future__ import annotations

from types import ModuleType

import pytest
from msgspec import structs


def remove_row(monkeypatch: pytest.MonkeyPatch, module: ModuleType, table: str, kind: str, role: str) -> None:
    """Lets a module's table, which the function of this name returns, lack a row."""
    whole = getattr(module, table)()
    rows = {name: row for name, row in getattr(whole, kind).items() if name != role}
    changed = structs.replace(whole, **{kind: rows})
    monkeypatch.setattr(module, table, lambda: changed)
