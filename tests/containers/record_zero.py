"""Record checkpoints of real DeepSpeed runs, and the weights that DeepSpeed itself reads from them, for
tests/containers/test_zero.py.

python -m tests.containers.record_zero      writes tests/containers/golden/zero.zip

Needs deepspeed (DS_BUILD_OPS=0 pip install deepspeed) and torch with gloo. Each process runs on the CPU. The weights of
a case are those of DeepSpeed's zero_to_fp32.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from tests.containers.zero_cases import CASES, GOLDEN, STEPS, ZeroCase


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


def run(rank: int, name: str, case: ZeroCase, port: int, out: str) -> None:
    warnings.simplefilter("ignore")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank),
                   "WORLD_SIZE": str(case.ranks), "DS_ACCELERATOR": "cpu"}  # fmt: skip
    import deepspeed

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
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


def universal(folder: Path, case: str) -> None:
    """DeepSpeed's universal form of a case's last step."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.checkpoint.ds_to_universal import main, parse_arguments

    step = f"global_step{STEPS}"
    source, target = folder / case, folder / f"{case}-universal"
    target.mkdir()
    sys.argv = ["", "--input_folder", str(source / step), "--output_folder", str(target / step),
                "--num_extract_workers", "1", "--num_merge_workers", "1", "--inject_missing_state"]  # fmt: skip
    main(parse_arguments())
    shutil.copy(folder / f"{case}-{step}.safetensors", folder / f"{target.name}-{step}.safetensors")


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for number, (name, case) in enumerate(CASES.items()):
            torch.multiprocessing.spawn(run, (name, case, 29600 + number, f"{folder}/{name}"), case.ranks)
            expected(folder / name)
            if case.universal:
                universal(folder, name)
        GOLDEN.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(GOLDEN, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path.suffix != ".py":
                    info = zipfile.ZipInfo(path.relative_to(folder).as_posix())
                    info.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(info, path.read_bytes(), compresslevel=9)


if __name__ == "__main__":
    main()
