"""Models merged from changes that keep only some of their elements: TIES, DARE, DELLA, breadcrumbs, SCE. With the right
base and sources, every element follows from a set of survivors; with a relative in place of one, many don't."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from weighbridge.reports.lineage import thresholds
from weighbridge.reports.lineage.layer_map import spread
from weighbridge.reports.lineage.mixing import Made, common_places, near_relatives, sampled
from weighbridge.reports.lineage.model import LineagePair, LineageSource
from weighbridge.reports.lineage.sampling import Sampler

if TYPE_CHECKING:
    from weighbridge.tensors.likeness import F64
    from weighbridge.tensors.merging.sparse_sums import Peak


class SparseMerge(NamedTuple):
    """How a model follows from sources over a base. `off`: share of the changed elements; `dropped`, `partial`: of all
    (see `SparseFit`). `exclusive`: by source, the share of changed elements that only it explains. `factors`: their
    medians."""

    base: str
    sources: tuple[str, ...]
    off: float
    dropped: float
    partial: float
    exclusive: tuple[float, ...]
    factors: tuple[float, ...]

    @property
    def models(self) -> frozenset[str]:
        return frozenset((self.base, *self.sources))

    @property
    def is_accepted(self) -> bool:
        """Whether the unexplained elements are so few that no relative can replace a source, and the base is
        needed: in a weighted sum of models it cancels out."""
        if not self.sources or min(self.dropped, self.partial) < thresholds.SPARSE_DROPPED:
            return False
        least = min(self.exclusive)
        return least >= thresholds.SPARSE_NEEDED and self.off <= thresholds.SPARSE_OFF * least

    @property
    def is_directed(self) -> bool:
        """Whether the base can't be the merge instead: from a multiple of one change it can."""
        return len(self.sources) > 1 or abs(self.factors[0] - 1) <= thresholds.SPARSE_WHOLE


def find_sparse(
    samplers: Mapping[str, Sampler], pairs: Sequence[LineagePair], explained: Mapping[str, Made]
) -> Iterator[Made]:
    """Yields the models that are sums of sparse changes; as "sum" if the direction is unknown. `explained`: the models
    whose sources are known. A merged model is never a source: its sources are."""
    merged = {name for name, row in explained.items() if row.relation == "merged"}
    tried: dict[str, list[str]] = {}
    while True:
        before = len(merged)
        for name, model in samplers.items():
            if name in explained or name in merged or model.lossy:
                continue
            peers = near_relatives(model, {n: s for n, s in samplers.items() if n not in merged}, pairs)
            names = [peer.name for peer in peers]
            if len(peers) < 2 or tried.get(name) == names:
                continue
            tried[name] = names
            if (best := search(model, peers)) is not None and best.is_directed:
                merged.add(name)
                yield _sparse_sum(name, best)
            elif best is not None:
                yield _sparse_sum(name, best)._replace(relation="sum")
        if len(merged) == before:
            return


def _sparse_sum(name: str, best: SparseMerge) -> Made:
    factors = [f"{factor:.3g} {source}" for factor, source in zip(best.factors, best.sources, strict=True)]
    sources = tuple(map(LineageSource, (best.base, *best.sources)))
    return Made(name, "merged", sources, f"sparse changes of {' and '.join(factors)}, over {best.base}")


def search(model: Sampler, peers: Sequence[Sampler]) -> SparseMerge | None:
    """Returns the only set of models that a model follows from; None if there is none, or several."""
    places = spread(common_places([model, *peers]), thresholds.SPARSE_MATRICES)
    if not places:
        return None
    target = [sampled(model, place) for place in places]
    values = {peer.name: [sampled(peer, place) for place in places] for peer in peers}
    equal = {
        name: sum(float((x == y).mean()) for x, y in zip(rows, target, strict=True)) / len(target)
        for name, rows in values.items()
    }
    accepted = []
    for base in sorted((n for n in equal if equal[n] >= thresholds.SPARSE_DROPPED), key=lambda n: -equal[n]):
        few = _OverBase(
            model, base, target[:: len(target) - 1 or 1], {n: v[:: len(v) - 1 or 1] for n, v in values.items()}
        )
        if sets := few.source_sets():
            whole = _OverBase(model, base, target, values)
            accepted += [fit for sources in sets if (fit := whole.fit(sources)).is_accepted]
    if not accepted:
        return None
    best = min(accepted, key=lambda fit: (len(fit.sources), fit.off))
    return best if all(fit.models == best.models or best.models < fit.models for fit in accepted) else None


class _OverBase:
    """The changes of a model and of its possible sources from a base, in some matrices."""

    def __init__(
        self, model: Sampler, base: str, target: Sequence[F64], values: Mapping[str, Sequence[F64]]
    ) -> None:  # fmt: skip
        from weighbridge.tensors.likeness import half_ulp

        self.base = base
        self.change = [x - y for x, y in zip(target, values[base], strict=True)]
        self.tolerance = [
            half_ulp(x, model.float_type) * 1.02 + abs(change) * thresholds.SPARSE_ARITHMETIC
            for x, change in zip(target, self.change, strict=True)
        ]
        self.changes = {
            name: [x - y for x, y in zip(rows, values[base], strict=True)]
            for name, rows in values.items()
            if name != base
        }
        self.peaks: dict[str, list[Peak]] = {}

    def source_sets(self) -> list[tuple[str, ...]]:
        """Returns the set of sources that explains the most, found one by one, and the nearest rival of the last."""
        visible = [name for name in self.changes if self.visibility(name) >= thresholds.SPARSE_VISIBLE]
        best: SparseMerge | None = None
        rival: SparseMerge | None = None
        while best is None or len(best.sources) < thresholds.MIX_SIZE - 1:
            chosen = best.sources if best is not None else ()
            tried = [self.fit((*chosen, name)) for name in visible if name not in chosen]
            tried.sort(key=lambda fit: fit.off)
            if not tried or (best is not None and tried[0].off > best.off - thresholds.SPARSE_NEEDED):
                break
            best, rival = tried[0], tried[1] if len(tried) > 1 else None
        if best is None or best.off > thresholds.SPARSE_NEEDED:
            return []
        rows = zip(best.sources, best.exclusive, strict=True)
        essential = tuple(source for source, share in rows if share >= thresholds.SPARSE_NEEDED)
        return [sources for sources in (essential, rival.sources if rival else ()) if sources]

    def peaks_of(self, name: str) -> list[Peak]:
        from weighbridge.tensors.merging.sparse_sums import find_peak

        if name not in self.peaks:
            rows = zip(self.change, self.changes[name], self.tolerance, strict=True)
            self.peaks[name] = [find_peak(*row) for row in rows]
        return self.peaks[name]

    def visibility(self, name: str) -> float:
        """Returns the share of the changed elements that a single source explains, beyond chance."""
        changed = sum(int((abs(x) > y).sum()) for x, y in zip(self.change, self.tolerance, strict=True))
        return sum(peak.explained - peak.chance for peak in self.peaks_of(name)) / max(changed, 1)

    def fit(self, sources: tuple[str, ...]) -> SparseMerge:
        import numpy as np

        from weighbridge.tensors.merging.sparse_sums import fit_sparse

        fits = [
            fit_sparse(
                change, [self.changes[n][i] for n in sources], tolerance, [self.peaks_of(n)[i].factor for n in sources]
            )
            for i, (change, tolerance) in enumerate(zip(self.change, self.tolerance, strict=True))
        ]
        changed, elements = max(sum(fit.changed for fit in fits), 1), sum(fit.elements for fit in fits)
        off = sum(fit.off for fit in fits)
        dropped, partial = (sum(getattr(fit, name) for fit in fits) / elements for name in ("dropped", "partial"))
        exclusive = tuple((sum(fit.chance[n] for fit in fits) - off) / changed for n in range(len(sources)))
        factors = tuple(float(np.median([fit.factors[n] for fit in fits])) for n in range(len(sources)))
        return SparseMerge(self.base, sources, off / changed, dropped, partial, exclusive, factors)
