"""Both GGUFs of a model that sees, wherever it is read from and written to: a folder or the Hub, a folder or a bucket,
`wb serve` to a client of the Hub or of Ollama. The two files have the bytes of two conversions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.llama import tokenizer
from tests.models.projector_cases import golden, write_folder
from tests.remote.servers import Hub
from tests.remote.test_ollama_pull import OllamaPull
from tests.remote.test_serve import serving
from tests.remote.uploads import files
from tests.shipping.models import CHATML

import weighbridge as wb
from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.conversion.forms.library import MMPROJ, ModelForms
from weighbridge.conversion.forms.shelf import ModelFolder
from weighbridge.shipping.run import how_to_run

#: name -> function, its options, the options of the same model's text alone
COMMANDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "convert": (wb.convert, {"to": "gguf"}),
    "quantize": (wb.quantize, {"ftype": "Q8_0"}),
    "sized": (wb.quantize, {"target_bpw": 6.0}),
}


def words(folder: Path, count: int = 32) -> Path:
    """Adds a tokenizer of `count` tokens to a model folder."""
    made: Any = tokenizer()
    first = {name: number for name, number in made["model"]["vocab"].items() if number < count}
    made["model"]["vocab"] = first
    (folder / "tokenizer.json").write_text(json.dumps(made))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    return folder


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words(write_folder(golden()["smolvlm"], tmp_path_factory.mktemp("seeing") / "tiny-eye"))


@pytest.fixture(scope="module")
def mmproj(seeing: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("mmproj") / "m.gguf"
    wb.convert(seeing, path, mmproj=True)
    return path.read_bytes()


@pytest.mark.parametrize("where", ["folder", "bucket"])
@pytest.mark.parametrize("source", ["folder", "hub"])
@pytest.mark.parametrize("name", COMMANDS)
def test_both_files_are_those_of_two_commands(
    name: str,
    source: str,
    where: str,
    seeing: Path,
    mmproj: bytes,
    tmp_path: Path,
    connect: Callable[..., None],
    request: pytest.FixtureRequest,
) -> None:
    run, options = COMMANDS[name]
    run(seeing, tmp_path / "text.gguf", **options)
    with Hub(seeing).running() as hub:
        connect(hub)
        path: Path | str = seeing if source == "folder" else "hf://org/model"
        if where == "folder":
            run(path, f"{tmp_path}/both/", with_mmproj=True, **{"name": "Tiny Eye", **options})
            written = files(tmp_path / "both")
        else:
            client = request.getfixturevalue("bucket")
            run(path, "s3://models/both/", with_mmproj=True, **{"name": "Tiny Eye", **options})
            rows = client.list_objects_v2(Bucket="models", Prefix="both/")["Contents"]
            written = {
                row["Key"].removeprefix("both/"): client.get_object(Bucket="models", Key=row["Key"])["Body"].read()
                for row in rows
            }
    assert written == {"both.gguf": (tmp_path / "text.gguf").read_bytes(), "mmproj-Tiny-Eye-F16.gguf": mmproj}


@pytest.mark.parametrize("name", ["qwen3-tts", "pocket-tts"])
def test_what_speaks_is_read_from_an_archive_and_from_the_hub(
    name: str, tmp_path: Path, connect: Callable[..., None]
) -> None:
    """Also of a folder below the model's, and without a config.json. Keys with the source's name differ."""
    folder = write_folder(golden()[name], tmp_path / "model")
    archive = shutil.make_archive(str(tmp_path / "model"), "zip", tmp_path, "model")
    with Hub(folder).running() as hub:
        connect(hub)
        for source, target in ((folder, "folder"), (archive, "archive"), ("hf://org/model", "hub")):
            wb.convert(source, tmp_path / f"{target}.gguf", mmproj=True, name="Tiny Voice")
    written = {(tmp_path / f"{target}.gguf").read_bytes() for target in ("folder", "archive", "hub")}
    assert len(written) == 1


def test_the_command_that_runs_both_is_named(seeing: Path, tmp_path: Path) -> None:
    with wb.plan_quantize(seeing, f"{tmp_path}/both/", "Q8_0", with_mmproj=True) as plan:
        files = {name: str(tmp_path / "both" / name) for name in plan.names}
        mmproj = files.pop("mmproj-Tiny-Eye-F16.gguf")
        assert how_to_run(plan) == f"llama-server -m {files['both.gguf']} --mmproj {mmproj}"


FORMS = ("Q8_0", "F16")


def test_forms_of_a_model_that_sees_share_its_mmproj(seeing: Path, mmproj: bytes) -> None:
    with ModelForms(seeing, FORMS) as forms:
        tree = dict(forms.tree())
        assert list(tree) == ["tiny-eye-Q8_0.gguf", "mmproj-Tiny-Eye-F16.gguf", "tiny-eye-F16.gguf"]
        assert tree["mmproj-Tiny-Eye-F16.gguf"].read(0, len(mmproj) + 1) == mmproj
        assert forms.reasons == {}


def test_a_tower_that_does_not_convert_leaves_the_text_and_a_reason(tmp_path: Path) -> None:
    case = json.loads(json.dumps(golden()["smolvlm"]))
    case["names"]["model.vision_model.encoder.layers.1.gate"] = [64]
    words(write_folder(case, tmp_path / "odd"))
    with ModelForms(tmp_path / "odd", ("Q8_0",)) as forms:
        assert [name for name, _ in forms.tree()] == ["odd-Q8_0.gguf"]
        assert "layers.1.gate" in forms.reasons[MMPROJ]
    with ModelFolder(tmp_path / "odd", ("Q8_0", "safetensors")) as shelf:
        assert shelf.files("odd-GGUF")
        assert "layers.1.gate" in shelf.reasons("odd-GGUF")[MMPROJ]
        assert MMPROJ not in shelf.reasons("odd-safetensors")


@pytest.fixture
def url(seeing: Path) -> Iterator[str]:
    yield from serving(seeing)


def test_a_client_of_the_hub_downloads_both(
    url: str, seeing: Path, mmproj: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    api = hub.HfApi(endpoint=url)
    names = set(api.list_repo_files("local/tiny-eye-GGUF"))
    assert names == {"tiny-eye-Q8_0.gguf", "tiny-eye-Q4_K_M.gguf", "mmproj-Tiny-Eye-F16.gguf"}
    got = hub.hf_hub_download(
        "local/tiny-eye-GGUF", "mmproj-Tiny-Eye-F16.gguf", endpoint=url, local_dir=tmp_path / "got"
    )
    assert Path(got).read_bytes() == mmproj


def test_ollama_pulls_the_projector(url: str, mmproj: bytes, tmp_path: Path) -> None:
    OllamaPull(url, "local/tiny-eye").pull("Q8_0", tmp_path / "ollama", "eye")
    model = wb.inspect("ollama://eye:Q8_0")
    assert model.tensors
    (manifest,) = (tmp_path / "ollama").rglob("manifests/*/*/*/*")
    stored = json.loads(manifest.read_text())
    kinds = [layer["mediaType"].rpartition(".")[2] for layer in stored["layers"]]
    assert kinds[:2] == ["model", "projector"]
    blobs = tmp_path / "ollama" / "blobs"
    assert (blobs / stored["layers"][1]["digest"].replace(":", "-")).read_bytes() == mmproj
    config = json.loads((blobs / stored["config"]["digest"].replace(":", "-")).read_text())
    assert config["model_families"] == ["llama", "clip"]
    assert resolve_path("ollama://eye:Q8_0").exists()


@pytest.mark.parametrize(
    ("run", "options"),
    [(wb.convert, {"to": "gguf", "vocab_only": True}), (wb.quantize, {"ftype": "Q8_0", "keep_split": True})],
)
def test_options_that_contradict_two_files(
    run: Callable[..., Any], options: dict[str, Any], seeing: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError):
        run(seeing, f"{tmp_path}/both/", with_mmproj=True, **options)
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize("name", ["convert", "quantize"])
def test_models_without_towers_are_refused(name: str, seeing: Path, tmp_path: Path) -> None:
    """A model of text, a GGUF, and a target that isn't a folder."""
    run, options = COMMANDS[name]
    text = {**golden()["smolvlm"]["config"], "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    write_folder({**golden()["smolvlm"], "config": text}, tmp_path / "text")
    for source, target, error in (
        (tmp_path / "text", f"{tmp_path}/both/", UnsupportedError),
        (seeing, tmp_path / "one.gguf", UsageError),
    ):
        with pytest.raises(error):
            run(source, target, with_mmproj=True, tokenizer=False, **options)
    wb.convert(seeing, tmp_path / "text.gguf")
    with pytest.raises(UsageError, match=r"no mmproj file of .*text\.gguf is next to it"):
        run(tmp_path / "text.gguf", f"{tmp_path}/both/", with_mmproj=True, **options)
    assert not (tmp_path / "both").exists()
