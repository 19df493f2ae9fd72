"""Finds out how models are related and which is made from which, by a few rows of their weights and their metadata.

    lineage(["base/", "tuned/", "tuned-q4.gguf"]) -> LineageReport

A parent is named only if the weights prove it (a model rounded, cut, stacked or merged from others), or if metadata
names it and the weights agree.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations
from typing import Final

from weighbridge.base.errors import UsageError
from weighbridge.base.options import Progress, accepting
from weighbridge.base.words import plural
from weighbridge.io.location import path_text
from weighbridge.models.borrowed_config import with_borrowed_configs
from weighbridge.models.llamacpp.towers import alike
from weighbridge.models.model import OpenModel
from weighbridge.models.open import SourceOptions, open_model
from weighbridge.models.whisper.forms import form_of
from weighbridge.models.wrapped import named_alike
from weighbridge.reports.lineage.claims import OriginClaim, claims_of, names_of, simple_name
from weighbridge.reports.lineage.family_tree import ChosenParents, ancestors, branches, choose_parents
from weighbridge.reports.lineage.mixing import Made, find_merged, find_stacked
from weighbridge.reports.lineage.model import APART, LineageModel, LineagePair, LineageReport
from weighbridge.reports.lineage.relation import relate
from weighbridge.reports.lineage.sampling import Sampler, folded_sampler, sampler_of
from weighbridge.reports.lineage.sparse import find_sparse
from weighbridge.reports.options import LineageOptions, Path

#: Models; the pairs grow with the square.
MOST: Final = 64
_FOLDED: Final = "up to factors that the model multiplies in, or normalizes, when it runs"


@accepting(LineageOptions)
def lineage(models: Sequence[Path], options: LineageOptions) -> LineageReport:
    """Returns the relations of two models or more, and their family tree. Raises UsageError for fewer, FormatError for
    weights that aren't finite, UnsupportedError for a model without weight matrices."""
    if isinstance(models, str | os.PathLike):
        raise UsageError("lineage compares several models", hint="wb.lineage([a, b])")
    if not 2 <= len(models) <= MOST:
        raise UsageError(
            f"lineage compares 2 to {MOST} models, not {len(models)}", hint="wb lineage base/ tuned.gguf merged/"
        )
    with ExitStack() as stack:
        opening = SourceOptions(arch_file=options.arch_file)
        opened = [stack.enter_context(open_model(path, opening)) for path in models]
        return relate_models(opened, [path_text(path) for path in models], options.progress)


def relate_all(samplers: Mapping[str, Sampler], paths: Sequence[str], progress: Progress | None) -> LineageReport:
    """Returns the relations of models that are open. `paths`: in the order of `samplers`."""
    pairs = []
    total = len(samplers) * (len(samplers) - 1) // 2
    for done, (a, b) in enumerate(combinations(samplers.values(), 2)):
        if progress is not None:
            progress(done, total, f"{a.name}, {b.name}")
        pairs.append(relate_folded(a, b))
    return _report(samplers, pairs, paths)


def relate_folded(a: Sampler, b: Sampler) -> LineagePair:
    """Returns the relation of two models. They are the same if they differ only by factors and normalization
    that their class applies when it runs, and that one of them may have in its weights."""
    pair = relate(a, b)
    if pair.relation in (*APART, "same"):
        return pair
    forms = folded_sampler(a), folded_sampler(b)
    if forms == (a, b):
        return pair
    folded = relate(*forms)
    for sampler, form in zip((a, b), forms, strict=True):
        sampler.bytes_read += form.bytes_read if form is not sampler else 0
    return replace(folded, exact=False, detail=_FOLDED) if folded.relation == "same" else pair


def relate_models(models: Sequence[OpenModel], paths: Sequence[str], progress: Progress | None = None) -> LineageReport:
    """Returns the relations of open models. `paths`: in the order of `models`."""
    renamed, parts = _pictures_renamed(models)
    for number, model in enumerate(models):  # folders of MLX and Whispers, if another model has other names
        if model.index.metadata.get("format") == "mlx" or form_of(model) is not None:
            versions = (named_alike(model, peer)[0] for peer in models)
            renamed[number] = next((version for version in versions if version is not model), model)
    models, notes = with_borrowed_configs(renamed)
    if len(models) == 2:
        models = [*alike(*models)]
    with_gguf = any(model.format == "gguf" for model in models)
    names = _names(paths, models)
    samplers = {n: sampler_of(m, n, with_gguf=with_gguf) for n, m in zip(names, models, strict=True)}
    report = relate_all(samplers, paths, progress)
    return replace(report, notes=(*parts, *notes, *report.notes))


def _pictures_renamed(models: Sequence[OpenModel]) -> tuple[list[OpenModel], list[str]]:
    """Returns the models, those that make pictures under the names of their single files and with the parts that all of
    these have, and notes."""
    pictures = [model for model in models if model.makes_pictures] if len(models) > 1 else []
    if len(pictures) < 2:
        return list(models), []
    from weighbridge.models.diffusion.alike import common_parts, under_file_names  # late: others have no such names

    common, notes = common_parts(under_file_names(pictures))
    renamed = iter(common)
    return [next(renamed) if any(model is each for each in pictures) else model for model in models], notes


def _names(paths: Sequence[Path], models: Sequence[OpenModel]) -> list[str]:
    """Returns a short name for each model: the last component of its path, the path if that isn't unique."""
    short = [m.place.title if m.place.path.is_dir() else m.place.path.name for m in models]
    names = [name if short.count(name) == 1 else path_text(path) for name, path in zip(short, paths, strict=True)]
    return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names, 1)]


def _report(samplers: Mapping[str, Sampler], pairs: list[LineagePair], paths: Sequence[str]) -> LineageReport:
    same = equal_groups(samplers, pairs)
    distinct = {name: model for name, model in samplers.items() if name not in same}
    between = [pair for pair in pairs if pair.a in distinct and pair.b in distinct]
    sums = list(find_merged(distinct, between))
    composites = {row.name: row for row in (*find_stacked(distinct, between), *sums) if row.relation != "sum"}
    sums += find_sparse(distinct, between, composites)
    composites |= {row.name: row for row in sums if row.relation != "sum"}
    between = [with_composite(pair, composites) for pair in between]
    claims = {name: claims_of(model.model) for name, model in samplers.items()}
    aliases = {name: names_of(model.model, path) for (name, model), path in zip(samplers.items(), paths, strict=True)}
    named = list(named_parents(claims, aliases))
    contradictions = list(find_contradictions(named, {frozenset((p.a, p.b)): p for p in pairs}, composites))
    parents = choose_parents(list(distinct), between, composites, [(c, same.get(p, p), s) for c, p, s in named], same)
    models = tuple(
        LineageModel(
            name, path, model.type, len(model.layers), model.bytes_read, same_as=same.get(name),
            claims=tuple(dict.fromkeys(claim.name for claim in claims[name])),
            **({} if name not in parents else parents[name]._asdict()),
        )
        for (name, model), path in zip(samplers.items(), paths, strict=True)
    )  # fmt: skip
    updated = {(pair.a, pair.b): pair for pair in between}
    shown = [agreeing(updated.get((pair.a, pair.b), pair), parents, same, models) for pair in pairs]
    notes = [
        f"{name}: {plural(len(model.skipped), 'matrix', 'were')} left out, whose rows can't be read separately or have "
        "no values to compare"
        for name, model in samplers.items()
        if model.skipped
    ]
    notes += [
        f"{name}: no table names its tensors, so only models with the same names are compared with it"
        for name, model in samplers.items()
        if not model.by_table and any(other.by_table for other in samplers.values())
    ]
    notes += uncompared_parts(samplers)
    notes += dependent_notes(sums, composites)
    tree = branches(list(distinct), between, {m.name: [p.name for p in m.parents] for m in models}, same)
    return LineageReport(
        models, tuple(shown), tuple(tree), tuple(contradictions), tuple(notes), sum(m.bytes_read for m in models)
    )


def uncompared_parts(samplers: Mapping[str, Sampler]) -> Iterator[str]:
    """Yields notes on towers and other parts of models, if others have none."""
    parts = {name: model.model.resolved.report.apart for name, model in samplers.items() if model.by_table}
    if not all(parts.values()):
        for name, tensors in ((name, tensors) for name, tensors in parts.items() if tensors):
            yield f"{name}: {plural(len(tensors), 'tensor')} of other parts, such as {tensors[0]}, aren't compared"


def dependent_notes(sums: Sequence[Made], composites: Mapping[str, Made]) -> Iterator[str]:
    """Yields notes on models that are a weighted sum of each other, if nothing shows which one is the sum."""
    groups = (frozenset((row.name, *(s.name for s in row.sources))) for row in sums if row.relation == "sum")
    for group in dict.fromkeys(groups):
        if not any(name in group and {s.name for s in row.sources} < group for name, row in composites.items()):
            yield f"one of {', '.join(sorted(group))} is a weighted sum of the others; the weights don't show which"


def equal_groups(samplers: Mapping[str, Sampler], pairs: Sequence[LineagePair]) -> dict[str, str]:
    """Returns the first model with equal samples, of each model that has an earlier one."""
    order = list(samplers)
    result: dict[str, str] = {}
    for pair in pairs:
        if pair.relation == "same":
            first, second = sorted((pair.a, pair.b), key=order.index)
            result.setdefault(second, result.get(first, first))
    return result


def with_composite(pair: LineagePair, composites: Mapping[str, Made]) -> LineagePair:
    """Returns the relation of a model to one that it was merged or stacked from, if the pair is one."""
    for name, second in ((pair.a, pair.b), (pair.b, pair.a)):
        row = composites.get(name)
        if row is not None and second in {source.name for source in row.sources}:
            relation = "merged" if row.relation == "merged" else "slices"
            return replace(pair, relation=relation, parent=second, evidence="weights", exact=True, detail=row.detail)  # type: ignore[arg-type]
    return pair


def named_parents(
    claims: Mapping[str, Sequence[OriginClaim]], aliases: Mapping[str, set[str]]
) -> Iterator[tuple[str, str, str]]:
    """Yields (model, the compared model that its metadata names, where). A name that several have isn't evidence."""
    for name, rows in claims.items():
        for claim in rows:
            simple = simple_name(claim.name)
            result = [second for second, names in aliases.items() if simple in names]
            if len(result) == 1 and result[0] != name:
                yield name, result[0], claim.source


def find_contradictions(
    named: Sequence[tuple[str, str, str]], pairs: Mapping[frozenset[str], LineagePair], composites: Mapping[str, Made]
) -> Iterator[str]:
    """Yields the claims of metadata that the weights disprove."""
    for child, parent, source in dict.fromkeys(named):
        pair = pairs[frozenset((child, parent))]
        if pair.relation in APART:
            reason = "their weights are unrelated" if pair.relation == "unrelated" else "no matrix has the same shape"
            yield f"{child}: {source} names {parent} as its base, but {reason}"
        elif pair.parent == child or (parent in composites and child in {s.name for s in composites[parent].sources}):
            yield f"{child}: {source} names {parent} as its base, but by its weights {parent} was made from {child}"


def agreeing(
    pair: LineagePair, parents: Mapping[str, ChosenParents], same: Mapping[str, str], models: Sequence[LineageModel]
) -> LineagePair:
    """Returns a pair with the parent that all models together leave possible: of two that fit equally well, neither."""
    if pair.parent is not None:
        child = pair.counterpart(pair.parent)
        if same.get(pair.parent, pair.parent) not in ancestors(same.get(child, child), parents):
            pair = replace(pair, parent=None, evidence=None)
    return with_metadata(pair, models)


def with_metadata(pair: LineagePair, models: Sequence[LineageModel]) -> LineagePair:
    """Adds the parent that metadata names to a pair whose weights leave it open."""
    for model in models:
        second = pair.counterpart(model.name) if model.name in (pair.a, pair.b) else None
        is_stated = model.evidence not in (None, "weights") and second in {source.name for source in model.parents}
        if pair.parent is None and is_stated:
            return replace(pair, parent=second, evidence=model.evidence)
    return pair
