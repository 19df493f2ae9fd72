"""PLaMo 1 to 3, PLM, OpenELM, Refact and RWKV 6, written out in torch from their publishers' code (see plain.py)."""

from __future__ import annotations

from typing import Any

from tests.oracles.plain import Config, Plain, Weights, _attention, _layer_norm, _linear, _swiglu, rms_norm, rotate


def plamo(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_plamo.py of plamo-13b: head h has the keys of head h % keys."""
    heads, epsilon = config["num_attention_heads"], config["rms_norm_eps"]
    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.layers.{i}"
        normed = rms_norm(x, w[f"{at}.norm.weight"], epsilon)
        projected = (_linear(normed, w, f"{at}.self_attn.{part}_proj") for part in "qkv")
        q, k, v = (t.reshape(len(ids), -1, config["hidden_size"] // heads).transpose(0, 1) for t in projected)
        q, k = rotate(q, 10000.0), rotate(k, 10000.0)
        k, v = (t.repeat(config["n_shared_head"], 1, 1) for t in (k, v))
        attended = _linear(_attention(q, k, v), w, f"{at}.self_attn.o_proj")
        x = x + attended + _swiglu(normed, w, f"{at}.mlp")
    return _linear(rms_norm(x, w["model.norm.weight"], epsilon), w, "lm_head")


def plamo3(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_plamo.py of plamo-3-nict-2b-base; a window has as many tokens before the one that it is of."""
    import torch

    dim, epsilon, period = config["head_dim"], config["rms_norm_eps"], config["sliding_window_pattern"]
    heads, keys = config["num_attention_heads"], config["num_key_value_heads"]
    places = torch.arange(len(ids))
    near = (places[:, None] - places) <= config["window_size"]

    def mixer(i: int, at: str, normed: Any) -> Any:
        full = (i + 1) % period == 0
        joined = _linear(normed, w, f"{at}.qkv_proj").reshape(len(ids), -1, dim).transpose(0, 1)
        q, k, v = joined.split((heads, keys, keys))
        theta = config["rope_theta" if full else "rope_local_theta"]
        q, k = (
            rotate(rms_norm(t, 1 + w[f"{at}.{part}_norm.weight"], epsilon), theta) for t, part in ((q, "q"), (k, "k"))
        )
        mask = (places[:, None] >= places) & (near | full)
        return _linear(_masked(q, k, v, mask), w, f"{at}.o_proj")

    return _layers(config, w, ids, mixer)


def plamo2(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_plamo.py of plamo-2-1b, within its window."""
    heads, keys = config["num_attention_heads"], config["num_key_value_heads"]

    def mixer(i: int, at: str, normed: Any) -> Any:
        if i % config["mamba_step"] != config["mamba_step"] // 2:
            return _mamba(config, w, at, normed)
        joined = _linear(normed, w, f"{at}.qkv_proj").reshape(len(ids), heads + 2 * keys, -1).transpose(0, 1)
        q, k, v = joined.split((heads, keys, keys))
        q, k = (
            rotate(rms_norm(t, None, 1e-6) * w[f"{at}.{part}_weight"][:, None], 10000.0)
            for t, part in ((q, "q"), (k, "k"))
        )
        return _linear(_attention(q, k, v), w, f"{at}.o_proj")

    return _layers(config, w, ids, mixer)


def _masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    from torch.nn.functional import scaled_dot_product_attention

    out = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, enable_gqa=True)[0]
    return out.transpose(0, 1).reshape(q.shape[1], -1)


def _mamba(config: Config, w: Weights, at: str, normed: Any) -> Any:
    import torch
    from torch.nn.functional import conv1d, silu, softplus

    heads, size, epsilon = config["mamba_num_heads"], config["mamba_d_state"], config["rms_norm_eps"]
    z, x = _linear(normed, w, f"{at}.in_proj").reshape(len(normed), heads, 2, -1).unbind(2)
    kernel = w[f"{at}.conv1d.weight"]
    before = torch.nn.functional.pad(x.flatten(1).T, (kernel.shape[-1] - 1, 0))
    x = silu(conv1d(before, kernel, groups=len(kernel))).T
    b, c, dt = _linear(x, w, f"{at}.bcdt_proj").split((size, size, w[f"{at}.dt_norm_weight"].numel()), -1)
    b, c, dt = (rms_norm(t, w[f"{at}.{name}_norm_weight"], epsilon) for t, name in ((b, "B"), (c, "C"), (dt, "dt")))
    dt = softplus(_linear(dt, w, f"{at}.dt_proj") + w[f"{at}.dt_bias"])
    x, decay = x.reshape(len(x), heads, -1), torch.exp(dt * -torch.exp(w[f"{at}.A_log"]))
    state, rows = torch.zeros(heads, x.shape[-1], size), []
    for t in range(len(x)):
        state = state * decay[t][:, None, None] + (dt[t][:, None] * x[t])[..., None] * b[t]
        rows.append(state @ c[t] + w[f"{at}.D"][:, None] * x[t])
    return _linear((torch.stack(rows) * silu(z)).flatten(1), w, f"{at}.out_proj")


def _layers(config: Config, w: Weights, ids: Any, mixer: Any) -> Any:
    from torch.nn.functional import silu

    epsilon = config["rms_norm_eps"]

    def norm(x: Any, name: str, more: float = 1.0) -> Any:
        return rms_norm(x, w[f"{name}.weight"] + more, epsilon)

    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.layers.{i}"
        made = mixer(i, f"{at}.mixer", norm(x, f"{at}.pre_mixer_norm"))
        x = x + norm(made, f"{at}.post_mixer_norm", 1 / 5)
        gate, up = _linear(norm(x, f"{at}.pre_mlp_norm"), w, f"{at}.mlp.gate_up_proj").chunk(2, -1)
        x = x + norm(_linear(silu(gate) * up, w, f"{at}.mlp.down_proj"), f"{at}.post_mlp_norm", 1 / 5**1.5)
    head = "lm_head" if "lm_head.weight" in w else "model.embed_tokens"
    return _linear(norm(x, "model.norm"), w, head)


def _paired(x: Any, theta: float) -> Any:
    """The rotary embedding with neighbours paired, as the halves of what it is called with."""
    import torch

    return rotate(torch.cat((x[..., ::2], x[..., 1::2]), -1), theta)


def plm(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_plm.py: a DeepSeek V2's attention, and a feed forward without a gate."""
    import torch

    heads, nope, theta = config["num_attention_heads"], config["qk_nope_head_dim"], config["rope_theta"]
    rank, epsilon, count = config["kv_lora_rank"], config["rms_norm_eps"], len(ids)
    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        normed = rms_norm(x, w[f"{at}.input_layernorm.weight"], epsilon)
        q = _linear(normed, w, f"{at}.self_attn.q_proj").reshape(count, heads, -1).transpose(0, 1)
        low = _linear(normed, w, f"{at}.self_attn.kv_a_proj_with_mqa")
        k_pe = _paired(low[:, rank:][None], theta).expand(heads, -1, -1)
        kept = rms_norm(low[:, :rank], w[f"{at}.self_attn.kv_a_layernorm.weight"], 1e-6)
        kv = _linear(kept, w, f"{at}.self_attn.kv_b_proj").reshape(count, heads, -1).transpose(0, 1)
        k = torch.cat((kv[..., :nope], k_pe), -1)
        q = torch.cat((q[..., :nope], _paired(q[..., nope:], theta)), -1)
        x = x + _linear(_attention(q, k, kv[..., nope:]), w, f"{at}.self_attn.o_proj")
        normed = rms_norm(x, w[f"{at}.post_attention_layernorm.weight"], epsilon)
        x = x + _linear(torch.relu(_linear(normed, w, f"{at}.mlp.up_proj")) ** 2, w, f"{at}.mlp.down_proj")
    return _linear(rms_norm(x, w["model.norm.weight"], epsilon), w, "model.embed_tokens")


def openelm(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_openelm.py."""
    from torch.nn.functional import silu

    x, theta = w["transformer.token_embeddings.weight"][ids], config["rope_freq_constant"]
    for i, (heads, keys) in enumerate(zip(config["num_query_heads"], config["num_kv_heads"], strict=True)):
        at = f"transformer.layers.{i}"
        joined = _linear(rms_norm(x, w[f"{at}.attn_norm.weight"], 1e-6), w, f"{at}.attn.qkv_proj")
        q, k, v = joined.reshape(len(ids), heads + 2 * keys, -1).transpose(0, 1).split((heads, keys, keys))
        q, k = (
            rotate(rms_norm(t, w[f"{at}.attn.{part}_norm.weight"], 1e-6), theta) for t, part in ((q, "q"), (k, "k"))
        )
        x = x + _linear(_attention(q, k, v), w, f"{at}.attn.out_proj")
        gate, up = _linear(rms_norm(x, w[f"{at}.ffn_norm.weight"], 1e-6), w, f"{at}.ffn.proj_1").chunk(2, -1)
        x = x + _linear(silu(gate) * up, w, f"{at}.ffn.proj_2")
    return _linear(rms_norm(x, w["transformer.norm.weight"], 1e-6), w, "transformer.token_embeddings")


def refact(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_gpt_refact.py, for a power of two of heads."""
    import torch
    from torch.nn.functional import silu

    heads, epsilon, count = config["n_head"], config["layer_norm_epsilon"], len(ids)
    slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)])
    places = torch.arange(count)
    far = places[:, None] - places
    bias = torch.where(far < 0, -torch.inf, -slopes[:, None, None] * far)
    x = w["transformer.wte.weight"][ids]
    for i in range(config["n_layer"]):
        at = f"transformer.h.{i}"
        normed = rms_norm(x, w[f"{at}.ln_1.weight"], epsilon)
        q = _linear(normed, w, f"{at}.attn.q").reshape(count, heads, -1).transpose(0, 1)
        k, v = (t[None] for t in _linear(normed, w, f"{at}.attn.kv").chunk(2, -1))
        x = x + _linear(_masked(q, k, v, bias), w, f"{at}.attn.c_proj")
        gate, up = _linear(rms_norm(x, w[f"{at}.ln_2.weight"], epsilon), w, f"{at}.mlp.gate_up_proj").chunk(2, -1)
        x = x + _linear(silu(gate) * up, w, f"{at}.mlp.c_proj")
    return _linear(rms_norm(x, w["ln_f.weight"], epsilon), w, "lm_head")


def rwkv6(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_rwkv6.py, without the halving of what flows between layers, which its norms take back."""
    import torch
    from torch.nn.functional import group_norm, relu, silu

    width, size, epsilon = config["hidden_size"], config["head_size"], config["layer_norm_epsilon"]
    heads, count = width // size, len(ids)

    def steps(x: Any) -> Any:
        return torch.cat((torch.zeros(1, width), x[:-1])) - x

    x = _layer_norm(w["rwkv.embeddings.weight"][ids], w, "rwkv.blocks.0.pre_ln", epsilon)
    for i in range(config["num_hidden_layers"]):
        at = f"rwkv.blocks.{i}.attention"
        normed = _layer_norm(x, w, f"rwkv.blocks.{i}.ln1", epsilon)
        before = steps(normed)
        low = torch.tanh((normed + before * w[f"{at}.time_maa_x"][0]) @ w[f"{at}.time_maa_w1"])
        more = low.reshape(count, 5, -1).transpose(0, 1) @ w[f"{at}.time_maa_w2"]
        mixed = {p: normed + before * (w[f"{at}.time_maa_{p}"][0] + m) for p, m in zip("wkvrg", more, strict=True)}
        named = (("r", "receptance"), ("k", "key"), ("v", "value"))
        r, k, v = (_linear(mixed[p], w, f"{at}.{name}").reshape(count, heads, size) for p, name in named)
        decay = torch.tanh(mixed["w"] @ w[f"{at}.time_decay_w1"]) @ w[f"{at}.time_decay_w2"] + w[f"{at}.time_decay"][0]
        decay = torch.exp(-torch.exp(decay)).reshape(count, heads, size)
        state, rows = torch.zeros(heads, size, size), []
        for t in range(count):
            new = k[t][:, :, None] * v[t][:, None]
            rows.append((r[t][:, None] @ (w[f"{at}.time_faaaa"][:, :, None] * new + state))[:, 0])
            state = state * decay[t][:, :, None] + new
        out = group_norm(
            torch.stack(rows).reshape(count, width), heads, w[f"{at}.ln_x.weight"], w[f"{at}.ln_x.bias"], 64e-5
        )
        x = x + _linear(out * silu(_linear(mixed["g"], w, f"{at}.gate")), w, f"{at}.output")
        at = f"rwkv.blocks.{i}.feed_forward"
        normed = _layer_norm(x, w, f"rwkv.blocks.{i}.ln2", epsilon)
        k, r = (normed + steps(normed) * w[f"{at}.time_maa_{p}"][0] for p in "kr")
        x = x + _linear(r, w, f"{at}.receptance").sigmoid() * _linear(
            relu(_linear(k, w, f"{at}.key")) ** 2, w, f"{at}.value"
        )
    return _linear(_layer_norm(x, w, "rwkv.ln_out", epsilon), w, "head")


MODELS: dict[str, Plain] = {
    "GPTRefactForCausalLM": Plain(refact),
    "OpenELMForCausalLM": Plain(openelm),
    "Rwkv6ForCausalLM": Plain(rwkv6),
    "PLMForCausalLM": Plain(plm),
    "PlamoForCausalLM": Plain(plamo),
    "Plamo2ForCausalLM": Plain(plamo2),
    "Plamo3ForCausalLM": Plain(plamo3),
}
