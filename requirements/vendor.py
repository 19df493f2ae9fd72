"""Fetches the third-party files of the page of `wb view` with npm: `python requirements/vendor.py`. Their versions and
digests are in vendored.toml."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "src" / "weighbridge" / "page" / "static" / "vendor"


def packages() -> list[dict[str, Any]]:
    """The rows of vendored.toml."""
    return list(tomllib.loads((HERE / "vendored.toml").read_text("utf-8"))["package"])


def fetch(package: dict[str, Any], folder: Path) -> Path:
    """The package's archive, as npm packs it. Exits where its digest is another one."""
    named = f"{package['name']}@{package['version']}"
    done = subprocess.run(["npm", "pack", "--silent", named], cwd=folder, capture_output=True, text=True, check=True)
    archive = folder / done.stdout.split()[-1]
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != package["integrity"]:
        sys.exit(f"{named} is another archive than vendored.toml names")
    return archive


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        for package in packages():
            with tarfile.open(fetch(package, Path(temporary))) as archive:
                for row in package["files"]:
                    member = archive.extractfile(f"package/{row['from']}")
                    assert member is not None, row
                    data = member.read()
                    if hashlib.sha256(data).hexdigest() != row["sha256"]:
                        sys.exit(f"{package['name']}: {row['from']} is another file than vendored.toml names")
                    (TARGET / row["to"]).write_bytes(data)


if __name__ == "__main__":
    main()
