"""Tasks on a Ray cluster, through Ray Core only. Functions and results are small: model bytes go from the store to
the worker and back, never through Ray's object store. A window of pending tasks bounds the driver's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, TypeVar

from weighbridge.adapters.remote.extra import package

T = TypeVar("T")
R = TypeVar("R")
#: Pending tasks for each CPU of the cluster: more than two, or an autoscaler never sees a demand.
WINDOW: Final = 4
#: Further tries of a task whose worker or node died; a task may then have been done twice.
RETRIES: Final = 3
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def mapped(
    function: Callable[[T], R], tasks: Iterable[T], *, address: str | None = None, labels: Mapping[str, str] = _NONE
) -> Iterator[tuple[T, R | None]]:
    """Yields each task and the function's result, in any order; None if its worker died in every attempt. Raises the
    function's own errors. `address`: a cluster's; None: the connected one, or a new one on this machine. `labels`:
    restrict the nodes; tasks wait for a matching one."""
    ray = package("ray", "running on a cluster", "ray")
    if not ray.is_initialized():
        ray.init(address=address, include_dashboard=None if address else False, log_to_driver=False)
    where = {"label_selector": dict(labels)} if labels else {}
    remote = ray.remote(function).options(num_cpus=1, max_retries=RETRIES, scheduling_strategy="SPREAD", **where)
    rest, pending = iter(tasks), dict[Any, T]()
    while True:
        room = max(int(WINDOW * ray.cluster_resources().get("CPU", 1)), WINDOW) - len(pending)
        for task in islice(rest, max(room, 0)):
            pending[remote.remote(task)] = task
        if not pending:
            return
        ready, _ = ray.wait(list(pending), num_returns=1)
        for ref in ready:
            yield pending.pop(ref), _result(ray, ref)


def _result(ray: Any, ref: Any) -> Any:
    errors = ray.exceptions
    try:
        return ray.get(ref)
    except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError, errors.ObjectLostError):
        return None
