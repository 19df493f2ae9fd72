"""A JSON file that is needed as it should be: decoded, or a FormatError with its name. (Reports forgive: `beside`.)"""

from __future__ import annotations

from typing import Any

import msgspec

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import CONFIG_JSON


def decode(data: bytes, name: str, kind: Any = Any, limit: int = CONFIG_JSON) -> Any:
    """`data` as JSON of type `kind`."""
    if len(data) > limit:
        raise FormatError("the file is too large", path=name, expected=f"<= {limit} bytes", found=len(data))
    try:
        return msgspec.json.decode(data, type=kind)
    except ValueError as error:  # msgspec's errors, text that isn't UTF-8, numbers beyond 4300 digits
        raise FormatError(f"no such JSON as is needed: {error}", path=name) from error
    except RecursionError as error:
        raise FormatError("JSON is nested too deeply", path=name) from error
