"""docs/reference-classes.toml has the classes that the reference converter registers, and what the page made of it says
of them is so."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest
from tests.models.family_judges import golden
from tests.models.projector_cases import READ_BY
from tests.models.projector_cases import golden as projector_golden
from tests.oracles import tree

from weighbridge.models.arch.registry import families, families_of_class, projectors
from weighbridge.models.decision import decision_rows

DOCS = Path(__file__).parents[2] / "docs"
#: Decision models without a table of their own.
_DECIDING = {name for name, row in decision_rows().items() if not row.in_table}
LISTED = tomllib.loads((DOCS / "reference-classes.toml").read_text("utf-8"))


@pytest.mark.oracle
@pytest.mark.parametrize(("part", "name"), [("text", "TEXT_MODEL_MAP"), ("other", "MMPROJ_MODEL_MAP")])
def test_the_list_is_the_reference_s(part: str, name: str) -> None:
    source = ast.parse((tree.require() / "conversion" / "__init__.py").read_text("utf-8"))
    maps = (n.value for n in source.body if isinstance(n, ast.AnnAssign) and getattr(n.target, "id", "") == name)
    (found,) = (node for node in maps if isinstance(node, ast.Dict))
    assert sorted(LISTED[part]) == sorted(ast.literal_eval(key) for key in found.keys if key is not None)


def test_the_list_is_of_the_oracle_s_version() -> None:
    assert LISTED["package"] == f"xllamacpp {tree.VERSION}"
    assert LISTED["version"] == f"b{tree.VERSION.rpartition('.')[2]}"


def test_no_class_is_listed_twice() -> None:
    assert len({*LISTED["text"]}) == len(LISTED["text"])


def test_the_page_has_every_class_with_its_state() -> None:
    page = (DOCS / "reference-classes.md").read_text("utf-8")
    tables = [a for table in projectors().values() for a in table.architectures.values()]
    towers = {name for a in tables for name in (a.name, *a.aliases)} | LISTED["towers"].keys() | LISTED["same"].keys()
    for name in LISTED["text"]:
        family = next(families_of_class(name), None)
        state = "absent" if family is None and name not in _DECIDING else "converts"
        classes = () if family is None else family.architectures.values()
        if any(name == a.name and a.part and not a.outside for a in classes):
            state = "two files" if name in towers else "partly"
        state = "two files" if name in LISTED["apart"] else state
        assert f"| `{name}` | {state} |" in page, name


def test_every_absent_class_has_its_reason() -> None:
    without = {name for name in LISTED["text"] if next(families_of_class(name), None) is None}
    assert without >= _DECIDING
    assert without == _DECIDING | LISTED["absent"].keys() | LISTED["apart"].keys()
    assert all(LISTED["absent"].values())


def test_every_class_of_several_parts_has_a_recorded_model() -> None:
    """What the page calls `partly` or `two files` was compared with the reference for a model of the very class."""
    recorded = {model["config"]["architectures"][0] for model in golden().values()}
    partly = {a.name for f in families().values() for a in f.architectures.values() if a.part}
    assert partly - recorded == set()


def test_every_class_with_towers_has_a_table_or_a_reason() -> None:
    classes = [a for table in projectors().values() for a in table.architectures.values()]
    known = {name for a in classes for name in (a.name, *a.aliases)}
    assert {name for whole in LISTED["towers"].values() for name in whole} <= known - {*LISTED["other"]}
    recorded = {class_: projector_golden()[case]["config"]["architectures"][0] for case, (class_, _) in READ_BY.items()}
    assert LISTED["same"].items() <= recorded.items()  # by the reference's class
    known |= LISTED["towers"].keys() | LISTED["same"].keys()
    assert LISTED["left"].keys() == set(LISTED["other"]) - known
    page = (DOCS / "reference-classes.md").read_text("utf-8")
    for name in LISTED["other"]:
        assert f"| `{name}` | {'converts' if name in known else 'absent'} |" in page, name
