"""Session-wide makings of the proofs: each model, each conversion is made once, on first use."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TOKENIZERS_PARALLELISM="false")
os.environ.update(TRANSFORMERS_VERBOSITY="error", TRANSFORMERS_NO_ADVISORY_WARNINGS="1")

for _oracle in ("torch", "transformers", "gguf", "xllamacpp", "sentencepiece", "tokenizers"):
    if os.environ.get("CI") != "true":
        pytest.importorskip(_oracle, reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")

from tests.oracles import gguf_file, models, ours, reference_converter  # noqa: E402
from tests.oracles.case import Case  # noqa: E402
from tests.oracles.reference_converter import Job  # noqa: E402

Maker = Callable[[str], Path]
Converter = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proof")


@pytest.fixture(scope="session")
def folder_of(workshop: Path) -> Maker:
    """Case name -> its Hugging Face folder, f32 unless it says another. `NAME@bfloat16` for another storage type."""

    @cache
    def make(name: str) -> Path:
        case, _, dtype = name.partition("@")
        return models.build(models.CASES[case], workshop / "hf" / name, dtype=dtype or models.CASES[case].stored)

    return make


@pytest.fixture(scope="session")
def gguf_of(workshop: Path, folder_of: Maker) -> Converter:
    """(case, dtype) -> the GGUF that we make of it."""

    @cache
    def make(name: str, dtype: str) -> Path:
        return ours.to_gguf(folder_of(name), workshop / f"{name}-{dtype}.gguf", dtype, pre=_pre(name))

    return make


@pytest.fixture(scope="session")
def references(workshop: Path, folder_of: Maker) -> dict[tuple[str, str], Path]:
    """All that tests compare with, made in one go: the reference's start takes longer than its work."""
    wanted = {pair: workshop / f"{pair[0]}-{pair[1]}-reference.gguf" for pair in models.REFERENCES}
    jobs = [
        Job(str(folder_of(name)), str(out), dtype, _pre(name), _case(name).hparams, _case(name).flags)
        for (name, dtype), out in wanted.items()
    ]
    failed = {job.folder: why for job, why in zip(jobs, reference_converter.convert_all(jobs), strict=True) if why}
    assert not failed
    return wanted


@pytest.fixture(scope="session")
def reference_of(references: dict[tuple[str, str], Path]) -> Converter:
    """(case, dtype) -> the GGUF that the reference converter makes of it."""
    return lambda name, dtype: references[name, dtype]


@pytest.fixture(scope="session")
def expected_logits(folder_of: Maker) -> Callable[[str], models.F32]:
    """Case name -> transformers' logits of the probe (for a model with a window: with the window off; see the test)."""

    @cache
    def make(name: str) -> models.F32:
        windowless = {"sliding_window": None} if name.startswith("mistral") else {}
        settings = windowless | models.CASES[name.partition("@")[0]].settings
        return models.logits(folder_of(name), models.probe_of(name), **settings)

    return make


@pytest.fixture(scope="session")
def parsed() -> Callable[[Path], gguf_file.File]:
    return cache(gguf_file.read)


def _case(name: str) -> Case:
    return models.CASES[name.partition("@")[0]]


def _pre(name: str) -> str | None:
    return _case(name).pre
