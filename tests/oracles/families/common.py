"""What the small models of the families share."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
GQA: dict[str, Any] = SMALL | {"num_key_value_heads": 2, "rms_norm_eps": 3e-3}
LN: dict[str, Any] = SMALL | {"num_key_value_heads": 2}
BPE: dict[str, Any] = {
    "bos_token_id": vocabularies.BPE_SIZE - 3,
    "eos_token_id": vocabularies.BPE_SIZE - 2,
    "pad_token_id": None,
}
GLM = {"bos_token_id": None, "eos_token_id": vocabularies.BPE_SIZE - 4, "pad_token_id": vocabularies.BPE_SIZE - 4}
SPM: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
WINDOW = 24
# The epsilon of the norms inside latent attention, whatever the config says; llama.cpp takes the config's.
LATENT = 1e-6


def theta(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}
