"""Every rule and every guard of sharded sets is one that some case needs: taken out, a test turns red."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from tests.containers import test_sharded
from tests.mutation import Check, assert_needed, cases, guards, red

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.containers import sharded

pytestmark = pytest.mark.mutation


def too_long() -> None:
    with pytest.MonkeyPatch.context() as patch:
        source = test_sharded.index_file(test_sharded.GOOD)
        patch.setattr(sharded, "INDEX_JSON", source.size)
        sharded.parse_index(source)
        patch.setattr(sharded, "INDEX_JSON", source.size - 1)
        with pytest.raises(FormatError, match="too long"):
            sharded.parse_index(source)


def too_many_shards() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded, "SHARDS", 2)
        sharded.parse_index(test_sharded.index_file({"a": "x", "b": "y", "c": "x"}))
        with pytest.raises(FormatError, match="too many"):
            sharded.parse_index(test_sharded.index_file({"a": "x", "b": "y", "c": "z"}))


def both_lack_it() -> None:
    """Two shards have a tensor that the index doesn't list: which one counts isn't known."""
    one, two = test_sharded.shard(test_sharded.A, "a", "x"), test_sharded.shard(test_sharded.B, "b", "x")
    index = sharded.parse_index(test_sharded.index_file(test_sharded.GOOD, total_size=32))
    found = sharded.check(index, {test_sharded.A: one, test_sharded.B: two})
    assert {(f.rule, f.severity.value) for f in found} == {
        ("sharded/unlisted-tensor", "warning"),
        ("sharded/ambiguous-tensor", "error"),
    }
    with pytest.raises(FormatError, match="the index lists none"):
        sharded.merge([one, two], index)


def number_beyond_the_count() -> None:
    names = ["m-00001-of-00001.safetensors", "m-00002-of-00001.safetensors"]
    found = {name: test_sharded.shard(name, tensor) for name, tensor in zip(names, "ab", strict=True)}
    assert test_sharded.rules(dict(zip("ab", names, strict=True)), found) == {"numbering"}


def no_files() -> None:
    with pytest.raises(UsageError, match="no files"):
        sharded.merge([])


SINGLE = (too_long, too_many_shards, both_lack_it, number_beyond_the_count, no_files)


@pytest.mark.parametrize("check", SINGLE)
def test_case(check: Check) -> None:
    check()


def checks() -> Iterator[Check]:
    for test in (
        test_sharded.test_what_is_no_index_is_a_format_error,
        test_sharded.test_a_shard_name_that_could_leave_the_folder_is_refused,
        test_sharded.test_disagreements,
        test_sharded.test_merge_never_lacks_a_tensor_silently,
    ):
        yield from cases(test)
    yield from SINGLE
    yield from (
        test_sharded.test_a_tensor_listed_twice_is_told,
        test_sharded.test_merge_takes_the_tensor_that_the_index_names,
        test_sharded.test_bounds_that_make_no_sense,
        test_sharded.test_severities,
    )


CHECKS = list(checks())


def places() -> dict[str, range]:
    """Each call that adds a finding: its rule and lines, so that a rule told in two places is held in both."""
    calls = (n for n in ast.walk(ast.parse(inspect.getsource(sharded))) if isinstance(n, ast.Call))
    adds = [n for n in calls if ast.unparse(n.func) == "finder.add"]
    return {f"{ast.literal_eval(n.args[0])} {i}": range(n.lineno, (n.end_lineno or 0) + 1) for i, n in enumerate(adds)}


PLACES = places()


def test_without_faults_all_is_green() -> None:
    assert [c for c in CHECKS if red(c)] == []


@pytest.mark.parametrize(("module", "guard"), guards(sharded))
def test_a_guard_that_is_not_there(module: ModuleType, guard: str) -> None:
    assert_needed(module, guard, CHECKS)


@pytest.mark.parametrize("place", PLACES)
def test_a_rule_that_is_never_told(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, lines = place.split()[0], PLACES[place]
    told: Callable[..., None] = sharded._Finder.add

    def silent(self: Any, name: str, *rest: Any, **more: Any) -> None:
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        if name != rule or frame.f_back.f_lineno not in lines:
            told(self, name, *rest, **more)

    monkeypatch.setattr(sharded._Finder, "add", silent)
    assert any(map(red, CHECKS)), "no case needs it"
