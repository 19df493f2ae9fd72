"""User names and passwords of web servers (RFC 7617): from an address, http://USER:PASSWORD@HOST/..., or from ~/.netrc
(or the file that NETRC names). They are kept in memory for one origin and appear in no message."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from weighbridge.adapters.remote.connections import WebOrigin, origin_of
from weighbridge.base.errors import UsageError
from weighbridge.io.location import split_credentials

_ADVICE: Final = "write http://USER:PASSWORD@HOST/..., or put the user and the password into ~/.netrc"
_given: Final[dict[WebOrigin, str]] = {}


class Credentials(NamedTuple):
    """Headers for one origin, and the next step if it denies access."""

    headers: Mapping[str, str]
    advice: str


def without_credentials(text: str) -> str:
    """The address without its user and password, which are kept for its server."""
    address, user = split_credentials(text)
    if user is not None:
        try:
            _given[origin_of(address)] = user
        except ValueError as error:
            raise UsageError(f"{address}: no valid address: {error}", hint="check it") from None
    return address


def credentials_for(origin: WebOrigin) -> Credentials:
    """Returns the credentials for a server from a URL or ~/.netrc."""
    if (given := _given.get(origin)) is not None:
        user, _, password = given.partition(":")
        return Credentials(_basic(unquote(user), unquote(password)), "check the user and the password in the address")
    named = os.environ.get("NETRC")
    path = Path(named) if named else Path.home() / ".netrc"
    if not path.is_file():
        return Credentials({}, _ADVICE)
    try:
        # Without a name netrc also checks that only its owner can read the file.
        found = netrc(named).authenticators(origin.host)
    except (NetrcParseError, OSError, UnicodeDecodeError) as error:
        why = error.msg if isinstance(error, NetrcParseError) else str(error)
        return Credentials({}, f"{path} can't be used: {why}")
    if found is None:
        return Credentials({}, f"{path} has no entry for {origin.host}: add one, or {_ADVICE.partition(',')[0]}")
    return Credentials(_basic(found[0], found[2] or ""), f"check the entry for {origin.host} in {path}")


def _basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
