"""Both GGUFs of a model that sees reach every program, whatever the model is stored as: a folder, a GGUF next to its
mmproj file, a folder of these, a Modelfile, an entry of Ollama's store."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.models.projector_cases import golden, write_folder
from tests.remote.test_towers import words
from tests.shipping import ollama_store

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError
from weighbridge.conversion.forms.library import MMPROJ, ModelForms
from weighbridge.conversion.forms.shelf import ModelFolder
from weighbridge.models.llamacpp import companions
from weighbridge.shipping.ollama.pull import PullableModels


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words(write_folder(golden()["smolvlm"], tmp_path_factory.mktemp("ship") / "tiny-eye"))


@pytest.fixture(scope="module")
def pair(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both GGUFs."""
    root = tmp_path_factory.mktemp("pair")
    wb.convert(folder, root / "eye.gguf")
    wb.convert(folder, root / "mmproj-eye.gguf", mmproj=True)
    return root


def _modelfile(folder: Path, pair: Path, tmp_path: Path) -> Path:
    path = tmp_path / "Modelfile"
    path.write_text(f"FROM {pair / 'eye.gguf'}\nFROM {pair / 'mmproj-eye.gguf'}\n")
    return path


def _stored(folder: Path, pair: Path, tmp_path: Path) -> str:
    wb.ship("ollama", pair / "eye.gguf", "stored", template="none")
    return "ollama://stored"


SOURCES: dict[str, Callable[[Path, Path, Path], Path | str]] = {
    "folder": lambda folder, pair, tmp_path: folder,
    "gguf": lambda folder, pair, tmp_path: pair / "eye.gguf",
    "folder of ggufs": lambda folder, pair, tmp_path: pair,
    "modelfile": _modelfile,
    "store": _stored,
}
GGUFS = [name for name in SOURCES if name != "folder"]


def projector(pair: Path) -> bytes:
    return (pair / "mmproj-eye.gguf").read_bytes()


@pytest.mark.parametrize("type", [None, "Q8_0"])
@pytest.mark.parametrize("source", SOURCES)
def test_ollama_gets_both(source: str, type: str | None, folder: Path, pair: Path, tmp_path: Path) -> None:
    report = wb.ship("ollama", SOURCES[source](folder, pair, tmp_path), "eye", type=type, template="none")
    stored = ollama_store.read(tmp_path / "ollama", "eye")
    assert stored.one("projector") == projector(pair)
    assert stored.config["model_families"] == ["llama", "clip"]
    assert not any("--mmproj" in note for note in report.notes)
    assert {f.path for f in report.files} <= {str(p) for p in (tmp_path / "ollama").rglob("*")}
    assert all(len(path.name) == len("sha256-") + 64 for path in (tmp_path / "ollama" / "blobs").iterdir())


@pytest.mark.parametrize("type", [None, "Q8_0"])
@pytest.mark.parametrize("source", [name for name in SOURCES if name != "modelfile"])
def test_lm_studio_gets_both(source: str, type: str | None, folder: Path, pair: Path, tmp_path: Path) -> None:
    path = SOURCES[source](folder, pair, tmp_path)
    for overwrite in (False, True):
        report = wb.ship("lmstudio", path, "me/eye", overwrite=overwrite, type=type, store=tmp_path / "lm")
        found = {file.name: file for file in (tmp_path / "lm" / "me" / "eye").iterdir()}
        towers = [file for name, file in found.items() if "mmproj" in name]
        assert [file.read_bytes() for file in towers] == [projector(pair)]
        assert len(found) == 2
        assert all(name.endswith(".gguf") for name in found)
        assert {file.path for file in report.files} == {str(file) for file in found.values()}


@pytest.mark.parametrize("source", GGUFS)
def test_llama_server_gets_both(source: str, folder: Path, pair: Path, tmp_path: Path) -> None:
    report = wb.ship("llama-server", SOURCES[source](folder, pair, tmp_path))
    arguments = shlex.split(report.run[0])
    assert Path(arguments[arguments.index("--mmproj") + 1]).read_bytes() == projector(pair)


def test_the_hint_for_llama_server_writes_both(folder: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        wb.ship("llama-server", folder)
    assert str(caught.value.hint).endswith("--with-mmproj")


@pytest.mark.parametrize("source", [name for name in GGUFS if name != "modelfile"])
def test_forms_of_a_stored_gguf_have_its_mmproj_file(source: str, folder: Path, pair: Path, tmp_path: Path) -> None:
    from weighbridge.adapters.remote.schemes import local_path

    path = local_path(SOURCES[source](folder, pair, tmp_path))
    with ModelForms(path, ("Q8_0", "F16", "safetensors")) as forms:
        files = dict(forms.tree())
        (name,) = (name for name in files if "mmproj" in name)
        assert name.endswith(".gguf")
        assert files[name].read(0, len(projector(pair)) + 1) == projector(pair)
        assert forms.reasons == {}
    with ModelFolder(path, ("Q8_0",)) as shelf:
        for repository in shelf.repositories():
            served = shelf.files(repository) or {}
            assert [file.read(0, file.size) for name, file in served.items() if "mmproj" in name] == [projector(pair)]
        pulled = PullableModels(shelf, print)
        for tag in ("F16", "Q8_0", "latest"):
            model = pulled.pulled(shelf.repositories()[0], tag)
            assert model is not None
            assert projector(pair) in [file.read(0, file.size) for file in model.blobs.values()]


def test_one_of_several_or_another_model_s_isn_t_chosen(pair: Path, tmp_path: Path) -> None:
    shutil.copytree(pair, tmp_path / "two")
    wide = words(write_folder(golden()["gemma3"], tmp_path / "wide"))
    wb.convert(wide, tmp_path / "two" / "mmproj-other.gguf", mmproj=True)
    report = wb.ship("ollama", tmp_path / "two" / "eye.gguf", "one", template="none")
    assert ollama_store.read(tmp_path / "ollama", "one").one("projector") == projector(pair)
    assert any("mmproj-other.gguf isn't used" in note for note in report.notes)
    shutil.copy(pair / "mmproj-eye.gguf", tmp_path / "two" / "mmproj-second.gguf")
    report = wb.ship("ollama", tmp_path / "two" / "eye.gguf", "two", template="none")
    assert ollama_store.read(tmp_path / "ollama", "two").one("projector") is None
    assert any("mmproj-eye.gguf, mmproj-second.gguf" in note for note in report.notes)
    with ModelForms(tmp_path / "two" / "eye.gguf", ("Q8_0",)) as forms:
        assert len(dict(forms.tree())) == 1
        assert "mmproj-second.gguf" in forms.reasons[MMPROJ]
    given = tmp_path / "two" / "mmproj-second.gguf"
    wb.ship("ollama", tmp_path / "two" / "eye.gguf", "three", template="none", mmproj=given)
    assert ollama_store.read(tmp_path / "ollama", "three").one("projector") == projector(pair)


def test_a_link_out_of_the_folder_isn_t_served(pair: Path, tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    shutil.copy(pair / "eye.gguf", tmp_path / "served")
    (tmp_path / "served" / "mmproj-eye.gguf").symlink_to(pair / "mmproj-eye.gguf")
    with ModelFolder(tmp_path / "served", ("Q8_0",)) as shelf:
        for repository in shelf.repositories():
            assert not any("mmproj" in name for name in shelf.files(repository) or {})
            assert "link" in " ".join(shelf.reasons(repository).values())


def test_a_tower_that_does_not_convert_is_noted(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "odd")
    (tmp_path / "odd" / "preprocessor_config.json").unlink()
    report = wb.ship("ollama", tmp_path / "odd", "odd", template="none")
    assert ollama_store.read(tmp_path / "ollama", "odd").one("projector") is None
    assert any(note.startswith("without its towers: ") for note in report.notes)


@pytest.mark.parametrize("at", ["the model's run", "the projector's run"])
def test_a_failure_leaves_nothing(
    at: str, folder: Path, pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weighbridge.conversion.plan.model import Plan

    run, count = Plan.run, 0

    def failing(plan: Plan, *arguments: object) -> object:
        nonlocal count
        count += 1
        if count == (1 if at == "the model's run" else 2):
            raise OSError(28, "no space")
        return run(plan, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Plan, "run", failing)
    for program, options in (("ollama", {"template": "none"}), ("lmstudio", {"store": tmp_path / "lm"})):
        count = 0
        with pytest.raises(OSError, match="no space"):
            wb.ship(program, folder, "me/eye", **options)
    assert not [path for root in ("ollama", "lm") for path in (tmp_path / root).rglob("*") if path.is_file()]


def test_names_that_clients_recognise(pair: Path) -> None:
    assert companions.mmproj_name(pair / "mmproj-eye.gguf", "x") == "mmproj-eye.gguf"
    assert companions.mmproj_name(pair / "towers.gguf", "x") == "mmproj-x.gguf"
    assert companions.mmproj_name(pair / "sha256-mmproj", "x") == "mmproj-x.gguf"
