"""The output of `wb fit`."""

from __future__ import annotations

from weighbridge.base.words import plural
from weighbridge.cli.render import Column, clean, echo, human_bytes, human_count, note, pairs, table
from weighbridge.fitting.report import FitReport

_VERDICTS = {
    "fits": "fits",
    "tight": "fits, with less than 1 GiB to spare",
    "partly": "fits in part",
    "no": "doesn't fit",
}


def show(report: FitReport) -> None:
    """Prints the verdict, the memory and the types."""
    place, trained, speed = report.placement, report.trained_context, report.tokens_per_second
    spare = f"{human_bytes(abs(report.free))} {'free' if report.free >= 0 else 'missing'}"
    layers = f"{place.offloaded} of {plural(place.layers, 'layer')} on the device"
    likely = f", likely {_rounded(speed * 0.5)} to {_rounded(speed * 0.85)}" if speed else ""
    echo(clean(report.path), "head")
    pairs(
        [
            ("model", f"{report.architecture}, {human_count(report.parameters)} parameters"),
            ("device", report.device.name),
            ("runtime", f"{report.runtime}, {plural(report.sequences, 'sequence')}"),
            ("context", plural(report.context, "token") + (f" of {trained:,}" if trained else "")),
            ("type", report.type),
            ("verdict", f"{_VERDICTS[report.verdict]}: {human_bytes(report.needs)} needed, {spare}"),
            ("offloaded", layers if report.verdict == "partly" else None),
            ("longest context", plural(report.longest_context, "token") if report.longest_context else "none fits"),
            ("speed", f"at most {_rounded(speed)} tokens/s{likely}" if speed else None),
        ],
        indent=2,
    )
    echo()
    table(
        ["memory", Column("size", right=True), "basis", "rule"],
        [(m.part, human_bytes(m.nbytes), m.basis, m.why) for m in report.memory],
    )
    if len(report.types) > 1:
        echo()
        sizes, estimates = ("size", "bits", "needed", "free"), ("ppl +", "tokens/s")
        heads = [Column("type"), *(Column(n, right=True) for n in sizes), Column("verdict")]
        heads += [Column(n, right=True) for n in estimates]
        rows = [
            (
                row.type + ("*" if row.imatrix else "") + (" <-" if row.type == report.recommended else ""),
                human_bytes(row.nbytes),
                f"{row.bits_per_weight:.2f}",
                human_bytes(row.needs),
                human_bytes(row.free) if row.free >= 0 else f"-{human_bytes(-row.free)}",
                f"{row.offloaded}/{plural(row.layers, 'layer')}" if row.verdict == "partly" else row.verdict,
                "" if row.ppl is None else f"{row.ppl:.3f}",
                "" if row.tokens_per_second is None else _rounded(row.tokens_per_second),
            )
            for row in sorted(report.types, key=lambda r: -r.nbytes)
        ]
        table(heads, rows)
    if report.reason:
        echo()
        echo(f"{report.type}: {report.reason}")
    for line in report.notes:
        note(line)


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def explanation(report: FitReport) -> None:
    """Prints the arithmetic."""
    for line in report.explanation:
        echo(clean(line))
