"""`wb choose`: every rule decides somewhere, the parser takes every command that it prints, every source is there."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.architecture.house import ROOT
from tests.oracles.published_configs import make_folder, published

import weighbridge as wb
from weighbridge.base.dtypes import BY_NAME, Kind
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.cli.main import cli
from weighbridge.conversion.quantize import ftypes
from weighbridge.shipping.choice_table import question, table

DEVICES = ("rtx4090", "m3-max-36gb", "24GB")
PURPOSES, RUNTIMES, LOSSES = (tuple(question(name).answers) for name in ("purpose", "runtime", "loss"))


def every() -> Iterator[wb.Choice]:
    for purpose, runtime, loss, device in itertools.product(PURPOSES, RUNTIMES, LOSSES, DEVICES):
        yield wb.choose(purpose=purpose, runtime=runtime, loss=loss, device=device, trusted=device == "24GB")


@pytest.fixture(scope="module")
def choices() -> list[wb.Choice]:
    return list(every())


def test_every_rule_decides_somewhere(choices: list[wb.Choice]) -> None:
    used = {rule.id for choice in choices for rule in choice.rules}
    assert used == {rule.id for rule in (*table().format, *table().type)}


def test_the_last_rule_of_each_table_always_holds() -> None:
    for rules in (table().format, table().type):
        assert [bool(rule.when) for rule in rules] == [True] * (len(rules) - 1) + [False]
        assert len({rule.id for rule in rules}) == len(rules)


def test_conditions_name_answers_that_there_are() -> None:
    known = {q.name: set(q.answers) for q in table().question}
    known |= {"device": {"cuda", "rocm", "metal", "gpu"}, "format": {rule.gives for rule in table().format}}
    for rule in (*table().format, *table().type):
        for name, values in rule.when.items():
            assert set(values) <= known[name], rule.id


def test_there_are_five_questions_and_each_is_an_option() -> None:
    from weighbridge.cli.commands.choose import choose

    assert len(table().question) == 5
    flags = {opt for p in choose.params if isinstance(p, click.Option) for opt in p.opts}
    assert {q.flag for q in table().question} <= flags


def test_every_command_is_one_that_the_parser_takes(choices: list[wb.Choice]) -> None:
    for line in {line for choice in choices for line in choice.commands}:
        words = shlex.split(line)
        if words[0] == "python":
            compile(words[2], "-c", "exec")
            continue
        assert words[0] == "wb"
        context = cli.make_context("wb", words[1:], resilient_parsing=True)
        name, command, rest = cli.resolve_command(context, words[1:])
        assert command is not None
        command.make_context(name, rest)


def test_what_is_not_trusted_is_scanned_first(choices: list[wb.Choice]) -> None:
    for choice in choices:
        assert choice.commands[0].startswith("wb verify" if choice.answers["trusted"] == "yes" else "wb scan")


def test_no_loss_means_no_type(choices: list[wb.Choice]) -> None:
    assert {choice.type for choice in choices if choice.answers["loss"] == "none"} == {""}


def test_a_type_that_does_not_fit_is_replaced(tmp_path: Path) -> None:
    folder = make_folder(published()["Mistral-7B-v0.3"]["config"], tmp_path / "m")
    large = wb.choose(folder, loss="little", device="rtx4090", runtime="llama.cpp")
    small = wb.choose(folder, loss="little", device="6GB", runtime="llama.cpp")
    assert (large.type, small.type) == ("Q6_K", wb.fit(folder, device="6GB").recommended)
    assert small.type != "Q6_K"
    assert "doesn't fit" in small.notes[0]


def test_the_commands_do_it(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model from the answers to a name in Ollama's store."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    choice = wb.choose(model, runtime="ollama", loss="some", device="24GB")
    for line in choice.commands:
        assert runner.invoke(cli, shlex.split(line)[1:], standalone_mode=False).exit_code == 0, line
    assert (tmp_path / "ollama/manifests/registry.ollama.ai/library/tiny-llama/latest").is_file()


def test_no_advice_on_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing to convert\n")
    with pytest.raises(WeighbridgeError, match="text file"):
        wb.choose(tmp_path / "notes.txt")
    with pytest.raises(FileNotFoundError):
        wb.choose(tmp_path / "absent.gguf")


@pytest.mark.parametrize("wrong", [{"purpose": "fun"}, {"runtime": "tgi"}, {"loss": "much"}, {"device": "abacus"}])
def test_unknown_answers(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"known"):
        wb.choose(**wrong)  # type: ignore[arg-type]


def test_sources_are_there() -> None:
    sources = [rule.source for rule in (*table().format, *table().type)] + [row.source for row in table().correction]
    for source in sources:
        path, _, test = source.partition("::")
        if path.startswith(("docs/", "tests/")):
            assert (ROOT / path).is_file(), source
            assert not test or f"def {test}(" in (ROOT / path).read_text()


def test_the_numbers_of_the_corrections(tmp_path: Path) -> None:
    text = " ".join(row.so for row in table().correction)
    writable = [row for row in ftypes.table().ftypes.values() if row.writable]
    blocks = [t for t in BY_NAME.values() if t.kind is Kind.BLOCK and t.ggml is not None]
    assert f"{len(writable)} file types" in text
    assert f"{len(blocks)} block types" in text
    folder = make_folder(published()["Mistral-7B-v0.3"]["config"], tmp_path / "m")
    q4, bf16 = (wb.fit(folder, device="rtx4090", type=t).tokens_per_second or 0 for t in ("Q4_K_M", "BF16"))
    assert f"at most {q4:.0f} tokens a second as Q4_K_M and {bf16:.0f} as bf16" in text
    assert wb.fit(folder, device="rtx4090", runtime="vllm").tokens_per_second == bf16


def test_without_a_terminal_the_defaults_are_taken() -> None:
    done = CliRunner().invoke(cli, ["choose", "--device", "24GB", "--json"], standalone_mode=False)
    found = json.loads(done.stdout)
    assert found["answers"] == {q.name: "24GB" if q.name == "device" else q.default for q in table().question}


def test_the_dialogue_asks_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five prompts at most, none for what is an option; an answer that isn't known is asked again."""
    from weighbridge.cli.views import choose as view

    @click.command()
    def asked() -> None:
        click.echo(json.dumps(view.ask({"runtime": "vllm"})))

    done = CliRunner().invoke(asked, input="fun\nserve\nh100\n\nyes\n")
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "purpose": "serve", "runtime": "vllm", "device": "h100", "loss": "little", "trusted": True,
    }  # fmt: skip
