"""Checks of numbers that a config or a GGUF states. A wrong one is a FormatError that names its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from weighbridge.base.errors import FormatError

INT_MAX: Final = (1 << 31) - 1
N = TypeVar("N", int, float)
_F32_LEAST, _F32_MOST = 2.0**-126, 2.0**127


def integer(value: Any, key: str, low: int = 0, most: int = INT_MAX) -> int:
    """A size from `low` to `most`; a bool, a fraction or a negative number is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= most:
        raise FormatError("is not a size", field=key, expected=f"an integer from {low} to {most}", found=repr(value))
    return value


def number(value: Any, key: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        raise FormatError("is not a number", field=key, expected="a finite number", found=repr(value))
    return float(value)


def positive(value: Any, key: str) -> float:
    """A finite number above zero."""
    if (found := number(value, key)) <= 0:
        raise FormatError("is not positive", field=key, expected="a number above 0", found=value)
    return found


def sizes_by_layer(keys: Sequence[str], values: Mapping[str, Any], count: int) -> tuple[int, ...]:
    """The size of each layer under the first key that is there: a list, or one number for all."""
    key = next((key for key in keys if values.get(key) is not None), keys[0])
    stated = values.get(key)
    listed = [stated] * count if isinstance(stated, int) else stated
    if not isinstance(listed, Sequence) or isinstance(listed, str) or len(listed) != count or not count:
        raise FormatError("hasn't a size for each layer", field=key, expected=count, found=repr(stated)[:80])
    return tuple(integer(size, key) for size in listed)


def one_value(found: set[N], key: str, default: N | None = None) -> N:
    """The only member of a set, or `default` of an empty one."""
    if len(found) > 1:
        raise FormatError("varies by layer, which this family's table doesn't describe", field=key)
    return found.pop() if found or default is None else default


def multiplier(source: str, values: Mapping[str, Any]) -> float:
    """The number that a key, or `key[2]` of a list, multiplies weights by. A null is 1, as classes take it. FormatError
    for what no weight can be multiplied by and divided by again in F32."""
    key, _, index = source.rstrip("]").partition("[")
    value = values.get(key)
    if value is None and key in values:
        return 1.0
    if index and (not isinstance(value, list | tuple) or len(value) <= int(index)):
        raise FormatError("hasn't a number for each part", field=key, expected=f"{int(index) + 1} or more", found=value)
    factor = number(value[int(index)] if index and value is not None else value, source)
    if not _F32_LEAST <= abs(factor) <= _F32_MOST:
        raise FormatError("is no multiplier of weights", field=source, expected="an F32 that isn't zero", found=factor)
    return factor
