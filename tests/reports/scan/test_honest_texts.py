"""Texts that packages ship (configs, data, documentation, templates) are data, but for what a policy reports."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from weighbridge.reports.scan.engine import scan_file

PACKAGES = ("accelerate", "gguf", "huggingface_hub", "jax", "mlx_lm", "peft", "ray", "torch", "transformers", "uvicorn")
SUFFIXES = {".yaml", ".yml", ".json", ".txt", ".md", ".cfg", ".toml", ".ini", ".conf", ".jinja", ".j2", ".html", ""}
_LONGEST = 1 << 20
#: Templates that a compiler fills: they call functions of their own program, and hold its code.
POLICY = {("torch", "template/unproven"), ("torch", "template/underscored-text")}


@cache
def folder(package: str) -> Path | None:
    spec = find_spec(package)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def texts(package: str) -> Iterator[Path]:
    root = folder(package)
    named = [p for p in sorted(root.rglob("*")) if p.suffix.lower() in SUFFIXES] if root else []
    files = [p for p in named if p.is_file() and not p.is_symlink() and p.stat().st_size < _LONGEST]
    yield from (p for p in files if b"\0" not in p.read_bytes()[:4096])


@pytest.mark.parametrize("package", PACKAGES)
def test_what_packages_ship_is_data(package: str) -> None:
    if folder(package) is None:
        pytest.skip(f"{package} isn't installed")
    loud = {}
    for path in texts(package):
        report = scan_file(str(path))
        found = {f.rule for f in report.findings if (package, f.rule) not in POLICY}
        if found or report.verdict == "not-scanned":
            loud[path.name] = found
    assert loud == {}
