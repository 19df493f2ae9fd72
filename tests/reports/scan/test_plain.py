"""The first walk over a pickle, in the extension: what it lets pass is data to the abstract machine as well, and to
every rule; it passes what it is made for; and no bytes make it read or write outside what it was given.
"""

from __future__ import annotations

import collections
import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reports.scan import vectors as v

from weighbridge.base import native
from weighbridge.base.native import plain_pickle_end
from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.model import Budget, MemberPath
from weighbridge.reports.scan.pickle import scanner as pickles
from weighbridge.unpickle.machine import Machine

pytestmark = pytest.mark.skipif(native.native is None, reason="no extension")

_KEYS = st.one_of(st.text("abc", max_size=4), st.integers(-5, 300))
_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.floats(), st.text("abxyz ", max_size=300),
        st.sampled_from(["collections", "OrderedDict", "é"]), st.binary(max_size=300),
    ),
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner, inner), st.dictionaries(_KEYS, inner), st.frozensets(_KEYS), st.sets(_KEYS),
        st.dictionaries(_KEYS, inner).map(collections.OrderedDict), st.lists(inner).map(tuple),
    ),
    max_leaves=20,
)  # fmt: skip


def agrees(data: bytes) -> bool:
    """Whether the walk lets it pass; then the machine must say the same of it."""
    end = plain_pickle_end(data)
    if not end:
        return False
    machine = Machine(BytesSource(data))
    machine.run()
    assert (machine.end, machine.leftover) == (end, 0)
    assert {(e.kind, str(e.what if e.kind == "import" else e.what.callee)) for e in machine.events} <= {
        ("import", "collections.OrderedDict"),
        ("call", "collections.OrderedDict"),
    }
    reading = pickles._Reading(BytesSource(data[:end]), MemberPath("x"), Budget(), False)
    done = reading._pickle(0)
    assert done is not None
    assert not done.is_magic
    assert [*reading.policy.findings(), *reading.pieces] == []
    return True


@settings(max_examples=120)
@given(_VALUES, st.integers(2, 5), st.binary(max_size=3))
def test_honest_data(value: Any, protocol: int, behind: bytes) -> None:
    agrees(pickle.dumps(value, protocol) + behind)


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize(
    "value",
    [
        {"step": 1, "loss": [0.5, 0.25], "name": "run", "done": True, "none": None, "big": 1 << 40},
        collections.OrderedDict((f"layer{i}", [float(i)] * 3) for i in range(300)),
        [(), (1,), (1, 2, 3, 4), [], {}, "x" * 300, 70_000, -1],
    ],
)
def test_what_it_is_made_for_passes(value: Any, protocol: int) -> None:
    assert agrees(pickle.dumps(value, protocol))


@pytest.mark.parametrize("case", v.PICKLES, ids=lambda c: c.id)
def test_no_hostile_vector_passes_as_a_whole(case: v.Case) -> None:
    """What follows a pickle of data is looked at by others."""
    data = case.data if len(case.data) < 100_000 else case.data[:1000]
    end = plain_pickle_end(data)
    assert end == 0 or pickles._may_explode(data) or data[:end] == v.GOOD or case.rules <= {"pickle/carried"}


def test_any_bytes_agree_with_the_machine() -> None:
    rng = random.Random(5)
    opcodes = b"NKMJG\x88\x89\x8aX\x8cCB]})\x8f(tld\x91\x85\x86\x87aesu\x90012qrhj\x94c\x93R\x95...."
    values: list[Any] = [{"a": [1, (2, 3)]}, collections.OrderedDict(a={1}), [{}, ()]]
    seeds = [pickle.dumps(value, protocol) for protocol in (2, 4) for value in values]
    passed = 0
    for _ in range(40_000):
        if rng.random() < 0.5:
            data = bytearray(b"\x80\x04" + bytes(rng.choice(opcodes) for _ in range(rng.randrange(24))) + b".")
        else:
            data = bytearray(rng.choice(seeds))
            for _ in range(rng.randrange(4)):
                data[rng.randrange(len(data))] = rng.choice((rng.choice(opcodes), rng.randrange(256)))
        passed += agrees(bytes(data))
    assert passed > 2000


def test_places_it_must_not_pass() -> None:
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
    for data in (b"", b"\x80", b"\x80\x02", b"N.", v.GOOD[:-1], v.p(b"NN"), v.p(b"(N"), v.p(b"\x80\x02N"), magic):
        assert plain_pickle_end(data) == 0
