"""Published models at their real size: what we would write is what the reference converter would, as recorded of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.oracles.published_configs import make_folder, ours, published

MODELS = published()


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_is_written_as_the_reference_writes_it(name: str, tmp_path: Path) -> None:
    made = ours(make_folder(MODELS[name]["config"], tmp_path / "model"))
    reference = MODELS[MODELS[name].get("same_as", name)]["reference"]
    same = made.digest == reference["digest"]
    assert len(made.tensors) == reference["tensors"]
    assert same == ("differs" not in MODELS[name]), made.keys
