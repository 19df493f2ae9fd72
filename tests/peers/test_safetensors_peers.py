"""The reference's own tests pass with Weighbridge in the place of its core, and see it when that core is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.peers import run_safetensors_tests as peers

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


@pytest.fixture(scope="module")
def source() -> Path:
    pytest.importorskip("torch")
    try:
        return peers.obtain()
    except (OSError, SystemExit) as error:
        message = f"THE REFERENCE'S TESTS ARE MISSING, so none was run: {error}"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(message)


def test_its_tests_pass(source: Path) -> None:
    outcomes = peers.run(source)
    assert peers.surprises(outcomes) == []
    assert sum(o.verdict == "passed" for o in outcomes) >= 60
    page = peers.PAGE.read_text("utf-8")
    assert [o.test for o in outcomes if o.verdict == "failed" and o.test not in page] == []


FAULTS = {
    "writes nothing": "serialize = lambda *args, **options: b''",
    "no metadata": "safe_open.metadata = lambda self: None",
    "no bounds": "import tests.peers.safetensors_adapter as a; a._check_bounds = lambda key, shape: None",
    "another order": "from weighbridge.containers.safetensors import layout as w; w._ORDERS = {'reference': list}",
}


@pytest.mark.mutation
@pytest.mark.parametrize("fault", FAULTS)
def test_a_spoilt_core_is_noticed(source: Path, fault: str) -> None:
    assert any(o.verdict == "failed" for o in peers.run(source, FAULTS[fault], "test_simple.py"))
