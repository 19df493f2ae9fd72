"""The scan as a whole: what is walked, what is told, in which order, at which cost; the command, its codes; SARIF."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.reports.scan import vectors as v

import weighbridge
from weighbridge.base.limits import MIB, SCAN_DEPTH
from weighbridge.cli.main import main
from weighbridge.io.source import BytesSource, Source
from weighbridge.reports.scan import engine, model
from weighbridge.reports.scan.engine import fold, reports, scan_source
from weighbridge.reports.scan.model import RULES, Budget, MemberPath, ScanVerdict, Use, escape
from weighbridge.reports.scan.sarif import sarif

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / "good.pkl").write_bytes(v.GOOD)
    (tmp_path / "b" / "evil.pt").write_bytes(
        v.plain_zip(("x/data.pkl", v.GOOD), ("x/a.zip", v.plain_zip(("y", v.EVIL))))
    )
    (tmp_path / "b" / "unknown.pkl").write_bytes(v.p(v.call("my.models", "make")))
    (tmp_path / "cut.pkl").write_bytes(v.GOOD[:-1])
    (tmp_path / "x.7z").write_bytes(b"7z\xbc\xaf\x27\x1c" + bytes(40))
    return tmp_path


# ---- reports ----


def test_verdicts_of_files_and_the_folder(folder: Path) -> None:
    report = weighbridge.scan(folder)
    verdicts = {os.path.relpath(f.path, folder): f.verdict.value for f in report.files}
    assert verdicts == {
        "cut.pkl": "malformed",
        "good.pkl": "data-only",
        "x.7z": "not-scanned",
        os.path.join("b", "evil.pt"): "dangerous",
        os.path.join("b", "unknown.pkl"): "unknown-code",
    }
    assert (report.verdict, report.complete, report.scanned) == (ScanVerdict.DANGEROUS, False, 5)
    assert dict(report.counts) == {
        "not-scanned": 1,
        "unproven": 0,
        "data-only": 1,
        "unknown-code": 1,
        "malformed": 1,
        "dangerous": 1,
    }


def test_a_finding_names_its_place_in_every_archive_and_in_the_file(folder: Path) -> None:
    (file,) = weighbridge.scan(folder / "b" / "evil.pt").files
    finding, note = file.findings
    assert (note.rule, note.members) == ("pickle/torch-load", finding.members)
    assert finding.members == ("x/a.zip", "y")
    assert (finding.opcode, finding.name, finding.use, finding.arguments) == (
        "REDUCE",
        "os.system",
        Use.CALLED,
        ("'cmd'",),
    )
    at = v.EVIL.index(b"R", 2)
    assert finding.offset == at
    assert (folder / "b" / "evil.pt").read_bytes()[(finding.file_offset or 0) - at :].startswith(v.EVIL)
    assert "program" in finding.consequence


def test_in_a_deflated_member_there_is_no_place_in_the_file() -> None:
    report = scan_source(BytesSource(v.plain_zip(("x/data.pkl", v.EVIL), method=8)), "x")
    assert report.findings[0].file_offset is None


def test_the_order_is_the_same_whatever_the_folder_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = [f.path for f in reports([folder])]
    walk = os.walk

    def backwards(*args: Any, **options: Any) -> Iterator[tuple[str, list[str], list[str]]]:
        for base, folders, names in walk(*args, **options):
            folders.reverse()
            yield base, folders, names[::-1]

    monkeypatch.setattr(os, "walk", backwards)
    assert [f.path for f in reports([folder])] == first
    assert [os.path.basename(p) for p in first] == ["cut.pkl", "good.pkl", "x.7z", "evil.pt", "unknown.pkl"]


def test_unreadable_files_are_told_and_counted(folder: Path) -> None:
    (folder / "gone.bin").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe.bin")
    report = weighbridge.scan(folder)
    missed = {os.path.basename(f.path): f.skipped[0].why for f in report.files if f.kind in ("unreadable", "special")}
    assert report.unreadable == 1
    assert "No such file" in missed["gone.bin"]
    assert "not a regular file" in missed["pipe.bin"]


def test_a_path_that_is_none() -> None:
    with pytest.raises(FileNotFoundError):
        weighbridge.scan("/nowhere/at/all")


def test_what_can_not_be_looked_into_is_not_called_data(tmp_path: Path) -> None:
    inner = v.plain_zip(("a.7z", b"7z\xbc\xaf\x27\x1c" + bytes(40)))
    report = scan_source(BytesSource(inner), "x")
    assert (report.verdict, report.complete) == (ScanVerdict.NOT_SCANNED, False)
    both = scan_source(BytesSource(v.plain_zip(("a.7z", b"7z\xbc\xaf\x27\x1c" + bytes(40)), ("b", v.GOOD))), "x")
    assert (both.verdict, both.complete) == (ScanVerdict.DATA_ONLY, False)


def test_of_very_many_files_only_those_that_found_something_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SCAN_FILES", 3)
    plain = scan_source(BytesSource(v.GOOD), "good")
    evil = scan_source(BytesSource(v.EVIL), "evil")
    report = fold((), [*[plain] * 10, *[evil] * 10])
    assert [f.path for f in report.files] == ["good"] * 3 + ["evil"] * 3
    assert (report.scanned, report.counts["data-only"], report.counts["dangerous"]) == (20, 10, 10)


# ---- budgets ----


def nested(depth: int) -> bytes:
    data = v.EVIL
    for _ in range(depth):
        data = v.plain_zip(("x", data))
    return data


def test_archives_in_archives_are_followed_so_far() -> None:
    deep = scan_source(BytesSource(nested(SCAN_DEPTH - 1)), "x")
    assert deep.verdict is ScanVerdict.DANGEROUS
    report = scan_source(BytesSource(nested(SCAN_DEPTH + 1)), "x")
    assert (report.verdict, report.complete) == (ScanVerdict.UNPROVEN, False)
    assert {f.rule for f in report.findings} == {"scan/limit"}


def test_members_and_bytes_are_bounded() -> None:
    budget = Budget(nbytes=100, members=2)
    budget.spend(60, 1)
    with pytest.raises(model.OverLimit, match="bytes"):
        budget.spend(60)
    budget.spend(40, 1)
    with pytest.raises(model.OverLimit, match="members"):
        budget.spend(0, 1)


def test_a_deflated_bomb_ends_as_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget.__init__, "__defaults__", (MIB, 100, 100))
    report = scan_source(BytesSource(v.plain_zip(("x/data.pkl", v.p(b"N0" * 2 * MIB + b"N")), method=8)), "x")
    assert report.verdict is ScanVerdict.UNPROVEN
    assert not report.complete


def test_of_too_many_findings_the_worst_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget.__init__, "__defaults__", (MIB, 100, 3))
    names = b"".join(v.g("m", f"n{i}") + b"0" for i in range(10))
    report = scan_source(BytesSource(v.p(names + v.SYSTEM)), "x")
    assert (len(report.findings), report.more, report.verdict) == (3, 9, ScanVerdict.DANGEROUS)


class Counting(Source):
    """A source that counts the bytes that are read."""

    def __init__(self, inner: Source) -> None:
        self.inner, self.name, self.size, self.count = inner, inner.name, inner.size, 0

    def _readinto(self, offset: int, out: memoryview) -> int:
        self.count += len(out)
        return self.inner._readinto(offset, out)


def test_of_a_large_checkpoint_only_the_pickle_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "model.pt"
    generator = torch.Generator().manual_seed(1)
    torch.save({f"w{i}": torch.randn(1 << 20, generator=generator) for i in range(16)}, path)
    source = Counting(BytesSource(path.read_bytes()))
    assert scan_source(source, "x").verdict is ScanVerdict.DATA_ONLY
    assert source.count < MIB < source.size / 16


def test_a_broken_pickle_without_a_magic_is_known_by_its_name() -> None:
    cut = b"(dp0\nS'a'\np1\nI1\n\xff"
    report = scan_source(BytesSource(cut), "x.pkl")
    assert (report.verdict, [f.rule for f in report.findings]) == (ScanVerdict.MALFORMED, ["pickle/not-one"])
    assert scan_source(BytesSource(cut), "notes.txt").findings == ()


def test_numbers_are_not_taken_for_pickles() -> None:
    """Random bytes in storages, some of which begin with what opcodes and magics begin with."""
    rng = random.Random(3)
    starts = [b"\x80\x02", b"\x80\x04", b"cos\n", b"(", b"}", b"c", b"MZ", b"#!", b"I1\n", b"N0"]
    for _ in range(40):
        parts = [(f"x/data/{i}", rng.choice(starts) * (i % 2) + rng.randbytes(64)) for i in range(100)]
        report = scan_source(BytesSource(v.plain_zip(("x/data.pkl", v.GOOD), *parts)), "x")
        assert (report.verdict, report.findings, report.complete) == (ScanVerdict.DATA_ONLY, (), True)


def test_many_calls_of_one_name_are_one_finding() -> None:
    report = scan_source(BytesSource(v.p(v.SYSTEM + (b"0" + v.SYSTEM) * 99)), "x")
    finding, note = report.findings
    assert finding.message == "os.system is called, 100 times"
    assert "refuses the file: os.system is not on its list" in note.message


# ---- any bytes ----


@examples(150)
@given(st.binary(max_size=300), st.sampled_from([b"", b"\x80\x02", b"\x80\x04", b"PK\3\4", b"cos\n"]))
def test_any_bytes_give_a_report(data: bytes, start: bytes) -> None:
    report = scan_source(BytesSource(start + data), "x")
    assert all(f.rule in RULES for f in report.findings)


@examples(150)
@given(st.data())
def test_a_payload_is_seen_wherever_a_pickle_has_it(data: st.DataObject) -> None:
    """Steps that leave the stack as it is, in front of the payload and behind it, change nothing."""
    quiet = [
        b"N0",
        b"K\x010",
        b"]0",
        b"(1",
        b"(K\x01K\x02t0",
        v.s("text") + b"0",
        b"}" + v.s("a") + b"Ns0",
        v.HOOKS + b"0",
    ]
    before = b"".join(data.draw(st.lists(st.sampled_from(quiet), max_size=20)))
    after = b"".join(data.draw(st.lists(st.sampled_from(quiet), max_size=20)))
    broken = data.draw(st.sampled_from([b".", b"", b"\xff", b"t", b"."]))
    report = scan_source(BytesSource(b"\x80\x02" + before + v.SYSTEM + after + broken), "x")
    assert report.verdict is ScanVerdict.DANGEROUS
    assert report.findings[0].name == "os.system"


# ---- words ----


def test_nothing_of_a_file_reaches_the_report_unescaped() -> None:
    name = "m\x1b[31m\u202e" + "x" * 500
    report = scan_source(BytesSource(v.plain_zip((name, v.p(v.g("a\x07b\u202e", "f" * 999))))), "x")
    text = json.dumps([(f.message, f.name, f.members, f.arguments) for f in report.findings], ensure_ascii=False)
    assert text.isprintable()
    assert max(len(f.name or "") for f in report.findings) < 200


def test_shown() -> None:
    assert escape("a\x1b\u202e\U000e0001b") == "a\\x1b\\u202e\\U000e0001b"
    assert escape("x" * 10, 3) == "xxx..."
    assert str(MemberPath("f").inside("a/b").inside("c")) == "f!a/b!c"
    assert MemberPath("d/f", ("a/b",)).name == "b"


def test_no_verdict_or_rule_says_safe() -> None:
    words = " ".join((*(v.value for v in ScanVerdict), *(r.text for r in RULES.values())))
    assert "safe" not in words.lower()


# ---- the command ----


@pytest.mark.parametrize(
    ("name", "fail_on", "code"),
    [
        ("good.pkl", None, 0),
        ("b/unknown.pkl", None, 1),
        ("b/unknown.pkl", "malformed", 0),
        ("cut.pkl", "malformed", 1),
        ("cut.pkl", "dangerous", 0),
        ("b/evil.pt", "dangerous", 1),
        ("b/evil.pt", "never", 0),
        ("x.7z", None, 1),
        ("nothing.here", None, 2),
    ],
)
def test_exit_codes(folder: Path, name: str, fail_on: str | None, code: int) -> None:
    assert main(["scan", str(folder / name), *(["--fail-on", fail_on] if fail_on else [])]) == code


def test_an_unreadable_file_is_trouble(folder: Path) -> None:
    (folder / "b" / "evil.pt").unlink()
    (folder / "gone").symlink_to("nowhere")
    assert main(["scan", str(folder), "--fail-on", "dangerous"]) == 2


def test_words_for_people(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "evil.pt: dangerous" in out
    assert "os.system is called with 'cmd'" in out
    assert "x/a.zip!y" in out
    assert "good.pkl" not in out
    assert "not everything was scanned" in out
    assert "safe" not in out


def test_json_is_the_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["scan", str(folder / "b"), "--json"])
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == "weighbridge/scan/1"
    assert value["files"][0]["findings"][0]["use"] == "called"


# ---- SARIF ----

# What SARIF 2.1.0 asks of the objects that we make: property -> type, those that must be there first (OASIS, 3.13 to
# 3.58).
_SHAPES: dict[str, tuple[set[str], dict[str, type]]] = {
    "log": ({"version", "runs"}, {"$schema": str, "version": str, "runs": list}),
    "run": (
        {"tool"},
        {"tool": dict, "columnKind": str, "invocations": list, "artifacts": list, "results": list, "properties": dict},
    ),
    "driver": ({"name"}, {"name": str, "version": str, "semanticVersion": str, "rules": list}),
    "rule": (
        {"id"},
        {"id": str, "name": str, "shortDescription": dict, "defaultConfiguration": dict, "properties": dict},
    ),
    "result": (
        {"message"},
        {"ruleId": str, "ruleIndex": int, "level": str, "message": dict, "locations": list, "properties": dict},
    ),
    "location": (set(), {"physicalLocation": dict, "logicalLocations": list}),
    "artifact": (set(), {"location": dict, "length": int, "properties": dict}),
    "invocation": ({"executionSuccessful"}, {"executionSuccessful": bool, "toolExecutionNotifications": list}),
    "notification": ({"message"}, {"level": str, "message": dict, "locations": list}),
}


def fits(value: dict[str, Any], kind: str) -> None:
    needed, known = _SHAPES[kind]
    assert needed <= set(value) <= set(known), (kind, set(value))
    for key, inner in value.items():
        assert type(inner) is known[key], (kind, key)


def test_sarif_has_the_shape_of_the_standard(folder: Path) -> None:
    (folder / "gone").symlink_to("nowhere")
    log = json.loads(json.dumps(sarif(weighbridge.scan(folder))))
    fits(log, "log")
    (run,) = log["runs"]
    fits(run, "run")
    fits(run["tool"]["driver"], "driver")
    rules = run["tool"]["driver"]["rules"]
    for rule in rules:
        fits(rule, "rule")
        assert rule["name"].isalnum()
    for artifact in run["artifacts"]:
        fits(artifact, "artifact")
    for result in run["results"]:
        fits(result, "result")
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        (location,) = result["locations"]
        fits(location, "location")
        physical = location["physicalLocation"]["artifactLocation"]
        assert run["artifacts"][physical["index"]]["location"]["uri"] == physical["uri"]
    (invocation,) = run["invocations"]
    fits(invocation, "invocation")
    assert invocation["executionSuccessful"] is False
    for told in invocation["toolExecutionNotifications"]:
        fits(told, "notification")
    nested = [r for r in run["results"] if "logicalLocations" in r["locations"][0]]
    assert nested[0]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "x/a.zip!y"


def test_sarif_is_written_where_it_is_asked_for(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["scan", str(folder / "cut.pkl"), "--sarif", str(tmp_path / "out.sarif")])
    assert "malformed" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.sarif").read_text())["runs"][0]["results"][0]["ruleId"] == "pickle/truncated"
    main(["scan", str(folder / "cut.pkl"), "--sarif", "-"])
    assert json.loads(capsys.readouterr().out)["version"] == "2.1.0"


# ---- costs ----

_PEAK = """
import sys
from weighbridge.reports.scan.engine import scan
report = scan(sys.argv[1])
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(report.verdict.value, int(peak) * 1024)
"""
# Pickles that would take gigabytes: an opcode or a few, how often they are repeated.
_BOMBS = {
    "marks": (b"\x80\x02", b"(", 6 << 20),
    "numbers": (b"\x80\x02(", b"J\xff\xff\xff\x7f", 6 << 20),
    "names": (b"\x80\x02", b"ca\nb\n", 1 << 20),
    "long text": (b"\x80\x02X\0\0\0\x06", b"x" * 1024, 96 << 10),
    "a line without end": (b"V", b"x" * 1024, 96 << 10),
}


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
@pytest.mark.parametrize("bomb", _BOMBS)
def test_no_input_takes_200_MB(bomb: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.pkl"
    start, piece, times = _BOMBS[bomb]
    with path.open("wb") as file:
        file.write(start)
        for _ in range(16):
            file.write(piece * (times // 16))
    done = subprocess.run([sys.executable, "-c", _PEAK, str(path)], capture_output=True, text=True, check=True)
    verdict, peak = done.stdout.split()
    assert int(peak) < 200_000_000
    assert verdict != "data-only"


def test_the_hook_of_pre_commit_names_a_command_that_exists() -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text()
    yaml = pytest.importorskip("yaml")

    (hook,) = yaml.safe_load(text)
    assert hook["entry"].split()[:2] == ["wb", "scan"]
    assert {"id", "name", "entry", "language"} <= set(hook)
