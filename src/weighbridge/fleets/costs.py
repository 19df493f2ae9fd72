"""What a fleet's job takes, before it begins: requests, seconds and money for N nodes.

    T = max(B / (N * e * min(b, c * h)), R / (5,500 * prefixes))        R = B / q + 2 for each item
    cost = N * T / 3600 * p + R / 1000 * g + W / 1000 * w + egress

B bytes read, b bytes/s of a node's network, c its cores, h bytes/s of a core, e efficiency, q bytes of a request, W
requests that write. S3 takes at least 5,500 reads and 3,500 writes a second for each prefix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from weighbridge.base.limits import MIB

#: Bytes of a request that reads, and of a part that is written.
REQUEST: Final = 16 * MIB
PART: Final = 64 * MIB
#: Bytes read of a file whose header alone is needed.
HEADER: Final = 128 << 10
READS_A_SECOND: Final = 5500.0
WRITES_A_SECOND: Final = 3500.0


@dataclass(frozen=True)
class Nodes:
    """The machines. `network`: bytes/s of one; `efficiency`: share of the slower of network and cores that is reached;
    `price`: of a node for an hour."""

    count: int = 1
    cores: int = 16
    network: float = 3.125e9
    efficiency: float = 0.7
    price: float = 0.30


@dataclass(frozen=True)
class Prices:
    """Of 1,000 requests that read and that write, and of a GB (10^9 bytes) that leaves its region."""

    reads: float = 0.0004
    writes: float = 0.005
    egress: float = 0.02


@dataclass(frozen=True)
class Terms:
    """What a job runs on and what that costs. `cross_region`: its sources lie in another region."""

    nodes: Nodes = Nodes()
    prices: Prices = Prices()
    cross_region: bool = False


DEFAULT_TERMS: Final = Terms()


class Load(NamedTuple):
    """What a job moves. `rate`: bytes/s of a core; `prefixes`: of the sources in buckets."""

    items: int
    read: int
    written: int
    rate: float
    prefixes: int = 1


@dataclass(frozen=True)
class Estimate:
    """`bound`: what the time follows from: network, cores or requests."""

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
    """The formula above."""
    nodes = terms.nodes
    reads, writes = _requests(load)
    slower, rate = _slower(load, nodes)
    seconds = {slower: load.read / (nodes.count * rate)}
    seconds["requests"] = max(reads / READS_A_SECOND, writes / WRITES_A_SECOND) / max(load.prefixes, 1)
    bound = max(seconds, key=lambda name: seconds[name])
    return Estimate(
        load.items, load.read, load.written, reads, writes, seconds[bound], bound,
        node_cost=nodes.count * seconds[bound] / 3600 * nodes.price,
        request_cost=_request_cost(reads, writes, terms.prices), egress_cost=_egress_cost(load, terms),
    )  # fmt: skip


def item_cost(load: Load, terms: Terms) -> float:
    """What one item costs that moved these bytes: its share of the machines, its requests, its egress."""
    _, rate = _slower(load, terms.nodes)
    machines = load.read / rate / 3600 * terms.nodes.price
    return machines + _request_cost(*_requests(load), terms.prices) + _egress_cost(load, terms)


def _requests(load: Load) -> tuple[int, int]:
    """Requests that read and that write."""
    return math.ceil(load.read / REQUEST) + 2 * load.items, math.ceil(load.written / PART)


def _slower(load: Load, nodes: Nodes) -> tuple[str, float]:
    """What bounds a node, and the bytes/s that it then takes."""
    found = min(("network", nodes.network), ("cores", nodes.cores * load.rate), key=lambda row: row[1])
    return found[0], nodes.efficiency * found[1]


def _request_cost(reads: int, writes: int, prices: Prices) -> float:
    return reads / 1000 * prices.reads + writes / 1000 * prices.writes


def _egress_cost(load: Load, terms: Terms) -> float:
    return load.read / 1e9 * terms.prices.egress if terms.cross_region else 0.0
