"""Values of small stored tensors."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from weighbridge.base.errors import FormatError
from weighbridge.packings.schema.base import Group

_CODES: Final = MappingProxyType({"I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B"})


def integers(group: Group, role: str) -> list[int]:
    """The values of a setting: a tensor of 1 to 8 integers. FormatError for anything else."""
    spec = group.specs[role]
    code = _CODES.get(spec.dtype.name, "")
    group.need(code and 0 < spec.elements <= 8, "a setting isn't an integer", "integers", spec)
    return list(struct.unpack(f"<{spec.elements}{code}", group.values[role]))


def json_object(text: bytes | str, what: str, name: str) -> Mapping[str, Any]:
    """Parses a JSON object. FormatError if the text isn't one."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise FormatError(f"{what} isn't JSON: {error}", field=name) from None
