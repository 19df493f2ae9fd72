"""What a file system can hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.system import posix_only

from weighbridge.io import filesystem

MOUNTS = """\
/dev/vda / ext4 rw 0 0
/dev/sdb1 /media/stick vfat rw 0 0
/dev/sdc1 /media/with\\040space msdos rw 0 0
/dev/sdd1 /media/stick/inner ext4 rw 0 0
tmpfs /twice tmpfs rw 0 0
/dev/sde1 /twice vfat rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "largest"),
    [
        ("/models/model.gguf", None),
        ("/media/stick/model.gguf", 2**32 - 1),
        ("/media/stick", 2**32 - 1),
        ("/media/sticky/model.gguf", None),
        ("/media/with space/a", 2**32 - 1),
        ("/media/stick/inner/a", None),
        ("/twice/a", 2**32 - 1),
    ],
)
@posix_only
def test_the_nearest_mount_counts(
    path: str, largest: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)
    monkeypatch.setattr(filesystem, "_MOUNTS", tmp_path / "mounts")
    assert filesystem.largest_file(path) == largest


def test_without_a_list_of_mounts_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "_MOUNTS", tmp_path / "none")
    assert filesystem.largest_file(tmp_path) is None
