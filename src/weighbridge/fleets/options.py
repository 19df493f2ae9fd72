"""The options of `wb fleet`: where the work runs, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.fleets.costs import Nodes, Prices
from weighbridge.io.options import JobsOptions, OverwriteOptions

_RUNNING: Final = "Running"
_COSTS: Final = "Costs"


@dataclass(frozen=True, kw_only=True)
class FleetOptions(JobsOptions, OverwriteOptions):
    def __post_init__(self) -> None:
        """Checks nothing: each task checks its options."""

    output: str = option(
        "Folder or prefix in a bucket for outputs, records and the report.", "", metavar="TARGET", kind="output",
        section=_RUNNING, letter="o", required=True,
    )  # fmt: skip
    runner: str = option(
        "Processes of this machine [local], or tasks of a Ray cluster.", "local", choices=("local", "ray"),
        section=_RUNNING,
    )  # fmt: skip
    address: str | None = option(
        "Ray cluster [this machine's; auto: RAY_ADDRESS].", metavar="ADDRESS", section=_RUNNING
    )
    node_label: Sequence[tuple[str, str]] = option(
        "Only nodes of the Ray cluster with this label.", (), metavar="KEY=VALUE", kind="label", section=_RUNNING
    )
    shard: tuple[int, int] | None = option(
        "Only the I-th of N shares of the work: for arrays of jobs without an engine.", metavar="I/N", kind="share",
        section=_RUNNING,
    )  # fmt: skip
    processes: int | None = option(
        "Processes of the local runner [all cores].", metavar="N", least=1, most=1024, section=_RUNNING
    )
    replan: bool = option("List the sources again instead of reusing the manifest.", False, section=_RUNNING)
    nodes: int | None = option("Machines of the plan [1].", metavar="N", least=1, section=_COSTS)
    cores: int | None = option("Cores of each [this machine's].", metavar="N", least=1, section=_COSTS)
    network: float | None = option("Network of each in Gbit/s [25].", metavar="GBIT", above=0, section=_COSTS)
    node_price: float | None = option(
        f"Price of a machine for an hour [{Nodes.price}].", metavar="USD", least=0, section=_COSTS
    )
    read_price: float | None = option(f"Price of 1,000 reads [{Prices.reads}].", metavar="USD", least=0, section=_COSTS)
    write_price: float | None = option(
        f"Price of 1,000 writes [{Prices.writes}].", metavar="USD", least=0, section=_COSTS
    )
    egress_price: float | None = option(
        f"Price of a GB that leaves its region [{Prices.egress}].", metavar="USD", least=0, section=_COSTS
    )
    cross_region: bool = option("The sources are in another region than the machines.", False, section=_COSTS)
    calibrate: float = option(
        "Plan with the speed of this machine, measured on some items for SECONDS [the speeds of the docs].", 0.0,
        metavar="SECONDS", above=0, section=_COSTS,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TaskSizeOptions:
    task_size: int | None = option(
        "Split models with more bytes of output into tasks of about SIZE [one task per model]. "
        "Small models, 256 MiB in all, share one.", kind="size",
    )  # fmt: skip
