"""Plug-ins are found by their entry points; a broken one is an error that names it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.plugins import environment, installed, write_package

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.plugins import FORMATS, plugins

GROUP = "weighbridge.test"


def test_a_plugin_is_loaded_by_its_entry_point(tmp_path: Path) -> None:
    write_package(tmp_path, "toy", {"toy_a.py": "THING = 3\n"}, {GROUP: {"b": "toy_a:THING", "a": "toy_a"}})
    with installed(tmp_path):
        found = plugins(GROUP)
        assert list(found) == ["a", "b"]
        assert found["b"] == 3
    assert not plugins(GROUP)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise OSError('no disk')", "OSError: no disk"),
        ("import missing_module_x", "ModuleNotFoundError: No module named 'missing_module_x'"),
        ("OTHER = 1", "AttributeError"),
        ("THING = 'text'", "toy_b:THING is a str, not a int"),
    ],
)
def test_a_broken_plugin_is_named(tmp_path: Path, text: str, why: str) -> None:
    write_package(tmp_path, "toy", {"toy_b.py": text}, {GROUP: {"thing": "toy_b:THING"}})
    with installed(tmp_path), pytest.raises(UnsupportedError) as error:
        plugins(GROUP, int)
    assert "plug-in 'thing' of weighbridge.test (toy 1.0) can't be used: " in str(error.value)
    assert why in str(error.value)
    assert "uninstall the package toy" in str(error.value)


def test_two_packages_with_one_name_are_an_error(tmp_path: Path) -> None:
    write_package(tmp_path, "one", {"toy_c.py": "A = 1"}, {GROUP: {"thing": "toy_c:A"}})
    write_package(tmp_path, "two", {"toy_d.py": "A = 1"}, {GROUP: {"thing": "toy_d:A"}})
    with installed(tmp_path), pytest.raises(UnsupportedError, match="two packages register this name"):
        plugins(GROUP)


def test_a_plugin_in_an_archive_is_found(tmp_path: Path) -> None:
    write_package(tmp_path / "toy", "toy", {"toy_f.py": "THING = 3\n"}, {GROUP: {"f": "toy_f:THING"}})
    with installed(Path(shutil.make_archive(str(tmp_path / "toy"), "zip", tmp_path / "toy"))):
        assert dict(plugins(GROUP)) == {"f": 3}


def test_a_subprocess_sees_the_plugin(tmp_path: Path) -> None:
    write_package(tmp_path, "toy", {"toy_e.py": "THING = 3\n"}, {FORMATS: {"e": "toy_e:THING"}})
    code = f"from weighbridge.base.plugins import plugins; print(dict(plugins({FORMATS!r})))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "{'e': 3}"
