"""Time that grows with the bytes, not faster: four times the input takes no more than six times as long."""

from __future__ import annotations

import gzip
import json
import struct
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
from tests.costs import calls, traced_memory
from tests.reports.scan import vectors as v
from tests.reports.scan.file_vectors import tarred

from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.engine import scan_source
from weighbridge.reports.scan.model import ScanVerdict


def _repeated(n: int) -> bytes:
    return b"{" + b",".join(b'"k%d":1,"k%d":2' % (i, i) for i in range(n)) + b"}"


def _objects(n: int) -> bytes:
    return json.dumps({f"k{i}": {"class_name": "x"} for i in range(n)}).encode()


CASES: dict[str, tuple[str, int, Callable[[int], bytes]]] = {
    "strings behind a break": ("x.pkl", 20_000, lambda n: b"\x80\x02\xff" + b"U" * n),
    "nested loops": ("a.jinja", 500, lambda n: b"{% for i in x %}" * n + b"{% endfor %}" * n),
    "a long sum": ("a.jinja", 3_000, lambda n: b"{{ " + b"~".join([b"'a'"] * n) + b" }}"),
    "sets of one name": ("a.jinja", 1_000, lambda n: b"".join(b"{%% set a = a ~ '%d' %%}" % i for i in range(n))),
    "repeated keys": ("config.json", 4_000, _repeated),
    "findings": ("x.pkl", 1_500, lambda n: v.p(b"".join(v.g("m", f"n{i}") + b"0" for i in range(n)) + b"N")),
    "keys of shared tuples": ("x.pkl", 500, lambda n: v.p(b"}" + b")" + b"\x85" * n + b"q\x000" + b"h\x00Ns" * n)),
    "objects in objects": ("config.json", 2_000, _objects),
}  # fmt: skip


def _seconds(name: str, data: bytes) -> float:
    def once() -> float:
        start = time.process_time()
        scan_source(BytesSource(data), name)
        return time.process_time() - start

    return min(once() for _ in range(3))


@pytest.mark.parametrize(("name", "size", "make"), CASES.values(), ids=CASES)
def test_four_times_the_input_takes_no_more_than_its_share(name: str, size: int, make: Callable[[int], bytes]) -> None:
    small, large = (_seconds(name, make(n)) for n in (size, 4 * size))
    assert large < 6 * small + 0.1


# ---- archives whose members share their bytes


def _shared(count: int, depth: int = 3) -> bytes:
    """A zip of `count` members that are one local header's; their content is such a zip."""
    data = v.GOOD
    for _ in range(depth):
        size, name = len(data), b"%05d"
        body = b"PK\3\4" + struct.pack("<5H3I2H", 20, 0, 0, 0, 0, 0, size, size, 1, 0) + b"a" + data
        entry = b"PK\1\2" + struct.pack("<6H3I5H2I", 20, 20, 0, 0, 0, 0, 0, size, size, 5, 0, 0, 0, 0, 0, 0)
        directory = b"".join(entry + name % i for i in range(count))
        end = struct.pack("<4H2IH", 0, 0, count, count, len(directory), len(body), 0)
        data = body + directory + b"PK\5\6" + end
    return data


def _gap(count: int) -> bytes:
    """A zip with `count` local headers between its member and its directory, whose names are the 64 KiB behind them."""
    data = v.plain_zip(("a", b"1"))
    end = data.rindex(b"PK\5\6")
    start = int.from_bytes(data[end + 16 : end + 20], "little")
    header = b"PK\3\4" + struct.pack("<5H3I2H", 20, 0, 0, 0, 0, 0, 0, 0, 65535, 0)
    gap = header * count + bytes(1 << 16)
    moved = struct.pack("<I", start + len(gap))
    return data[:start] + gap + data[start : end + 16] + moved + data[end + 20 :]


@pytest.mark.costly
@pytest.mark.parametrize("make", [_shared, _gap], ids=["members that share a header", "headers in each other's names"])
def test_what_shares_bytes_costs_no_more_than_its_own(make: Callable[[int], bytes]) -> None:
    """Calls and memory, over inputs that double. Whatever isn't scanned is reported."""
    costs, reports = [], []
    for n in (60, 120, 240):
        source = BytesSource(make(n))
        with traced_memory() as memory:
            count = calls(partial(scan_source, source, "x.zip"))
        costs.append((count, memory.peak))
        reports.append(scan_source(source, "x.zip"))
    for (count, peak), (more_calls, more_peak) in pairwise(costs):
        assert more_calls < 2.5 * count + 20_000
        assert more_peak < 2.5 * peak + (1 << 20)
    assert costs[-1][0] < 1_000_000
    assert [(r.verdict, r.complete) for r in reports[1:]] == [(ScanVerdict.MALFORMED, False)] * 2


@pytest.mark.slow
def test_what_is_honestly_packed_is_unpacked() -> None:
    """Bytes that are unpacked count as the file's own, in each form of compression."""
    numbers = v.p(b"(" + b"K\1" * (9 << 20) + b"l")
    packed = (gzip.compress(numbers, 1, mtime=0), v.plain_zip(("x/data.pkl", numbers), method=8))
    for data in packed:
        report = scan_source(BytesSource(data), "x")
        assert (report.verdict, report.complete) == (ScanVerdict.DATA_ONLY, True)
    small = {f"m{i}.pkl": v.GOOD for i in range(1500)}
    for data in (tarred(small), gzip.compress(tarred(small), mtime=0), v.plain_zip(*small.items())):
        assert scan_source(BytesSource(data), "x").verdict is ScanVerdict.DATA_ONLY
