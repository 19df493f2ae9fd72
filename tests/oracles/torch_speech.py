"""The towers of models that speak, in plain torch, over the tensors of a folder: Qwen3-TTS (QwenLM/Qwen3-TTS,
qwen_tts 0.1.1) and Pocket TTS (kyutai-labs/pocket-tts 4.0.1), whose own code computes the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Tensors = Mapping[str, Tensor]


def linear(s: Tensors, name: str, x: Tensor) -> Tensor:
    return F.linear(x, s[f"{name}.weight"], s.get(f"{name}.bias"))


def rms(s: Tensors, name: str, x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * s[f"{name}.weight"]


def normed(s: Tensors, name: str, x: Tensor, eps: float) -> Tensor:
    weight = s[f"{name}.weight"]
    return F.layer_norm(x, weight.shape, weight, s[f"{name}.bias"], eps)


def causal(s: Tensors, name: str, x: Tensor, stride: int = 1, dilation: int = 1, groups: int = 1) -> Tensor:
    """A convolution that sees only what came before, zeros first."""
    weight = s[f"{name}.weight"]
    before = F.pad(x, ((weight.shape[2] - 1) * dilation + 1 - stride, 0))
    return F.conv1d(before, weight, s.get(f"{name}.bias"), stride, 0, dilation, groups)


def widened(s: Tensors, name: str, x: Tensor, stride: int, groups: int = 1) -> Tensor:
    """A transposed convolution without the samples of the frame that follows."""
    y = F.conv_transpose1d(x, s[f"{name}.weight"], s.get(f"{name}.bias"), stride, groups=groups)
    return y[..., : x.shape[2] * stride]


def rotated(x: Tensor, base: float, pairs: bool) -> Tensor:
    """[heads, time, width], by halves of each head or by pairs."""
    half = x.shape[2] // 2
    angles = torch.arange(x.shape[1])[:, None] * base ** (-torch.arange(half) / half)
    a, b = (x[..., ::2], x[..., 1::2]) if pairs else (x[..., :half], x[..., half:])
    turned = a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()
    return torch.stack(turned, -1).flatten(2) if pairs else torch.cat(turned, -1)


def attended(q: Tensor, k: Tensor, v: Tensor, base: float, window: int, pairs: bool = False) -> Tensor:
    """[heads, time, width]; keys of fewer heads are shared."""
    q, k = rotated(q, base, pairs), rotated(k, base, pairs)
    k, v = (t.repeat_interleave(len(q) // len(t), 0) for t in (k, v))
    ages = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])
    scores = (q @ k.mT / math.sqrt(q.shape[2])).masked_fill((ages < 0) | (ages >= window), -math.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


def heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(1, (count, -1)).transpose(0, 1)


# ---------------------------------------------------------------- Qwen3-TTS


def speaker(s: Tensors, mel: Tensor) -> Tensor:
    """The embedding of a spectrogram [1, bins, time]."""

    def conv(name: str, x: Tensor, dilation: int = 1) -> Tensor:
        around = (s[f"{name}.weight"].shape[2] - 1) * dilation // 2
        padded = F.pad(x, (around, around), mode="reflect") if around else x
        return F.conv1d(padded, s[f"{name}.weight"], s[f"{name}.bias"], dilation=dilation)

    x, outputs = conv("blocks.0.conv", mel).relu(), []
    for n in (1, 2, 3):
        at, before = f"blocks.{n}.", x
        first, *parts = conv(f"{at}tdnn1.conv", x).relu().chunk(8, 1)
        done = [first]
        for i, part in enumerate(parts):
            inner = part + done[-1] if i else part
            done.append(conv(f"{at}res2net_block.blocks.{i}.conv", inner, n + 1).relu())
        x = conv(f"{at}tdnn2.conv", torch.cat(done, 1)).relu()
        squeezed = conv(f"{at}se_block.conv1", x.mean(2, keepdim=True)).relu()
        x = x * conv(f"{at}se_block.conv2", squeezed).sigmoid() + before
        outputs.append(x)
    x = conv("mfa.conv", torch.cat(outputs, 1)).relu()
    share = torch.full_like(x, 1 / x.shape[2])
    for _ in range(2):
        mean = (share * x).sum(2, keepdim=True)
        deviation = (share * (x - mean).square()).sum(2, keepdim=True).clamp(1e-12).sqrt()
        stats = torch.cat([x, mean.expand_as(x), deviation.expand_as(x)], 1)
        share = conv("asp.conv", conv("asp.tdnn.conv", stats).relu().tanh()).softmax(2)
        pooled = torch.cat([mean, deviation], 1)
    return conv("fc", pooled).flatten()


def spectrogram(sound: Tensor) -> Tensor:
    """[1, 128, time], of 24,000 samples a second."""
    from transformers.audio_utils import mel_filter_bank

    filters = mel_filter_bank(513, 128, 0, 12_000, 24_000, norm="slaney", mel_scale="slaney")
    padded = F.pad(sound[None], (384, 384), mode="reflect")
    spectra = torch.stft(padded, 1024, 256, window=torch.hann_window(1024), center=False, return_complex=True)
    magnitudes = (spectra.abs().square() + 1e-9).sqrt()
    return (torch.tensor(filters.T, dtype=torch.float32) @ magnitudes).clamp(1e-5).log()


def predicted(s: Tensors, config: Mapping[str, Any], hidden: Tensor, first: Tensor) -> tuple[list[int], Tensor]:
    """The likeliest 15 codes after the first, whose embedding is given, and the sum of all embeddings."""
    inputs, codes, total, eps = [hidden, first], [], first.clone(), config["rms_norm_eps"]
    for step in range(15):
        x = torch.stack(inputs)
        x = linear(s, "small_to_mtp_projection", x)
        for n in range(config["num_hidden_layers"]):
            at = f"model.layers.{n}."
            y = rms(s, f"{at}input_layernorm", x, eps)
            counts = {"q": config["num_attention_heads"], **dict.fromkeys("kv", config["num_key_value_heads"])}
            q, k, v = (heads(linear(s, f"{at}self_attn.{part}_proj", y), n) for part, n in counts.items())
            q, k = (rms(s, f"{at}self_attn.{part}_norm", t, eps) for part, t in (("q", q), ("k", k)))
            x = x + linear(s, f"{at}self_attn.o_proj", attended(q, k, v, config["rope_theta"], len(x)))
            y = rms(s, f"{at}post_attention_layernorm", x, eps)
            gated = F.silu(linear(s, f"{at}mlp.gate_proj", y)) * linear(s, f"{at}mlp.up_proj", y)
            x = x + linear(s, f"{at}mlp.down_proj", gated)
        codes.append(int(linear(s, f"lm_head.{step}", rms(s, "model.norm", x, eps)[-1]).argmax()))
        inputs.append(s[f"model.codec_embedding.{step}.weight"][codes[-1]])
        total += inputs[-1]
    return codes, total


def snake(s: Tensors, name: str, x: Tensor) -> Tensor:
    alpha, beta = (s[f"{name}.{part}"].exp()[:, None] for part in ("alpha", "beta"))
    return x + (x * alpha).sin().square() / (beta + 1e-9)


def vocoded(s: Tensors, config: Mapping[str, Any], codes: Tensor) -> Tensor:
    """The sound of codes [16, frames]."""
    hidden = torch.zeros(1)
    for group, rows in (("first", codes[:1]), ("rest", codes[1:])):
        start, total = f"quantizer.rvq_{group}.", torch.zeros(1)
        for n, row in enumerate(rows):
            at = f"{start}vq.layers.{n}._codebook."
            book = s[f"{at}embedding_sum"] / s[f"{at}cluster_usage"].clamp(1e-5)[:, None]
            total = total + book[row]
        hidden = hidden + F.linear(total, s[f"{start}output_proj.weight"][..., 0])
    x = linear(s, "pre_transformer.input_proj", causal(s, "pre_conv.conv", hidden.mT[None])[0].mT)
    count, eps = config["num_attention_heads"], config["rms_norm_eps"]
    for n in range(config["num_hidden_layers"]):
        at = f"pre_transformer.layers.{n}."
        y = rms(s, f"{at}input_layernorm", x, eps)
        q, k, v = (heads(linear(s, f"{at}self_attn.{part}_proj", y), count) for part in "qkv")
        y = linear(s, f"{at}self_attn.o_proj", attended(q, k, v, 1e4, config["sliding_window"]))
        x = x + y * s[f"{at}self_attn_layer_scale.scale"]
        y = rms(s, f"{at}post_attention_layernorm", x, eps)
        gated = F.silu(linear(s, f"{at}mlp.gate_proj", y)) * linear(s, f"{at}mlp.up_proj", y)
        x = x + linear(s, f"{at}mlp.down_proj", gated) * s[f"{at}mlp_layer_scale.scale"]
    x = linear(s, "pre_transformer.output_proj", rms(s, "pre_transformer.norm", x, eps)).mT[None]
    for n in range(2):
        x = widened(s, f"upsample.{n}.0.conv", x, 2)
        y = causal(s, f"upsample.{n}.1.dwconv.conv", x, groups=x.shape[1]).mT
        y = F.gelu(linear(s, f"upsample.{n}.1.pwconv1", normed(s, f"upsample.{n}.1.norm", y, 1e-6)))
        x = x + (linear(s, f"upsample.{n}.1.pwconv2", y) * s[f"upsample.{n}.1.gamma"]).mT
    x = causal(s, "decoder.0.conv", x)
    for n, rate in enumerate(config["upsample_rates"], 1):
        x = widened(s, f"decoder.{n}.block.1.conv", snake(s, f"decoder.{n}.block.0", x), rate)
        for unit, dilation in ((2, 1), (3, 3), (4, 9)):
            at = f"decoder.{n}.block.{unit}."
            y = causal(s, f"{at}conv1.conv", snake(s, f"{at}act1", x), dilation=dilation)
            x = x + causal(s, f"{at}conv2.conv", snake(s, f"{at}act2", y))
    return causal(s, "decoder.6.conv", snake(s, "decoder.5", x)).clamp(-1, 1).flatten()


# ---------------------------------------------------------------- Pocket TTS


def mimi_layers(s: Tensors, start: str, x: Tensor) -> Tensor:
    """Mimi's transformer over [time, width], with heads of 64."""
    for n in range(sum(name.startswith(start) and name.endswith("norm1.weight") for name in s)):
        at, count = f"{start}{n}.", x.shape[1] // 64
        q, k, v = (
            heads(t, count) for t in linear(s, f"{at}self_attn.in_proj", normed(s, f"{at}norm1", x, 1e-5)).chunk(3, 1)
        )
        y = linear(s, f"{at}self_attn.out_proj", attended(q, k, v, 1e4, 250, pairs=True))
        x = x + y * s[f"{at}layer_scale_1.scale"]
        y = linear(s, f"{at}linear2", F.gelu(linear(s, f"{at}linear1", normed(s, f"{at}norm2", x, 1e-5))))
        x = x + y * s[f"{at}layer_scale_2.scale"]
    return x


def residual(s: Tensors, at: str, x: Tensor) -> Tensor:
    return x + causal(s, f"{at}.block.3.conv", F.elu(causal(s, f"{at}.block.1.conv", F.elu(x))))


def heard(s: Tensors, sound: Tensor) -> Tensor:
    """[frames, width], of a number of samples that 1,920 divides."""
    x = causal(s, "mimi.encoder.model.0.conv", sound[None, None])
    for n, stride in ((1, 4), (4, 5), (7, 6)):
        x = causal(s, f"mimi.encoder.model.{n + 2}.conv", F.elu(residual(s, f"mimi.encoder.model.{n}", x)), stride)
    x = causal(s, "mimi.encoder.model.11.conv", F.elu(x))[0].mT
    x = mimi_layers(s, "mimi.encoder_transformer.transformer.layers.", x).mT[None]
    x = F.conv1d(F.pad(x, (16, 0), mode="replicate"), s["mimi.downsample.conv.conv.weight"], stride=16)
    return F.linear(x[0].mT, s["flow_lm.speaker_proj_weight"])


def flowed(s: Tensors, hidden: Tensor) -> Tensor:
    """The latent of a hidden state, from zeros in one step."""
    at = "flow_lm.flow_net."
    times = torch.zeros(1)
    for n in (0, 1):  # the times 0 and 1
        angles = n * s[f"{at}time_embed.{n}.freqs"]
        y = torch.cat([angles.cos(), angles.sin()])
        y = linear(s, f"{at}time_embed.{n}.mlp.2", F.silu(linear(s, f"{at}time_embed.{n}.mlp.0", y)))
        times = times + y * s[f"{at}time_embed.{n}.mlp.3.alpha"] * torch.rsqrt(y.var() + 1e-5) / 2
    condition = F.silu(times + linear(s, f"{at}cond_embed", hidden))
    x, block = s[f"{at}input_proj.bias"], 0
    while f"{at}res_blocks.{block}.in_ln.weight" in s:
        inner = f"{at}res_blocks.{block}."
        shift, scale, gate = linear(s, f"{inner}adaLN_modulation.1", condition).chunk(3)
        y = normed(s, f"{inner}in_ln", x, 1e-6) * (1 + scale) + shift
        x, block = x + gate * linear(s, f"{inner}mlp.2", F.silu(linear(s, f"{inner}mlp.0", y))), block + 1
    shift, scale = linear(s, f"{at}final_layer.adaLN_modulation.1", condition).chunk(2)
    return linear(s, f"{at}final_layer.linear", F.layer_norm(x, x.shape, eps=1e-6) * (1 + scale) + shift)


def sounded(s: Tensors, latents: Tensor) -> Tensor:
    """The sound of latents [frames, width]."""
    x = latents * s["flow_lm.emb_std"] + s["flow_lm.emb_mean"]
    x = F.linear(x, s["mimi.quantizer.output_proj.weight"][..., 0]).mT[None]
    x = widened(s, "mimi.upsample.convtr.convtr", x, 16, x.shape[1])[0].mT
    x = mimi_layers(s, "mimi.decoder_transformer.transformer.layers.", x).mT[None]
    x = causal(s, "mimi.decoder.model.0.conv", x)
    for n, stride in ((2, 6), (5, 5), (8, 4)):
        x = residual(s, f"mimi.decoder.model.{n + 1}", widened(s, f"mimi.decoder.model.{n}.convtr", F.elu(x), stride))
    return causal(s, "mimi.decoder.model.11.conv", F.elu(x)).clamp(-1, 1).flatten()
