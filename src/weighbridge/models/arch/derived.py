"""Tensors that are computed from the config (`derived` roles of a table), not weights.

These are pure functions from an effective config to f32 values, None if the config needs no such tensor. Bits equal the
reference converter's, which computes each step with torch in f32: each step here is computed in f64 and rounded once,
which for + - * / is exactly the f32 result (53 >= 2 * 24 + 2 bits).
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError
from weighbridge.base.spec import Shape
from weighbridge.models.arch.expand import Expansion, Instance, Sizes, shape_of
from weighbridge.models.arch.tables.expression import evaluate
from weighbridge.models.arch.tables.spec import Role
from weighbridge.models.arch.tables.values import integer, number

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor

_FLOAT: Final = struct.Struct("<f")
#: The number of values that a derived tensor has, among the facts that it is computed from.
LENGTH: Final = "#"
_HEADS: Final = 1 << 16


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
    """2 pi over each frequency. torch computes a scalar over a tensor as `reciprocal() * scalar`."""
    turn = f32(2 * math.pi)
    return [f32(f32(1.0 / f) * turn) for f in _frequencies(base, dim)]


def llama3(base: float, dim: int, factor: float, low: float, high: float, trained: float) -> tuple[float, ...]:
    """The divisor of each rotary frequency: 1 for short waves, `factor` for long ones, a blend in between.

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
    """The divisors for a head of which half rotates, computed in f64 and rounded once; 1 for the other half.

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


_STILL: Final = 1e30  # llama.cpp's divisor for the frequency of a pair that doesn't rotate


def proportional_factors(config: Mapping[str, Any]) -> tuple[float, ...] | None:
    """`rope_freqs.weight` of layers that rotate only a leading share of their pairs, spread over the whole head;
    conversion/gemma.py `Gemma4Model.generate_extra_tensors` (llama.cpp b11549)."""
    rope, half = config.get("rope") or {}, (evaluate("global_head_dim", config) or 0) // 2
    share = number(rope.get("partial_rotary_factor", 1.0), "partial_rotary_factor")
    if not 0 <= share <= 1:
        raise FormatError("is not a share of a head", field="partial_rotary_factor", found=share)
    turning = int(half * share) if rope.get("rope_type") == "proportional" else half
    return (1.0,) * turning + (f32(_STILL),) * (half - turning)


def proportional_parameters(values: Sequence[float], base: float) -> dict[str, Any] | None:
    """The rope parameters with these factors."""
    factors = [f32(v) for v in values]
    turning = factors.count(1.0)
    if not factors or factors != [1.0] * turning + [f32(_STILL)] * (len(factors) - turning):
        return None
    return {"rope_type": "proportional", "partial_rotary_factor": turning / len(values)}


def longrope_factors(key: str, config: Mapping[str, Any]) -> tuple[float, ...] | None:
    """`rope_factors_long.weight` or `rope_factors_short.weight` of a config with a factor per frequency."""
    rope = config.get("rope") or {}
    listed = rope.get(key)
    if not rope.get("long_factor"):
        return None
    dim = evaluate("rope_dim", config) or 0
    if not isinstance(listed, list | tuple) or len(listed) != dim // 2:
        raise FormatError("needs a number for each pair that rotates", field=key, expected=dim // 2, found=listed)
    return tuple(f32(number(value, key)) for value in listed)


_WIDEST: Final = 1 << 16  # embeddings of an audio encoder; published ones have 1,280


def sinusoids(config: Mapping[str, Any]) -> Sequence[float]:
    """The sines and cosines of 1500 positions, one row each, at frequencies from 1 to 1/10000.

    conversion/qwenvl.py `Qwen25AudioModel.generate_extra_tensors` (llama.cpp b11549), whose last bits depend on the
    processor: torch computes its exponentials, sines and cosines in f32 by approximations.
    """
    half = integer(evaluate("audio_config.d_model", config), "audio_config.d_model", 4, _WIDEST) // 2
    step = f32(-math.log(10000) / (half - 1))
    frequencies = [f32(math.exp(f32(step * i))) for i in range(half)]
    out = array("f")
    for time in range(1500):
        angles = [f32(time * frequency) for frequency in frequencies]
        out.extend(map(math.sin, angles))
        out.extend(map(math.cos, angles))
    return out


def query_scale(config: Mapping[str, Any]) -> Sequence[float]:
    """A norm's weights of one number for all elements of a head, by which queries are multiplied."""
    return (f32(number(config.get("qk_scale_factor"), "qk_scale_factor")),) * (evaluate("head_dim", config) or 0)


def alibi_slopes(config: Mapping[str, Any]) -> Sequence[float]:
    """The slope of each head's bias, for the usual largest bias of 8: those of the next power of two, then every other
    one of twice as many heads (modeling_jais.py `_get_alibi_slopes`)."""
    heads = integer(config[LENGTH], "heads", 1, _HEADS)
    power = 1 << heads.bit_length() - 1
    own = [2.0 ** (-8.0 * (n + 1) / power) for n in range(power)]
    between = [2.0 ** (-4.0 * (2 * n + 1) / power) for n in range(heads - power)]
    return [f32(slope) for slope in (*own, *between)]


def ones(config: Mapping[str, Any]) -> Sequence[float]:
    """A norm's weights that change nothing, of a head."""
    return (1.0,) * (evaluate("head_dim", config) or 0)


def _positive(value: Any, key: str) -> float:
    if (result := number(value, key)) <= 0:
        raise FormatError("is not positive", field=key, found=result)
    return result


def llama3_parameters(values: Sequence[float], base: float, compute: Llama3 = llama3) -> dict[str, Any] | None:
    """The rope parameters with exactly these factors, or None. This tensor is a GGUF's only trace of llama3 scaling, so
    restoring a config means finding parameters and checking them bit by bit."""
    dim, factor = 2 * len(values), max(values, default=0.0)
    if not factor > 1 or factor == math.inf:
        return None
    factors = tuple(f32(v) for v in values)
    turning = factors[: len(factors) // 2] if compute is llama3_half else factors
    for low, high, trained in _candidates(turning, base, factor):
        if 0 < low <= high and trained > 0 and compute(base, dim, factor, low, high, trained) == factors:
            return {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                    "original_max_position_embeddings": int(trained)}  # fmt: skip
    return None


def _candidates(values: Sequence[float], base: float, factor: float) -> Iterator[tuple[float, float, float]]:
    """Likely (low, high, trained length): the usual ones (Llama 3's blend, Llama 4's step), then those determined by
    two points of the blend."""
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


MAKERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Sequence[float] | None]]] = MappingProxyType(
    {
        "llama3_factors": partial(llama3_factors, llama3),
        "llama3_half_factors": partial(llama3_factors, llama3_half),
        "proportional_factors": proportional_factors,
        "proportional_only": lambda config: (
            proportional_factors(config) if config["rope"]["rope_type"] == "proportional" else None
        ),
        "longrope_long_factors": partial(longrope_factors, "long_factor"),
        "sinusoids": sinusoids,
        "alibi_slopes": alibi_slopes,
        "query_scale": query_scale,
        "ones": ones,
        "longrope_short_factors": partial(longrope_factors, "short_factor"),
    }
)


# The inverses: the parameters from `rope_freqs.weight` and the base frequency; None if there are none.
RESTORED: Final[Mapping[str, Callable[[Sequence[float], float], dict[str, Any] | None]]] = MappingProxyType(
    {
        "llama3_factors": llama3_parameters,
        "llama3_half_factors": partial(llama3_parameters, compute=llama3_half),
        "proportional_factors": proportional_parameters,
        "proportional_only": proportional_parameters,
    }
)


#: Derived roles whose numbers are all one setting of the config, and its key; None: always 1.
SETTINGS: Final = MappingProxyType({"query_scale": "qk_scale_factor", "ones": None})


def made(
    row: Role, shape: Shape, sizes: Sizes, indices: Iterable[tuple[int, ...]] = ((),)
) -> dict[Instance, LogicalTensor]:
    """The tensors of a derived role, the same for all these indices; empty if the config needs none."""
    if (values := MAKERS[row.derived or ""]({**sizes.facts, LENGTH: math.prod(shape)})) is None:
        return {}
    if len(values) != math.prod(shape):
        raise FormatError("needs a number for each pair of a head", field=row.derived, expected=math.prod(shape),
                          found=len(values))  # fmt: skip
    import numpy as np

    from weighbridge.tensors.nodes import const

    node = const(np.array(values, dtype="<f4").reshape(shape), F32)
    return {(row.name, index): node for index in indices}


def filled_in(
    dialect: str, rows: Mapping[str, Role], expansion: Expansion, sizes: Sizes, roles: Mapping[Instance, LogicalTensor],
    tied: Mapping[str, str],
) -> dict[Instance, LogicalTensor]:  # fmt: skip
    """The tensors that a dialect holds though no source has them: copies of others in the layer, which nothing computes
    with, or copies of a role (`tied`), and zeros for roles that are absent altogether."""
    copied = {**tied} | {row.name: row.copies for row in rows.values() if row.copies}
    zeroed = {row.name for row in rows.values() if dialect in row.zeros}
    if not copied and not zeroed:
        return {}
    from weighbridge.tensors.nodes import zeros

    instances = [instance for place in expansion.places.values() for instance in place.instances]
    sources = {(role, index): (copied[role] or "", index) for role, index in instances if role in copied}
    absent = zeroed - {role for role, index in instances if (role, index) in roles}
    shapes = {role: shape_of(rows[role], sizes) for role in absent & {role for role, _ in instances}}
    empty = {instance: zeros(shapes[instance[0]], F32) for instance in instances if instance[0] in absent}
    return {instance: roles[source] for instance, source in sources.items() if source in roles} | empty
