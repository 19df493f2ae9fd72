"""Plans an MLX folder, equal to that of mlx_lm.convert (0.32.2, on a CPU), without MLX.

Names and stacks follow the family's table; words, scales, biases, config.json and index are the same. Quantized sources
stay quantized if MLX can hold their values exactly: ggml's simple and 4- and 5-bit K blocks become affine, its 4-bit
floats MLX's; E4M3 codes whose scales are powers of two become mxfp8; MLX's groups are copied. Source of the rules:
mlx_lm/convert.py, mlx_lm/utils.py (quantize_model, save_model, save_config), `quant_predicate` and `cast_predicate` in
mlx_lm/models.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import BF16, E4M3, E8M0, F16, F32, U8, U32, DType, Kind
from weighbridge.base.dtypes import dtype as dtype_of
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.options import flag
from weighbridge.base.words import plural
from weighbridge.conversion.calibrated import Calibrate, ToCalibrate
from weighbridge.conversion.gguf import metadata as meta
from weighbridge.conversion.mlx.config import with_fields, with_pattern, with_scaling_type
from weighbridge.conversion.options import MlxFolderOptions, MlxOptions
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to, list_unnamed, unplaced
from weighbridge.conversion.plan.losses.ties import drop_tied_mlx
from weighbridge.conversion.plan.side_files import add_side_files
from weighbridge.conversion.result import Loss, Move
from weighbridge.models.arch.config import path_of_text, value_at, with_part
from weighbridge.models.arch.tables.schema import MlxEntry
from weighbridge.models.arch.tables.values import integer
from weighbridge.models.clients import mlx_verdict
from weighbridge.models.config.keys import differs, is_list, lookup
from weighbridge.models.mlxlm.tower_config import with_period, with_rope_words
from weighbridge.models.mlxlm.towers import tower_names
from weighbridge.models.model import OpenModel
from weighbridge.models.transform.text_config import text_path
from weighbridge.packings import mlx_affine_bridge
from weighbridge.packings.read.affine import Affine
from weighbridge.packings.read.microscaled import Microscaled
from weighbridge.packings.read.scaled_float import ScaledFloat
from weighbridge.packings.schema import affine
from weighbridge.packings.write import packers
from weighbridge.packings.write.rounding import GroupRule, RoundToAffine
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor

# mlx_lm.utils.quantize_model: the default (group size, bits) of a mode.
_DEFAULTS: Final = MappingProxyType(
    {"affine": (64, 4), **{mode: (row.group, row.bits) for mode, row in packers.MODES.items()}}
)
# mlx_lm.convert's recipes: (low bits, high bits).
RECIPES: Final = MappingProxyType({"mixed_2_6": (2, 6), "mixed_3_4": (3, 4), "mixed_3_6": (3, 6), "mixed_4_6": (4, 6)})
# Kinds of weights whose modules have no `to_quantized`; a family's table adds names.
_UNQUANTIZED: Final = ("conv", "norm")
# Kinds of weights that a text rounds.
_ROUNDED: Final = ("linear", "expert")
# `cast_predicate`: tensors that keep their type; a family's table adds names.
_UNCAST: Final = ("e_score_correction_bias", "expert_bias", "A_log")
_CASTS: Final = MappingProxyType({"float16": F16, "bfloat16": BF16, "float32": F32})
_WHOLE: Final = "wb convert SRC DST --to mlx --towers writes the whole model, for mlx-vlm"
SHARD: Final = 5 << 30  # bytes: mlx_lm.utils.MAX_FILE_SIZE_GB


class MlxQuantization(NamedTuple):
    """The parameters of one module; `mode` is None if mlx_lm omits it from the config."""

    group_size: int
    bits: int
    mode: str | None = None

    def described(self) -> dict[str, Any]:
        return {key: value for key, value in self._asdict().items() if value is not None}


#: Routers and their like, whatever is requested (`quant_predicate` in mlx_lm.models and mlx_vlm.models).
EIGHT_BITS: Final = MlxQuantization(64, 8)


def to_mlx(model: OpenModel, options: MlxOptions, calibrate: Calibrate | None = None) -> PlanBuilder:
    """Plans the tensors and files of an MLX folder. `calibrate`: how linear layers are rounded, if not to nearest.

    Raises UsageError for contradictory options, UnsupportedError for a family without MLX names or settings that
    mlx-lm's class of the model ignores.
    """
    refuse_unsupported(model)
    rules = model.family.document.mlx
    named = model.resolved.save("mlx")
    draft = PlanBuilder({}, {"format": "mlx"}, losses=unplaced(model, "mlx", "MLX folder"))
    list_unnamed(model, draft, hint=_towers_hint)
    for name in drop_tied_mlx(model, named, draft):
        del named[name]
    requested = weight_dtype(model, options)
    overall = overall_quantization(options, options.recipe)
    types = {name: None if name.endswith((*_UNCAST, *rules.uncast)) else requested for name in named}
    rows = model.family.rows_of("mlx", model.sizes, named)
    kinds = {name: role.kind for name, role in rows.items()}
    quantizable = [
        name for name in named
        if kinds[name] not in _UNQUANTIZED and not name.removesuffix(".weight").endswith(tuple(rules.unquantized))
    ]  # fmt: skip
    chosen = {
        name: quantization for name in quantizable
        if rows[name].name not in rules.floats
        and (quantization := _quantization(name, named[name], model, options, overall)) is not None
    }  # fmt: skip
    work = _Work(model, options, named, kinds, frozenset(quantizable), chosen, types, draft)
    modules = _add_tensors(work, *_by_text(work, calibrate))
    config = _config(model, modules, overall, options)
    if model.format == "gguf":
        texts, losses = meta.for_hf(model, draft.tensors, options.tokenizer)
        draft.texts |= texts
        draft.losses += losses
    else:
        add_side_files(model, draft, without=("config.json", *model.texts))
    draft.texts |= {**model.texts, "config.json": json.dumps(config, indent=4).encode()}
    draft.index = index_of(draft.tensors, sum(node.spec.elements for node in named.values()))
    return draft


def refuse_without_family(model: OpenModel) -> None:
    """Raises UnsupportedError for a model that only mlx-vlm's table has, with the option that writes it."""
    if not model.described and tower_names(model.config) is not None:
        raise UnsupportedError(f"no family has the language model of {model.config['model_type']}", hint=_WHOLE)


def refuse_unsupported(model: OpenModel) -> None:
    """Raises UnsupportedError for a family without MLX names, and for settings that mlx-lm's class ignores."""
    family, rules = model.family, model.family.document.mlx
    if "mlx" not in family.dialects:
        other = (
            "wb convert --to hf writes a folder for other programs; wb arch list shows which families have mlx names"
        )
        raise UnsupportedError(
            f"the {family.name} family has no MLX tensor names{f': {rules.unsupported}' if rules.unsupported else ''}",
            hint=_WHOLE if tower_names(model.config) else other,
        )
    facts = family.effective(model.config)
    values = {key: facts.get(key) for key in rules.refused}
    wrong = [
        f"{key} = {value}" for key, value in values.items() if (any(value) if is_list(value) else value is not None)
    ]
    wrong += [f"{x.config} = {lookup(facts, x.config)!r} ({x.why})" for x in rules.requires_value if differs(x, facts)]
    if wrong:
        raise UnsupportedError(
            f"mlx-lm's {model.config['model_type']} can't compute {', '.join(wrong)}",
            hint="GGUF and Hugging Face folders support it: --to gguf, --to hf",
        )


def _towers_hint(model: OpenModel, start: str) -> str:
    return "; wb convert SRC DST --to mlx --towers writes it, for mlx-vlm" if tower_names(model.config) else ""


def index_of(tensors: Mapping[str, Node], elements: int) -> Callable[[Mapping[str, str]], bytes]:
    """Returns the function that writes model.safetensors.index.json. `elements`: the number of weights."""
    metadata = {"total_size": sum(node.spec.nbytes for node in tensors.values()), "total_parameters": elements}
    return lambda file_of: json.dumps(
        {"metadata": metadata, "weight_map": dict(sorted(file_of.items()))}, indent=4
    ).encode()


class _Work(NamedTuple):
    """The state of one conversion. `kinds`: of the weights; `quantizable`: the weights that mlx-lm can quantize;
    `chosen`: requested quantizations; `types`: of floats, None for the stored one."""

    model: OpenModel
    options: MlxOptions
    named: Mapping[str, LogicalTensor]
    kinds: Mapping[str, str]
    quantizable: frozenset[str]
    chosen: Mapping[str, MlxQuantization]
    types: Mapping[str, DType | None]
    draft: PlanBuilder


def _add_tensors(
    work: _Work, made: Mapping[str, Mapping[str, Node]], floats: Mapping[str, Node]
) -> dict[str, MlxQuantization]:
    """Adds the stored tensors, and returns the quantization of modules. `made`: those that a text makes; `floats`: all
    as floats, if they are planned already."""
    named, chosen, types, draft = work.named, work.chosen, work.types, work.draft
    modules: dict[str, MlxQuantization] = {}
    for name, node in named.items():
        module, parts = name.removesuffix(".weight"), made.get(name)
        if name in chosen:
            modules[module] = chosen[name]
            if parts is None:
                parts = quantize(name, floats.get(name) or plain(name, node, types[name], draft), chosen[name])
        elif name in work.quantizable and (kept := keep_codes(name, node, draft)) is not None:
            modules[module], parts = kept
        if parts is None:
            draft.tensors[name] = floats.get(name) or plain(name, node, types[name], draft)
        else:
            draft.tensors |= {f"{module}.{part}": stored for part, stored in parts.items()}
    return modules


def _by_text(work: _Work, calibrate: Calibrate | None) -> tuple[dict[str, Mapping[str, Node]], Mapping[str, Node]]:
    """The stored parts of the tensors that a text rounds or changes, by name; and all tensors as floats.
    Stacked experts, embeddings and the head are rounded to nearest. Raises UsageError for a text without affine codes,
    or a quantized source."""
    model, options, named, types, draft = work.model, work.options, work.named, work.types, work.draft
    if calibrate is None:
        for option in ("act_order", "damp"):
            if getattr(options, option) is not None:
                raise UsageError(f"{flag(option)} applies to --text", hint="--text FILE rounds by GPTQ")
        return {}, {}
    if packed := [name for name, node in named.items() if nodes.needs_decoding(node)]:
        raise UsageError(f"--text rounds float weights, but {packed[0]} is quantized", hint="omit --text")
    rounded = {n: q for n, q in work.chosen.items() if work.kinds[n] in _ROUNDED and q.mode in (None, "affine")}
    matrices = {name: q for name, q in rounded.items() if len(named[name].spec.shape) == 2}
    if not matrices:
        raise UsageError("--text rounds affine codes, and nothing gets any", hint="--q-bits 4")
    if stacks := len(rounded) - len(matrices):
        draft.notes.append(f"{plural(stacks, 'stack')} of experts: rounded to nearest, without the text")
    floats = {name: plain(name, node, types[name], draft) for name, node in named.items()}
    layers = {name: floats[name] for name in matrices}
    rules: dict[str, GroupRule] = {
        name: RoundToAffine(q.bits, q.group_size, floats[name].spec.dtype) for name, q in matrices.items()
    }
    made = calibrate(ToCalibrate(model, "mlx", named, floats, layers, rules, "awq", options))
    draft.preparation = made.preparation
    return dict(made.parts), {**floats, **made.floats}


def load_losses(draft: PlanBuilder) -> list[Loss]:
    """A loss if mlx-lm won't load the planned folder."""
    shapes = {name: node.spec.shape for name, node in draft.tensors.items()}
    verdict = mlx_verdict(json.loads(draft.texts["config.json"]), shapes)
    return [Loss(f"mlx-lm won't load it: {verdict.why}")] if verdict.why else []


# ------------------------------------------------------------------------------------------------ requested types


def weight_dtype(model: OpenModel, options: MlxFolderOptions) -> DType | None:
    """The dtype of the weights: the requested one, or an older config's; mlx_lm ignores a newer config's `dtype`."""
    if options.dtype not in (None, "auto"):
        requested = dtype_of(options.dtype)
        if requested not in _CASTS.values():
            raise UsageError(f"MLX weights are f16, bf16 or f32, not {requested}", hint="quantize them with --q-bits")
        return requested
    path = text_path(model)
    stated = model.config.get("torch_dtype") or (value_at(model.config, path).get("dtype") if path else None)
    return _CASTS.get(stated) if isinstance(stated, str) and model.format != "gguf" else None


def overall_quantization(options: MlxFolderOptions, recipe: str | None = None) -> MlxQuantization | None:
    """The requested quantization of all modules, or None. Raises UsageError for one that MLX lacks."""
    parameters = (options.q_bits, options.q_group_size, options.q_mode, recipe)
    if all(x is None for x in parameters) and not options.quantize:
        return None
    mode = options.q_mode or "affine"
    if mode not in _DEFAULTS:
        raise UsageError(f"MLX has no mode {mode!r}", hint=f"one of {', '.join(_DEFAULTS)}")
    if recipe and mode != "affine":
        raise UsageError("a recipe mixes bits of affine quantization", hint="leave --q-mode out")
    if recipe and recipe not in RECIPES:
        raise UsageError(f"no recipe {recipe!r}", hint=f"one of {', '.join(RECIPES)}")
    group, bits = _DEFAULTS[mode]
    group, bits = options.q_group_size or group, options.q_bits or bits
    valid = bits in affine.BITS[1:] and group in affine.GROUPS
    if not (valid if mode == "affine" else (group, bits) == _DEFAULTS[mode]):
        raise UsageError(
            f"MLX has no {mode} quantization of {bits} bits in groups of {group}",
            hint="affine: 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128",
        )
    return MlxQuantization(group, bits, mode)


def _quantization(
    name: str, node: LogicalTensor, model: OpenModel, options: MlxOptions, overall: MlxQuantization | None
) -> MlxQuantization | None:
    """The quantization of a tensor, or None. mlx-lm quantizes linear layers and embeddings (with `to_quantized`)."""
    if overall is None or not name.endswith(".weight") or len(node.spec.shape) < 2:
        return None
    if node.spec.shape[-1] % overall.group_size:
        return None
    module = name.removesuffix(".weight")
    if options.recipe:
        layers = int(model.family.effective(model.config).get("num_hidden_layers", model.sizes["L"]))
        # mlx_lm.convert.mixed_quant_predicate_builder
        low, high = RECIPES[options.recipe]
        index = next((int(part) for part in module.split(".") if part.isdigit()), 0)
        more = index < layers // 8 or index >= 7 * layers // 8 or (index - layers // 8) % 3 == 2
        important = more and any(part in module for part in ("v_proj", "v_a_proj", "v_b_proj", "down_proj"))
        return MlxQuantization(overall.group_size, high if important or "lm_head" in module else low, "affine")
    for end in model.family.document.mlx.eight_bits:
        if module == end[1:] if end[0] == "=" else module.endswith(end):
            return EIGHT_BITS
    return overall


# ------------------------------------------------------------------------------------------------ tensors


def quantize(name: str, node: Node, quantization: MlxQuantization) -> Mapping[str, Node]:
    """Quantizes a float tensor. Raises UnsupportedError if its rows aren't whole groups."""
    group, bits, mode = quantization
    if node.spec.shape[-1] % group:
        own = "mlx-lm gives this module 8 bits in groups of 64, whatever is requested: --to gguf has other types"
        raise UnsupportedError(
            f"{name}: rows of {node.spec.shape[-1]} are not whole groups of {group}",
            hint=own if quantization == EIGHT_BITS else "--q-group-size: one that divides the rows",
        )
    floats = nodes.cast(node, F32)
    if mode in (None, "affine"):
        return nodes.pack(floats, packers.AffineOf(bits, group, node.spec.dtype, name))
    return nodes.pack(floats, packers.FloatOf(str(mode), node.spec.dtype, name))


def keep_codes(name: str, node: LogicalTensor, draft: PlanBuilder) -> tuple[MlxQuantization, Mapping[str, Node]] | None:
    """The quantization and stored tensors of a quantized tensor whose values MLX can hold exactly; else None."""
    packing = node.packing if isinstance(node, QuantizedTensor) else None
    parts: Mapping[str, Node]
    if isinstance(node, Node):
        if node.spec.dtype not in packers.EXACT:
            return None
        packer = packers.BlocksOf(node.spec.dtype)
        source, target = node.spec.dtype.name, packer.mode
        if packer.mode == "affine":
            target = f"affine {packer.bits} bits"
        quantization, parts = MlxQuantization(packer.group, packer.bits, packer.mode), nodes.pack(node, packer)
    elif isinstance(packing, Affine):
        source, target = packing.name, "affine"
        quantization, parts = MlxQuantization(packing.group, packing.code_bits, "affine"), _matrices(node)
    elif (bridged := mlx_affine_bridge.as_affine(node)) is not None:
        bits, group, parts = bridged
        source, target, quantization = node.packing.name, f"affine {bits} bits", MlxQuantization(group, bits, "affine")
    elif isinstance(packing, Microscaled) and not packing.overall and packing.name in _DEFAULTS:
        # MLX has no MXFP6, and no global scale on linear layers
        source = target = packing.name
        codes, scales = (_matrices(node)[member] for member in ("codes", "scales"))
        quantization = MlxQuantization(packing.group, 4, packing.name)
        parts = {
            "weight": nodes.bitcast(codes, U32, codes.spec.row_bytes // 4),
            "scales": nodes.bitcast(scales, U8, scales.spec.shape[-1]),
        }
    elif isinstance(packing, ScaledFloat) and (parts := _mxfp8(node, packing)):
        source, target, quantization = packing.name, "mxfp8", MlxQuantization(packers.MODES["mxfp8"].group, 8, "mxfp8")
    else:
        return None
    draft.moves.append(Move(name, source, target, "exact"))
    return quantization, parts


def _mxfp8(node: QuantizedTensor, packing: ScaledFloat) -> dict[str, Node]:
    """The stored tensors of E4M3 codes whose scales are powers of two, repeated for each group of a row; {} if a group
    has several scales, or a block ends inside of it."""
    group, (height, width), columns = packers.MODES["mxfp8"].group, packing.block, node.spec.shape[-1]
    exact = (packing.dtype, packing.scale_dtype) == (E4M3, E8M0)
    if not exact or columns % width or width % group or node.spec.rows % height:
        return {}
    codes, scales = node.members["weight"], node.members["scales"]
    bands, blocks = node.spec.rows // height, columns // width
    flat = nodes.bitcast(nodes.reshape(scales, (bands * blocks,)), U8, bands * blocks)
    repeated = nodes.strided(flat, 0, [bands, height, blocks, width // group], [blocks, 0, 1, 0])
    lead = node.spec.shape[:-1]
    return {
        "weight": nodes.bitcast(nodes.reshape(codes, node.spec.shape), U32, columns // 4),
        "scales": nodes.reshape(repeated, (*lead, columns // group)),
    }


def _matrices(node: QuantizedTensor) -> dict[str, Node]:
    """The members in the shape of the whole tensor; row moves may have flattened them."""
    lead = node.spec.shape[:-1]
    return {m: nodes.reshape(x, (*lead, x.spec.elements // max(node.spec.rows, 1))) for m, x in node.members.items()}


def plain(name: str, node: LogicalTensor, dtype: DType | None, draft: PlanBuilder) -> Node:
    """The tensor as floats of `dtype`; None: of the float type that it is stored in. Integers are kept."""
    if not isinstance(node, Node) or node.spec.dtype.kind is Kind.BLOCK:
        target = dtype or F16
        draft.moves.append(Move(name, nodes.storage_name(node), target.name, "decoded", "MLX can't store it"))
        return cast_to(name, node, target, draft)
    if node.spec.dtype.kind is not Kind.FLOAT:
        return node
    if dtype is None:  # a layout may compute in another type; MLX (`sanitize`) in the stored one
        stored = {leaf.spec.dtype for leaf in nodes.walk(node) if not leaf.sources}
        dtype = stored.pop() if len(stored) == 1 else node.spec.dtype
        dtype = dtype if dtype.kind is Kind.FLOAT else node.spec.dtype
    return cast_to(name, node, dtype, draft)


# ------------------------------------------------------------------------------------------------ files


def _config(
    model: OpenModel, modules: Mapping[str, MlxQuantization], overall: MlxQuantization | None, options: MlxOptions
) -> dict[str, Any]:
    """The model's config.json, sorted, with the quantization under both of its keys."""
    config = {
        k: v
        for k, v in model.family.alone(model.config).items()
        if k not in ("_name_or_path", "vision_config", "quantization_config")
    }
    config.pop("quantization", None)
    rules = model.family.document.mlx
    if (name := rules.model_type.get(str(config.get("model_type")))) is not None:
        config["model_type"] = name
    layer_types = model.family.effective(model.config).get("layer_types")
    config = _whole_config(config, model, rules)
    path = path_of_text(config, model.family.architecture(config))
    config = with_period(config, path, layer_types, rules.period)
    defaults = model.family.plain_defaults
    if path:
        config = with_part(config, path, with_rope_words(value_at(config, path), defaults))
    config = with_scaling_type(with_rope_words(with_pattern(config, layer_types), defaults))
    config = with_fields(config, model.family.effective(model.config), model.family)
    generation = model.json("generation_config.json") if model.format != "gguf" else None
    if generation and generation.get("eos_token_id"):
        config["eos_token_id"] = generation["eos_token_id"]
    config |= quantization_config(modules, overall, each=bool(options.recipe and overall is not None))
    return dict(sorted(config.items()))


def quantization_config(
    modules: Mapping[str, MlxQuantization], overall: MlxQuantization | None, *, each: bool
) -> dict[str, Any]:
    """The quantization under both of its keys, with the modules that differ from the whole, or with `each`."""
    if not modules:
        return {}
    top = overall or Counter(modules.values()).most_common(1)[0][0]
    stated = {**top.described(), **{m: q.described() for m, q in modules.items() if each or q != top}}
    return {"quantization": stated, "quantization_config": stated}


_LAYERS: Final = "num_hidden_layers"
# Values that transformers' classes treat as unset, and mlx-lm's as a number.
_UNSET: Final = (None, -1)


def _whole_config(config: dict[str, Any], model: OpenModel, rules: MlxEntry) -> dict[str, Any]:
    """The config of the whole model if mlx-lm supports only that, with the keys that it requires of the part."""
    if (name := rules.part_of.get(str(config.get("model_type")))) is not None:
        (owner,) = (a for a in model.family.architectures.values() if a.model_type == name)
        part = {key: value for key, value in config.items() if key != "architectures"}
        tokens = {key: value for key, value in config.items() if key.endswith("_token_id")}
        config = {**tokens, "architectures": [owner.name], "model_type": name, str(owner.part): part}
    if not rules.config and not rules.layers:
        return config
    path, facts = path_of_text(config, model.family.architecture(config)), model.family.effective(config)
    stated = value_at(config, path)
    added = {key: lookup(facts, path) for key, path in rules.config.items() if stated.get(key) in _UNSET}
    sets = dict(model.sizes.layers) if rules.layers else {}
    count = integer(facts[_LAYERS], _LAYERS) if rules.layers else 0
    flags = {key: [int(layer in sets[name]) for layer in range(count)] for key, name in rules.layers.items()}
    added |= {key: listed for key, listed in flags.items() if stated.get(key) is None}
    return with_part(config, path, {**stated, **added})
