"""The rule of a reader's error depends on its code, never on its words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.reports.scan.vectors import PICKLES, ZIPS

import weighbridge
from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.containers.archive import zip as zips
from weighbridge.containers.archive.zip_records import ZipFault
from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.archive import zip_scanner
from weighbridge.reports.scan.engine import scan_source
from weighbridge.reports.scan.model import RULES
from weighbridge.reports.scan.pickle import scanner
from weighbridge.unpickle.libraries.joblib import JoblibMachine
from weighbridge.unpickle.values import PickleFault

PACKAGE = Path(weighbridge.__file__).parent
#: Attributes that hold the words of an error.
WORDS = {"message", "reason", "args", "hint"}


def zip_code(data: bytes) -> str | None:
    try:
        zips.read(BytesSource(data))
    except (FormatError, UnsupportedError) as error:
        return error.code
    return None


def pickle_codes(data: bytes) -> Iterator[str]:
    machine = JoblibMachine(BytesSource(data), strict=False)
    try:
        machine.run()
    except WeighbridgeError as error:
        yield error.code
    yield from (event.what.code for event in machine.events if event.kind == "disputed")


@pytest.mark.parametrize(("codes", "module"), [(ZipFault, zip_scanner), (PickleFault, scanner)])
def test_every_code_has_a_rule(codes: type[StrEnum], module: ModuleType) -> None:
    assert set(module.RULES_OF) == {*codes, ""}
    assert set(module.RULES_OF.values()) <= set(RULES)


@pytest.mark.parametrize("code", ZipFault)
def test_every_code_of_a_zip_is_raised_by_a_file_of_that_rule(code: ZipFault) -> None:
    found = [case for case in ZIPS if zip_code(case.data) == code]
    assert found
    assert all(zip_scanner.RULES_OF[code] in case.rules for case in found)


@pytest.mark.parametrize("code", PickleFault)
def test_every_code_of_a_pickle_is_raised_by_a_file_of_that_rule(code: PickleFault) -> None:
    found = [case for case in PICKLES if code in pickle_codes(case.data)]
    assert found
    assert all(scanner.RULES_OF[code] in case.rules for case in found)


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["zip", "pickle"])
def test_other_words_give_the_same_rules(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = ZIPS if kind == "zip" else PICKLES
    usual = [[f.rule for f in scan_source(BytesSource(case.data), "x").findings] for case in cases]
    made = WeighbridgeError.__init__

    def reworded(self: WeighbridgeError, message: str, **more: Any) -> None:
        made(self, "frame ends has no end integer name overlap zip64", **more)

    monkeypatch.setattr(WeighbridgeError, "__init__", reworded)
    changed = [[f.rule for f in scan_source(BytesSource(case.data), "x").findings] for case in cases]
    assert [sorted(rules) for rules in changed] == [sorted(rules) for rules in usual]


def text_of_an_error(node: ast.AST, errors: set[str]) -> bool:
    """Whether an expression is the words of an error: `str(error)`, `error.reason`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "str" and text_of_an_error(node.args[0], errors)
    if isinstance(node, ast.Attribute) and node.attr in WORDS:
        return isinstance(node.value, ast.Name) and node.value.id in errors
    return isinstance(node, ast.Name) and node.id in errors


def chosen_by_text(tree: ast.AST) -> Iterator[int]:
    """The lines that search the words of an error, by `in`, `==` or a method of text."""
    errors = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    errors |= {
        argument.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for argument in node.args.args
        if argument.annotation is not None and "Error" in ast.unparse(argument.annotation)
    }
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and text_of_an_error(node.value, errors)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        sides: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Attribute) and node.attr in ("startswith", "endswith", "find", "partition", "split"):
            sides = [node.value]
        if isinstance(node, ast.expr) and any(text_of_an_error(side, errors | names) for side in sides):
            yield node.lineno


def test_no_rule_is_chosen_by_the_words_of_an_error() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted((PACKAGE / "reports/scan").rglob("*.py"))
        for line in chosen_by_text(ast.parse(path.read_text("utf-8")))
    ]
    assert found == []
    seeded = "try:\n    run()\nexcept ValueError as error:\n    rule = 'a' if 'digits' in str(error) else 'b'\n"
    assert list(chosen_by_text(ast.parse(seeded))) == [4]
