"""What of a model may be absent, lie elsewhere or be left out: layers that predict further tokens, the vectors of
experts, parts that see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.models.family_judges import golden, metadata_of, sizes_of
from tests.models.record_families import values

from weighbridge.base.dtypes import BY_NAME, F32
from weighbridge.base.spec import Spec
from weighbridge.containers.gguf.values import KV
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.naming import MappingError, as_read
from weighbridge.models.arch.registry import families, family_of_hf
from weighbridge.models.config.mapping import gguf_to_config, with_tokenizer_keys
from weighbridge.tensors.nodes import Const, Node, const

GLM, OSS, LLAMA4 = families()["glm4moe"], families()["gpt-oss"], families()["llama4"]


def shapes(model: str) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape in golden()[model]["hf"].items()}


def nodes(model: str) -> dict[str, Node]:
    return {name: const(values(name, shape), F32) for name, shape in shapes(model).items()}


def roles(family: Family, model: str) -> Any:
    return family.load("hf", sizes_of(family, model), nodes(model))


def test_layers_that_predict_further_tokens_are_there_whole_or_not_at_all() -> None:
    sizes, held = sizes_of(GLM, "glm4.5"), shapes("glm4.5")
    further = {n for n in held if n.startswith("model.layers.3.")}
    assert len(further) > 20
    assert GLM.check("hf", sizes, {n: s for n, s in held.items() if n not in further}).ok
    for name in further:
        report = GLM.check("hf", sizes, {n: s for n, s in held.items() if n not in further or n == name})
        group = {n for n in further if n.endswith(".bias") and "_proj" in n}
        group |= {n for n in further if "q_norm" in n or "k_norm" in n}
        assert set(report.missing) >= further - group - {name}


def test_a_gguf_without_them_is_the_model_without_them() -> None:
    sizes, held = sizes_of(GLM, "glm4.5"), nodes("glm4.5")
    plain = {name: node for name, node in held.items() if not name.startswith("model.layers.3.")}
    written = GLM.save("gguf", sizes, GLM.load("hf", sizes, plain), source_order=as_read(dict.fromkeys(plain, "m")))
    assert not any(name.startswith("blk.3.") for name in written)
    back = GLM.save("hf", sizes, GLM.load("gguf", sizes, written))
    assert back.keys() == plain.keys()


def test_what_a_dialect_has_no_layer_for_is_told() -> None:
    sizes, found = sizes_of(GLM, "glm4.5"), roles(GLM, "glm4.5")
    lost = GLM.unmapped_roles("mlx", sizes, found)
    assert {index[0] for _, index in lost} == {3}
    names = GLM.holding("hf", sizes, nodes("glm4.5"), lost)
    assert set(names) == {n for n in shapes("glm4.5") if n.startswith("model.layers.3.")}
    assert GLM.unmapped_roles("gguf", sizes, found) == []


def test_stacked_vectors_are_one_line_each() -> None:
    """A row of a stack of vectors is one of them, taken apart and put together again as numbers."""
    _sizes, found = sizes_of(OSS, "gpt-oss"), roles(OSS, "gpt-oss")
    whole = values("model.layers.1.mlp.experts.gate_up_proj_bias", (6, 2 * 96))
    for part, role in enumerate(("gate_exp_bias", "up_exp_bias")):
        for expert in range(6):
            node = found[role, (1, expert)]
            assert node.spec == Spec((96,), F32)
            assert np.array_equal(node.read_all().view("<f4"), whole[expert, part::2])


def test_quantized_vectors_are_decoded_before_they_are_parted() -> None:
    """Nobody writes such a GGUF; one that says so is read by its numbers."""
    sizes, kind = sizes_of(OSS, "gpt-oss"), BY_NAME["Q8_0"]
    written = dict(OSS.save("gguf", sizes, roles(OSS, "gpt-oss")))
    raw = np.random.default_rng(1).integers(0, 60, (6, 3 * 34), np.uint8)
    written["blk.0.ffn_up_exps.bias"] = Const(Spec((6, 96), kind), raw.tobytes())
    found = OSS.load("gguf", sizes, written)
    whole = Const(Spec((6, 96), kind), raw.tobytes())
    from weighbridge.tensors.nodes import as_node, decode

    want = decode(whole).read_all().view("<f4").reshape(6, 96)
    for expert in range(6):
        node = found["up_exp_bias", (0, expert)]
        assert np.array_equal(as_node(node).read_all().view("<f4"), want[expert])


def test_a_missing_expert_of_a_fused_tensor_is_refused() -> None:
    sizes, found = sizes_of(OSS, "gpt-oss"), roles(OSS, "gpt-oss")
    short = {instance: node for instance, node in found.items() if instance != ("up_exp", (0, 2))}
    with pytest.raises(MappingError, match=r"up_exp\.0\.2"):
        OSS.save("hf", sizes, short)


def test_what_sees_is_counted_and_never_a_part_of_what_writes() -> None:
    held, sizes = shapes("llama4-seeing"), sizes_of(LLAMA4, "llama4-seeing")
    told = LLAMA4.parted(held, sizes)
    assert sum(told.values()) == len([n for n in held if not n.startswith("language_model.")])
    assert set(told) == {"vision_model.", "multi_modal_projector."}
    report = LLAMA4.check("hf", sizes, {**held, "language_model.model.layers.0.vision_model.weight": (1,)})
    assert report.unmapped == ("language_model.model.layers.0.vision_model.weight",)


@pytest.mark.parametrize(("model", "alpha", "factor"), [("hunyuan-ocr", 1000.0, 1.0), ("hunyuan-vl", 50.0, 1.5)])
def test_a_hunyuan_that_sees_comes_back_with_its_base_stretched(model: str, alpha: float, factor: float) -> None:
    family, names = families()["hunyuan-vl"], [name for name, *_ in golden()[model]["gguf"]]
    found = gguf_to_config(metadata_of(model), family, names).config
    assert found["rope_scaling"] == {"rope_type": "dynamic", "alpha": alpha, "factor": factor}
    assert found["rope_theta"] == 10000.0


@pytest.mark.parametrize(("ends", "turn"), [([7, 9], 7), ([7], None), (7, None), (None, None)])
@pytest.mark.parametrize("model", ["hunyuan-dense", "hunyuan-vl", "hunyuan-ocr", "hunyuan-moe"])
def test_the_first_of_several_ends_of_a_hunyuan_ends_a_turn(model: str, ends: Any, turn: int | None) -> None:
    """conversion/hunyuan.py `HunYuanModel.set_vocab`: behind all other keys of the tokenizer, and of no mixture."""
    config, template = golden()[model]["config"], "tokenizer.chat_template"
    given = {"tokenizer.ggml.tokens": KV("arr[str]", ["a"]), template: KV("str", "x")}
    found = with_tokenizer_keys(given, config, family_of_hf(config), {"eos_token_id": ends})
    if turn is None or model == "hunyuan-moe":
        assert "tokenizer.ggml.eot_token_id" not in found
    else:
        assert [*found][-1] == "tokenizer.ggml.eot_token_id"
        assert found["tokenizer.ggml.eot_token_id"] == KV("u32", turn)


def test_the_part_that_writes_of_a_kimi_may_call_itself_by_its_class_alone() -> None:
    """As published: a model_type that no class has."""
    config = golden()["kimi-k2.5"]["config"]
    published = config | {"text_config": config["text_config"] | {"model_type": "kimi_k2", "vocab_size": 8}}
    kimi = families()["deepseek2"]
    assert kimi.effective(published)["n_group"] == kimi.effective(config)["n_group"]
    silent = {k: v for k, v in published["text_config"].items() if k != "rope_interleave"}
    assert kimi.effective(published | {"text_config": silent})["rope_interleave"] is True
    for nonsense in (None, 3, "DeepseekV3ForCausalLM"):
        text = silent | {"architectures": nonsense}
        assert "rope_interleave" not in kimi.effective(published | {"text_config": text})


def test_a_gguf_without_a_tokenizer_says_how_many_tokens_there_are() -> None:
    """So `wb convert --no-tokenizer` writes it, and a folder comes out of that again."""
    for family in families().values():
        for size in family.sizes.values():
            assert "#tokenizer.ggml.tokens" not in size.gguf or "vocab_size" in size.gguf, family.name
    for model in ("gptj", "mamba2", "qwen1"):
        metadata = {k: v for k, v in metadata_of(model).items() if not k.startswith("tokenizer.")}
        family = families()[{"qwen1": "qwen"}.get(model, model)]
        found = gguf_to_config(metadata | {f"{family.gguf}.vocab_size": 77}, family, shapes_of_gguf(model))
        assert found.config["vocab_size"] == 77
        assert not any("vocab_size" in loss for loss in found.losses)


def shapes_of_gguf(model: str) -> list[str]:
    return [name for name, *_ in golden()[model]["gguf"]]
