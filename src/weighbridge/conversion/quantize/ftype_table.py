"""The rules of ftypes.toml as typed rows. `ftypes.py` applies them; the file types are in `base/ftypes.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from weighbridge.base.dtypes import BY_NAME, DType
from weighbridge.base.ftypes import FILE_TYPES, FileType
from weighbridge.base.imports.tables import read_table
from weighbridge.base.records import dataclass


class TypeRule(NamedTuple):
    """A row of `mix` or `lift`: a tensor that matches every column gets `type`. An empty column matches all."""

    type: DType
    role: frozenset[str]
    ftype: frozenset[str]
    part: tuple[str, ...]
    when: tuple[str, ...]
    barred: frozenset[str]
    only_from: frozenset[str]


class LargeModel(NamedTuple):
    """The number of layers for which the reference treats an architecture as a 70B model."""

    layers: int
    unless: tuple[str, ...]


@dataclass(frozen=True, eq=False, slots=True)
class FtypeRules:
    """The content of ftypes.toml. Compared by identity, so that it can be a cache key."""

    ftypes: Mapping[str, FileType]
    kept_names: frozenset[str]
    kept_parts: tuple[str, ...]
    kept_in: Mapping[str, tuple[str, ...]]
    roles: tuple[tuple[str, frozenset[str], tuple[str, ...]], ...]
    large_models: Mapping[str, LargeModel]
    mix: tuple[TypeRule, ...]
    lift: tuple[TypeRule, ...]
    fallback: Mapping[str, DType]
    needs_imatrix: frozenset[str]
    needs_imatrix_in: Mapping[str, frozenset[str]]


@cache
def table() -> FtypeRules:
    """The parsed rules."""
    return build_table(read_table(__file__, "ftypes.toml"))


def build_table(raw: Mapping[str, Any], ftypes: Mapping[str, FileType] = FILE_TYPES) -> FtypeRules:
    """The rules in a parsed ftypes.toml. Raises KeyError for an unknown dtype."""

    def rules(rows: Sequence[Mapping[str, Any]]) -> Iterator[TypeRule]:
        for row in rows:
            role, ftype, barred, only_from = (frozenset(row.get(c, ())) for c in ("role", "ftype", "except", "from"))
            part, when = tuple(row.get("part", ())), tuple(row.get("when", ()))
            yield TypeRule(BY_NAME[row["type"]], role, ftype, part, when, barred, only_from)

    keep = raw["keep"]
    return FtypeRules(
        ftypes=ftypes,
        kept_names=frozenset(keep["names"]),
        kept_parts=tuple(keep["parts"]),
        kept_in={arch: tuple(parts) for arch, parts in keep["architecture"].items()},
        roles=tuple((row["is"], frozenset(row.get("whole", ())), tuple(row.get("part", ()))) for row in raw["role"]),
        large_models={
            arch: LargeModel(row["layers"], tuple(row.get("unless", ()))) for arch, row in raw["large"].items()
        },
        mix=tuple(rules(raw["mix"])),
        lift=tuple(rules(raw["lift"])),
        fallback={name: BY_NAME[smaller] for name, smaller in raw["fallback"].items()},
        needs_imatrix=frozenset(raw["imatrix"]["types"]),
        needs_imatrix_in={name: frozenset(types) for name, types in raw["imatrix"]["in_ftype"].items()},
    )
