"""Files for those who install, cite or scan: they agree with the command line and with the project."""

from __future__ import annotations

import re
import shlex
import tomllib
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]
from tests.architecture import house

from weighbridge import __version__
from weighbridge.cli.main import BY_NAME, COMMANDS, cli, load

PROJECT: dict[str, Any] = tomllib.loads((house.ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def document(name: str) -> Any:
    return yaml.safe_load((house.ROOT / name).read_text("utf-8"))


def parsed(name: str, *words: str) -> click.Context:
    """`wb NAME WORDS` through its parser. Raises click.ClickException if it refuses them."""
    return load(BY_NAME[name]).make_context(name, [*words], parent=click.Context(cli))


def test_the_citation_is_of_this_version_and_licence() -> None:
    cited = document("CITATION.cff")
    assert cited["version"] == __version__
    assert " AND ".join(cited["license"]) == PROJECT["license"]
    assert set(cited["keywords"]) <= set(PROJECT["keywords"])


def test_the_action_calls_wb_scan_as_it_is(tmp_path: Any) -> None:
    action = document("action.yml")
    inputs, step = action["inputs"], action["runs"]["steps"][-1]
    line = next(line for line in step["run"].splitlines() if line.startswith("wb scan"))
    values = {"FAIL_ON": inputs["fail-on"]["default"], "SARIF": str(tmp_path / "x.sarif")}
    words = [re.sub(r"\$(\w+)$", lambda m: values[m[1]], w) for w in shlex.split(line) if "[@]" not in w]
    assert parsed(*words[1:], str(tmp_path)).params["sarif"] is not None
    choices = re.search(r"\((.*)\)", inputs["fail-on"]["description"])
    (fail_on,) = (p for p in load(BY_NAME["scan"]).params if p.name == "fail_on")
    assert choices is not None
    assert isinstance(fail_on.type, click.Choice)
    assert re.split(r", | or ", choices[1]) == [*fail_on.type.choices]


def test_the_action_takes_no_input_as_code() -> None:
    """An input in a script is a way to run commands: inputs go through the environment."""
    steps = document("action.yml")["runs"]["steps"]
    assert [step["run"] for step in steps if "${{" in step.get("run", "")] == []


def test_the_image_installs_extras_that_exist() -> None:
    text = (house.ROOT / "Dockerfile").read_text("utf-8")
    named = {extra for group in re.findall(r"\[([a-z,]+)\]\"", text) for extra in group.split(",")}
    assert named
    assert named <= set(PROJECT["optional-dependencies"])
    assert 'ENTRYPOINT ["wb"]' in text


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_the_manual_page_has_every_command_and_option(row: Any) -> None:
    page = (house.ROOT / "share/man/man1/wb.1").read_text("utf-8").replace("\\-", "-")
    section = page.partition(f".SS wb {row.name} ")[2].partition("\n.SS ")[0]
    for param in load(row).params:
        if isinstance(param, click.Option) and not param.hidden and param.expose_value:
            assert f"{param.opts[0]}" in section, param.opts


def test_the_manual_page_has_only_lines_that_roff_takes() -> None:
    page = (house.ROOT / "share/man/man1/wb.1").read_text("utf-8")
    requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert requests <= {'.\\"', ".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".I"}


@pytest.mark.parametrize("name", sorted(p.name for p in (house.ROOT / ".github/workflows").glob("*.yml")))
def test_workflows_call_commands_that_exist(name: str) -> None:
    jobs = document(f".github/workflows/{name}")["jobs"]
    makefile = (house.ROOT / "Makefile").read_text("utf-8")
    lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert lines
    for line in lines:
        assert "${{" not in line, line
        assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in re.findall(r"\bmake ([\w-]+)", line))
        assert all((house.ROOT / path).exists() for path in re.findall(r"(?<= )tests/\w+|^\.ci/\w+", line)), line


def test_only_the_job_that_publishes_has_rights_beyond_reading() -> None:
    for path in (house.ROOT / ".github/workflows").glob("*.yml"):
        workflow = document(str(path.relative_to(house.ROOT)))
        assert workflow["permissions"] == {"contents": "read"}
        rights = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
        assert rights in ({}, {"publish": {"id-token": "write"}})
