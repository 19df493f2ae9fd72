"""Faults seeded in our own tables: a rule that is never told, a wrong verdict of llama.cpp's, a constant that is off.
Each must turn a case red."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import pytest
from tests.containers import _ggml, test_gguf_check, test_gguf_read, test_gguf_rules, test_gguf_split
from tests.containers._gguf_cases import PARSED, Case
from tests.containers._gguf_models import FAULTS
from tests.mutation import Check, red

from weighbridge.base import limits
from weighbridge.base.dtypes import BY_NAME, by_ggml
from weighbridge.containers.base import Stage
from weighbridge.containers.gguf import checks as gguf_checks
from weighbridge.containers.gguf import read as gguf_read
from weighbridge.containers.gguf import rules as gguf_rules
from weighbridge.containers.gguf import split as gguf_split
from weighbridge.containers.gguf import values as gguf_meta
from weighbridge.containers.gguf import write as gguf_write
from weighbridge.containers.gguf.rules import RULES, Collector

pytestmark = pytest.mark.mutation


def checks() -> Iterator[tuple[frozenset[str], Check]]:
    """Every case of the tables, with the rules that it names."""
    for case in PARSED:
        yield case.rules | {case.error or ""}, lambda case=case: test_gguf_rules.verdict_holds(case)  # type: ignore[misc]
    for fault in FAULTS:
        yield fault.rules, lambda fault=fault: test_gguf_check.fault_is_named(fault)  # type: ignore[misc]
    yield frozenset({"padding"}), test_gguf_check.padding_is_named
    for _, change, expected in test_gguf_split.SETS:
        names = frozenset(f"split-{name}" for name in expected)
        yield names, lambda c=change, e=expected: test_gguf_split.set_is_judged(c, e)  # type: ignore[misc]
    for _, item, tail, rule in test_gguf_read.HUGE:
        yield frozenset({rule}), lambda i=item, t=tail, r=rule: test_gguf_read.test_more_than_llama_cpp_takes(i, t, r)  # type: ignore[misc]


CHECKS = list(checks())


@pytest.mark.parametrize("rule", [r.removeprefix("gguf/") for r in RULES])
def test_a_rule_that_is_never_told(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = [check for names, check in CHECKS if rule in names]
    assert mine, "no case names this rule"
    assert not any(red(check) for check in mine)
    for method in ("note", "fault", "stop"):
        told: Callable[..., None] = getattr(Collector, method)

        def silent(self: Collector, name: str, *a: Any, told: Callable[..., None] = told, **k: Any) -> None:
            if name != f"gguf/{rule}":
                told(self, name, *a, **k)

        monkeypatch.setattr(Collector, method, silent)
    assert any(red(check) for check in mine)


# Verdicts that no case isolates: the file breaks another rule at the same stage too.
MASKED = {
    "counts",
    "offset-alignment",
    "array-depth",
    "split-count",
    "split-number",
    "string-huge",
    "array-huge",
    "no-quantization-version",
}
ASKED = [
    name
    for name, row in ((r.removeprefix("gguf/"), row) for r, row in RULES.items())
    if row.refused is not Stage.MODEL and name not in MASKED
]


@pytest.mark.oracle
@pytest.mark.skipif(_ggml.library() is None, reason="xllamacpp isn't installed")
@pytest.mark.parametrize("rule", [r for r in ASKED if any(r in c.rules | {c.error} for c in PARSED)])
def test_a_wrong_verdict_of_llama_cpp(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The column `refused`, turned to its contrary."""
    row = RULES[f"gguf/{rule}"]
    other = Stage.HEADER if row.refused is Stage.NEVER else Stage.NEVER
    changed = MappingProxyType({**RULES, f"gguf/{rule}": row._replace(refused=other)})
    monkeypatch.setattr(gguf_rules, "RULES", changed)
    cases: list[Case] = [c for c in PARSED if rule in c.rules | {c.error} and c.data]
    assert any(red(lambda c=c: test_gguf_rules.llama_cpp_agrees(c)) for c in cases)  # type: ignore[misc]


def _tables() -> None:
    for _, check in CHECKS:
        check()


def _reading() -> None:
    for version in (1, 2, 3):
        test_gguf_read.test_versions_and_byte_orders(version, "<")
        test_gguf_read.test_versions_and_byte_orders(version, ">")
    test_gguf_read.test_nested_arrays()
    test_gguf_split.test_by_default_128_tensors_a_shard()
    test_gguf_split.test_merged_set_is_the_model()
    test_gguf_split.test_names()
    if _ggml.library() is not None:
        test_gguf_split.test_headers_are_the_reference_s({"max_tensors": 5})


def _changed(table: MappingProxyType[str, Any], key: str, value: Any) -> MappingProxyType[str, Any]:
    return MappingProxyType({**table, key: value})


BYTES = ("u8", "bool")  # read as a byte anyway
# (module, name, what it is set to)
CONSTANTS: list[tuple[Any, str, Any]] = [
    (limits, "GGUF_NAME", 62),
    (limits, "GGUF_DIMS", 3),
    (limits, "GGUF_NESTING", 2),
    (limits, "GGUF_NESTING", 5),
    (limits, "GGUF_ARRAY", (1 << 30) + 1),
    (limits, "GGUF_STRING", (1 << 30) + 1),
    (limits, "DIMS", 66),
    (gguf_read, "MAGIC", b"FUGG"),
    (gguf_read, "VERSION", 4),
    (gguf_read, "KEY_MAX", 65_534),
    (gguf_read, "KEY_MAX", 65_536),
    (gguf_read, "I64_MAX", (1 << 64) - 1),
    (gguf_read, "ALIGNMENT_KEY", "general.align"),
    (gguf_read, "by_ggml", lambda number: BY_NAME["F32"] if number == 43 else by_ggml(number)),
    (gguf_read, "padded", lambda size, alignment: -(-size // 32) * 32),
    (gguf_checks, "_SIZE_MAX", (1 << 66) - 1),
    (gguf_checks, "_LAYERS_MAX", 513),
    (gguf_checks, "_PER_LAYER", gguf_checks._PER_LAYER[1:]),
    (gguf_checks, "_LIST", "tokenizer.ggml.token"),
    *((gguf_checks, "_PARALLEL", {key: value}) for key, value in gguf_checks._PARALLEL.items()),
    *((gguf_read, "SCALARS", _changed(gguf_meta.SCALARS, k, "B")) for k in gguf_meta.SCALARS if k not in BYTES),
    (gguf_read, "NAMES", ("i8", "u8", *gguf_meta.NAMES[2:])),
    (gguf_split, "MAX_TENSORS", 127),
    (gguf_split, "TOTAL", "split.tensor.count"),
    (gguf_write, "VERSION", 2),
]  # fmt: skip


def _label(value: Any) -> str:
    """The same in every process: no addresses."""
    return getattr(value, "__name__", str(value)[:40]).rpartition(".")[2]


def test_unchanged_all_is_green() -> None:
    _tables()
    _reading()


@pytest.mark.parametrize(("module", "name", "value"), CONSTANTS, ids=_label)
def test_a_constant_that_is_off(module: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert getattr(module, name) != value
    monkeypatch.setattr(module, name, value)
    assert red(_reading) or red(_tables)
