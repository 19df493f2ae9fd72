"""The rules in the model states of a ZeRO checkpoint that join tensor-parallel parts (`universal_checkpoint_info`).

    affine_map                                  the place of each block of a weight, in the whole and in the parts
    tp_replicated_parameter_patterns            whole weights
    parameter_to_average_patterns               averages of the parts
    parameter_with_2_sub_params_cat_dim_0       two equal parts, one after the other, each cut by rows
    parameter_with_sub_params                   several, of the sizes in `sub_param_shard_widths`
    parameter_with_row_parallelism_patterns     cut by columns
    vocabulary_parameter_patterns               padded after `original_vocab_size` rows

All others are cut by rows. Patterns are regular expressions of names. Those of AutoTP name one weight each; those of
Megatron-DeepSpeed have numbers of layers. Reference: merge_tp_slices in deepspeed/checkpoint/ds_to_universal.py of
DeepSpeed 0.19.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import PART_PATTERNS
from weighbridge.base.words import plural

#: The key of the rules in model states.
RULES: Final = "universal_checkpoint_info"
_AFFINE: Final = "affine_map"
_AFFINE_VERSION: Final = 1
#: The first version of the rules that has the widths of sub-parameters.
WIDTHS_SINCE: Final = 0.4
# Texts with `\d+`; a dot, also one without a backslash, is a dot.
_SIMPLE: Final = re.compile(r"\^?(?:[A-Za-z_.-]|\\d\+(?!\d|\\d)|\\[^\w\s$^]|\d)*\$?", re.ASCII)
_NUMBER: Final = r"\d+"

V = TypeVar("V")


class PatternTable(Generic[V]):
    """Values by patterns of names. Patterns of one name are looked up, so many of them cost no more than few."""

    def __init__(self, rows: Iterable[tuple[Any, V]], path: str) -> None:
        self.names: dict[str, V] = {}
        self.patterns: list[tuple[re.Pattern[str], V]] = []
        for pattern, value in rows:
            if not isinstance(pattern, str) or not _SIMPLE.fullmatch(pattern):
                raise UnsupportedError(f"{path}: the pattern {str(pattern)[:80]!r} in {RULES}")
            bare = pattern.removeprefix("^").removesuffix("$")
            parts = [re.sub(r"\\(.)", r"\1", part) for part in bare.split(_NUMBER)]
            if len(parts) == 1 and pattern.endswith("$"):
                self.names.setdefault(parts[0], value)
            else:
                text = _NUMBER.join(map(re.escape, parts)) + (r"\Z" if pattern.endswith("$") else "")
                self.patterns.append((re.compile(text, re.ASCII), value))
        if len(self.patterns) > PART_PATTERNS:
            raise UnsupportedError(f"{path}: {plural(len(self.patterns), 'pattern')} in {RULES}")

    def find(self, name: str) -> V | None:
        """The value of the first pattern that the name begins with."""
        if name in self.names:
            return self.names[name]
        return next((value for pattern, value in self.patterns if pattern.match(name)), None)

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None


class SubParameters(NamedTuple):
    """The sub-parameters of a weight along `axis`. `sizes`: of each, or their number if they are equal; `widths`: of
    each, those of the parts; None if these are equal. `shape`: of the weight; -1 for one unknown axis."""

    axis: int
    shape: tuple[int, ...]
    sizes: tuple[int, ...] | int
    widths: tuple[tuple[int, ...], ...] | None


class PartRules(NamedTuple):
    """How weights are joined from their tensor-parallel parts, by name. `rows`: of a vocabulary, without its padding;
    `refused`: names and reasons."""

    maps: PatternTable[Mapping[str, Any]]
    whole: PatternTable[bool]
    averages: PatternTable[bool]
    halves: PatternTable[bool]
    sub_parameters: PatternTable[SubParameters]
    columns: PatternTable[bool]
    vocabulary: PatternTable[bool]
    refused: PatternTable[str]
    rows: int | None


def part_rules(value: Any, path: str) -> PartRules | None:
    """The rules in `universal_checkpoint_info`; None without it."""
    if not isinstance(value, dict):
        return None

    def table(key: str) -> PatternTable[bool]:
        return PatternTable(((pattern, True) for pattern in _listed(value.get(key))), path)

    affine, refused = value.get(_AFFINE) or {}, value.get("autotp_unsupported_parameter_patterns") or {}
    for name, found in ((_AFFINE, affine), ("autotp_unsupported_parameter_patterns", refused)):
        if not isinstance(found, dict):
            raise FormatError("not a dict, as DeepSpeed saves", path=path, field=f"{RULES}.{name}")
    if (version := affine.get("version", _AFFINE_VERSION)) != _AFFINE_VERSION:
        raise UnsupportedError(f"{path}: version {version!r} of {_AFFINE}")
    maps = affine.get("params") or {}
    rows = value.get("original_vocab_size")
    return PartRules(
        PatternTable(maps.items() if isinstance(maps, dict) else [(None, {})], path),
        table("tp_replicated_parameter_patterns"), table("parameter_to_average_patterns"),
        table("parameter_with_2_sub_params_cat_dim_0"), PatternTable(_sub_parameters(value, path), path),
        table("parameter_with_row_parallelism_patterns"), table("vocabulary_parameter_patterns"),
        PatternTable(((pattern, str(reason)[:200]) for pattern, reason in refused.items()), path),
        rows if type(rows) is int else None,
    )  # fmt: skip


def _sub_parameters(info: Mapping[Any, Any], path: str) -> Iterable[tuple[Any, SubParameters]]:
    version, widths = info.get("universal_checkpoint_version", 0), info.get("sub_param_shard_widths") or {}
    for saved in _listed(info.get("parameter_with_sub_params")):
        found: dict[Any, Any] = saved if isinstance(saved, dict) else {}
        shape, axis = found.get("shape"), found.get("partition_dim")
        good = isinstance(shape, list | tuple) and type(axis) is int and 0 <= axis < len(shape)
        whole = [sum(n) if _numbers(n) else n for n in shape] if good and shape else []
        if (
            not (good and shape and type(axis) is int)
            or not all(type(n) is int and n >= -1 for n in whole)
            or whole.count(-1) > 1
            or whole[axis] < 1
            or (shape[axis] == whole[axis] > PART_PATTERNS)  # a number of sub-parameters
        ):
            raise FormatError("not the shape of sub-parameters", path=path, field=RULES, found=repr(saved)[:120])
        sizes = tuple(shape[axis]) if _numbers(shape[axis]) else whole[axis]
        for pattern in _listed(found.get("patterns")):
            cut = widths.get(pattern) if isinstance(widths, dict) else None
            recent = isinstance(version, int | float) and version >= WIDTHS_SINCE
            if not isinstance(cut, list | tuple) or not all(map(_numbers, cut)):
                cut = ()
            if recent and not cut:
                raise FormatError("no widths of sub-parameters", path=path, field=f"{RULES}.{str(pattern)[:120]}")
            yield pattern, SubParameters(axis, tuple(whole), sizes, tuple(map(tuple, cut)) if recent else None)


def _numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(type(n) is int and n >= 0 for n in value)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [] if value is None else [value]
