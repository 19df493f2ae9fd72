"""Blocks that files share, on real file systems: btrfs and XFS in images, where they can be made and mounted."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import system
from tests.reports.test_stores import twins

from weighbridge.cli.main import main
from weighbridge.io.extents import extents
from weighbridge.reports.stores.duplicates import dedupe, usage

MAKE = {"btrfs": ("mkfs.btrfs", "-q"), "xfs": ("mkfs.xfs", "-q", "-m", "reflink=1")}
IMAGE = 400 << 20  # sparse; XFS takes no less than 300 MB


@pytest.fixture(scope="module", params=MAKE)
def mounted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    kind = str(request.param)
    folder = tmp_path_factory.mktemp(kind)
    maker, *options = MAKE[kind]
    make, mount, unmount = map(system.require, (maker, "mount", "umount"))
    image, point = folder / "image", folder / "mounted"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE)
    try:
        for words in ([make, *options, str(image)], [mount, "-o", "loop", str(image), str(point)]):
            subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"NOT CHECKED: no {kind} can be made and mounted here: {error}")
    yield point
    subprocess.run([unmount, "-l", str(point)], check=True)


@pytest.fixture
def folder(mounted: Path) -> Iterator[Path]:
    made = mounted / "m"
    made.mkdir()
    yield made
    shutil.rmtree(made)


def used(folder: Path) -> int:
    os.sync()
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


@pytest.mark.parametrize("size", [24 << 20, (2 << 20) + 123])
def test_files_of_the_same_bytes_share_their_blocks(size: int, folder: Path) -> None:
    """The kernel compares and shares; a tail that fills no block is shared too."""
    a, b = twins(folder, size)
    data, before = a.read_bytes(), used(folder)
    report = dedupe([folder])
    assert [(row.how, row.bytes) for row in report.shared] == [("reflink", size)]
    assert (a.read_bytes(), b.read_bytes()) == (data, data)
    assert a.stat().st_ino != b.stat().st_ino
    assert extents(a) == extents(b)
    if size > 16 << 20:  # less is lost in the file system's own blocks
        assert before - used(folder) > size // 2
    b.write_bytes(b"other")
    assert a.read_bytes() == data


def test_what_shares_its_blocks_is_no_duplicate_and_counts_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, _ = twins(folder)
    os.sync()
    assert usage([folder]).bytes == 2 * a.stat().st_size
    dedupe([folder])
    report = usage([folder])
    assert (report.duplicates, report.bytes, report.usage[0].files) == ((), a.stat().st_size, 2)
    assert dedupe([folder]).shared == ()
    assert main(["dedupe", str(folder), "--yes"]) == 0
    assert "nothing is stored twice" in capsys.readouterr().out


def test_bytes_that_differ_are_left_alone(folder: Path) -> None:
    """A store may call files of other bytes by one digest: the kernel compares them."""
    files = [folder / name / "blobs" / f"sha256-{'c' * 64}" for name in ("a", "b")]
    for number, file in enumerate(files):
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes([number]) * (2 << 20))
    os.sync()
    (row,) = dedupe([folder], hard_link=True).shared
    assert (row.how, row.why) == ("not shared", "the bytes differ")
    assert [file.read_bytes()[0] for file in files] == [0, 1]
