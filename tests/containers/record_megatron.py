"""Record checkpoints of Megatron-LM's models in the format of torch, and the whole parameters that Megatron-LM itself
states, for tests/containers/test_megatron.py.

python -m tests.containers.record_megatron [RUN ...]     writes these runs (all) in tests/containers/golden/megatron.zip

Needs megatron-core 0.16, einops and torch with gloo. Each rank is a process on the CPU. Mamba's kernels and the modules
of Transformer Engine, which need a GPU, are replaced: only names, shapes and `sharded_state_dict` matter. The values of
a parameter are a function of its name and of the place that Megatron-LM's `sharded_state_dict` states for the rank's
part. The folders are those of training/checkpointing.py (get_checkpoint_name, generate_state_dict).
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import tempfile
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from tests.containers.megatron_cases import CASES, GOLDEN, STEP, MegatronCase

LATENT = {"q_lora_rank": 16, "kv_lora_rank": 20, "qk_head_dim": 5, "qk_pos_emb_head_dim": 4, "v_head_dim": 3}
MIXER = {"mamba_num_heads": 8, "mamba_head_dim": 2, "mamba_num_groups": 4, "mamba_state_dim": 3}

SHARED = {"moe_shared_expert_intermediate_size": 12, "moe_router_score_function": "sigmoid",
          "moe_router_enable_expert_bias": True}  # fmt: skip


def settings(case: MegatronCase) -> dict[str, Any]:
    """The settings that are saved as `args`."""
    return {
        "tensor_model_parallel_size": case.tensor, "pipeline_model_parallel_size": case.pipeline,
        "expert_model_parallel_size": case.expert, "expert_tensor_parallel_size": case.expert_tensor or case.tensor,
        "num_layers": case.layers, "hidden_size": 8, "num_attention_heads": 4, "num_query_groups": case.groups,
        "kv_channels": 4, "ffn_hidden_size": 12, "swiglu": case.gated, "padded_vocab_size": 24,
        "max_position_embeddings": 6, "untie_embeddings_and_output_weights": not case.tied,
        "num_experts": case.experts or None, "normalization": "LayerNorm", "params_dtype": torch.float32,
        "position_embedding_type": "learned_absolute" if case.positions else "rope",
        **(LATENT if case.latent else {}), **(MIXER if case.mixer else {}),
    }  # fmt: skip


def models_of(case: MegatronCase) -> list[Any]:
    """The stages of this rank."""
    from megatron.core import parallel_state as ranks
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    kind, more = (MLATransformerConfig, {**LATENT, "rope_type": "rope"}) if case.latent else (TransformerConfig, {})
    config = kind(
        num_layers=case.layers, hidden_size=8, num_attention_heads=4, num_query_groups=case.groups, kv_channels=4,
        ffn_hidden_size=12, use_cpu_initialization=True, gated_linear_unit=case.gated,
        activation_func=torch.nn.functional.silu if case.gated else torch.nn.functional.gelu,
        add_bias_linear=case.bias, add_qkv_bias=case.bias, tensor_model_parallel_size=case.tensor,
        pipeline_model_parallel_size=case.pipeline, virtual_pipeline_model_parallel_size=case.virtual,
        expert_model_parallel_size=case.expert, expert_tensor_parallel_size=case.expert_tensor or case.tensor,
        pipeline_dtype=torch.float32, qk_layernorm=case.bias or bool(case.latent), normalization="LayerNorm",
        num_layers_in_first_pipeline_stage=case.first, num_moe_experts=case.experts or None, moe_router_topk=2,
        **more, **(MIXER if case.mixer else {}), **(SHARED if case.latent and case.experts else {}),
    )  # fmt: skip
    if case.mixer:
        return [model_of_mixers(case, config)]
    layers = get_gpt_layer_local_spec(num_experts=case.experts or None, qk_layernorm=case.bias or bool(case.latent),
                                      multi_latent_attention=bool(case.latent))  # fmt: skip
    if case.latent:
        stub_transformer_engine(layers.submodules.self_attention.submodules, case.latent == "whole")
    out = []
    for stage in range(case.virtual or 1):
        which = {"vp_stage": stage} if case.virtual else {}
        ends = {
            "pre_process": ranks.is_pipeline_first_stage(ignore_virtual=False, **which),
            "post_process": ranks.is_pipeline_last_stage(ignore_virtual=False, **which),
        }
        kind = "learned_absolute" if case.positions else "rope"
        out.append(GPTModel(config, layers, vocab_size=24, max_sequence_length=6, position_embedding_type=kind,
                            share_embeddings_and_output_weights=case.tied, **ends, **which))  # fmt: skip
    return out


def stub_transformer_engine(layers: Any, whole: bool) -> None:
    """Modules in place of those of Transformer Engine that multi-latent attention uses. `whole`: its down projections
    are those of Transformer Engine, which every rank has whole (`parallel_mode` is "duplicated")."""
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.identity_op import IdentityOp

    class Duplicated(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, inputs: int, outputs: int, parallel_mode: str, **_: Any) -> None:
            super().__init__()
            assert parallel_mode == "duplicated"
            self.weight = torch.nn.Parameter(torch.ones(outputs, inputs))

    multi_latent_attention.TELinear = Duplicated
    layers.core_attention = IdentityOp  # it has no parameters
    if whole:
        layers.linear_q_down_proj = layers.linear_kv_down_proj = Duplicated


def model_of_mixers(case: MegatronCase, config: Any) -> Any:
    """This rank's layers of Mamba-2 and MLPs, with Megatron-LM's layers instead of Transformer Engine's."""
    stub_kernels()
    from megatron.core import parallel_state as ranks
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    from megatron.core.models.mamba.mamba_model import MambaModel
    from megatron.core.ssm import mamba_block, mamba_mixer
    from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
    from megatron.core.ssm.mlp_layer import MLPLayer
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import MLP, MLPSubmodules
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules

    mamba_block.TENorm = WrappedTorchNorm
    mamba_mixer.get_cuda_rng_tracker = MagicMock()
    mixer = ModuleSpec(
        mamba_mixer.MambaMixer, submodules=mamba_mixer.MambaMixerSubmodules(ColumnParallelLinear, RowParallelLinear)
    )
    mlp = ModuleSpec(MLP, submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear))
    layers = mamba_block.MambaStackSubmodules(
        mamba_layer=ModuleSpec(MambaLayer, submodules=MambaLayerSubmodules(
            norm=WrappedTorchNorm, mixer=mixer, mamba_bda=get_bias_dropout_add)),
        mlp_layer=ModuleSpec(MLPLayer, submodules=TransformerLayerSubmodules(
            pre_mlp_layernorm=WrappedTorchNorm, mlp=mlp, mlp_bda=get_bias_dropout_add)),
    )  # fmt: skip
    return MambaModel(
        config, ModuleSpec(mamba_block.MambaStack, submodules=layers), vocab_size=24, max_sequence_length=6,
        hybrid_override_pattern="M-" * (case.layers // 2), pre_process=ranks.is_pipeline_first_stage(),
        post_process=ranks.is_pipeline_last_stage(),
    )  # fmt: skip


def stub_kernels() -> None:
    """Modules in place of mamba-ssm's kernels. Its gated norm has a weight."""

    class RMSNorm(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, size: int, **_: Any) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(size))

    parents = ["mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton"]
    kernels = ["mamba_ssm.ops.triton.layernorm_gated", "mamba_ssm.ops.triton.ssd_combined",
               "megatron.core.inference.contexts.attention_context.triton.tensor_ops"]  # fmt: skip
    sys.modules |= {name: MagicMock(RMSNorm=RMSNorm) for name in parents + kernels}


def fill(models: list[Any]) -> dict[str, np.ndarray]:
    """Gives each parameter its values. Returns the whole parameters, by Megatron-LM's keys."""
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories

    whole: dict[str, np.ndarray] = {}
    for model in models:
        parts = model.sharded_state_dict()
        apply_factories(parts)
        for part in nested_values(parts):
            if isinstance(part, ShardedTensor):
                seed = zlib.crc32(part.key.encode())
                values = np.random.default_rng(seed).integers(-60, 60, part.global_shape).astype(np.float32)
                whole[part.key] = values
                with torch.no_grad():
                    part.data.copy_(torch.from_numpy(values[part.global_slice()]).reshape(part.data.shape))
    return whole


def run(rank: int, name: str, case: MegatronCase, port: int, out: str) -> None:
    warnings.simplefilter("ignore")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank),
                   "WORLD_SIZE": str(case.ranks)}  # fmt: skip
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.cuda.current_device = lambda: "cpu"
    torch.distributed.init_process_group("gloo", rank=rank, world_size=case.ranks)
    from megatron.core import parallel_state as ranks

    ranks.initialize_model_parallel(
        case.tensor, case.pipeline, virtual_pipeline_model_parallel_size=case.virtual,
        expert_model_parallel_size=case.expert, expert_tensor_parallel_size=case.expert_tensor or case.tensor,
    )  # fmt: skip
    models = models_of(case)
    whole = fill(models)
    saved = {"args": argparse.Namespace(**settings(case)), "checkpoint_version": 3.0, "iteration": STEP}
    for number, model in enumerate(models):
        saved[f"model{number}" if case.virtual else "model"] = model.state_dict_for_save_checkpoint()
    saved["optimizer"] = {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 0.5, "params": [0]}]}
    saved["opt_param_scheduler"] = {"num_steps": 7}
    folder = f"mp_rank_{ranks.get_tensor_model_parallel_rank():02d}"
    folder += f"_{ranks.get_pipeline_model_parallel_rank():03d}" if case.pipeline > 1 else ""
    folder += f"_{ranks.get_expert_model_parallel_rank():03d}" if case.expert > 1 else ""
    path = Path(out, name, f"iter_{STEP:07d}", folder)
    path.mkdir(parents=True, exist_ok=True)
    torch.save(saved, path / "model_optim_rng.pt")
    Path(out, name, "latest_checkpointed_iteration.txt").write_text(str(STEP))
    Path(out, f"{name}-{rank}.pickle").write_bytes(pickle.dumps(whole))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> None:
    only = sys.argv[1:] or list(CASES)
    with tempfile.TemporaryDirectory() as text:
        out = Path(text)
        for number, name in enumerate(only):
            torch.multiprocessing.spawn(run, (name, CASES[name], 29700 + number, text), CASES[name].ranks)
            whole: dict[str, np.ndarray] = {}
            for file in sorted(out.glob(f"{name}-*.pickle")):
                whole |= pickle.loads(file.read_bytes())
                file.unlink()
            np.savez_compressed(out / f"{name}.npz", **whole)  # type: ignore[arg-type]
            print(name, len(whole), flush=True)
        kept = {}
        if GOLDEN.exists():
            with zipfile.ZipFile(GOLDEN) as archive:
                kept = {name: archive.read(name) for name in archive.namelist()
                        if name.partition("/")[0].removesuffix(".npz") not in only}  # fmt: skip
        new = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        with zipfile.ZipFile(GOLDEN, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, data in sorted((kept | new).items()):
                archive.writestr(name, data)


if __name__ == "__main__":
    main()
