"""`wb ship hub`: the card by huggingface_hub's own parser, uploads to a Hub of the tests' own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.remote.hub_repository import WritableHub
from tests.reports.makers import llama_folder

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, RemoteError, UsageError
from weighbridge.reports.prove.model import SCHEMA

hub_package = pytest.importorskip("huggingface_hub")
# huggingface_hub's own use of its HTTP client.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[WritableHub]:
    constants = hub_package.constants
    with WritableHub().running() as found:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # others' tests are offline
        monkeypatch.setattr(constants, "ENDPOINT", found.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_ENDPOINT", found.endpoint)
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield found


@pytest.fixture
def folder(gguf: Path, tmp_path: Path) -> Path:
    """Two GGUFs of one model."""
    path = tmp_path / "repo"
    path.mkdir()
    shutil.copy(gguf, path / "tiny-F16.gguf")
    wb.quantize(gguf, path / "tiny-Q8_0.gguf", "Q8_0")
    (path / ".hidden").write_text("x")
    return path


def parsed(text: str) -> Any:
    return hub_package.ModelCard(text)


def test_the_card_is_read_by_the_hubs_parser(folder: Path) -> None:
    report = wb.plan_ship("hub", folder, "me/tiny-GGUF", base_model="org/tiny").report
    card = parsed(report.text)
    assert card.data.to_dict() == {
        "base_model": "org/tiny", "base_model_relation": "quantized", "library_name": "gguf",
        "pipeline_tag": "text-generation", "tags": ["gguf", "conversational"], "quantized_by": "me",
    }  # fmt: skip
    assert "| tiny-Q8_0.gguf | Q8_0 | 0.00 GB |" in card.text
    assert "+0.0027 | 0.00136 |" in card.text
    assert "<|im_start|>system\n{system}<|im_end|>" in card.text
    assert "llama-server -hf me/tiny-GGUF:F16" in card.text


def proof(path: Path, about: Path, **changes: Any) -> Path:
    """A report as `wb prove --json` prints it."""
    made = {
        "name": "predictions",
        "verdict": "same",
        "message": "",
        "measures": {"divergence": 0.0123, "agreement": 0.96},
    }
    text = {"name": "perplexity", "verdict": "same", "message": "", "measures": {"source": 8.0, "target": 8.25}}
    report = {"src": "org/tiny", "dst": str(about), "verdict": "same", "checks": [made, text], "schema": SCHEMA}
    path.write_text(json.dumps(report | changes))
    return path


def test_what_was_measured_is_in_the_card(folder: Path, tmp_path: Path) -> None:
    report = proof(tmp_path / "p.json", folder / "tiny-Q8_0.gguf")
    card = parsed(wb.plan_ship("hub", folder, "me/tiny-GGUF", measured=[report]).report.text)
    assert "| tiny-Q8_0.gguf | tiny | 0.012 | 96.0% | 8.25 | 8 |" in card.text
    assert card.data.library_name == "gguf"


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"dst": "other.gguf"}, UsageError, "which isn't shipped"),
        ({"verdict": "different"}, RefusedError, "another model"),
        ({"checks": []}, UsageError, "no predictions"),
        ({"schema": "weighbridge/diff/1"}, FormatError, "not a report"),
        ({"checks": 3}, FormatError, "not a report"),
    ],
)
def test_reports_that_say_nothing_of_the_file(
    folder: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    report = proof(tmp_path / "p.json", folder / "tiny-Q8_0.gguf", **changes)
    with pytest.raises(error, match=words):
        wb.plan_ship("hub", folder, "me/tiny-GGUF", measured=[report])


def test_what_a_card_says_already_is_kept(folder: Path) -> None:
    (folder / "README.md").write_text("---\nlicense: mit\ntags: [mine]\n---\n# Mine\n\ntext\n")
    card = parsed(wb.plan_ship("hub", folder, "me/tiny-GGUF").report.text)
    assert (card.data.license, card.data.tags, card.data.library_name) == ("mit", ["mine"], "gguf")
    assert card.text.strip() == "# Mine\n\ntext"


@pytest.mark.parametrize(
    ("make", "library", "relation"),
    [
        (lambda src, dst: wb.convert(src, dst, to="mlx", quantize=True, q_group_size=32), "mlx", "quantized"),
        (lambda src, dst: wb.convert(src, dst, to="hf", scheme="w4a16", q_group_size=32), "transformers", "quantized"),
        (lambda src, dst: wb.convert(src, dst, to="hf"), "transformers", None),
    ],
)
def test_folders_have_cards_too(
    model: Path, tmp_path: Path, make: Callable[[Path, Path], Any], library: str, relation: str | None
) -> None:
    make(model, tmp_path / "out")
    card = parsed(wb.plan_ship("hub", tmp_path / "out", "me/x", base_model="org/tiny").report.text)
    assert card.data.library_name == library
    assert card.data.get("base_model_relation") == relation
    assert card.data.pipeline_tag == "text-generation"


def test_missing_facts_are_said(folder: Path) -> None:
    shutil.move(folder / "tiny-Q8_0.gguf", folder / "other.gguf")
    notes = " ".join(wb.plan_ship("hub", folder, "me/x").report.notes)
    assert "no base model" in notes
    assert "no licence" in notes
    assert "other.gguf: apps choose" in notes


def test_an_upload_is_one_commit(folder: Path, hub: WritableHub) -> None:
    report = wb.ship("hub", folder, "org/model", private=True)
    assert set(hub.files) == {"README.md", "tiny-F16.gguf", "tiny-Q8_0.gguf"}
    assert hub.files["tiny-Q8_0.gguf"] == (folder / "tiny-Q8_0.gguf").read_bytes()
    assert parsed(hub.files["README.md"].decode()).data.library_name == "gguf"
    assert hub.private is True
    assert len(hub.commits) == 2  # the first is of the repository
    assert hub.commits[-1] in report.files[-1].path


PICKLES = {
    "runs os.system": (b"cposix\nsystem\n(S'true'\ntR.", "dangerous"),
    "breaks": (b"\x80\x02}q\x00(X\x01\x00\x00\x00a", "malformed"),
    "names a class": (b"\x80\x02cown_package\nThing\n)\x81.", "unknown-code"),
    "data": (b"\x80\x02N.", ""),
}


@pytest.mark.parametrize("name", ["optimizer.pt", "extra/rng_state.pth", "notes"])
@pytest.mark.parametrize("what", PICKLES)
def test_what_is_uploaded_is_scanned_first(folder: Path, hub: WritableHub, what: str, name: str) -> None:
    data, verdict = PICKLES[what]
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    if verdict in ("dangerous", "malformed"):
        for ship in (wb.ship, wb.plan_ship):
            with pytest.raises(RefusedError, match=f"{name}: {verdict}") as refused:
                ship("hub", folder, "org/model")
            assert refused.value.option == "--allow-dangerous"
        assert name not in hub.files
    report = wb.ship("hub", folder, "org/model", allow_dangerous=verdict in ("dangerous", "malformed"))
    assert hub.files[name] == data
    assert any(note.startswith(f"{name}: {verdict}") for note in report.notes) is bool(verdict)


def test_a_card_alone_needs_no_scan(folder: Path, tmp_path: Path) -> None:
    (folder / "optimizer.pt").write_bytes(PICKLES["runs os.system"][0])
    assert wb.ship("hub", folder, "me/x", output=tmp_path / "README.md").files


@pytest.mark.costly
def test_a_file_that_is_there_stays(folder: Path, hub: WritableHub) -> None:
    hub.commits.append("a" * 40)
    hub.files["README.md"] = b"old"
    with pytest.raises(RefusedError, match=r"README\.md already"):
        wb.ship("hub", folder, "org/model")
    assert hub.files["README.md"] == b"old"
    wb.ship("hub", folder, "org/model", create_pr=True)
    assert hub.pull_requests == 1
    wb.ship("hub", folder, "org/model", overwrite=True)
    assert hub.files["README.md"] != b"old"


def test_a_refusal_of_the_hub_says_what_to_do(folder: Path, hub: WritableHub) -> None:
    hub.refuse = 403
    with pytest.raises(RemoteError, match="org/model") as caught:
        wb.ship("hub", folder, "org/model")
    assert "token" in str(caught.value)


def test_the_card_alone(folder: Path, tmp_path: Path) -> None:
    report = wb.ship("hub", folder, "me/x", output=tmp_path / "README.md")
    assert (tmp_path / "README.md").read_text() == report.text


@pytest.mark.parametrize("name", ["", "x", "a/b/c", "../x", "me/..", "me/x.git", "a b/c", "me/x--y", f"me/{'x' * 99}"])
def test_names_that_the_hub_refuses(folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match="repository"):
        wb.plan_ship("hub", folder, name)


@pytest.mark.parametrize("name", ["a/b/c", "../x", "me/..", "me/x.git", "a b/c", "me/x--y", f"me/{'x' * 99}"])
def test_the_hubs_own_check_refuses_them_too(name: str) -> None:
    with pytest.raises(hub_package.errors.HFValidationError):
        hub_package.utils.validate_repo_id(name)


def test_the_card_of_a_sharded_folder_is_of_all_shards(tmp_path: Path, hub: WritableHub) -> None:
    folder = llama_folder(tmp_path / "m", shards=2)
    wb.ship("hub", folder, "me/x", output=tmp_path / "README.md")
    (row,) = (line for line in (tmp_path / "README.md").read_text().splitlines() if line.startswith("| model-"))
    name, kind, *_ = (cell.strip() for cell in row.strip("|").split("|"))
    assert name == "model-00001-of-00002.safetensors to model-00002-of-00002.safetensors"
    assert kind == wb.inspect(folder).type_words
