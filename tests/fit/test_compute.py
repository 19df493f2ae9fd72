"""Weights, caches and compute buffers against llama.cpp's own account, for files of published sizes without data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from tests.fit.hollow import FAMILIES, NAMES, recorded
from tests.oracles import llamacpp_memory
from tests.oracles.llamacpp_memory import Breakdown, Settings

from weighbridge.base.dtypes import BF16
from weighbridge.base.spec import Spec
from weighbridge.containers.gguf.container import KV
from weighbridge.conversion import dtype_policy
from weighbridge.fitting.cache import RunSettings, cache_memory, cache_of
from weighbridge.fitting.compute import compute_memory, stages_of
from weighbridge.fitting.placement import weight_bytes
from weighbridge.models.arch.registry import family_of_hf
from weighbridge.models.config.mapping import config_to_gguf

pytestmark = pytest.mark.oracle

Tensors = list[tuple[str, Spec]]

# The encoder-decoders can't be measured: llama.cpp reserves a graph for them that asserts.
NOT_MEASURED = {name for name in NAMES if re.match("u?m?t5(?!encoder)", name)}
SETTINGS = (
    RunSettings(context=1024),
    RunSettings(context=2048, parallel=3),
    RunSettings(context=2048, parallel=3, unified=True),
    RunSettings(context=1024, flash_attention=False),
    RunSettings(context=16384),
)
# Architectures of one record each, at the sizes that transformers gives their class by default.
PUBLISHED = (
    "arcee", "baichuan", "cohere2", "command-r", "deepseek-v3", "ernie4.5-moe", "exaone", "falcon",
    "gemma2", "gemma3", "gemma3n", "glm4.5", "gpt-oss", "gptneox", "granite-hybrid", "granite-moe", "hunyuan-moe",
    "internlm2", "jamba", "kimi-k2", "lfm2moe", "ling2", "llama4", "mamba", "minicpm3", "minimax-m2", "mpt", "nemotron",
    "nomic-bert", "olmoe", "phi2", "qwen3next", "qwen35", "qwen35moe", "seed-oss", "stablelm", "starcoder2",
)  # fmt: skip
_H1 = {"num_hidden_layers": 4, "mamba_n_groups": 1, "vocab_size": 65536, "head_dim": 128, "num_key_value_heads": 2}
# Hybrids and mixtures at sizes that are published, which other parts of a layer decide than the class's default sizes.
SIZED: dict[str, tuple[str, dict[str, Any]]] = {
    "Falcon-H1 1.5B": ("falcon-h1", _H1 | {"hidden_size": 2048, "intermediate_size": 4096, "num_attention_heads": 8,
        "mamba_d_ssm": 3072, "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 256}),
    "Falcon-H1 7B": ("falcon-h1", _H1 | {"hidden_size": 3072, "intermediate_size": 12288, "num_attention_heads": 12,
        "mamba_d_ssm": 3072, "mamba_n_heads": 24, "mamba_d_head": 128, "mamba_d_state": 256}),
    "LFM2 350M": ("lfm2", {"vocab_size": 65536, "hidden_size": 1024, "block_ff_dim": 6656, "intermediate_size": 6656,
        "num_attention_heads": 16, "num_key_value_heads": 8}),
    "OLMoE 1B-7B": ("olmoe", {"hidden_size": 2048, "intermediate_size": 1024, "num_attention_heads": 16,
        "num_key_value_heads": 16, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 2}),
}  # fmt: skip
# Mamba-2 groups, or a mixer narrower than the model: ggml's allocator leaves holes.
ESTIMATED = ("falcon-h1", _H1 | {"hidden_size": 5120, "intermediate_size": 21504, "num_attention_heads": 20,
    "mamba_d_ssm": 4096, "mamba_n_heads": 32, "mamba_d_head": 128, "mamba_d_state": 256,
    "mamba_n_groups": 2})  # fmt: skip
LARGE = (RunSettings(context=4096), RunSettings(context=16384), RunSettings(context=8192, ubatch=1024))


def as_theirs(settings: RunSettings) -> Settings:
    return Settings(
        settings.context, settings.parallel, settings.unified, settings.batch, settings.ubatch,
        swa_full=settings.swa_full, flash_attention=settings.flash_attention,
    )  # fmt: skip


def measured(
    folder: Path, models: Mapping[str, tuple[dict[str, KV], Tensors]], settings: tuple[RunSettings, ...]
) -> dict[str, list[Breakdown | str]]:
    """llama.cpp's figures for all models, from one process. The files go at once: each has the size of the model."""
    paths = {
        name: llamacpp_memory.write_hollow(folder / f"{name}.gguf", tensors, keys)
        for name, (keys, tensors) in models.items()
    }
    found = llamacpp_memory.all_breakdowns({path: [as_theirs(s) for s in settings] for path in paths.values()})
    for path in paths.values():
        path.unlink()
    return {name: found[path] for name, path in paths.items()}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Breakdown | str]]:
    models = {name: recorded(name) for name in NAMES if name not in NOT_MEASURED}
    return measured(tmp_path_factory.mktemp("small"), models, SETTINGS)


def plain(keys: Mapping[str, KV]) -> dict[str, Any]:
    return {key: kv.value for key, kv in keys.items()}


@pytest.mark.costly
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_context_of_every_family_is_llama_cpps(settings: RunSettings, small: dict[str, list[Breakdown | str]]) -> None:
    """Of the records that llama.cpp loads; some are of parts of a model."""
    loaded = {name: rows[SETTINGS.index(settings)] for name, rows in small.items()}
    theirs = {name: row.context for name, row in loaded.items() if isinstance(row, Breakdown)}
    assert len(theirs) > 120
    ours = {name: cache_memory(cache_of(plain(recorded(name)[0])), settings).total for name in theirs}
    assert ours == theirs


def published(name: str, sizes: Mapping[str, Any] = MappingProxyType({})) -> tuple[dict[str, KV], Tensors]:
    """The family of a record at its class's default sizes, or at these."""
    record = json.loads((FAMILIES / f"{name}.json").read_text())
    kept = {key: record["config"][key] for key in ("architectures", "model_type")}
    config = {**record["config"], **record["defaults"], **sizes, **kept}
    family = family_of_hf(config)
    roles = {re.sub(r"\d+", "#", tensor) for tensor, *_ in record["gguf"]}
    places = family.expansion("gguf", family.sizes_from_hf(config)).places
    tensors = [
        (tensor, Spec(slot.shape, dtype_policy.gguf_dtype(tensor, Spec(slot.shape, BF16), BF16)))
        for tensor, slot in places.items()
        if re.sub(r"\d+", "#", tensor) in roles
    ]
    table = next(spec.shape[0] for tensor, spec in tensors if tensor == "token_embd.weight")
    keys = {
        "general.architecture": KV("str", family.gguf),
        **config_to_gguf(config, family, file_type=1),
        f"{family.gguf}.vocab_size": KV("u32", table),
        "tokenizer.ggml.model": KV("str", "none"),
        "tokenizer.ggml.token_type_count": KV("u32", 2),
    }
    return keys, tensors


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Breakdown | str]]:
    models = {name: published(name) for name in PUBLISHED} | {name: published(*how) for name, how in SIZED.items()}
    return measured(tmp_path_factory.mktemp("large"), models, LARGE)


def test_a_model_that_the_rules_dont_hold_for_is_an_estimate() -> None:
    keys, tensors = published(*ESTIMATED)
    shapes = {tensor: spec.shape for tensor, spec in tensors}
    assert not stages_of(plain(keys), shapes, cache_of(plain(keys))).certain


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PUBLISHED, *SIZED])
def test_memory_at_published_sizes_is_llama_cpps(name: str, large: dict[str, list[Breakdown | str]]) -> None:
    """Weights and context to the byte, compute buffers within 3 %."""
    keys, tensors = published(*SIZED.get(name, (name,)))
    model, shapes = cache_of(plain(keys)), {tensor: spec.shape for tensor, spec in tensors}
    stages, weights = (
        stages_of(plain(keys), shapes, model),
        weight_bytes(dict(tensors), len(model.layers), model.architecture),
    )
    assert stages.certain
    for settings, theirs in zip(LARGE, large[name], strict=True):
        assert isinstance(theirs, Breakdown), theirs
        memory = cache_memory(model, settings)
        assert theirs.context == memory.total
        assert theirs.compute == pytest.approx(compute_memory(model, stages, memory, settings), rel=0.03)
        assert theirs.model == pytest.approx(weights.total, rel=0.001)  # without what llama.cpp doesn't use
