"""Records the tensor names and shapes of transformers and mlx-lm, and transformers' config defaults, for small models:
`python -m tests.models.record_names`. What the tables state about other people's names is checked against this."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

NAMES = Path(__file__).parent / "golden" / "names.json"

# One size of each kind differs from all others, so that a wrong symbol in a shape shows.
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
}
DECODER = {**SIZES, "num_key_value_heads": 2, "head_dim": 24, "max_position_embeddings": 48}
BERT = {**SIZES, "max_position_embeddings": 48, "type_vocab_size": 3}
MOE = {"num_local_experts": 3, "num_experts_per_tok": 2}
QWEN_MOE = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 80}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {**DECODER, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("MistralForCausalLM", DECODER),
    "mixtral": ("MixtralForCausalLM", {**DECODER, **MOE}),
    "qwen2": ("Qwen2ForCausalLM", DECODER),
    "qwen2moe": ("Qwen2MoeForCausalLM", {**DECODER, **QWEN_MOE, "shared_expert_intermediate_size": 112}),
    "qwen3": ("Qwen3ForCausalLM", DECODER),
    "qwen3moe": ("Qwen3MoeForCausalLM", {**DECODER, **QWEN_MOE}),
    "bert": ("BertModel", BERT),
    "bert-mlm": ("BertForMaskedLM", BERT),
    "bert-labels": ("BertForSequenceClassification", {**BERT, "id2label": {0: "a", 1: "b", 2: "c"}}),
    "bert-dummies": ("BertForSequenceClassification", BERT),
}


FUSED = ("mixtral", "qwen2moe", "qwen3moe")  # whose experts transformers 5 holds in one tensor
HEADLESS = ("mixtral", "qwen2", "qwen2moe")  # of which mlx-lm knows no head_dim: a head is hidden / heads wide


def main() -> None:
    import transformers
    from safetensors import safe_open

    out: dict[str, Any] = {"names": {}, "defaults": {}}
    for name, (cls, options) in MODELS.items():
        model_class = getattr(transformers, cls)
        model = model_class(model_class.config_class(**options))
        if name in FUSED:
            out["names"][f"hf5 {name}"] = {k: list(v.shape) for k, v in model.state_dict().items()}
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            with safe_open(f"{folder}/model.safetensors", "np") as f:
                out["names"][f"hf {name}"] = {k: f.get_slice(k).get_shape() for k in f.keys()}  # noqa: SIM118
        out["defaults"][cls] = {k: v for k, v in model_class.config_class().to_dict().items() if v is not None}
    for name in ("mixtral", "qwen2", "qwen2moe", "qwen3", "qwen3moe"):
        out["names"][f"mlx {name}"] = mlx_names(name)
    text = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for part in out.values() for k, v in part.items())
    NAMES.write_text("{\n" + text + "\n}\n")


def mlx_names(name: str) -> dict[str, list[int]]:
    """The parameters of mlx-lm's model."""
    import transformers
    from mlx.utils import tree_flatten
    from mlx_lm import utils

    cls, options = MODELS[name]
    config = {"model_type": getattr(transformers, cls).config_class.model_type, "rms_norm_eps": 1e-5, "rope_theta": 1e6}
    config |= {"tie_word_embeddings": False, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
    config |= {k: v for k, v in options.items() if k != "head_dim" or name not in HEADLESS}
    model_class, args = utils._get_classes(config)
    model = model_class(args.from_dict(config))
    return {name: list(value.shape) for name, value in tree_flatten(model.parameters())}


if __name__ == "__main__":
    main()
