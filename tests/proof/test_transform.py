"""A model whose layers or experts `wb slice` took out computes what the model computes whose modules were taken out by
hand in transformers: the folder bit for bit, the GGUF within llama.cpp's rounding."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.oracles import folders, gguf_file, llamacpp, models, ours, vocabularies
from tests.oracles.case import Case
from tests.oracles.families.common import BPE, GQA, SPM, WINDOW, theta
from tests.oracles.ours import report_of

import weighbridge as wb
from weighbridge.base.errors import UsageError

pytestmark = pytest.mark.oracle

TOLERANCE = 5e-4
GELU_TOLERANCE = 1e-2

_MIXTURE = models._QWEN | {
    "num_experts": 6, "num_experts_per_tok": 4, "moe_intermediate_size": 64, "norm_topk_prob": True,
}  # fmt: skip
CASES = {
    case.name: case
    for case in (
        # in shards, so that the index has to be true, too
        Case("plain", "LlamaConfig", "spm", GQA | SPM | theta(1e4) | {"num_hidden_layers": 5},
             {"max_shard_size": "90KB"}),
        # every fourth layer without a rotation
        Case("smollm3", "SmolLM3Config", "bpe", GQA | BPE | theta(5e3) | {"num_hidden_layers": 8}),
        # every sixth layer without a window
        Case(
            "gemma3",
            "Gemma3TextConfig",
            "gemma",
            GQA | SPM | {"num_hidden_layers": 8, "head_dim": 32, "pad_token_id": 0, "sliding_window": WINDOW}
            | {"query_pre_attn_scalar": 32},
            gelu=True,
        ),
        Case("mixture", "Qwen3MoeConfig", "qwen", _MIXTURE | {"num_hidden_layers": 3}),
        Case("fused", "Qwen3MoeConfig", "qwen", _MIXTURE,
             {"save_original_format": False}),
        # the first layer dense, experts in groups, a bias that only chooses them
        Case(
            "deepseek",
            "DeepseekV3Config",
            "bpe",
            GQA | BPE | theta(1e4)
            | {"num_key_value_heads": 4, "num_hidden_layers": 4, "moe_intermediate_size": 32, "n_routed_experts": 8}
            | {"num_experts_per_tok": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
            | {"first_k_dense_replace": 2, "rms_norm_eps": 1e-6}  # the norms inside have this one in any case
            | {"kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 24},
            said={"scoring_func": "sigmoid"},
            spreads=((("mlp.gate.weight",), (0.0, 0.1)),),
        ),
    )
}  # fmt: skip


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("transform")
    return cache(lambda name: models.build(CASES.get(name) or models.CASES[name], root / name))


CASES |= {name: models.CASES[name] for name in ("jamba", "qwen3next", "gemma3n")}


def probe(name: str) -> tuple[int, ...]:
    return models.probe(vocabularies.SIZES[CASES[name].tokenizer])


def t5_by_hand(folder: Path, ids: tuple[int, ...], kept: dict[str, list[int]], **settings: Any) -> Any:
    """The logits of the T5 of which only these layers are left. The first one there has the position biases."""
    import torch

    model = models.load(folder, **settings)
    for side, numbers in kept.items():
        stack = getattr(model, side)
        biases = stack.block[0].layer[0].SelfAttention.relative_attention_bias
        stack.block = torch.nn.ModuleList([stack.block[n] for n in numbers])
        for number, block in enumerate(stack.block):
            block.layer[0].SelfAttention.has_relative_attention_bias = number == 0
        stack.block[0].layer[0].SelfAttention.relative_attention_bias = biases
    with torch.no_grad():
        answer = torch.tensor([llamacpp.answer(ids)])
        return model(torch.tensor([list(ids)]), decoder_input_ids=answer, use_cache=False).logits[0].numpy()


T5_CUTS = {
    "encoder:1-,decoder:1,0": {"encoder": [1, 2], "decoder": [1, 0]},
    "decoder:1": {"decoder": [1]},
    "encoder:2,0,1": {"encoder": [2, 0, 1]},
}


@pytest.mark.parametrize("layers", T5_CUTS)
def test_an_encoder_and_a_decoder_are_cut_each_by_itself(layers: str, folder_of: Any, tmp_path: Path) -> None:
    case = models.CASES["t5"]
    folder = folder_of("t5")
    ids = models.probe(vocabularies.SIZES[case.tokenizer])
    expected = t5_by_hand(folder, ids, T5_CUTS[layers], **case.settings)
    wb.slice(folder, tmp_path / "cut", layers=layers, renumber=True)
    assert np.array_equal(models.logits(tmp_path / "cut", ids, **case.settings), expected)
    assert wb.verify(tmp_path / "cut").ok
    wb.convert(folder, tmp_path / "whole.gguf", dtype="f32", pre=case.pre)
    wb.slice(tmp_path / "whole.gguf", tmp_path / "cut.gguf", layers=layers, renumber=True)
    with llamacpp.Model(tmp_path / "cut.gguf") as model:
        assert models.relative_error(model.logits(ids), expected) < (case.tolerance or TOLERANCE)


# What else has to be said of the cut: where a period begins.
BY_HAND = {"jamba": {"attn_layer_offset": 0, "expert_layer_offset": 0}}


def by_hand(
    name: str, folder: Path, ids: tuple[int, ...], layers: list[int] | None, experts: list[int] | None = None
) -> Any:
    """The logits of the model of which only these layers and experts are left."""
    import torch

    model = models.load(folder)
    config = model.config
    if layers is not None:
        for key in ("layer_types", "no_rope_layers"):
            if getattr(config, key, None) is not None and not isinstance(getattr(type(config), key, None), property):
                setattr(config, key, [getattr(config, key)[i] for i in layers])
        model.model.layers = torch.nn.ModuleList([model.model.layers[i] for i in layers])
        config.num_hidden_layers = len(layers)
        for key, value in BY_HAND.get(name, {}).items():
            setattr(config, key, value)
    for layer in model.model.layers if experts is not None else ():
        if hasattr(layer.mlp, "experts"):
            _fewer(layer.mlp, experts or [])
    with torch.no_grad():
        return model(torch.tensor([list(ids)]), use_cache=False).logits[0].numpy()


def _fewer(mlp: Any, experts: list[int]) -> None:
    import torch

    router = mlp.gate
    for owner, name in ((mlp.experts, "gate_up_proj"), (mlp.experts, "down_proj"), (router, "weight")):
        setattr(owner, name, torch.nn.Parameter(getattr(owner, name)[experts]))
    if hasattr(router, "e_score_correction_bias"):
        router.e_score_correction_bias = torch.nn.Parameter(router.e_score_correction_bias[experts])
    for module in (mlp, router, mlp.experts):
        for key in ("num_experts", "n_routed_experts"):
            if hasattr(module, key):
                setattr(module, key, len(experts))
        if getattr(module, "top_k", 0) > len(experts):
            module.top_k = len(experts)


# (model, layers, experts): what is left, as it is written and as numbers
CUTS = [
    ("plain", "0-2", [0, 1, 2], None, None),
    ("plain", "1,3-4", [1, 3, 4], None, None),
    ("plain", "0-3,1-4", [0, 1, 2, 3, 1, 2, 3, 4], None, None),  # two runs that overlap: deeper
    ("smollm3", "4-7", [4, 5, 6, 7], None, None),
    ("gemma3", "1,4-7", [1, 4, 5, 6, 7], None, None),  # breaks the pattern, which is then written out
    ("mixture", "0,2", [0, 2], "0,3-5", [0, 3, 4, 5]),
    ("mixture", None, None, "1-3", [1, 2, 3]),  # fewer than a token is sent to
    ("fused", None, None, "5,0", [5, 0]),
    ("deepseek", "1,3", [1, 3], None, None),
    ("jamba", "1-3", [1, 2, 3], None, None),  # another offset of the same period
    ("qwen3next", "1,3,0", [1, 3, 0], None, None),  # breaks the interval, which is then written out
    ("deepseek", None, None, "0-2,5-7", [0, 1, 2, 5, 6, 7]),
]
_IDS = [f"{name}-{layers or 'all'}-{experts or 'all'}" for name, layers, _, experts, _ in CUTS]


@pytest.mark.parametrize(("name", "layers", "experts"), [("gemma4", "1-5", None), ("gemma4-experts", "1-2", "0,2-5")])
def test_both_forms_of_a_gemma4_are_cut_alike(
    name: str, layers: str, experts: str | None, folder_of: Any, tmp_path: Path
) -> None:
    """Embeddings of all layers side by side, shared keys, what is said layer by layer: transformers computes of the cut
    folder what llama.cpp computes of the cut GGUF."""
    folder, ids = folder_of(name), models.probe_of(name)
    wb.convert(folder, tmp_path / "whole.gguf", dtype="f32")
    for source, target in ((folder, "cut"), (tmp_path / "whole.gguf", "cut.gguf")):
        wb.slice(source, tmp_path / target, layers=layers, renumber=layers is not None, experts=experts)
    assert wb.verify(tmp_path / "cut").ok
    with llamacpp.Model(tmp_path / "cut.gguf") as model:
        assert models.relative_error(model.logits(ids), models.logits(tmp_path / "cut", ids)) < GELU_TOLERANCE


def test_a_gemma4_ends_with_a_layer_that_attends_to_all(folder_of: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be of type full_attention"):
        wb.slice(folder_of("gemma4"), tmp_path / "cut", layers="1-4", renumber=True)


@pytest.mark.parametrize(("name", "layers", "kept", "experts", "chosen"), CUTS, ids=_IDS)
def test_what_is_left_computes_what_a_model_cut_by_hand_does(
    name: str, layers: str | None, kept: Any, experts: str | None, chosen: Any, folder_of: Any, tmp_path: Path
) -> None:
    folder, case = folder_of(name), CASES[name]
    expected = by_hand(name, folder, probe(name), kept, chosen)
    wb.slice(folder, tmp_path / "cut", layers=layers, renumber=layers is not None, experts=experts)
    assert np.array_equal(models.logits(tmp_path / "cut", probe(name)), expected)
    assert wb.verify(tmp_path / "cut").ok

    whole, cut = tmp_path / "whole.gguf", tmp_path / "cut.gguf"
    wb.convert(folder, whole, dtype="f32", pre=case.pre)
    wb.slice(whole, cut, layers=layers, renumber=layers is not None, experts=experts)
    bound = case.tolerance or (GELU_TOLERANCE if case.gelu else TOLERANCE)
    with llamacpp.Model(cut) as model:
        assert models.relative_error(model.logits(probe(name)), expected) < bound


def test_what_lies_layer_by_layer_in_one_tensor_is_cut(folder_of: Any, tmp_path: Path) -> None:
    """Gemma 3n: embeddings for each layer side by side, and layers that take keys and values from others."""
    import torch

    folder, case = folder_of("gemma3n"), models.CASES["gemma3n"]
    ids = models.probe(vocabularies.SIZES[case.tokenizer])
    report = report_of(wb.plan_slice(folder, tmp_path / "cut", layers="0-2", renumber=True))
    assert {c.tensor.rpartition(".")[0].rpartition(".")[2]: (c.before, c.after) for c in report.cut} == {
        "embed_tokens_per_layer": ((640, 128), (640, 96)), "per_layer_model_projection": ((128, 96), (96, 96)),
    }  # fmt: skip
    model = models.load(folder, **case.settings)
    inner = model.model
    inner.layers = inner.layers[:3]
    for part in (model.config, inner.config):
        part.num_hidden_layers, part.layer_types = 3, part.layer_types[:3]
    table, projection = inner.embed_tokens_per_layer, inner.per_layer_model_projection
    table.weight = torch.nn.Parameter(table.weight[:, :96])
    projection.weight = torch.nn.Parameter(projection.weight[:96])
    with torch.no_grad():
        expected = model(torch.tensor([list(ids)]), use_cache=False).logits[0].numpy()
    assert np.array_equal(models.logits(tmp_path / "cut", ids, **case.settings), expected)


@pytest.mark.parametrize("name", ["smollm3", "mixture", "deepseek", "gemma3n"])
def test_cutting_and_converting_can_change_places(name: str, folder_of: Any, tmp_path: Path) -> None:
    """The GGUF of the cut folder is the cut GGUF of the folder, keys and bytes."""
    what: Any = {
        "layers": "0-2" if name == "gemma3n" else "0-1",
        **({"experts": "0,2,4,6"} if name == "deepseek" else {}),
    }
    wb.slice(folder_of(name), tmp_path / "model", **what)
    with ours.unchecked():  # llama.cpp's graph of Gemma 3n has the published sizes built in
        wb.convert(tmp_path / "model", tmp_path / "a.gguf", dtype="q8_0", pre=CASES[name].pre, name="cut")
        wb.convert(folder_of(name), tmp_path / "whole.gguf", dtype="q8_0", pre=CASES[name].pre, name="cut")
        wb.slice(tmp_path / "whole.gguf", tmp_path / "b.gguf", **what)
    assert not gguf_file.differences(gguf_file.read(tmp_path / "a.gguf"), gguf_file.read(tmp_path / "b.gguf"))


def test_names_of_every_dialect_go_there_and_back(folder_of: Any, tmp_path: Path) -> None:
    source = folder_of("mixture")
    for dialect in ("hf5", "mlx", "gguf", "canonical"):
        there, back = tmp_path / dialect, tmp_path / f"{dialect}-back"
        wb.rename(source, there, to_names=dialect, to="hf")
        assert set(folders.tensors(there)) != set(folders.tensors(source))
        wb.rename(there, back, to_names="hf", to="hf")
        folders.assert_same(folders.tensors(back), folders.tensors(source))
    assert np.array_equal(models.logits(tmp_path / "hf5", probe("mixture")), models.logits(source, probe("mixture")))


def test_the_index_of_a_set_is_true_after_a_rename(folder_of: Any, tmp_path: Path) -> None:
    report = report_of(
        wb.plan_rename(
            folder_of("plain"), tmp_path / "out", strip_prefix="model.", replace=[("self_attn", "attention")]
        )
    )
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    before = folders.tensors(folder_of("plain"))
    held = folders.tensors(tmp_path / "out")
    renamed = {r.old[0]: r.new for r in report.renamed}
    assert set(index["weight_map"]) == set(held) == {renamed.get(name, name) for name in before}
    folders.assert_same({old: held[renamed.get(old, old)] for old in before}, before)
