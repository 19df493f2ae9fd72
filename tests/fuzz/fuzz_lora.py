"""Invariant: an adapter's config and names, or the keys of an adapter's GGUF, are pairs of one rank each, or refused.

An input is JSON: {"config": adapter_config.json or null for a GGUF, "keys": a GGUF's, "tensors": {name: shape}}.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import harness
import msgspec

from weighbridge.base.dtypes import F32
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Index
from weighbridge.io.source import BytesSource
from weighbridge.models.locate import Place
from weighbridge.models.lora import gguf, peft
from weighbridge.models.lora.forms import adapter_form
from weighbridge.models.model import OpenModel
from weighbridge.tensors.nodes import Node, Stored

NOTHING = BytesSource(b"")
PLACE = Place(Path("adapter"), (), Path("nowhere"))


def target(data: bytes) -> None:
    try:
        said = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(said, dict) or not isinstance(said.get("tensors"), dict):
        return
    nodes = {name: node for name, shape in said["tensors"].items() if (node := _node(shape)) is not None}
    keys = said["keys"] if isinstance(said.get("keys"), dict) else {}
    config = said.get("config")
    form = "safetensors" if isinstance(config, dict) else "gguf"
    keys |= {} if form == "safetensors" else {gguf.TYPE: "adapter"}
    texts = {peft.CONFIG: json.dumps(config).encode()} if isinstance(config, dict) else {}
    model = OpenModel(PLACE, Index(form, (NOTHING,), (), keys), nodes=nodes, texts=texts)
    known = adapter_form(model)
    adapter = (known.read if known else peft.read)(model)
    assert math.isfinite(adapter.alpha)
    assert all(isinstance(token, int) for token in adapter.tokens)
    for pair in adapter.pairs.values():
        assert pair.rank == pair.a.spec.shape[-2] > 0
        assert len(pair.shape) >= 2


def _node(shape: Any) -> Node | None:
    if not isinstance(shape, list) or len(shape) > 4 or not all(type(n) is int and 0 <= n < 1 << 20 for n in shape):
        return None
    return Stored(Spec(tuple(shape), F32), NOTHING, 0)


def seeds() -> list[bytes]:
    front = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    pairs = {f"{front}A.weight": [8, 64], f"{front}B.weight": [64, 8]}
    table = {"base_model.model.model.embed_tokens.lora_embedding_A": [8, 99],
             "base_model.model.model.embed_tokens.lora_embedding_B": [64, 8]}  # fmt: skip
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "alpha_pattern": {}, "rank_pattern": {}, "use_dora": False,
              "use_rslora": True, "base_model_name_or_path": "a/b", "alora_invocation_tokens": [1, 2]}  # fmt: skip
    gguf_keys = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 16.0,
                 "adapter.alora.invocation_tokens": [1, 2], "general.base_model.0.name": "x"}  # fmt: skip
    apple = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": {"rank": 8, "scale": 20.0, "dropout": 0.0}}
    linear = {"model.layers.0.self_attn.q_proj.lora_a": [64, 8], "model.layers.0.self_attn.q_proj.lora_b": [8, 64]}
    named = {"blk.0.attn_q.weight.lora_a": [8, 64], "blk.0.attn_q.weight.lora_b": [64, 8],
             "token_embd.weight.lora_a": [99, 8], "token_embd.weight.lora_b": [64, 8], "blk.0.attn_norm.weight": [64],
             "blk.0.ffn_up_exps.weight.lora_a": [2, 8, 64], "blk.0.ffn_up_exps.weight.lora_b": [2, 64, 8]}  # fmt: skip
    files: list[dict[str, Any]] = [
        {"config": config, "tensors": {**pairs, **table}}, {"config": apple, "tensors": linear},
        {"config": None, "keys": gguf_keys, "tensors": named},
    ]  # fmt: skip
    whole = [json.dumps(file, separators=(",", ":")).encode() for file in files]
    return whole + [data for file in files for data in harness.odd(file, 50)]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
