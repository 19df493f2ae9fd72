"""Starting is cheap: nothing heavy is imported before it is needed. Each check runs in a fresh interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.llama import make_folder

from weighbridge.base.dtypes import dtype
from weighbridge.base.spec import Spec
from weighbridge.cli.main import main
from weighbridge.containers.base import Layout
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.safetensors import layout as safetensors_layout

HEAVY = ("numpy", "ml_dtypes", "rich", "torch", "mlx", "transformers")
_REPORT = "import json, sys; print('\\n' + json.dumps([*sys.modules]))"


def modules_after(code: str) -> set[str]:
    """The modules that are loaded when `code` has run."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{_REPORT}"], capture_output=True, text=True, check=True, env=environment
    )
    return set(json.loads(done.stdout.rstrip().splitlines()[-1]))


def after_command(*arguments: str) -> set[str]:
    return modules_after(f"from weighbridge.cli.main import main; assert main({list(arguments)!r}) in (0, 1)")


def test_the_package_loads_nothing() -> None:
    found = modules_after("import weighbridge")
    assert {m for m in found if m.startswith("weighbridge")} == {"weighbridge"}
    assert not found & {"click", "msgspec", *HEAVY}


def test_help_loads_no_command() -> None:
    found = after_command("--help")
    assert not [m for m in found if m.startswith("weighbridge.cli.commands")]
    assert {m for m in found if m.startswith("weighbridge")} == {
        *(
            "weighbridge",
            "weighbridge.base",
            "weighbridge.base.errors",
            "weighbridge.base.options",
            "weighbridge.base.records",
        ),
        *("weighbridge.cli", "weighbridge.cli.main", "weighbridge.cli.options", "weighbridge.cli.render"),
    }
    assert not found & {"msgspec", *HEAVY}


def write(path: Path, layout: Layout) -> Path:
    data = bytearray(layout.size)
    for at, piece in layout.pieces:
        data[at : at + len(piece)] = piece
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    tensors = [("model.embed_tokens.weight", Spec((4, 32), dtype("F16")))]
    return [
        write(folder / "m.safetensors", safetensors_layout.layout(tensors, {"format": "pt"})),
        write(folder / "m.gguf", gguf.layout(tensors, {"general.architecture": "llama"})),
    ]


@pytest.mark.parametrize("command", ["inspect", "identify", "anatomy", "verify", "edit"])
def test_a_look_at_headers_loads_no_numpy(files: list[Path], command: str) -> None:
    for path in files:
        assert not after_command(command, str(path)) & set(HEAVY), f"wb {command} {path.name}"


def test_a_scan_loads_the_readers_of_texts_for_texts_only(files: list[Path]) -> None:
    for path in files:
        assert not after_command("scan", str(path)) & {"jinja2", "yaml"}, path.name


def test_json_loads_no_rich(files: list[Path]) -> None:
    assert "rich" not in after_command("inspect", str(files[0]), "--json")


def test_where_no_package_is_a_plugin_none_is_parsed() -> None:
    found = modules_after("from weighbridge.base.plugins import plugins; assert not plugins('weighbridge.nothing')")
    assert not found & {"email", "csv"}  # what importlib.metadata loads


def test_the_check_sees_an_import() -> None:
    assert "numpy" in modules_after("import numpy")


#: Command -> how many modules it may load: ours, and others; none loads numpy. A few above what it needs, so that an
#: import that creeps in at the top of a file shows. Each module costs about half a millisecond of every start. Others
#: differ with Python's version and how the package is installed.
BUDGETS = {
    "--help": (9, 139),
    "identify {gguf}": (60, 165),
    "inspect {gguf}": (106, 161),
    "inspect {safetensors}": (103, 161),
    "inspect {folder}": (102, 161),
    "verify {gguf}": (203, 219),
    "hash {gguf}": (68, 186),
    "scan {safetensors}": (177, 181),
    "convert {folder} {target} --dry-run": (237, 167),
    "convert {safetensors} {target}.npz --dry-run": (193, 167),
    "convert {gguf} {target}.safetensors --dry-run": (187, 167),
    "quantize {folder} {target} Q4_K_M --dry-run": (252, 167),
    "quantize {gguf} {target} Q4_K_M --dry-run": (218, 167),
}


@pytest.fixture(scope="module")
def places(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = make_folder(tmp_path_factory.mktemp("llama") / "model", words=True)
    whole = folder.parent / "whole.gguf"
    assert main(["-q", "convert", str(folder), str(whole)]) == 0
    return {
        "folder": str(folder), "gguf": str(whole), "safetensors": str(files[0]),
        "target": str(folder.parent / "out.gguf"),
    }  # fmt: skip


@pytest.mark.parametrize("command", BUDGETS)
def test_a_command_loads_no_more_modules_than_its_budget(command: str, places: dict[str, str]) -> None:
    arguments = command.format(**places).split()
    after_command(*arguments)  # the first start compiles the tables, which loads tomllib
    found = after_command(*arguments)
    ours = {m for m in found if m.partition(".")[0] == "weighbridge"}
    others = found - ours
    most, most_others = BUDGETS[command]
    assert not found & set(HEAVY)
    assert len(ours) <= most, sorted(ours)
    assert len(others) <= most_others, sorted(others)
