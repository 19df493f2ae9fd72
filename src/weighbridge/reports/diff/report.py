"""Compares two models of any format tensor by tensor: names, then bytes, then decoded values.

    diff("a/", "b.gguf") -> DiffReport

If the names differ but both families are known, both are read under canonical names, so a Hugging Face folder, a GGUF
and an MLX folder of one model can be compared. Values are compared in F32, a slab at a time.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from weighbridge.base.dtypes import F32, DType, Kind
from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.base.options import Progress, accepting
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.base.words import plural
from weighbridge.io.location import path_text
from weighbridge.io.options import cores
from weighbridge.io.workers import Workers
from weighbridge.models.borrowed_config import read_alike, with_borrowed_configs
from weighbridge.models.clients import MLX_LM, client_of
from weighbridge.models.llamacpp.towers import alike
from weighbridge.models.model import OpenModel
from weighbridge.models.module_weights import canonical_modules, module_tensors
from weighbridge.models.open import ALONE, open_model
from weighbridge.models.tensor_roles import canonical_role, unknown_role
from weighbridge.models.tied_copies import without_copies
from weighbridge.models.wrapped import named_alike, parts_lacking
from weighbridge.reports import sidecars
from weighbridge.reports.diff.errors import layer_errors
from weighbridge.reports.diff.model import KINDS, DiffReport, TensorChange, decibels
from weighbridge.reports.diff.renames import find_renamed
from weighbridge.reports.lineage.report import relate_models
from weighbridge.reports.options import DiffOptions, Names
from weighbridge.reports.survey import roles_by_name

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor, Node

_TEMPLATE: Final = "chat template"
_SETTINGS: Final = (
    "generation_config.json", "tokenizer_config.json", "preprocessor_config.json", "processor_config.json",
    "adapter_config.json",
)  # fmt: skip
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model")
_FILE_KEYS: Final = ("split.", "general.alignment")  # prefixes of keys that describe the file, not the model
_SLAB: Final = 1 << 20  # elements compared at a time


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two models under the names of one dialect (`a`, `b`), and the change of each tensor, including equal ones."""

    names: str
    a: Mapping[str, LogicalTensor]
    b: Mapping[str, LogicalTensor]
    tensors: tuple[TensorChange, ...]
    notes: tuple[str, ...]


@accepting(DiffOptions)
def diff(a: str | os.PathLike[str], b: str | os.PathLike[str], options: DiffOptions) -> DiffReport:
    """Returns the differences between the models at `a` and `b`. Tensors whose largest difference is at most
    `tolerance` count as equal. Raises UsageError if one of them can't be read under `names`."""
    if options.names not in (known := get_args(Names)):
        raise UsageError(f"unknown names {options.names!r}", hint=", ".join(known))
    if not options.tolerance >= 0:  # also refuses NaN
        raise UsageError(f"a tolerance can't be {options.tolerance}", hint="use a number from 0 up")
    opening = replace(ALONE, arch_file=options.arch_file)
    with open_model(a, opening) as first, open_model(b, opening) as second:
        (first, second), notes = with_borrowed_configs([first, second])
        left, right = alike(*named_alike(first, second))
        notes += parts_lacking(left, right)
        report = diff_models(
            left, right, names=options.names, tolerance=options.tolerance, jobs=options.jobs, progress=options.progress
        )
        related = relate_models([left, right], [path_text(a), path_text(b)]).pairs[0] if options.lineage else None
        return replace(report, a=path_text(a), b=path_text(b), notes=(*notes, *report.notes), lineage=related)


def diff_models(
    a: OpenModel, b: OpenModel, *, names: Names = "auto", tolerance: float = 0.0, jobs: int | None = None,
    progress: Progress | None = None,
) -> DiffReport:  # fmt: skip
    """Returns the differences between two open models; the arguments are those of `diff`."""
    comparison = compare(a, b, names=names, tolerance=tolerance, jobs=jobs, progress=progress)
    changes = _merge_renames(comparison, progress)
    counts = {kind: sum(c.kind == kind for c in changes) for kind in KINDS}
    canonical = comparison.names == "canonical"
    roles = {} if canonical else roles_by_name(b) | roles_by_name(a)
    placed = []
    for change in changes:
        if change.kind != "equal":
            role = canonical_role(change.name) if canonical else roles.get(change.name) or unknown_role(change.name)
            placed.append(replace(change, role=role.role, layer=role.layer))
    placed.sort(key=_rank)
    templates = _template(a), _template(b)
    return DiffReport(
        str(a.place.path), str(b.place.path), comparison.names, counts, tuple(placed), _metadata(a, b),
        comparison.notes, layer_errors(placed), templates if templates[0] != templates[1] else None,
    )  # fmt: skip


def _rank(change: TensorChange) -> tuple[int, float, str]:
    worst = change.nmse if change.nmse is not None and not math.isnan(change.nmse) else math.inf
    return KINDS.index(change.kind), -worst, change.name


def _merge_renames(comparison: Comparison, progress: Progress | None) -> list[TensorChange]:
    """Returns the changes, with the two of a renamed tensor merged into one."""
    only_a, only_b = ([c.name for c in comparison.tensors if c.kind == kind] for kind in KINDS[:2])
    if not only_a or not only_b:
        return list(comparison.tensors)
    total = sum(node.spec.nbytes for node in comparison.a.values())

    def step(name: str) -> None:
        if progress is not None:
            progress(total, total, name)

    pairs = find_renamed(comparison.a, comparison.b, only_a, only_b, step)
    new_names = set(pairs.values())
    return [
        replace(c, kind="renamed", name_b=pairs[c.name], b=c.a) if c.kind == "only in a" and c.name in pairs else c
        for c in comparison.tensors
        if c.kind != "only in b" or c.name not in new_names
    ]


def compare(
    a: OpenModel, b: OpenModel, *, names: Names = "auto", tolerance: float = 0.0, jobs: int | None = None,
    progress: Progress | None = None,
) -> Comparison:  # fmt: skip
    """Compares every tensor of two open models; the arguments are those of `diff`."""
    dialect, left, right, notes = common_views(a, b, names)
    if names != "stored":
        left, right, notes = _with_modules(a, b, dialect, left, right, notes)
    return compare_views(dialect, left, right, notes, tolerance=tolerance, jobs=jobs, progress=progress)


def compare_folded(
    a: OpenModel, b: OpenModel, *, jobs: int | None = None, progress: Progress | None = None
) -> Comparison | None:
    """Compares two folders whose class multiplies or normalizes weights when it runs: the weights of both as in a
    GGUF, which has the results. None for other models."""
    with suppress(WeighbridgeError):
        folds = a.resolved.folds or b.resolved.folds
        if folds and "gguf" not in (a.format, b.format) and a.family.gguf == b.family.gguf:
            left, right = a.resolved.as_in_gguf, b.resolved.as_in_gguf
            views = _with_others(a, b, left, right, (f"{_folding(a if a.resolved.folds else b)}, as in a GGUF",))
            return compare_views("canonical", *views, jobs=jobs, progress=progress)
    return None


def compare_views(
    dialect: str, left: View, right: View, notes: tuple[str, ...], *, tolerance: float = 0.0,
    jobs: int | None = None, progress: Progress | None = None,
) -> Comparison:  # fmt: skip
    """Compares every tensor of two models under names of one dialect."""
    changes = [TensorChange(name, "only in a", a=_describe(left[name])) for name in left if name not in right]
    changes += [TensorChange(name, "only in b", b=_describe(right[name])) for name in right if name not in left]
    common = [name for name in left if name in right]
    total, done = sum(left[name].spec.nbytes for name in common), 0
    with Workers(jobs or min(cores(), 8), "diff") as pool:
        pairs = pool.map(lambda name: _compare_pair(name, left[name], right[name], tolerance), common)
        for name, change in zip(common, pairs, strict=True):
            changes.append(change)
            done += left[name].spec.nbytes
            if progress is not None:
                progress(done, total, name)
    return Comparison(dialect, left, right, tuple(changes), notes)


View = Mapping[str, "LogicalTensor"]


def common_views(a: OpenModel, b: OpenModel, names: Names = "auto") -> tuple[str, View, View, tuple[str, ...]]:
    """Returns the dialect, both models under its names, and notes."""
    if names in ("stored", "logical"):
        return names, getattr(a, names), getattr(b, names), ()
    if names == "auto" and (
        (a.makes_pictures and b.makes_pictures) or (_shapes(a) == _shapes(b) and not _laid_out_apart(a, b))
    ):
        return "logical", a.logical, b.logical, ()
    try:
        a, b = read_alike(a, b)
        left, right, notes = _canonical_views(a, b)
        return "canonical", *_with_others(a, b, left, right, notes)
    except WeighbridgeError as error:
        if names == "canonical":
            raise
        return "logical", a.logical, b.logical, (f"compared by logical names: {error.message}",)


def _laid_out_apart(a: OpenModel, b: OpenModel) -> bool:
    """Returns whether two GGUFs are read by different tables, which may lay out the same rows differently: a GLM-4V's
    and a GLM-4's."""
    if (a.format, b.format) != ("gguf", "gguf"):
        return False
    with suppress(WeighbridgeError):
        return a.family.name != b.family.name
    return False


def _shapes(model: OpenModel) -> dict[str, Shape]:
    return {name: node.spec.shape for name, node in model.logical.items()}


def _canonical_views(a: OpenModel, b: OpenModel) -> tuple[View, View, tuple[str, ...]]:
    """Returns both models under canonical names. If one is a folder and the other a GGUF, the folder's weights are
    changed as in a GGUF: multipliers folded in, rows normalized, products computed. A GGUF's copies are left out."""
    if (a.format == "gguf") != (b.format == "gguf"):
        a, b = (without_copies(m)[0] if m.format == "gguf" else m for m in (a, b))
    if (a.format == "gguf") == (b.format == "gguf") or not a.resolved.folds:
        return a.resolved.canonical, b.resolved.canonical, ()
    left, right = (m.resolved.canonical if m.format == "gguf" else m.resolved.as_in_gguf for m in (a, b))
    return left, right, (f"{_folding(a)}, as in a GGUF",)


def _folding(model: OpenModel) -> str:
    """Returns how a GGUF's weights of the family differ from a folder's."""
    if model.family.folded:
        return "the multipliers in config.json are folded into the weights"
    if model.family.products:
        return "pairs of tensors whose product a GGUF stores are replaced by ones and the product"
    return "rows that the model normalizes are normalized"


def _with_others(
    a: OpenModel, b: OpenModel, left: View, right: View, notes: tuple[str, ...]
) -> tuple[View, View, tuple[str, ...]]:
    """Returns both views with the tensors that the family doesn't name, such as towers, if both models have some or
    should, and otherwise a note on those of one."""
    others = [{name: m.logical[name] for name in m.resolved.others if name in m.logical} for m in (a, b)]
    if all(names or expects_parts(model) for model, names in zip((a, b), others, strict=True)):
        if others[0].keys() != others[1].keys():  # releases of transformers have their own prefixes
            others = [_in_one_release(m, nodes) for m, nodes in zip((a, b), others, strict=True)]
        return {**left, **others[0]}, {**right, **others[1]}, notes
    parts = [m.resolved.report.apart for m in (a, b)]  # without buffers, which follow from the config
    missing = [f"not compared: {plural(len(names), 'tensor')} of {m.place.path}, such as {names[0]}"
               for m, names in zip((a, b), parts, strict=True) if names]  # fmt: skip
    return left, right, (*notes, *missing)


def _with_modules(
    a: OpenModel, b: OpenModel, dialect: str, left: View, right: View, notes: tuple[str, ...]
) -> tuple[View, View, tuple[str, ...]]:
    """Returns both views with the dense modules of sentence-transformers, which folders have in files of their own. For
    those that a GGUF has no place for, returns a note."""
    views = []
    for model, other, view in ((a, b, left), (b, a, right)):
        tensors = module_tensors(model, dialect == "canonical")
        if tensors and other.format == "gguf":
            places = canonical_modules(other).values()
            notes += tuple(f"not compared: {name}, for which the GGUF has no place" for name in tensors.keys() - places)
            tensors = {name: node for name, node in tensors.items() if name in places}
        views.append({**view, **tensors})
    return views[0], views[1], notes


def expects_parts(model: OpenModel) -> bool:
    """Whether a folder is of a class that also has other parts, such as towers, for a program that reads them."""
    if model.format == "gguf" or client_of(model) == MLX_LM:
        return False
    architecture = model.family.architecture(model.config)
    return architecture is not None and architecture.part is not None


def _in_one_release(model: OpenModel, tensors: dict[str, LogicalTensor]) -> dict[str, LogicalTensor]:
    """Returns towers under mlx-vlm's names, which are the same for every release; unchanged if they aren't known."""
    from weighbridge.models.mlxlm.towers import tower_names  # late: few pairs need its table

    names = tower_names(model.config) if model.format != "gguf" else None
    renamed = {names.to_mlx(name): node for name, node in tensors.items()} if names else tensors
    return renamed if len(renamed) == len(tensors) else tensors


def _describe(node: LogicalTensor) -> str:
    packing = getattr(node, "packing", None)
    kind = packing.name if packing is not None else node.spec.dtype.name
    return f"{kind}[{', '.join(map(str, node.spec.shape))}]"


def _compare_pair(name: str, a: LogicalTensor, b: LogicalTensor, tolerance: float) -> TensorChange:
    left, right = _describe(a), _describe(b)
    if a.spec.shape != b.spec.shape:
        return TensorChange(name, "shape", left, right, retyped=left.partition("[")[0] != right.partition("[")[0])
    from weighbridge.tensors.filling import same_bytes

    if same_bytes(a, b):
        return TensorChange(name, "equal", left, right)
    sums = _Sums()
    for values in _slabs(a, b):
        sums.add(*values)
    kind = "type" if left != right else "equal"
    if sums.largest > tolerance or sums.broken:
        kind = "values"
    return TensorChange(
        name, kind, left, right, sums.largest, sums.nmse, sums.cosine, sums.broken, decibels(sums.nmse), sums.a,
        retyped=left != right,
    )  # fmt: skip


def _slabs(a: LogicalTensor, b: LogicalTensor) -> Iterator[tuple[Any, ...]]:
    """Yields runs of rows of both tensors as flat f64 arrays: floats rounded to F32, integers exact up to 53 bits."""
    import numpy as np

    nodes = comparable(a), comparable(b)
    spec = nodes[0].spec
    step = max(1, _SLAB // max(spec.row_atoms, 1))
    for lo in range(0, spec.rows, step):
        hi = min(lo + step, spec.rows)
        yield tuple(node.read(lo, hi).view(np.dtype(node.spec.dtype.numpy)).astype(np.float64) for node in nodes)


def count_unexplained(a: LogicalTensor, b: LogicalTensor, dtype: DType) -> int:
    """Returns the number of values of two tensors that differ by more than rounding to `dtype` explains."""
    from weighbridge.tensors.likeness import unexplained

    return sum(unexplained(x, y, dtype) for x, y in _slabs(a, b))


def comparable(node: LogicalTensor) -> Node:
    """Returns the node as F32, or as stored if F32 would round its integers. Raises UnsupportedError if it has no
    values to compare."""
    from weighbridge.tensors import kernels
    from weighbridge.tensors.nodes import Node, cast

    if not isinstance(node, Node) or node.spec.dtype.kind is Kind.BLOCK or kernels.casts(node.spec.dtype, F32):
        return cast(node, F32)
    if node.spec.rows and (node.spec.dtype.numpy is None or node.spec.dtype.kind is Kind.COMPLEX):
        raise UnsupportedError(f"{node.spec.dtype} has no values to compare")
    return node


class _Sums:
    """Running sums over two tensors for the measures of their difference."""

    def __init__(self) -> None:
        self.largest = self.error = self.a = self.b = self.product = 0.0
        self.broken = 0

    def add(self, a: Any, b: Any) -> None:
        import numpy as np

        finite = np.isfinite(a) & np.isfinite(b)
        if not finite.all():
            alike = (a == b) | (np.isnan(a) & np.isnan(b))
            self.broken += int((~finite & ~alike).sum())
            a, b = np.where(finite, a, 0), np.where(finite, b, 0)
        difference = a - b
        self.largest = max(self.largest, float(np.abs(difference).max(initial=0)))
        self.error += float(difference @ difference)
        self.a, self.b, self.product = self.a + float(a @ a), self.b + float(b @ b), self.product + float(a @ b)

    @property
    def nmse(self) -> float:
        return self.error / self.a if self.a else (0.0 if not self.error else math.inf)

    @property
    def cosine(self) -> float:
        size = math.sqrt(self.a) * math.sqrt(self.b)
        return min(1.0, self.product / size) if size else (1.0 if self.a == self.b else 0.0)


def _metadata(a: OpenModel, b: OpenModel) -> tuple[tuple[str, str, str], ...]:
    """Returns (key, value in a, value in b) of chat templates, and of metadata if both have the same format, with other
    values. Long values are shortened."""
    template_a, template_b = _template(a), _template(b)
    if a.format != b.format:
        differ = template_a and template_b and template_a != template_b
        return ((_TEMPLATE, _short(template_a), _short(template_b)),) if differ else ()
    left, right = dict(a.metadata), dict(b.metadata)
    if a.format != "gguf":
        left[_TEMPLATE], right[_TEMPLATE] = template_a, template_b
        folders = a.place.path.is_dir() and b.place.path.is_dir()
        left |= _settings(a, folders)
        right |= _settings(b, folders)
    keys = sorted(k for k in {*left, *right} if left.get(k) != right.get(k) and not k.startswith(_FILE_KEYS))
    return tuple((k, _short(left.get(k)), _short(right.get(k))) for k in keys)


def _settings(model: OpenModel, folders: bool) -> dict[str, Any]:
    """Returns config.json by key. For `folders` adds the other settings, and digests of the tokenizer's files, which
    don't depend on the formatting of JSON."""
    settings = {f"config.json: {k}": v for k, v in model.config.items()}
    for name in _SETTINGS if folders else ():
        values = sidecars.json(model.place.folder / name)
        settings |= {f"{name}: {k}": v for k, v in values.items() if k != "chat_template"}
    for name in _TOKENIZERS if folders else ():
        data = sidecars.read(model.place.folder / name, TOKENIZER_JSON)
        if data is not None:
            value = sidecars.decode(data)
            content = data if value is None else msgspec.json.encode(value, order="sorted")
            settings[name] = f"sha256 {hashlib.sha256(content).hexdigest()[:12]}"
    return settings


def _template(model: OpenModel) -> str:
    """Returns the chat template of a GGUF or a model folder; empty if there is none."""
    if model.format == "gguf":
        return str(model.metadata.get("tokenizer.chat_template") or "")
    return (sidecars.chat_template(model.place.folder) if model.place.path.is_dir() else None) or ""


def _short(value: Any) -> str:
    """Returns a value as text: flags as in JSON, floats with the digits of a 32-bit one if they are one."""
    value = getattr(value, "value", value)
    if isinstance(value, float):
        import numpy as np

        with np.errstate(over="ignore"):
            value = narrow if (narrow := np.float32(value)) == value else value
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({plural(len(text), 'character')})"
