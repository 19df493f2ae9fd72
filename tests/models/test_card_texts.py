"""A model card that is written again keeps texts as texts, whatever YAML takes them for."""

from __future__ import annotations

from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from weighbridge.models.config.card import front_matter, read_card, read_card_as_written

#: What people write, and what the Hub reads there.
WRITTEN: dict[str, Any] = {
    "language: no": "no",
    "language:\n- no\n- en\n- on": ["no", "en", "on"],
    "tags: [2024, 1.5, yes, gguf, 0x10, 12:30, 2024-01-01]": [
        "2024", "1.5", "yes", "gguf", "0x10", "12:30", "2024-01-01"
    ],
    "version: 1.10": "1.10",
    "license: off": "off",
    "model_name: 3": "3",
    "datasets: [1_000]": ["1_000"],
    "license: null": None,
    "license:": None,
}  # fmt: skip


@pytest.mark.parametrize("line", WRITTEN)
def test_a_text_stays_as_it_was_written(line: str) -> None:
    found, trouble = read_card_as_written(f"---\n{line}\n---\n# x".encode())
    assert trouble is None
    (key,) = found
    assert found[key] == WRITTEN[line]
    assert yaml.safe_load(front_matter(found).strip("-\n")) == {key: WRITTEN[line]}
    assert read_card(front_matter(found).encode())[0] == found


@pytest.mark.parametrize(
    "text",
    ["inference: false", "co2_eq_emissions: 1.5", "model-index: [{name: a, results: [1, null]}]", "date: 2024-01-01",
     "gated: null", "a: {b: yes}"],
)  # fmt: skip
def test_other_values_are_written_whatever_they_are(text: str) -> None:
    found, _ = read_card_as_written(f"---\n{text}\n---\n".encode())
    back = yaml.safe_load(front_matter(found).strip("-\n"))
    assert back == found or "2024" in text
