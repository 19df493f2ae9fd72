"""Plans a Hugging Face folder in a quantization scheme: compressed-tensors, GPTQ, AWQ, FP8.

Weights of linear layers and experts are rounded to nearest; heads, embeddings, norms and routers stay floats, as in
llm-compressor and GPTQModel. Sources that are already quantized keep their codes and scales if the scheme can store
them (`packings.canonical`), and tensors that their quantizer left as floats stay floats. Sources: llm-compressor
0.14 (`model_free_ptq`), compressed-tensors 0.20 (presets), GPTQModel 7.7 (RTN), transformers 5.23 (fp8).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from weighbridge.base.dtypes import BF16, F16, F32, DType, dtype
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.gguf import metadata as meta
from weighbridge.conversion.options import SchemeOptions
from weighbridge.conversion.plan import probe, writers
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to, sidecar_files
from weighbridge.conversion.plan.model import Move
from weighbridge.conversion.schemes import configs as scheme_configs
from weighbridge.conversion.schemes.configs import Settings
from weighbridge.io.location import open_source
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.wrapped import unwrapped_folder
from weighbridge.packings import canonical, ggml_blocks
from weighbridge.packings.canonical import Fp8Tensor, IntQuantTensor, MXTensor
from weighbridge.packings.write import rounding, schemes
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import LogicalTensor, Node

Form = IntQuantTensor | MXTensor | Fp8Tensor


class Scheme(NamedTuple):
    """`method`: as a config calls it. `read`: what comes quantized in the form that the scheme stores; `round`: floats
    in it; `write`: it as stored tensors, given whether the whole model is symmetric. `group`: columns that share a
    scale, 0 all of a row. `takes`: the options that change it."""

    method: str
    read: Callable[[LogicalTensor], Form | str]
    round: Callable[[str, Node, Scheme, DType, Node], Form]
    write: Callable[[Any, bool], schemes.Stored]
    bits: int
    group: int = 0
    symmetric: bool = True
    block: tuple[int, int] | None = None
    format: str = ""
    activations: Mapping[str, Any] | None = None
    takes: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------ rounding


def _round_integers(name: str, node: Node, scheme: Scheme, own: DType, peak: Node) -> IntQuantTensor:
    theirs = scheme.method == _CT
    group = scheme.group or node.spec.shape[-1]
    rule, kind = (_CT, own) if theirs else ("gptq", F16)
    parts = nodes.pack(node, rounding.IntegersOf(rule, scheme.bits, group, scheme.symmetric, own, kind, name))
    return IntQuantTensor(scheme.bits, group, parts["codes"], parts["scales"], parts.get("zeros"))


def _round_small(name: str, node: Node, scheme: Scheme, own: DType, peak: Node) -> Fp8Tensor:
    columns = node.spec.shape[-1]
    block = scheme.block or (1, columns)
    parts = nodes.pack(node, rounding.SmallOf(block, columns, own, scheme.method == "fp8", name), block[0])
    return Fp8Tensor(block, parts["weight"], parts["scales"])


def _round_micro(name: str, node: Node, scheme: Scheme, own: DType, peak: Node) -> MXTensor:
    if scheme.group == 32:
        parts = nodes.pack(node, rounding.MicroOf(scheme.bits, own, name=name))
        return MXTensor(scheme.bits, parts["codes"], parts["scales"], None)
    overall = nodes.pack(peak, rounding.OverallOf(own))["overall"]
    wide = nodes.pack_with_global(node, rounding.MicroOf(4, own, overall=True, name=name), overall)
    return MXTensor(4, wide["codes"], wide["scales"], overall)


# ------------------------------------------------------------------------------------------------ the schemes

_CT: Final = "compressed-tensors"
_TOKEN: Final = MappingProxyType({"group_size": None, "strategy": "token"})
_INT: Final = partial(Scheme, _CT, canonical.integers, _round_integers)
_MX: Final = partial(Scheme, _CT, canonical.micro, _round_micro, schemes.micro)
_FP8: Final = partial(Scheme, _CT, canonical.small, _round_small, schemes.small, 8, format="float-quantized")
_GROUPS: Final = ("group_size", "symmetric")

#: Schemes: llm-compressor's presets in lower case, and the other methods.
SCHEMES: Final[Mapping[str, Scheme]] = MappingProxyType(
    {
        **{f"w{b}a16": _INT(schemes.packed, b, 128, format="pack-quantized", takes=_GROUPS) for b in range(2, 9)},
        "w8a8": _INT(schemes.int8, 8, format="int-quantized", activations={"num_bits": 8, "type": "int", **_TOKEN}),
        "fp8_dynamic": _FP8(activations={"num_bits": 8, "type": "float", **_TOKEN}),
        "fp8_block": _FP8(
            block=(128, 128), activations={"num_bits": 8, "type": "float", "group_size": 128, "strategy": "group"}
        ),
        "mxfp4a16": _MX(4, 32, format="mxfp4-pack-quantized"),
        "mxfp6a16": _MX(6, 32, format="mxfp6-pack-quantized"),
        "mxfp8a16": _MX(8, 32, format="mxfp8-quantized"),
        "nvfp4a16": _MX(4, 16, format="nvfp4-pack-quantized"),
        "gptq": Scheme("gptq", canonical.integers, _round_integers, schemes.gptq, 4, 128, takes=("bits", *_GROUPS)),
        "awq": Scheme("awq", canonical.integers, _round_integers, schemes.awq, 4, 128, False, takes=("group_size",)),
        "fp8": Scheme("fp8", canonical.small, _round_small, schemes.small_blocks, 8, block=(128, 128)),
    }
)
# Code widths that GPTQ's readers support.
_GPTQ_BITS: Final = (2, 3, 4, 8)
# Layers that share a global scale, because engines fuse them (llm-compressor, FUSED_LAYER_NAMES).
_TOGETHER: Final = (
    ("gate_proj", "up_proj"), ("q_proj", "k_proj", "v_proj"), ("q_a_proj", "kv_a_proj_with_mqa"), ("w1", "w3"),
)  # fmt: skip
_OPTIONS: Final = MappingProxyType({"bits": "--bits", "group_size": "--group-size", "symmetric": "--sym or --asym"})


def chosen(options: SchemeOptions) -> Scheme:
    """The requested scheme with the options applied. UsageError for options that don't go together."""
    name = str(options.scheme).lower().replace("-", "_")
    if name not in SCHEMES:
        raise UsageError(f"unknown scheme {options.scheme!r}", hint=f"one of {', '.join(SCHEMES)}")
    scheme = SCHEMES[name]
    given = {"bits": options.q_bits, "group_size": options.q_group_size, "symmetric": options.sym}
    for option, value in given.items():
        if value is not None and option not in scheme.takes:
            raise UsageError(f"{name} has a fixed {option.replace('_', ' ')}", hint=f"omit {_OPTIONS[option]}")
    if options.q_bits not in (None, *_GPTQ_BITS):
        raise UsageError(f"GPTQ's readers don't support {options.q_bits} bits", hint=f"one of {_GPTQ_BITS}")
    group = options.q_group_size
    if group is not None and group != -1 and group < 8:
        raise UsageError(f"invalid group size {group}", hint="use a number such as 32 or 128; -1: one group per row")
    return scheme._replace(
        bits=options.q_bits or scheme.bits,
        group=scheme.group if group is None else max(group, 0),
        symmetric=scheme.symmetric if options.sym is None else options.sym,
    )


# ------------------------------------------------------------------------------------------------ the folder


def to_scheme(model: Checkpoint, options: SchemeOptions) -> PlanBuilder:
    """The tensors and files of the folder."""
    model, renamed = unwrapped_folder(model)
    draft = PlanBuilder({}, {"format": "pt"}, notes=renamed)
    named = _named(model)
    work = _Work(named, _floats(model, named, options, draft), chosen(options), options, draft)
    layers = _layers(model, named, work.scheme)
    present = {name: work.scheme.read(named[name]) for name in layers if nodes.needs_decoding(named[name])}
    work = work._replace(scheme=_of_source(work, present))
    kept = {name: _kept(work, name, form) for name, form in present.items()}
    found: dict[str, Form] = {name: form for name, form in kept.items() if form is not None}
    if not kept or options.allow_requantize:
        found |= _rounded(work, [name for name in (kept or layers) if name not in found])
    if not found:
        why = next(filter(None, (_odd(work.floats[name], work.scheme) for name in layers)), "it has no linear layers")
        raise RefusedError(
            f"no linear layer can be quantized to {options.scheme}: {layers[0] + ': ' if layers else ''}{why}",
            hint="another group size (--group-size), or another scheme",
        )
    _tensors(work, found, kept)
    settings = {name.removesuffix(".weight"): _settings(work, form) for name, form in found.items()}
    scheme_config = scheme_configs.config(work.scheme, settings, _left(model, named, settings))
    _files(model, options, draft, work.floats, scheme_config)
    return draft


class _Work(NamedTuple):
    """The state of one conversion: tensors as stored, and all as floats."""

    named: Mapping[str, LogicalTensor]
    floats: Mapping[str, Node]
    scheme: Scheme
    options: SchemeOptions
    draft: PlanBuilder


def _named(model: Checkpoint) -> Mapping[str, LogicalTensor]:
    """Tensors by their Hugging Face names; a folder with such names also keeps tensors unknown to the family's
    table."""
    if model.format != "gguf" and model.dialect == "hf":
        return model.logical
    return model.family.save("hf", model.sizes, model.roles)


def _layers(model: Checkpoint, named: Mapping[str, LogicalTensor], scheme: Scheme) -> list[str]:
    """The weights of linear layers, in order; a head only if it is already quantized."""
    rows = model.family.rows_of("hf", model.sizes, named)
    kinds = ("linear", "expert", "head")
    return [
        name
        for name, node in named.items()
        if name in rows and rows[name].kind in kinds and not rows[name].transposed("hf") and _matrix(name, node)
        and (rows[name].kind != "head" or (scheme.method in (_CT, "gptq") and nodes.needs_decoding(node)))
    ]  # fmt: skip


def _left(model: Checkpoint, named: Mapping[str, LogicalTensor], settings: Mapping[str, Settings]) -> list[str]:
    """Unquantized modules that a loader could expect to be quantized: linear layers, routers, the head (even if
    tied), and any matrix unknown to the family's table."""
    rows = model.family.rows_of("hf", model.sizes, named)
    layers = [n for n, row in rows.items() if row.kind in ("linear", "expert", "head", "router")]
    unknown = [name for name, node in named.items() if name not in rows and _matrix(name, node)]
    modules = (name.removesuffix(".weight") for name in (*layers, *unknown) if name.endswith(".weight"))
    return [module for module in modules if module not in settings]


def _matrix(name: str, node: LogicalTensor) -> bool:
    return name.endswith(".weight") and len(node.spec.shape) == 2


def _tensors(work: _Work, found: Mapping[str, Form], kept: Mapping[str, Form | None]) -> None:
    """The stored tensors, in the order of the logical ones."""
    symmetric = all(isinstance(form, IntQuantTensor) and form.symmetric for form in found.values())
    for name, node in work.named.items():
        if name in found:
            parts = work.scheme.write(found[name], symmetric)
            work.draft.tensors |= {name.removesuffix(".weight") + suffix: stored for suffix, stored in parts.items()}
            continue
        work.draft.tensors[name] = work.floats[name]
        if nodes.needs_decoding(node) and name not in kept:
            _decoded(work, name, "the scheme stores it as floats")


# ------------------------------------------------------------------------------------------------ floats


def _floats(
    model: Checkpoint, named: Mapping[str, LogicalTensor], options: SchemeOptions, draft: PlanBuilder
) -> dict[str, Node]:
    """Every tensor as floats: of the requested dtype, or its own; a quantized tensor uses the config's dtype, or
    F16."""
    declared = model.config.get("dtype") or model.config.get("torch_dtype")
    usual = dtype(declared) if declared in ("bfloat16", "float16", "float32") and model.format != "gguf" else F16
    narrow = probe.narrowest(named) if options.dtype is None and model.format == "gguf" else {}
    out = {}
    for name, node in named.items():
        spec = node.spec.with_dtype(usual) if nodes.needs_decoding(node) else node.spec
        out[name] = cast_to(name, node, narrow.get(name, dtype_policy.plain_dtype(options.dtype, spec)), draft)
    return out


def _rounded(work: _Work, names: list[str]) -> dict[str, Form]:
    """The quantized layers. Layers whose shape doesn't suit the scheme stay floats, with a note."""
    scheme, odd = work.scheme, {name: why for name in names if (why := _odd(work.floats[name], work.scheme))}
    members = {name: _own(work.floats[name]) for name in names if name not in odd}
    if odd:
        name, why = next(iter(odd.items()))
        many = f" and {len(odd) - 1:,} more stay" if len(odd) > 1 else " stays"
        work.draft.notes.append(f"{name}{many} floats: {why}")
    groups = {name: tuple(_group(name, members)) for name in members}
    peaks = {group: nodes.abs_max([members[other] for other in group]) for group in groups.values()}
    return {
        name: scheme.round(name, nodes.cast(node, F32), scheme, node.spec.dtype, peaks[groups[name]])
        for name, node in members.items()
    }


def _own(node: Node) -> Node:
    return node if node.spec.dtype in (F32, F16, BF16) else nodes.cast(node, F32)


def _odd(node: Node, scheme: Scheme) -> str:
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


def _group(name: str, members: Mapping[str, Node]) -> list[str]:
    """The layers that share a global scale with this one, including itself."""
    parent, _, leaf = name.removesuffix(".weight").rpartition(".")
    names = next((group for group in _TOGETHER if leaf in group), (leaf,))
    return [other for part in names if (other := f"{parent}.{part}.weight".lstrip(".")) in members]


# ------------------------------------------------------------------------------------------------ quantized sources


def _of_source(work: _Work, present: Mapping[str, Form | str]) -> Scheme:
    """The scheme with the most frequent group size of the source, unless one was requested."""
    forms_ = [form for form in present.values() if isinstance(form, IntQuantTensor)]
    if not forms_ or work.options.q_group_size is not None or "group_size" not in work.scheme.takes:
        return work.scheme
    groups = Counter(form.group for form in forms_ if form.group != form.codes.spec.shape[-1])
    return work.scheme._replace(group=groups.most_common(1)[0][0] if groups else 0)


def _kept(work: _Work, name: str, form: Form | str) -> Form | None:
    """A quantized weight with its codes kept; None if it has to be decoded."""
    why = form if isinstance(form, str) else _misfit(form, work)
    rounds = "" if isinstance(form, str) else _rounding(form, work.scheme)
    near = work.options.inexact == "near" and isinstance(form, IntQuantTensor)
    if work.options.inexact == "refuse" and (why or rounds):
        raise RefusedError(f"{name} can't be moved without loss: {why or rounds}", option="--inexact float (or near)")
    if why or isinstance(form, str) or (rounds and not near):
        if not work.options.allow_requantize:
            _decoded(work, name, why or rounds)
        return None
    kind: Literal["exact", "near"] = "near" if rounds else "exact"
    relative = probe.relative(form.scales) if rounds else None
    work.draft.moves.append(Move(name, _source(work, name), _target(work), kind, rounds, relative))
    return form


def _decoded(work: _Work, name: str, why: str) -> None:
    target = work.floats[name].spec.dtype.name
    work.draft.moves.append(Move(name, _source(work, name), target, "decoded", why))


def _source(work: _Work, name: str) -> str:
    return nodes.storage_name(work.named[name])


def _target(work: _Work) -> str:
    return str(work.options.scheme).lower()


def _misfit(form: Form, work: _Work) -> str:
    """Why the scheme as requested can't store a form; empty if it can."""
    return _MISFITS[type(form)](form, work.scheme, work.options)


def _misfit_integers(form: IntQuantTensor, scheme: Scheme, options: SchemeOptions) -> str:
    rows, columns = form.codes.spec.shape
    widths = {"gptq": _GPTQ_BITS, "awq": (4,)}.get(scheme.method, (8,) if scheme.format == "int-quantized" else None)
    if (widths and form.bits not in widths) or options.q_bits not in (None, form.bits):
        return f"it has {form.bits} bits"
    bound = options.q_group_size is not None or scheme.method == "awq" or scheme.format == "int-quantized"
    if bound and form.group != (scheme.group or columns):
        return f"it has groups of {form.group}"
    if options.sym and not form.symmetric:
        return "it has zero points"
    return _unfilled(rows, columns, scheme._replace(bits=form.bits))


def _misfit_micro(form: MXTensor, scheme: Scheme, options: SchemeOptions) -> str:
    same = form.bits == scheme.bits and (form.overall is None) is (scheme.group == 32)
    return "" if same else f"it has {form.bits} bits in groups of {32 if form.overall is None else 16}"


def _misfit_small(form: Fp8Tensor, scheme: Scheme, options: SchemeOptions) -> str:
    wanted = scheme.block or (1, form.weight.spec.shape[-1])
    if form.block != wanted:
        return f"its scales are for {form.block[0]} x {form.block[1]}"
    return _odd(form.weight, scheme)


_MISFITS: Final[Mapping[type, Callable[..., str]]] = MappingProxyType(
    {IntQuantTensor: _misfit_integers, MXTensor: _misfit_micro, Fp8Tensor: _misfit_small}
)


def _rounding(form: Form, scheme: Scheme) -> str:
    """What would be rounded; empty if nothing is."""
    if not isinstance(form, IntQuantTensor) or scheme.method == _CT or ggml_blocks.fits_f16(form.scales):
        return ""
    return f"its {form.scales.spec.dtype} scales aren't exact in F16"


def _settings(work: _Work, form: Form) -> Settings:
    if not isinstance(form, IntQuantTensor):
        return Settings(work.scheme.bits, work.scheme.group, True)
    rows = form.group == form.codes.spec.shape[-1] and form.group != work.scheme.group
    return Settings(form.bits, 0 if rows else form.group, form.symmetric)


# ------------------------------------------------------------------------------------------------ files

# Config files of other quantizers that no longer apply.
_THEIRS: Final = ("config.json", "quantize_config.json", "quant_config.json", "hf_quant_config.json")


def _files(
    model: Checkpoint,
    options: SchemeOptions,
    draft: PlanBuilder,
    floats: Mapping[str, Node],
    scheme_config: Mapping[str, Any],
) -> None:
    """The files besides the weights."""
    config = model.config
    if model.format == "gguf":
        texts, lost = meta.for_hf(model, floats, options.tokenizer)
        draft.texts |= texts
        draft.losses += lost
        config = json.loads(texts["config.json"])
    else:
        for path in sidecar_files(model.place.folder):
            name = path.relative_to(model.place.folder).as_posix()
            if name not in _THEIRS:
                draft.extra_files.append(writers.raw(name, open_source(path)))
    draft.texts["config.json"] = meta.quantized(config, options.dtype, scheme_config)
