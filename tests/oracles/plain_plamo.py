"""PLaMo 1 to 3, written out in torch from their publisher's code (see plain.py)."""

from __future__ import annotations

from typing import Any

from tests.oracles.plain import Config, Plain, Weights, _attention, _linear, _rms_norm, _swiglu, rotate


def plamo(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_plamo.py of plamo-13b: head h has the keys of head h % keys."""
    heads, epsilon = config["num_attention_heads"], config["rms_norm_eps"]
    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.layers.{i}"
        normed = _rms_norm(x, w[f"{at}.norm.weight"], epsilon)
        projected = (_linear(normed, w, f"{at}.self_attn.{part}_proj") for part in "qkv")
        q, k, v = (t.reshape(len(ids), -1, config["hidden_size"] // heads).transpose(0, 1) for t in projected)
        q, k = rotate(q, 10000.0), rotate(k, 10000.0)
        k, v = (t.repeat(config["n_shared_head"], 1, 1) for t in (k, v))
        attended = _linear(_attention(q, k, v), w, f"{at}.self_attn.o_proj")
        x = x + attended + _swiglu(normed, w, f"{at}.mlp")
    return _linear(_rms_norm(x, w["model.norm.weight"], epsilon), w, "lm_head")


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
            rotate(_rms_norm(t, 1 + w[f"{at}.{part}_norm.weight"], epsilon), theta) for t, part in ((q, "q"), (k, "k"))
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
            rotate(_rms_norm(t, None, 1e-6) * w[f"{at}.{part}_weight"][:, None], 10000.0)
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
    b, c, dt = (_rms_norm(t, w[f"{at}.{name}_norm_weight"], epsilon) for t, name in ((b, "B"), (c, "C"), (dt, "dt")))
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
        return _rms_norm(x, w[f"{name}.weight"] + more, epsilon)

    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.layers.{i}"
        made = mixer(i, f"{at}.mixer", norm(x, f"{at}.pre_mixer_norm"))
        x = x + norm(made, f"{at}.post_mixer_norm", 1 / 5)
        gate, up = _linear(norm(x, f"{at}.pre_mlp_norm"), w, f"{at}.mlp.gate_up_proj").chunk(2, -1)
        x = x + norm(_linear(silu(gate) * up, w, f"{at}.mlp.down_proj"), f"{at}.post_mlp_norm", 1 / 5**1.5)
    head = "lm_head" if "lm_head.weight" in w else "model.embed_tokens"
    return _linear(norm(x, "model.norm"), w, head)


MODELS: dict[str, Plain] = {
    "PlamoForCausalLM": Plain(plamo),
    "Plamo2ForCausalLM": Plain(plamo2),
    "Plamo3ForCausalLM": Plain(plamo3),
}
