"""Plans a Hugging Face folder in a quantization scheme: compressed-tensors, GPTQ, AWQ, FP8.

Weights of linear layers and experts are rounded to nearest. Heads, embeddings, norms and routers stay floats, as in
llm-compressor and GPTQModel. Quantized sources keep their codes and scales if the scheme can store them
(`packings.canonical`), and tensors that their quantizer left as floats stay floats. Sources: llm-compressor 0.14
(`model_free_ptq`), compressed-tensors 0.20 (presets), GPTQModel 7.7 (RTN), transformers 5.23 (fp8).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import BF16, F16, F32, MXFP4, NVFP4, dtype
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.base.options import flag
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.calibrated import Calibrate, ToCalibrate
from weighbridge.conversion.gguf import metadata as meta
from weighbridge.conversion.options import SchemeOptions
from weighbridge.conversion.plan import probe
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to, unplaced
from weighbridge.conversion.plan.side_files import add_side_files
from weighbridge.conversion.result import Move
from weighbridge.conversion.schemes import configs as scheme_configs
from weighbridge.conversion.schemes.table import (
    BY_TEXT,
    COMPRESSED,
    GPTQ_BITS,
    SCHEMES,
    Form,
    Scheme,
    Settings,
    integer_rule,
)
from weighbridge.models.model import OpenModel
from weighbridge.packings import ggml_blocks
from weighbridge.packings.canonical import IntQuantMatrix, MicroscaledMatrix, ScaledFloatMatrix
from weighbridge.packings.write.rounding import GroupRule
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import LogicalTensor, Node

# Parameter of a scheme -> its option.
_OPTIONS: Final = MappingProxyType({"bits": "--q-bits", "group_size": "--q-group-size", "symmetric": "--sym or --asym"})
# Config files of other quantizers, which no longer apply.
_CONFIGS: Final = ("config.json", "quantize_config.json", "quant_config.json", "hf_quant_config.json")
# Layers that share a global scale, because engines fuse them (llm-compressor, FUSED_LAYER_NAMES).
_TOGETHER: Final = (
    ("gate_proj", "up_proj"), ("q_proj", "k_proj", "v_proj"), ("q_a_proj", "kv_a_proj_with_mqa"), ("w1", "w3"),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------ the scheme


def choose_scheme(options: SchemeOptions) -> Scheme:
    """Returns the requested scheme with the options applied. Raises UsageError for options that contradict it."""
    name = str(options.scheme).lower().replace("-", "_")
    if name not in SCHEMES:
        raise UsageError(f"unknown scheme {options.scheme!r}", hint=f"one of {', '.join(SCHEMES)}")
    scheme = SCHEMES[name]
    given = {"bits": options.q_bits, "group_size": options.q_group_size, "symmetric": options.sym}
    for option, value in given.items():
        if value is not None and option not in scheme.takes:
            raise UsageError(f"{name} has a fixed {option.replace('_', ' ')}", hint=f"omit {_OPTIONS[option]}")
    if options.q_bits not in (None, *GPTQ_BITS):
        raise UsageError(f"GPTQ's readers don't support {options.q_bits} bits", hint=f"one of {GPTQ_BITS}")
    group = options.q_group_size
    if group is not None and group != -1 and group < 8:
        raise UsageError(f"invalid group size {group}", hint="use a number such as 32 or 128; -1: one group per row")
    return scheme._replace(
        bits=options.q_bits or scheme.bits,
        group=scheme.group if group is None else max(group, 0),
        symmetric=scheme.symmetric if options.sym is None else options.sym,
    )


# ------------------------------------------------------------------------------------------------ the folder


def to_scheme(model: OpenModel, options: SchemeOptions, calibrate: Calibrate | None = None) -> PlanBuilder:
    """Plans the tensors and files of the folder. `calibrate`: how layers are rounded, if not to nearest. Raises
    RefusedError if no layer can be quantized."""
    draft = PlanBuilder({}, {"format": "pt"})
    # a folder with Hugging Face names also keeps tensors unknown to the family's table
    named = model.logical if model.format != "gguf" and model.dialect == "hf" else model.resolved.save_all("hf")
    draft.losses += unplaced(model, "hf", "folder") if model.format == "gguf" else []
    declared = model.config.get("dtype") or model.config.get("torch_dtype")
    default = dtype(declared) if declared in ("bfloat16", "float16", "float32") and model.format != "gguf" else F16
    narrow = probe.narrowest(named) if options.dtype is None and model.format == "gguf" else {}
    floats = {}
    for name, node in named.items():
        spec = node.spec.with_dtype(default) if nodes.needs_decoding(node) else node.spec
        floats[name] = cast_to(name, node, narrow.get(name, dtype_policy.plain_dtype(options.dtype, spec)), draft)
    work = _Work(named, floats, choose_scheme(options), options, draft)
    _check_calibration(work, calibrate is not None)
    layers = _layers(model, named, work.scheme)
    read = {name: work.scheme.read(named[name]) for name in layers if nodes.needs_decoding(named[name])}
    grouped = [form for form in read.values() if isinstance(form, IntQuantMatrix)]
    if grouped and options.q_group_size is None and "group_size" in work.scheme.takes:
        # without a request, the most frequent group size of the source
        groups = Counter(form.group for form in grouped if form.group != form.codes.spec.shape[-1])
        work = work._replace(scheme=work.scheme._replace(group=groups.most_common(1)[0][0] if groups else 0))
    if read and calibrate is not None:
        raise UsageError(f"--text rounds float weights, but {next(iter(read))} is quantized", hint="omit --text")
    kept = {name: _keep_codes(work, name, form) for name, form in read.items()}
    forms: dict[str, Form] = {name: form for name, form in kept.items() if form is not None}
    if not kept or options.allow_requantize:
        forms |= round_layers(work, [name for name in (kept or layers) if name not in forms], calibrate, model)
    if not forms:
        reason = next(
            filter(None, (_misshapen(work.floats[n], work.scheme) for n in layers)), "it has no linear layers"
        )
        raise RefusedError(
            f"no linear layer can be quantized to {options.scheme}: {layers[0] + ': ' if layers else ''}{reason}",
            hint="another group size (--q-group-size), or another scheme",
        )
    symmetric = all(isinstance(form, IntQuantMatrix) and form.symmetric for form in forms.values())
    for name, node in named.items():
        if name in forms:
            parts = work.scheme.write(forms[name], symmetric)
            draft.tensors |= {name.removesuffix(".weight") + suffix: stored for suffix, stored in parts.items()}
            continue
        draft.tensors[name] = work.floats[name]
        if nodes.needs_decoding(node) and name not in kept:
            _list_decoded(work, name, "the scheme stores it as floats")
    settings = {name.removesuffix(".weight"): _settings(work.scheme, form) for name, form in forms.items()}
    scheme_config = scheme_configs.config(work.scheme, settings, _unquantized(model, named, settings))
    config = model.config
    if model.format == "gguf":
        texts, losses = meta.for_hf(model, work.floats, options.tokenizer)
        draft.texts |= texts
        draft.losses += losses
        config = json.loads(texts["config.json"])
    else:
        add_side_files(model, draft, without=_CONFIGS)
    draft.texts["config.json"] = meta.quantized(config, options.dtype, scheme_config)
    return draft


def _settings(scheme: Scheme, form: Form) -> Settings:
    if not isinstance(form, IntQuantMatrix):
        return Settings(scheme.bits, scheme.group, True)
    by_row = form.group == form.codes.spec.shape[-1] and form.group != scheme.group
    return Settings(form.bits, 0 if by_row else form.group, form.symmetric)


def _check_calibration(work: _Work, has_text: bool) -> None:
    """Raises UsageError for options that need a text, or a text that the scheme doesn't use."""
    options, scheme = work.options, work.scheme
    for option in dict.fromkeys(chain.from_iterable(BY_TEXT.values())):
        if getattr(options, option) is None:
            continue
        if not has_text:
            raise UsageError(
                f"{flag(option)} applies to --text", hint="--text FILE rounds by GPTQ, other layers to nearest"
            )
        if scheme.calibration and option not in BY_TEXT[scheme.calibration]:
            takers = ", ".join(n for n, row in SCHEMES.items() if option in BY_TEXT.get(row.calibration, ()))
            raise UsageError(
                f"{flag(option)} doesn't apply to --scheme {options.scheme}", hint=f"it applies to {takers}"
            )
    if scheme.needs_text and not has_text:
        raise UsageError(f"{options.scheme} takes the scales of inputs from a text",
                         hint="--text FILE, or --scheme fp8_dynamic, which has none")  # fmt: skip
    if has_text and not scheme.calibration:
        takers = ", ".join(name for name, row in SCHEMES.items() if row.calibration)
        raise UsageError(f"--text doesn't apply to --scheme {options.scheme}", hint=f"it applies to {takers}")


class _Work(NamedTuple):
    """The state of one conversion: the tensors as stored and as floats, by Hugging Face's names."""

    named: Mapping[str, LogicalTensor]
    floats: dict[str, Node]
    scheme: Scheme
    options: SchemeOptions
    draft: PlanBuilder


def _layers(model: OpenModel, named: Mapping[str, LogicalTensor], scheme: Scheme) -> list[str]:
    """The weights of linear layers, in order; a head only if it is already quantized."""
    rows = model.family.rows_of("hf", model.sizes, named)
    kinds = ("linear", "expert", "head")
    return [
        name
        for name, node in named.items()
        if name in rows and rows[name].kind in kinds and not rows[name].transposed("hf") and _matrix(name, node)
        and (rows[name].kind != "head" or (scheme.method in (COMPRESSED, "gptq") and nodes.needs_decoding(node)))
    ]  # fmt: skip


def _unquantized(model: OpenModel, named: Mapping[str, LogicalTensor], settings: Mapping[str, Settings]) -> list[str]:
    """The unquantized modules that a loader could expect to be quantized.

    They are linear layers, routers, the head (even if tied), and any matrix unknown to the family's table.
    """
    rows = model.family.rows_of("hf", model.sizes, named)
    layers = [n for n, row in rows.items() if row.kind in ("linear", "expert", "head", "router")]
    unknown = [name for name, node in named.items() if name not in rows and _matrix(name, node)]
    modules = (name.removesuffix(".weight") for name in (*layers, *unknown) if name.endswith(".weight"))
    return [module for module in modules if module not in settings]


def _matrix(name: str, node: LogicalTensor) -> bool:
    return name.endswith(".weight") and len(node.spec.shape) == 2


# ------------------------------------------------------------------------------------------------ floats


def round_layers(
    work: _Work, names: list[str], calibrate: Calibrate | None = None, model: OpenModel | None = None
) -> Mapping[str, Form]:
    """Quantizes layers. Those whose shape doesn't suit the scheme stay floats, with a note."""
    scheme = work.scheme
    misshapen = {name: reason for name in names if (reason := _misshapen(work.floats[name], scheme))}
    layers = {name: work.floats[name] for name in names if name not in misshapen}
    layers = {n: node if node.spec.dtype in (F32, F16, BF16) else nodes.cast(node, F32) for n, node in layers.items()}
    if misshapen:
        name, reason = next(iter(misshapen.items()))
        more = f" and {len(misshapen) - 1:,} more stay" if len(misshapen) > 1 else " stays"
        work.draft.notes.append(f"{name}{more} floats: {reason}")
    if calibrate is not None and model is not None and layers and (use := scheme.calibration):
        by_text = () if use == "ranges" else layers
        rules: dict[str, GroupRule] = {n: integer_rule(n, layers[n], scheme, layers[n].spec.dtype) for n in by_text}
        made = calibrate(ToCalibrate(model, "hf", work.named, work.floats, layers, rules, use, work.options))
        work.draft.preparation = made.preparation
        work.floats.update(made.floats)
        return {name: _with_parts(form, made.parts[name]) for name, form in _to_nearest(layers, scheme).items()}
    return _to_nearest(layers, scheme)


def _with_parts(form: Form, parts: Mapping[str, Node]) -> Form:
    """A form that is rounded to nearest, with what a text makes of it."""
    if isinstance(form, IntQuantMatrix):
        return IntQuantMatrix(form.bits, form.group, parts["codes"], parts["scales"], parts.get("zeros"))
    return form._replace(inputs=parts["inputs"]) if isinstance(form, ScaledFloatMatrix) else form


def _to_nearest(layers: Mapping[str, Node], scheme: Scheme) -> dict[str, Form]:
    groups: dict[str, tuple[str, ...]] = {}  # the layers that share a global scale with each, including it
    for name in layers:
        parent, _, leaf = name.removesuffix(".weight").rpartition(".")
        leaves = next((group for group in _TOGETHER if leaf in group), (leaf,))
        siblings = (f"{parent}.{leaf}.weight".lstrip(".") for leaf in leaves)
        groups[name] = tuple(sibling for sibling in siblings if sibling in layers)
    peaks = {group: nodes.abs_max([layers[name] for name in group]) for group in groups.values()}
    return {
        name: scheme.round(name, nodes.cast(node, F32), scheme, node.spec.dtype, peaks[groups[name]])
        for name, node in layers.items()
    }


def _misshapen(node: Node, scheme: Scheme) -> str:
    """Why a matrix of this shape isn't quantized; empty if it is."""
    rows, columns = node.spec.shape
    if scheme.group and columns % scheme.group:
        return f"its rows of {columns} aren't a multiple of the group size {scheme.group}"
    if scheme.method == "fp8" and (rows % 128 or columns % 128):
        return f"its shape {rows} x {columns} isn't a multiple of 128 x 128"
    return _unfilled(rows, columns, scheme)


def _unfilled(rows: int, columns: int, scheme: Scheme) -> str:
    """Why codes don't fill whole words, if the method requires that."""
    sides = {"gptq": (columns * scheme.bits, rows * scheme.bits), "awq": (rows * scheme.bits,)}.get(scheme.method, ())
    return f"the codes of its {rows} x {columns} don't fill 32-bit words" if any(s % 32 for s in sides) else ""


# ------------------------------------------------------------------------------------------------ quantized sources


def _keep_codes(work: _Work, name: str, form: Form | str) -> Form | None:
    """Lists the move of a quantized weight, and returns its form if the codes are kept. None: it has to be decoded."""
    reason, rounds = (form, "") if isinstance(form, str) else (_misfit(form, work.scheme, work.options), "")
    if isinstance(form, IntQuantMatrix) and work.scheme.method != COMPRESSED and not ggml_blocks.fits_f16(form.scales):
        rounds = f"its {form.scales.spec.dtype} scales aren't exact in F16"
    near = work.options.inexact == "near" and isinstance(form, IntQuantMatrix)
    if work.options.inexact == "refuse" and (reason or rounds):
        raise RefusedError(
            f"{name} can't be moved without loss: {reason or rounds}", option="--inexact float (or near)"
        )
    if reason or isinstance(form, str) or (rounds and not near):
        if not work.options.allow_requantize:
            _list_decoded(work, name, reason or rounds)
        return None
    relative = probe.relative_error(form.scales) if rounds else None
    source, target = nodes.storage_name(work.named[name]), str(work.options.scheme).lower()
    work.draft.moves.append(Move(name, source, target, "near" if rounds else "exact", rounds, relative))
    return form


def _list_decoded(work: _Work, name: str, reason: str) -> None:
    source, target = nodes.storage_name(work.named[name]), work.floats[name].spec.dtype.name
    work.draft.moves.append(Move(name, source, target, "decoded", reason))


def _misfit(form: Form, scheme: Scheme, options: SchemeOptions) -> str:
    """Why the scheme as requested can't store a form; empty if it can."""
    if isinstance(form, MicroscaledMatrix):
        group = (MXFP4 if form.overall is None else NVFP4).group
        same = form.bits == scheme.bits and (form.overall is None) is (scheme.group == MXFP4.group)
        return "" if same else f"it has {form.bits} bits in groups of {group}"
    if isinstance(form, ScaledFloatMatrix):
        if form.block != scheme.block_of(form.weight.spec):
            return f"its scales are for {form.block[0]} x {form.block[1]}"
        return _misshapen(form.weight, scheme)
    rows, columns = form.codes.spec.shape
    widths = {"gptq": GPTQ_BITS, "awq": (4,)}.get(scheme.method, (8,) if scheme.format == "int-quantized" else None)
    if (widths and form.bits not in widths) or options.q_bits not in (None, form.bits):
        return f"it has {form.bits} bits"
    bound = options.q_group_size is not None or scheme.method == "awq" or scheme.format == "int-quantized"
    if bound and form.group != (scheme.group or columns):
        return f"it has groups of {form.group}"
    if options.sym and not form.symmetric:
        return "it has zero points"
    return _unfilled(rows, columns, scheme._replace(bits=form.bits))
