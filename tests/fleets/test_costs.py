"""The arithmetic of planning, against the worked examples of a petabyte."""

from __future__ import annotations

from typing import Any

import pytest

from weighbridge.fleets.costs import HEADER, Load, Nodes, Prices, estimate

PB = 10**15
HUNDRED = Nodes(100)  # 16 cores, 25 Gbit/s, efficiency 0.7, $0.30 an hour
ITEMS = 200_000

#: name -> load, nodes, {field: value}; by hand
WORKED: dict[str, tuple[Load, Nodes, dict[str, Any]]] = {
    "sha256 is bound by the network": (
        Load(ITEMS, PB, 0, 1e9, prefixes=ITEMS), HUNDRED,
        {"seconds": PB / (100 * 3.125e9 * 0.7), "node_cost": 38.1, "bound": "network"},
    ),
    "one machine": (Load(ITEMS, PB, 0, 1e9, prefixes=ITEMS), Nodes(1), {"seconds": 457_143, "bound": "network"}),
    "its requests": (Load(0, PB, 0, 1e9), HUNDRED, {"reads": 59_604_645, "request_cost": 23.84}),
    "one prefix is too few": (Load(0, PB, 0, 1e9), HUNDRED, {"seconds": 59_604_645 / 5500, "bound": "requests"}),
    "three prefixes suffice": (Load(0, PB, 0, 1e9, prefixes=3), HUNDRED, {"bound": "network"}),
    "headers only": (Load(ITEMS, ITEMS * HEADER, 0, 1e9), Nodes(1), {"bytes_read": 26_214_400_000, "reads": 401_563}),
    "quantize is bound by the cores": (
        Load(ITEMS, PB, int(0.28 * PB), 50e6, prefixes=ITEMS), HUNDRED,
        {"seconds": 17_857, "bound": "cores", "node_cost": 148.8, "writes": 4_172_326},
    ),
    "egress is a line of its own": (Load(1, PB, 0, 1e9, egress=PB), HUNDRED, {"egress_cost": 20_000}),
    "no egress within a region": (Load(1, PB, 0, 1e9), HUNDRED, {"egress_cost": 0}),
    "nothing": (Load(0, 0, 0, 1e9), Nodes(), {"seconds": 0, "cost": 0, "reads": 0}),
    "writes bound, too": (Load(0, 0, 10**15, 1e9), HUNDRED, {"bound": "requests", "seconds": 14_901_162 / 3500}),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKED)
def test_a_worked_example(name: str) -> None:
    load, nodes, expected = WORKED[name]
    found = estimate(load, nodes, Prices())
    for field, value in expected.items():
        actual = getattr(found, field)
        assert actual == value if isinstance(value, str) else actual == pytest.approx(value, rel=2e-3), field


def test_the_parts_of_the_cost_add_up() -> None:
    found = estimate(Load(10, PB, PB // 2, 50e6, egress=PB), HUNDRED, Prices(writes=0.005))
    assert found.cost == found.node_cost + found.request_cost + found.egress_cost
    assert found.request_cost == pytest.approx(found.reads * 0.0004 / 1000 + found.writes * 0.005 / 1000)
