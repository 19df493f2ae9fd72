"""The recorded checkpoints of Megatron-LM (record_megatron.py): how each was made, and where it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from tests.golden_files import extracted

# The norm before a layer, which `sharded_state_dict` names as if it were fused with the layer.
_NORMS: Final = {"self_attention.linear_qkv": "input_layernorm", "mlp.linear_fc1": "pre_mlp_layernorm"}
GOLDEN: Final = Path(__file__).parent / "golden" / "megatron.zip"
STEP: Final = 5
FOLDER: Final = f"iter_{STEP:07d}"


class MegatronCase(NamedTuple):
    """`first`: layers of the first pipeline rank; `virtual`: stages of each; `expert_tensor`: ranks that share an
    expert; `world`: processes, if more than a copy of the model needs."""

    tensor: int = 1
    pipeline: int = 1
    virtual: int | None = None
    expert: int = 1
    expert_tensor: int | None = None
    experts: int = 0
    layers: int = 2
    groups: int = 2
    gated: bool = True
    bias: bool = False
    tied: bool = False
    positions: bool = False
    first: int | None = None

    @property
    def ranks(self) -> int:
        return max(self.tensor, self.expert * (self.expert_tensor or self.tensor)) * self.pipeline


CASES: Final = {
    "one": MegatronCase(),
    "tensor": MegatronCase(tensor=2, bias=True),
    "gpt": MegatronCase(tensor=4, gated=False, bias=True, tied=True, positions=True, groups=4),
    "fewer-groups": MegatronCase(tensor=4, groups=2),
    "pipeline": MegatronCase(tensor=2, pipeline=2, layers=3, first=1, tied=True),
    "interleaved": MegatronCase(tensor=2, pipeline=2, virtual=2, layers=4),
    "experts": MegatronCase(expert=2, experts=4),
    "all": MegatronCase(tensor=2, pipeline=2, expert=2, experts=4),
    "whole-experts": MegatronCase(tensor=2, expert=2, expert_tensor=1, experts=4),
}


def unpack(folder: Path) -> Path:
    """Extracts the folder of every run, and `<run>.npz`: the whole parameters by Megatron-LM's keys."""
    return extracted(GOLDEN, folder)


def expected(file: Path) -> dict[str, np.ndarray]:
    """The whole parameters by their names: the keys have one tensor for all layers and experts."""
    out: dict[str, np.ndarray] = {}
    for key, values in np.load(file).items():
        for module, norm in _NORMS.items():
            key = key.replace(f"{module}.layer_norm_", f"{norm}.")
        split = {key: values}
        for before, after, layer in (("decoder.layers.", "decoder.layers.{}.", True),
                                     (".experts.experts.", ".experts.local_experts.{}.", False)):  # fmt: skip
            if before in key and not (layer and re.search(r"layers\.\d", key)):
                split = {
                    name.replace(before, after.format(n)): part
                    for name, array in split.items() for n, part in enumerate(array)
                }  # fmt: skip
        out |= split
    return out
