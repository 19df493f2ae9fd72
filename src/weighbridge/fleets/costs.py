"""Estimates the requests, time and money that a fleet's job takes on N nodes.

    T = max(B / (N * e * min(b, c * h)), R / (5,500 * prefixes))        R = B / q + 2 for each item
    cost = N * T / 3600 * p + R / 1000 * g + W / 1000 * w + egress

B bytes read, b bytes/s of a node's network, c its cores, h bytes/s of a core, e efficiency, q bytes of a request, W
write requests. S3 accepts at least 5,500 reads and 3,500 writes per second for each prefix."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass

#: Bytes per read request, and per part of an upload.
REQUEST: Final = 16 * MIB
PART: Final = 64 * MIB
#: Bytes read if only the header of a file is needed.
HEADER: Final = 128 << 10
READS_A_SECOND: Final = 5500.0
WRITES_A_SECOND: Final = 3500.0


@dataclass(frozen=True)
class Nodes:
    """The machines. `network`: bytes/s of each. `efficiency`: the share of the slower of network and cores that is
    reached. `price`: USD per node and hour."""

    count: int = 1
    cores: int = 16
    network: float = 3.125e9
    efficiency: float = 0.7
    price: float = 0.30


@dataclass(frozen=True)
class Prices:
    """USD per 1,000 read and write requests, and per GB (10^9 bytes) that leaves its region."""

    reads: float = 0.0004
    writes: float = 0.005
    egress: float = 0.02


@dataclass(frozen=True)
class Terms:
    """The machines of a job and their prices. `cross_region`: its sources are in another region."""

    nodes: Nodes = Nodes()
    prices: Prices = Prices()
    cross_region: bool = False


DEFAULT_TERMS: Final = Terms()


class Load(NamedTuple):
    """The data that a job moves. `rate`: bytes/s of a core. `prefixes`: of the sources in buckets."""

    items: int
    read: int
    written: int
    rate: float
    prefixes: int = 1


@dataclass(frozen=True)
class Estimate:
    """`bound`: the bottleneck: network, cores or requests."""

    items: int
    bytes_read: int
    bytes_written: int
    reads: int
    writes: int
    seconds: float
    bound: str
    node_cost: float
    request_cost: float
    egress_cost: float

    @property
    def cost(self) -> float:
        return self.node_cost + self.request_cost + self.egress_cost


def estimate(load: Load, terms: Terms = DEFAULT_TERMS) -> Estimate:
    """Estimates a job by the formula above."""
    nodes = terms.nodes
    bottleneck, rate = _bottleneck(load, nodes)
    reads, writes, request_cost, egress_cost = _requests(load, terms)
    seconds = {bottleneck: load.read / (nodes.count * rate)}
    seconds["requests"] = max(reads / READS_A_SECOND, writes / WRITES_A_SECOND) / max(load.prefixes, 1)
    bound = max(seconds, key=lambda name: seconds[name])
    return Estimate(
        load.items, load.read, load.written, reads, writes, seconds[bound], bound,
        node_cost=nodes.count * seconds[bound] / 3600 * nodes.price, request_cost=request_cost, egress_cost=egress_cost,
    )  # fmt: skip


def item_cost(load: Load, terms: Terms) -> float:
    """Returns the cost of one item with this load: its share of the machines, its requests and egress."""
    _, _, request_cost, egress_cost = _requests(load, terms)
    return load.read / _bottleneck(load, terms.nodes)[1] / 3600 * terms.nodes.price + request_cost + egress_cost


def _bottleneck(load: Load, nodes: Nodes) -> tuple[str, float]:
    """Returns the bottleneck of a node, and its bytes/s."""
    name, rate = min(("network", nodes.network), ("cores", nodes.cores * load.rate), key=lambda row: row[1])
    return name, nodes.efficiency * rate


def _requests(load: Load, terms: Terms) -> tuple[int, int, float, float]:
    """Returns the read and write requests, their cost, and the cost of egress."""
    reads, writes = math.ceil(load.read / REQUEST) + 2 * load.items, math.ceil(load.written / PART)
    cost = reads / 1000 * terms.prices.reads + writes / 1000 * terms.prices.writes
    return reads, writes, cost, load.read / 1e9 * terms.prices.egress if terms.cross_region else 0.0
