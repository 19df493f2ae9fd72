"""Nemotron-H Puzzle as transformers' Nemotron-H, whose experts are as wide as the widest, filled with zeros, and whose
routers choose as many as each layer's block. See twins.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.twins import _WORDS, Config, Tensors, Twin


def _settings(config: Config) -> dict[str, Any]:
    apart = {*_WORDS, "architectures", "model_type", "tie_word_embeddings", "vocab_size", "torch_dtype"}
    given = {key: value for key, value in config.items() if key not in apart}
    kinds = {"mamba": "linear_attention", "attention": "full_attention", "moe": "moe"}
    experts = [block for block in config["block_configs"] if block["block_type"] == "moe"]
    return given | {
        "layers_block_type": [kinds[block["block_type"]] for block in config["block_configs"]],
        "moe_intermediate_size": max(block["moe_intermediate_size"] for block in experts),
        "num_experts_per_tok": max(block["num_experts_per_tok"] for block in experts),
        "num_nextn_predict_layers": 0,
    }


def _filled(config: Config, name: str, tensor: Any) -> Tensors:
    """An expert as wide as the widest: rows of zeros behind `up`, columns behind `down`."""
    from torch.nn.functional import pad

    if ".experts." not in name:
        return {} if name.startswith("mtp.") else {name: tensor}
    up = "up_proj" in name
    rest = _settings(config)["moe_intermediate_size"] - tensor.shape[0 if up else 1]
    return {name: pad(tensor, (0, 0, 0, rest) if up else (0, rest))}


def _choosing(model: Any) -> Any:
    for block, layer in zip(model.config.block_configs, model.model.layers, strict=True):
        if block["block_type"] == "moe":
            layer.mixer.gate.top_k = block["num_experts_per_tok"]
    return model


MODELS: dict[str, Twin] = {
    "NemotronHPuzzleForCausalLM": Twin("NemotronHConfig", _settings, {"model.": "backbone."}, _filled, finish=_choosing)
}
