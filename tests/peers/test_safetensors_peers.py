"""The reference's own tests pass against our drop-in, and see it when that is wrong."""

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
    "writes nothing": "ours.numpy.serialize = lambda *args, **options: b''",
    "no metadata": "ours.safe_open.metadata = lambda self: None",
    "no bounds": "ours.reading._check_bounds = lambda key, shape: None",
    "another order": "from weighbridge.containers.safetensors import layout as w; "
    "w._ORDERS = {'reference': lambda tensor: 0}",
}


@pytest.mark.mutation
@pytest.mark.parametrize("fault", FAULTS)
def test_a_spoilt_drop_in_is_noticed(source: Path, fault: str) -> None:
    assert any(o.verdict == "failed" for o in peers.run(source, FAULTS[fault], "test_simple.py"))
