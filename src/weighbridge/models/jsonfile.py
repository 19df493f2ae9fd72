"""A JSON file that is needed as it should be: decoded, or a FormatError with its name. (Reports forgive: `beside`.)"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import CONFIG_JSON

# An integer that no double holds, where a value may stand: whoever computes with it fails.
_LONG: Final = re.compile(rb"(?<=[\s:,\[])-?\d{309,}(?=[\s,\]}])")


def oversized(data: bytes) -> str | None:
    """What is wrong with a number of some JSON that no program computes with; None where there is none."""
    match = _LONG.search(data)
    return f"an integer of {len(match[0].lstrip(b'-'))} digits at byte {match.start()}" if match else None


def decode(data: bytes, name: str, kind: Any = Any, limit: int = CONFIG_JSON) -> Any:
    """`data` as JSON of type `kind`."""
    if len(data) > limit:
        raise FormatError("the file is too large", path=name, expected=f"<= {limit} bytes", found=len(data))
    if (why := oversized(data)) is not None:
        raise FormatError(f"no such JSON as is needed: {why}", path=name)
    try:
        return msgspec.json.decode(data, type=kind)
    except ValueError as error:  # msgspec's errors, text that isn't UTF-8, numbers beyond 4300 digits
        raise FormatError(f"no such JSON as is needed: {error}", path=name) from error
    except RecursionError as error:
        raise FormatError("JSON is nested too deeply", path=name) from error
