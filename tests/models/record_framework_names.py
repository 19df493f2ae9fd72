"""Records tiny models under the names of Flax and TensorFlow for test_framework_names.py, as transformers 4.57 writes
or reads them:

    python -m tests.models.record_framework_names

Each case has the model as PyTorch saves it, `flax_model.msgpack` and `tf_model.h5` as transformers' own conversion
writes them, and a TensorFlow checkpoint from which transformers' loader reads the same weights. Needs transformers
4.57, torch, flax, tensorflow-cpu and tf-keras.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
import torch
import transformers
from transformers.models.bert.modeling_bert import load_tf_weights_in_bert
from transformers.models.gpt2.modeling_gpt2 import load_tf_weights_in_gpt2

GOLDEN = Path(__file__).with_name("golden") / "framework_names.zip"
GPT2 = transformers.GPT2Config(n_layer=2, n_embd=8, n_head=2, n_positions=6, vocab_size=12)
BERT = transformers.BertConfig(
    num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=12, vocab_size=10,
    max_position_embeddings=6,
)  # fmt: skip
LLAMA = transformers.LlamaConfig(
    num_hidden_layers=2, hidden_size=16, num_attention_heads=2, num_key_value_heads=2, intermediate_size=12,
    vocab_size=10, max_position_embeddings=16,
)  # fmt: skip
CASES = {"gpt2": ("GPT2LMHeadModel", GPT2), "bert": ("BertForMaskedLM", BERT), "llama": ("LlamaForCausalLM", LLAMA)}


def openai(name: str) -> str:
    """OpenAI's name of a parameter."""
    name = re.sub(r"^h\.(\d+)", r"h\1", name.removeprefix("transformer."))
    end = {"bias": "b", "weight": "g" if "ln_" in name else "w"}[name.rpartition(".")[2]]
    bare = name.rpartition(".")[0].replace(".", "/")
    return f"model/{bare}" if bare in ("wte", "wpe") else f"model/{bare}/{end}"


def google(name: str) -> str:
    """The name of a parameter in BERT's repository."""
    name = re.sub(r"\.layer\.(\d+)", r".layer_\1", name)
    if name == "cls.predictions.bias":
        return "cls/predictions/output_bias"
    bare, _, end = name.rpartition(".")
    if bare.endswith("_embeddings"):
        return bare.replace(".", "/")
    norm = {"weight": "gamma", "bias": "beta"}
    return f"{bare}.{norm[end] if 'LayerNorm' in bare else {'weight': 'kernel'}.get(end, end)}".replace(".", "/")


def checkpoint(model: Any, path: Path, name_of: Callable[[str], str], load: Callable[..., Any]) -> None:
    """A TensorFlow checkpoint, from which transformers' loader reads the weights of `model`."""
    tensors: dict[str, Any] = {"global_step": torch.tensor(7)} if name_of is google else {}
    for name, value in model.state_dict().items():
        if re.search(r"lm_head|predictions\.decoder", name):
            continue  # tied
        new = name_of(name)
        value = value.T if new.endswith("/kernel") else value[None] if new.endswith("/w") else value
        tensors[new] = value
        if new.endswith("query/kernel"):
            tensors[f"{new}/adam_m"] = value
    path.parent.mkdir()
    tf.raw_ops.SaveV2(
        prefix=str(path), tensor_names=list(tensors), shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(value.contiguous().numpy()) for value in tensors.values()],
    )  # fmt: skip
    other = type(model)(model.config)
    load(other if name_of is google else other.transformer, model.config, str(path))
    loaded = other.state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in model.state_dict().items())


def record(folder: Path, name: str, config: Any) -> None:
    torch.manual_seed(7)
    model = getattr(transformers, name)(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    flax = getattr(transformers, f"Flax{name}").from_pretrained(folder, from_pt=True)
    (folder / "flax").mkdir()
    flax.save_pretrained(folder / "flax")
    if (tensorflow := getattr(transformers, f"TF{name}", None)) is not None:
        tensorflow.from_pretrained(folder, from_pt=True).save_pretrained(folder / "tf", safe_serialization=False)
    if config is GPT2:
        checkpoint(model, folder / "ckpt" / "model.ckpt", openai, load_tf_weights_in_gpt2)
    if config is BERT:
        checkpoint(model, folder / "ckpt" / "model.ckpt", google, load_tf_weights_in_bert)


def main() -> None:
    with tempfile.TemporaryDirectory() as top, zipfile.ZipFile(GOLDEN, "w", zipfile.ZIP_DEFLATED) as archive:
        for case, (name, config) in CASES.items():
            (folder := Path(top) / case).mkdir()
            record(folder, name, config)
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path.name != "generation_config.json":
                    archive.write(path, path.relative_to(top).as_posix())


if __name__ == "__main__":
    main()
