"""The docs and the code say the same: every command and option is named, every generated page is up to date, every
command line that a page shows is one that the parser takes, every link leads somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest
from tests.architecture import house
from tests.programs import load_program

from weighbridge import __version__
from weighbridge.cli.main import BY_NAME, COMMANDS, load

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


def leaves() -> Iterator[tuple[str, str, click.Command]]:
    """Section, name and command; of a group those in it."""
    for row in COMMANDS:
        command = load(row)
        inner = command.commands if isinstance(command, click.Group) else {"": command}
        yield from ((row.section, f"{row.name} {name}".strip(), one) for name, one in inner.items())


def lacking(option: str, sections: Sequence[str]) -> list[str]:
    return [n for section, n, one in leaves() if section in sections and all(option not in p.opts for p in one.params)]


def test_every_command_takes_what_the_readme_says() -> None:
    """`--json` all, `--dry-run` all that make or change a model (`wb plan` is the dry run), `--overwrite` with them."""
    assert lacking("--json", ("Look", "Change", "Other")) == []
    assert lacking("--dry-run", ("Change",)) == ["plan"]
    assert lacking("--overwrite", ("Change",)) == ["dedupe"]  # which replaces nothing
    assert "fleet convert" not in lacking("--dry-run", ("Other",))
    assert "get" not in lacking("--dry-run", ("Look",))


def test_aliases_are_unique() -> None:
    assert len(BY_NAME) == sum(1 + len(r.aliases) for r in COMMANDS)


@pytest.mark.slow
def test_generated_pages_are_up_to_date() -> None:
    pages = load_program(DOCS / "generate.py", "generate_docs").PAGES
    stale = [n for n, make in pages.items() if text(DOCS / n) != "\n".join(make()).rstrip() + "\n"]
    assert stale == [], "run `make docs`"


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
