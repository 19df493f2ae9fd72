"""The recorded checkpoints of Megatron-LM (record_megatron.py): how each was made, and where it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
from tests.golden_files import extracted

# The norm before a layer, which `sharded_state_dict` names as if it were fused with the layer.
_NORMS: Final = {"self_attention.linear_qkv": "input_layernorm", "mlp.linear_fc1": "pre_mlp_layernorm"}
# A section of a Mamba-2 mixer's rows, at the end of a key.
_SECTION: Final = re.compile(r"(\.in_proj\.weight|\.conv1d\.(?:weight|bias))\.\w+$")
GOLDEN: Final = Path(__file__).parent / "golden" / "megatron.zip"
STEP: Final = 5
FOLDER: Final = f"iter_{STEP:07d}"


class MegatronCase(NamedTuple):
    """`first`: layers of the first pipeline rank; `virtual`: stages of each; `expert_tensor`: ranks that share an
    expert; `latent`: how ranks share the down projections of multi-latent attention; `mixer`: Mamba-2 and MLPs
    in turn."""

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
    latent: Literal["", "rows", "whole"] = ""
    mixer: bool = False

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
    "latent": MegatronCase(tensor=2, latent="rows", groups=4),
    "latent-whole": MegatronCase(tensor=2, latent="whole", groups=4),
    "latent-pipeline": MegatronCase(tensor=4, pipeline=2, latent="rows", groups=4),
    "mixer": MegatronCase(tensor=2, mixer=True),
    "mixer-plain": MegatronCase(tensor=2, mixer=True, gated=False, layers=4),
    "latent-experts": MegatronCase(tensor=2, latent="whole", groups=4, expert=2, experts=4),
    "mixer-pipeline": MegatronCase(tensor=4, pipeline=2, mixer=True, layers=4, groups=4),
}


def unpack(folder: Path) -> Path:
    """Extracts the folder of every run, and `<run>.npz`: the whole parameters by Megatron-LM's keys."""
    return extracted(GOLDEN, folder)


def _joined(keys: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With one tensor for the sections of a mixer's rows, which are in their order."""
    groups: dict[str, list[np.ndarray]] = {}
    for key, values in keys.items():
        groups.setdefault(_SECTION.sub(r"\1", key), []).append(values)
    return {key: np.concatenate(parts) if len(parts) > 1 else parts[0] for key, parts in groups.items()}


def expected(file: Path) -> dict[str, np.ndarray]:
    """The whole parameters by their names: the keys have one tensor for all layers and experts."""
    out: dict[str, np.ndarray] = {}
    for key, values in _joined(np.load(file)).items():
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
