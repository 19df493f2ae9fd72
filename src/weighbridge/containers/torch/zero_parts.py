"""Tensor-parallel parts of a ZeRO checkpoint's weights, and the rules in its model states that join them.

Megatron-DeepSpeed saves lists of patterns of names under `universal_checkpoint_info`. Reference: merge_tp_slices in
deepspeed/checkpoint/ds_to_universal.py of DeepSpeed 0.19.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Entry

#: The key of the rules in model states.
RULES: Final = "universal_checkpoint_info"
# The lists of patterns: whole weights, cut by columns, two equal parts, vocabularies, averages of the parts.
_PATTERNS: Final = (
    "tp_replicated_parameter_patterns", "parameter_with_row_parallelism_patterns",
    "parameter_with_2_sub_params_cat_dim_0", "vocabulary_parameter_patterns", "parameter_to_average_patterns",
)  # fmt: skip
_SUB_PARAMETERS: Final = "parameter_with_sub_params"
_SIMPLE: Final = re.compile(r"(?:[A-Za-z_.-]|\\d\+(?!\d)|\\\.|\d)*", re.ASCII)


class ZeroPiece(NamedTuple):
    """`length` elements of a stored tensor from element `start` on; `file`: the number of the index that has it."""

    file: int
    entry: Entry
    start: int
    length: int


class ZeroWeight(NamedTuple):
    """A whole weight, or its tensor-parallel part. `stored`: the type of its pieces, which are read as `spec.dtype`."""

    spec: Spec
    stored: DType
    pieces: tuple[ZeroPiece, ...]


class JoinedWeight(NamedTuple):
    """A whole weight of tensor-parallel parts along an axis; None if the first part is whole. `sections`: sizes along
    the axis of each part's sections, which are joined one by one. `spec` may have fewer rows than the parts: those
    after it are padding."""

    spec: Spec
    axis: int | None
    sections: tuple[int, ...]
    parts: tuple[ZeroWeight, ...]


class PartRules(NamedTuple):
    """The names of the weights that aren't cut by rows into tensor-parallel parts. `rows`: of a vocabulary, without
    its padding."""

    whole: re.Pattern[str]
    columns: re.Pattern[str]
    halves: re.Pattern[str]
    vocabulary: re.Pattern[str]
    unknown: re.Pattern[str]
    rows: int | None


def part_rules(value: Any, path: str) -> PartRules | None:
    """The rules in `universal_checkpoint_info`, lists of patterns; None without it."""
    if not isinstance(value, dict):
        return None
    shapes = (shape for shape in _listed(value.get(_SUB_PARAMETERS)) if isinstance(shape, dict))
    apart = [pattern for shape in shapes for pattern in _listed(shape.get("patterns"))]
    whole, columns, halves, vocabulary, average = (_listed(value.get(key)) for key in _PATTERNS)
    rows = value.get("original_vocab_size")
    return PartRules(
        _pattern(whole, path), _pattern(columns, path), _pattern(halves, path), _pattern(vocabulary, path),
        _pattern([*average, *apart], path), rows if type(rows) is int else None,
    )  # fmt: skip


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [] if value is None else [value]


def _pattern(patterns: Sequence[Any], path: str) -> re.Pattern[str]:
    """Names that begin like one of `patterns`, which are regular expressions: texts with `\\d+`, whose dots are dots.
    Others are refused, because matching them may take exponential time."""
    out = []
    for pattern in patterns:
        if not isinstance(pattern, str) or not _SIMPLE.fullmatch(pattern):
            raise UnsupportedError(f"{path}: the pattern {str(pattern)[:80]!r} in {RULES}")
        out.append(r"\d+".join(re.escape(part.replace("\\.", ".")) for part in pattern.split(r"\d+")))
    return re.compile("|".join(out) if out else r"(?!)", re.ASCII)


def whole(weight: ZeroWeight) -> JoinedWeight:
    return JoinedWeight(weight.spec, None, (), (weight,))


def joined_parts(name: str, parts: Sequence[ZeroWeight], rules: PartRules, path: str) -> JoinedWeight:
    """A weight of tensor-parallel parts."""
    spec = parts[0].spec
    if any((part.spec, part.stored) != (spec, parts[0].stored) for part in parts):
        raise FormatError("tensor-parallel parts have different shapes", path=path, field=name,
                          found=[list(part.spec.shape) for part in parts[:8]])  # fmt: skip
    if rules.whole.match(name):
        return whole(parts[0])
    if rules.unknown.match(name):
        raise UnsupportedError(f"{path}: {name} is an average of its tensor-parallel parts, or has sub-parameters")
    halves = 2 if rules.halves.match(name) else 1
    axis = 1 if halves == 1 and rules.columns.match(name) else 0
    if axis >= len(spec.shape) or spec.shape[axis] % halves:
        raise FormatError("not a shape of tensor-parallel parts", path=path, field=name, found=str(spec))
    joined = (*spec.shape[:axis], spec.shape[axis] * len(parts), *spec.shape[axis + 1 :])
    rows = joined[0] if rules.rows is None or not rules.vocabulary.match(name) else rules.rows
    if rows != joined[0] and not 0 < rows <= joined[0]:
        raise FormatError("more rows than the vocabulary's parts have", path=path, field=name, expected=rows,
                          found=joined[0])  # fmt: skip
    sections = (spec.shape[axis] // halves,) * halves
    return JoinedWeight(spec.with_shape(rows, *joined[1:]), axis, sections, tuple(parts))
