"""Time that grows with the bytes, not faster: four times the input takes no more than six times as long."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from tests.reports.scan import vectors as v

from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.engine import scan_source


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
