"""What `check` says about keys, vocabulary and padding of a complete tiny model; llama.cpp loads each faulty one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.containers import _ggml
from tests.containers._gguf import ARR, BOOL, STR, File, Item, Tensor
from tests.containers._gguf_models import FAULTS, Fault, model

from weighbridge.containers.base import Stage
from weighbridge.containers.gguf import container as gguf
from weighbridge.io.source import BytesSource

needs_llama_cpp = pytest.mark.skipif(_ggml.library() is None, reason="xllamacpp isn't installed")


def rules(data: bytes, *, deep: bool = True) -> frozenset[str]:
    index = gguf.parse(BytesSource(data))
    return frozenset(f.rule.removeprefix("gguf/") for f in gguf.check(index, deep=deep))


def fault_is_named(fault: Fault) -> None:
    assert rules(model(fault.change)) == fault.rules


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_fault(fault: Fault) -> None:
    fault_is_named(fault)


@needs_llama_cpp
@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("fault", [f for f in FAULTS if f.process], ids=lambda f: f.name)
def test_llama_cpp_loads_what_has_no_such_fault(fault: Fault, tmp_path: Path) -> None:
    from tests.oracles.llamacpp import numbers_in_subprocess

    data = model(fault.change)
    findings = gguf.check(gguf.parse(BytesSource(data)), deep=True)
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    outcome = numbers_in_subprocess(path, [1, 5])
    assert isinstance(outcome, str) == (gguf.refused_at(findings) is Stage.MODEL), outcome


def padding_is_named() -> None:
    two = [Tensor("t", [9]), Tensor("u", [2])]
    odd = {"no-architecture"}
    assert rules(File(tensors=two).bytes()) == odd
    assert rules(File(tensors=two, fill=b"\1").bytes()) == odd | {"padding"}
    for tensor_end in (9 * 4, 64 + 2 * 4):  # the first byte after each tensor, and the last of its padding
        for place in (tensor_end, -(-tensor_end // 32) * 32 - 1):
            changed = bytearray(File(tensors=two).bytes())
            changed[len(changed) - 96 + place] = 1
            assert rules(bytes(changed)) == odd | {"padding"}, place
    directory_end = bytearray(File(tensors=two).bytes())
    directory_end[-97] = 1
    assert rules(bytes(directory_end)) == odd | {"padding"}
    inside = bytearray(File(tensors=two).bytes())
    inside[-96] = 255
    assert rules(bytes(inside)) == odd


def deep_looks_into_arrays() -> None:
    flags = File(keys=[("k", Item(ARR, [0, 2], BOOL))]).bytes()
    assert rules(flags) == {"no-architecture", "bool"}
    assert rules(flags, deep=False) == {"no-architecture"}
    words = File(keys=[("k", Item(ARR, [Item(ARR, [b"\xff"], STR)], ARR))]).bytes()
    assert rules(words) == {"no-architecture", "array-nested", "utf8"}


def test_padding() -> None:
    padding_is_named()


def test_deep() -> None:
    deep_looks_into_arrays()


def test_findings_of_one_kind_are_bounded() -> None:
    many = File(keys=[(f"K{i}", Item(BOOL, 2)) for i in range(200)]).bytes()
    findings = [f for f in gguf.parse(BytesSource(many)).findings if f.rule == "gguf/bool"]
    assert len(findings) == 51
    assert "150 more" in findings[-1].message
