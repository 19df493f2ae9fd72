"""Compares two models of any format tensor by tensor: names, then bytes, then values after decoding.

    diff("a/", "b.gguf") -> Diff

Where the names differ but both families are known, both are read under canonical names, so that a Hugging Face folder,
a GGUF and an MLX folder of one model compare. Values are compared in F32, in slabs; nothing is held whole.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from weighbridge.base.dtypes import F32, Kind
from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.open import ALONE, open_model
from weighbridge.reports import sidecars
from weighbridge.reports.diff.errors import LayerError, decibels, layer_errors
from weighbridge.reports.diff.renames import renamed
from weighbridge.reports.view.roles import TensorRole, canonical_role, named_roles, unknown_role

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor, Node

SCHEMA: Final = "weighbridge/diff/1"
_TEMPLATE: Final = "chat template"
_SETTINGS: Final = ("generation_config.json", "tokenizer_config.json")
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model")
_OF_THE_FILE: Final = ("split.", "general.alignment")  # how keys begin that say nothing of the model
Progress = Callable[[int, int, str], None]
Names = Literal["auto", "stored", "logical", "canonical"]
_SLAB: Final = 1 << 20  # elements compared at a time
_COMPARED: Final = 2 << 20  # bytes of either side that are compared at a time
#: What happened to a tensor, in the order of the report: most important first.
KINDS: Final = ("only in a", "only in b", "renamed", "shape", "values", "type", "equal")


@dataclass(frozen=True, slots=True)
class TensorChange:
    """One tensor. `kind`: one of KINDS ("type": another number type, the same values; "renamed": the same bytes, called
    `name_b` in b). The measures are of values in F32 (NaN beside NaN is equal; a NaN or Inf on one side alone counts in
    `broken`): the largest difference, the mean squared difference over the mean square of a (NMSE), the cosine of the
    angle between both. `snr`: the NMSE in decibels, None without an error. `squares`: the sum of the squared values of
    a. `retyped`: the number type differs. `role` and `layer`: as in the page's heat map; -1 outside of layers."""

    name: str
    kind: str
    a: str = ""
    b: str = ""
    max_abs: float | None = None
    nmse: float | None = None
    cosine: float | None = None
    broken: int = 0
    snr: float | None = None
    squares: float = 0.0
    retyped: bool = False
    name_b: str = ""
    role: str = ""
    layer: int = -1


@dataclass(frozen=True, slots=True, repr=False)
class DiffReport:
    """`names`: the dialect under which both were read. `tensors` contains all but the equal ones, worst first;
    `counts` covers all. `layers`: those with other values, the one that lost most first. `templates`: both chat
    templates where they differ."""

    a: str
    b: str
    names: str
    counts: Mapping[str, int]
    tensors: tuple[TensorChange, ...]
    metadata: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()
    layers: tuple[LayerError, ...] = ()
    templates: tuple[str, str] | None = None
    schema: str = field(default=SCHEMA)

    def __bool__(self) -> bool:
        return self.same and not self.metadata

    def __repr__(self) -> str:
        counts = ", ".join(f"{n:,} {kind}" for kind, n in self.counts.items() if n)
        return f"<DiffReport {self.a} | {self.b}: {counts}>"

    @property
    def same(self) -> bool:
        """No tensor is missing, renamed, misshapen or of other values."""
        return not any(self.counts.get(kind) for kind in KINDS[:5])

    def _repr_html_(self) -> str:
        from weighbridge.reports.diff.html import page

        return page(self)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two models under the names of one dialect (`a`, `b`), and what became of each tensor, equal ones too."""

    names: str
    a: Mapping[str, LogicalTensor]
    b: Mapping[str, LogicalTensor]
    tensors: tuple[TensorChange, ...]
    notes: tuple[str, ...]


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    names: Names = "auto",
    tolerance: float = 0.0,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> DiffReport:
    """The differences between the models at `a` and `b`. Tensors whose largest difference is at most `tolerance`
    count as equal. UsageError if one of them can't be read under `names`."""
    if names not in ("auto", "stored", "logical", "canonical"):
        raise UsageError(f"no names are called {names!r}", hint="auto, stored, logical, canonical")
    if not tolerance >= 0:  # nothing is larger than NaN
        raise UsageError(f"a tolerance can't be {tolerance}", hint="a number from 0 up")
    with open_model(a, ALONE) as one, open_model(b, ALONE) as other:
        found = diff_models(one, other, names=names, tolerance=tolerance, jobs=jobs, progress=progress)
        return replace(found, a=str(a), b=str(b))


def diff_models(
    a: Checkpoint, b: Checkpoint, *, names: Names = "auto", tolerance: float = 0.0, jobs: int | None = None,
    progress: Progress | None = None,
) -> DiffReport:  # fmt: skip
    """As `diff`, of two open models."""
    found = compare(a, b, names=names, tolerance=tolerance, jobs=jobs, progress=progress)
    changes = _with_renames(found, progress)
    counts = {kind: sum(c.kind == kind for c in changes) for kind in KINDS}
    role_of = _roles(a, b, found.names)
    ranked = sorted((_placed(c, role_of) for c in changes if c.kind != "equal"), key=_rank)
    templates = _template(a), _template(b)
    return DiffReport(
        str(a.place.path), str(b.place.path), found.names, counts, tuple(ranked), _metadata(a, b), found.notes,
        layer_errors(ranked), templates if templates[0] != templates[1] else None,
    )  # fmt: skip


def _with_renames(found: Comparison, progress: Progress | None) -> list[TensorChange]:
    """The changes, tensors that only lost their name as one."""
    gone, new = ([c.name for c in found.tensors if c.kind == kind] for kind in KINDS[:2])
    total = sum(node.spec.nbytes for node in found.a.values())

    def step(name: str) -> None:
        if progress is not None:
            progress(total, total, name)

    pairs = renamed(found.a, found.b, gone, new, step) if gone and new else {}
    taken = set(pairs.values())
    return [
        replace(c, kind="renamed", name_b=pairs[c.name], b=c.a) if c.kind == "only in a" and c.name in pairs else c
        for c in found.tensors
        if c.kind != "only in b" or c.name not in taken
    ]


def _roles(a: Checkpoint, b: Checkpoint, names: str) -> Callable[[str], TensorRole]:
    """The role and layer of a tensor by its name under `names`."""
    if names == "canonical":
        return canonical_role
    roles = named_roles(b) | named_roles(a)
    return lambda name: roles.get(name) or unknown_role(name)


def _placed(change: TensorChange, role_of: Callable[[str], TensorRole]) -> TensorChange:
    role = role_of(change.name)
    return replace(change, role=role.role, layer=role.layer)


def compare(
    a: Checkpoint, b: Checkpoint, *, names: Names = "auto", tolerance: float = 0.0, jobs: int | None = None,
    progress: Progress | None = None,
) -> Comparison:  # fmt: skip
    """What became of every tensor, of two open models."""
    called, left, right, notes = _views(a, b, names)
    return Comparison(called, left, right, tuple(_compared(left, right, tolerance, jobs, progress)), notes)


def _rank(change: TensorChange) -> tuple[int, float, str]:
    worst = change.nmse if change.nmse is not None and not math.isnan(change.nmse) else math.inf
    return KINDS.index(change.kind), -worst, change.name


_View = Mapping[str, "LogicalTensor"]


def _views(a: Checkpoint, b: Checkpoint, names: Names) -> tuple[str, _View, _View, tuple[str, ...]]:
    """Both models under the same names."""
    if names in ("stored", "logical"):
        return names, getattr(a, names), getattr(b, names), ()
    if names == "auto" and set(a.logical) == set(b.logical):
        return "logical", a.logical, b.logical, ()
    try:
        return "canonical", *_canonical(a, b)
    except WeighbridgeError as error:
        if names == "canonical":
            raise
        why = f"compared by the names they have: {error.message}"
        return "logical", a.logical, b.logical, (why,)


def _canonical(a: Checkpoint, b: Checkpoint) -> tuple[_View, _View, tuple[str, ...]]:
    """Both models under canonical names; if one is a folder and the other a GGUF, with what the GGUF has in its weights
    in the folder's, too: its multipliers, rows at length 1, products."""
    if (a.format == "gguf") == (b.format == "gguf") or not (a.family.folded or a.resolved.normalized):
        return a.resolved.canonical, b.resolved.canonical, ()
    left, right = (m.resolved.canonical if m.format == "gguf" else m.resolved.as_in_gguf for m in (a, b))
    what = "rows that the class takes at length 1 have it"
    if a.family.folded:
        what = "the multipliers of config.json are folded into the weights"
    elif a.family.products:
        what = "tensors of which a GGUF has the product are ones and the product"
    return left, right, (f"{what}, as in a GGUF",)


def _compared(a: _View, b: _View, tolerance: float, jobs: int | None, progress: Progress | None) -> list[TensorChange]:
    found = [TensorChange(name, "only in a", a=_described(a[name])) for name in a if name not in b]
    found += [TensorChange(name, "only in b", b=_described(b[name])) for name in b if name not in a]
    both = [name for name in a if name in b]
    total, done = sum(a[name].spec.nbytes for name in both), 0
    with ThreadPoolExecutor(jobs or min(os.cpu_count() or 1, 8)) as pool:
        for name, change in zip(both, pool.map(lambda n: _pair(n, a[n], b[n], tolerance), both), strict=True):
            found.append(change)
            done += a[name].spec.nbytes
            if progress is not None:
                progress(done, total, name)
    return found


def _described(node: LogicalTensor) -> str:
    packing = getattr(node, "packing", None)
    kind = packing.name if packing is not None else node.spec.dtype.name
    return f"{kind}[{', '.join(map(str, node.spec.shape))}]"


def _pair(name: str, a: LogicalTensor, b: LogicalTensor, tolerance: float) -> TensorChange:
    one, other = _described(a), _described(b)
    if a.spec.shape != b.spec.shape:
        return TensorChange(name, "shape", one, other, retyped=one.partition("[")[0] != other.partition("[")[0])
    if _same_bytes(a, b):
        return TensorChange(name, "equal", one, other)
    sums = _Sums()
    for x, y in _slabs(a, b):
        sums.add(x, y)
    kind = "type" if one != other else "equal"
    if sums.largest > tolerance or sums.broken:
        kind = "values"
    return TensorChange(
        name, kind, one, other, sums.largest, sums.nmse, sums.cosine, sums.broken, decibels(sums.nmse), sums.a,
        retyped=one != other,
    )  # fmt: skip


def _same_bytes(a: LogicalTensor, b: LogicalTensor) -> bool:
    """Equal without decoding: the same type, byte for byte; of packed ones every member. Also where NaN has a
    payload."""
    from weighbridge.tensors.nodes import QuantizedTensor

    if isinstance(a, QuantizedTensor) and isinstance(b, QuantizedTensor):
        return a.packing == b.packing and all(_same_bytes(a.members[m], b.members[m]) for m in a.members)
    if isinstance(a, QuantizedTensor) or isinstance(b, QuantizedTensor) or a.spec != b.spec:
        return False
    step = max(1, _COMPARED // max(a.spec.row_bytes, 1))
    return all(_same_rows(a, b, lo, min(lo + step, a.spec.rows)) for lo in range(0, a.spec.rows, step))


def _same_rows(a: Node, b: Node, lo: int, hi: int) -> bool:
    import numpy as np

    from weighbridge.tensors.nodes.base import RowRange, borrow

    with borrow(RowRange(a, lo, hi), RowRange(b, lo, hi)) as pair:
        one, other = (data.view(np.uint64) if data.nbytes % 8 == 0 else data for data in pair)
        return bool((one == other).all())


def _slabs(a: LogicalTensor, b: LogicalTensor) -> Iterator[tuple[Any, Any]]:
    """Runs of rows of both, as F32 (integers as F64: an I64 has values that F32 rounds)."""
    import numpy as np

    one, other = _floats(a), _floats(b)
    step = max(1, _SLAB // max(one.spec.row_atoms, 1))
    for lo in range(0, one.spec.rows, step):
        hi = min(lo + step, one.spec.rows)
        x, y = (_numbers(node, node.read(lo, hi)).astype(np.float64) for node in (one, other))
        yield x, y


def _floats(node: LogicalTensor) -> Node:
    from weighbridge.tensors import kernels
    from weighbridge.tensors.nodes import Node, cast

    if not isinstance(node, Node) or node.spec.dtype.kind is Kind.BLOCK or kernels.casts(node.spec.dtype, F32):
        return cast(node, F32)
    return node


def _numbers(node: Node, data: Any) -> Any:
    import numpy as np

    if node.spec.dtype.numpy is None or node.spec.dtype.kind is Kind.COMPLEX:
        raise UnsupportedError(f"{node.spec.dtype} has no values to compare")
    return data.view(np.dtype(node.spec.dtype.numpy))


class _Sums:
    """The measures of two tensors, slab by slab."""

    def __init__(self) -> None:
        self.largest = self.error = self.a = self.b = self.both = 0.0
        self.broken = 0

    def add(self, a: Any, b: Any) -> None:
        import numpy as np

        fine = np.isfinite(a) & np.isfinite(b)
        if not fine.all():
            alike = (a == b) | (np.isnan(a) & np.isnan(b))
            self.broken += int((~fine & ~alike).sum())
            a, b = np.where(fine, a, 0), np.where(fine, b, 0)
        difference = a - b
        self.largest = max(self.largest, float(np.abs(difference).max(initial=0)))
        self.error += float(difference @ difference)
        self.a, self.b, self.both = self.a + float(a @ a), self.b + float(b @ b), self.both + float(a @ b)

    @property
    def nmse(self) -> float:
        return self.error / self.a if self.a else (0.0 if not self.error else math.inf)

    @property
    def cosine(self) -> float:
        size = math.sqrt(self.a) * math.sqrt(self.b)
        return min(1.0, self.both / size) if size else (1.0 if self.a == self.b else 0.0)


def _metadata(a: Checkpoint, b: Checkpoint) -> tuple[tuple[str, str, str], ...]:
    """Keys whose values differ, where both are of one format, and chat templates: (key, in a, in b), long values
    shortened."""
    templates = _TEMPLATE, _template(a), _template(b)
    if a.format != b.format:
        differ = templates[1] and templates[2] and templates[1] != templates[2]
        return ((_TEMPLATE, _short(templates[1]), _short(templates[2])),) if differ else ()
    one, other = dict(a.metadata), dict(b.metadata)
    if a.format != "gguf":
        one[_TEMPLATE], other[_TEMPLATE] = templates[1:]
        folders = a.place.path.is_dir() and b.place.path.is_dir()
        one |= _sidecars(a, folders)
        other |= _sidecars(b, folders)
    keys = sorted(k for k in {*one, *other} if one.get(k) != other.get(k) and not k.startswith(_OF_THE_FILE))
    return tuple((k, _short(one.get(k)), _short(other.get(k))) for k in keys)


def _sidecars(model: Checkpoint, folders: bool) -> dict[str, Any]:
    """The settings beside the weights by file and key, and the content of the tokenizer's files; of two folders all
    of them, otherwise the config's alone."""
    found = {f"config.json: {k}": v for k, v in model.config.items()}
    for name in _SETTINGS if folders else ():
        settings = sidecars.json(model.place.folder / name)
        found |= {f"{name}: {k}": v for k, v in settings.items() if k != "chat_template"}
    for name in _TOKENIZERS if folders else ():
        data = sidecars.read(model.place.folder / name, TOKENIZER_JSON)
        if data is not None:
            found[name] = _content(data)
    return found


def _content(data: bytes) -> str:
    """The content of a tokenizer's file: of JSON its value, however it is written."""
    value = sidecars.decoded(data)
    same = data if value is None else msgspec.json.encode(value, order="sorted")
    return f"sha256 {hashlib.sha256(same).hexdigest()[:12]}"


def _template(model: Checkpoint) -> str:
    """The chat template of a GGUF, or of a model's folder; "" where there is none."""
    if model.format == "gguf":
        return str(model.metadata.get("tokenizer.chat_template") or "")
    return (sidecars.chat_template(model.place.folder) if model.place.path.is_dir() else None) or ""


def _short(value: Any) -> str:
    text = "" if value is None else str(getattr(value, "value", value))
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text):,} characters)"
