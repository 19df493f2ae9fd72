"""Opens the files of a training step that the trainer's processes wrote, each with its part of the model, and those of
a pipeline of diffusers or ComfyUI.

open_joined(place, sources)                the whole weights, joined while they are read, and the parts left out
open_joined(place, sources, apart=True)    every tensor of every file, the optimizer's too, not joined
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from weighbridge.containers import opening
from weighbridge.containers.formats import COMFY_SET, PIPELINE, PIPELINES
from weighbridge.io.location import open_source
from weighbridge.io.source import Source
from weighbridge.models.diffusion.joined import open_pipeline, open_set
from weighbridge.models.locate import Place
from weighbridge.models.megatron import open_megatron
from weighbridge.models.nemo import open_nemo
from weighbridge.models.orbax import open_orbax
from weighbridge.models.presharded import open_presharded
from weighbridge.models.stored_tensors import JoinedModel, JoinedTensors, joined_index, node_builder
from weighbridge.models.tensorrt import open_tensorrt
from weighbridge.models.zero import open_zero

if TYPE_CHECKING:
    pass

#: The functions that open the files of a trainer's processes, by `Place.trainer`.
OPENERS: Final[Mapping[str, Callable[[Place, Sequence[Source]], JoinedModel]]] = MappingProxyType(
    {
        "deepspeed": open_zero,
        PIPELINE: open_pipeline,
        COMFY_SET: open_set,
        "megatron": open_megatron,
        "nemo": open_nemo,
        "orbax": open_orbax,
        "presharded": open_presharded,
        "tensorrt-llm": open_tensorrt,
    }
)
_SUFFIX: Final = ".pt"


def open_joined(place: Place, sources: list[Source], *, apart: bool = False) -> JoinedModel:
    """The weights of `place`. `sources`: those of `place.weights`; further ones are added. `apart`: as above; the
    files of an archive are joined. FormatError if the files aren't one complete checkpoint."""
    if apart and place.trainer not in ("nemo", "orbax", *PIPELINES):
        return _open_apart(place, sources)
    return OPENERS[place.trainer](place, sources)


def _open_apart(place: Place, sources: list[Source]) -> JoinedModel:
    """Every tensor of the weights' files and of the files next to them, such as the optimizer's. The names begin with
    the file's."""
    folders = dict.fromkeys(path.parent for path in place.weights)
    near = sorted(p for folder in folders for p in folder.iterdir() if p.suffix == _SUFFIX and p not in place.weights)
    sources += [open_source(path, among=len(place.weights) + len(near)) for path in near]
    indexes = list(map(opening.parse, sources))
    files = [path.relative_to(place.path).with_suffix("") for path in (*place.weights, *near)]
    parts = {
        f"{'.'.join(file.parts)}.{entry.name}": (number, entry)
        for number, (file, index) in enumerate(zip(files, indexes, strict=True))
        for entry in index
    }
    named = ((number, msgspec.structs.replace(entry, name=name)) for name, (number, entry) in parts.items())
    nodes = JoinedTensors(parts, lambda part: node_builder(indexes[part[0]])(part[1]))
    return JoinedModel(joined_index(indexes, named), nodes)
