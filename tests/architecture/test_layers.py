"""The house holds: who may import whom, who may write, who may print. Each rule is shown to see its own violation."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.architecture import house

FLOORS = {
    "base": 1,
    "io": 2,
    "unpickle": 3,
    "tensors": 3,
    "containers": 4,
    "packings": 4,
    "adapters": 4,
    "models": 5,
    "conversion": 6,
    "reports": 6,
    "api": 7,
    "cli": 8,
}
FRAMEWORKS = {"torch", "mlx", "jax", "tensorflow", "transformers", "safetensors", "gguf", "tokenizers", "sentencepiece"}
# Rooms that no numpy may enter at all, and those where it may be imported inside functions only (so that `wb inspect`
# and `wb identify` never load it).
NO_NUMPY = {"base", "io", "unpickle", "containers", "cli"}
LAZY_NUMPY = {"models", "reports", "api", "__init__", "__main__"}
HEAVY = {"rich", "numpy", "ml_dtypes"}


def room(module: str) -> str:
    """`weighbridge.containers.gguf.container` -> `containers`; the package itself -> `__init__`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def room_of(path: Path) -> str:
    return house.short(path).split("/")[0].removesuffix(".py")


def layer_faults(path: Path) -> list[str]:
    """Imports that go up, or across to another room of the same floor."""
    here, faults = room_of(path), []
    for found in house.imports(path):
        if not found.module.startswith("weighbridge"):
            continue
        there = room(found.module)
        if here in ("__init__", "__main__") or there in ("__init__", "_native"):
            continue
        if there != here and FLOORS[there] >= FLOORS[here]:
            faults.append(f"{house.short(path)}:{found.line} imports {found.module}")
    return faults


@pytest.mark.parametrize("path", house.modules(), ids=house.short)
def test_a_module_imports_only_from_lower_floors(path: Path) -> None:
    assert room_of(path) in {*FLOORS, "__init__", "__main__"}, "a new room needs a floor"
    assert layer_faults(path) == []


def test_no_import_at_the_top_goes_in_circles() -> None:
    graph = {
        "weighbridge." + house.short(p).removesuffix(".py").removesuffix("/__init__").replace("/", "."): {
            i.module for i in house.imports(p) if i.top and i.module.startswith("weighbridge.")
        }
        for p in house.modules()
        if p.parent != house.PACKAGE
    }
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for below in sorted(graph.get(name, ())):
                walk(below, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        walk(name, ())


def numpy_faults(path: Path) -> list[str]:
    here, faults = room_of(path), []
    for found in house.imports(path):
        if found.module.split(".")[0] not in ("numpy", "ml_dtypes"):
            continue
        if here in NO_NUMPY or (here in LAZY_NUMPY and found.top):
            faults.append(f"{house.short(path)}:{found.line}")
    return faults


@pytest.mark.parametrize("path", house.modules(), ids=house.short)
def test_numpy_stays_where_it_belongs(path: Path) -> None:
    assert numpy_faults(path) == []


@pytest.mark.parametrize("path", house.modules(), ids=house.short)
def test_models_and_reports_import_tensors_inside_functions(path: Path) -> None:
    if room_of(path) in LAZY_NUMPY:
        at_top = [i for i in house.imports(path) if i.top and room(i.module) in ("tensors", "packings", "conversion")]
        assert [f"{house.short(path)}:{i.line} {i.module}" for i in at_top if i.module.startswith("weighbridge")] == []


@pytest.mark.parametrize("path", house.modules(), ids=house.short)
def test_only_adapters_import_a_framework_and_only_inside_functions(path: Path) -> None:
    for found in house.imports(path):
        if found.module.split(".")[0] in FRAMEWORKS and not found.typing:
            assert room_of(path) == "adapters", f"{house.short(path)}:{found.line} imports {found.module}"
            assert not found.top, f"{house.short(path)}:{found.line} imports {found.module} for everybody"


@pytest.mark.parametrize("path", house.modules(), ids=house.short)
def test_heavy_libraries_load_late_on_the_command_line(path: Path) -> None:
    if room_of(path) == "cli":
        top = {i.module.split(".")[0] for i in house.imports(path) if i.top}
        assert not top & HEAVY


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


# What `writes` finds outside the sink, and why it is none of a user's files.
ALLOWED_WRITES = {
    "cli/main.py": {"os.open"},
    "cli/render.py": {"write_bytes"},
    "cli/commands/get.py": {"write_bytes"},
    # `--backup`: a second name for the old file; no byte is written.
    "conversion/edit/plan.py": {"os.link"},
}


@pytest.mark.parametrize("path", house.modules(), ids=house.short)
def test_only_the_sink_writes(path: Path) -> None:
    if house.short(path) != "io/sink.py":
        found = {called for node, called in house.calls(path) if writes(node, called)}
        assert found <= ALLOWED_WRITES.get(house.short(path), set())


@pytest.mark.parametrize("path", house.modules(), ids=house.short)
def test_parsers_never_open_a_file(path: Path) -> None:
    if room_of(path) in ("containers", "unpickle"):
        assert {c for _, c in house.calls(path)} & {"open", "io.open", "os.open", "FileSource", "Path"} == set()


@pytest.mark.parametrize("path", house.modules(), ids=house.short)
def test_only_the_command_line_prints(path: Path) -> None:
    called = {c for _, c in house.calls(path)}
    if house.short(path) not in ("cli/render.py", "cli/main.py"):
        assert called & {"sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write", "click.echo"} == set()
    assert called & {"print", "pprint.pprint", "warnings.warn", "logging.getLogger", "logging.warning"} == set()


@pytest.mark.parametrize("path", house.modules(), ids=house.short)
def test_nothing_in_a_file_can_be_executed(path: Path) -> None:
    """Weights are data: no code of ours evaluates, unpickles or shells out."""
    found = {c for _, c in house.calls(path)}
    assert found & {"eval", "exec", "pickle.load", "pickle.loads", "marshal.loads", "os.system", "torch.load"} == set()
    assert not any(c.startswith("subprocess.") for c in found)


@pytest.mark.parametrize("path", house.modules(), ids=house.short)
def test_no_validation_by_assert(path: Path) -> None:
    """An assert vanishes under -O; it may only tell the type checker what is known already."""
    for node in ast.walk(house.tree(path)):
        if isinstance(node, ast.Assert):
            text = ast.unparse(node.test)
            known = "is not None" in text or text.startswith("isinstance(")
            assert known, f"{house.short(path)}:{node.lineno}: assert {text}"


# Mutations: each rule sees a violation when there is one.

BAD = {
    "containers/x.py": ("import numpy", numpy_faults),
    "reports/x.py": ("import numpy as np", numpy_faults),
    "base/x.py": ("from weighbridge.io.source import Source", layer_faults),
    "packings/x.py": ("def f():\n    from weighbridge.containers import base", layer_faults),
    "models/x.py": ("from weighbridge.conversion import plan", layer_faults),
    "reports/y.py": ("from weighbridge.conversion.plan.model import Plan", layer_faults),
}


@pytest.mark.parametrize("place", BAD)
def test_the_rules_see_a_violation(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, rule = BAD[place]
    path = tmp_path / "weighbridge" / place
    path.parent.mkdir(parents=True)
    path.write_text(code, "utf-8")
    monkeypatch.setattr(house, "PACKAGE", tmp_path / "weighbridge")
    assert rule(path)


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
