"""The differences of two models, matrix by matrix: which are products of thin matrices, which are stored whole, and
which an adapter can't hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from hashlib import sha256
from typing import Final, NamedTuple

import numpy as np

from weighbridge.base.dtypes import BF16, F16, F32
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.conversion.extraction.options import ExtractOptions
from weighbridge.conversion.merging.folder_view import HF, FolderView
from weighbridge.conversion.result import Loss, Progress
from weighbridge.models.lora.forms import is_table
from weighbridge.models.lora.pairs import LoraPair, is_linear, is_turned
from weighbridge.tensors.factorize import ChangedRows, RankLimit, RankLimitation, factorize
from weighbridge.tensors.nodes import LogicalTensor, Node, as_node, cast, const, is_plain, needs_decoding, storage_name

# Bits of the fractions of the types that a model is trained in: rounding to them is part of a difference.
_FRACTION: Final = {F32: 23, F16: 10, BF16: 7}


@dataclass(frozen=True)
class ExtractedMatrix:
    """A changed matrix. `limited_by`: what its rank ends at: "rank" or "energy" (the options), "rounding" (the
    rest is as large as the rounding of the tuned weights) or "full" (nothing remains). `energy`: the share of the
    squared difference that is captured. `error`: the length of the rest relative to the difference, `change`: of the
    difference relative to the base. Rank 0: the difference is only rounding, and the adapter lacks the matrix."""

    name: str
    shape: tuple[int, ...]
    rank: int
    limited_by: RankLimitation
    energy: float
    error: float
    change: float


@dataclass
class Changes:
    """The parts of an adapter. `pairs`, `whole`: by the tensors' names in a folder. `tables`: the embeddings among
    `pairs`. `transposed`: whether layers store their weights transposed (GPT-2)."""

    pairs: dict[str, LoraPair] = field(default_factory=dict)
    whole: dict[str, Node] = field(default_factory=dict)
    tables: set[str] = field(default_factory=set)
    transposed: bool = False
    matrices: list[ExtractedMatrix] = field(default_factory=list)
    unchanged: int = 0
    losses: list[Loss] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def renamed(self, names: Mapping[str, str]) -> Changes:
        """Returns the same changes of tensors with other names."""
        return replace(
            self,
            pairs={names.get(name, name): pair for name, pair in self.pairs.items()},
            whole={names.get(name, name): node for name, node in self.whole.items()},
            tables={names.get(name, name) for name in self.tables},
            matrices=[replace(one, name=names.get(one.name, one.name)) for one in self.matrices],
        )


class TunedPair(NamedTuple):
    """Two models of one family. `jobs`: threads. `keep`: bytes of a matrix that may stay in memory."""

    base: FolderView
    tuned: FolderView
    options: ExtractOptions
    jobs: int
    keep: int


def find_changes(models: TunedPair, progress: Progress | None = None) -> Changes:
    """Reads models models and decomposes their differences. Raises UsageError for models that don't fit each other,
    FormatError for values that aren't finite."""
    base, tuned, options = models.base, models.tuned, models.options
    _check(base, tuned)
    changes = Changes(notes=list(_notes(base, tuned)))
    saved = _modules_to_save(tuned, options)
    for only, view in ((tuned, base), (base, tuned)):
        names = only.tensors.keys() - view.tensors.keys()
        owner = "tuned model" if only is tuned else "base"
        changes.losses += [Loss(f"left out: only the {owner} has it", name, "results") for name in sorted(names)]
    common = [name for name in tuned.tensors if name in base.tensors]
    for number, name in enumerate(common):
        try:
            _add(models, changes, name, whole=_module(name) in saved)
        except FormatError as error:
            raise FormatError(error.reason, path=str(tuned.model.place.path), field=name, hint=error.hint) from None
        if progress is not None:
            progress(number + 1, len(common), name)
    return changes


def _add(models: TunedPair, changes: Changes, name: str, *, whole: bool) -> None:
    """Adds one tensor's difference."""
    before, after = models.base.tensors[name], models.tuned.tensors[name]
    grown = before.spec.shape != after.spec.shape
    if grown and not (name in models.tuned.embeddings and before.spec.shape[1:] == after.spec.shape[1:]):
        shapes = f"{list(before.spec.shape)} in the base and {list(after.spec.shape)} in the tuned model"
        raise UsageError(f"{name} is {shapes}", hint="name the model that was tuned")
    if grown or whole:
        changes.whole[name] = as_node(after)
        if grown:
            rows = after.spec.shape[0]
            changes.notes.append(
                f"stored whole: {name} has other rows; before PEFT loads it, resize the base's to {rows:,}"
            )
    elif len(after.spec.shape) != 2 or not name.endswith(".weight") or _is_of_norms(models.base, name):
        if _differs(before, after):
            changes.losses.append(
                Loss(f"left out: changed, and no matrix of a layer; --modules-to-save {_last(name)}", name, "results")
            )
        else:
            changes.unchanged += 1
    else:
        _add_matrix(models, changes, name, before, after)


def _is_of_norms(view: FolderView, name: str) -> bool:
    """Whether the table describes a matrix as the weights of norms, not of a linear layer."""
    place = view.model.family.expansion(HF, view.model.sizes).places.get(name) if view.by_table else None
    return place is not None and not is_linear(view.model.family, place)


def _add_matrix(models: TunedPair, changes: Changes, name: str, before: LogicalTensor, after: LogicalTensor) -> None:
    rows, columns = after.spec.shape
    bits = _FRACTION.get(after.spec.dtype) if is_plain(after) else None
    read = partial(_difference, cast(before, F32), cast(after, F32), bits)
    limit = RankLimit(models.options.rank, models.options.energy)
    factors = factorize(read, (rows, columns), limit, sha256(name.encode()).digest(), models.jobs, models.keep)
    if not factors.rank and not factors.error:
        changes.unchanged += 1
        return
    changes.matrices.append(
        ExtractedMatrix(
            name, (rows, columns), factors.rank, factors.limited_by, factors.energy, factors.error, factors.change
        )
    )
    if not factors.rank:
        return
    pair = LoraPair(const(factors.down, F32), const(factors.up, F32))
    view = models.base
    if view.by_table:
        family, place = view.model.family, view.model.family.expansion(HF, view.model.sizes).places.get(name)
        if place is not None and is_table(family, place):
            changes.tables.add(name)
        elif place is not None and is_turned(family, HF, place):
            changes.transposed = True
            pair = pair.turned()
    elif name in view.embeddings and "head" not in name:
        changes.tables.add(name)
    changes.pairs[name] = pair


def _difference(before: Node, after: Node, bits: int | None, lo: int, hi: int) -> ChangedRows:
    """Rows of a difference, with the rounding errors that values with fractions of `bits` have."""
    old, new = (node.read(lo, hi).view(np.float32).reshape(hi - lo, -1) for node in (before, after))
    with np.errstate(all="ignore"):
        noise = 0.0
        if bits is not None:  # evenly distributed errors up to half a unit in the last place
            units = np.ldexp(np.float64(1), np.frexp(new)[1] - 1 - bits)
            noise = float(np.add.reduce(units * units, axis=None)) / 12
        return ChangedRows(new - old, noise, float(np.add.reduce(np.square(old, dtype=np.float64), axis=None)))


def _differs(before: LogicalTensor, after: LogicalTensor) -> bool:
    rows = after.spec.rows
    step = max(1, (1 << 20) // max(after.spec.elements // max(rows, 1), 1))
    nodes = cast(before, F32), cast(after, F32)
    bands = ((lo, min(lo + step, rows)) for lo in range(0, rows, step))
    return any(not np.array_equal(nodes[0].read(lo, hi), nodes[1].read(lo, hi)) for lo, hi in bands)


# ------------------------------------------------------------------------------------------------ checks


def _check(base: FolderView, tuned: FolderView) -> None:
    for view in (base, tuned):
        if view.model.makes_pictures:
            title = view.model.diffusion.title if view.model.diffusion is not None else "a pipeline"
            raise UnsupportedError(
                f"{view.model.place.path} is {title}: LoRAs of image models aren't extracted",
                hint="wb diff names the matrices that differ",
            )
    if (base.by_table, base.family_name) != (tuned.by_table, tuned.family_name):
        raise UsageError(
            f"the models are of different families: {base.family_name} and {tuned.family_name}",
            hint="name the model that was tuned: wb extract-lora BASE TUNED DST",
        )
    if not base.tensors.keys() & tuned.tensors.keys():
        raise UsageError(
            "the models have no tensor of the same name", hint="wb rename gives both the same names; wb identify each"
        )


def _notes(base: FolderView, tuned: FolderView) -> Iterator[str]:
    for role, view in (("base", base), ("tuned model", tuned)):
        kinds = {storage_name(node): n for n, node in view.tensors.items() if needs_decoding(node)}
        if kinds:
            listed = ", ".join(sorted(kinds))
            yield f"the {role} is quantized ({listed}): its rounding errors are part of the difference"
    if any(".experts." in name for name in tuned.tensors):
        yield "experts are single modules here; transformers 5 stacks them, where wb convert --lora merges the adapter"


def _modules_to_save(tuned: FolderView, options: ExtractOptions) -> set[str]:
    """The modules that `--modules-to-save` names. Raises UsageError for a name that none has."""
    modules = {_module(name) for name in tuned.tensors}
    chosen: set[str] = set()
    for name in options.modules_to_save:
        matching = {module for module in modules if module == name or module.endswith(f".{name}")}
        if not matching:
            names = ", ".join(sorted({_last(name) for name in tuned.tensors})[:12])
            raise UsageError(f"no module is called {name!r}", hint=f"modules: {names}")
        chosen |= matching
    return chosen


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _last(name: str) -> str:
    return _module(name).rpartition(".")[2]
