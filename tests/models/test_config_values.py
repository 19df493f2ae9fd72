"""Configs that leave out or null what their class doesn't need: they convert, as the class reads them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.costs import traced_memory
from tests.models.family_judges import golden, metadata_of
from tests.oracles.published_configs import make_folder, ours
from tests.unpacked import unpack

from weighbridge.base.dtypes import BY_NAME, F16, F32, DType
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Index
from weighbridge.io.source import BytesSource
from weighbridge.models.arch.registry import families, family_of_gguf, family_of_hf
from weighbridge.models.arch.rules import openelm, plamo2, plamo3, rwkv6
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.check import check_number
from weighbridge.models.arch.tables.spec import layout_call
from weighbridge.models.config import settings
from weighbridge.models.config.mapping import config_to_gguf
from weighbridge.models.locate import Place
from weighbridge.models.lora import gguf, mlx, peft
from weighbridge.models.model import OpenModel
from weighbridge.tensors.layouts import layout
from weighbridge.tensors.nodes import Stored, const

SMALL: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "head_dim": 16}
#: model -> config, and the keys without the architecture's name (None: not written)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Solar Open: every layer has experts": (
        {**SMALL, **EXPERTS, "architectures": ["SolarOpenForCausalLM"], "model_type": "solar_open",
         "intermediate_size": None, "moe_intermediate_size": 32, "n_routed_experts": 4},
        {"feed_forward_length": None, "expert_feed_forward_length": 32.0},
    ),
    "Granite MoE: no shared expert": (
        {**SMALL, "architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared",
         "num_experts_per_tok": 2, "intermediate_size": 96, "shared_intermediate_size": 0, "num_local_experts": 4},
        {"feed_forward_length": 96.0, "expert_shared_feed_forward_length": None},
    ),
    "Qwen2-VL: modeling_qwen2_vl.py's sections": (
        {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl",
         "text_config": {**SMALL, "model_type": "qwen2_vl_text", "intermediate_size": 96}},
        {"rope.dimension_sections": [16.0, 24.0, 24.0, 0.0]},
    ),
    "Qwen3-VL: modeling_qwen3_vl.py's sections": (
        {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
         "text_config": {**SMALL, "model_type": "qwen3_vl_text", "intermediate_size": 96, "head_dim": 16}},
        {"rope.dimension_sections": [24.0, 20.0, 20.0, 0.0]},
    ),
    "Cohere 2 MoE: no dense layer": (
        {**SMALL, **EXPERTS, "architectures": ["Cohere2MoeForCausalLM"], "model_type": "cohere2_moe",
         "intermediate_size": 32, "num_experts": 4, "first_k_dense_replace": 0, "layer_norm_eps": 1e-5,
         "layer_types": ["full_attention", "sliding_attention"]},
        {"feed_forward_length": None, "expert_feed_forward_length": 32.0, "leading_dense_block_count": 0.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_config_that_leaves_out_what_its_class_does_not_need_converts(name: str, tmp_path: Path) -> None:
    config, wanted = CASES[name]
    keys = {key.partition(".")[2]: value for key, value in ours(make_folder(config, tmp_path / "model")).keys}
    assert {key: keys.get(key) for key in wanted} == wanted


# Configs and GGUFs that say the same in other words than the files that a table was made from.


_STEP = "step3.5"


def _keys(config: dict[str, Any]) -> dict[str, Any]:
    return config_to_gguf(config, family_of_hf(config), file_type=0)


@pytest.mark.oracle
@pytest.mark.parametrize("silent", [(), ("moe_router_activation", "norm_expert_weight", "moe_every_n_layer")])
def test_a_step_that_transformers_saved_is_the_published_one(silent: tuple[str, ...]) -> None:
    """num_key_value_heads, n_routed_experts and num_experts_per_tok; a router that normalizes, as its class does."""
    transformers = pytest.importorskip("transformers")
    published = golden()[_STEP]["config"]
    # the class has one number of groups for all layers
    other = published["attention_other_setting"] | {"num_attention_groups": published["num_attention_groups"]}
    published = published | {"attention_other_setting": other}
    given = {k: v for k, v in published.items() if k not in (*silent, "architectures")}
    saved = json.loads(transformers.models.step3p7.Step3p7TextConfig(**given).to_json_string())
    assert not saved.keys() & {"num_attention_groups", "moe_num_experts", "moe_top_k"}
    found, expected = _keys(saved | {"architectures": published["architectures"]}), _keys(published)
    without = {"step35.expert_gating_func"} if silent else set()  # llama.cpp's default is the class's
    assert found == {key: kv for key, kv in expected.items() if key not in without}


def test_a_step_without_words_for_its_heads_has_those_of_its_class() -> None:
    config = {k: v for k, v in golden()[_STEP]["config"].items() if k not in ("num_attention_groups", "moe_top_k")}
    found = family_of_hf(config).effective(config)
    assert (found["num_attention_groups"], found["moe_top_k"], found["moe_num_experts"]) == (8, 8, 6)


def test_a_plamo_of_the_reference_has_no_heads_in_layers_that_do_not_attend() -> None:
    """Its list has 0 there, and means the same model."""
    family, key = families()["plamo2"], "plamo2.attention.head_count"
    ours = metadata_of("plamo2")
    groups = ours["plamo2.attention.head_count_kv"]
    theirs = ours | {key: [heads if some else 0 for heads, some in zip(ours[key], groups, strict=True)]}
    assert 0 in theirs[key]
    names = dict.fromkeys(name for name, *_ in golden()["plamo2"]["gguf"])
    read = [settings.of_gguf(keys, family, names, lambda name: None) for keys in (ours, theirs)]
    assert not settings.differences(*read)
    assert not settings.differences(*reversed(read))
    wrong = settings.of_gguf(theirs | {key: [2 * heads for heads in theirs[key]]}, family, names, lambda name: None)
    assert settings.differences(read[0], wrong)


# Settings and shapes that no model has, as fuzzing found them: each is refused, and nothing large is made.


GOLDEN = Path(__file__).parent / "golden" / "families"
NOTHING = BytesSource(b"")


def recorded(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def nodes(shapes: dict[str, tuple[str, tuple[int, ...]]]) -> dict[str, Stored]:
    return {name: Stored(Spec(shape, BY_NAME[kind]), NOTHING, 0) for name, (kind, shape) in shapes.items()}


@pytest.mark.parametrize("layers", [70_000, (1 << 31) - 1])
@pytest.mark.parametrize("name", ["modernbert", "qwen35"])
def test_more_layers_than_a_model_can_have(name: str, layers: int) -> None:
    config = {**recorded(name)["config"], "num_hidden_layers": layers, "layer_types": None}
    with traced_memory() as memory, pytest.raises(FormatError, match="layers"):
        family_of_hf(config).sizes_from_hf(config)
    assert memory.peak < 64 << 20


def test_a_share_of_a_head_that_is_none() -> None:
    config = recorded("phi2")["config"]
    config["rope_parameters"] = {**config["rope_parameters"], "partial_rotary_factor": 1e308}
    with pytest.raises(FormatError, match="partial_rotary_factor"):
        family_of_hf(config).sizes_from_hf(config)


@pytest.mark.parametrize("theta", [0, -1, 0.0, "fast", True])
@pytest.mark.parametrize("place", ["rope_theta", "rope_parameters", "rope_scaling"])
def test_a_base_frequency_that_nothing_rotates_by(place: str, theta: Any) -> None:
    config = {key: v for key, v in recorded("llama-bare")["config"].items() if not key.startswith("rope")}
    config |= {place: theta if place == "rope_theta" else {"rope_theta": theta}}
    with pytest.raises(FormatError, match="rope_theta"):
        family_of_hf(config).sizes_from_hf(config)


@pytest.mark.parametrize("theta", [0, -1])
def test_a_base_frequency_of_layers_with_a_window_that_is_none(theta: int) -> None:
    config = recorded("gemma3")["config"]
    own = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": theta}}
    for odd in ({"rope_parameters": own}, {"rope_parameters": None, "rope_local_base_freq": theta}):
        stated = {**config, **odd}
        with pytest.raises(FormatError, match=r"sliding_attention\.rope_theta|rope_local_base_freq"):
            family_of_hf(stated).sizes_from_hf(stated)


@pytest.mark.parametrize("factor", [{}, {"factor": None}, {"factor": 0}, {"factor": -2.0}, {"factor": "two"}])
@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_a_scaling_of_positions_without_its_factor(kind: str, factor: dict[str, Any]) -> None:
    """transformers and mlx-lm refuse it; llama.cpp's converter leaves the scaling out without a word."""
    scaling = {"type": kind, "original_max_position_embeddings": 32}
    config = recorded("llama-bare")["config"] | {"rope_parameters": None, "rope_theta": 1e4}
    stated = config | {"rope_scaling": {**scaling, **factor}}
    with pytest.raises(FormatError, match=r"rope_scaling\.factor"):
        family_of_hf(stated).sizes_from_hf(stated)
    whole = config | {"rope_scaling": {**scaling, "factor": 2.0}}
    assert family_of_hf(whole).sizes_from_hf(whole).facts["rope"]["factor"] == 2.0


def test_a_number_where_a_list_is_counted() -> None:
    found = recorded("phi-mini")
    keys = {key: value for key, kind, value in found["keys"] if kind != "f32"} | {"tokenizer.ggml.tokens": 3}
    with pytest.raises(FormatError, match="is no list"):
        family_of_gguf(keys).sizes_from_gguf(keys)


PEFT = {"base_model.model.q.lora_A.weight": (8, 64), "base_model.model.q.lora_B.weight": (64, 8)}
MLX = {"q.lora_a": (64, 8), "q.lora_b": (8, 64)}
GGUF = {"q.weight.lora_a": (8, 64), "q.weight.lora_b": (64, 8)}
LORA = {"adapter.type": "lora"}


@pytest.mark.parametrize(
    ("reader", "config", "keys", "shapes", "words"),
    [
        (peft, {"lora_alpha": 1, "alora_invocation_tokens": [1.5]}, {}, PEFT, "token ids"),
        (mlx, {"lora_parameters": {"scale": 1e308}}, {}, MLX, "scale"),
        (mlx, {"lora_parameters": {"scale": 1.0}}, {}, {"q.lora_a": (64, 0), "q.lora_b": (0, 64)}, "different ranks"),
        (gguf, None, {**LORA, gguf.TOKENS: 5}, GGUF, "token ids"),
        (gguf, None, {**LORA, gguf.TOKENS: [1.5]}, GGUF, "token ids"),
        (gguf, None, {**LORA, gguf.TOKENS: "12"}, GGUF, "token ids"),
        (gguf, None, LORA, {"q.weight.lora_a": (0, 64), "q.weight.lora_b": (64, 0)}, "different ranks"),
    ],
)
def test_an_adapter_that_is_none(reader: Any, config: Any, keys: Any, shapes: Any, words: str) -> None:
    texts = {} if config is None else {peft.CONFIG: json.dumps(config).encode()}
    form = "gguf" if config is None else "safetensors"
    held = nodes({name: ("F32", shape) for name, shape in shapes.items()})
    model = OpenModel(Place(Path("a"), (), Path("none")), Index(form, (NOTHING,), (), keys), nodes=held, texts=texts)
    with pytest.raises(FormatError, match=words):
        reader.read(model)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"m.e.down_proj_blocks": ("U8", (6,)), "m.e.down_proj_scales": ("U8", (2, 64, 2))}, "blocks and scales"),
        ({"m.e.down_proj_blocks": ("U8", (16,)), "m.e.down_proj_scales": ("U8", ())}, "blocks and scales"),
        (
            {"m.qweight": ("I32", (8, 64)), "m.qzeros": ("I32", ()), "m.scales": ("F16", (2, 64))},
            "zeros aren't a matrix",
        ),
    ],
)
def test_parts_of_the_wrong_rank(shapes: Any, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        unpack(nodes(shapes), {"quantization_config": {"quant_method": "gptq", "bits": 4}})


# Rules of configs whose sizes and layers follow from others, at their edges; layouts by layer and by fractions.


def attending(count: int, step: int) -> Any:
    return plamo2.complete({"num_hidden_layers": count, "mamba_step": step})["attending_layers"]


@given(st.integers(1, 40), st.integers(2, 50))
def test_every_so_many_layers_one_attends(count: int, step: int) -> None:
    """modeling_plamo.py, `is_mamba`."""
    few = count <= step // 2
    alone = [i for i in range(count) if (i == count - 1 if few else i % step == step // 2)]
    assert attending(count, step) == alone
    back = plamo2.restore({"num_hidden_layers": count, "attending_layers": alone})
    assert attending(count, back["mamba_step"]) == alone


def test_layers_that_attend_by_no_step_are_refused() -> None:
    with pytest.raises(FormatError, match="follow no step"):
        plamo2.restore({"num_hidden_layers": 4, "attending_layers": [0, 3]})


# apple/OpenELM-270M's first and last multipliers, and one that is rounded up since down takes more than a tenth
@pytest.mark.parametrize(("scale", "width"), [(0.5, 768), (0.73, 1024), (4.0, 5120), (0.3, 512), (0.01, 256)])
def test_widths_are_rounded_to_a_multiple(scale: float, width: int) -> None:
    config = {"model_dim": 1280, "ffn_dim_divisor": 256, "ffn_multipliers": [scale]}
    assert openelm.complete(config)["ffn_widths_by_layer"] == [width]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=40), st.integers(1, 5000))
def test_widths_give_multipliers_that_give_them(parts: list[int], width: int) -> None:
    widths = [8 * part for part in parts]
    back = openelm.restore({"model_dim": width, "ffn_widths_by_layer": widths})
    assert back["ffn_dim_divisor"] == math.gcd(*widths)
    assert openelm.complete({**back, "model_dim": width})["ffn_widths_by_layer"] == widths


@pytest.mark.parametrize("listed", [3, "x", ["x"], [None], [math.inf], [1.0] * 100_000])
def test_other_multipliers_are_refused(listed: Any) -> None:
    with pytest.raises(FormatError, match="ffn_multipliers"):
        openelm.complete({"model_dim": 64, "ffn_dim_divisor": 8, "ffn_multipliers": listed})


def test_stretched_positions() -> None:
    rule, inverse = plamo3.complete, plamo3.restore
    assert rule({"rope_scaling_factor": 1}) == {} == rule({})
    said = {"rope_scaling_factor": 4.0, "initial_context_length": 64}
    made = rule(said)["rope_scaling"]
    assert (made["factor"], made["original_max_position_embeddings"], made["truncate"]) == (4.0, 64, False)
    assert {key: inverse({"rope_scaling": made})[key] for key in said} == said
    with pytest.raises(FormatError, match="initial_context_length"):
        rule({"rope_scaling_factor": 4.0})


@pytest.mark.parametrize(("width", "ranks"), [(2048, (32, 64)), (4096, (64, 128)), (5120, (32, 64))])
def test_ranks_follow_from_the_width(width: int, ranks: tuple[int, int]) -> None:
    assert tuple(rwkv6.complete({"hidden_size": width}).values()) == ranks


def test_the_larger_of_two_numbers() -> None:
    assert expression.evaluate("max(64, n // 16)", {"n": 512}) == 64
    assert expression.evaluate("max(64, n // 16)", {"n": 4096}) == 256
    assert expression.evaluate("max(64, n // 16)", {}) is None
    for text in ("max(64)", "max(1, 2, 3)", "max(1, 'a')"):
        with pytest.raises(UsageError):
            check_number(text)


def test_layouts_alone_take_decimals() -> None:
    assert layout_call("shift(0.2)").symbols == ("0.2",)
    with pytest.raises(UsageError, match="whole number"):
        expression.parse("a * 0.2")


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize(("layer", "by"), [(0, 1), (5, 1), (6, 2), (23, 8)])
def test_what_is_halved_by_the_layer_comes_back(layer: int, by: int, dtype: DType) -> None:
    kind = {F32: "<f4", F16: "<f2"}[dtype]
    values = np.random.default_rng(layer).standard_normal((3, 8)).astype(kind)
    halved = layout("halved", layer, 6)
    node = halved.apply(const(values, dtype))
    assert np.array_equal(node.read(0, 3).view(kind), (values / kind_of(by, kind)).ravel())
    again = halved.undo(const((values / kind_of(by, kind)).astype(kind), dtype))
    assert np.array_equal(again.read(0, 3).view(kind), values.ravel())


def kind_of(by: int, kind: str) -> Any:
    return np.dtype(kind).type(by)
