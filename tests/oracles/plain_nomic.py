"""nomic-embed-text-v2-moe, written out in torch from its publisher's code. See plain.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.plain import Config, Plain, Weights, _layer_norm, _linear


def _nomic_moe(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_hf_nomic_bert.py of nomic-ai/nomic-bert-2048: a BERT that rotates, with experts in every n-th layer from
    the second on; the weights of those chosen don't add up to one, and a layer's bias follows all of them."""
    import torch

    heads, epsilon, count = config["n_head"], config["layer_norm_epsilon"], len(ids)
    width = config["n_embd"] // heads
    speeds = config["rotary_emb_base"] ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(count)[:, None] * torch.cat([speeds, speeds])
    cos, sin = angles.cos().float(), angles.sin().float()

    def rotated(t: Any) -> Any:
        low, high = t.chunk(2, -1)
        return t * cos + torch.cat([-high, low], -1) * sin

    def experts(x: Any, at: str) -> Any:
        shares = _linear(x, w, f"{at}.router.layer").softmax(-1)
        first, second = (w[f"{at}.experts.mlp.w{n}"].reshape(config["num_experts"], -1, x.shape[-1]) for n in (1, 2))
        made = torch.einsum("eti,eio->teo", torch.nn.functional.gelu(x @ first.mT), second)
        top = shares.topk(config["moe_top_k"], -1)
        weights = torch.zeros_like(shares).scatter(-1, top.indices, top.values)
        return (weights[..., None] * made).sum(1) + w[f"{at}.experts.bias"]

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    x = _layer_norm(x, w, "emb_ln", epsilon)
    for i in range(config["n_layer"]):
        at = f"encoder.layers.{i}"
        qkv = _linear(x, w, f"{at}.attn.Wqkv").reshape(count, 3, heads, width).permute(1, 2, 0, 3)
        scores = (rotated(qkv[0]) @ rotated(qkv[1]).mT / width**0.5).softmax(-1)
        joined = (scores @ qkv[2]).transpose(0, 1).reshape(count, -1)
        x = _layer_norm(x + _linear(joined, w, f"{at}.attn.out_proj"), w, f"{at}.norm1", epsilon)
        if i % config["moe_every_n_layers"] == 1:
            made = experts(x, f"{at}.mlp")
        else:
            made = _linear(torch.nn.functional.gelu(_linear(x, w, f"{at}.mlp.fc1")), w, f"{at}.mlp.fc2")
        x = _layer_norm(x + made, w, f"{at}.norm2", epsilon)
    return x


MODELS: dict[str, Plain] = {"NomicBertModel": Plain(_nomic_moe, encodes=True, variant="num_experts")}
