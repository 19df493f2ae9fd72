"""The models of an organisation on the Hub, each at its present commit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from weighbridge import __version__
from weighbridge.adapters.remote.extra import check_online, package
from weighbridge.base.errors import RemoteError

_OWNER: Final = re.compile(r"hf://([A-Za-z0-9][A-Za-z0-9._-]*)/?")


def owner_of(source: str) -> str | None:
    """The organisation or user of `hf://ORG`; None for any other address."""
    match = _OWNER.fullmatch(source)
    return match[1] if match else None


def models_of(owner: str) -> Iterator[str]:
    """Yields the URLs `hf://ORG/NAME@COMMIT`, sorted by name. Raises RemoteError if they can't be listed."""
    check_online(f"hf://{owner}")
    hub = package("huggingface_hub", "listing models of the Hub")
    api = hub.HfApi(library_name="weighbridge", library_version=__version__)
    try:
        found = {info.id: info.sha for info in api.list_models(author=owner, full=True)}
    except (OSError, hub.errors.HfHubHTTPError) as error:
        words = next(iter(str(error).splitlines()), type(error).__name__)
        raise RemoteError(f"hf://{owner}: {words}", hint="check the name, and log in with `hf auth login`") from None
    for name, commit in sorted(found.items()):
        yield f"hf://{name}@{commit}" if commit else f"hf://{name}"
