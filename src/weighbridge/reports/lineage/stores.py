"""The families among the models of stores: `wb ls --lineage`.

First each model is opened by itself and one matrix of each layer is sampled. Models whose samples are alike form a
family, which two matrix products find. Only the models of a family are then compared in pairs, with all of them open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.records import dataclass
from weighbridge.models.model import SourceOptions
from weighbridge.models.open import open_model
from weighbridge.reports.lineage import thresholds
from weighbridge.reports.lineage.claims import OriginClaim, claims_of, names_of
from weighbridge.reports.lineage.layer_map import read_anchors
from weighbridge.reports.lineage.model import APART, LineageReport, StoreLineage
from weighbridge.reports.lineage.report import MOST, named_parents, relate_all
from weighbridge.reports.lineage.sampling import Sampler, sampler_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from weighbridge.base.options import Progress
    from weighbridge.reports.stores.listing import StoreEntry

    Shape = tuple[str, tuple[int, ...]]  # role and shape of the matrix that identifies a layer

#: Elements of a layer's rows that are compared with all layers of other models; with the same layer, all are.
_ACROSS: Final = 512


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """What identifies a stored model. `rows`: of norm 1, by layer, under the shape of the matrix. `claims`: the origins
    that its metadata names; `names`: those by which other models' metadata may name it."""

    name: str
    path: str
    rows: Mapping[Shape, Mapping[int, NDArray[np.float32]]]
    claims: Sequence[OriginClaim]
    names: set[str]
    bytes_read: int


def relate_stored(entries: Sequence[StoreEntry], progress: Progress | None = None) -> StoreLineage:
    """Returns the families among the entries of a listing. A model that can't be read is reported, not an error."""
    uncompared = [f"{entry.name}: {entry.trouble}" for entry in entries if entry.trouble]
    readable = [entry for entry in entries if not entry.trouble]
    counts = Counter(entry.name for entry in readable)
    with_gguf = any(entry.format == "gguf" for entry in readable)
    prints = []
    for done, entry in enumerate(readable):
        name = entry.name if counts[entry.name] == 1 else entry.address
        if progress is not None:
            progress(done, len(readable), name)
        try:
            prints.append(fingerprint_of(name, entry, with_gguf=with_gguf))
        except (OSError, WeighbridgeError) as error:
            uncompared.append(_line(name, error))
    single, reports = [], []
    for group in group_by_origin(prints):
        if len(group) == 1:
            single.append(group[0].name)
        elif (report := relate_family(group, uncompared, progress, with_gguf=with_gguf)) is not None:
            reports.append(report)
    families = [family for report in reports for family in connected(report)]
    compared = {model.name for report in reports for model in report.models}
    single += sorted(compared - {model.name for family in families for model in family.models})
    return StoreLineage(
        tuple(families),
        tuple(single),
        tuple(uncompared),
        tuple(line for report in reports for line in report.contradictions),
        tuple(line for report in reports for line in report.notes),
        sum(item.bytes_read for item in prints) + sum(report.bytes_read for report in reports),
    )


def _line(name: str, error: OSError | WeighbridgeError) -> str:
    return f"{name}: {error.message if isinstance(error, WeighbridgeError) else error.strerror or error}"


def fingerprint_of(name: str, entry: StoreEntry, *, with_gguf: bool) -> Fingerprint:
    """Returns what identifies a stored model. `with_gguf`: whether others are GGUFs."""
    import numpy as np

    with open_model(entry.path, SourceOptions()) as model:
        sampler = sampler_of(model, name, with_gguf=with_gguf)
        rows: dict[Shape, dict[int, NDArray[np.float32]]] = {}
        for layer, (shape, values) in read_anchors(sampler).items():
            rows.setdefault(shape, {})[layer] = values.ravel().astype(np.float32)
        names = names_of(model, entry.path) | names_of(model, entry.address) | names_of(model, entry.name)
        return Fingerprint(name, entry.path, rows, claims_of(model), names, sampler.bytes_read)


# ------------------------------------------------------------------------------------------ groups


def group_by_origin(prints: Sequence[Fingerprint]) -> list[list[Fingerprint]]:
    """Returns the models in groups: a member is alike to another one of its group, or names it as its base."""
    at = {item.name: n for n, item in enumerate(prints)}
    stated = named_parents({item.name: item.claims for item in prints}, {item.name: item.names for item in prints})
    named = ((at[child], at[parent]) for child, parent, _ in stated)
    return [[prints[n] for n in group] for group in components(len(prints), [*alike_pairs(prints), *named])]


def components(count: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Returns the numbers below `count` in groups that the pairs connect."""
    group = list(range(count))
    for a, b in pairs:
        if (old := group[b]) != (new := group[a]):
            group = [new if number == old else number for number in group]
    return [[n for n in range(count) if group[n] == number] for number in dict.fromkeys(group)]


def alike_pairs(prints: Sequence[Fingerprint]) -> Iterator[tuple[int, int]]:
    """Yields pairs of models with a common origin: layers of one number that are similar, or any two that are versions
    of each other."""
    for shape in dict.fromkeys(shape for item in prints for shape in item.rows):
        members = [n for n, item in enumerate(prints) if shape in item.rows]
        if len(members) > 1:
            yield from _similar(shape, members, prints)
            yield from _with_common_layers(shape, members, prints)


def _similar(shape: Shape, members: Sequence[int], prints: Sequence[Fingerprint]) -> Iterator[tuple[int, int]]:
    """Yields pairs by the mean cosine of the layers of one number."""
    import numpy as np

    total, count = (np.zeros((len(members), len(members)), np.float32) for _ in range(2))
    for layer in sorted({layer for n in members for layer in prints[n].rows[shape]}):
        at = [i for i, n in enumerate(members) if layer in prints[n].rows[shape]]
        rows = np.stack([prints[members[i]].rows[shape][layer] for i in at])
        total[np.ix_(at, at)] += rows @ rows.T
        count[np.ix_(at, at)] += 1
    for i, j in np.argwhere(np.triu(total >= thresholds.RELATED * np.maximum(count, 1), 1)):
        yield members[i], members[j]


def _with_common_layers(
    shape: Shape, members: Sequence[int], prints: Sequence[Fingerprint]
) -> Iterator[tuple[int, int]]:
    """Yields pairs with two layers that are versions of one, whatever their numbers."""
    import numpy as np

    parts = [np.stack([row[:_ACROSS] for row in prints[n].rows[shape].values()]) for n in members]
    parts = [rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30) for rows in parts]
    starts = np.cumsum([0, *(len(rows) for rows in parts[:-1])])
    stacked = np.concatenate(parts)
    for i, rows in enumerate(parts):
        best = np.maximum.reduceat((rows @ stacked.T).max(0), starts)
        for j in np.flatnonzero(best >= thresholds.SAME_LAYER):
            if j > i:
                yield members[i], members[int(j)]


# ------------------------------------------------------------------------------------------ families


def relate_family(
    members: Sequence[Fingerprint], uncompared: list[str], progress: Progress | None, *, with_gguf: bool
) -> LineageReport | None:
    """Returns the relations of models that are alike; None if only one of them can be read. A model whose samples can't
    be read is added to `uncompared`."""
    uncompared += [
        f"{item.name}: its family has more than {MOST} models; wb lineage compares it with chosen ones"
        for item in members[MOST:]
    ]
    paths = {item.name: item.path for item in members[:MOST]}
    with ExitStack() as stack:
        samplers: dict[str, Sampler] = {}
        for name, path in paths.items():
            try:
                model = stack.enter_context(open_model(path, SourceOptions()))
                samplers[name] = sampler_of(model, name, with_gguf=with_gguf)
            except (OSError, WeighbridgeError) as error:
                uncompared.append(_line(name, error))
        while len(samplers) > 1:
            try:
                report = relate_all(samplers, [paths[name] for name in samplers], progress)
            except (OSError, WeighbridgeError) as error:
                broken = next((name for name, sampler in samplers.items() if sampler.trouble is not None), None)
                if broken is None:
                    raise
                uncompared.append(_line(broken, error))
                del samplers[broken]
            else:
                return report
    return None


def connected(report: LineageReport) -> Iterator[LineageReport]:
    """Yields the families of a report: models that are related, two or more. Metadata may have named strangers."""
    names = [model.name for model in report.models]
    related = [(names.index(p.a), names.index(p.b)) for p in report.pairs if p.relation not in APART]
    for group in components(len(names), related):
        kin = {names[n] for n in group}
        models = tuple(model for model in report.models if model.name in kin)
        if len(kin) > 1:
            yield replace(
                report,
                models=models,
                pairs=tuple(pair for pair in report.pairs if {pair.a, pair.b} <= kin),
                tree=tuple(branch for branch in report.tree if branch.name in kin),
                contradictions=(),
                notes=(),
                bytes_read=sum(model.bytes_read for model in models),
            )
