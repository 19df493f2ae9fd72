"""Programs and libraries that some tests need and pip can't install. Without one, its tests are skipped.

Tests look for them only here, so that `make test` passes on a machine that has none of them. Its last line counts the
skipped tests and names the packages to install; `python -m tests.system` lists what is missing.
"""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

#: Modes, fifos and signals of POSIX, or Windows imitated where it isn't.
posix_only: Final = pytest.mark.skipif(os.name != "posix", reason="of POSIX only")


class Part(NamedTuple):
    install: str
    tests: str  # what can't be tested without it


PARTS: Final = {
    "libfuse": Part("Debian's fuse3, and access to /dev/fuse", "wb mount"),
    "nginx": Part("Debian's nginx-light", "reading from nginx"),
    "chromium": Part("Debian's chromium", "the page of wb view in a browser"),
    "node": Part("Debian's nodejs", "the extension for VS Code"),
    "npm": Part("Debian's npm", "the page that runs inside a browser"),
    "azurite-blob": Part("npm install --global azurite", "uploads to Azurite"),
    "mkfs.btrfs": Part("Debian's btrfs-progs", "shared blocks on btrfs"),
    "mkfs.xfs": Part("Debian's xfsprogs", "shared blocks on XFS"),
    "mount": Part("Debian's mount", "full disks and other file systems"),
    "umount": Part("Debian's mount", "full disks and other file systems"),
    "setpriv": Part("Debian's util-linux", "unreadable folders, if root runs the tests"),
    "sha256sum": Part("GNU coreutils", "lists of wb hash with sha256sum"),
    "g++": Part("Debian's g++", "files against those of llama-quantize"),
    "bash": Part("Debian's bash", "completion in bash"),
    "zsh": Part("Debian's zsh", "completion in zsh"),
    "fish": Part("Debian's fish", "completion in fish"),
}
#: Packages that load a part when imported, and raise OSError if it is missing.
PACKAGES: Final = {"mfusepy": "libfuse"}


def program(name: str) -> str | None:
    """Path of a program. Looks also in the `sbin` next to each `bin`: on Debian it isn't on a user's PATH."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    beside = [str(Path(folder).with_name("sbin")) for folder in folders if Path(folder).name == "bin"]
    return shutil.which(name, path=os.pathsep.join([*folders, *beside]))


def _fuse() -> str | None:
    """Path of fusermount3, if a file system can be mounted with it."""
    usable = os.access("/dev/fuse", os.R_OK | os.W_OK) and any(map(ctypes.util.find_library, ("fuse3", "fuse")))
    return program("fusermount3") if usable else None


def find(name: str) -> str | None:
    return _fuse() if name == "libfuse" else program(name)


def unchecked(name: str) -> str:
    return f"NOT CHECKED: {PARTS[name].tests} ({name} is missing: {PARTS[name].install})"


_UNCHECKED: Final = re.compile(r"NOT CHECKED: .* \((\S+) is missing: ")


def summarize(reasons: Iterable[str]) -> str:
    """One line: the number of skipped tests (a module counts once) and what to install. Empty if no part was missing.

    reasons: those of all skipped tests; a reason that no missing part caused isn't counted."""
    missing = Counter(found[1] for found in map(_UNCHECKED.search, reasons) if found)
    if not missing:
        return ""
    counts = ", ".join(f"{name} {count}" for name, count in sorted(missing.items()))
    install = "; ".join(dict.fromkeys(PARTS[name].install for name in sorted(missing)))
    return f"NOT CHECKED: {missing.total()} tests need a part of the system ({counts}); to run them, install {install}"


def require(name: str) -> str:
    """Path of a part. Without it the test that calls this is skipped; so is a module that calls it at its top."""
    path = find(name)
    if path is None:
        pytest.skip(unchecked(name), allow_module_level=True)
    return path


def require_package(name: str) -> Any:
    """A package of `PACKAGES`. The caller is skipped if the package or its part is missing."""
    require(PACKAGES[name])
    return pytest.importorskip(name, reason=unchecked(PACKAGES[name]))


if __name__ == "__main__":
    print("\n".join(unchecked(name) for name in PARTS if find(name) is None) or "nothing is missing")
