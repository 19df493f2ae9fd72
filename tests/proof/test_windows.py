"""Layers with a sliding window beside layers without, where llama.cpp's graph goes by more than the keys say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.oracles import gguf_file, llamacpp, models, ours
from tests.oracles.faults import set_key

pytestmark = pytest.mark.oracle
TOLERANCE, VISIBLE = 5e-4, 0.05  # as in test_llama_logits


@pytest.mark.costly
def test_a_large_exaone_4_has_its_windows(tmp_path: Path) -> None:
    """llama.cpp knows the model with windows by its 64 layers; each layer's own kind is taken from the list."""
    options = {"num_hidden_layers": 64, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    kinds = ["full_attention" if n % 5 == 1 else "sliding_attention" for n in range(64)]
    small = models.CASES["exaone4-window"]
    case = replace(small, options=small.options | options | {"num_key_value_heads": 1, "layer_types": kinds}, said={})
    folder = models.build(case, tmp_path / "exaone4")
    path, ids = tmp_path / "exaone4.gguf", models.probe_of("exaone4-window")
    ours.to_gguf(folder, path, "f32", pre=case.pre)
    expected = models.logits(folder, ids)
    with llamacpp.Model(path) as model:
        assert models.relative_error(model.logits(ids), expected) < TOLERANCE
    pattern = "exaone4.attention.sliding_window_pattern"
    for name, fault in {
        "every fourth": set_key(pattern, [n % 4 != 3 for n in range(64)]),
        "turned": set_key(pattern, lambda v: [not slides for slides in v]),
        "window": set_key("exaone4.attention.sliding_window", 12),
    }.items():
        wrong = gguf_file.mutate(gguf_file.read(path), tmp_path / f"{name}.gguf", fault)
        with llamacpp.Model(wrong) as model:
            assert models.relative_error(model.logits(ids), expected) > VISIBLE, name
