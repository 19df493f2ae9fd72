"""The docs and the code say the same: every command and option is named, every generated page is up to date, every
command line that a page shows is one that the parser takes, every link leads somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import click
import pytest
from tests.architecture import house

from weighbridge import __version__
from weighbridge.cli.main import BY_NAME, COMMANDS, cli, load

DOCS = house.ROOT / "docs"
PAGES = sorted([*house.ROOT.glob("*.md"), *DOCS.glob("*.md")])
ROWS = pytest.mark.parametrize("row", COMMANDS, ids=lambda r: r.name)


def text(path: Path) -> str:
    return path.read_text("utf-8")


@ROWS
def test_every_command_says_what_it_does_with_an_example(row: object) -> None:
    assert isinstance(row, type(COMMANDS[0]))
    command = load(row)
    assert len(command.help or "") > 20
    assert "Examples:" in (command.epilog or "")
    assert f"wb {row.name}" in (command.epilog or "")
    for param in command.params:
        assert not isinstance(param, click.Option) or param.hidden or (param.help or "").endswith("."), param.name


@ROWS
def test_the_reference_names_every_command_and_option(row: object) -> None:
    assert isinstance(row, type(COMMANDS[0]))
    page = text(DOCS / "commands.md")
    section = page.partition(f"## wb {row.name}\n")[2].partition("\n## wb ")[0]
    common = page.partition("## wb ")[0]
    assert section
    for param in load(row).params:
        for name in param.opts if isinstance(param, click.Option) and not param.hidden else ():
            assert f"`{name}`" in section + common, name


def test_every_command_is_shown_in_a_guide_or_the_readme() -> None:
    pages = "".join(text(p) for p in PAGES if p.name != "commands.md")
    assert [r.name for r in COMMANDS if f"wb {r.name}" not in pages and r.name != "completion"] == []


def test_aliases_are_unique() -> None:
    assert len(BY_NAME) == sum(1 + len(r.aliases) for r in COMMANDS)


def generator() -> object:
    spec = importlib.util.spec_from_file_location("generate_docs", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate_docs"] = module
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date() -> None:
    pages = generator().PAGES  # type: ignore[attr-defined]
    stale = [n for n, make in pages.items() if text(DOCS / n) != "\n".join(make()).rstrip() + "\n"]
    assert stale == [], "run `make docs`"


def shown() -> list[tuple[str, str]]:
    """Every `wb ...` in a code block of a page, and in the examples of the commands."""
    found = []
    for page in PAGES:
        blocks = re.findall(r"^```(?:sh|bash)?\n(.*?)^```", text(page), re.DOTALL | re.MULTILINE)
        spans = re.findall(r"`(wb [^`\n]+)`", text(page))
        lines = [line for block in blocks for line in block.splitlines()] + spans
        found += [(page.name, line.partition(" #")[0].strip()) for line in lines if line.startswith("wb ")]
    for row in COMMANDS:
        lines = (load(row).epilog or "").splitlines()
        found += [(row.name, line.strip()) for line in lines if line.strip().startswith("wb ")]
    placeholders = re.compile(r"COMMAND|OPTIONS|SRC DST|\.\.\.")
    return sorted({(where, line) for where, line in found if not placeholders.search(line)})


@pytest.mark.parametrize(("where", "line"), shown(), ids=lambda x: str(x)[:60])
def test_command_lines_that_are_shown_are_taken(where: str, line: str) -> None:
    words = shlex.split(re.split(r" [|>]", line)[0])[1:]
    if words == ["--help"]:
        return
    assert words[0] in BY_NAME, f"{where}: {line}"
    command = load(BY_NAME[words[0]])
    if len(words) > 1 and words[1:] != ["--help"]:  # a bare `wb convert` in running text names the command
        command.make_context(words[0], words[1:], parent=click.Context(cli))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text(page)):
        assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_code_that_the_pages_name_exists() -> None:
    for page in PAGES:
        for name in re.findall(
            r"`((?:base|io|containers|tensors|packings|models|conversion|reports|cli)/[\w/]+\.\w+)`", text(page)
        ):
            assert (house.PACKAGE / name).exists(), f"{page.name}: {name}"


def test_the_readme_is_short() -> None:
    assert len(text(house.ROOT / "README.md").splitlines()) <= 80


def test_one_version() -> None:
    import tomllib

    project = tomllib.loads(text(house.ROOT / "pyproject.toml"))["project"]
    assert project["version"] == __version__
    assert f"## {__version__} " in text(house.ROOT / "CHANGELOG.md")


def test_make_targets_that_the_docs_name_exist() -> None:
    makefile = text(house.ROOT / "Makefile")
    for page in PAGES:
        for target in re.findall(r"`?make ([a-z0-9-]+)[` \n]", text(page)):
            if f"`make {target}" in text(page) or f"\nmake {target}" in text(page):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"
