"""All packing schemas that can be read, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from typing import Final

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.plugins import PACKINGS, guard, plugins
from weighbridge.packings.schema.affine import AFFINE
from weighbridge.packings.schema.awq import AWQ
from weighbridge.packings.schema.base import Group, Member, PackingSchema, Solution
from weighbridge.packings.schema.bitplanes import BITNET, HQQ
from weighbridge.packings.schema.bitsandbytes import BNB_4BIT, BNB_INT8
from weighbridge.packings.schema.comfy import COMFY
from weighbridge.packings.schema.compressed import INT8, PACKED
from weighbridge.packings.schema.ggml import GGML_NVFP4
from weighbridge.packings.schema.gptq import GPTQ
from weighbridge.packings.schema.microscaled import COMPRESSED_FP4, GPT_OSS, MLX_FLOATS, MODELOPT_NVFP4, SCALE_FP4
from weighbridge.packings.schema.scaled_float import FP8, MLX_FP8
from weighbridge.packings.schema.torchao import TORCHAO

SHIPPED: Final = (
    COMFY, AFFINE, GPTQ, AWQ, GGML_NVFP4, MLX_FLOATS, *GPT_OSS, COMPRESSED_FP4, SCALE_FP4, MODELOPT_NVFP4, PACKED, INT8,
    HQQ, BITNET, *FP8, MLX_FP8, *BNB_4BIT, BNB_INT8, *TORCHAO,
)  # fmt: skip


_TILE: Final = 16  # rows and columns of EXL3's tiles


def _solve_exl3(group: Group) -> Solution:
    tiles = group.specs["codes"].shape
    group.need(len(tiles) == 3 and tiles[2] % _TILE == 0, "trellis is misshapen", "[in / 16, out / 16, 16 * bits]")
    return Solution((tiles[1] * _TILE, tiles[0] * _TILE), tiles[2] // _TILE)


# EXL3 (exllamav3/modules/quant/exl3.py): codes of K bits on a trellis, P.trellis I16 [in / 16, out / 16, 16 * K], and
# signs and scales of rotated columns and rows, P.suh and P.svh F16 (older: P.su, P.sv, packed signs).
EXL3: Final = PackingSchema(
    "exl3", "exl3", "exl3",
    {"codes": Member(".trellis", (BY_NAME["I16"],))},
    key="codes", solve=_solve_exl3, reader="", ignored=(".suh", ".svh", ".su", ".sv", ".mcg", ".mul1"),
)  # fmt: skip
#: Schemas whose weights are counted and not decoded.
COUNTED: Final = (EXL3,)


def schemas() -> tuple[PackingSchema, ...]:
    """The shipped schemas, then those of installed plug-ins."""
    return (*SHIPPED, *plugged())


@cache
def plugged() -> tuple[PackingSchema, ...]:
    """The schemas of installed plug-ins, with guarded functions. UnsupportedError if a name exists already."""
    guarded: dict[str, PackingSchema] = {}
    for schema in plugins(PACKINGS, PackingSchema).values():
        if schema.name in {*guarded, *(shipped.name for shipped in (*SHIPPED, *COUNTED))}:
            raise UnsupportedError(f"a plug-in registers a packing {schema.name!r}, which exists already",
                                   hint=f"uninstall the package that has the module {schema.reader}")  # fmt: skip
        door = guard(schema.name, schema.reader)
        guarded[schema.name] = replace(schema, solve=door(schema.solve), applies=door(schema.applies))
    return tuple(guarded.values())


def any_present(names: Collection[str]) -> bool:
    """Whether a name has the ending of a schema, which is rare. Tests the last parts of the names ("weight", "bias")
    first, because they are few."""
    parts = "\0".join((*{name.rpartition(".")[2] for name in names}, ""))
    for ending in _last_parts(tuple(plugins(PACKINGS, PackingSchema))):
        if ending in parts:
            break
    else:
        return False
    endings = tuple(schema.suffix for schema in schemas())
    return any(name.endswith(endings) for name in names)


@cache
def _last_parts(plugin_names: tuple[str, ...]) -> tuple[str, ...]:
    """The last parts of schemas' endings, each with a NUL. `plugin_names`: the key of the cache."""
    return tuple({f"{schema.suffix.rpartition('.')[2]}\0" for schema in schemas()})
