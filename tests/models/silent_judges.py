"""What the recorded models of a family don't state, and its table speaks of: each judge states it and raises where the
family errs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from tests.models.family_judges import golden, models_of
from tests.models.reference_cases import CASES

from weighbridge.base.dtypes import F32
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.registry import families, family_of_hf
from weighbridge.models.config.losses import config_losses
from weighbridge.models.config.mapping import config_to_gguf
from weighbridge.tensors.nodes import as_node, const

_QWEN = ("partial_rotary_factor", 1.0, 0.5)
_BERT = ("position_embedding_type", "absolute", "relative_key")
_BOTH_WAYS = ("use_bidirectional_attention", False, True)
#: Keys that published configs state and the recorded ones don't: key, the value that llama.cpp's graph takes for
#: granted, another value.
_GRANTED: dict[str, tuple[tuple[str, Any, Any], ...]] = {
    "bert": (_BERT,),
    "roberta": (_BERT,),
    "cohere2": (
        ("position_embedding_type", "rope_gptj", "nope"),
        ("order_of_interleaved_layers", "local_attn_first", "global_attn_first"),
    ),
    "deepseek2": (("topk_method", "greedy", "group_limited_greedy"), ("topk_method", "noaux_tc", "other")),
    "deepseek32": (("topk_method", "noaux_tc", "greedy"),),
    "gemma": (_BOTH_WAYS,),
    "gemma2": (_BOTH_WAYS,),
    "llama": (_QWEN,),
    "qwen2": (_QWEN,),
    "qwen2moe": (_QWEN,),
    "qwen3": (_QWEN,),
    "qwen3moe": (_QWEN,),
}


@cache
def _recorded_config(family: str) -> dict[str, Any]:
    """The config of the first recorded model of a family, of one without parts if there is one."""
    configs: list[dict[str, Any]] = [c.config for c in CASES.values() if family_of_hf(c.config).name == family]
    configs += [golden()[model]["config"] for model in models_of(families()[family])]
    return dict(sorted(configs, key=lambda config: "text_config" in config)[0])


def judge_granted(family: Family) -> None:
    """A config that states what llama.cpp takes for granted loses nothing; another value is the one loss."""
    for key, granted, other in _GRANTED.get(family.name, ()):
        config = _recorded_config(family.name)
        known = config_losses(config, family)
        assert config_losses({**config, key: granted}, family) == known, key
        losses = [loss for loss in config_losses({**config, key: other}, family) if loss not in known]
        assert losses == [f"config.json: {key} = {other!r} has no key in a {family.gguf} GGUF"], key


def judge_two_rotations(family: Family) -> None:
    """A DBRX may repeat its base frequency in either of two places: the same value loses nothing, another does."""
    if family.name != "dbrx":
        return
    config = {key: value for key, value in _recorded_config("dbrx").items() if not key.startswith("rope_")}
    base = config["attn_config"]["rope_theta"]
    assert not [loss for loss in config_losses(config, family) if "rope_theta" in loss]
    for stated, is_lost in ((base, False), (base * 2, True)):
        nested = {"rope_parameters": {"rope_theta": stated, "rope_type": "default"}}
        for path, again in (("rope_parameters.rope_theta", nested), ("rope_theta", {"rope_theta": stated})):
            losses = config_losses({**config, **again}, family)
            assert any(loss.startswith(f"config.json: {path}") for loss in losses) == is_lost, (path, losses)


def judge_turned_experts(family: Family) -> None:
    """Published experts of Qwen 3-VL MoE are transposed; transformers 5 (`hf5`) saves them as linear layers, by the
    same names."""
    if family.name != "qwen3vlmoe":
        return
    sizes = family.sizes_from_hf(_recorded_config(family.name))
    published = family.names("hf", sizes)
    experts = {name for name in published if ".mlp.experts." in name}
    assert {name.rpartition(".")[2] for name in experts} == {"gate_up_proj", "down_proj"}
    turned = {name: (n, b, a) for name, (n, a, b) in ((name, published[name]) for name in experts)}
    assert family.names("hf5", sizes) == {**published, **turned}
    shapes = {"hf": published, "hf5": {**published, **turned}}
    assert all(family.dialect_of(held, sizes) == dialect for dialect, held in shapes.items())


def judge_none_shared(family: Family) -> None:
    """A Granite without a shared expert has no width of one."""
    if family.name == "granitemoeshared":
        config = {**_recorded_config(family.name), "shared_intermediate_size": 0}
        assert f"{family.gguf}.expert_shared_feed_forward_length" not in config_to_gguf(config, family, file_type=0)


def judge_reranker(family: Family) -> None:
    """A Qwen 3 that ranks is a Qwen 3 with a matrix of two rows, which may be absent, and the labels of these
    (conversion/qwen.py `Qwen3Model`, llama.cpp b11549)."""
    if family.name != "qwen3reranker":
        return
    matrix, like, config = "cls.output.weight", families()["qwen3"], _recorded_config("qwen3")
    labelled = {**config, "id2label": {"0": "yes", "1": "no"}}
    sizes = family.sizes_from_hf(config)
    shape = (2, config["hidden_size"])
    for dialect, name in (("gguf", matrix), ("canonical", "rerank.weight"), ("hf", None), ("mlx", None)):
        own = {} if name is None else {name: shape}
        assert family.names(dialect, sizes) == {**like.names(dialect, sizes), **own}, dialect
    plain = like.names("gguf", sizes)
    assert family.check("gguf", sizes, plain).ok
    assert family.check("gguf", sizes, {**plain, matrix: shape}).ok
    numbers = np.arange(np.prod(shape), dtype="<f4").reshape(shape)
    roles = family.load("gguf", sizes, {n: const(np.zeros(s, "<f4"), F32) for n, s in plain.items()} |
                        {matrix: const(numbers, F32)})  # fmt: skip
    kinds = {family.rows[role].kind for role in family.expansion("gguf", sizes).places[matrix].roles}
    assert kinds == {"linear"}
    for dialect, name in (("gguf", matrix), ("canonical", "rerank.weight")):
        written = as_node(family.save(dialect, sizes, roles)[name]).read_all().view("<f4")
        assert np.array_equal(written, numbers.ravel()), dialect
    keys = config_to_gguf(labelled, family, file_type=0)
    labels = keys.pop("qwen3.classifier.output_labels")
    assert (labels.type, labels.value) == ("arr[str]", ["yes", "no"])
    assert keys == config_to_gguf(labelled, like, file_type=0)
    metadata = {key: kv.value for key, kv in keys.items()}
    assert family.architecture_of_gguf(metadata, [*plain, matrix]).name == "Qwen3ForCausalLM"


#: family -> the dense modules that its GGUFs may hold: names in each dialect, and keys with their sizes
DENSE: dict[str, tuple[dict[str, tuple[str, str, str]], dict[str, int]]] = {
    "gemmaembedding": (
        {
            "dense_2": ("2_Dense.linear.weight", "dense_2.weight", "dense.2.weight"),
            "dense_3": ("3_Dense.linear.weight", "dense_3.weight", "dense.3.weight"),
        },
        {"gemma-embedding.dense_2_feat_out": 24, "gemma-embedding.dense_3_feat_in": 40},
    ),
    "lfm2": (
        {"dense_2": ("1_Dense.linear.weight", "dense_2.weight", "dense.2.weight")},
        {"lfm2.embedding_length_out": 24},
    ),
}


def judge_dense_modules(family: Family) -> None:
    """Matrices behind the pooling, which may be absent (conversion/gemma.py `EmbeddingGemma`, conversion/lfm2.py
    `LFM2ColBertModel`, llama.cpp b11549)."""
    if family.name not in DENSE:
        return
    roles_of, sizes_of = DENSE[family.name]
    config = _recorded_config(family.name)
    width = config["hidden_size"]
    shapes = dict(zip(roles_of, ((24, width), (width, 40)), strict=False))
    bare = family.sizes_from_hf(config)
    plain = family.names("gguf", bare)
    assert not [name for name in plain if "dense" in name]
    dense = {roles_of[role][1]: shape for role, shape in shapes.items()}
    metadata = {key: kv.value for key, kv in config_to_gguf(config, family, file_type=0).items()} | sizes_of
    metadata |= {"general.architecture": family.gguf, "tokenizer.ggml.tokens": ["x"] * config["vocab_size"]}
    sizes = family.sizes_from_gguf(metadata, [*plain, *dense])
    for number, dialect in enumerate(("hf", "gguf", "canonical")):
        names = family.names(dialect, sizes)
        assert {of[number]: names[of[number]] for of in roles_of.values()} == {
            roles_of[role][number]: shape for role, shape in shapes.items()
        }
    assert family.check("gguf", bare, plain).ok
    assert family.check("gguf", sizes, plain).ok
    assert family.check("gguf", sizes, {**plain, **dense}).ok
    numbers = {name: np.arange(np.prod(shape), dtype="<f4").reshape(shape) for name, shape in dense.items()}
    given = {n: const(np.zeros(s, "<f4"), F32) for n, s in plain.items()}
    roles = family.load("gguf", sizes, given | {name: const(array, F32) for name, array in numbers.items()})
    for role, names_of in roles_of.items():
        assert family.rows[role].kind == "linear"
        for dialect, name in zip(("hf", "gguf", "canonical"), names_of, strict=True):
            written = as_node(family.save(dialect, sizes, roles)[name]).read_all().view("<f4")
            assert np.array_equal(written, numbers[names_of[1]].ravel()), dialect


JUDGES: tuple[Callable[[Family], None], ...] = (
    judge_granted,
    judge_two_rotations,
    judge_turned_experts,
    judge_none_shared,
    judge_reranker,
    judge_dense_modules,
)
