"""A small Mistral Small 4: the tower of Mistral Small 3 with another text model."""

from __future__ import annotations

import copy
from typing import Any

from tests.models.family_judges import golden as families_golden
from tests.models.projector_cases import golden

from weighbridge.models.arch.registry import family_of_hf


def text() -> dict[str, Any]:
    """The config of a small text model."""
    said: dict[str, Any] = copy.deepcopy(families_golden()["mistral4-seeing"]["config"]["text_config"])
    return said | {"vocab_size": 32, "bos_token_id": 1, "eos_token_id": 2}


def seeing() -> dict[str, Any]:
    """The small Mistral Small 3 of the towers with the text model of a Mistral Small 4."""
    case = golden()["mistral3"]
    config = case["config"] | {"text_config": text()}
    family = family_of_hf(config)
    places = family.expansion("hf", family.sizes_from_hf(config), "language_model.").places.values()
    names = {place.name: [*place.shape] for place in places}
    tower = {name: shape for name, shape in case["names"].items() if not name.startswith("language_model.")}
    return {**case, "config": config, "names": {**tower, **names}}
