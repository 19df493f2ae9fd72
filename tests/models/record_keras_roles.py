"""Records tiny models of KerasHub for test_keras_roles.py, made by its own converter from models of transformers:

    python -m tests.models.record_keras_roles transformers FOLDER    # with torch and transformers
    python -m tests.models.record_keras_roles keras FOLDER           # with keras 3.15, keras-hub 0.32, jax, safetensors
    python -m tests.models.record_keras_roles zip FOLDER

Weights are numbers that f16 holds: KerasHub rounds those of Mistral to f16.
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("golden") / "keras_roles.zip"
DECODER: dict[str, Any] = {
    "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 12, "vocab_size": 10,
    "max_position_embeddings": 32, "num_hidden_layers": 2,
}  # fmt: skip
HEADS: dict[str, Any] = DECODER | {"head_dim": 8}
BERT = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 10,
        "max_position_embeddings": 6, "num_hidden_layers": 2}  # fmt: skip
#: Case -> transformers' class and config, KerasHub's backbone, the class of a task or none, and the file that is kept.
CASES: dict[str, tuple[str, str, dict[str, Any], str, str, str]] = {
    "gemma": ("GemmaForCausalLM", "GemmaConfig", HEADS, "Gemma", "", "model.weights.h5"),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", HEADS | {"query_pre_attn_scalar": 8}, "Gemma", "GemmaCausalLM",
               "task.keras"),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", HEADS | {"query_pre_attn_scalar": 8}, "Gemma3", "",
               "backbone.keras"),
    "llama": ("LlamaForCausalLM", "LlamaConfig", DECODER, "Llama3", "Llama3CausalLM", "task.weights.h5"),
    "tied": ("LlamaForCausalLM", "LlamaConfig", DECODER | {"tie_word_embeddings": True}, "Llama3", "",
             "model.weights.h5"),
    "mistral": ("MistralForCausalLM", "MistralConfig", DECODER, "Mistral", "MistralCausalLM", "task.keras"),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", DECODER | {"num_local_experts": 3}, "Mixtral", "",
                "model.weights.h5"),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", DECODER, "Qwen", "", "backbone.keras"),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", HEADS, "Qwen3", "", "model.weights.h5"),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 6,
             "vocab_size": 12, "bos_token_id": 0, "eos_token_id": 0}, "GPT2", "GPT2CausalLM", "task.weights.h5"),
    "bert": ("BertModel", "BertConfig", BERT, "Bert", "", "model.weights.h5"),
}  # fmt: skip


def by_transformers(top: Path) -> None:
    import torch
    import transformers

    for case, (name, config, settings, *_) in CASES.items():
        torch.manual_seed(7)
        model = getattr(transformers, name)(getattr(transformers, config)(**settings))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter).data.copy_(parameter.data.half())
        model.save_pretrained(top / case)


def by_keras(top: Path) -> None:
    os.environ["KERAS_BACKEND"] = "jax"
    import keras_hub

    for case, (*_, backbone, task, file) in CASES.items():
        model = getattr(keras_hub.models, f"{backbone}Backbone").from_preset(str(top / case))
        if task:
            model = getattr(keras_hub.models, task)(backbone=model, preprocessor=None)
        (top / case / "keras").mkdir(exist_ok=True)
        path = str(top / case / "keras" / file)
        model.save(path) if file.endswith(".keras") else model.save_weights(path)


def zipped(top: Path) -> None:
    with zipfile.ZipFile(GOLDEN, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(top.rglob("*")):
            if path.is_file() and path.name != "generation_config.json":
                archive.write(path, path.relative_to(top).as_posix())


if __name__ == "__main__":
    {"transformers": by_transformers, "keras": by_keras, "zip": zipped}[sys.argv[1]](Path(sys.argv[2]))
