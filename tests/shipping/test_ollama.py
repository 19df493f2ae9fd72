"""`wb ship ollama`: what lies in the store, by a reader of the tests' own; nothing half-shipped."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.conformance.samples import llamafile
from tests.shipping import ollama_store
from tests.shipping.go_template import render
from tests.shipping.models import LICENCE, write_folder

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.cli.main import cli
from weighbridge.io.sink.store import StoreWriter
from weighbridge.models.modelfile import COMMANDS, parse_modelfile
from weighbridge.shipping.ollama.content import human_number


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "ollama"


def test_a_gguf_is_shipped_as_it_is(gguf: Path, root: Path) -> None:
    report = wb.ship("ollama", gguf, "tiny")
    stored = ollama_store.read(root, "tiny")
    assert stored.one("model") == gguf.read_bytes()
    assert json.loads(stored.one("params") or b"") == {"temperature": 0.6, "top_k": 20, "stop": ["<|im_end|>"]}
    template = (stored.one("template") or b"").decode()
    rendered = render(template, {"Messages": [{"Role": "user", "Content": "Hi"}]})
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert stored.one("license") is None
    assert any("licence" in note for note in report.notes)
    assert {k: stored.config[k] for k in ("model_family", "model_type", "file_type")} == {
        "model_family": "llama", "model_type": "72K", "file_type": "F16",
    }  # fmt: skip
    assert report.run == ("ollama run tiny:latest",)
    assert {f.path for f in report.files} == {str(p) for p in root.rglob("*") if p.is_file()}


def test_a_folder_is_converted_on_the_way(model: Path, root: Path, tmp_path: Path) -> None:
    wb.ship("ollama", model, "me/tiny:q8", type="Q8_0", system="Be short.")
    stored = ollama_store.read(root, "tiny", "q8", namespace="me")
    wb.quantize(model, tmp_path / "same.gguf", "Q8_0")
    assert stored.one("model") == (tmp_path / "same.gguf").read_bytes()
    assert (stored.one("license") or b"").decode() == LICENCE
    assert stored.one("system") == b"Be short."
    assert stored.config["file_type"] == "Q8_0"


def test_what_was_shipped_comes_back(gguf: Path, root: Path, tmp_path: Path) -> None:
    wb.ship("ollama", gguf, "tiny")
    wb.convert("ollama://tiny", tmp_path / "back", to="hf")
    assert wb.diff(tmp_path / "back", gguf)


@pytest.mark.parametrize(
    "plan",
    [
        lambda source, target: wb.plan_convert(source, target / "hf", to="hf"),
        lambda source, target: wb.plan_quantize(source, target / "q.gguf", "Q8_0"),
        lambda source, target: wb.plan_slice(source, target / "s.gguf", layers="0"),
        lambda source, target: wb.plan_split(source, target / "parts", max_shard_tensors=8),
    ],
)
def test_what_the_store_has_beside_the_weights_is_listed(
    plan: Callable[[str, Path], wb.Plan], gguf: Path, root: Path, tmp_path: Path
) -> None:
    wb.ship("ollama", gguf, "tiny", system="Be short.")
    with plan("ollama://tiny", tmp_path) as made:
        (note,) = [note for note in made.notes if "Ollama" in note]
    assert {"template", "system", "params"} <= set(re.findall(r"\w+", note))
    with plan(str(gguf), tmp_path) as made:
        assert not [note for note in made.notes if "Ollama" in note]


def test_what_the_store_says_goes_on_to_the_next(gguf: Path, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "Modelfile"
    file.write_text(
        f'FROM {gguf}\nDRAFT {gguf}\nTEMPLATE "{{{{ .Prompt }}}}"\nSYSTEM Be kind.\nPARAMETER num_ctx 4096\n'
        'PARAMETER stop x\nPARAMETER stop y\nPARAMETER use_mmap false\nMESSAGE user Hi\nLICENSE """MIT\n"""\n'
        "RENDERER qwen3-coder\nPARSER qwen3-coder\nREQUIRES 0.14.0\n"
    )
    wb.ship("ollama", file, "tiny")
    first = ollama_store.read(root, "tiny")
    assert {k: first.config[k] for k in ("renderer", "parser", "requires")} == {
        "renderer": "qwen3-coder", "parser": "qwen3-coder", "requires": "0.14.0",
    }  # fmt: skip
    assert {part for part, _ in first.layers} == {
        *("model", "draft", "template", "system", "params", "messages", "license"),
    }
    wb.ship("ollama", "ollama://tiny", "next")
    assert ollama_store.read(root, "next") == first
    text = wb.plan_ship("ollama", "ollama://tiny", "again", modelfile=tmp_path / "m").report.text
    assert {i.command for i in parse_modelfile(text).instructions} == set(COMMANDS) - {"ADAPTER"}
    wb.ship("ollama", "ollama://tiny", "smaller", type="Q8_0")
    stored = ollama_store.read(root, "smaller")
    assert (stored.config["file_type"], stored.one("system")) == ("Q8_0", b"Be kind.")


@pytest.mark.parametrize(
    ("part", "data"),
    [("params", b"[1]"), ("params", b"{"), ("messages", b'{"role":1}'), ("messages", b"[3]"), ("system", b"\xff")],
)
def test_a_store_whose_texts_are_damaged(part: str, data: bytes, gguf: Path, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "Modelfile"
    file.write_text(f"FROM {gguf}\nSYSTEM Be kind.\nPARAMETER num_ctx 4096\nMESSAGE user Hi\n")
    wb.ship("ollama", file, "tiny")
    manifest = json.loads((root / "manifests/registry.ollama.ai/library/tiny/latest").read_bytes())
    (digest,) = [layer["digest"] for layer in manifest["layers"] if layer["mediaType"].endswith(part)]
    (root / "blobs" / digest.replace(":", "-")).write_bytes(data)
    with pytest.raises(FormatError):
        wb.ship("ollama", "ollama://tiny", "next")


def test_a_sharded_gguf_is_merged(gguf: Path, root: Path, tmp_path: Path) -> None:
    wb.split(gguf, tmp_path / "parts", max_shard_tensors=8)
    first = sorted((tmp_path / "parts").glob("*.gguf"))[0]
    wb.ship("ollama", first, "tiny")
    assert len(sorted((tmp_path / "parts").glob("*.gguf"))) > 1
    (tmp_path / "one.gguf").write_bytes(ollama_store.read(root, "tiny").one("model") or b"")
    assert wb.diff(tmp_path / "one.gguf", gguf)


def test_a_modelfile_is_shipped_with_all_that_it_says(gguf: Path, root: Path, tmp_path: Path) -> None:
    path = tmp_path / "Modelfile"
    path.write_text(
        f'FROM {gguf}\nTEMPLATE "{{{{ .Prompt }}}}"\nSYSTEM Be kind.\nPARAMETER num_ctx 4096\nPARAMETER stop x\n'
        'MESSAGE user Hi\nMESSAGE assistant """Yo"""\nLICENSE """MIT\n"""\n'
    )
    wb.ship("ollama", path, "tiny")
    stored = ollama_store.read(root, "tiny")
    assert stored.one("template") == b"{{ .Prompt }}"
    assert stored.one("system") == b"Be kind."
    assert stored.one("license") == b"MIT\n"
    assert json.loads(stored.one("params") or b"") == {"temperature": 0.6, "top_k": 20, "num_ctx": 4096, "stop": ["x"]}
    assert json.loads(stored.one("messages") or b"") == [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"},
    ]  # fmt: skip


def test_the_modelfile_says_the_same_as_the_store(gguf: Path, root: Path, tmp_path: Path) -> None:
    target = tmp_path / "Modelfile"
    report = wb.ship("ollama", gguf, "tiny", modelfile=target, system='Say "no" twice\n')
    wb.ship("ollama", gguf, "tiny", system='Say "no" twice\n')
    stored, file = ollama_store.read(root, "tiny"), parse_modelfile(target.read_text())
    assert file.values("FROM") == (str(gguf),)
    assert (file.last("TEMPLATE") or "").encode() == stored.one("template")
    assert (file.last("SYSTEM") or "").encode() == stored.one("system")
    assert file.parameters == json.loads(stored.one("params") or b"")
    assert report.run[0] == f"ollama create tiny:latest -f {target}"


def test_without_a_go_template(gguf: Path, root: Path, tmp_path: Path) -> None:
    report = wb.ship("ollama", gguf, "tiny", template="none")
    assert ollama_store.read(root, "tiny").one("template") is None
    assert any("Jinja template" in note for note in report.notes)
    (tmp_path / "t").write_text("{{ .System }} {{ .Prompt }}")
    wb.ship("ollama", gguf, "own", template=str(tmp_path / "t"))
    assert ollama_store.read(root, "own").one("template") == b"{{ .System }} {{ .Prompt }}"


def test_a_template_that_cannot_be_translated_ships_nothing(root: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", "{{ strftime_now('%d') }}{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(UnsupportedError, match="date"):
        wb.ship("ollama", folder, "tiny")
    assert not root.exists()


def test_a_base_model_has_no_template(root: Path, tmp_path: Path) -> None:
    report = wb.ship("ollama", write_folder(tmp_path / "m", None), "tiny")
    assert ollama_store.read(root, "tiny").one("template") is None
    assert any("no chat template" in note for note in report.notes)


# ------------------------------------------------------------------------------------------------ refusals, atomicity

NAMES = ["", "a/b/c/d", "../x", "a..b/c", "-x", "x:y:z", "a b", "x" * 81, "me/..", "/x", "x/", "a.b/c:d/e"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_ollama_refuses(gguf: Path, root: Path, name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        wb.ship("ollama", gguf, name)
    assert not root.exists()


@pytest.mark.costly
def test_a_name_that_is_there_is_kept(gguf: Path, model: Path, root: Path) -> None:
    wb.ship("ollama", gguf, "tiny")
    before = ollama_store.files(root)
    with pytest.raises(RefusedError, match="already"):
        wb.ship("ollama", model, "tiny", type="Q8_0")
    with pytest.raises(RefusedError, match="doesn't distinguish"):
        wb.ship("ollama", model, "TINY", type="Q8_0")
    assert ollama_store.files(root) == before
    wb.ship("ollama", model, "tiny", type="Q8_0", overwrite=True)
    assert ollama_store.read(root, "tiny").config["file_type"] == "Q8_0"


@pytest.mark.parametrize("step", range(1, 8))
def test_whatever_fails_nothing_is_left(gguf: Path, root: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The disk is full at each of the files in turn, also where an older model is replaced."""
    wb.ship("ollama", gguf, "old", template="none")
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    names, count, plain = ollama_store.files(root), 0, StoreWriter.publish

    def publish(self: StoreWriter, *args: Any, **more: Any) -> None:
        nonlocal count
        count += 1
        if count == step:
            raise OSError(28, "No space left on device")
        plain(self, *args, **more)

    monkeypatch.setattr(StoreWriter, "publish", publish)
    name = "old" if step % 2 else "new"
    try:
        wb.ship("ollama", gguf, name, overwrite=True, system="new")
    except OSError:
        assert ollama_store.files(root) == names
        assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before
    else:
        assert step > 3
        assert ollama_store.read(root, name).one("system") == b"new"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes everywhere")
def test_a_store_of_another_user_is_refused(gguf: Path, root: Path) -> None:
    root.mkdir(mode=0o555)
    with pytest.raises(RefusedError, match="no permission to write"):
        wb.ship("ollama", gguf, "tiny")


def test_a_store_that_cannot_be_written_says_what_to_do(
    gguf: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith(str(root.parent)))
    with pytest.raises(RefusedError, match="no permission to write") as caught:
        wb.ship("ollama", gguf, "tiny")
    assert "sudo -u ollama" in str(caught.value)
    assert not root.exists()


def test_a_damaged_blob_is_not_trusted(gguf: Path, root: Path) -> None:
    wb.ship("ollama", gguf, "tiny")
    blob = next(p for p in root.glob("blobs/*") if p.stat().st_size == gguf.stat().st_size)
    blob.write_bytes(blob.read_bytes()[:-1])
    with pytest.raises(FormatError, match="damaged"):
        wb.ship("ollama", gguf, "other")
    assert not (root / "manifests/registry.ollama.ai/library/other").exists()


def test_a_hard_link_is_made_only_where_it_is_wanted(gguf: Path, root: Path, tmp_path: Path) -> None:
    own = shutil.copy(gguf, tmp_path / "own.gguf")
    wb.ship("ollama", own, "copied")
    assert Path(own).stat().st_nlink == 1
    shutil.rmtree(root)
    report = wb.ship("ollama", own, "linked", hard_link=True)
    assert Path(own).stat().st_nlink == 2
    assert report.files[0].how == "hard link"
    ollama_store.read(root, "linked")


@pytest.mark.parametrize(
    ("options", "words"),
    [({"type": "Q8_1"}, "Q8_1"), ({"template": "nothing.tmpl"}, "unknown template"),
     ({"cache_type": "q8_0"}, "cache_type doesn't apply"),
     ({"launcher": "systemd"}, "launcher doesn't apply"), ({"base_model": "a/b"}, "base_model doesn't apply")],
)  # fmt: skip
def test_options_that_do_not_apply(gguf: Path, root: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        wb.ship("ollama", gguf, "tiny", **options)
    assert not root.exists()


def test_a_projector_must_be_one(gguf: Path, root: Path) -> None:
    with pytest.raises(FormatError, match="projector"):
        wb.ship("ollama", gguf, "tiny", mmproj=gguf)


@pytest.mark.parametrize(
    ("count", "words"),
    [(124_439_808, "124.44M"), (1_235_814_400, "1.2B"), (8_030_261_248, "8.0B"), (671_026_419_200, "671.0B"),
     (10**12, "1000B"), (7 * 10**9, "7B"), (72_000, "72K"), (999, "999")],
)  # fmt: skip
def test_parameters_are_counted_as_ollama_does(count: int, words: str) -> None:
    assert human_number(count) == words


def test_the_command(gguf: Path, root: Path) -> None:
    runner = CliRunner()
    dry = runner.invoke(cli, ["ship", "ollama", str(gguf), "tiny", "--dry-run"])
    assert dry.exit_code == 0
    assert "FROM " in dry.stdout
    assert not root.exists()
    done = runner.invoke(cli, ["ship", "ollama", str(gguf), "tiny", "--json"], standalone_mode=False)
    assert json.loads(done.stdout)["run"] == ["ollama run tiny:latest"]
    assert json.loads(done.stdout)["schema"] == "weighbridge/ship/1"
    ollama_store.read(root, "tiny")


def test_a_llamafile_ships_the_model_inside(gguf: Path, root: Path, tmp_path: Path) -> None:
    program = tmp_path / "tiny.llamafile"
    program.write_bytes(llamafile(gguf.read_bytes()))
    wb.ship("ollama", program, "tiny")
    assert wb.diff("ollama://tiny", gguf)
    wb.ship("lmstudio", program, store=tmp_path / "lm")
    assert wb.diff(next((tmp_path / "lm").rglob("*.gguf")), gguf)
    with pytest.raises(UnsupportedError, match="llamafile"):
        wb.ship("llama-server", program)


def test_an_adapter_that_the_store_lacks_is_not_passed_over(gguf: Path, root: Path) -> None:
    wb.ship("ollama", gguf, "tiny")
    path = root / "manifests/registry.ollama.ai/library/tiny/latest"
    manifest = json.loads(path.read_bytes())
    layer = {"mediaType": "application/vnd.ollama.image.adapter", "digest": "sha256:" + "0" * 64, "size": 9}
    path.write_text(json.dumps({**manifest, "layers": [*manifest["layers"], layer]}))
    with pytest.raises(FormatError, match="not the weights"):
        wb.open("ollama://tiny")


def test_what_is_elsewhere_is_fetched_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from weighbridge.io.location import RemotePath
    from weighbridge.shipping import ship

    monkeypatch.setattr(ship, "resolve_path", lambda path: RemotePath("hf:/org/model"))
    with pytest.raises(UsageError, match="isn't a path on this machine"):
        wb.ship("vllm", "hf://org/model")
