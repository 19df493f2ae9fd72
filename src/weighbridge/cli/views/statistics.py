"""The output of `wb stats`: a tensor's numbers and histogram, a model's heat map as a table."""

from __future__ import annotations

import sys

from weighbridge.base.words import plural
from weighbridge.cli.render import Column, clean, echo, pairs, shorten, table, width
from weighbridge.reports.statistics.heat import HeatMap
from weighbridge.reports.statistics.tensor import Histogram, TensorStatistics

_LINES = 24  # of a histogram


def tensor(report: TensorStatistics) -> None:
    first = ", ".join(f"{value:.6g}" for value in report.first)
    echo(f"{clean(report.tensor)}  {report.dtype} [{', '.join(map(str, report.shape))}]", "head")
    pairs(
        [
            ("values", f"{report.count:,}" + ("" if report.exact else " (quantiles within 1/256 of a value)")),
            ("NaN", f"{report.nan:,}" if report.nan else None),
            ("infinite", f"{report.inf:,}" if report.inf else None),
            ("zeros", f"{report.zeros:,} ({report.negative_zeros:,} negative)" if report.zeros else "0"),
            ("subnormal", f"{report.subnormals:,}" if report.subnormals else None),
            ("minimum", _number(report.minimum)),
            ("maximum", _number(report.maximum)),
            ("mean", _number(report.mean)),
            ("standard deviation", _number(report.std)),
            ("root mean square", _number(report.rms)),
            ("kurtosis", _number(report.kurtosis)),
            ("first", f"{first} ..." if report.count > len(report.first) else first or None),
            *((f"quantile {share}", _number(value)) for share, value in report.quantiles.items()),
        ],
        indent=2,
    )
    _histogram(report.histogram)
    if report.channels is not None:
        echo()
        outliers = plural(report.channels.outliers, "outlier channel")
        echo(f"{outliers} of {report.channels.columns:,} (6 times the median column)", "head")
        heads = ("column", "largest magnitude", "times the median")
        rows = [(f"{c.index:,}", _number(c.absmax), _number(c.ratio)) for c in report.channels.largest]
        table([Column(head, right=True) for head in heads], rows)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}"


def _histogram(histogram: Histogram) -> None:
    """Prints bars of the counts; joins bins until they fit."""
    if not histogram.counts:
        return
    echo()
    each = -(-len(histogram.counts) // _LINES)
    sums = [sum(histogram.counts[i : i + each]) for i in range(0, len(histogram.counts), each)]
    cells = max(min(width(), 100) - 34, 16)
    full = "█" if "utf" in (sys.stdout.encoding or "").lower() else "#"
    table(
        [Column("from", right=True), Column("values", right=True), ""],
        [
            (f"{histogram.edges[i * each]:.4g}", f"{n:,}", full * round(n / max(sums) * cells))
            for i, n in enumerate(sums)
        ],
    )  # fmt: skip


def heat(report: HeatMap) -> None:
    """Prints the spread of each role over the layers."""
    echo(f"{report.statistic}: {report.meaning}", "head")
    layers = [n for n in report.layers if n >= 0]
    if layers:
        spread = [(role, *_spread(report, j)) for j, role in enumerate(report.roles) if _spread(report, j)]
        table(["role", Column("layers", right=True), *(Column(n, right=True) for n in ("least", "mean", "most", "in"))],
              spread)  # fmt: skip
    single = [(role, report.cells[0][j]) for j, role in enumerate(report.roles) if report.layers[:1] == (-1,)]
    rows = [(role, value) for role, value in single if value is not None]
    if rows:
        echo()
        table(["outside of layers", Column(report.statistic, right=True)], [(r, f"{v:,.6g}") for r, v in rows])
    if report.skipped:
        echo()
        echo(f"left out, since they can't be decoded: {clean(shorten(report.skipped, 8))}", "dim")


def _spread(report: HeatMap, column: int) -> tuple[str, ...]:
    """The smallest, mean and largest value of a role over the layers, and the layer with the largest."""
    cells = [(row[column], layer) for row, layer in zip(report.cells, report.layers, strict=True) if layer >= 0]
    values = [(value, layer) for value, layer in cells if value is not None]
    if not values:
        return ()
    largest, layer = max(values)
    mean = sum(value for value, _ in values) / len(values)
    return (f"{len(values):,}", *(f"{x:,.6g}" for x in (min(values)[0], mean, largest)), f"layer {layer}")
