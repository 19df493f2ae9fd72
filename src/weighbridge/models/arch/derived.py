"""Tensors that are no weights but follow from the config; architecture tables name them with `make`.

Pure functions from an effective config to f32 values, None where the config doesn't call for the tensor. Bits equal the
reference converter's, whose arithmetic is torch's in f32, step by step: each step here is computed in f64 and rounded
once, which for + - * / gives exactly the f32 result (53 >= 2 * 24 + 2 bits).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.spec import Shape
from weighbridge.models.arch.expand import Expansion, Instance, Sizes, shape_of
from weighbridge.models.arch.tables.expression import evaluate
from weighbridge.models.arch.tables.spec import Role
from weighbridge.models.arch.tables.values import number

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor

_FLOAT: Final = struct.Struct("<f")


def f32(value: float) -> float:
    """The nearest f32."""
    try:
        return float(_FLOAT.unpack(_FLOAT.pack(value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _frequencies(base: float, dim: int) -> list[float]:
    """base^(-i/dim) for each rotary pair."""
    base = f32(base)
    return [f32(1.0 / f32(base ** f32(i / dim))) for i in range(0, dim, 2)]


def _wavelengths(base: float, dim: int) -> list[float]:
    """2 pi over each frequency. A scalar over a tensor is `reciprocal() * scalar` in torch."""
    turn = f32(2 * math.pi)
    return [f32(f32(1.0 / f) * turn) for f in _frequencies(base, dim)]


def llama3(base: float, dim: int, factor: float, low: float, high: float, trained: float) -> tuple[float, ...]:
    """The divisor of each rotary frequency: 1 for short waves, `factor` for long ones, between them a blend.

    conversion/llama.py `generate_extra_tensors` (llama.cpp b11549).
    """
    shortest, longest = f32(trained / high), f32(trained / low)
    values = []
    for wave in _wavelengths(base, dim):
        if wave < shortest:
            values.append(1.0)
        elif wave > longest:
            values.append(f32(factor))
        else:
            smooth = f32(f32(f32(f32(1.0 / wave) * f32(trained)) - f32(low)) / f32(high - low)) if high != low else 0.0
            values.append(f32(1.0 / f32(f32(f32(1.0 - smooth) / f32(factor)) + smooth)))
    return tuple(values)


def llama3_half(base: float, dim: int, factor: float, low: float, high: float, trained: float) -> tuple[float, ...]:
    """The same of a head of which half rotates, computed in f64 and rounded once; 1 for the other half.

    conversion/step3.py `generate_extra_tensors` (llama.cpp b11549).
    """
    values = []
    for frequency in _frequencies(base, dim // 2):
        wave = 2 * math.pi / frequency
        if wave < trained / high:
            values.append(1.0)
        elif wave > trained / low:
            values.append(f32(factor))
        else:
            smooth = (trained / wave - low) / (high - low) if high != low else 0.0
            values.append(f32(1.0 / ((1.0 - smooth) / factor + smooth)))
    return (*values, *[1.0] * (dim // 2 - len(values)))


Llama3 = Callable[[float, int, float, float, float, float], tuple[float, ...]]


def llama3_factors(compute: Llama3, config: Mapping[str, Any]) -> tuple[float, ...] | None:
    """`rope_freqs.weight` of a config whose rope type is llama3."""
    rope = config.get("rope") or {}
    if str(rope.get("rope_type", "")).lower() != "llama3":
        return None
    dim = evaluate("head_dim", config) or evaluate("hidden_size // num_attention_heads", config) or 0
    keys = (("rope_theta", 10000.0), ("factor", 8.0), ("low_freq_factor", 1.0), ("high_freq_factor", 4.0))
    base, factor, low, high = (_positive(rope.get(key, default), key) for key, default in keys)
    trained = _positive(rope.get("original_max_position_embeddings", 8192), "original_max_position_embeddings")
    return compute(base, dim, factor, low, high, trained)


_STILL: Final = 1e30  # what llama.cpp divides the frequency of a pair by that isn't to turn


def proportional_factors(config: Mapping[str, Any]) -> tuple[float, ...] | None:
    """`rope_freqs.weight` of layers that turn a leading share of their pairs, spread over the whole head, and leave the
    others as they are; conversion/gemma.py `Gemma4Model.generate_extra_tensors` (llama.cpp b11549)."""
    rope, half = config.get("rope") or {}, (evaluate("global_head_dim", config) or 0) // 2
    share = number(rope.get("partial_rotary_factor", 1.0), "partial_rotary_factor")
    if not 0 <= share <= 1:
        raise FormatError("is no share of a head", field="partial_rotary_factor", found=share)
    turning = int(half * share) if rope.get("rope_type") == "proportional" else half
    return (1.0,) * turning + (f32(_STILL),) * (half - turning)


def proportional_parameters(values: Sequence[float], base: float) -> dict[str, Any] | None:
    """The rope parameters that give these factors."""
    found = [f32(v) for v in values]
    turning = found.count(1.0)
    if not found or found != [1.0] * turning + [f32(_STILL)] * (len(found) - turning):
        return None
    return {"rope_type": "proportional", "partial_rotary_factor": turning / len(values)}


def longrope_factors(key: str, config: Mapping[str, Any]) -> tuple[float, ...] | None:
    """`rope_factors_long.weight` or `rope_factors_short.weight` of a config that scales each frequency by its own."""
    rope = config.get("rope") or {}
    listed = rope.get(key)
    if not rope.get("long_factor"):
        return None
    dim = evaluate("rope_dim", config) or 0
    if not isinstance(listed, list | tuple) or len(listed) != dim // 2:
        raise FormatError("is not one number for each pair that rotates", field=key, expected=dim // 2, found=listed)
    return tuple(f32(number(value, key)) for value in listed)


def _positive(value: Any, key: str) -> float:
    if (result := number(value, key)) <= 0:
        raise FormatError("is not positive", field=key, found=result)
    return result


def llama3_parameters(values: Sequence[float], base: float, compute: Llama3 = llama3) -> dict[str, Any] | None:
    """The rope parameters that give exactly these factors, or None. A GGUF describes llama3 scaling by this tensor
    alone, so restoring a config means finding parameters and proving them bit by bit."""
    dim, factor = 2 * len(values), max(values, default=0.0)
    if not factor > 1 or factor == math.inf:
        return None
    want = tuple(f32(v) for v in values)
    turning = want[: len(want) // 2] if compute is llama3_half else want
    for low, high, trained in _candidates(turning, base, factor):
        if 0 < low <= high and trained > 0 and compute(base, dim, factor, low, high, trained) == want:
            found = {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high}
            return {**found, "original_max_position_embeddings": int(trained)}
    return None


def _candidates(values: Sequence[float], base: float, factor: float) -> Iterator[tuple[float, float, float]]:
    """Likely (low, high, trained length): the usual ones (Llama 3's blend, Llama 4's step), then those that two points
    of the blend determine."""
    yield from product((1.0,), (4.0, 1.0), (8192.0, *(float(1 << n) for n in range(4, 21) if n != 13)))
    waves = _wavelengths(base, 2 * len(values))
    blend = [(1.0 / w, (1 / v - 1 / factor) / (1 - 1 / factor)) for w, v in zip(waves, values, strict=True)
             if 1 < v < factor]  # fmt: skip
    if len(blend) > 1:  # smooth = (trained / wave - low) / (high - low): a line over 1 / wave
        (x0, y0), (x1, y1) = blend[0], blend[-1]
        slope = (y1 - y0) / (x1 - x0)
        start = y0 - slope * x0
        for low in (1.0, 0.5, 1.5, 2.0, 3.0, 4.0) if start < 0 else ():
            width = -low / start
            yield low, low + round(width, 3), float(round(slope * width))


MAKERS: Final[Mapping[str, Callable[[Mapping[str, Any]], tuple[float, ...] | None]]] = MappingProxyType(
    {
        "llama3_factors": partial(llama3_factors, llama3),
        "llama3_half_factors": partial(llama3_factors, llama3_half),
        "proportional_factors": proportional_factors,
        "longrope_long_factors": partial(longrope_factors, "long_factor"),
        "longrope_short_factors": partial(longrope_factors, "short_factor"),
    }
)


# The inverse, from `rope_freqs.weight`: the parameters, given the base frequency; None where there are none.
RESTORED: Final[Mapping[str, Callable[[Sequence[float], float], dict[str, Any] | None]]] = MappingProxyType(
    {
        "llama3_factors": llama3_parameters,
        "llama3_half_factors": partial(llama3_parameters, compute=llama3_half),
        "proportional_factors": proportional_parameters,
    }
)


def made(row: Role, shape: Shape, sizes: Sizes) -> dict[Instance, LogicalTensor]:
    """The tensor of a role that follows from the config; none where none is needed."""
    if (values := MAKERS[row.derived or ""](sizes.facts)) is None:
        return {}
    import numpy as np

    from weighbridge.base.dtypes import F32
    from weighbridge.tensors.nodes import const

    return {(row.name, ()): const(np.array(values, dtype="<f4").reshape(shape), F32)}


def filled_in(
    dialect: str, rows: Mapping[str, Role], expansion: Expansion, sizes: Sizes, roles: Mapping[Instance, LogicalTensor]
) -> dict[Instance, LogicalTensor]:
    """What a dialect has all the same where no tensor is given: copies of others, and zeros."""
    return {**_copied(rows, expansion, roles), **_absent_zeros(dialect, rows, expansion, sizes, roles)}


def _copied(
    rows: Mapping[str, Role], expansion: Expansion, roles: Mapping[Instance, LogicalTensor]
) -> dict[Instance, LogicalTensor]:
    """The tensors that repeat others of their layer, where none is given."""
    of = {row.name: row.copies for row in rows.values() if row.copies}
    places = expansion.places.values() if of else ()
    named = [(role, (of[role] or "", index)) for place in places for role, index in place.instances if role in of]
    return {(role, other[1]): roles[other] for role, other in named if other in roles}


def _absent_zeros(
    dialect: str, rows: Mapping[str, Role], expansion: Expansion, sizes: Sizes, roles: Container[Instance]
) -> dict[Instance, LogicalTensor]:
    """Zeros for the roles that nothing computes with, that a dialect has all the same, and of which none is given."""
    wanted = {row.name for row in rows.values() if dialect in row.zeros}
    if not wanted:
        return {}
    from weighbridge.base.dtypes import F32
    from weighbridge.tensors.nodes import zeros

    places = (place for place in expansion.places.values() if not wanted.isdisjoint(place.roles))
    named = [instance for place in places for instance in place.instances if instance[0] in wanted]
    given = {role for role, index in named if (role, index) in roles}
    shapes = {role: shape_of(rows[role], sizes) for role, _ in named}
    return {instance: zeros(shapes[instance[0]], F32) for instance in named if instance[0] not in given}
