"""Plans a folder for mlx-vlm: the whole model, towers included, as mlx_vlm.convert (0.7.10) writes it.

Names and layouts are those of `models/mlxlm/towers.toml`. Matrices of the language model and of projectors without
"vision" in their path are quantized; the towers keep their type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from weighbridge.base.errors import UnsupportedError
from weighbridge.conversion.mlx.config import with_rope_words
from weighbridge.conversion.mlx.plan import (
    MlxQuantization,
    index_of,
    keep_codes,
    overall_quantization,
    plain,
    quantization_config,
    quantize,
    weight_dtype,
)
from weighbridge.conversion.options import MlxTowersOptions
from weighbridge.conversion.plan.builder import PlanBuilder
from weighbridge.conversion.plan.side_files import add_side_files
from weighbridge.conversion.result import Loss
from weighbridge.models.mlxlm.towers import TowerNames, channels_last, table, tower_names
from weighbridge.models.model import OpenModel


def to_mlx_vlm(model: OpenModel, options: MlxTowersOptions) -> PlanBuilder:
    """Plans all tensors and files. Raises UnsupportedError for a model without a row in towers.toml, or with
    experts, UsageError for a quantization that MLX lacks."""
    names = tower_names(model.config)
    if names is None:
        raise UnsupportedError(
            f"no table has mlx-vlm's names for the model type {model.config.get('model_type')}",
            hint=f"known: {', '.join(table().model)}; without --towers only the language model is written",
        )
    draft = PlanBuilder({}, {"format": "mlx"})
    requested, overall = weight_dtype(model, options), overall_quantization(options)
    modules: dict[str, MlxQuantization] = {}
    elements = 0
    tensors = {names.to_mlx(name): node for name, node in model.logical.items()}
    if names.head and names.head[1] not in tensors:
        tensors[names.head[1]] = tensors[names.head[0]]
    for name, node in tensors.items():
        if any(part in name for part in table().computed):
            draft.losses.append(Loss("left out: mlx-vlm computes it", name))
            continue
        if len(node.spec.shape) > 2 and name not in names.channels_last and table().quantizes(name):
            raise UnsupportedError(f"{name}: mlx-vlm's layout of experts isn't in its table", hint="leave out --towers")
        elements += node.spec.elements
        module, matrix = name.removesuffix(".weight"), name.endswith(".weight") and len(node.spec.shape) == 2
        if name in names.channels_last:
            draft.tensors[name] = plain(name, channels_last(node), requested, draft)
            continue
        parts: Mapping[str, Any]
        if overall is not None and matrix and table().quantizes(name) and not node.spec.shape[-1] % overall.group_size:
            modules[module], parts = overall, quantize(name, plain(name, node, requested, draft), overall)
        elif matrix and (kept := keep_codes(name, node, draft)) is not None:
            modules[module], parts = kept
        else:
            draft.tensors[name] = plain(name, node, requested, draft)
            continue
        draft.tensors |= {f"{module}.{part}": stored for part, stored in parts.items()}
    add_side_files(model, draft, without=("config.json", *model.texts))
    config = {**_config(model, names), **quantization_config(modules, overall, each=False)}
    draft.texts |= {**model.texts, "config.json": json.dumps(dict(sorted(config.items())), indent=4).encode()}
    draft.index = index_of(draft.tensors, elements)
    return draft


def _config(model: OpenModel, names: TowerNames) -> dict[str, Any]:
    """The folder's config.json with the keys that mlx-vlm's class reads. transformers 5 has the language model's in
    `text_config`, and other types of rotary settings."""
    config = {
        k: v for k, v in model.config.items() if k not in ("_name_or_path", "quantization", "quantization_config")
    }
    text = config.get("text_config")
    if isinstance(text, Mapping) and model.described:
        config["text_config"] = text = with_rope_words(text, model.family.plain_defaults)
    if names.flat:
        below = {key: value for key, value in (text or {}).items() if key not in ("model_type", "architectures")}
        config = {**below, **{key: value for key, value in config.items() if key != "text_config"}}
        config["vision_config"] = {**config.get("vision_config", {}), "model_type": names.flat}
        if isinstance(rope := config.pop("rope_parameters", None), Mapping):
            config["rope_theta"] = rope.get("rope_theta")
            config["rope_scaling"] = {"type": "mrope", "mrope_section": rope.get("mrope_section")}
    return config
