"""A conversion resolves its model once: one family, one set of sizes, one dialect, one mapping of names to roles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.llama import make_folder

import weighbridge as wb
from weighbridge.models.arch import family, registry

STEPS = {registry: ("family_of_hf", "family_of_gguf"), family: ("detect_dialect",),
         family.Family: ("sizes_from_hf", "sizes_from_gguf", "check", "load_checked")}  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each step of resolving a model runs."""
    counts = Counter[str]()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    for owner, names in STEPS.items():
        for name in names:
            monkeypatch.setattr(owner, name, counted(name, getattr(owner, name)))
    return counts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "llama")


ONCE = dict.fromkeys(("detect_dialect", "check", "load_checked"), 1)
FROM_HF = {**ONCE, "family_of_hf": 1, "sizes_from_hf": 1}
FROM_GGUF = {**ONCE, "family_of_gguf": 1, "sizes_from_gguf": 1}
TO_GGUF = {**FROM_HF, "check": 2, "sizes_from_gguf": 1}  # the planned file is held to llama.cpp's rules
TO_MLX = {**FROM_HF, "check": 2, "detect_dialect": 2, "sizes_from_hf": 2}  # the planned folder is held to mlx-lm's


@pytest.mark.parametrize(("target", "options"), [("gguf", {"tokenizer": False}), ("mlx", {"q_bits": 4})])
def test_a_folder_is_resolved_once(
    folder: Path, tmp_path: Path, calls: Counter[str], target: str, options: dict[str, Any]
) -> None:
    wb.convert(folder, tmp_path / f"m.{target}" if target == "gguf" else tmp_path / "m", to=target, **options)
    assert calls == (TO_GGUF if target == "gguf" else TO_MLX)


def test_a_gguf_is_resolved_once(folder: Path, tmp_path: Path, calls: Counter[str]) -> None:
    wb.convert(folder, tmp_path / "m.gguf", tokenizer=False)
    calls.clear()
    wb.convert(tmp_path / "m.gguf", tmp_path / "back", to="hf", tokenizer=False)
    assert calls == FROM_GGUF


def test_quantizing_resolves_once(folder: Path, tmp_path: Path, calls: Counter[str]) -> None:
    wb.quantize(folder, tmp_path / "q.gguf", "Q8_0", tokenizer=False)
    assert calls == TO_GGUF


def test_a_copy_resolves_nothing(folder: Path, tmp_path: Path, calls: Counter[str]) -> None:
    wb.convert(folder, tmp_path / "m.npz")
    assert not calls
