"""The first walk over a pickle, in the extension: what it lets pass is data to the abstract machine as well, and to
every rule; it passes what it is made for; and no bytes make it read or write outside what it was given.
"""

from __future__ import annotations

import collections
import io
import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.reports.scan import vectors as v

from weighbridge.base import native
from weighbridge.base.native import plain_pickle_end
from weighbridge.io.source import BytesSource, FileSource
from weighbridge.reports.scan.engine import scan_file, scan_source
from weighbridge.reports.scan.model import MemberPath, Part
from weighbridge.reports.scan.pickle import scanner as pickles
from weighbridge.reports.scan.pickle import storages, whole_file
from weighbridge.reports.scan.pickle.plain import PLAIN_NAMES
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
    end, named = plain_pickle_end(data, PLAIN_NAMES)
    if not end:
        return False
    machine = Machine(BytesSource(data))
    machine.run()
    assert (machine.end, machine.leftover) == (end, 0)
    assert {e.kind for e in machine.events} <= {"import", "call", "build", "persistent"}
    assert named == list(storages.named(machine.events))
    reading = pickles._Reading(Part(BytesSource(data[:end]), MemberPath("x")), False)
    done = reading._read_pickle(0)
    assert done is not None
    assert not done.is_magic
    assert [*reading.policy.findings(), *reading.pieces, *reading.policy.indexed, *reading.policy.loaded] == []
    return True


@examples(120)
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
    end, _ = plain_pickle_end(data, PLAIN_NAMES)
    assert end == 0 or data[:end] == v.GOOD or case.rules <= {"pickle/carried"}


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


def torch_pickle(value: Any, protocol: int = 2) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, pickle_protocol=protocol)
    with zipfile.ZipFile(out) as archive:
        return archive.read("archive/data.pkl")


def checkpoints() -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    base = torch.randn(4, 6)
    return {
        "state dict": model.state_dict(),
        "parameters": dict(model.named_parameters()),
        "views": {"a": base, "b": base[1:3], "c": base.t(), "d": base[:1].expand(9, 6)},
        "types": {str(d): torch.zeros(2, dtype=d) for d in (torch.float16, torch.bfloat16, torch.int8, torch.bool)},
        "names of types": {"dtype": torch.float16, "epoch": 3, "loss": [0.5]},
    }


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("name", checkpoints())
def test_checkpoints_of_tensors_pass(name: str, protocol: int) -> None:
    assert agrees(torch_pickle(checkpoints()[name], protocol))


def test_changed_checkpoints_agree_with_the_machine() -> None:
    rng = random.Random(6)
    seeds = [torch_pickle(value, protocol) for value in checkpoints().values() for protocol in (2, 4)]
    passed = 0
    for _ in range(4_000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(1, 3)):
            at = rng.randrange(2, len(data))
            data[at] = rng.choice((rng.randrange(256), rng.choice(data)))
            if rng.random() < 0.2:
                other = rng.randrange(2, len(data))
                data[at : at + 8] = data[other : other + rng.randrange(8)]
        passed += agrees(bytes(data))
    assert passed > 200


def test_keys_that_share_their_parts() -> None:
    """The hash of the last one takes two million steps."""
    for depth, passes in ((10, True), (22, False)):
        data = v.p(b"}" + b")" + b"2\x86" * depth + b"Ns")
        assert bool(plain_pickle_end(data, PLAIN_NAMES)[0]) is passes
        assert agrees(data) is passes


@pytest.mark.mutation
@pytest.mark.parametrize("letter", "sctbh")
def test_every_argument_is_checked(letter: str) -> None:
    """With the table saying another word, what passed doesn't."""
    data = torch_pickle({"a": torch.ones(2)})
    row = next(n for n in PLAIN_NAMES.split(b"C\0")[1:] if n[1:7].decode("latin-1") == "scttbh")
    changed = row[:1] + row[1:7].replace(letter.encode(), b"T") + row[7:]
    assert plain_pickle_end(data, PLAIN_NAMES)[0]
    assert not plain_pickle_end(data, PLAIN_NAMES.replace(row, changed))[0]


def test_any_table_is_read_within_its_bounds() -> None:
    data, rng = torch_pickle({"a": torch.ones(2)}), random.Random(7)
    for _ in range(2_000):
        table = bytearray(PLAIN_NAMES[: rng.randrange(len(PLAIN_NAMES))])
        for _ in range(rng.randrange(3)):
            if table:
                table[rng.randrange(len(table))] = rng.randrange(256)
        plain_pickle_end(data, bytes(table))


@pytest.mark.parametrize("name", ["x.pkl", "x.json", "a\u202eb.pkl"])
def test_a_file_at_one_look_is_what_all_scanners_see(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    honest = [pickle.dumps(value, p) for p in (2, 4) for value in ({"a": [1]}, list(range(300)), ["x" * 600])]
    looks = 0
    for data in (*honest, *(c.data for c in v.PICKLES if len(c.data) < 100_000)):
        path.write_bytes(data)
        with FileSource(os.fspath(path)) as source:
            whole = scan_source(source, os.fspath(path))
        assert scan_file(os.fspath(path)) == whole
        looks += whole_file.is_plain(whole_file.read_pickle(os.fspath(path)))
    assert looks >= len(honest)


def test_places_it_must_not_pass() -> None:
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
    for data in (b"", b"\x80", b"\x80\x02", b"N.", v.GOOD[:-1], v.p(b"NN"), v.p(b"(N"), v.p(b"\x80\x02N"), magic):
        assert plain_pickle_end(data, PLAIN_NAMES) == (0, [])
