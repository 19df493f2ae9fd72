"""README's links for those who read it elsewhere: a package index shows README without the repository around it.

The address is `Source` of `[project.urls]` in pyproject.toml: pages are below `Source/blob/VERSION/`, pictures below
`Source/raw/VERSION/`. Without it nothing changes, and `release/wheels.py --upload` refuses.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Final

PICTURES: Final = (".png", ".svg", ".jpg", ".gif", ".webp")
#: The end of a link to a file of the repository.
RELATIVE: Final = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")
CODE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def address(folder: Path) -> str:
    """Where the files of this version are, or "": the project has no public address."""
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    source = project.get("urls", {}).get("Source", "").rstrip("/")
    return f"{source}/{{kind}}/v{project['version']}/" if source else ""


def relative_links(text: str) -> list[str]:
    return [link for prose in CODE.split(text)[::2] for link in RELATIVE.findall(prose)]


def absolute(text: str, address: str) -> str:
    """A text whose links to files of the repository are addresses."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found[1].endswith(PICTURES) else "blob"
        return f"]({address.format(kind=kind)}{found[1]})"

    parts = CODE.split(text)  # prose and code in turn
    parts[::2] = [RELATIVE.sub(link, prose) for prose in parts[::2]]
    return "".join(parts)


def rewrite(folder: Path) -> None:
    """Makes the links of README.md in `folder` absolute, if the project has an address."""
    if where := address(folder):
        path = folder / "README.md"
        path.write_text(absolute(path.read_text("utf-8"), where), "utf-8")


if __name__ == "__main__":
    rewrite(Path(sys.argv[1]))
