"""The report on a job: each item's verdict in the order of the manifest, and what lies in the fleet more than once. It
is the same, byte for byte, whatever ran the tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

from weighbridge.adapters import parquet
from weighbridge.base.errors import UnsupportedError
from weighbridge.fleets.costs import DEFAULT_TERMS, Load, Terms, item_cost
from weighbridge.fleets.job import Job, canonical, parsed
from weighbridge.fleets.manifest import FleetManifest
from weighbridge.fleets.operations import FINDING, FINE, OPERATIONS, UNCHECKED, bytes_read

#: Column -> Arrow's type, of the rows of report/CHUNK.parquet.
COLUMNS: Final[Mapping[str, str]] = {
    "source": "string", "name": "string", "bytes": "int64", "op": "string", "verdict": "string", "exit": "int64",
    "digest": "string", "output": "string", "written": "int64", "error": "string", "details": "string",
    "cost": "float64",
}  # fmt: skip
_SHOWN: Final = 2000  # rows of the page; more would freeze it
_TWICE: Final = 200


@dataclass
class Copies:
    """Bytes that lie in the fleet more than once. `sources`: the first few of their items."""

    digest: str
    bytes: int
    copies: int = 1
    sources: tuple[str, ...] = ()


@dataclass
class FleetReport:
    """`verdicts`: items by verdict; `failed`: items whose work ended with an error; `missing`: items of batches that
    nothing is known of yet. `cost`: USD of the others, by the plan's formula and the bytes that were moved. `exit`:
    what a single run over all of them would have returned."""

    job: str
    op: str
    items: int = 0
    bytes: int = 0
    written: int = 0
    cost: float = 0.0
    failed: int = 0
    missing: int = 0
    exit: int = FINE
    verdicts: Counter[str] = field(default_factory=Counter)
    duplicates: list[Copies] = field(default_factory=list)
    duplicate_bytes: int = 0
    notes: tuple[str, ...] = ()


def lines_of(manifest: FleetManifest, chunk: int) -> Iterator[bytes]:
    """What is known of the items of a chunk, in their order; items of an open batch have neither verdict nor error."""
    for batch in manifest.batches(chunk):
        lines = manifest.lines(batch)
        if lines is None:
            yield from (canonical({"source": i.source, "name": i.name, "bytes": i.size}) for i in batch.items)
        else:
            yield from lines


def write_report(manifest: FleetManifest, terms: Terms = DEFAULT_TERMS) -> FleetReport:
    """Read the records of a job, chunk by chunk, and write the report beside them: JSON lines and Parquet for each
    chunk, one page, and the list of dead letters."""
    report = FleetReport(manifest.job.id, manifest.job.op)
    seen: dict[str, Copies] = {}
    shown: list[dict[str, Any]] = []
    dead: list[dict[str, Any]] = []
    for chunk in range(manifest.chunks):
        lines = list(lines_of(manifest, chunk))
        rows = [parsed(line) for line in lines]
        for row in rows:
            if "verdict" in row:
                row["cost"] = _cost(manifest.job, row, terms)
            _count(report, row, seen)
        dead += [row for row in rows if "error" in row]
        shown += rows[: _SHOWN - len(shown)]
        _write_chunk(manifest, chunk, lines, rows, report)
    twice = sorted((d for d in seen.values() if d.copies > 1), key=lambda d: (-(d.copies - 1) * d.bytes, d.digest))
    report.duplicates = twice[:_TWICE]
    report.duplicate_bytes = sum((d.copies - 1) * d.bytes for d in twice)
    if report.failed and report.exit == FINE:
        report.exit = UNCHECKED
    manifest.records.put(manifest.name("dead-letters.jsonl"), b"".join(_line(row) for row in dead))
    manifest.records.put(manifest.name("report.html"), page(report, shown).encode())
    return report


def _line(row: Mapping[str, Any]) -> bytes:
    return canonical(row) + b"\n"


def _without_trace(row: Mapping[str, Any]) -> bytes:
    return _line({name: value for name, value in row.items() if name != "traceback"})


def _count(report: FleetReport, row: Mapping[str, Any], seen: dict[str, Copies]) -> None:
    report.items += 1
    report.bytes += row["bytes"]
    if "error" in row:
        report.failed += 1
    elif "verdict" not in row:
        report.missing += 1
    else:
        report.written += row["written"]
        report.cost += row["cost"]
        report.verdicts[row["verdict"]] += 1
        report.exit = FINDING if FINDING in (report.exit, row["exit"]) else max(report.exit, row["exit"])
        parts = row["tensors"] or ([(row["digest"], row["bytes"])] if row["digest"] else [])
        for digest, nbytes in parts:
            _count_copy(seen, digest, nbytes, row["source"])


def _cost(job: Job, row: Mapping[str, Any], terms: Terms) -> float:
    """What an item cost, in USD."""
    load = Load(1, bytes_read(job, 1, row["bytes"]), row["written"], OPERATIONS[job.op].rate)
    return item_cost(load, terms)


def _count_copy(seen: dict[str, Copies], digest: str, nbytes: int, source: str) -> None:
    if (found := seen.get(digest)) is None:
        seen[digest] = Copies(digest, nbytes, sources=(source,))
        return
    found.copies += 1
    if len(found.sources) < 3 and source not in found.sources:
        found.sources += (source,)


def _write_chunk(
    manifest: FleetManifest, chunk: int, lines: list[bytes], rows: list[dict[str, Any]], report: FleetReport
) -> None:
    text = b"".join(_without_trace(row) if "error" in row else line + b"\n"
                    for line, row in zip(lines, rows, strict=True))  # fmt: skip
    manifest.records.put(manifest.name("report", f"{chunk:05d}.jsonl"), text)
    flat = [{**row, "details": canonical(row.get("details")).decode("utf-8", "replace")} for row in rows]
    try:
        manifest.records.put(manifest.name("report", f"{chunk:05d}.parquet"), parquet.table(flat, COLUMNS))
    except UnsupportedError as error:
        report.notes = (f"no Parquet report: {error.message} ({error.hint})",)


# ---- the page ----

_STYLE: Final = (
    "body{font:14px system-ui;margin:2em}td,th{padding:.15em .8em;text-align:left;vertical-align:top}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}tr:nth-child(even){background:#8881}code{font-size:13px}"
)


def page(report: FleetReport, rows: list[dict[str, Any]]) -> str:
    """The report as one HTML page without scripts; every name is escaped."""
    counts = ", ".join(f"{n:,} {escape(word)}" for word, n in sorted(report.verdicts.items()))
    more = f"<p>and {report.items - len(rows):,} more: report/*.jsonl</p>" if report.items > len(rows) else ""
    head = "<tr><th>item<th>verdict<th>bytes<th>cost<th>digest<th>output"
    body = "".join(map(_row, rows))
    return (
        f'<!doctype html><meta charset="utf-8"><title>wb fleet {escape(report.op)}</title><style>{_STYLE}</style>'
        f"<h1>wb fleet {escape(report.op)}</h1><p>{report.items:,} items, {report.bytes:,} bytes: "
        f"{counts or 'nothing'}; {report.failed:,} failed, {report.missing:,} open; "
        f"{report.written:,} bytes written; ${report.cost:,.2f} by the plan's formula</p>"
        f"<table>{head}{body}</table>{more}{_duplicates(report)}"
    )


def _row(row: Mapping[str, Any]) -> str:
    verdict = f"failed: {row['error']}" if "error" in row else row.get("verdict", "open")
    cost = f"{row['cost']:.6f}" if "cost" in row else ""
    texts = (row.get("digest") or "", row.get("output") or "")
    name, size = escape(row["source"]), f"{row['bytes']:,}"
    head = f"<tr><td><code>{name}</code><td>{escape(verdict)}<td class=n>{size}<td class=n>{cost}"
    return head + "".join(f"<td><code>{escape(text)}</code>" for text in texts)


def _duplicates(report: FleetReport) -> str:
    if not report.duplicates:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(d.digest)}</code><td class=n>{d.copies:,}<td class=n>{d.bytes:,}"
        f"<td>{escape(', '.join(d.sources))}"
        for d in report.duplicates
    )
    head = "<tr><th>digest<th>copies<th>bytes<th>in"
    return f"<h2>Stored more than once</h2><p>{report.duplicate_bytes:,} bytes</p><table>{head}{rows}</table>"
