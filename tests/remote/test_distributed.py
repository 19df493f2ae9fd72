"""A distributed checkpoint on the Hub is read as the folder is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.containers.dcp_cases import CASES, data, unpack
from tests.remote.servers import Hub

import weighbridge as wb
from weighbridge.models.open import open_model

pytest.importorskip("huggingface_hub")


@pytest.mark.parametrize("case", ["threads", "hf"])
def test_it_is_read_from_the_hub(case: str, tmp_path: Path, connect: Callable[..., None]) -> None:
    with Hub(unpack(case, tmp_path)).running() as hub:
        connect(hub)
        with open_model("hf://org/model") as model:
            for name, saved in CASES[case][1].items():
                assert model.stored[name].read_all().tobytes() == data(name, saved)
        assert wb.scan("hf://org/model")
        assert wb.verify("hf://org/model")
