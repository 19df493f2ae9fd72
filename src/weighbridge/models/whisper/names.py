"""Names of Whisper's tensors: OpenAI's, which whisper.cpp keeps, and those of transformers
(convert_openai_to_hf.py; whisper.cpp's convert-h5-to-ggml.py has the inverse)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.containers.ggml import whisper

#: The prefix of all names in a WhisperForConditionalGeneration; a WhisperModel has none.
PREFIX: Final = "model."
#: The output matrix of a WhisperForConditionalGeneration, which is the token embedding.
OUTPUT: Final = "proj_out.weight"
#: OpenAI's modules -> those of transformers, outside the blocks.
WHOLE: Final = MappingProxyType({
    "encoder.conv1": "encoder.conv1",
    "encoder.conv2": "encoder.conv2",
    "encoder.positional_embedding": "encoder.embed_positions.weight",
    "encoder.ln_post": "encoder.layer_norm",
    "decoder.token_embedding": "decoder.embed_tokens",
    "decoder.positional_embedding": "decoder.embed_positions.weight",
    "decoder.ln": "decoder.layer_norm",
})  # fmt: skip
#: ... and inside a block.
BLOCK: Final = MappingProxyType({
    "attn.key": "self_attn.k_proj",
    "attn.value": "self_attn.v_proj",
    "attn.query": "self_attn.q_proj",
    "attn.out": "self_attn.out_proj",
    "attn_ln": "self_attn_layer_norm",
    "cross_attn.key": "encoder_attn.k_proj",
    "cross_attn.value": "encoder_attn.v_proj",
    "cross_attn.query": "encoder_attn.q_proj",
    "cross_attn.out": "encoder_attn.out_proj",
    "cross_attn_ln": "encoder_attn_layer_norm",
    "mlp.0": "fc1",
    "mlp.2": "fc2",
    "mlp_ln": "final_layer_norm",
})  # fmt: skip


class TensorNames(NamedTuple):
    """One tensor: OpenAI's name, transformers' without `PREFIX`, its shape in a whisper.cpp file and elsewhere."""

    openai: str
    hf: str
    shape: tuple[int, ...]
    plain_shape: tuple[int, ...]


def hf_name(name: str) -> str:
    """Returns transformers' name of one of OpenAI's."""
    if name in WHOLE:
        return WHOLE[name]
    module, _, kind = name.rpartition(".")
    stack, _, inside = module.partition(".blocks.")
    if not inside:
        return f"{WHOLE[module]}.{kind}"
    number, _, part = inside.partition(".")
    return f"{stack}.layers.{number}.{BLOCK[part]}.{kind}"


def names(sizes: Mapping[str, int]) -> Iterator[TensorNames]:
    """Yields the tensors of a model in the order of transformers' state dict."""
    for name, shape in whisper.tensors(sizes):
        # ggml adds the bias of a convolution to columns, so its file has a second axis
        yield TensorNames(name, hf_name(name), shape, shape[:1] if shape[1:] == (1,) else shape)
