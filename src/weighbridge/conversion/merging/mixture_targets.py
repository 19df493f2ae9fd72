"""The architectures that a mixture of dense models can have, one row each: which models, which names, which settings.

Which dense models become which architecture, and the settings, are mergekit's (arcee-ai/mergekit 0.1.5, moe/*.py).
Names of tensors are those of published checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple


class MixtureCounts(NamedTuple):
    """Experts in all, shared ones, those of a token, and the width of one."""

    experts: int
    shared: int
    per_token: int
    width: int


@dataclass(frozen=True)
class MixtureTarget:
    """`models`: the model_type of dense models. `class_`, `model_type`: of the result. `expert`, `router`: names of
    tensors after `model.layers.N.`; `shared`, `shared_router`: of the shared expert and its gate, "" if there is none.
    `parts`: the names of an expert's matrices, if others. `least_shared`: of shared experts; one at most. `settings`:
    the keys of config.json. `biases`: whether q, k and v have biases."""

    name: str
    models: frozenset[str]
    class_: str
    model_type: str
    expert: str
    router: str
    settings: Callable[[MixtureCounts], Mapping[str, Any]]
    shared: str = ""
    shared_router: str = ""
    least_shared: int = 0
    parts: Mapping[str, str] | None = None
    biases: bool = False
    note: str = ""

    def named(self, beginning: str) -> bool:
        return self.name.lower().startswith(beginning.lower())

    def part(self, name: str) -> str:
        return self.parts[name] if self.parts else name


_QWEN: Final = "mlp.experts.{e}.{part}.weight"
_LLAMA: Final = frozenset({"llama", "mistral"})
_NOT_PUBLISHED: Final = "deepseek-ai/deepseek-moe-16b-base--"
#: The first that fits is chosen, in this order.
TARGETS: Final = (
    MixtureTarget(
        "Mixtral", _LLAMA, "MixtralForCausalLM", "mixtral",
        expert="block_sparse_moe.experts.{e}.{part}.weight", router="block_sparse_moe.gate.weight",
        parts={"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"},
        settings=lambda n: {
            "num_local_experts": n.experts, "num_experts_per_tok": n.per_token, "sliding_window": None,
        },
    ),
    MixtureTarget(
        "DeepSeek MoE", _LLAMA, "DeepseekForCausalLM", "deepseek",
        expert=_QWEN, router="mlp.gate.weight", shared="mlp.shared_experts.{part}.weight",
        settings=lambda n: {
            "n_routed_experts": n.experts, "n_shared_experts": n.shared or None, "num_experts_per_tok": n.per_token,
            "first_k_dense_replace": 0, "moe_layer_freq": 1, "scoring_func": "softmax", "norm_topk_prob": True,
            "moe_intermediate_size": n.width,
            "auto_map": {
                "AutoConfig": f"{_NOT_PUBLISHED}configuration_deepseek.DeepseekConfig",
                "AutoModel": f"{_NOT_PUBLISHED}modeling_deepseek.DeepseekModel",
                "AutoModelForCausalLM": f"{_NOT_PUBLISHED}modeling_deepseek.DeepseekForCausalLM",
            },
        },
        note="transformers has no class for this architecture: config.json names the code of deepseek-moe-16b-base",
    ),
    MixtureTarget(
        "Qwen MoE", _LLAMA | {"qwen2"}, "Qwen2MoeForCausalLM", "qwen2_moe",
        expert=_QWEN, router="mlp.gate.weight", shared="mlp.shared_expert.{part}.weight",
        shared_router="mlp.shared_expert_gate.weight", least_shared=1, biases=True,
        settings=lambda n: {
            "num_experts": n.experts, "num_experts_per_tok": n.per_token, "decoder_sparse_step": 1,
            "norm_topk_prob": True, "sliding_window": None, "use_sliding_window": False, "mlp_only_layers": [],
            "moe_intermediate_size": n.width, "shared_expert_intermediate_size": n.width,
        },
    ),
    MixtureTarget(
        "Qwen3 MoE", frozenset({"qwen3"}), "Qwen3MoeForCausalLM", "qwen3_moe",
        expert=_QWEN, router="mlp.gate.weight",
        settings=lambda n: {
            "num_experts": n.experts, "num_experts_per_tok": n.per_token, "decoder_sparse_step": 1,
            "norm_topk_prob": True, "mlp_only_layers": [], "moe_intermediate_size": n.width,
        },
    ),
)  # fmt: skip
