"""The files that the processes of a trainer wrote into a folder, by their names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from weighbridge.containers.formats import ZERO_MODEL, ZERO_OPTIMIZER


def zero_files(folder: Path, names: Collection[str]) -> tuple[Path, ...] | None:
    """The files of DeepSpeed's ZeRO in a folder with these files: those with model states, then those of the processes
    or, in a universal checkpoint, of the weights. None if there are none."""
    if not any(name.endswith(ZERO_MODEL) or name.endswith(ZERO_OPTIMIZER) for name in names):
        return None
    from weighbridge.containers.torch.zero import files as zero

    inner = folder / zero.UNIVERSAL
    universal = sorted(inner.glob(f"*/{zero.UNIVERSAL_FILE}")) if inner.is_dir() else []
    model = sorted(folder / name for name in names if zero.is_model(name))
    if universal and model:
        return (*model, *universal)
    files = zero.files_of(names)
    return None if files is None else tuple(folder / name for name in files)


def megatron_files(folder: Path) -> tuple[Path, ...]:
    """The files of all ranks of Megatron-LM, or of NeMo, in a folder; empty for other folders."""
    from weighbridge.containers.torch import megatron

    ranks = (path for path in folder.iterdir() if megatron.is_rank_folder(path.name))
    files = (path / name for path in ranks for name in megatron.FILES)
    return tuple(sorted(path for path in files if path.is_file()))
