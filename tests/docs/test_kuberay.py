"""examples/kuberay.yaml: a RayJob whose command `wb` takes, for the versions that the package asks for."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

from weighbridge.cli.commands.fleet import fleet

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def job() -> Any:
    return yaml.safe_load((ROOT / "examples" / "kuberay.yaml").read_text("utf-8"))


def test_its_command_is_taken(job: Any) -> None:
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:2] == ["wb", "fleet"]
    made = fleet.commands[words[2]].make_context(words[2], words[3:], parent=click.Context(fleet))
    assert (made.params["runner"], made.params["address"], made.params["task_size"]) == ("ray", "auto", 4 << 30)


def test_its_tasks_find_nodes(job: Any) -> None:
    """The nodes have the label that the command asks for, and CPUs; the head has none."""
    spec = job["spec"]["rayClusterSpec"]
    (workers,) = spec["workerGroupSpecs"]
    words = shlex.split(job["spec"]["entrypoint"])
    key, _, value = words[words.index("--node-label") + 1].partition("=")
    assert workers["labels"] == {key: value}
    assert workers["maxReplicas"] >= workers["minReplicas"] == 0
    assert spec["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
