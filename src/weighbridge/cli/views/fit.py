"""How `wb fit` looks."""

from __future__ import annotations

from weighbridge.cli.render import Column, clean, echo, human_bytes, human_count, note, pairs, table
from weighbridge.fitting.report import FitReport, TypeRow

_VERDICTS = {
    "fits": "fits",
    "tight": "fits, with less than 1 GiB to spare",
    "partly": "fits in part",
    "no": "doesn't fit",
}


def show(report: FitReport) -> None:
    """The verdict, the memory, the types."""
    echo(clean(report.path), "head")
    pairs(list(_summary(report)), indent=2)
    echo()
    table(
        ["memory", Column("size", right=True), "basis", "rule"],
        [(m.part, human_bytes(m.nbytes), m.basis, m.why) for m in report.memory],
    )
    if len(report.types) > 1:
        echo()
        _types(report)
    if report.reason:
        echo()
        echo(f"{report.type}: {report.reason}")
    for line in report.notes:
        note(line)


def _summary(report: FitReport) -> list[tuple[str, object]]:
    place, trained = report.placement, report.trained_context
    spare = f"{human_bytes(abs(report.free))} {'free' if report.free >= 0 else 'missing'}"
    layers = f"{place.offloaded} of {place.layers} layers on the device" if report.verdict == "partly" else None
    return [
        ("model", f"{report.architecture}, {human_count(report.parameters)} parameters"),
        ("device", report.device.name),
        ("runtime", f"{report.runtime}, {report.sequences} sequence{'s' if report.sequences > 1 else ''}"),
        ("context", f"{report.context:,} tokens" + (f" of {trained:,}" if trained else "")),
        ("type", report.type),
        ("verdict", f"{_VERDICTS[report.verdict]}: {human_bytes(report.needs)} needed, {spare}"),
        ("offloaded", layers),
        ("longest context", f"{report.longest_context:,} tokens" if report.longest_context else "none fits"),
        ("speed", _speed(report.tokens_per_second)),
    ]


def _speed(found: float | None) -> str | None:
    return (
        f"at most {_rounded(found)} tokens/s, likely {_rounded(found * 0.5)} to {_rounded(found * 0.85)}"
        if found
        else None
    )


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _types(report: FitReport) -> None:
    sizes, rest = ("size", "bits", "needed", "free"), ("ppl +", "tokens/s")
    heads = [Column("type"), *(Column(n, right=True) for n in sizes), Column("verdict")]
    heads += [Column(n, right=True) for n in rest]
    table(heads, [_row(row, row.type == report.recommended) for row in sorted(report.types, key=lambda r: -r.nbytes)])


def _row(row: TypeRow, recommended: bool) -> tuple[str, ...]:
    name = row.type + ("*" if row.imatrix else "") + (" <-" if recommended else "")
    verdict = f"{row.offloaded}/{row.layers} layers" if row.verdict == "partly" else row.verdict
    return (
        name, human_bytes(row.nbytes), f"{row.bits_per_weight:.2f}", human_bytes(row.needs), _signed(row.free), verdict,
        "" if row.ppl is None else f"{row.ppl:.3f}",
        "" if row.tokens_per_second is None else _rounded(row.tokens_per_second),
    )  # fmt: skip


def _signed(nbytes: int) -> str:
    return human_bytes(nbytes) if nbytes >= 0 else f"-{human_bytes(-nbytes)}"


def explanation(report: FitReport) -> None:
    """The arithmetic."""
    for line in report.explanation:
        echo(clean(line))
