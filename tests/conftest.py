"""Settings of all tests. None is timed, since the machine may be busy with other work.

`make test` runs with `--sample`: of every table the rows that the last change touches and a few others, of the costly
tests some (sampling.py), no mutation. `make test-all` and CI run everything.
"""

from __future__ import annotations

import gc
import os
import signal
from datetime import date

import pytest
from hypothesis import settings
from tests import system
from tests.examples import SAMPLED
from tests.sampling import COSTLY_SHARE, LastChange, read_last_change, sample, take_turns

settings.register_profile("untimed", settings.default, deadline=None)
settings.register_profile("sample", settings.default, deadline=None, max_examples=SAMPLED)
settings.load_profile("untimed")

#: What the libraries of numpy and torch read when they are loaded. Workers share the processors, and the threads of one
#: that wait for each other spin.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

#: Tests that only `make test-all` runs.
EXHAUSTIVE = ("mutation", "slow")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        type=int,
        metavar="N",
        help="run of each parametrised test the cases that the last change touches and at most N others,"
        f" and no {' or '.join(EXHAUSTIVE)}",
    )
    parser.addoption("--sample-day", metavar="DATE", help="the day whose sample to run (default: today)")


def pytest_configure(config: pytest.Config) -> None:
    for name, handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
        # A shell that runs the tests in the background, or nohup, ignores them, and so would all programs of the tests.
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if getattr(config.option, "numprocesses", None):
        os.environ.update(dict.fromkeys(THREADS, "1"))  # before the workers start, which inherit them
    if not config.getoption("--sample"):
        return
    settings.load_profile("sample")
    # Workers of xdist get the options of the process that starts them, so all collect the same cases.
    config.option.sample_day = config.option.sample_day or date.today().isoformat()
    if not hasattr(config.option, "last_change"):
        change = read_last_change()
        strings = {path: sorted(found) for path, found in change.strings.items()}
        config.option.last_change = (sorted(change.names), strings, sorted(change.rooms))


def pytest_report_header(config: pytest.Config) -> str | None:
    if not (count := config.getoption("--sample")):
        return None
    names, strings, rooms = config.option.last_change
    return (
        f"sample: {count} cases per test, 1 in {COSTLY_SHARE} costly tests, --sample-day {config.option.sample_day}; "
        f"of the last change: {len(names)} tables and data files, {len(strings)} test files, {len(rooms)} rooms"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (count := config.getoption("--sample")):
        return
    names, strings, rooms = config.option.last_change
    texts = {path: frozenset(found) for path, found in strings.items()}
    change = LastChange(frozenset(names), texts, frozenset(rooms))
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not any(map(item.get_closest_marker, EXHAUSTIVE)):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    day = date.fromisoformat(config.option.sample_day)
    costly = {name for name, cases in functions.items() if cases[0].get_closest_marker("costly")}
    for name in costly - take_turns(costly, day, change):
        del functions[name]
    kept = {item for cases in functions.values() for item in sample(cases, count, day, lambda i: i.nodeid, change)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # tens of thousands of tests: the collector would visit them again and again


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("skipped", ())
    if line := system.summarize(str(report.longrepr[2]) for report in reports if isinstance(report.longrepr, tuple)):
        terminalreporter.write_line(line, yellow=True, bold=True)
