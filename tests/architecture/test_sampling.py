"""The sample of `make test`: cases of the last change, and all others in turn."""

from __future__ import annotations

import re
import subprocess
from datetime import date, timedelta
from pathlib import Path

import pytest
from tests.architecture import measure
from tests.sampling import COSTLY_SHARE, LastChange, read_last_change, sample, take_turns, with_heirs

CASES = [f"tests/models/test_x.py::test_x[{name}-judge]" for name in ("glm4", "glm4moe", "llama", "qwen3", "gpt-oss")]
DAY = date(2026, 1, 1)


def take(count: int, day: date = DAY, change: LastChange = LastChange()) -> list[str]:  # noqa: B008
    return [*sample(CASES, count, day, str, change)]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_all_cases_come_in_turn_and_a_day_is_the_same_in_every_run(count: int) -> None:
    assert take(count) == take(count)
    assert len({*take(count)}) == min(count, len(CASES))
    days = -(-len(CASES) // count)
    assert {case for n in range(days) for case in take(count, DAY + timedelta(n))} == {*CASES}


def test_a_touched_case_is_always_taken_and_no_namesake() -> None:
    for n in range(5):
        taken = take(1, DAY + timedelta(n), LastChange(frozenset({"glm4moe", "gpt-oss"})))
        assert taken[:2] == [CASES[1], CASES[4]]
        assert len(taken) == 3
    strings = LastChange(strings={"tests/models/test_x.py": frozenset({"qwen3"}), "tests/y.py": frozenset({"llama"})})
    assert strings.touches(CASES[3])
    assert not strings.touches(CASES[2])


def test_costly_tests_come_in_turn_and_those_of_touched_rooms_always() -> None:
    costly = {f"tests/{room}/test_x.py::test_{n}" for room in ("page", "fleets") for n in range(5)}
    change = LastChange(rooms=frozenset({"page"}))
    taken = [take_turns(costly, DAY + timedelta(n), change) for n in range(COSTLY_SHARE)]
    assert set.intersection(*taken) == {name for name in costly if "/page/" in name}
    assert set.union(*taken) == costly


def test_heirs_of_a_changed_table_are_touched() -> None:
    tables = {"a": "", "b": 'like = "a"', "c": 'names_from = "b"', "d": 'include = ["x",\n  "a"]', "e": 'name = "a"'}
    assert with_heirs(["a"], tables) == {"a", "b", "c", "d"}


def test_the_last_change_is_the_last_commit_and_the_working_tree(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=x", "-c", "user.email=x@localhost")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    tables = tmp_path / "src/weighbridge/models/arch/tables/families"
    tables.mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    test = tmp_path / "tests/test_x.py"
    git("init")
    for name in ("first", "second", "third", "heir"):
        (tables / f"{name}.toml").write_text(f'name = "{name}"\n')
        test.write_text("# a table\n")
        git("add", ".")
        git("commit", "-m", name)
    assert read_last_change(tmp_path) == LastChange(frozenset({"heir"}), rooms=frozenset({"models"}))
    (tables / "first.toml").write_text('name = "1st"\n')
    (tables / "new.toml").write_text('like = "first"\n')
    test.write_text("# a table\nROWS = ['a row', \"another\"]\n")
    change = read_last_change(tmp_path)
    assert change.names == {"heir", "first", "new"}
    assert change.strings == {"tests/test_x.py": {"a row", "another"}}
    assert change.rooms == {"models", "test_x.py"}


def test_without_a_repository_nothing_is_touched(tmp_path: Path) -> None:
    assert read_last_change(tmp_path).names == frozenset()


def test_no_module_of_tests_is_a_plugin() -> None:
    """`pytest_plugins` gives a module's fixtures to every test, and a conftest can't be registered twice."""
    declared = re.compile(r"^pytest_plugins\b", re.MULTILINE)
    assert [path for path in measure.tests() if declared.search(path.read_text("utf-8"))] == []
