"""Checks numbers of a config or a GGUF. A wrong one is a FormatError that names its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from weighbridge.base.errors import FormatError

Config = Mapping[str, Any]
INT_MAX: Final = (1 << 31) - 1
N = TypeVar("N", int, float)
_F32_LEAST, _F32_MOST = 2.0**-126, 2.0**127


def integer(value: Any, key: str, low: int = 0, most: int = INT_MAX) -> int:
    """An integer from `low` to `most`; a bool or a fraction is a FormatError."""
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
    if (result := number(value, key)) <= 0:
        raise FormatError("is not positive", field=key, expected="a number above 0", found=value)
    return result


def sizes_by_layer(keys: Sequence[str], values: Mapping[str, Any], count: int) -> tuple[int, ...]:
    """The size of each layer under the first key that is present: a list, or one number for all."""
    key = next((key for key in keys if values.get(key) is not None), keys[0])
    stated = values.get(key)
    listed = [stated] * count if isinstance(stated, int) else stated
    if not isinstance(listed, Sequence) or isinstance(listed, str) or len(listed) != count or not count:
        raise FormatError("needs a size per layer", field=key, expected=count, found=repr(stated)[:80])
    return tuple(integer(size, key) for size in listed)


def one_value(values: set[N], key: str, default: N | None = None) -> N:
    """The only member of a set, or `default` for an empty one."""
    if len(values) > 1:
        raise FormatError("varies by layer, which this family's table doesn't describe", field=key)
    return values.pop() if values or default is None else default


def multiplier(source: str, values: Mapping[str, Any]) -> float:
    """The multiplier of weights under a key, or in a list under `key[2]`. null means 1, as in the classes.
    FormatError for a number that weights can't be multiplied and divided by in F32."""
    key, _, index = source.rstrip("]").partition("[")
    value = values.get(key)
    if value is None and key in values:
        return 1.0
    if index and (not isinstance(value, list | tuple) or len(value) <= int(index)):
        raise FormatError("needs a number per part", field=key, expected=f"{int(index) + 1} or more", found=value)
    factor = number(value[int(index)] if index and value is not None else value, source)
    if not _F32_LEAST <= abs(factor) <= _F32_MOST:
        raise FormatError(
            "is not a multiplier of weights", field=source, expected="an F32 that isn't zero", found=factor
        )
    return factor
