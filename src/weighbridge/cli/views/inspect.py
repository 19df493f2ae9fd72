"""The output of `wb inspect`: each function prints one part of a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from weighbridge.base.words import plural
from weighbridge.cli.render import (
    Column,
    clean,
    echo,
    human_bytes,
    human_count,
    note,
    pairs,
    print_error,
    short_float,
    shorten,
    table,
    warn,
)
from weighbridge.models.tensor_parallel.rank_set import RankStatus
from weighbridge.reports.inspect.report import InspectReport
from weighbridge.reports.inspect.schemes import SchemeSummary
from weighbridge.reports.inspect.tree import build_tree, lines


def summary(report: InspectReport) -> None:
    """The head of the report and the table of types."""
    echo(clean(report.path), "head")
    pairs(_summary(report), indent=2)
    echo()
    table(
        ["type", Column("tensors", right=True), Column("elements", right=True), Column("bytes", right=True)],
        [(d.dtype, f"{d.tensors:,}", f"{d.elements:,}", human_bytes(d.nbytes)) for d in report.dtypes],
    )


_ROLES = 4  # named roles of a scheme; the rest are counted
_TARGETS = 8  # named modules of an adapter
_NAMED = 4  # named missing ranks


def schemes(report: InspectReport) -> None:
    """The schemes of a quantized model's matrices, and the roles of the less frequent schemes."""
    if not report.schemes:
        return
    echo()
    table(
        ["scheme", Column("weights", right=True), Column("parameters", right=True), Column("bits/weight", right=True),
         "where"],
        [_scheme(s, i > 0, len(report.schemes)) for i, s in enumerate(report.schemes)],
    )  # fmt: skip


def _scheme(s: SchemeSummary, minor: bool, of: int) -> tuple[str, ...]:
    bits = [f"{s.bits:g} bits"] if s.bits else []
    group = [f"groups of {s.group:,}"] if s.group and s.bits else []
    shown = s.where[:_ROLES] if minor else ()
    places = [place.role + (f" ({place.layers})" if place.layers else "") for place in shown]
    unnamed = len(s.where) - len(shown)
    more = [f"{unnamed} more roles"] if unnamed and minor else []
    roles = "; ".join(places + more) or ("all others" if of > 1 else "all")
    name = ", ".join([s.scheme, *bits, *group])
    return name, f"{s.weights:,}", human_count(s.parameters), f"{s.bits_per_weight:.2f}", roles


def _summary(report: InspectReport) -> Iterator[tuple[str, object]]:
    model, count = report.model, len(report.files)
    version = f" v{report.version}" if report.version else ""
    yield "format", f"{report.format}{version}" + (", big-endian" if report.byte_order == "big" else "")
    yield "ranks", _ranks(report.ranks)
    yield "size", human_bytes(report.nbytes, exact=True) + (f" in {plural(count, 'file')}" if count > 1 else "")
    yield (
        "architecture",
        " / ".join(dict.fromkeys(x for x in (model.architecture, model.family, model.kind) if x)) or None,
    )
    yield "name", model.name
    yield "parameters", f"{human_count(report.parameters)} ({report.parameters:,})"
    yield "bits per weight", f"{report.bits_per_weight:.2f}" if report.bits_per_weight else None
    yield "quantization", model.quantization.words if model.quantization else None
    if (adapter := model.adapter) is not None:
        numbers = (("rank", adapter.rank), ("alpha", adapter.alpha))
        yield "LoRA", ", ".join(f"{name} {value:g}" for name, value in numbers if value is not None) or "adapter"
        yield "base model", adapter.base
        yield "targets", shorten(adapter.targets, _TARGETS) or None
    sizes = (
        ("hidden size", model.hidden_size),
        ("heads", model.heads),
        ("kv heads", model.kv_heads),
        ("experts", model.experts),
    )
    declared = [f"{value:,} {name}" for name, value in sizes if value]
    yield "layers", ", ".join([f"{model.layers}", *declared]) if model.layers else None
    yield "context", f"{model.context_length:,}" if model.context_length else None
    if (tokenizer := model.tokenizer) is not None:
        size = tokenizer.vocab_size or model.vocab_size
        pre = f", pre-tokenizer {tokenizer.pre}" if tokenizer.pre else ""
        yield "tokenizer", tokenizer.kind + (f", {plural(size, 'token')}" if size else "") + pre
    yield "chat template", plural(model.chat_template, "character") if model.chat_template else None
    alignment = f", each at a multiple of {plural(report.alignment, 'byte')}" if report.alignment > 1 else ""
    yield "tensors", f"{report.tensor_count:,}{alignment}"


def _ranks(ranks: RankStatus | None) -> str | None:
    """The part of a tensor-parallel set that a file or folder is."""
    if ranks is None:
        return None
    what = f"all {ranks.size}" if ranks.rank is None else f"rank {ranks.rank} of {ranks.size}"
    if ranks.missing and ranks.rank is None:
        what = f"{ranks.size - len(ranks.missing)} of {ranks.size}"
    missing = f"; missing: {', '.join(ranks.missing[:_NAMED])}" if ranks.missing else ""
    more = f" and {len(ranks.missing) - _NAMED:,} more" if len(ranks.missing) > _NAMED else ""
    return f"{what} of one model, split for tensor parallelism{missing}{more}"


def tree(report: InspectReport, most: int | None = None) -> None:
    """The names as a tree with identical layers folded; its first `most` lines."""
    echo()
    branches = list(lines(build_tree(report.tensors)))
    table(
        [
            "tensor",
            "type",
            Column("shape", drop=2),
            Column("parameters", right=True, drop=1),
            Column("bytes", right=True),
        ],
        [
            (
                f"{'  ' * line.depth}{line.name}" + (f"  ({node.repeat} alike)" if node.repeat > 1 else ""),
                node.dtype,
                "" if node.shape is None else _shape(node.shape),
                human_count(node.parameters),
                human_bytes(node.nbytes),
            )
            for line in branches[:most]
            for node in (line.node,)
        ],
    )
    if most is not None and len(branches) > most:
        echo(f"... {plural(len(branches) - most, 'more line')} (--tree shows all)", "dim")
    _unlisted(report)


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def rows(report: InspectReport) -> None:
    """One row per tensor. A narrow terminal drops files and offsets first, then numbers of parameters, then shapes."""
    heads = [
        Column("tensor"), Column("type"), Column("shape", drop=4), Column("parameters", right=True, drop=3),
        Column("bytes", right=True), Column("offset", right=True, drop=2), Column("file", drop=1),
    ]  # fmt: skip
    heads = heads if len(report.files) > 1 else heads[:-1]
    cells = [
        {
            "tensor": t.name, "type": t.dtype, "shape": _shape(t.shape), "parameters": f"{t.parameters:,}",
            "bytes": f"{t.nbytes:,}", "offset": f"{t.offset:,}", "file": t.file,
        }
        for t in report.tensors
    ]  # fmt: skip
    table(heads, [[row[head.name] for head in heads] for row in cells])
    _unlisted(report)


def _unlisted(report: InspectReport) -> None:
    if report.selected > len(report.tensors):
        echo(f"... {plural(report.selected - len(report.tensors), 'more tensor')}", "dim")


def one(report: InspectReport) -> None:
    """All facts about a single tensor."""
    t = report.tensors[0]
    echo(clean(t.name), "head")
    pairs(
        [
            ("type", t.dtype),
            ("shape", _shape(t.shape)),
            ("parameters", f"{t.parameters:,}"),
            ("bytes", human_bytes(t.nbytes, exact=True)),
            ("packing", t.packing),
            ("file", t.file),
            ("bytes at", f"{t.offset:,} to {t.offset + t.nbytes:,} (0x{t.offset:x})"),
            ("aligned to", f"{(t.offset & -t.offset) or 1:,} bytes"),
        ],
        indent=2,
    )


def metadata(report: InspectReport, brief: bool = False) -> None:
    """Keys and values; `brief` cuts values to one line."""
    if not report.metadata:
        return
    echo()
    echo(f"metadata ({plural(len(report.metadata), 'key')})", "head")
    pairs(((key, _value(value, 100 if brief else 10_000)) for key, value in report.metadata.items()), indent=2)


def _value(value: Any, width: int) -> str:
    if isinstance(value, dict) and "array" in value:
        return f"{value['array']}[{value['length']:,}]: {', '.join(map(repr, value['first']))} ..."[:width]
    if isinstance(value, (bool, float)):
        return str(value).lower() if isinstance(value, bool) else short_float(value)
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= width else f"{text[:width]} ... ({plural(len(text), 'character')})"


#: Rules of notes that the summary shows.
_SHOWN_NOTES: Final = frozenset({"file/wrapped", "file/coded", "dtype/wider"})


def notes(report: InspectReport) -> None:
    """Problems of the model and notes of the parser, on standard error."""
    for finding in report.notes:
        place = f"{finding.path}: " if finding.path else ""
        if finding.severity == "error":
            print_error(f"{place}{finding.message} ({finding.rule})", finding.hint)
        elif finding.severity != "info":
            warn(clean(f"{finding.message} ({finding.rule})"))
        elif finding.rule in _SHOWN_NOTES:
            note(clean(f"note: {finding.message}"))
