"""Plans a folder for mlx-vlm: the whole model, towers included, as mlx_vlm.convert (0.7.10) writes it.

Names and layouts are those of `models/mlxlm/towers.toml`. Matrices of the language model and of projectors without
"vision" in their path are quantized; the towers keep their type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from weighbridge.base.dtypes import F16, F32, DType
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.words import plural
from weighbridge.conversion.mlx.plan import (
    EIGHT_BITS,
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
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to
from weighbridge.conversion.plan.side_files import add_side_files
from weighbridge.conversion.result import Loss
from weighbridge.models.arch.config import value_at
from weighbridge.models.mlxlm.tower_config import config_of_mlx_vlm, has_output
from weighbridge.models.mlxlm.towers import TowerNames, mlx_tensors, table, ties_output, tower_names
from weighbridge.models.model import OpenModel
from weighbridge.models.transform.text_config import text_path
from weighbridge.packings.write import packers
from weighbridge.tensors.nodes import LogicalTensor, Node, as_node, flat_range


def to_mlx_vlm(model: OpenModel, options: MlxTowersOptions) -> PlanBuilder:
    """Plans all tensors and files. Raises UnsupportedError for a model without a row in towers.toml, or with
    experts, UsageError for a quantization that MLX lacks."""
    names = tower_names(model.config)
    alone = "; without --towers only the language model is written" if model.described else ""
    if names is None:
        kind = model.config.get("model_type")
        if not isinstance(kind, str):
            raise UnsupportedError("config.json has no model_type, by which mlx-vlm chooses a class")
        why = table().reason(kind)
        raise UnsupportedError(
            f"no table has mlx-vlm's names for the model type {kind}{f': {why}' if why else ''}",
            hint=f"known: {', '.join(table().model)}{alone}",
        )
    path = text_path(model)
    text = value_at(model.config, path)
    of_text = text if path else None
    for stated, known, what in (
        (model.config.get("vision_config"), names.sees, "tower"), (of_text, names.reads, "language model"),
    ):  # fmt: skip
        if known and isinstance(stated, Mapping) and stated.get("model_type") not in known:
            raise UnsupportedError(
                f"mlx-vlm's {model.config['model_type']} has no {what} {stated.get('model_type')}",
                hint=f"it has {', '.join(known)}{alone}",
            )
    if lacking := [name for name in model.logical if any(part in name for part in names.lacks)]:
        raise UnsupportedError(
            f"mlx-vlm's {names.kind} has no place for {lacking[0]}",
            hint="GGUF has one: --to gguf, and --mmproj for the towers" if model.described else None,
        )
    draft = PlanBuilder({}, {"format": "mlx"})
    overall = overall_quantization(options)
    turned = not model.described or model.resolved.dialect != "hf5"  # the experts of transformers 5
    draft.losses += [
        Loss("multiplied by the lengths of its rows: comes back as another pair with the same product", name)
        for name in map(names.to_mlx, model.logical)
        if any(row.is_pair(name) for row in names.weight_norms)
    ]
    tensors = mlx_tensors(names, model.logical, text, turned)
    if names.head and names.head[0] in tensors and names.head[1] not in tensors:
        tensors[names.head[1]] = tensors[names.head[0]]
    _refuse_incomplete(names, tensors)
    for name in names.tied_outputs(tensors, ties_output(model)):
        del tensors[name]
        draft.losses.append(Loss("left out: mlx-vlm's class doesn't read it: its output is the embedding", name))
    tensors = _as_read(names, tensors, text, draft)
    modules = _add_tensors(names, tensors, weight_dtype(model, options), overall, draft)
    add_side_files(model, draft, without=("config.json", *model.texts))
    settings, missing = config_of_mlx_vlm(model, names, has_output(draft.tensors))
    draft.losses += [
        Loss(f"config.json lacks {key}, which mlx-vlm's class reads: it may not load the folder", effect="results")
        for key in missing
    ]
    config = {**settings, **quantization_config(modules, overall, each=False)}
    draft.texts |= {**model.texts, "config.json": json.dumps(dict(sorted(config.items())), indent=4).encode()}
    draft.index = index_of(draft.tensors, sum(node.spec.elements for node in tensors.values()))
    return draft


def _refuse_incomplete(names: TowerNames, tensors: Mapping[str, LogicalTensor]) -> None:
    for end in names.needs:
        if not any(name.endswith(end) for name in tensors):
            raise UnsupportedError(
                f"mlx-vlm's {names.kind} needs {end}, which the folder lacks",
                hint="GGUF doesn't need it: --to gguf, and --mmproj for the towers",
            )


def _as_read(
    names: TowerNames, tensors: Mapping[str, LogicalTensor], text: Mapping[str, Any], draft: PlanBuilder
) -> dict[str, LogicalTensor]:
    """The tensors that mlx-vlm's class reads, in its layouts. Lists the others."""
    out: dict[str, LogicalTensor] = {}
    for name, node in tensors.items():
        if any(part in name for part in table().computed):
            draft.losses.append(Loss("left out: mlx-vlm computes it", name))
        elif names.is_unread(name, text):
            draft.losses.append(Loss("left out: mlx-vlm's class doesn't read it", name))
        else:
            out[name] = names.in_mlx(name, _read_part(names, name, node, text, draft))
            rows = next((rows for end, rows in names.fixed.items() if name.endswith(end)), None)
            if rows is not None and node.spec.shape[:1] != (rows,):
                draft.losses.append(Loss(f"mlx-vlm won't load it: its class always has {rows} rows", name, "results"))
    return out


def _read_part(
    names: TowerNames, name: str, node: LogicalTensor, text: Mapping[str, Any], draft: PlanBuilder
) -> LogicalTensor:
    """The elements of a vector that mlx-vlm's class reads. Lists the others."""
    sides = names.cut_sides(name, text)
    if sides is None or node.spec.shape != sides[1:]:
        return node
    draft.losses.append(Loss(f"mlx-vlm's class reads only the first {sides[0]} of {sides[1]} elements", name))
    return flat_range(as_node(node), 0, sides[:1])


def _add_tensors(
    names: TowerNames, tensors: Mapping[str, LogicalTensor], requested: DType | None, overall: MlxQuantization | None,
    draft: PlanBuilder,
) -> dict[str, MlxQuantization]:  # fmt: skip
    """Adds the stored tensors, and returns the quantization of modules. Raises UnsupportedError for a stack of experts
    that the table doesn't name."""
    modules: dict[str, MlxQuantization] = {}
    halved = 0
    for name, node in tensors.items():
        dtype = None if any(part in name for part in names.uncast) else requested
        if dtype is None and name.endswith(tuple(names.float32)):
            dtype = F32
        if names.half and isinstance(node, Node) and node.spec.dtype is F32:
            node, dtype, halved = cast_to(name, node, F16, draft), dtype or F16, halved + 1
        stack = len(node.spec.shape) == 3 and names.is_stack(name)
        placed = name.endswith((*names.channels_last, *names.transposed)) or name.startswith(tuple(names.as_published))
        known = stack or placed or not table().quantizes(name)
        if len(node.spec.shape) > 2 and node.spec.shape[0] > 1 and not known:
            raise UnsupportedError(f"{name}: mlx-vlm's layout of experts isn't in its table", hint="leave out --towers")
        matrix = name.endswith(".weight") and (stack or len(node.spec.shape) == 2)
        module = name.removesuffix(".weight")
        parts: Mapping[str, Node]
        if matrix and (wanted := _quantization(names, name, node, overall)) is not None:
            modules[module], parts = wanted, quantize(name, plain(name, node, dtype, draft), wanted)
        elif matrix and (kept := keep_codes(name, node, draft)) is not None:
            modules[module], parts = kept
        else:
            draft.tensors[name] = plain(name, node, dtype, draft)
            continue
        draft.tensors |= {f"{module}.{part}": stored for part, stored in parts.items()}
    if halved:
        rounded = f"{plural(halved, 'tensor')} of F32 {'is' if halved == 1 else 'are'} rounded to F16"
        draft.losses.append(Loss(f"{rounded}, as mlx-vlm's class reads them", effect="results"))
    return modules


def _quantization(
    names: TowerNames, name: str, node: LogicalTensor, overall: MlxQuantization | None
) -> MlxQuantization | None:
    """The quantization of a matrix; None if it keeps its type."""
    if overall is None or node.spec.shape[-1] % overall.group_size or not table().quantizes(name):
        return None
    if any(part in name for part in names.unquantized):
        return None
    module = name.removesuffix(".weight")
    fixed = (mode for mode, parts in names.modes.items() if any(part in module for part in parts))
    if (mode := next(fixed, None)) is not None:
        overall = MlxQuantization(packers.MODES[mode].group, packers.MODES[mode].bits, mode)
    elif module.endswith(tuple(names.eight_bits)):
        overall = EIGHT_BITS
    return overall if node.spec.shape[-1] % overall.group_size == 0 else None
