"""Record checkpoints of real DeepSpeed runs, and the weights that DeepSpeed itself reads from them, for
tests/containers/test_zero.py.

python -m tests.containers.record_zero [RUN ...]     writes these runs (all) in tests/containers/golden/zero.zip

Needs deepspeed (DS_BUILD_OPS=0 pip install deepspeed), transformers and torch with gloo. Each process runs on the CPU.
The weights of a case are those of DeepSpeed's zero_to_fp32, with tensor or pipeline parallelism of ds_to_universal.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from tests.containers.zero_cases import CASES, GOLDEN, PARALLEL, STEPS, ZeroCase


class Model(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Sizes that no number of processes divides; tied and frozen weights; buffers of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 5)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 5))
        self.register_buffer("count", torch.tensor(3))
        self.up = torch.nn.Linear(5, 7)
        self.down = torch.nn.Linear(7, 5, bias=False)
        self.frozen = torch.nn.Linear(5, 3)
        self.head = torch.nn.Linear(5, 11, bias=False)
        self.head.weight = self.embed.weight
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        embedded = self.embed(ids)
        hidden = embedded * self.scale.to(embedded.dtype)
        hidden = hidden + self.down(torch.relu(self.up(hidden)))
        return self.head(hidden).float().square().mean() + 0 * self.frozen(hidden).float().sum()


def _config(case: ZeroCase) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False, "bf16": {"enabled": case.bf16},
        "zero_optimization": {"stage": case.stage, "stage3_param_persistence_threshold": 0,
                              "sub_group_size": case.group},
    }  # fmt: skip


class Embedding(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = torch.nn.Embedding(11, 6)

    @property
    def weight(self) -> torch.Tensor:
        return self.word_embeddings.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.word_embeddings(ids)


class Layer(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A layer of a pipeline, with a frozen weight and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(6, 8), torch.nn.Linear(8, 6, bias=False)
        self.frozen = torch.nn.Linear(6, 6, bias=False)
        self.frozen.weight.requires_grad_(False)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x * self.scale.to(x.dtype)))) + 0 * self.frozen(x)


class Mixture(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, sets: int) -> None:
        from deepspeed.moe.layer import MoE

        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.moe = MoE(6, torch.nn.Linear(6, 6), num_experts=4, ep_size=sets, k=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.moe(self.first(x))[0].float().square().mean()


def model_of(case: ZeroCase) -> Any:
    """A model that is parallel in the case's way."""
    if case.stages > 1:
        from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

        head = TiedLayerSpec("embed", Embedding, forward_fn=lambda module, x: x @ module.weight.t())
        layers = [TiedLayerSpec("embed", Embedding), *[LayerSpec(Layer)] * 3, LayerSpec(torch.nn.LayerNorm, 6), head]
        loss = torch.nn.functional.cross_entropy
        return PipelineModule(
            layers, num_stages=case.stages, loss_fn=lambda x, y: loss(x.float().flatten(0, 1), y.flatten())
        )
    if case.tensor > 1:
        from transformers import LlamaConfig, LlamaForCausalLM

        return LlamaForCausalLM(LlamaConfig(
            vocab_size=23, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32,
        ))  # fmt: skip
    return Mixture(case.experts)


def train(engine: Any, case: ZeroCase, rank: int) -> None:
    """One step."""
    if case.stages > 1:
        ids = torch.arange(9)[None]
        engine.train_batch(iter([(ids[:, :-1], ids[:, 1:])]))
        return
    ids = torch.arange(8)[None] + rank // case.tensor
    given = {"input_ids": ids, "labels": ids}
    loss = engine(**given).loss if case.tensor > 1 else engine(torch.randn(4, 6).bfloat16())
    engine.backward(loss)
    engine.step()


def run_parallel(rank: int, case: ZeroCase, port: int, out: str) -> None:
    started(rank, case, port)
    import deepspeed

    torch.manual_seed(3)
    model = model_of(case)
    groups: Any = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if case.experts > 1:
        from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split

        groups = split({"params": groups, "name": "weights"})
    config = {**_config(case), "train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": case.tensor}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=1e-3), config=config)
    train(engine, case, rank)
    engine.save_checkpoint(out)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def started(rank: int, case: ZeroCase, port: int) -> None:
    """Starts a process of a run."""
    warnings.simplefilter("ignore")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank),
                   "WORLD_SIZE": str(case.ranks), "DS_ACCELERATOR": "cpu"}  # fmt: skip
    import deepspeed

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")


def run(rank: int, name: str, case: ZeroCase, port: int, out: str) -> None:
    started(rank, case, port)
    import deepspeed

    torch.manual_seed(len(name))
    model = Model()
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": trained[:2]}, {"params": trained[2:], "lr": 1e-2}] if case.groups == 2 else trained
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=1e-3), config=_config(case))
    for step in range(1, STEPS + 1):
        loss = engine(torch.arange(4) + rank + step)
        engine.backward(loss)
        engine.step()
        engine.save_checkpoint(out)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def expected(folder: Path) -> None:
    """Writes the weights that DeepSpeed reads from each step, next to the run's folder."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    from safetensors.torch import save_file

    for step in sorted(folder.glob("global_step*")):
        state = get_fp32_state_dict_from_zero_checkpoint(str(folder), tag=step.name)
        save_file(
            {n: t.contiguous().clone() for n, t in state.items()},
            folder.parent / f"{folder.name}-{step.name}.safetensors",
        )


def universal(folder: Path, case: str, step: str) -> None:
    """DeepSpeed's universal form of a case's step."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.checkpoint.ds_to_universal import main, parse_arguments

    source, target = folder / case, folder / f"{case}-universal"
    target.mkdir()
    sys.argv = ["", "--input_folder", str(source / step), "--output_folder", str(target / step),
                "--num_extract_workers", "1", "--num_merge_workers", "1", "--inject_missing_state"]  # fmt: skip
    main(parse_arguments())


def merged(folder: Path) -> None:
    """Writes the weights of a universal checkpoint, next to the folder."""
    from safetensors.torch import save_file

    found = {path.parent.name: torch.load(path, weights_only=False) for path in folder.glob("*/zero/*/fp32.pt")}
    weights = {name: value["param"].detach().contiguous() for name, value in found.items()}
    save_file(weights, folder.with_name(f"{folder.name}.safetensors"))


def main() -> None:
    only = sys.argv[1:] or [*CASES, *PARALLEL]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for number, name in enumerate(only):
            port, out = 29600 + number, f"{folder}/{name}"
            if (case := CASES.get(name)) is not None:
                torch.multiprocessing.spawn(run, (name, case, port, out), case.ranks)
                expected(folder / name)
                if case.universal:
                    step = f"global_step{STEPS}"
                    universal(folder, name, step)
                    shutil.copy(folder / f"{name}-{step}.safetensors", folder / f"{name}-universal-{step}.safetensors")
                continue
            case = PARALLEL[name]
            torch.multiprocessing.spawn(run_parallel, (case, port, out), case.ranks)
            if case.universal:
                universal(folder, name, "global_step1")
                merged(folder / f"{name}-universal")
        kept = {}
        if GOLDEN.exists():
            with zipfile.ZipFile(GOLDEN) as archive:
                fronts = tuple(f"{run}{end}" for run in only for end in ("/", "-universal", "-global"))
                kept = {name: archive.read(name) for name in archive.namelist() if not name.startswith(fronts)}
        new = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*")
               if path.is_file() and path.suffix != ".py" and not fnmatch(path.name, "exp_avg*.pt")
               and not fnmatch(str(path), "*/tensor*-universal/*") and path.name != "step.pt"}  # fmt: skip
        GOLDEN.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(GOLDEN, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, data in sorted((kept | new).items()):
                info = zipfile.ZipInfo(name)
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, data, compresslevel=9)


if __name__ == "__main__":
    main()
