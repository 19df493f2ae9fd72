"""What a fleet's job takes, before it begins: requests, seconds and money for N nodes.

    T = max(B / (N * e * min(b, c * h)), R / (5,500 * prefixes))        R = B / q + 2 for each item
    cost = N * T / 3600 * p + R / 1000 * g + W / 1000 * w + egress

B bytes read, b bytes/s of a node's network, c its cores, h bytes/s of a core, e efficiency, q bytes of a request, W
requests that write. S3 takes at least 5,500 reads and 3,500 writes a second for each prefix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

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
class Load:
    """What a job moves. `rate`: bytes/s of a core; `egress`: bytes that leave their region; `prefixes`: of the sources
    in buckets."""

    items: int
    read: int
    written: int
    rate: float
    egress: int = 0
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


def estimate(load: Load, nodes: Nodes = Nodes(), prices: Prices = Prices()) -> Estimate:
    """The formula above."""
    reads = math.ceil(load.read / REQUEST) + 2 * load.items
    writes = math.ceil(load.written / PART)
    rates = {"network": nodes.network, "cores": nodes.cores * load.rate}
    slower = min(rates, key=lambda name: rates[name])
    seconds = {slower: load.read / (nodes.count * nodes.efficiency * rates[slower])}
    seconds["requests"] = max(reads / READS_A_SECOND, writes / WRITES_A_SECOND) / max(load.prefixes, 1)
    bound = max(seconds, key=lambda name: seconds[name])
    return Estimate(
        load.items, load.read, load.written, reads, writes, seconds[bound], bound,
        node_cost=nodes.count * seconds[bound] / 3600 * nodes.price,
        request_cost=reads / 1000 * prices.reads + writes / 1000 * prices.writes,
        egress_cost=load.egress / 1e9 * prices.egress,
    )  # fmt: skip
