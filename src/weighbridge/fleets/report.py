"""The report on a job: each item's verdict in the order of the manifest, and the data that is stored more than once. It
is the same, byte for byte, wherever the tasks ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from html import escape
from typing import Any, Final

from weighbridge.adapters import parquet
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.fleets.costs import DEFAULT_TERMS, Load, Terms, item_cost
from weighbridge.fleets.job import canonical, parse
from weighbridge.fleets.manifest import FleetManifest
from weighbridge.fleets.operations import FINDING, FINE, OPERATIONS, UNCHECKED, bytes_read

#: The columns of report/CHUNK.parquet and their Arrow types.
COLUMNS: Final[Mapping[str, str]] = {
    "source": "string", "name": "string", "bytes": "int64", "op": "string", "verdict": "string", "exit": "int64",
    "digest": "string", "output": "string", "written": "int64", "error": "string", "details": "string",
    "cost": "float64",
}  # fmt: skip
_SHOWN: Final = 2000  # rows of the page; more would freeze it
_DUPLICATES: Final = 200


@dataclass
class Copies:
    """Data that is stored more than once. `sources`: the first few of its items."""

    digest: str
    bytes: int
    copies: int = 1
    sources: tuple[str, ...] = ()


@dataclass
class FleetReport:
    """`verdicts`: items by verdict. `failed`: items with an error. `missing`: items of open batches. `cost`: USD of the
    finished items, by the plan's formula and the bytes moved. `exit`: the exit code of a single run over all items."""

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


def write_report(manifest: FleetManifest, terms: Terms = DEFAULT_TERMS) -> FleetReport:
    """Reads the records of a job, chunk by chunk, and writes the report next to them: JSON lines and Parquet for each
    chunk, an HTML page, and the list of dead letters."""
    report = FleetReport(manifest.job.id, manifest.job.op)
    copies: dict[str, Copies] = {}
    shown: list[dict[str, Any]] = []
    dead: list[dict[str, Any]] = []
    for chunk in range(manifest.chunks):
        lines: list[bytes] = []
        for batch in manifest.batches(chunk):  # items of an open batch have neither verdict nor error
            recorded = manifest.lines(batch)
            unknown = (canonical({"source": i.source, "name": i.name, "bytes": i.size}) for i in batch.items)
            lines += unknown if recorded is None else recorded
        rows = [parse(line) for line in lines]
        for row in rows:
            if "verdict" in row:
                read = bytes_read(manifest.job, 1, row["bytes"])
                row["cost"] = item_cost(Load(1, read, row["written"], OPERATIONS[manifest.job.op].rate), terms)
            _count(report, row, copies)
        dead += [row for row in rows if "error" in row]
        shown += rows[: _SHOWN - len(shown)]
        public = (
            canonical({name: value for name, value in row.items() if name != "traceback"}) if "error" in row else line
            for line, row in zip(lines, rows, strict=True)
        )
        text = b"".join(line + b"\n" for line in public)
        manifest.records.put(manifest.name("report", f"{chunk:05d}.jsonl"), text)
        flat = [{**row, "details": canonical(row.get("details")).decode("utf-8", "replace")} for row in rows]
        try:
            manifest.records.put(manifest.name("report", f"{chunk:05d}.parquet"), parquet.table(flat, COLUMNS))
        except UnsupportedError as error:
            report.notes = (f"no Parquet report: {error.message} ({error.hint})",)
    duplicates = sorted(
        (d for d in copies.values() if d.copies > 1), key=lambda d: (-(d.copies - 1) * d.bytes, d.digest)
    )
    report.duplicates = duplicates[:_DUPLICATES]
    report.duplicate_bytes = sum((d.copies - 1) * d.bytes for d in duplicates)
    if report.failed and report.exit == FINE:
        report.exit = UNCHECKED
    manifest.records.put(manifest.name("dead-letters.jsonl"), b"".join(canonical(row) + b"\n" for row in dead))
    manifest.records.put(manifest.name("report.html"), page(report, shown).encode())
    return report


def _count(report: FleetReport, row: Mapping[str, Any], copies: dict[str, Copies]) -> None:
    """Adds a row to the report, and its data to the copies."""
    report.items += 1
    report.bytes += row["bytes"]
    if "error" in row:
        report.failed += 1
        return
    if "verdict" not in row:
        report.missing += 1
        return
    report.written += row["written"]
    report.cost += row["cost"]
    report.verdicts[row["verdict"]] += 1
    report.exit = FINDING if FINDING in (report.exit, row["exit"]) else max(report.exit, row["exit"])
    for digest, nbytes in row["tensors"] or ([(row["digest"], row["bytes"])] if row["digest"] else []):
        entry = copies.setdefault(digest, Copies(digest, nbytes, copies=0))
        entry.copies += 1
        if len(entry.sources) < 3 and row["source"] not in entry.sources:
            entry.sources += (row["source"],)


# ---- the page ----

_STYLE: Final = (
    "body{font:14px system-ui;margin:2em}td,th{padding:.15em .8em;text-align:left;vertical-align:top}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}tr:nth-child(even){background:#8881}code{font-size:13px}"
)


def page(report: FleetReport, rows: list[dict[str, Any]]) -> str:
    """Returns the report as an HTML page without scripts, in which every name is escaped."""
    counts = ", ".join(f"{n:,} {escape(word)}" for word, n in sorted(report.verdicts.items()))
    more = f"<p>and {report.items - len(rows):,} more: report/*.jsonl</p>" if report.items > len(rows) else ""
    head = "<tr><th>item<th>verdict<th>bytes<th>cost<th>digest<th>output"
    body = ""
    for row in rows:
        verdict = f"failed: {row['error']}" if "error" in row else row.get("verdict", "open")
        cost = f"{row['cost']:.6f}" if "cost" in row else ""
        body += f"<tr><td><code>{escape(row['source'])}</code><td>{escape(verdict)}"
        body += f"<td class=n>{row['bytes']:,}<td class=n>{cost}"
        body += "".join(f"<td><code>{escape(row.get(name) or '')}</code>" for name in ("digest", "output"))
    duplicates = "".join(
        f"<tr><td><code>{escape(d.digest)}</code><td class=n>{d.copies:,}<td class=n>{d.bytes:,}"
        f"<td>{escape(', '.join(d.sources))}"
        for d in report.duplicates
    )
    if duplicates:
        columns = "<tr><th>digest<th>copies<th>bytes<th>in"
        size = f"<h2>Stored more than once</h2><p>{report.duplicate_bytes:,} bytes</p>"
        duplicates = f"{size}<table>{columns}{duplicates}</table>"
    return (
        f'<!doctype html><meta charset="utf-8"><title>wb fleet {escape(report.op)}</title><style>{_STYLE}</style>'
        f"<h1>wb fleet {escape(report.op)}</h1><p>{plural(report.items, 'item')}, {report.bytes:,} bytes: "
        f"{counts or 'nothing'}; {report.failed:,} failed, {report.missing:,} open; "
        f"{report.written:,} bytes written; ${report.cost:,.2f} by the plan's formula</p>"
        f"<table>{head}{body}</table>{more}{duplicates}"
    )
