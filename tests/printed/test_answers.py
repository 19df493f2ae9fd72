"""The commands that an answer ends with are run: those of `wb choose` on models of every form, "run it" after a
conversion, and the advice of `wb ship`. Commands of other programs are parsed."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.llama import llama_tensors, write
from tests.printed.commands import Command, commands, fault
from tests.printed.texts import Text
from tests.shipping.models import write_folder

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError
from weighbridge.cli.main import main
from weighbridge.shipping.choice_table import question

PURPOSES, RUNTIMES, LOSSES = (tuple(question(name).answers) for name in ("purpose", "runtime", "loss"))
FORMS = ("hf", "gguf", "quantized gguf", "mlx", "scheme", "pickle")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model in each form."""
    folder = tmp_path_factory.mktemp("sources")
    found = {form: folder / form.replace(" ", "-") / "tiny" for form in FORMS}
    found |= {form: found[form].with_name("tiny.gguf") for form in FORMS if "gguf" in form}
    for path in found.values():
        path.parent.mkdir(parents=True)
    _widened(write_folder(found["hf"]))
    wb.convert(found["hf"], found["gguf"], dtype="f16")
    wb.quantize(found["hf"], found["quantized gguf"], "Q8_0")
    wb.convert(found["hf"], found["mlx"], to="mlx", q_bits=8, q_group_size=32)
    wb.convert(found["hf"], found["scheme"], to="hf", scheme="w4a16", q_group_size=32)
    wb.convert(found["hf"], found["pickle"], to="torch")
    return found


def _widened(folder: Path) -> None:
    """Four times as wide, so that rows hold blocks and groups of every type."""
    path, config = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    wider = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64}
    (folder / "config.json").write_text(json.dumps({**config, **wider}))
    write(path, {n: np.tile(a, [1 if size == 80 else 4 for size in a.shape]) for n, a in llama_tensors().items()})


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def works(line: str) -> str | None:
    """Why a printed command fails; None if it does what it says, or can't be run here and is parsed."""
    words = shlex.split(line)
    if why := fault(Command("printed", tuple(words), True)):
        return why
    if words[:3] == ["wb", "ship", "hub"]:  # the card alone: the rest asks the Hub
        words = [*words[:-1], "--output", "card.md", "--overwrite"]
    elif words[:2] == ["wb", "ship"]:
        words += ["--overwrite"] if words[2] in ("ollama", "lmstudio") else []
    if words[:2] == ["python", "-c"]:
        compile(words[2], "-c", "exec")
    if words[0] == "wb":
        code = main(words[1:])
        return f"{line}: exit code {code}" if code else None
    return None


@pytest.mark.costly
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("purpose", PURPOSES)
def test_what_choose_prints_works(
    form: str, purpose: str, sources: dict[str, Path], workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every runtime, loss and kind of device; each command once."""
    failed, ran = [], set[str]()
    for runtime, loss, device in itertools.product(RUNTIMES, LOSSES, ("24GB", "rtx4090", "m3-max-36gb")):
        choice = wb.choose(sources[form], purpose=purpose, runtime=runtime, loss=loss, device=device)
        for line in choice.commands:
            if line not in ran and (why := works(line)):
                failed.append(f"{runtime}, {loss}: {why}: {capsys.readouterr().err}")
            ran.add(line)
    assert failed == []


# ------------------------------------------------------------------------------------------------ ship


@pytest.mark.parametrize("target", ["llama-server", "mlx", "vllm"])
@pytest.mark.parametrize("form", FORMS)
def test_what_ship_advises_makes_a_model_that_it_takes(
    form: str, target: str, sources: dict[str, Path], workplace: Path
) -> None:
    """A source is taken as it is, or the first command of the advice makes one that is."""
    try:
        report = wb.ship(target, sources[form])
    except UnsupportedError as error:
        advice = error.hint or ""
    else:
        assert [why for line in report.run if (why := works(line))] == []
        advice = next((check.message for check in report.checks if not check.ok), "")
    if advice:
        command = next(commands(Text("ship", advice, False)))
        words = [{"SRC": str(sources[form]), "DST": "made"}.get(word, word) for word in command.words]
        assert main(words[1:]) == 0
        assert wb.ship(target, workplace / words[3])


@pytest.mark.parametrize(("target", "name"), [("ollama", "tiny"), ("lmstudio", "me/tiny"), ("hub", "me/tiny")])
@pytest.mark.parametrize("form", FORMS)
def test_what_a_store_says_runs_it(
    form: str, target: str, name: str, sources: dict[str, Path], workplace: Path
) -> None:
    with wb.plan_ship(target, sources[form], name, output="card.md" if target == "hub" else None) as plan:
        lines = plan.report.run or re.findall(r"^```\n(.*?)^```", plan.report.text, re.DOTALL | re.MULTILINE)
    shown = [line for block in lines for line in block.splitlines()]
    assert shown
    assert [why for line in shown if not line.startswith("#") and (why := works(line))] == []


# ------------------------------------------------------------------------------------------------ run it

TARGETS = {"gguf": "o.gguf", "mlx": "o", "hf": "o", "torch": "o", "safetensors": "o.safetensors", "npz": "o.npz"}
#: Target -> the target of `wb ship` whose program "run it" names.
PROGRAMS = {"llama-server": "llama-server", "mlx_lm.chat": "mlx", "vllm": "vllm"}


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_what_run_it_names_is_taken_by_that_program(
    form: str, to: str, sources: dict[str, Path], workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(sources[form]), TARGETS[to], "--to", to]) == 0
    (line,) = re.findall("^run it: (.*)$", capsys.readouterr().err, re.MULTILINE) or [""]
    if line:
        assert not works(line)
        assert wb.ship(PROGRAMS[line.split()[0]], workplace / TARGETS[to])
    assert bool(line) or to not in ("gguf", "mlx")


def test_a_model_that_mlx_lm_has_no_class_for_is_not_run_with_it(
    sources: dict[str, Path], workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weighbridge.shipping.run.mlx_verdict", lambda *_: SimpleNamespace(accepts=False))
    assert main(["convert", str(sources["hf"]), "o", "--to", "mlx"]) == 0
    assert "run it" not in capsys.readouterr().err
