"""Which files a scan meets below a folder, and links that lead out of it: told, never followed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.reports.scan import vectors as v

import weighbridge
from weighbridge.cli.main import main
from weighbridge.reports.scan import walk
from weighbridge.reports.scan.model import FileReport, ScanReport, ScanVerdict

RULE = "scan/link-outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder to scan, beside one whose files are none of its business."""
    (tmp_path / "model" / "a").mkdir(parents=True)
    (tmp_path / "model" / "a" / "good.pkl").write_bytes(v.GOOD)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "evil.pkl").write_bytes(v.EVIL)
    return tmp_path / "model"


def by_name(report: ScanReport, root: Path) -> dict[str, FileReport]:
    return {os.path.relpath(f.path, root): f for f in report.files}


# Name of the link, where it leads (from the folder it lies in).
OUTWARD: dict[str, tuple[str, str]] = {
    "a file": ("link.pkl", "../elsewhere/evil.pkl"),
    "a folder": ("link", "../elsewhere"),
    "a file of the system": ("link.pkl", os.path.abspath(os.sep + os.path.join("etc", "passwd"))),
    "nothing": ("link.pkl", "../nowhere/at/all"),
    "the folder above": ("a/up", "../.."),
    "a name that begins like the folder's": ("link.pkl", "../model-2/x.pkl"),
    "a device": ("link.pkl", os.devnull),
}
INWARD: dict[str, tuple[str, str]] = {
    "a file": ("link.pkl", "a/good.pkl"),
    "a file by a way outside": ("link.pkl", "../model/a/good.pkl"),
    "a folder": ("link", "a"),
    "the folder itself": ("a/link", ".."),
}


@pytest.mark.parametrize("case", OUTWARD)
def test_links_outward_are_told_and_not_followed(case: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, target = OUTWARD[case]
    (root / name).symlink_to(target)
    opened: list[str] = []
    real: Callable[..., int] = os.open

    def watched(path: object, *rest: object, **more: object) -> int:
        opened.append(str(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", watched)
    report = weighbridge.scan(root)
    found = by_name(report, root)
    link = found.pop(os.path.join(*name.split("/")))
    assert [(f.rule, f.verdict) for f in link.findings] == [(RULE, ScanVerdict.MALFORMED)]
    assert (link.verdict, link.complete, link.nbytes, link.kind) == (ScanVerdict.MALFORMED, False, 0, "link")
    assert target in link.findings[0].message
    assert [(n, f.verdict) for n, f in found.items()] == [(os.path.join("a", "good.pkl"), ScanVerdict.DATA_ONLY)]
    assert (report.verdict, report.complete, report.unreadable) == (ScanVerdict.MALFORMED, False, 0)
    assert {os.path.basename(p) for p in opened if p.startswith(str(root.parent))} <= {"good.pkl"}


@pytest.mark.parametrize("case", INWARD)
def test_links_inside_are_no_finding(case: str, root: Path) -> None:
    name, target = INWARD[case]
    (root / name).symlink_to(target)
    report = weighbridge.scan(root)
    assert (report.verdict, report.complete) == (ScanVerdict.DATA_ONLY, True)
    assert report.scanned == (2 if name == "link.pkl" else 1)


def test_a_chain_of_links_that_ends_outside(root: Path) -> None:
    (root / "first.pkl").symlink_to("second.pkl")
    (root / "second.pkl").symlink_to("../elsewhere/evil.pkl")
    found = by_name(weighbridge.scan(root), root)
    assert [[f.rule for f in found[n].findings] for n in ("first.pkl", "second.pkl")] == [[RULE], [RULE]]


def test_links_that_go_in_a_circle_end(root: Path) -> None:
    (root / "x.pkl").symlink_to("y.pkl")
    (root / "y.pkl").symlink_to("x.pkl")
    report = weighbridge.scan(root)
    assert (report.scanned, report.unreadable) == (3, 2)


def test_what_the_caller_names_is_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "to-folder").symlink_to(root)
    (tmp_path / "to-file").symlink_to(root / "a" / "good.pkl")
    report = weighbridge.scan(tmp_path / "to-folder", tmp_path / "to-file")
    assert (report.verdict, report.scanned, report.complete) == (ScanVerdict.DATA_ONLY, 2, True)


def test_a_snapshot_of_the_hub_s_cache_is_whole(tmp_path: Path) -> None:
    """As huggingface_hub lays it out: snapshots/<commit>/<file> -> ../../blobs/<digest>."""
    cache = tmp_path / "models--some--model"
    snapshot = cache / "snapshots" / ("0" * 40)
    (snapshot / "unet").mkdir(parents=True)
    (cache / "blobs").mkdir()
    (cache / "blobs" / "ab12").write_bytes(v.EVIL)
    (cache / "blobs" / "cd34").write_bytes(v.GOOD)
    (snapshot / "model.pkl").symlink_to("../../blobs/ab12")
    (snapshot / "unet" / "model.pkl").symlink_to("../../../blobs/cd34")
    report = weighbridge.scan(snapshot)
    assert [f.verdict for f in report.files] == [ScanVerdict.DANGEROUS, ScanVerdict.DATA_ONLY]
    assert not [f for f in report.files if RULE in {x.rule for x in f.findings}]
    (snapshot / "token").symlink_to("../../../token")
    assert RULE in {x.rule for f in weighbridge.scan(snapshot).files for x in f.findings}


def test_the_command_tells_of_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "link\x1b[31m.pkl").symlink_to("../elsewhere/ev\x1b[32mil.pkl")
    assert main(["scan", str(root)]) == 1
    out = capsys.readouterr().out
    assert "outside the folder" in out
    assert "\x1b[3" not in out
    assert main(["scan", str(root), "--fail-on", "dangerous"]) == 1
    assert main(["scan", str(root), "--fail-on", "dangerous", "--allow-unscanned"]) == 0


def test_a_folder_without_files_is_not_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not weighbridge.scan(tmp_path).complete
    assert main(["scan", str(tmp_path)]) == 1
    assert "no files" in capsys.readouterr().out
    assert main(["scan", str(tmp_path), "--allow-unscanned"]) == 0


# ---- faults -----------------------------------------------------------------------------------------------------


def told(root: Path) -> tuple[ScanVerdict, bool, int]:
    report = weighbridge.scan(root)
    return report.verdict, report.complete, report.scanned


@pytest.mark.mutation
@pytest.mark.parametrize("case", OUTWARD)
def test_without_the_rule_it_would_be_followed_or_passed_over(
    case: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, target = OUTWARD[case]
    (root / name).symlink_to(target)
    right = told(root)
    monkeypatch.setattr(walk, "is_inside", lambda path, own: True)
    assert told(root) != right


@pytest.mark.mutation
@pytest.mark.parametrize("case", INWARD)
def test_where_every_link_were_one_outward(case: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, target = INWARD[case]
    (root / name).symlink_to(target)
    right = told(root)
    monkeypatch.setattr(walk, "is_inside", lambda path, own: False)
    assert told(root) != right
