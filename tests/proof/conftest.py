"""Session-wide makings of the proofs: each model, each conversion is made once, on first use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TOKENIZERS_PARALLELISM="false")
os.environ.update(TRANSFORMERS_VERBOSITY="error", TRANSFORMERS_NO_ADVISORY_WARNINGS="1")

for _oracle in ("torch", "transformers", "gguf", "xllamacpp", "sentencepiece", "tokenizers"):
    if os.environ.get("CI") != "true":
        pytest.importorskip(_oracle, reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")

from tests.oracles import gguf_file, models, ours, reference_converter  # noqa: E402
from tests.oracles.case import Case  # noqa: E402
from tests.oracles.llama_loads import Judge  # noqa: E402
from tests.oracles.reference_converter import Job  # noqa: E402
from tests.oracles.sharing import made_once  # noqa: E402

Maker = Callable[[str], Path]
Converter = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One worker's own."""
    return tmp_path_factory.mktemp("proof")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """What all workers of a session use."""
    base = tmp_path_factory.getbasetemp()
    return (base if worker_id == "master" else base.parent) / "shared-proof"


@pytest.fixture(scope="session")
def folder_of(shared: Path) -> Maker:
    """Case name -> its Hugging Face folder, f32 unless the case names another. `NAME@bfloat16` for another type."""

    @cache
    def make(name: str) -> Path:
        dtype = name.partition("@")[2] or _case(name).stored
        return made_once(shared / "hf" / name, lambda path: models.build(_case(name), path, dtype=dtype))

    return make


@pytest.fixture(scope="session")
def gguf_of(shared: Path, folder_of: Maker) -> Converter:
    """(case, dtype) -> the GGUF that we make of it."""

    @cache
    def make(name: str, dtype: str) -> Path:
        folder, pre, known = folder_of(name), _case(name).pre, name.partition("@")[0] not in ours.REFUSED

        def write(path: Path) -> Path:
            return ours.to_gguf(folder, path, dtype, pre=pre, checked=known)

        return made_once(shared / f"{name}-{dtype}.gguf", write)

    return make


@pytest.fixture(scope="session")
def reference_of(shared: Path, folder_of: Maker) -> Converter:
    """(case, dtype) -> the GGUF that the reference converter makes of it."""

    @cache
    def make(name: str, dtype: str) -> Path:
        folder, case = str(folder_of(name)), _case(name)

        def run(path: Path) -> None:
            reference_converter.run(Job(folder, str(path), dtype, case.pre, case.hparams, case.flags))

        return made_once(shared / f"{name}-{dtype}-reference.gguf", run)

    return make


@pytest.fixture(scope="session")
def expected_logits(shared: Path, folder_of: Maker) -> Callable[[str], models.F32]:
    """Case name -> transformers' logits of the probe (for a model with a window: with the window off; see the test)."""

    @cache
    def make(name: str) -> models.F32:
        windowless = {"sliding_window": None} if name.startswith("mistral") else {}
        folder, settings = folder_of(name), windowless | _case(name).settings

        def run(path: Path) -> None:
            np.save(path, models.logits(folder, models.probe_of(name), **settings))

        logits: models.F32 = np.load(made_once(shared / f"{name}-logits.npy", run))
        return logits

    return make


@pytest.fixture(scope="session")
def parsed() -> Callable[[Path], gguf_file.File]:
    return cache(gguf_file.read)


def _case(name: str) -> Case:
    return models.CASES[name.partition("@")[0]]


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    opened = Judge()
    yield opened
    opened.close()
