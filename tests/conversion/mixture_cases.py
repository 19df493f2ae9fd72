"""Models that llama.cpp's snapshots don't have: falcon, eight experts, tied embeddings, an importance matrix, odd rows,
options. What the reference chooses for them is recorded in golden/mixtures.json by record_mixtures.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

Tensor = tuple[str, tuple[int, ...]]
ENDS: Final[Sequence[Tensor]] = (("output.weight", (64, 512)), ("token_embd.weight", (64, 512)))
TIED: Final = ENDS[1:]
LLAMA: Final[Mapping[str, tuple[int, ...]]] = {
    "attn_k": (64, 512), "attn_output": (64, 512), "attn_q": (64, 512), "attn_v": (64, 512), "ffn_down": (64, 1024),
    "ffn_gate": (64, 512), "ffn_up": (64, 512),
}  # fmt: skip
QKV: Final[Mapping[str, tuple[int, ...]]] = {
    "attn_output": (64, 512), "attn_qkv": (64, 512), "ffn_down": (64, 1024), "ffn_up": (64, 512)
}  # fmt: skip
MOE: Final[Mapping[str, tuple[int, ...]]] = {k: v for k, v in LLAMA.items() if "ffn" not in k} | {
    "ffn_down_exps": (8, 64, 1024), "ffn_gate_exps": (8, 64, 512), "ffn_up_exps": (8, 64, 512), "ffn_gate_inp": (8, 512)
}  # fmt: skip
# One tensor for every reason not to be quantized, and their neighbours.
KEPT: Final = (
    *("position_embd.weight", "token_types.weight", "x.position_embd.y.weight", "blk.0.token_types.weight"),
    *("blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_tid2eid.weight", "blk.0.altup.weight"),
    *("blk.0.laurel_l.weight", "per_layer_model_proj.weight", "blk.0.ssm_conv1d.weight", "blk.0.shortconv.conv.weight"),
    *("blk.0.indexer.k_proj.weight", "blk.0.indexer.q_proj.weight", "blk.0.attn_rel_b.weight", "v.sam.pos_embd.weight"),
    *(f"blk.0.time_mix_{x}.weight" for x in ("first", "w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1")),
    *(f"blk.0.time_mix_{x}.weight" for x in ("g2", "decay_w1", "decay_w2", "lerp_fused", "key", "output")),
    *("v.sam.neck.0.weight", "v.sam.net_2.weight", "v.rel_pos_h.weight", "v.patch_embd.weight"),
    *("v.patch_merger.weight", "a.rvq.codebook.0.weight", "mm.a.code_embd.weight", "blk.0.hc_attn.weight"),
    *("blk.0.indexer.attn_q_b.weight", "blk.0.indexer.attn_k.weight", "blk.0.indexer.proj.weight"),
    *("blk.0.indexer_compressor_gate.weight",),
    *("blk.0.indexer_compressor_ape.weight", "blk.0.ssm_f_a.weight", "blk.0.ssm_f_b.weight", "blk.0.ssm_g_a.weight"),
    *("blk.0.ssm_g_b.weight", "blk.0.ssm_beta.weight", "blk.0.attn_kv_a_mqa.weight", "blk.0.attn_k_b.weight"),
    *("blk.0.attn_v_b.weight", "abcde", "abcdef", "blk.0.attn_q.bias", "weight", "weightx", "blk.0.attn_kv_b.weight"),
)  # fmt: skip


class Case(NamedTuple):
    """A model and how it is quantized; `options`: names of `ftypes.TypeOptions`, types by name, patterns as given."""

    facts: tuple[str, int, int, int, int]  # architecture, layers, heads, key heads, experts
    tensors: tuple[Tensor, ...]
    imatrix: bool = False
    options: Mapping[str, Any] = {}


def model(parts: Mapping[str, tuple[int, ...]], layers: int, ends: Sequence[Tensor] = ENDS) -> tuple[Tensor, ...]:
    blocks = ((f"blk.{i}.{name}.weight", shape) for i in range(layers) for name, shape in sorted(parts.items()))
    return (*ends, *blocks)


def narrow(columns: int) -> tuple[Tensor, ...]:
    return tuple((name, (64, columns)) for name, _ in model(LLAMA, 2))


def _glm() -> tuple[Tensor, ...]:
    """Latent attention, and everything that has a rule here or elsewhere."""
    raised = {f"blk.0.{part}.weight": (64, 512) for part in ("attn_q_a", "attn_q_b", "nextn.eh_proj")}
    return tuple({**dict(model(_MLA, 2)), **dict.fromkeys(KEPT, (64, 512)), **raised}.items())


_SHAPES = ((512,), (1, 512), (512, 1), (2, 1, 512), (1, 1, 512), (2, 1, 1, 512))
_ODD = tuple((f"blk.0.{n}.weight", shape) for n, shape in zip("abcdef", _SHAPES, strict=True))
_SMALL = model(LLAMA, 8)
_EACH = model(LLAMA, 8, (("per_layer_token_embd.weight", (64, 512)), *TIED))
_BOTH = {"embedding_type": "Q3_K", "patterns": ("token_embd=q4_1",)}
_THREE = (r"blk\.[0-3]\.ATTN_V=q8_0", "attn_(v|q)=iq4_xs", "^output=f16")
_PER_LAYER: tuple[Tensor, ...] = (("per_layer_token_embd.weight", (64, 512)), *TIED)
_MLA = {**MOE, "attn_k_b": (8, 64, 128), "attn_kv_b": (64, 512)}
CASES: Final[Mapping[str, Case]] = {
    "falcon": Case(("falcon", 34, 71, 1, 0), model(QKV, 34)),
    "falcon, heads of their own, imatrix": Case(("falcon", 17, 8, 8, 0), model(QKV, 17), True),
    "mixtral": Case(("llama", 32, 32, 8, 8), model(MOE, 32)),
    "eight experts, imatrix, no groups": Case(("llama", 17, 32, 32, 8), model(MOE, 17), True),
    "falcon with eight experts": Case(("falcon", 16, 8, 8, 8), model({**MOE, **QKV}, 16)),
    "four experts": Case(("qwen2moe", 16, 8, 8, 4), model(MOE, 16)),
    "three experts": Case(("qwen2moe", 16, 12, 4, 3), model(MOE, 16)),
    "llama": Case(("llama", 33, 12, 4, 0), model(LLAMA, 33)),
    "llama, imatrix": Case(("llama", 33, 12, 4, 0), model(LLAMA, 33), True),
    "llama in groups, imatrix": Case(("llama", 16, 16, 4, 0), model(LLAMA, 16), True),
    "tied": Case(("llama", 16, 12, 4, 0), model(LLAMA, 16, TIED), True),
    "tied, an embedding for each layer": Case(("gemma3n", 16, 8, 2, 0), model(LLAMA, 16, _PER_LAYER)),
    "80 layers, 65B": Case(("llama", 80, 64, 64, 0), model({"attn_v": (64, 512)}, 80)),
    "80 layers, 70B": Case(("llama", 80, 64, 16, 0), model({"attn_v": (64, 512)}, 80)),
    "80 layers, 70B, loose groups": Case(("llama", 80, 64, 32, 0), model({"attn_v": (64, 512)}, 80)),
    "glm5-next": Case(("glm5-next", 2, 8, 2, 16), _glm()),
    "bailingmoe3": Case(("bailingmoe3", 9, 8, 2, 16), model(_MLA, 9)),
    "another with latent attention": Case(("deepseek2", 9, 8, 8, 16), model(_MLA, 9)),
    "no blocks of 256": Case(("llama", 2, 8, 2, 0), narrow(96)),
    "no blocks of 32": Case(("llama", 2, 8, 2, 0), narrow(40)),
    "kept": Case(("llama", 1, 8, 2, 0), tuple((n, (64, 512)) for n in KEPT)),
    "dimensions": Case(("llama", 1, 8, 2, 0), _ODD),
    "experts outside a layer": Case(("llama", 2, 8, 2, 2), (("x.ffn_down_exps.weight", (2, 64, 512)),)),
    "a layer too many": Case(("llama", 2, 8, 2, 2), (("blk.2.ffn_up_exps.weight", (2, 64, 512)),)),
    "pure": Case(("llama", 8, 8, 2, 8), model(MOE, 8), True, {"pure": True}),
    "output left": Case(("llama", 8, 8, 2, 0), _SMALL, False, {"leave_output": True}),
    "output by option": Case(("llama", 8, 8, 2, 0), _SMALL, False, {"output_type": "Q5_0"}),
    "output by option, narrow": Case(("llama", 2, 8, 2, 0), narrow(40), False, {"output_type": "Q5_K"}),
    "output by option, tied, narrow": Case(("llama", 2, 8, 2, 0), narrow(40)[1:], False, {"output_type": "Q5_K"}),
    "embedding by option": Case(("llama", 8, 8, 2, 0), model(LLAMA, 8, _PER_LAYER), False, {"embedding_type": "Q3_K"}),
    "embedding by option and pattern": Case(("llama", 8, 8, 2, 0), _EACH, False, _BOTH),
    "patterns": Case(("llama", 8, 8, 2, 0), _SMALL, False, {"patterns": _THREE}),
    "no fallback": Case(("llama", 2, 8, 2, 0), narrow(96), False, {"patterns": ("attn_v=nvfp4",)}),
}  # fmt: skip
