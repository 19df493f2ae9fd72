"""What is printed works: programs take each command and call that a message, a help text or a page shows.

Commands of `wb` go through its own parser, calls through the function's signature, commands of other programs through
peers.toml, whose rows are compared with the parsers of the programs that are installed.
"""

from __future__ import annotations

import importlib
import re
from functools import cache

import click
import pytest
from tests.architecture import house
from tests.printed import calls
from tests.printed.commands import PEERS, Command, commands, fault
from tests.printed.texts import FILLED, PAGES, Text, blocks, helps, messages, shell_lines, spans

from weighbridge.cli.guides import topics
from weighbridge.cli.main import COMMANDS, load

#: Shown as what other programs take and we answer with the right command.
OTHERS = ("wb convert SRC DST q4_k_m",)


def wrong(text: Text) -> list[str]:
    return [why for one in commands(text) if " ".join(one.words) not in OTHERS and (why := fault(one))]


def test_commands_in_messages() -> None:
    assert [why for text in messages() for why in wrong(text)] == []


def test_commands_in_help() -> None:
    assert [why for text in helps() for why in wrong(text)] == []


@pytest.mark.costly
def test_commands_in_pages() -> None:
    assert [why for text in shell_lines() for why in wrong(text)] == []


@pytest.mark.parametrize(
    ("text", "whole"),
    [("repair it: wb verify --valuess lists them", False), ("wb convert SRC DST --to hf", True),
     ("use wb frobnicate FILE", False), ("wb split A B C", True), ("run it: mlx_lm.chat ./model", False),
     ("llama-server -m s3://models/a.gguf", True), ("wb anatomy a.gguf --limit x", True),
     ("wb help guide-frobnicate shows it", False)],
)  # fmt: skip
def test_the_scan_sees(text: str, whole: bool) -> None:
    """A fault in each kind of text; the second has none."""
    assert bool(wrong(Text("here", text, whole))) == (text != "wb convert SRC DST --to hf")


def test_as_many_are_found_as_there_are() -> None:
    found = [command for text in (*messages(), *helps(), *shell_lines()) for command in commands(text)]
    assert len(found) > 1000
    assert len({c.words[:2] for c in found if c.words[0] == "wb"}) > len(COMMANDS)


# ------------------------------------------------------------------------------------------------ options by name


@cache
def options() -> frozenset[str]:
    """Every option of every command."""

    def of(command: click.Command) -> set[str]:
        found = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts, *getattr(p, "aliases", ()))}
        inner = command.commands.values() if isinstance(command, click.Group) else ()
        return found.union(*map(of, inner))

    return frozenset().union(*(of(load(row)) for row in COMMANDS))


def test_options_that_messages_name_exist() -> None:
    known = options() | {option for row in PEERS.values() for option in row["options"]} | ELSEWHERE
    unknown = [
        f"{text.where}: {option}"
        for text in messages()
        if not re.fullmatch(r"-[\w/-]+", text.text)  # declares one, or answers another program's
        for option in re.findall(rf"(?<![\w{FILLED}-])--[a-z][a-z-]*[a-z]", text.text)
        if option not in known
    ]
    assert unknown == []


#: Options of programs that we call, and of those that a message is about.
ELSEWHERE = {"--help", "--version", "--query-gpu", "--format", "--recursive", "--now", "--no-mmap"}


_VARIABLE = re.compile(r"(?:WEIGHBRIDGE|HF|HUGGING_?FACE|AWS|AZURE|STORAGE|OLLAMA|LLAMA|SSL|XDG)_[A-Z_]+")


def test_variables_of_the_environment_are_on_one_page() -> None:
    page = (house.ROOT / "docs" / "installation.md").read_text("utf-8")
    read = {text.text for text in messages() if _VARIABLE.fullmatch(text.text)}
    assert len(read) > 15
    assert {name for name in read if f"`{name}`" not in page} == {"HF_HUB_DISABLE_PROGRESS_BARS"}  # only ever set


def test_messages_name_no_file_that_is_not_installed() -> None:
    """A message names a page of the docs by its topic: `wb help TOPIC` prints it from the wheel."""
    names = "|".join(map(re.escape, topics()))
    page = re.compile(rf"\b(?:docs|tests)/[\w/-]+\.(?:md|py)|\b(?:{names})\.md\b")
    assert page.search("see guide-fit.md")
    assert page.search("see tests/docs/test_claims.py")
    assert [f"{t.where}: {t.text}" for t in (*messages(), *helps()) if page.search(t.text)] == []


# ------------------------------------------------------------------------------------------------ Python


def test_calls_in_pages() -> None:
    shown = [(p, code, False) for p in PAGES for code in blocks(p, "python", "py")]
    shown += [(p, code, True) for p in PAGES for code in spans(p)]
    assert sum("wb." in code for _, code, _ in shown) > 40
    assert [f"{page.name}: {why}" for page, code, mention in shown for why in calls.faults(code, mention=mention)] == []


def test_calls_in_messages() -> None:
    found = [(t.where, call) for t in messages() for call in re.findall(r"\bwb\.\w+\([^()\n]*\)", t.text)]
    assert [f"{where}: {why}" for where, call in found for why in calls.faults(call.replace(FILLED, "x"))] == []


@pytest.mark.parametrize("code", ["wb.slice(a, b, dry_run=True)", "wb.opened(x)", "wb.from_pretrained()"])
def test_the_check_of_calls_sees(code: str) -> None:
    assert list(calls.faults(code))


# ------------------------------------------------------------------------------------------------ other programs


@pytest.mark.parametrize("name", [n for n, row in PEERS.items() if "parser" in row])
def test_peers_of_mlx_lm_take_these_options(name: str) -> None:
    module, function = PEERS[name]["parser"].split(":")
    pytest.importorskip("mlx_lm", reason="NOT CHECKED: mlx_lm isn't installed")
    parser = getattr(importlib.import_module(module), function)()
    theirs = {option for action in parser._actions for option in action.option_strings}
    assert set(PEERS[name]["options"]) <= theirs


@pytest.mark.parametrize("name", PEERS)
def test_a_row_says_where_it_stands(name: str) -> None:
    assert re.search(r"\d", PEERS[name]["source"]) or name == "lms load"
    assert not fault(Command("here", (*name.split(), *PEERS[name].get("required", ()), "x"), True))
