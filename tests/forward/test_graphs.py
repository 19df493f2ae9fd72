"""The logits of every computed family equal transformers', from a folder and from a GGUF; no field is superfluous."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.oracles import models

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError
from weighbridge.forward import graph as graphs
from weighbridge.forward.graph import Graph, graph_of
from weighbridge.forward.ops import Floats
from weighbridge.forward.run import ForwardPass
from weighbridge.models.arch.registry import family_of_hf
from weighbridge.models.open import open_model
from weighbridge.providers.base import ProviderOptions
from weighbridge.providers.files import FileProvider

pytest.importorskip("transformers")

Build = Callable[[str], Path]

TOKENS = 48  # twice the models' windows
TOLERANCE = 1e-4  # the largest difference, relative to the spread of the logits
ROWS = graphs.table().graph
CASES = [
    "arcee", "bloom", "chatglm", "chatglm-plain", "cohere2", "command-r", "deepseek-moe",
    "deepseek-v2", "deepseek-v2-lite", "deepseek-v3", "dots1", "ernie4.5",
    "ernie4.5-moe", "ernie4.5-moe-large", "exaone", "exaone-moe", "exaone-untied", "exaone4", "exaone4-window",
    "falcon", "falcon-new", "falcon2", "gemma", "gemma2", "gemma3", "glm", "glm-plain", "glm4", "glm4-plain",
    "glm4.5", "glm4.5-air", "gpt-oss", "gpt2", "gpt2-untied", "gptj", "gptneox", "granite", "granite-bias",
    "granite-moe", "granite-moe-shared", "granite-swa", "granitemoe-swa", "hunyuan-dense", "hunyuan-dense-long",
    "hunyuan-moe", "hunyuan-moe-plain", "hy-v3", "internlm2", "internlm3", "jais2", "kimi-k2", "ling1", "ling2",
    "ling2-further", "llada", "llada-moe", "llama", "llama-bias", "llama-linear", "llama-yarn", "llama3",
    "llama3-v4", "mellum", "minicpm", "minicpm-long", "minimax-m2", "mistral", "mixtral", "mixtral-fused", "mpt",
    "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "openelm", "orion", "phi-mini", "phi-mini-long", "phi2", "plm",
    "qwen1", "qwen2", "qwen2-yarn", "qwen2moe", "qwen2moe-fused", "qwen3", "qwen3moe", "qwen3moe-fused", "refact",
    "seed-oss", "smollm3", "stablelm", "stablelm-parallel", "starcoder", "starcoder-untied", "starcoder2",
]  # fmt: skip
#: Cases that show what a row's field does, for families whose first case doesn't.
SHOWN_BY = {"llama.window": "mistral", "falcon.qkv": "falcon-new", "exaone4.rotated": "exaone4-window"}
#: Fields that replace a setting of config.json, which a GGUF lacks.
SHOWN_IN_GGUF = {"smollm3.unrotated_every"}
#: llama.cpp takes a DeepSeek V2 without q_lora_rank for the Lite model, whose layers are 27.
NO_GGUF = {"deepseek-v2-lite"}
_YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 16}
#: Settings that published models have and the cases lack -> case, options.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "epsilon of latent norms": ("deepseek-v3", {"rms_norm_eps": 3e-1}),
    "sharpened": ("deepseek-v3", {"rope_parameters": _YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}}),
    "groups by two experts": ("deepseek-v3", {"n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}),
    "groups by one expert": (
        "deepseek-v2",
        {"n_group": 3, "topk_group": 1, "num_experts_per_tok": 2, "topk_method": "group_limited_greedy"},
    ),
    "groups without an effect": (
        "deepseek-v2", {"n_group": 3, "topk_group": 1, "num_experts_per_tok": 2, "topk_method": "greedy"}
    ),
}  # fmt: skip
#: A GGUF of Mistral doesn't state the window, which `convert` lists as a loss.
LOST_IN_GGUF = {"mistral"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Build:
    parent = tmp_path_factory.mktemp("graphs")
    return cache(lambda name: models.build(models.CASES[name], parent / name))


@cache
def _expected(folder: Path, name: str) -> Floats:
    return models.logits(folder, models.probe_of(name, TOKENS))


def _opened(path: Path) -> tuple[FileProvider, Graph]:
    provider = FileProvider(open_model(path), options=ProviderOptions(cache=0))
    model, shapes = provider.model, {name: provider.shape(name) for name in provider}
    return provider, graph_of(model.family.name, provider.config, shapes, model.family.effective(model.config))


def _logits(provider: FileProvider, graph: Graph, name: str, limit: int = 1 << 30) -> Floats:
    run = ForwardPass(provider, graph, limit=limit)
    with run.hidden(np.array([models.probe_of(name, TOKENS)])) as states:
        return next(run.logits(states))


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_transformers(folder: Build, tmp_path: Path, name: str) -> None:
    expected = _expected(folder(name), name)
    target = tmp_path / "model.gguf"
    if name not in NO_GGUF:
        wb.convert(folder(name), target, dtype="f32")
    for path in (folder(name), target) if name not in NO_GGUF else (folder(name),):
        provider, graph = _opened(path)
        with provider:
            error = models.relative_error(_logits(provider, graph, name), expected)
        if path == target and name in LOST_IN_GGUF:
            assert error > TOLERANCE
        else:
            assert error < TOLERANCE, path.name


@pytest.mark.parametrize("variant", VARIANTS)
def test_settings_of_published_models(tmp_path: Path, variant: str) -> None:
    name, options = VARIANTS[variant]
    case = models.CASES[name]
    folder = models.build(replace(case, options=case.options | options), tmp_path / "model")
    provider, graph = _opened(folder)
    with provider:
        found = _logits(provider, graph, name)
    assert models.relative_error(found, models.logits(folder, models.probe_of(name, TOKENS))) < TOLERANCE


def _family(name: str) -> str:
    """The family of a case, by the class that it is built as."""
    import transformers

    case = models.CASES[name]
    config = {"architectures": [case.config], **case.options, **case.said}
    if not case.shapes:
        cls = getattr(transformers, case.config)
        head = case.head or transformers.AutoModelForCausalLM._model_mapping[cls].__name__
        config = {**config, "model_type": cls.model_type, "architectures": [head], **case.said}
    return family_of_hf(config).name


def _fields() -> list[str]:
    """Each field of each row that differs from the default: `family.field`."""
    plain = graphs.FamilyGraph()
    return [
        f"{family}.{field}"
        for family, row in ROWS.items()
        for field in row.__struct_fields__
        if getattr(row, field) != getattr(plain, field)
    ]


@cache
def _cases() -> dict[str, list[str]]:
    """The cases of each family."""
    out: dict[str, list[str]] = {}
    for name in CASES:
        out.setdefault(_family(name), []).append(name)
    return out


def test_each_row_has_a_case() -> None:
    assert {*ROWS} <= {*_cases()}


@pytest.mark.parametrize("which", _fields())
def test_each_field_of_a_row_is_needed(folder: Build, tmp_path: Path, which: str) -> None:
    family, _, field = which.partition(".")
    name = SHOWN_BY.get(which) or _cases()[family][0]
    path = folder(name)
    if which in SHOWN_IN_GGUF:
        path = tmp_path / "model.gguf"
        wb.convert(folder(name), path, dtype="f32")
    provider, graph = _opened(path)
    with provider:
        row = msgspec.structs.replace(graph.row, **{field: getattr(graphs.FamilyGraph(), field)})
        changed = Graph(graph.config, row, graph.shapes, graph.facts)
        try:
            found = _logits(provider, changed, name)
        except (ValueError, UnsupportedError):
            return
    assert models.relative_error(found, _expected(folder(name), name)) > TOLERANCE


def test_hidden_states_in_a_file_are_the_same(folder: Build) -> None:
    provider, graph = _opened(folder("llama"))
    with provider:
        assert np.array_equal(_logits(provider, graph, "llama"), _logits(provider, graph, "llama", limit=0))


@pytest.mark.parametrize("name", ["mamba", "deepseek-v3.2", "minicpm3", "gemma4", "afmoe"])
def test_a_graph_that_is_not_proven_is_refused(folder: Build, name: str) -> None:
    with pytest.raises(UnsupportedError, match="isn't computed"):
        _opened(folder(name))


def test_unknown_settings_and_tensors_are_refused(folder: Build) -> None:
    provider, graph = _opened(folder("qwen3"))
    with provider:
        shapes = {**graph.shapes, "layers.0.attention.linear.weight": (4, 4)}
        with pytest.raises(UnsupportedError, match=r"tensors attention\.linear\.weight"):
            graph_of("qwen3", graph.config, shapes, graph.facts)
        keys = {**graph.config.keys, "attention.value_scale": 2.0}
        with pytest.raises(UnsupportedError, match=r"settings attention\.value_scale"):
            graph_of("qwen3", replace(graph.config, keys=keys), graph.shapes, graph.facts)
