"""`wb prove` over all small models: no false alarm, and every kind of seeded fault is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType
from safetensors.numpy import load_file, save_file
from tests.oracles import faults, gguf_file, minilm, ours
from tests.oracles.models import CASES, probe_of, relative_error

import weighbridge as wb
from weighbridge.adapters.runtimes import process
from weighbridge.base.errors import UnsupportedError
from weighbridge.cli.main import main
from weighbridge.reports.prove.model import ProveCheck
from weighbridge.reports.prove.static import settled

pytestmark = pytest.mark.oracle
Maker = Callable[[str], Path]
Converter = Callable[[str, str], Path]
GOLDEN = Path(__file__).parent / "golden" / "prove_faults.json"
FAULTS = json.loads(GOLDEN.read_text())
TABLES = {"layout": faults.LAYOUTS, "key": faults.KEYS, "tokenizer": faults.TOKENIZER_KEYS}

# A decoder, encoders, a pair of both, a state-space model; test_llama_logits.py runs the others.
# phi-mini-long: llama.cpp takes longrope's factors by its context, of 256 tokens at least, transformers by the text.
RUNS = ["llama3", "bert", "t5", "mamba", "roberta-labels", "phi-mini-long"]
# What llama.cpp's graph computes otherwise, and words of what is said of it.
OTHERWISE = {
    "phi-moe": "SparseMixer",
    "phi-mini": "attends to all earlier tokens",
    "gpt-oss": "rounds the bounds of yarn",
    "exaone4-window": "only with 64 layers",
}

GELU_TOLERANCE = 0.02  # ggml takes GELU from a table in f16


class InProcess:
    """A runtime in this process, which has the frameworks in memory: a test needn't start one for each model."""

    def __init__(self, runtime: str, path: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.name, self.path, self.settings = runtime, path, settings or {}

    @cached_property
    def runtime(self) -> Any:
        try:
            return process.RUNTIMES[self.name].load(str(self.path), self.settings)
        except Exception as error:
            raise UnsupportedError(str(error)) from error

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.runtime.tokenize(text)
        return ids

    def logits(self, ids: Sequence[int], answer: Sequence[int] = ()) -> Any:
        return self.runtime.logits(ids, answer)

    def embedding(self, ids: Sequence[int]) -> Any:
        return self.runtime.embedding(ids)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weighbridge.adapters.runtimes.process.RuntimeProcess", InProcess)


def wrong(report: wb.ProveReport) -> dict[str, Any]:
    """What isn't the same, but the names of pre-tokenizers: those of the small vocabularies are nobody's."""
    return {c.name: (c.message, c.details) for c in report.checks if c.verdict != "same" and c.name != "pre-tokenizer"}


@pytest.mark.parametrize("name", sorted(CASES))
def test_no_false_alarm(name: str, folder_of: Maker, gguf_of: Converter, tmp_path: Path) -> None:
    """And none is missing: the settings differ where the plan of the conversion says that results change, and a file
    that llama.cpp refuses (test_refused.py asks it) isn't loaded, for the reason that is stated."""
    report = wb.prove(folder_of(name), gguf_of(name, CASES[name].asked), run=False)
    found = wrong(report)
    _, details = found.get("tokenizer", ("", ()))
    if len(details) == 1 and details[0].endswith(f" and {CASES[name].pre}"):  # which the conversion was given
        del found["tokenizer"]
    if name in ours.REFUSED:
        why, _ = found.pop("loads")
        assert why.startswith("llama.cpp won't load ")
        assert ours.REFUSED[name] in why
    with ours.unchecked(), wb.plan_convert(folder_of(name), tmp_path / "m.gguf", tokenizer=False) as plan:
        lost = [x.message for x in plan.losses if x.effect == "results" and x.message.startswith("config.json: ")]
    assert found.keys() == ({"settings"} if lost else set()), (found, lost)


@pytest.mark.costly
@pytest.mark.parametrize("name", RUNS)
def test_both_compute_the_same(name: str, here: None, folder_of: Maker, gguf_of: Converter) -> None:
    report = wb.prove(folder_of(name), gguf_of(name, "f32"), tokens=64)
    assert wrong(report) == {}
    assert report.verdict == "same"


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_llama_cpps_graph_computes_otherwise_is_explained(
    name: str, here: None, folder_of: Maker, gguf_of: Converter
) -> None:
    """The plan lists it, and so does each check that it fails. That with llama.cpp's rule in its place nothing differs
    is shown by test_phimoe.py, and by test_llama_logits.py with a case's `settings`."""
    report = wb.prove(folder_of(name), gguf_of(name, "f32"), tokens=64)
    found = wrong(report)
    assert {"settings", "predictions"} <= found.keys() <= {"settings", "predictions", "greedy"}
    assert all(OTHERWISE[name] in details[0] for _, details in found.values())


def test_a_setting_that_a_runtime_overrules_is_put_back(here: None, folder_of: Maker, gguf_of: Converter) -> None:
    """transformers 5 takes every UMT5's output for its embedding, also the publisher's, which have another. Run as it
    would, its logits are those of the GGUF by sqrt(d_model)."""
    folder, gguf = folder_of("umt5"), gguf_of("umt5", "f32")
    report = wb.prove(folder, gguf, tokens=64)
    assert wrong(report) == {}
    assert ["tie_word_embeddings = False" in note for note in report.notes] == [True]
    ids, answer = probe_of("umt5", 32), probe_of("umt5", 16)
    right, overruled = (
        InProcess(name, path).logits(ids, answer) for name, path in (("llama.cpp", gguf), ("transformers", folder))
    )
    width = json.loads((folder / "config.json").read_text())["d_model"]
    assert relative_error(overruled * width**0.5, right) < GELU_TOLERANCE
    assert relative_error(overruled, right) > 0.5


@pytest.mark.costly
@pytest.mark.parametrize("dtype", ["bf16", "q8_0"])
def test_narrow_types_are_the_same_model(dtype: str, here: None, folder_of: Maker, gguf_of: Converter) -> None:
    assert wrong(wb.prove(folder_of("llama3"), gguf_of("llama3", dtype), tokens=64)) == {}


def test_an_mlx_folder_is_the_same_model(here: None, folder_of: Maker, tmp_path: Path) -> None:
    pytest.importorskip("mlx_lm", reason="MLX FOLDERS WEREN'T RUN: install requirements/oracles.txt")
    wb.convert(folder_of("llama3"), tmp_path / "mlx", to="mlx", q_bits=8, q_group_size=32)
    assert wrong(wb.prove(folder_of("llama3"), tmp_path / "mlx", tokens=64)) == {}


def test_rows_that_arent_at_length_1_are_found(folder_of: Maker, gguf_of: Converter, tmp_path: Path) -> None:
    """Baichuan 2's output in a GGUF, which has the rows as the class brings them to when it computes."""
    right = gguf_file.read(gguf_of("baichuan2-13b", "f32"))
    assert "tensors" not in wrong(wb.prove(folder_of("baichuan2-13b"), gguf_of("baichuan2-13b", "f32"), run=False))
    path = gguf_file.mutate(right, tmp_path / "a.gguf", faults.shifted("output.weight"))
    assert "tensors" in wrong(wb.prove(folder_of("baichuan2-13b"), path, run=False))


def _rows() -> list[tuple[str, str]]:
    return [(kind, fault) for kind, found in FAULTS.items() for fault in found]


def test_every_kind_of_fault_has_a_row() -> None:
    for kind, by_model in TABLES.items():
        kinds = {fault for cases in by_model.values() for fault in cases}
        assert FAULTS[kind].keys() == kinds, f"add rows to {GOLDEN.name}: the model, and the checks that find the fault"


@pytest.mark.mutation
@pytest.mark.parametrize(("kind", "fault"), _rows())
def test_a_fault_is_found(
    kind: str, fault: str, request: pytest.FixtureRequest, folder_of: Maker, gguf_of: Converter, tmp_path: Path
) -> None:
    """By the checks that are recorded; what neither settings nor tensors show is seen by running, if only in that
    the file isn't loaded."""
    name, expected = FAULTS[kind][fault]["model"], FAULTS[kind][fault]["found"]
    right = gguf_file.read(gguf_of(name, "f32"))
    path = gguf_file.mutate(right, tmp_path / "fault.gguf", TABLES[kind][name][fault])
    run = expected in (["predictions"], [])
    if run:
        request.getfixturevalue("here")
    report = wb.prove(folder_of(name), path, run=run, tokens=96)
    found = [check.name for check in report.checks if check.verdict == "different"]
    assert [name for name in found if name in expected] == expected
    assert report.verdict == ("different" if expected else "incomplete")


# ------------------------------------------------------------------------------------------------ the command


def test_a_missing_runtime_is_not_ok(
    folder_of: Maker, gguf_of: Converter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("weighbridge.adapters.runtimes.process.missing", lambda runtime: ["xllamacpp"])
    arguments = ["prove", str(folder_of("llama")), str(gguf_of("llama", "f32"))]
    assert main([*arguments, "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "incomplete"
    assert report["checks"][-1]["verdict"] == "not-checked"
    assert main([*arguments, "--static"]) == 0
    assert "the same model" in capsys.readouterr().out


def test_another_model_is_exit_code_1(folder_of: Maker, gguf_of: Converter, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", str(folder_of("llama-linear")), str(gguf_of("llama", "f32")), "--no-run"]) == 1
    assert "a different model" in capsys.readouterr().out


def test_options_that_do_nothing_are_refused(folder_of: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(folder_of("llama"))
    assert main(["prove", folder, folder, "--no-run", "--text", __file__]) == 2
    assert main(["prove", folder, folder, "--tokens", "3"]) == 2
    assert "16 to" in capsys.readouterr().err


def test_a_runtime_that_dies_is_an_answer(gguf_of: Converter) -> None:
    with process.RuntimeProcess("llama.cpp", gguf_of("llama", "f32")) as runtime:
        assert runtime.tokenize("x")
        runtime._process.kill()
        runtime._process.wait()
        with pytest.raises(UnsupportedError, match=r"llama\.cpp ended with signal 9"):
            runtime.logits([1, 2, 3])


def test_a_file_that_llama_cpp_refuses_is_not_checked(folder_of: Maker, gguf_of: Converter, tmp_path: Path) -> None:
    right = gguf_file.read(gguf_of("llama", "f32"))
    path = gguf_file.mutate(right, tmp_path / "a.gguf", faults.drop_key("llama.attention.head_count"))
    with process.RuntimeProcess("llama.cpp", path) as runtime, pytest.raises(UnsupportedError, match=r"llama\.cpp"):
        runtime.tokenize("x")


@pytest.mark.slow
def test_in_processes_of_their_own(folder_of: Maker, gguf_of: Converter, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    report = wb.prove(folder_of("llama3"), gguf_of("llama3", "f32"), text=text, tokens=64)
    assert report.verdict == "same"
    perplexity = report.checks[-1]
    assert perplexity.name == "perplexity"
    np.testing.assert_allclose(perplexity.measures["target"], perplexity.measures["source"], rtol=1e-4)


@pytest.mark.costly
@pytest.mark.skipif(minilm.folder() is None, reason="MINILM WASN'T PROVED: install requirements/oracles.txt")
def test_minilm(here: None, tmp_path: Path) -> None:
    folder = minilm.folder()
    assert folder is not None
    ours.to_gguf(folder, tmp_path / "a.gguf", "f16")
    report = wb.prove(folder, tmp_path / "a.gguf")
    assert report.verdict == "same", wrong(report)


# ---------------------------------------------------------------------- tokenizers


@pytest.mark.parametrize(("name", "role"), [("gemma", "bos"), ("t5", "eos"), ("llama3", "bos")])
def test_a_token_that_llama_cpp_adds_by_default_needs_no_key(
    name: str, role: str, folder_of: Maker, gguf_of: Converter, tmp_path: Path
) -> None:
    """A GGUF without the key means the default of its kind, as llama.cpp's own tokens show."""
    file = gguf_file.read(gguf_of(name, "f32"))
    key = f"tokenizer.ggml.add_{role}_token"
    texts, answers = ["Hello, world!", "x"], {}
    for word, value in (("no key", None), ("yes", True), ("no", False)):
        fields = {k: v for k, v in file.fields.items() if k != key}
        fields |= {} if value is None else {key: gguf_file.Field(GGUFValueType.BOOL, None, value)}
        path = tmp_path / f"{word}.gguf"
        gguf_file.write(path, gguf_file.File(fields, file.tensors))
        model = InProcess("llama.cpp", path)
        answers[word] = [model.tokenize(text) for text in texts]
    assert answers["no key"] == answers["yes"] != answers["no"]
    assert "tokenizer" not in wrong(wb.prove(folder_of(name), tmp_path / "no key.gguf", static=True))
    assert "tokenizer" in wrong(wb.prove(folder_of(name), tmp_path / "no.gguf", static=True))


def test_a_folder_without_tokenizer_config_is_not_called_another_model(
    folder_of: Maker, gguf_of: Converter, tmp_path: Path
) -> None:
    folder, gguf = folder_of("llama3"), gguf_of("llama3", "f32")
    bare = tmp_path / "model"
    shutil.copytree(folder, bare, ignore=shutil.ignore_patterns("tokenizer_config.json"))
    (check,) = (c for c in wb.prove(bare, gguf, static=True).checks if c.name == "tokenizer")
    assert (check.verdict, bool(check.details)) == ("not-checked", True)
    assert check.message.startswith(f"{bare} has no tokenizer_config.json")


def test_tables_that_texts_refute_are_not_called_the_same() -> None:
    checks = [
        ProveCheck("tokenizer", "same", "9 tokens and their rules"),
        ProveCheck("tokens", "different", "15 of 15"),
    ]
    assert [check.verdict for check in settled(checks)] == ["different", "different"]
    checks[1] = ProveCheck("tokens", "same", "15 of 15")
    assert [check.verdict for check in settled(checks)] == ["same", "same"]


def test_a_class_without_a_head_needs_no_pooler(folder_of: Maker, gguf_of: Converter, tmp_path: Path) -> None:
    """A folder made of a GGUF has none. One without another tensor isn't run: it would be random."""
    folder = shutil.copytree(folder_of("bert"), tmp_path / "bert")
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "pooler." not in name}
    assert len(kept) < len(tensors)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    checks = wb.prove(folder, gguf_of("bert", "f32"), tokens=32).checks
    assert next(check for check in checks if check.name == "embedding").verdict == "same"
    del kept[next(name for name in kept if name.endswith("output.dense.bias"))]
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    checks = wb.prove(folder, gguf_of("bert", "f32"), tokens=32).checks
    assert any("tensor that the folder lacks" in check.message for check in checks), checks
