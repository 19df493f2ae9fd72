"""Tables of the package are read as data and kept as compiled modules are (`base/imports/tables.py`)."""

from __future__ import annotations

import os
import sys
import tomllib
from importlib.util import cache_from_source
from pathlib import Path

import pytest

import weighbridge
from weighbridge.base.errors import UsageError
from weighbridge.base.imports.tables import read_table, tables_in
from weighbridge.models.arch.registry import read_family

PACKAGE = Path(weighbridge.__file__).parent
TABLES = sorted(PACKAGE.rglob("*.toml"))


def test_the_tables_are_found() -> None:
    assert len(TABLES) > 200


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_kept_table_equals_the_file(path: Path) -> None:
    module = str(path.parent.parent / "module.py")
    fresh, kept = (read_table(module, f"{path.parent.name}/{path.name}") for _ in range(2))
    assert fresh == kept == tomllib.loads(path.read_text("utf-8"))
    assert fresh is not kept


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a module would be whose tables are in `tmp_path`."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "a.toml").write_text("n = 1\n")
    (tmp_path / "a.py").write_text("")
    return str(tmp_path / "a.py")


def test_a_table_is_compiled_once_beside_a_module_of_its_name(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_table(module, "a.toml") == {"n": 1}
    kept = Path(cache_from_source(f"{tmp_path}/a.toml.py"))
    assert kept.is_file()
    assert kept != Path(cache_from_source(module))
    monkeypatch.setattr(tomllib, "loads", lambda text: pytest.fail("parsed again"))
    assert read_table(module, "a.toml") == {"n": 1}


@pytest.mark.parametrize(("text", "later"), [("n = 12\n", 0), ("n = 2\n", 10)])
def test_a_changed_table_is_read_again(tmp_path: Path, module: str, text: str, later: int) -> None:
    read_table(module, "a.toml")
    time = (tmp_path / "a.toml").stat().st_mtime
    (tmp_path / "a.toml").write_text(text)
    os.utime(tmp_path / "a.toml", (time + later, time + later))
    assert read_table(module, "a.toml") == tomllib.loads(text)


def test_nothing_is_kept_where_python_keeps_nothing(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert read_table(module, "a.toml") == {"n": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.py", "a.toml"]


def test_tables_are_in_the_order_of_their_files(tmp_path: Path, module: str) -> None:
    (tmp_path / "tables").mkdir()
    for name in ("llama.toml", "llama-4.toml", "a.txt"):
        (tmp_path / "tables" / name).write_text("")
    assert tables_in(module, "tables") == ["llama-4", "llama"]


@pytest.mark.parametrize("name", ["../families/llama", "nothing"])
def test_a_users_table_includes_shipped_mixins_only(tmp_path: Path, name: str) -> None:
    """A table elsewhere would be compiled, and a compiled one run."""
    path = tmp_path / "mine.toml"
    path.write_text(f'name = "mine"\ninclude = ["{name}"]\n')
    with pytest.raises(UsageError, match="unknown mixin"):
        read_family(path)
