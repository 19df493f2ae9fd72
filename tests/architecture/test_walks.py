"""A newcomer can follow a command through the code: the functions that it passes stay under a limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.architecture import walks

#: Lower these as the code gets plainer.
LIMITS = {"convert": (824, 127), "fit": (350, 62), "scan": (152, 33)}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("walks")
    walks.make_inputs(folder)
    return folder


@pytest.mark.parametrize("name", walks.WALKS)
def test_a_command_passes_few_functions(name: str, inputs: Path) -> None:
    functions = walks.walk(name, inputs)
    files = {function.file for function in functions}
    assert (len(functions) <= LIMITS[name][0], len(files) <= LIMITS[name][1]) == (True, True), walks.figure(functions)
