"""The architecture holds: who may import whom, who may write, who may print. One rule is one row of `RULES`: a function
that lists a module's faults, and a piece of code in which it must see one."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.architecture import house

FLOORS = {
    "base": 1,
    "io": 2,
    "unpickle": 3,
    "tensors": 3,
    "containers": 4,
    "packings": 4,
    "packings.schema": 3,
    "adapters": 4,
    "models": 5,
    "conversion": 6,
    "providers": 6,
    "reports": 6,
    "fitting": 7,
    "fleets": 7,
    "forward": 7,
    "api": 8,
    "safetensors": 7,
    "page": 9,
    "shipping": 9,
    "cli": 10,
}
FRAMEWORKS = {
    *("torch", "mlx", "jax", "tensorflow", "transformers", "safetensors", "gguf", "tokenizers", "sentencepiece"),
    "vllm",
}
# Packages that must never import numpy, and those that may import it only inside functions, so that `wb inspect` and
# `wb identify` never load it. (`weighbridge.api` is imported module by module, on first use.)
#: Modules of rooms with numpy that are free of it; `tensors.layout_table` imports the standard library only.
NUMPY_FREE = ("weighbridge.packings.schema", "weighbridge.tensors.layout_table")
NO_NUMPY = {"base", "io", "unpickle", "containers", "cli", "packings.schema"}
LAZY_NUMPY = {"models", "reports", "__init__", "__main__"}
HEAVY = {"rich", "numpy", "ml_dtypes"}

Faults = Iterator[str]


def room(module: str) -> str:
    """`weighbridge.containers.gguf` -> `containers`; the package itself -> `__init__`."""
    parts = module.split(".")
    if parts[1:3] == ["packings", "schema"]:
        return "packings.schema"
    return parts[1] if len(parts) > 1 else "__init__"


def room_of(path: Path) -> str:
    return room("weighbridge." + house.short(path).removesuffix(".py").replace("/", "."))


def ours(path: Path) -> Iterator[house.Import]:
    return (i for i in house.imports(path) if i.module.split(".")[0] == "weighbridge")


def upward_imports(path: Path) -> Faults:
    """A module imports from lower floors, and on its own floor only from its own package."""
    here = room_of(path)
    if here not in {*FLOORS, "__init__", "__main__"}:
        yield f"{here}: a new package needs a floor"
    for found in ours(path):
        there = room(found.module)
        free = here in ("__init__", "__main__") or there in ("__init__", "_native") or there == here
        if not free and FLOORS[there] >= FLOORS.get(here, 0):
            yield f":{found.line} imports {found.module}"


def numpy_imports(path: Path) -> Faults:
    here = room_of(path)
    for found in house.imports(path):
        if found.module.split(".")[0] not in ("numpy", "ml_dtypes"):
            continue
        if here in NO_NUMPY or (here in LAZY_NUMPY and found.top):
            yield f":{found.line} imports {found.module}"


def numpy_schemas(path: Path) -> Faults:
    """What loads numpy: tensors, conversions, and packings but for their schemas."""
    if room_of(path) in LAZY_NUMPY:
        for found in ours(path):
            heavy = room(found.module) in ("tensors", "packings", "conversion")
            if found.top and heavy and not found.module.startswith(NUMPY_FREE):
                yield f":{found.line} imports {found.module} at the top"


def framework_imports(path: Path) -> Faults:
    for found in house.imports(path):
        if found.module.split(".")[0] in FRAMEWORKS and not found.typing and (room_of(path) != "adapters" or found.top):
            yield f":{found.line} imports {found.module}"


def heavy_command_line(path: Path) -> Faults:
    if room_of(path) == "cli":
        yield from (f":{i.line} imports {i.module}" for i in house.imports(path) if i.top and i.module in HEAVY)


# Calls that change the file system, by their last name (methods of any object) or their whole one.
_WRITING_METHODS = {"write_text", "write_bytes", "tofile", "mkstemp", "NamedTemporaryFile", "ftruncate"}
_WRITING_CALLS = {
    *("os.replace", "os.rename", "os.mkdir", "os.makedirs", "os.truncate", "os.pwrite", "os.link", "os.symlink"),
    *("shutil.move", "shutil.copy", "shutil.copyfile", "shutil.copy2", "shutil.rmtree"),
}


def writes(node: ast.Call, called: str) -> bool:
    """Whether a call opens a file for writing, or changes the file system otherwise."""
    if called == "os.open":
        return bool(re.search("O_(WRONLY|RDWR|CREAT|TRUNC|APPEND)", ast.unparse(node)))
    if called.split(".")[-1] == "open":
        values = [*node.args[called in ("open", "io.open") :], *(k.value for k in node.keywords if k.arg == "mode")]
        modes = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]
        return any(re.fullmatch("[rwxabt+]+", mode) and set(mode) & set("wax+") for mode in modes)
    return called.split(".")[-1] in _WRITING_METHODS or called in _WRITING_CALLS


# The files that may write: `io/sink/`.
WRITERS = re.compile(r"io/sink(/\w+)?\.py")
# What `writes` finds outside the sink, and why it is none of a user's files.
ALLOWED_WRITES = {
    "cli/main.py": {"os.open"},
    "cli/render.py": {"write_bytes"},
    "cli/commands/get.py": {"write_bytes"},
    "cli/commands/hash.py": {"write_bytes"},
    # `--backup`: a second name for the old file; no byte is written.
    "conversion/edit/apply.py": {"os.link"},
}


def unsafe_writes(path: Path) -> Faults:
    if not WRITERS.fullmatch(house.short(path)):
        allowed = ALLOWED_WRITES.get(house.short(path), set())
        yield from (
            f": {called}" for node, called in house.calls(path) if writes(node, called) and called not in allowed
        )


def opening_parsers(path: Path) -> Faults:
    if room_of(path) in ("containers", "unpickle"):
        yield from _calls(path, {"open", "io.open", "os.open", "FileSource", "Path"})


# Those of the command line, and a process of our own that answers its parent.
PRINTS = {"cli/render.py", "cli/main.py", "page/findings.py"}
# What is left in a bucket beside an object that is whole: no result has a place for it, and it costs money.
WARNS = {"adapters/remote/buckets/gcs.py"}


def printing(path: Path) -> Faults:
    yield from _calls(path, {"print", "pprint.pprint", "logging.getLogger", "logging.warning"})
    if house.short(path) not in WARNS:
        yield from _calls(path, {"warnings.warn"})
    if house.short(path) not in PRINTS:
        yield from _calls(path, {"sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write", "click.echo"})


# Programs of the system with fixed arguments: what this machine's GPU is (nvidia-smi, sysctl), unmounting (fusermount).
ASKS_THE_SYSTEM = {"fitting/devices.py", "adapters/serving/mount.py"}
# Processes of our own: one with limits, in which a chat template is rendered; one with a runtime that may abort; one
# that takes the memory of a check with it.
CONFINES = {"adapters/chat/template.py", "adapters/runtimes/process.py", "page/findings.py"}
# Compiles the `__init__` of a dataclass of ours from the names of its fields, as the standard library does.
COMPILES = {"base/records.py"}


def executing(path: Path) -> Faults:
    """Weights are data: no code of ours evaluates, unpickles or shells out."""
    if house.short(path) not in COMPILES:
        yield from _calls(path, {"exec"})
    yield from _calls(path, {"eval", "pickle.load", "pickle.loads", "marshal.loads", "os.system", "torch.load"})
    if house.short(path) not in ASKS_THE_SYSTEM | CONFINES:
        yield from (f": {called}" for _, called in house.calls(path) if called.startswith("subprocess."))


def validating_asserts(path: Path) -> Faults:
    """An assert vanishes under -O; it may only tell the type checker what is known already."""
    for node in house.nodes(path):
        if isinstance(node, ast.Assert):
            text = ast.unparse(node.test)
            if "is not None" not in text and not text.startswith("isinstance("):
                yield f":{node.lineno}: assert {text}"


def _calls(path: Path, names: set[str]) -> Faults:
    yield from (f": {called}" for _, called in house.calls(path) if called in names)


class Check(NamedTuple):
    """A rule, and code that breaks it: the place of a module and what stands in it."""

    faults: Callable[[Path], Faults]
    place: str
    code: str


RULES: Mapping[str, Check] = {
    "imports go down": Check(upward_imports, "base/x.py", "from weighbridge.io.source import Source"),
    "imports go down, in functions too": Check(
        upward_imports, "packings/x.py", "def f():\n    from weighbridge.containers import base"
    ),
    "no imports across a floor": Check(upward_imports, "reports/x.py", "from weighbridge.conversion.plan import model"),
    "parsers never load numpy": Check(numpy_imports, "containers/x.py", "def f():\n    import numpy"),
    "models and reports load numpy late": Check(numpy_imports, "reports/x.py", "import numpy as np"),
    "models and reports load tensors late": Check(
        numpy_schemas, "models/x.py", "from weighbridge.tensors import nodes"
    ),
    "only adapters import a framework": Check(framework_imports, "models/x.py", "def f():\n    import torch"),
    "frameworks are imported late": Check(framework_imports, "adapters/x.py", "import torch"),
    "the command line starts fast": Check(heavy_command_line, "cli/x.py", "import rich"),
    "only the sink writes": Check(unsafe_writes, "reports/x.py", "open(p, 'wb')"),
    "parsers never open a file": Check(opening_parsers, "containers/x.py", "open(p)"),
    "only the command line prints": Check(printing, "reports/x.py", "print(1)"),
    "nothing in a file is executed": Check(executing, "unpickle/x.py", "pickle.loads(b)"),
    "no validation by assert": Check(validating_asserts, "io/x.py", "assert size > 0"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_holds_everywhere(rule: str) -> None:
    faults = [house.short(path) + fault for path in house.modules() for fault in RULES[rule].faults(path)]
    assert faults == []


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_sees_a_violation(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = RULES[rule]
    path = tmp_path / "weighbridge" / check.place
    path.parent.mkdir(parents=True)
    path.write_text(check.code, "utf-8")
    monkeypatch.setattr(house, "PACKAGE", tmp_path / "weighbridge")
    assert list(check.faults(path))


# ------------------------------------------------------------------------------------------------ circles


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other (strongly connected components of two or more)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for below in sorted(graph[name] & graph.keys()):
            if below not in order:
                visit(below)
            if below in stack:
                lowest[name] = min(lowest[name], lowest[below])
        if lowest[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            found.extend([sorted(group)] if len(group) > 1 else [])

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return found


def test_no_import_goes_in_circles() -> None:
    """Nor inside a function, nor for type checkers only."""
    graph = {house.dotted(p): {i.module for i in ours(p)} for p in house.modules()}
    assert circles(graph) == []


def test_a_circle_is_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


# ------------------------------------------------------------------------------------------------ writing


@pytest.mark.parametrize(
    "code",
    [
        "open(p, 'wb')",
        "open(p, mode='r+b')",
        "p.open('w')",
        "os.open(p, os.O_RDWR)",
        "p.write_text('')",
        "os.replace(a, b)",
    ],
)
def test_the_rule_about_writing_sees_it(code: str) -> None:
    node = ast.parse(code, mode="eval").body
    assert isinstance(node, ast.Call)
    assert writes(node, ast.unparse(node.func))


@pytest.mark.parametrize(
    "code", ["open(p)", "open(p, 'rb')", "webbrowser.open(u)", "os.open(p, os.O_RDONLY)", "p.open()"]
)
def test_the_rule_about_writing_lets_reading_pass(code: str) -> None:
    node = ast.parse(code, mode="eval").body
    assert isinstance(node, ast.Call)
    assert not writes(node, ast.unparse(node.func))
