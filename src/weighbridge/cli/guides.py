"""The pages of the docs for `wb help TOPIC`. Wheels contain them; an editable install reads those of its checkout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import UsageError
from weighbridge.cli.render import echo, pairs

_PACKAGE: Final = Path(__file__).parents[1]
#: The folders that may hold the pages: a wheel's, a checkout's.
PLACES: Final = (_PACKAGE / "docs", _PACKAGE.parents[1] / "docs")
LIST: Final = "topics"
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\(([^)\s]*)\)")
_CODE: Final = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
_COMMENT: Final = re.compile(r"<!--.*?-->\n*", re.DOTALL)


def topics() -> Mapping[str, Path]:
    """Pages by topic, the file's name without suffix. Empty if the installation has none."""
    folder = next((place for place in PLACES if place.is_dir()), None)
    pages = sorted(folder.glob("*.md")) if folder else ()
    return MappingProxyType({page.stem: page for page in pages})


def topic_of(source: str) -> str | None:
    """The topic of a page (`docs/claims.md`) or of its tests (`tests/docs/test_claims.py::test_x`). None otherwise."""
    found = re.match(r"(?:docs/|tests/docs/test_)([\w-]+)\.(?:md|py)", source)
    return found[1] if found else None


def read(topic: str) -> str:
    """The text of a page. Links to other pages become commands, other relative links plain text. Raises UsageError for
    an unknown topic."""
    pages = topics()
    page = pages.get(topic) or pages.get(f"guide-{topic}")
    if page is None:
        from difflib import get_close_matches

        near = get_close_matches(topic, pages, 3)
        raise UsageError(f"unknown topic {topic!r}", hint=" or ".join(f"wb help {n}" for n in near or [LIST]))
    parts = _CODE.split(_COMMENT.sub("", page.read_text("utf-8")))  # every second part is a code block
    return "".join(part if i % 2 else _LINK.sub(_link, part) for i, part in enumerate(parts))


def _link(link: re.Match[str]) -> str:
    words, target = link[1], link[2].partition("#")[0]
    if "://" in target:
        return link[0]
    is_page = target.endswith(".md") and "/" not in target
    return f"{words} (wb help {target.removesuffix('.md')})" if is_page else words


def show(topic: str) -> None:
    """Prints a page, or all topics with their titles."""
    if topic == LIST:
        pairs((name, page.read_text("utf-8").partition("\n")[0].lstrip("# ")) for name, page in topics().items())
    else:
        for line in read(topic).splitlines():
            echo(line)
