"""Settings and shapes that no model has, as fuzzing found them: each is refused, and nothing large is made."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tests.unpacked import unpack

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import FormatError
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Index
from weighbridge.io.source import BytesSource
from weighbridge.models.arch.registry import family_of_gguf, family_of_hf
from weighbridge.models.locate import Place
from weighbridge.models.lora import gguf, mlx, peft
from weighbridge.models.model import OpenModel
from weighbridge.tensors.nodes import Stored

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
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="layers"):
            family_of_hf(config).sizes_from_hf(config)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


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
