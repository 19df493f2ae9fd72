"""All packing schemas that can be read, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from typing import Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.plugins import PACKINGS, guard, plugins
from weighbridge.base.words import NAME_END, name_ends
from weighbridge.packings.schema.affine import AFFINE
from weighbridge.packings.schema.awq import AWQ
from weighbridge.packings.schema.base import PackingSchema
from weighbridge.packings.schema.bitplanes import BITNET, HQQ
from weighbridge.packings.schema.bitsandbytes import BNB_4BIT, BNB_INT8
from weighbridge.packings.schema.codebooks import AQLM, EXL2, EXL3, QTIP
from weighbridge.packings.schema.comfy import COMFY
from weighbridge.packings.schema.compressed import INT8, PACKED
from weighbridge.packings.schema.gptq import GPTQ
from weighbridge.packings.schema.microscaled import (
    COMPRESSED_FP4,
    GGML_NVFP4,
    GPT_OSS,
    MLX_FLOATS,
    MODELOPT_NVFP4,
    SCALE_FP4,
)
from weighbridge.packings.schema.scaled_float import FP8, MLX_FP8
from weighbridge.packings.schema.torchao import TORCHAO

SHIPPED: Final = (
    *COMFY, AFFINE, GPTQ, AWQ, GGML_NVFP4, MLX_FLOATS, *GPT_OSS, COMPRESSED_FP4, SCALE_FP4, MODELOPT_NVFP4, PACKED,
    INT8, HQQ, BITNET, *FP8, MLX_FP8, *BNB_4BIT, BNB_INT8, *TORCHAO, AQLM, EXL2,
    EXL3, QTIP,
)  # fmt: skip


def schemas() -> tuple[PackingSchema, ...]:
    """The shipped schemas, then those of installed plug-ins."""
    return (*SHIPPED, *plugged())


@cache
def plugged() -> tuple[PackingSchema, ...]:
    """The schemas of installed plug-ins, with guarded functions. UnsupportedError if a name exists already."""
    guarded: dict[str, PackingSchema] = {}
    for schema in plugins(PACKINGS, PackingSchema).values():
        if schema.name in {*guarded, *(shipped.name for shipped in SHIPPED)}:
            raise UnsupportedError(f"a plug-in registers a packing {schema.name!r}, which exists already",
                                   hint=f"uninstall the package that has the module {schema.reader}")  # fmt: skip
        door = guard(schema.name, schema.reader)
        guarded[schema.name] = replace(schema, solve=door(schema.solve), applies=door(schema.applies))
    return tuple(guarded.values())


def any_present(names: Collection[str], ends: Collection[str] | None = None) -> bool:
    """Whether a name has the ending of a schema, which is rare. `ends`: `name_ends` of the names, which are tested
    first, because they are few."""
    parts = _last_parts(tuple(plugins(PACKINGS, PackingSchema)))
    if not any(end.endswith(parts) for end in (name_ends(names) if ends is None else ends)):
        return False
    endings = tuple(schema.suffix for schema in schemas())
    return any(name.endswith(endings) for name in names)


@cache
def _last_parts(plugin_names: tuple[str, ...]) -> tuple[str, ...]:
    """The last parts of schemas' endings, as far as `name_ends` have them. `plugin_names`: the key of the cache."""
    return tuple({schema.suffix.rpartition(".")[2][-NAME_END:] for schema in schemas()})
