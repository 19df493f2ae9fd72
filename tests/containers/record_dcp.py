"""Record distributed checkpoints of 1, 2 and 4 processes, for tests/containers/test_dcp.py.

python -m tests.containers.record_dcp      writes tests/containers/golden/dcp.zip

Needs torch with gloo, and safetensors. Each process runs on the CPU.
"""

from __future__ import annotations

import os
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tests.containers.dcp_cases import CASES, GOLDEN, MODELS, Saved, data
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

_MESHES = {1: (1,), 2: (2,), 4: (4,)}


def source(name: str, saved: Saved) -> torch.Tensor:
    raw = torch.frombuffer(bytearray(data(name, saved) or bytes(8)), dtype=torch.uint8)
    size = getattr(torch, saved.dtype).itemsize
    flat = raw[: raw.numel() // size * size].view(getattr(torch, saved.dtype))
    return flat[: torch.Size(saved.shape).numel()].reshape(saved.shape).clone()


def distributed(name: str, saved: Saved, mesh: Any) -> torch.Tensor:
    """The part of this process: cut by torch's own rule, without communication."""
    full = source(name, saved)
    placements = [Replicate() if p == "R" else Shard(int(p[1:])) for p in saved.placement.split(",")]
    if all(isinstance(p, Replicate) for p in placements) and mesh.size() == 1:
        return full
    local = full
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            parts = list(torch.chunk(local, mesh.size(axis), placement.dim))
            rank = mesh.get_local_rank(axis)
            shape = list(local.shape)
            shape[placement.dim] = 0
            local = parts[rank] if rank < len(parts) else local.new_empty(shape)
    return DTensor.from_local(
        local.contiguous(), mesh, placements, run_check=False, shape=full.shape, stride=full.stride()
    )


def save_case(case: str, rank: int, out: str) -> None:
    size, tensors = CASES[case]
    mesh = init_device_mesh("cpu", (2, 2) if case == "mesh" else _MESHES[size])
    state: dict[str, Any] = {name: distributed(name, saved, mesh) for name, saved in tensors.items()}
    writer: Any = dcp.FileSystemWriter(out, thread_count=2 if case == "threads" else 1)
    if case == "hf":
        writer = dcp.HuggingFaceStorageWriter(out, save_distributed=True)
    elif case != "threads":
        state = {"model": state, "step": 7, "optimizer": {"state": {}, "param_groups": [{"lr": 0.25}]}}
    dcp.save(state, storage_writer=writer)


def filled(model: torch.nn.Module, tensors: dict[str, Saved]) -> torch.nn.Module:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(source(name, tensors[name]))
    return model


def save_model(case: str, rank: int, out: str) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    size, tensors = MODELS[case]
    shapes = [saved.shape for name, saved in tensors.items() if name.endswith("weight")]
    model = filled(torch.nn.Sequential(*(torch.nn.Linear(i, o) for o, i in shapes)), tensors)
    if case == "fsdp1":
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    elif case == "fsdp2-tp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
    else:
        for layer in model:
            fully_shard(layer, mesh=init_device_mesh("cpu", (size,)))
        fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    if case == "fsdp1":
        dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=out)
        return
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    model(torch.ones(1, shapes[0][1])).nan_to_num().sum().backward()
    optimizer.step()  # with a rate of 0 the weights stay
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": state, "step": 3}, checkpoint_id=out)


def run(rank: int, case: str, size: int, out: str) -> None:
    warnings.simplefilter("ignore")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29500 + os.getppid() % 1000)}
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    (save_case if case in CASES else save_model)(case, rank, out)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for case, (size, _) in {**CASES, **MODELS}.items():
            torch.multiprocessing.spawn(run, (case, size, f"{folder}/{case}"), size)
        GOLDEN.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(GOLDEN, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file():
                    info = zipfile.ZipInfo(path.relative_to(folder).as_posix())
                    info.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(info, path.read_bytes(), compresslevel=9)


if __name__ == "__main__":
    main()
