"""Every rule on malformed and odd files, by a table of cases; llama.cpp is asked for its verdict on each of them."""

from __future__ import annotations

import pytest
from tests.containers import _ggml
from tests.containers._gguf import File, Tensor
from tests.containers._gguf_cases import PARSED, Case

from weighbridge.containers.base import Stage
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf import rules as gguf_rules
from weighbridge.io.source import BytesSource

needs_llama_cpp = pytest.mark.skipif(_ggml.library() is None, reason="xllamacpp isn't installed")


def lenient(data: bytes) -> frozenset[str]:
    index = gguf.parse(BytesSource(data), level="lenient")
    return frozenset(f.rule.removeprefix("gguf/") for f in index.findings)


def strict(data: bytes) -> tuple[str | None, frozenset[str]]:
    try:
        index = gguf.parse(BytesSource(data))
    except gguf.GGUFError as error:
        return error.rule.removeprefix("gguf/"), frozenset()
    return None, frozenset(f.rule.removeprefix("gguf/") for f in index.findings)


def verdict_holds(case: Case) -> None:
    error, rules = strict(case.data)
    assert error == case.error
    if error is None:
        assert rules == case.rules
    if error in ("magic", "version") or len(case.data) < 8:
        with pytest.raises(gguf.GGUFError):
            lenient(case.data)
    else:
        assert lenient(case.data) == case.rules | ({case.error} if case.error else set())


@pytest.mark.parametrize("case", PARSED, ids=lambda c: c.name)
def test_verdict(case: Case) -> None:
    verdict_holds(case)


def llama_cpp_agrees(case: Case) -> None:
    """The column `refused` of the rules, on a little-endian machine: with and without loading the data."""
    try:
        stage = gguf.refused_at(gguf.parse(BytesSource(case.data), level="lenient").findings)
    except gguf.GGUFError as error:
        stage = gguf_rules.RULES[error.rule].refused
    assert _ggml.accepts(case.data) == (stage is not Stage.HEADER)
    if not case.big:
        assert _ggml.accepts(case.data, with_data=True) == (stage not in (Stage.HEADER, Stage.DATA))


@needs_llama_cpp
@pytest.mark.oracle
@pytest.mark.parametrize("case", [c for c in PARSED if c.data], ids=lambda c: c.name)
def test_llama_cpp_agrees_on_what_it_refuses(case: Case) -> None:
    llama_cpp_agrees(case)


def test_where_tensors_lie_is_told() -> None:
    """Which tensor, what with, where in the file the wrong offset stands."""
    tensors = [Tensor("a", [16]), Tensor("b", [8], offset=32), Tensor("c", [8], offset=128)]
    shared = File(tensors=tensors, data=bytes(160))
    overlap, gap = gguf.parse(BytesSource(shared.bytes())).findings
    assert (overlap.tensor, overlap.message) == ("b", "tensors share bytes: with 'a'")
    assert (gap.tensor, gap.message) == ("c", "unused space before a tensor: offset 128, expected 64")
    for finding, offset in ((overlap, 32), (gap, 128)):
        assert finding.offset is not None
        assert shared.bytes()[finding.offset :][:8] == offset.to_bytes(8, "little")
