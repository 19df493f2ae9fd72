"""nomic-embed-text-v2-moe and jina-embeddings-v3, written out in torch from their publishers' code. See plain.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.plain import Config, Plain, Weights, _layer_norm, _linear


def _rotating(qkv: Any, heads: int, base: float) -> Any:
    """Attention to all tokens, of queries and keys whose halves rotate."""
    import torch

    count, width = len(qkv), qkv.shape[-1] // heads // 3
    speeds = base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(count)[:, None] * torch.cat([speeds, speeds])
    parts = qkv.reshape(count, 3, heads, width).permute(1, 2, 0, 3)
    low, high = parts[:2].chunk(2, -1)
    q, k = parts[:2] * angles.cos().float() + torch.cat([-high, low], -1) * angles.sin().float()
    return ((q @ k.mT / width**0.5).softmax(-1) @ parts[2]).transpose(0, 1).reshape(count, -1)


def _nomic_moe(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_hf_nomic_bert.py of nomic-ai/nomic-bert-2048: a BERT that rotates, with experts in every n-th layer from
    the second on; the weights of those chosen don't add up to one, and a layer's bias follows all of them."""
    import torch

    epsilon = config["layer_norm_epsilon"]

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
        joined = _rotating(_linear(x, w, f"{at}.attn.Wqkv"), config["n_head"], config["rotary_emb_base"])
        x = _layer_norm(x + _linear(joined, w, f"{at}.attn.out_proj"), w, f"{at}.norm1", epsilon)
        if i % config["moe_every_n_layers"] == 1:
            made = experts(x, f"{at}.mlp")
        else:
            made = _linear(torch.nn.functional.gelu(_linear(x, w, f"{at}.mlp.fc1")), w, f"{at}.mlp.fc2")
        x = _layer_norm(x + made, w, f"{at}.norm2", epsilon)
    return x


def _jina_v3(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_xlm_roberta.py of jinaai/xlm-roberta-flash-implementation, without a task: no adapter counts."""
    import torch

    epsilon = config["layer_norm_eps"]
    w = {
        name.removeprefix("roberta.").replace("parametrizations.weight.original", "weight"): t for name, t in w.items()
    }
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    x = _layer_norm(x, w, "emb_ln", epsilon)
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layers.{i}"
        qkv = _linear(x, w, f"{at}.mixer.Wqkv")
        joined = _rotating(qkv, config["num_attention_heads"], config["rotary_emb_base"])
        x = _layer_norm(x + _linear(joined, w, f"{at}.mixer.out_proj"), w, f"{at}.norm1", epsilon)
        made = _linear(torch.nn.functional.gelu(_linear(x, w, f"{at}.mlp.fc1")), w, f"{at}.mlp.fc2")
        x = _layer_norm(x + made, w, f"{at}.norm2", epsilon)
    return x


MODELS: dict[str, Plain] = {
    "NomicBertModel": Plain(_nomic_moe, encodes=True, variant="num_experts"),
    "XLMRobertaModel": Plain(_jina_v3, encodes=True, variant="lora_adaptations"),
}
