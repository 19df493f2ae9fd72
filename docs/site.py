"""A hook of MkDocs for `make site`: links to files outside of the docs, which the site lacks, become plain text."""

from __future__ import annotations

import re
from typing import Any, Final

_OUTSIDE: Final = re.compile(r"\[([^\]]*)\]\(\.\./[^)\s]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for each page."""
    return _OUTSIDE.sub(r"\1", markdown)
