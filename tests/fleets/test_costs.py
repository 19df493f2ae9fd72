"""The arithmetic of planning, against the worked examples of a petabyte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fleets.inline import InlineRunner

from weighbridge.fleets.costs import HEADER, Load, Nodes, Prices, Terms, estimate, item_cost
from weighbridge.fleets.job import Job
from weighbridge.fleets.operations import OPERATIONS
from weighbridge.fleets.run import Fleet

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
    "egress from another region": (Load(1, PB, 0, 1e9), HUNDRED, {"egress_cost": 20_000}),
    "the same within a region": (Load(1, PB, 0, 1e9), HUNDRED, {"egress_cost": 0}),
    "nothing": (Load(0, 0, 0, 1e9), Nodes(), {"seconds": 0, "cost": 0, "reads": 0}),
    "writes bound, too": (Load(0, 0, 10**15, 1e9), HUNDRED, {"bound": "requests", "seconds": 14_901_162 / 3500}),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKED)
def test_a_worked_example(name: str) -> None:
    load, nodes, expected = WORKED[name]
    found = estimate(load, Terms(nodes, cross_region="egress" in name))
    for field, value in expected.items():
        actual = getattr(found, field)
        assert actual == value if isinstance(value, str) else actual == pytest.approx(value, rel=2e-3), field


def test_the_parts_of_the_cost_add_up() -> None:
    found = estimate(Load(10, PB, PB // 2, 50e6), Terms(HUNDRED, Prices(writes=0.005), cross_region=True))
    assert found.cost == found.node_cost + found.request_cost + found.egress_cost
    assert found.egress_cost == 20_000
    assert found.request_cost == pytest.approx(found.reads * 0.0004 / 1000 + found.writes * 0.005 / 1000)


@pytest.mark.parametrize("rate", [1e9, 50e6], ids=["network", "cores"])
def test_the_costs_of_the_items_add_up_to_the_plans(rate: float) -> None:
    """However many machines; requests are whole for each item, so some more of them."""
    terms = Terms(HUNDRED, cross_region=True)
    whole = estimate(Load(1000, 1000 * 5 * 10**9, 1000 * 10**9, rate, prefixes=1000), terms)
    assert 1000 * item_cost(Load(1, 5 * 10**9, 10**9, rate), terms) == pytest.approx(whole.cost, rel=1e-5)


def test_the_report_counts_what_was_moved(tmp_path: Path) -> None:
    """A cost for each item that was done, in the table and on the page."""
    arrow = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "in").mkdir()
    for i in range(3):
        (tmp_path / "in" / f"{i}.bin").write_bytes(bytes(1000 * i))
    job, target = Job("hash"), tmp_path / "out"
    (tmp_path / "in" / "gone").symlink_to("nowhere")
    dear = Terms(Nodes(price=1e9, cores=1), cross_region=True)
    report = Fleet(job, (str(tmp_path / "in"),), str(target), terms=dear).run(InlineRunner())
    folder = target / "_fleet" / job.id
    rows = {row["name"]: row["cost"] for row in arrow.read_table(folder / "report" / "00000.parquet").to_pylist()}
    loads = {f"in/{i}.bin": Load(1, 1000 * i, 0, OPERATIONS["hash"].rate) for i in range(3)}
    assert rows == {name: item_cost(load, dear) for name, load in loads.items()} | {"in/gone": None}
    assert report.cost == pytest.approx(sum(cost for cost in rows.values() if cost))
    assert f"{report.cost:,.2f} by the plan" in (folder / "report.html").read_text()
    assert f"{rows['in/2.bin']:.6f}" in (folder / "report.html").read_text()
