from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kernels.data import PATHS, running


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """The test runs on the numpy reference and on every instruction-set level of this CPU."""
    with running(request.param):
        yield request.param
