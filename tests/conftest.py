"""What holds for all tests. None is timed: a machine that is busy with other work is no fault of the code.

`make test` runs with `--sample`: some rows of every table, no mutation. `make test-all` and CI run everything.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

import pytest
from hypothesis import settings
from tests.examples import SAMPLED

settings.register_profile("untimed", settings.default, deadline=None)
settings.register_profile("sample", settings.default, deadline=None, max_examples=SAMPLED)
settings.load_profile("untimed")

#: Tests that only `make test-all` runs.
EXHAUSTIVE = ("mutation", "slow")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        type=int,
        metavar="N",
        help=f"run at most N cases of each parametrised test, spread over its table, and no {' or '.join(EXHAUSTIVE)}",
    )


def pytest_configure(config: pytest.Config) -> None:
    for name, handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
        # A shell that runs the tests in the background, or nohup, ignores them, and so would all programs of the tests.
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if config.getoption("--sample"):
        settings.load_profile("sample")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    count = config.getoption("--sample")
    if not count:
        return
    kept = set(_sampled((i for i in items if not any(map(i.get_closest_marker, EXHAUSTIVE))), count))
    config.hook.pytest_deselected(items=[i for i in items if i not in kept])
    items[:] = [i for i in items if i in kept]


def _sampled(items: Iterable[pytest.Item], count: int) -> Iterable[pytest.Item]:
    """At most `count` cases of each test function, evenly spread, the first one among them; the same in every run."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in functions.values():
        step = max(1, -(-len(cases) // count))
        yield from cases[::step]
