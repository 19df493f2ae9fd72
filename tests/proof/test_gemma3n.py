"""Gemma 3n where its files, its readers and its size set it apart: llama.cpp's graph has so much built in that the
model it runs is a deep one; layers that take others' keys have unused ones in some files; MLX knows the whole alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.oracles import faults, gguf_file, llamacpp, models, ours, reference_converter, vocabularies
from tests.oracles.families.gemma3n import CASES, DEEP, TEXT
from tests.oracles.folders import assert_same, tensors
from tests.oracles.models import F32

import weighbridge

pytestmark = pytest.mark.oracle

# ggml takes GELU from a table in f16. Measured: 2.7e-3 of the logits' spread, an NMSE of 7e-8.
TOLERANCE = 1e-2
# llama.cpp divides the deviation of the gates by one less than their number. Measured here, where a layer has 256 gates
# and not 16384: 0.05 of the spread, an NMSE of 8e-6.
SAMPLED = 0.1
MLX = 1e-3
VISIBLE = 0.05  # what a fault must change at least
IDS = models.probe(vocabularies.SPM_SIZE)
PADDED = replace(CASES["gemma3n"], options=TEXT | {"vocab_size_per_layer_input": vocabularies.SPM_SIZE - 16})
needs_mlx = pytest.mark.skipif(
    os.environ.get("CI") != "true" and find_spec("mlx_lm") is None,
    reason="GEMMA 3N'S MLX FOLDERS WERE NOT PROVED: install requirements/oracles.txt",
)
MADE = {"deep": DEEP, "plain": CASES["gemma3n"], "padded": PADDED, "seeing": CASES["gemma3n-seeing"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    parent = tmp_path_factory.mktemp("gemma3n")
    return cache(lambda name: models.build(MADE[name], parent / name))


@pytest.fixture(scope="module")
def deep(folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ours.to_gguf(folder("deep"), tmp_path_factory.mktemp("gemma3n-deep") / "deep.gguf", "f32")


@pytest.fixture(scope="module")
def parsed(deep: Path) -> gguf_file.File:
    return gguf_file.read(deep)


@pytest.fixture(scope="module")
def expected(folder: Callable[[str], Path]) -> F32:
    """transformers' logits, with the deviation of the gates as llama.cpp takes it."""
    with sampled():
        return models.logits(folder("deep"), IDS)


@contextmanager
def sampled() -> Iterator[None]:
    import torch

    plain: Any = torch.std
    torch.std = lambda x, **said: plain(x, **{**said, "unbiased": True})
    try:
        yield
    finally:
        torch.std = plain


def found(path: Path) -> F32:
    with llamacpp.Model(path) as model:
        return model.logits(IDS)


# ---------------------------------------------------------------------- llama.cpp


@pytest.mark.costly
def test_llama_cpp_computes_the_same_but_for_the_deviation_of_the_gates(
    deep: Path, expected: F32, folder: Callable[[str], Path]
) -> None:
    """At every position, past the window: 20 layers that have keys and 2 that take them, 10 of them sparse."""
    logits = found(deep)
    assert models.relative_error(logits, expected) < TOLERANCE
    theirs = models.logits(folder("deep"), IDS)
    assert TOLERANCE < models.relative_error(logits, theirs) < SAMPLED


@pytest.mark.costly
def test_nothing_reads_the_keys_of_layers_that_take_others(
    deep: Path, folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """A folder that transformers saved again hasn't them. llama.cpp asks for them all the same: they are zeros."""
    import transformers

    again = tmp_path / "again"
    transformers.Gemma3nForCausalLM.from_pretrained(folder("deep"), dtype="float32").save_pretrained(again)
    vocabularies.WRITERS[DEEP.tokenizer](again)
    assert tensors(folder("deep")).keys() - tensors(again).keys() == DEEP.further.keys()
    path = ours.to_gguf(again, tmp_path / "again.gguf", "f32")
    first, second = gguf_file.read(deep), gguf_file.read(path)
    assert first.tensors.keys() == second.tensors.keys()
    zero = {n for n, t in second.tensors.items() if not t.data.any()}
    assert len(zero) == len(DEEP.further)
    assert all(np.array_equal(t.data, first.tensors[n].data) for n, t in second.tensors.items() if n not in zero)
    assert np.array_equal(found(path), found(deep))


LAST = "blk.21."
FAULTS = {
    "streams-swapped": faults.edited("altup_proj.weight", lambda t: t.data[::-1]),
    "layers-turned": faults.edited("per_layer_token_embd.weight", lambda t: np.roll(t.data, 256, axis=-1)),
    "gate-up-swapped": faults.swapped(f"{LAST}ffn_gate.weight", f"{LAST}ffn_up.weight"),
    "post-norms-swapped": faults.swapped(f"{LAST}post_attention_norm.weight", f"{LAST}post_norm.weight"),
    "norm-shifted": faults.edited(f"{LAST}attn_norm.weight", lambda t: t.data + 1),
    "predict-turned": faults.shifted("blk.0.altup_predict_coef.weight"),
    "scale-one": faults.edited("blk.0.altup_correct_scale.weight", lambda t: np.ones_like(t.data)),
    "theta": faults.set_key("gemma3n.rope.freq_base", 500.0),
    "window-theta": faults.set_key("gemma3n.rope.freq_base_swa", 50.0),
    "window": faults.set_key("gemma3n.attention.sliding_window", 12),
    "pattern": faults.set_key("gemma3n.attention.sliding_window_pattern", lambda v: [*v[:3], v[4], v[3], *v[5:]]),
}


@pytest.mark.mutation
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault: str, parsed: gguf_file.File, expected: F32, tmp_path: Path) -> None:
    path = gguf_file.mutate(parsed, tmp_path / "fault.gguf", FAULTS[fault])
    assert models.relative_error(found(path), expected) > VISIBLE


@pytest.mark.mutation
def test_one_width_for_each_layer_is_asked_for(parsed: gguf_file.File, tmp_path: Path) -> None:
    narrow = faults.set_key("gemma3n.feed_forward_length", lambda v: [128] * len(v))
    path = gguf_file.mutate(parsed, tmp_path / "fault.gguf", narrow)
    assert isinstance(llamacpp.numbers_in_subprocess(path, IDS), str)


# ---------------------------------------------------------------------- the reference, and back


@pytest.fixture(scope="module")
def reference(folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    parent = tmp_path_factory.mktemp("gemma3n-reference")
    return cache(lambda name: reference_converter.convert(folder(name), parent / f"{name}.gguf", "f32"))


@pytest.mark.parametrize("name", ["padded", "seeing"])
def test_equals_the_reference(
    name: str, folder: Callable[[str], Path], reference: Callable[[str], Path], tmp_path: Path
) -> None:
    """The last tokens of a model that sees have no embeddings for the layers: zeros. What sees isn't in the file."""
    held = ours.to_gguf(folder(name), tmp_path / "ours.gguf", "f32", checked=False)
    assert gguf_file.differences(gguf_file.read(held), gguf_file.read(reference(name))) == []


def test_rows_of_zeros_come_back_and_are_told(folder: Callable[[str], Path], tmp_path: Path) -> None:
    gguf = ours.to_gguf(folder("padded"), tmp_path / "padded.gguf", "f32", checked=False)
    back, first = tensors(ours.to_folder(gguf, tmp_path / "back")), tensors(folder("padded"))
    name = "model.embed_tokens_per_layer.weight"
    assert np.array_equal(back[name][:-16].numpy(), first[name].numpy())
    assert not back[name][-16:].any()
    rest = {n: t for n, t in back.items() if n in first and n != name}
    assert_same(rest, {n: t for n, t in first.items() if n != name})
    with ours.unchecked(), weighbridge.plan_convert(folder("padded"), tmp_path / "x.gguf") as plan:
        assert any("vocab_size_per_layer_input" in str(loss) for loss in plan.losses)


# ---------------------------------------------------------------------- MLX


@needs_mlx
def test_the_folder_is_mlx_lms_own(folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Quantized: the same words, scales and biases, the same config."""
    import mlx.core as mx
    import mlx_lm

    mlx_lm.convert(str(folder("seeing")), str(tmp_path / "theirs"), quantize=True, q_bits=4, q_group_size=32)
    weighbridge.convert(folder("seeing"), tmp_path / "ours", to="mlx", q_bits=4, q_group_size=32)
    held: list[Any] = [mx.load(str(tmp_path / of / "model.safetensors")) for of in ("ours", "theirs")]
    assert held[0].keys() == held[1].keys()
    assert [n for n in held[0] if held[0][n].dtype != held[1][n].dtype] == []
    assert [n for n in held[0] if not mx.array_equal(held[0][n], held[1][n])] == []
    configs = [json.loads((tmp_path / of / "config.json").read_text()) for of in ("ours", "theirs")]
    assert configs[0] == configs[1]


@pytest.mark.costly
@needs_mlx
@pytest.mark.parametrize("name", ["plain", "seeing", "gguf"])
def test_mlx_computes_the_same(name: str, folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Of a folder of the part, of the whole, and of a GGUF: MLX reads a folder of the whole."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    source = folder("plain" if name == "gguf" else name)
    gguf = ours.to_gguf(source, tmp_path / "plain.gguf", "f32", checked=False)
    weighbridge.convert(gguf if name == "gguf" else source, tmp_path / "mlx", to="mlx")
    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("gemma3n", ["Gemma3nForConditionalGeneration"])
    part = ours.to_folder(gguf, tmp_path / "part")
    named = {n.replace("model.language_model.", "model."): t for n, t in tensors(tmp_path / "mlx").items()}
    assert_same(named, tensors(part))
    model, _ = load_model(tmp_path / "mlx")
    logits = np.array(model(mx.array([IDS]), cache=model.make_cache())[0].astype(mx.float32))
    assert models.relative_error(logits, models.logits(part, IDS)) < MLX
