"""Plans an MLX folder, equal to that of mlx_lm.convert (0.32.2, on a CPU): names and stacks by the family's table, the
same words, scales and biases, the same config.json and index. Doesn't need MLX.

Quantized sources stay quantized where MLX can hold their values exactly: ggml's simple and 4- and 5-bit K blocks become
affine, its 4-bit floats MLX's; MLX's own groups are copied. Source of the rules: mlx_lm/convert.py, mlx_lm/utils.py
(quantize_model, save_model, save_config), `quant_predicate` and `cast_predicate` in mlx_lm/models.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import BF16, F16, F32, U8, U32, DType, Kind, dtype
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.conversion.gguf import metadata as meta
from weighbridge.conversion.mlx.config import with_fields, with_period, with_rope_words
from weighbridge.conversion.options import MlxOptions
from weighbridge.conversion.plan import writers
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to, ignored_parts, sidecar_files
from weighbridge.conversion.plan.losses.ties import drop_tied_mlx
from weighbridge.conversion.plan.model import Loss, Move
from weighbridge.io.location import open_source
from weighbridge.models.arch.tables.schema import MlxEntry
from weighbridge.models.arch.tables.values import integer
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.config.keys import lookup
from weighbridge.models.config.mlx_view import reading
from weighbridge.packings import mlx_affine_bridge
from weighbridge.packings.read.affine import Affine
from weighbridge.packings.read.microfloat import Microscaled
from weighbridge.packings.schema import affine
from weighbridge.packings.write import packers
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor

# mlx_lm.utils.quantize_model: (group size, bits) of a mode where they aren't given.
_DEFAULTS: Final = MappingProxyType({"affine": (64, 4), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)})
# mlx_lm.convert's recipes: (low bits, high bits).
RECIPES: Final = MappingProxyType({"mixed_2_6": (2, 6), "mixed_3_4": (3, 4), "mixed_3_6": (3, 6), "mixed_4_6": (4, 6)})
# Modules without `to_quantized`, by the kind of their weights.
_UNQUANTIZED: Final = ("conv", "norm")
# `cast_predicate`: tensors that keep their type; a family's table has further ones.
_UNCAST: Final = ("e_score_correction_bias", "expert_bias", "A_log")
_CASTS: Final = MappingProxyType({"float16": F16, "bfloat16": BF16, "float32": F32})
SHARD: Final = 5 << 30  # bytes: mlx_lm.utils.MAX_FILE_SIZE_GB


class MlxQuantization(NamedTuple):
    """The parameters of one module; `mode` is None where mlx_lm omits it from the config."""

    group_size: int
    bits: int
    mode: str | None = None

    def described(self) -> dict[str, Any]:
        return {key: value for key, value in self._asdict().items() if value is not None}


def to_mlx(model: Checkpoint, options: MlxOptions) -> PlanBuilder:
    """The tensors and files of an MLX folder. UsageError for contradictory options, UnsupportedError for a family
    without MLX names."""
    if "mlx" not in model.family.dialects:
        raise UnsupportedError(
            f"the {model.family.name} family has no MLX tensor names", hint="wb convert --to hf writes a folder for "
            "other programs; wb arch list shows which families have mlx names",
        )  # fmt: skip
    rules = model.family.document.mlx
    _check_supported(model, rules)
    named = model.family.save("mlx", model.sizes, model.roles)
    draft = PlanBuilder({}, {"format": "mlx"}, losses=ignored_parts(model))
    for name in drop_tied_mlx(model, named, draft):
        del named[name]
    lost = model.family.unmapped_roles("mlx", model.sizes, model.roles)
    names = model.family.holding(model.dialect, model.sizes, model.logical, lost) if lost else []
    draft.losses += [Loss("omitted: mlx-lm has no tensor for it", name) for name in names]
    wanted = _weight_dtype(model, options)
    overall = _requested(options)
    roles = model.family.rows_of("mlx", model.sizes, named)
    chosen: dict[str, MlxQuantization] = {}
    for name, node in named.items():
        layer = overall if roles[name].kind not in _UNQUANTIZED else None
        how = _quantization(name, node, model, options, layer)
        parts = _parts(name, node, how, None if name.endswith((*_UNCAST, *rules.uncast)) else wanted, draft)
        if isinstance(parts, tuple):
            chosen[name.removesuffix(".weight")], stored = parts
            draft.tensors |= {f"{name.removesuffix('.weight')}.{part}": made for part, made in stored.items()}
        else:
            draft.tensors[name] = parts
    config = _config(model, chosen, overall, options)
    if reading(config) is None:
        draft.losses.append(Loss(f"mlx-lm has no class of model_type {config.get('model_type')!r} and won't load it"))
    _files(model, options, draft, config)
    draft.index = _indexer(sum(node.spec.elements for node in named.values()), draft.tensors)
    return draft


def _check_supported(model: Checkpoint, rules: MlxEntry) -> None:
    """UnsupportedError for settings that mlx-lm's class of the model ignores."""
    facts = model.family.effective(model.config)
    if refused := [f"{key} = {facts[key]}" for key in rules.refused if facts.get(key) is not None]:
        raise UnsupportedError(
            f"mlx-lm's {model.config['model_type']} can't compute {', '.join(refused)}",
            hint="GGUF and Hugging Face folders support it: --to gguf, --to hf",
        )


# ------------------------------------------------------------------------------------------------ what is wanted


def _weight_dtype(model: Checkpoint, options: MlxOptions) -> DType | None:
    """The dtype of the weights: the requested one, or an older config's; mlx_lm ignores a newer config's `dtype`."""
    if options.dtype not in (None, "auto"):
        found = dtype(options.dtype)
        if found not in _CASTS.values():
            raise UsageError(f"MLX weights are f16, bf16 or f32, not {found}", hint="quantize them with --q-bits")
        return found
    text = model.config.get("text_config")
    stated = model.config.get("torch_dtype") or (text.get("dtype") if isinstance(text, Mapping) else None)
    return _CASTS.get(stated) if isinstance(stated, str) and model.format != "gguf" else None


def _requested(options: MlxOptions) -> MlxQuantization | None:
    """The requested quantization of all modules, or None."""
    given = (options.q_bits, options.q_group_size, options.q_mode, options.recipe)
    if all(x is None for x in given) and not options.quantize:
        return None
    mode = options.q_mode or "affine"
    if mode not in _DEFAULTS:
        raise UsageError(f"MLX has no mode {mode!r}", hint=f"one of {', '.join(_DEFAULTS)}")
    if options.recipe and mode != "affine":
        raise UsageError("a recipe mixes bits of affine quantization", hint="leave --q-mode out")
    if options.recipe and options.recipe not in RECIPES:
        raise UsageError(f"no recipe {options.recipe!r}", hint=f"one of {', '.join(RECIPES)}")
    group, bits = _DEFAULTS[mode]
    found = MlxQuantization(options.q_group_size or group, options.q_bits or bits, mode)
    known = found.bits in affine.BITS[1:] and found.group_size in affine.GROUPS
    if not (known if mode == "affine" else (found.group_size, found.bits) == _DEFAULTS[mode]):
        raise UsageError(
            f"MLX has no {mode} quantization of {found.bits} bits in groups of {found.group_size}",
            hint="affine: 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128",
        )
    return found


def _quantization(
    name: str, node: LogicalTensor, model: Checkpoint, options: MlxOptions, overall: MlxQuantization | None
) -> MlxQuantization | None:
    """How a tensor is quantized; None: not at all. mlx-lm quantizes modules with `to_quantized`: linear layers and
    embeddings."""
    if overall is None or not name.endswith(".weight") or len(node.spec.shape) < 2:
        return None
    if node.spec.shape[-1] % overall.group_size:
        return None
    module = name.removesuffix(".weight")
    if options.recipe:
        layers = int(model.family.effective(model.config).get("num_hidden_layers", model.sizes["L"]))
        return MlxQuantization(overall.group_size, _mixed(module, options.recipe, layers), "affine")
    return MlxQuantization(64, 8) if _is_eight_bits(module, model.family.document.mlx) else overall


def _is_eight_bits(module: str, rules: MlxEntry) -> bool:
    """Whether mlx-lm quantizes a module to 8 bits whatever is requested (`quant_predicate` of mlx_lm.models)."""
    return any(module == end[1:] if end[0] == "=" else module.endswith(end) for end in rules.eight_bits)


def _mixed(module: str, recipe: str, layers: int) -> int:
    """The bits of a module, as in mlx_lm.convert.mixed_quant_predicate_builder."""
    low, high = RECIPES[recipe]
    index = next((int(part) for part in module.split(".") if part.isdigit()), 0)
    more = index < layers // 8 or index >= 7 * layers // 8 or (index - layers // 8) % 3 == 2
    important = any(part in module for part in ("v_proj", "v_a_proj", "v_b_proj", "down_proj"))
    return high if (more and important) or "lm_head" in module else low


# ------------------------------------------------------------------------------------------------ tensors

_Parts = tuple[MlxQuantization, Mapping[str, Node]]


def _parts(
    name: str, node: LogicalTensor, how: MlxQuantization | None, wanted: DType | None, draft: PlanBuilder
) -> Node | _Parts:
    """The stored tensors of a logical one, with their quantization if it has one."""
    kept = _kept(name, node, draft) if how is None else None
    if kept is not None:
        return kept
    plain = _plain(name, node, wanted, draft)
    if how is None:
        return plain
    if plain.spec.shape[-1] % how.group_size:
        raise UnsupportedError(f"{name}: rows of {plain.spec.shape[-1]} are not whole groups of {how.group_size}")
    floats = nodes.cast(plain, F32)
    if how.mode in (None, "affine"):
        return how, nodes.pack(floats, packers.AffineOf(how.bits, how.group_size, plain.spec.dtype, name))
    return how, nodes.pack(floats, packers.FloatOf(str(how.mode), plain.spec.dtype, name))


def _kept(name: str, node: LogicalTensor, draft: PlanBuilder) -> _Parts | None:
    """A quantized tensor whose values MLX can store exactly; None for others."""
    if isinstance(node, QuantizedTensor):
        return _kept_packed(name, node, draft)
    if node.spec.dtype in packers.EXACT:
        packer = packers.BlocksOf(node.spec.dtype)
        target = f"affine {packer.bits} bits" if packer.mode == "affine" else packer.mode
        draft.moves.append(Move(name, node.spec.dtype.name, target, "exact"))
        return MlxQuantization(packer.group, packer.bits, packer.mode), nodes.pack(node, packer)
    return None


def _kept_packed(name: str, node: QuantizedTensor, draft: PlanBuilder) -> _Parts | None:
    if isinstance(node.packing, Affine):
        draft.moves.append(Move(name, node.packing.name, "affine", "exact"))
        return MlxQuantization(node.packing.group, node.packing.bits, "affine"), _matrices(node)
    if (found := mlx_affine_bridge.as_affine(node)) is not None:
        bits, group, parts = found
        draft.moves.append(Move(name, node.packing.name, f"affine {bits} bits", "exact"))
        return MlxQuantization(group, bits, "affine"), parts
    if isinstance(node.packing, Microscaled) and _has(node.packing):
        return _float_mode(name, node, node.packing, draft)
    return None


def _has(packing: Microscaled) -> bool:
    """Whether MLX has a mode for it: no MXFP6, and no global scale on linear layers."""
    return not packing.overall and packing.name in _DEFAULTS


def _float_mode(name: str, node: QuantizedTensor, packing: Microscaled, draft: PlanBuilder) -> _Parts:
    """Four-bit floats of any origin as MLX's mxfp4 or nvfp4."""
    draft.moves.append(Move(name, packing.name, packing.name, "exact"))
    parts = _matrices(node)
    words = nodes.bitcast(parts["codes"], U32, parts["codes"].spec.row_bytes // 4)
    scales = nodes.bitcast(parts["scales"], U8, parts["scales"].spec.shape[-1])
    return MlxQuantization(packing.group, 4, packing.name), {"weight": words, "scales": scales}


def _matrices(node: QuantizedTensor) -> dict[str, Node]:
    """The members in the shape of the whole tensor; row moves may have flattened them."""
    lead = node.spec.shape[:-1]
    return {m: nodes.reshape(x, (*lead, x.spec.elements // max(node.spec.rows, 1))) for m, x in node.members.items()}


def _plain(name: str, node: LogicalTensor, wanted: DType | None, draft: PlanBuilder) -> Node:
    source = nodes.storage_name(node)
    if not isinstance(node, Node) or node.spec.dtype.kind is Kind.BLOCK:
        target = wanted or F16
        draft.moves.append(Move(name, source, target.name, "decoded", "MLX can't store it"))
        return cast_to(name, node, target, draft)
    if wanted is None or node.spec.dtype.kind is not Kind.FLOAT:
        return node
    return cast_to(name, node, wanted, draft)


# ------------------------------------------------------------------------------------------------ files


def _config(
    model: Checkpoint, chosen: Mapping[str, MlxQuantization], overall: MlxQuantization | None, options: MlxOptions
) -> dict[str, Any]:
    """config.json: the model's own, sorted, with the quantization under both of its keys."""
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
    config = with_period(_whole(config, model, rules), layer_types, rules.period)
    defaults = model.family.plain_defaults
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config["text_config"] = with_rope_words(text, defaults)
    config = with_rope_words(config, defaults)
    config = with_fields(config, model.family.effective(model.config), model.family)
    generation = model.json("generation_config.json") if model.format != "gguf" else None
    if generation and generation.get("eos_token_id"):
        config["eos_token_id"] = generation["eos_token_id"]
    if chosen:
        top = overall or Counter(chosen.values()).most_common(1)[0][0]
        own = {m: q.described() for m, q in chosen.items() if q != top or (options.recipe and overall is not None)}
        config["quantization"] = config["quantization_config"] = {**top.described(), **own}
    return dict(sorted(config.items()))


_LAYERS: Final = "num_hidden_layers"
# What transformers' classes take for a key that isn't set, and mlx-lm's for a number.
_UNSET: Final = (None, -1)


def _whole(config: dict[str, Any], model: Checkpoint, rules: MlxEntry) -> dict[str, Any]:
    """The config of the whole model, if mlx-lm knows only that, with all keys that it needs of the part's."""
    if (name := rules.part_of.get(str(config.get("model_type")))) is not None:
        (owner,) = (a for a in model.family.architectures.values() if a.model_type == name)
        part = {key: value for key, value in config.items() if key != "architectures"}
        tokens = {key: value for key, value in config.items() if key.endswith("_token_id")}
        config = {**tokens, "architectures": [owner.name], "model_type": name, str(owner.part): part}
    if not rules.config and not rules.layers:
        return config
    text, facts = config.get("text_config"), model.family.effective(config)
    stated = text if isinstance(text, Mapping) else config
    added = {key: lookup(facts, path) for key, path in rules.config.items() if stated.get(key) in _UNSET}
    sets = dict(model.sizes.layers) if rules.layers else {}
    count = integer(facts[_LAYERS], _LAYERS) if rules.layers else 0
    flags = {key: [int(layer in sets[name]) for layer in range(count)] for key, name in rules.layers.items()}
    added |= {key: listed for key, listed in flags.items() if stated.get(key) is None}
    full = {**stated, **added}
    return {**config, "text_config": full} if stated is text else full


def _files(model: Checkpoint, options: MlxOptions, draft: PlanBuilder, config: Mapping[str, Any]) -> None:
    """Adds the other files of the folder."""
    if model.format == "gguf":
        texts, lost = meta.for_hf(model, draft.tensors, options.tokenizer)
        draft.texts |= texts
        draft.losses += lost
    else:
        for path in sidecar_files(model.place.folder):
            name = path.relative_to(model.place.folder).as_posix()
            if name != "config.json":
                draft.extra_files.append(writers.raw(name, open_source(path)))
    draft.texts["config.json"] = json.dumps(config, indent=4).encode()


def _indexer(parameters: int, tensors: Mapping[str, LogicalTensor]) -> Any:
    total = sum(node.spec.nbytes for node in tensors.values())

    def index(where: Mapping[str, str]) -> bytes:
        data = {
            "metadata": {"total_size": total, "total_parameters": parameters},
            "weight_map": dict(sorted(where.items())),
        }
        return json.dumps(data, indent=4).encode()

    return index
