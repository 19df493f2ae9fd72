"""Which tests `--sample N` runs: of each parametrised one all cases that the last change touches and N of the others;
of the tests marked `costly` one in COSTLY_SHARE a day, and those in the rooms (folders) that the last change touches.

The last change is the working tree against the commit before the last one. It touches a case whose id names a changed
data file, a family that inherits from a changed table, or a string in a changed line of the test's own file. The other
cases rotate with the date, so a table is run whole within as many days as it has times N rows.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
#: A costly test takes a second or starts a browser. All of them have run within as many days.
COSTLY_SHARE = 5
_TABLES = "src/weighbridge/models/arch/tables/"
_STRING = re.compile(r"\"([^\"\n]+)\"|'([^'\n]+)'")


@dataclass(frozen=True)
class LastChange:
    """Names that the last change touches: everywhere, and per test file the strings in its changed lines; and the
    folders below src/weighbridge and tests with a changed file."""

    names: frozenset[str] = frozenset()
    strings: Mapping[str, frozenset[str]] = field(default_factory=dict)
    rooms: frozenset[str] = frozenset()

    def touches(self, nodeid: str) -> bool:
        """Whether a case's id contains one of the names as a whole word, or one of its file's changed strings."""
        path, _, rest = nodeid.partition("::")
        case = rest.partition("[")[2].removesuffix("]")
        words = {*self.names, *self.strings.get(path, ())}
        return any(name in case and re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", case) for name in words)


def read_last_change(root: Path = ROOT) -> LastChange:
    """The last change of a checkout; empty without git or without a commit before the last one."""
    changed = _git(root, "diff", "--name-only", "HEAD~1") + _git(root, "ls-files", "--others", "--exclude-standard")
    paths = [path for path in changed.splitlines() if path.startswith(("src/", "tests/"))]
    data = {Path(path).stem for path in paths if not path.endswith((".py", ".md"))}
    strings = {}
    for path in (path for path in paths if path.startswith("tests/") and path.endswith(".py")):
        lines = _git(root, "diff", "-U0", "HEAD~1", "--", path).splitlines()
        added = "\n".join(line[1:] for line in lines if line.startswith("+") and not line.startswith("+++"))
        strings[path] = frozenset(a or b for a, b in _STRING.findall(added))
    tables = {path.stem: path.read_text("utf-8") for path in (root / _TABLES).rglob("*.toml")}
    rooms = frozenset(path.removeprefix("src/weighbridge/").removeprefix("tests/").partition("/")[0] for path in paths)
    return LastChange(frozenset(with_heirs(data, tables)), strings, rooms)


def with_heirs(names: Iterable[str], tables: Mapping[str, str]) -> set[str]:
    """The names and those of all tables that inherit from them, directly or not."""
    parents = {}
    for name, text in tables.items():
        stated = re.findall(r"^(?:like|names_from|include)\s*=\s*(.*(?:\n\s.*)*)", text, re.MULTILINE)
        parents[name] = set(re.findall(r'"([^"]+)"', " ".join(stated)))
    out = set(names)
    while heirs := {name for name, stated in parents.items() if stated & out} - out:
        out |= heirs
    return out


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout


def sample(cases: Sequence[T], count: int, day: date, nodeid: Callable[[T], str], change: LastChange) -> Iterator[T]:
    """The cases of one test function that the change touches, and `count` of the others, spread evenly; the next day
    their neighbours."""
    touched = [case for case in cases if change.touches(nodeid(case))]
    others = [case for case in cases if case not in touched]
    yield from touched
    step = max(1, -(-len(others) // count))
    for i in range(min(count, len(others))):
        yield others[(day.toordinal() % step + i * step) % len(others)]


def take_turns(costly: Iterable[str], day: date, change: LastChange) -> set[str]:
    """The node ids of the costly tests to run: all in rooms that the change touches, the others in turn."""
    others = [name for name in sorted(costly) if name.split("/")[1] not in change.rooms]
    return {*costly} - {name for i, name in enumerate(others) if (i + day.toordinal()) % COSTLY_SHARE}
