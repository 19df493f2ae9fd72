"""Values as JSON data."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any


def plain(value: Any) -> Any:
    """`value` as JSON data: dataclasses, structs and mappings become objects, other iterables arrays, enums their
    value, bytes hexadecimal, numbers that JSON lacks the strings `NaN`, `Infinity`, `-Infinity`."""
    if value is None or (isinstance(value, (bool, int, str)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if isinstance(value, Enum):
        return plain(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.repr}
    if (names := getattr(value, "__struct_fields__", None)) is not None:  # of msgspec, without importing it
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # a numpy scalar or array, without importing numpy
        return plain(value.tolist())
    if isinstance(value, Iterable):
        return [plain(v) for v in value]
    return str(value)
