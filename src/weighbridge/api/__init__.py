"""The Python interface: about a dozen functions, and the two objects they hand out.

import weighbridge as wb

model = wb.open("model/")                 any format; reads headers only
model["lm_head.weight"].numpy()           one tensor, a view of the file where that is possible
model["lm_head.weight"][0:10].torch()     some rows, without reading the rest
wb.open("a.gguf", names="canonical")["layers.0.attention.q.weight"]

wb.identify(path)  wb.inspect(path)  wb.verify(path)      answers as dataclasses
wb.diff(a, b)                                            two models tensor by tensor, in any two formats
wb.scan(path, path ...)                                   what they would do when they are loaded
wb.plan(src, dst)  wb.convert(src, dst, dtype="q8_0")     the same plan, shown or carried out
wb.strip(checkpoint, dst)                                 the weights of a training checkpoint
wb.rename(src, dst, strip="module.")                      other names; another dialect's: names="mlx"
wb.slice(src, dst, layers="0-15")                         some layers, experts, tensors; the config true to them
wb.save_checkpoint(folder, model=model, optimizer=opt)    a training run's state, without pickles
wb.quantize(src, "out.gguf", "Q4_K_M", imatrix=file)      llama-quantize's bytes, from any source
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path as PathOf
from typing import TYPE_CHECKING, Any, cast

from weighbridge.api.objects import Model, Names, Tensor
from weighbridge.base.errors import UsageError

if TYPE_CHECKING:
    from weighbridge.conversion.checkpoint.strip import StripReport
    from weighbridge.conversion.options import ConvertOptions
    from weighbridge.conversion.plan.model import Plan
    from weighbridge.conversion.plan.run import Progress, Result
    from weighbridge.conversion.quantize.imatrix_report import ImatrixReport as ImportanceReport
    from weighbridge.conversion.quantize.inputs import QuantizeOptions
    from weighbridge.conversion.quantize.plan import QuantizePlan
    from weighbridge.conversion.transform import TransformReport
    from weighbridge.models.checkpoint import Checkpoint
    from weighbridge.reports.diff.quality import Report as QualityReport
    from weighbridge.reports.diff.report import Diff
    from weighbridge.reports.hash.digests import HashReport
    from weighbridge.reports.identify import IdentifyReport
    from weighbridge.reports.inspect.report import Report as InspectReport
    from weighbridge.reports.scan.model import ScanReport
    from weighbridge.reports.verify.report import Report as VerifyReport

Path = str | os.PathLike[str]

__all__ = [
    "Model", "Tensor", "convert", "diff", "hash", "identify", "importance", "inspect", "load_checkpoint", "open",
    "plan", "plan_quantize", "quality", "quantize", "rename", "save_checkpoint", "scan", "slice", "strip", "verify",
]  # fmt: skip


def open(path: Path, *, names: Names = "logical", allow_expand: bool = False) -> Model:
    """The model at `path` (a file, a folder, an index, one of a numbered set) as a mapping of names to tensors.

    `names`: "logical" keeps the file's names, several stored tensors that are one being one (MLX's weight, scales,
    biases); "stored" keeps those apart; "canonical" gives the same names whatever the file; "hf", "gguf", "mlx" another
    dialect's. `allow_expand`: see `ConvertOptions`. Errors: FormatError, UnsupportedError, OSError.
    """
    return Model(_model(path, allow_expand=allow_expand), names)


def identify(path: Path, **options: Any) -> IdentifyReport:
    """What the file or folder at `path` is, by its content."""
    from weighbridge.reports import identify as reports

    return reports.identify(os.fspath(path), **options)


def inspect(path: Path, **options: Any) -> InspectReport:
    """What is inside: summary, tensors, metadata. Reads headers only."""
    from weighbridge.reports.inspect import report as reports

    return reports.inspect(os.fspath(path), **options)


def importance(path: Path, *, model: Path | None = None) -> ImportanceReport:
    """What an importance matrix says of each entry; with `model`, what of it doesn't fit. Errors: FormatError."""
    from weighbridge.conversion.quantize import imatrix_report

    return imatrix_report.report_on(path, model=model)


def verify(path: Path, **options: Any) -> VerifyReport:
    """Everything that is wrong with a file or a model, all findings at once."""
    from weighbridge.reports.verify import report as reports

    return reports.verify(os.fspath(path), **options)


def diff(a: Path, b: Path, **options: Any) -> Diff:
    """What differs between two models in whatever form: names, bytes, values after decoding."""
    from weighbridge.reports.diff import report as reports

    return reports.diff(os.fspath(a), os.fspath(b), **options)


def scan(*paths: Path, **options: Any) -> ScanReport:
    """What the files at or below `paths` would do when they are loaded, beyond giving numbers. Nothing of them is run.
    `report.verdict` is the worst file's, `report.complete` whether all was looked into. FileNotFoundError where a path
    is none; a file that can't be read is counted in the report."""
    from weighbridge.reports.scan import engine

    return engine.scan(*paths, **options)


def plan(
    src: Path, dst: Path, *, to: str | None = None, options: ConvertOptions | None = None, **settings: Any
) -> Plan:
    """What `convert` would do, without doing it: files, offsets, memory, losses. `settings` are fields of
    `ConvertOptions` by name."""
    from weighbridge.conversion.plan.build import build

    chosen = _options(options, settings)
    return build(_opened(src, chosen), os.fspath(dst), to, chosen)


def convert(
    src: Path,
    dst: Path,
    *,
    to: str | None = None,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Result:
    """Convert the model at `src` to `dst`; the format follows from `dst`'s extension or `to`. On any error nothing is
    left behind (but for `resume`) and what existed stays. `settings` are fields of `ConvertOptions` by name
    (dtype="q8_0")."""
    from weighbridge.conversion.plan.build import build
    from weighbridge.conversion.plan.run import run

    chosen = _options(options, settings)
    with _opened(src, chosen) as model:
        made = build(model, os.fspath(dst), to, chosen)
        return run(made, overwrite=chosen.overwrite, resume=chosen.resume, progress=progress)


def strip(
    src: Path,
    dst: Path,
    *,
    to: str | None = None,
    keep_ema: bool = False,
    ema_as_weights: bool = False,
    dry_run: bool = False,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> StripReport:
    """Write the weights of the training checkpoint `src` to `dst`, without optimizer, averages, random states ...; the
    report says what was left out and why. `settings` as in `convert`."""
    from weighbridge.conversion.checkpoint.strip import plan_strip
    from weighbridge.conversion.plan.run import run

    chosen = _options(options, settings)
    with _opened(src, chosen) as model:
        made, report = plan_strip(model, os.fspath(dst), to, chosen, keep_ema=keep_ema, ema_as_weights=ema_as_weights)
        if not dry_run:
            run(made, overwrite=chosen.overwrite, resume=chosen.resume, progress=progress)
    return report


def rename(
    src: Path,
    dst: Path,
    *,
    strip: str | Sequence[str] = (),
    replacing: Sequence[tuple[str, str]] = (),
    add: str = "",
    names: str | None = None,
    to: str | None = None,
    dry_run: bool = False,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> TransformReport:
    """Write the model `src` to `dst` under other names, in this order: without the prefixes `strip`, with the patterns
    of `replacing` (pattern of `re`, replacement) replaced, with the prefix `add`, under the `names` of another dialect
    ("hf", "gguf", "mlx", "canonical"), where tensors also lie as that dialect has them. UsageError where two tensors
    would have one name. `settings` as in `convert`."""
    from weighbridge.conversion.plan.run import run
    from weighbridge.conversion.transform import plan_rename
    from weighbridge.models.transform.rename import RenameRules

    chosen = _options(options, settings)
    stripped = (strip,) if isinstance(strip, str) else tuple(strip)
    wanted = RenameRules(stripped, tuple(replacing), add, names)
    with _opened(src, chosen) as model:
        made, report = plan_rename(model, PathOf(dst), wanted, to, chosen)
        if not dry_run:
            run(made, overwrite=chosen.overwrite, resume=chosen.resume, progress=progress)
    return report


def slice(
    src: Path,
    dst: Path,
    *,
    layers: str | None = None,
    renumber: bool = False,
    experts: str | None = None,
    keep: Sequence[str] = (),
    drop: Sequence[str] = (),
    to: str | None = None,
    dry_run: bool = False,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> TransformReport:
    """Write a part of the model `src` to `dst`: `layers` and `experts` by number ("0-15", "0,2,4-7", "8-", of two
    stacks "encoder:0-3,decoder:0-1"), tensors by globs. config.json, a GGUF's keys and per-layer arrays are cut with
    them; `renumber` counts layers anew from 0. `settings` as in `convert`."""
    from weighbridge.conversion.plan.run import run
    from weighbridge.conversion.transform import SliceOptions, plan_slice

    chosen = _options(options, settings)
    wanted = SliceOptions(layers, renumber, experts, tuple(keep), tuple(drop))
    with _opened(src, chosen) as model:
        made, report = plan_slice(model, PathOf(dst), wanted, to, chosen)
        if not dry_run:
            run(made, overwrite=chosen.overwrite, resume=chosen.resume, progress=progress)
    return report


def save_checkpoint(path: Path, *, overwrite: bool = False, rng: Any = None, **parts: Any) -> Result:
    """Save a training run's state as a folder of safetensors and JSON, all or nothing: `model=model, optimizer=opt,
    epoch=3, loss=0.1, rng=True, ...`. What has a `state_dict()` is asked for it; nested dicts, lists, tuples, numbers,
    texts, bytes, tensors and arrays are kept as they are, shared storages shared. `rng=True` saves the random states of
    Python, numpy and torch. UsageError names what is no data."""
    from weighbridge.adapters.state import capture, random_states
    from weighbridge.conversion.checkpoint.training import folder_plan
    from weighbridge.conversion.options import ConvertOptions
    from weighbridge.conversion.plan.run import run
    from weighbridge.models.training_state import State, file_of

    states = {} if rng is None or rng is False else {"rng": random_states() if rng is True else rng}
    captured = capture({**parts, **states}, file_of)
    state = State(captured.value, captured.storages)
    return run(folder_plan(state, PathOf(path), ConvertOptions()), overwrite=overwrite)


def load_checkpoint(path: Path, *, numpy: bool = False, rng: bool = False, **into: Any) -> dict[str, Any]:
    """The parts that `save_checkpoint` saved, tensors as torch's (`numpy=True`: as arrays). Parts named here are loaded
    into the objects given (`model=model, optimizer=opt` calls their `load_state_dict`); `rng=True` sets the random
    states. Nothing is unpickled. FormatError where the folder is not as it was written."""
    from weighbridge.adapters.state import restore, set_random_states
    from weighbridge.models.training_state import read_state

    with read_state(PathOf(path)) as state:
        found: dict[str, Any] = restore(state.value, state.storages, numpy=numpy)
    missing = [name for name in (*into, *(["rng"] if rng else [])) if name not in found]
    if missing:
        raise UsageError(f"the checkpoint has no {', '.join(missing)}", hint=f"it has {', '.join(map(str, found))}")
    for name, target in into.items():
        target.load_state_dict(found[name])
    if rng:
        set_random_states(found["rng"])
    return found


def hash(paths: Path | Sequence[Path], *, algo: str = "sha256", tensors: bool = False) -> HashReport:
    """Digests of the files at `paths`, those of folders included; with `tensors` of each model's tensors, the same in
    every container, and of all its weights."""
    from weighbridge.reports.hash.digests import hash_paths

    return hash_paths([paths] if isinstance(paths, str | os.PathLike) else paths, algo=algo, tensors=tensors)


def plan_quantize(
    src: Path, dst: Path, ftype: str = "", *, options: QuantizeOptions | None = None, **settings: Any
) -> QuantizePlan:
    """What `quantize` would do, without doing it: the type of each tensor, sizes, what stands in the way."""
    from weighbridge.conversion.quantize.inputs import QuantizeOptions
    from weighbridge.conversion.quantize.plan import build

    chosen = _settings(options or QuantizeOptions(), settings)
    return build(_model(src), os.fspath(dst), ftype, chosen)


def quantize(
    src: Path,
    dst: Path,
    ftype: str = "",
    *,
    options: QuantizeOptions | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Result:
    """Quantize the model at `src`, in whatever format it is, to the GGUF `dst`, with the bytes that llama-quantize
    would write. `ftype`: one of its types, `Q4_K_M` say; none where `target_bpw` or `target_size` is given: then each
    tensor gets the type that serves the whole best at that size. `settings` are fields of `QuantizeOptions` by name
    (imatrix="imatrix.gguf"). On any error nothing is left behind (but for `resume`) and what existed stays."""
    from weighbridge.conversion.plan.run import run
    from weighbridge.conversion.quantize.inputs import QuantizeOptions
    from weighbridge.conversion.quantize.plan import build

    chosen = _settings(options or QuantizeOptions(), settings)
    with _model(src) as model:
        made = build(model, os.fspath(dst), ftype, chosen)
        made.check()
        return run(made, overwrite=chosen.overwrite, resume=chosen.resume, progress=progress)


def quality(
    src: Path,
    dst: Path,
    *,
    options: QuantizeOptions | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> QualityReport:
    """How much the GGUF `dst` differs from `src`, of which `quantize` made it with these options: errors tensor by
    tensor, with `imatrix` also weighted by it. Reads every value of both."""
    from weighbridge.conversion.quantize.inputs import QuantizeOptions, prepare
    from weighbridge.reports.diff.quality import measure

    chosen = _settings(options or QuantizeOptions(), settings)
    with _model(src) as model, _model(dst) as made:
        prepared = prepare(model, None, chosen)
        if strange := prepared.tensors.keys() ^ made.stored.keys():
            raise UsageError(f"{src} and {dst} are not the same model: {min(strange)} is in one of them only")
        known = {name: w for name in prepared.tensors if (w := prepared.weights(name)) is not None}
        jobs = chosen.conversion(None).workers
        return measure(prepared.tensors, made.stored, known, jobs=jobs, progress=progress)


def _opened(src: Path, chosen: ConvertOptions) -> Checkpoint:
    return _model(src, arch_file=chosen.arch_file, allow_expand=chosen.allow_expand)


def _model(src: Path, **options: Any) -> Checkpoint:
    """The model at `src`; `options`: fields of `SourceOptions`."""
    from weighbridge.models.open import SourceOptions, open_model

    return open_model(src, SourceOptions(**options))


def _options(options: ConvertOptions | None, settings: Mapping[str, Any]) -> ConvertOptions:
    from weighbridge.conversion.options import ConvertOptions

    return cast("ConvertOptions", _settings(options or ConvertOptions(), settings))


def _settings(options: Any, settings: Mapping[str, Any]) -> Any:
    """`options` with `settings`, which are fields of it by name."""
    known = {f.name for f in fields(options)}
    if unknown := settings.keys() - known:
        raise UsageError(f"no such option: {', '.join(sorted(unknown))}", hint=f"known: {', '.join(sorted(known))}")
    return replace(options, **settings)
