"""All packing schemas that can be read, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Final

from weighbridge.base.plugins import PACKINGS, plugins
from weighbridge.packings.schema.affine import AFFINE
from weighbridge.packings.schema.awq import AWQ
from weighbridge.packings.schema.base import PackingSchema
from weighbridge.packings.schema.bitplanes import BITNET, HQQ
from weighbridge.packings.schema.bitsandbytes import BNB_4BIT, BNB_INT8
from weighbridge.packings.schema.compressed import INT8, PACKED
from weighbridge.packings.schema.ggml import GGML_NVFP4
from weighbridge.packings.schema.gptq import GPTQ
from weighbridge.packings.schema.microfloat import COMPRESSED_FP4, GPT_OSS, MLX_FLOATS, MODELOPT_NVFP4, SCALE_FP4
from weighbridge.packings.schema.scaled import FP8, MLX_FP8
from weighbridge.packings.schema.torchao import TORCHAO

SHIPPED: Final = (
    AFFINE, GPTQ, AWQ, GGML_NVFP4, MLX_FLOATS, *GPT_OSS, COMPRESSED_FP4, SCALE_FP4, MODELOPT_NVFP4, PACKED, INT8, HQQ,
    BITNET, *FP8, MLX_FP8, *BNB_4BIT, BNB_INT8, *TORCHAO,
)  # fmt: skip


def schemas() -> tuple[PackingSchema, ...]:
    """The shipped schemas, then those of installed plug-ins."""
    return (*SHIPPED, *plugins(PACKINGS, PackingSchema).values())


def any_present(names: Collection[str]) -> bool:
    """Whether a name has the ending of some schema: not so in most models. Decided, if possible, by the last parts of
    the names ("weight", "bias"), of which there are few."""
    parts = "\0".join((*{name.rpartition(".")[2] for name in names}, ""))
    for ending in _last_parts(tuple(plugins(PACKINGS, PackingSchema))):
        if ending in parts:
            break
    else:
        return False
    endings = tuple(schema.suffix for schema in schemas())
    return any(name.endswith(endings) for name in names)


@cache
def _last_parts(others: tuple[str, ...]) -> tuple[str, ...]:
    """How names end, with a NUL, that have the ending of some schema. `others`: those of plug-ins."""
    return tuple({f"{schema.suffix.rpartition('.')[2]}\0" for schema in schemas()})
