"""LoRAs of image and video models: their tensors in the dialects of kohya, diffusers and ComfyUI, and their merge.

    lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight       kohya: `_` for `.`, names of either dialect
    transformer.single_transformer_blocks.0.attn.to_q.lora_A.weight     diffusers, PEFT
    diffusion_model.blocks.0.self_attn.q.lora_A.weight                  ComfyUI: names of the single file

A module's change is alpha / rank times up [out, rank] @ down [rank, in]; of a convolution, down is [rank, in, h, w].
Without alpha, the factor is 1. `lycoris.py` has the other kinds of changes. kohya's names are found among the model's
own, since `_` may be part of a name.
Sources: diffusers 0.42.1 `loaders/lora_conversion_utils.py`, ComfyUI `comfy/lora.py`, sd-scripts `networks/lora.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.base.words import plural
from weighbridge.containers.formats import COMFY_SET, PIPELINE
from weighbridge.containers.sniff import diffusion
from weighbridge.models.arch.tables.values import number
from weighbridge.models.diffusion.model import DIFFUSERS, ORIGINAL, DiffusionModel
from weighbridge.models.diffusion.names import table, to_diffusers, to_original
from weighbridge.models.diffusion.pipeline import pipeline_of
from weighbridge.models.diffusion.set_parts import parts_of_set
from weighbridge.models.diffusion.tensors import NamedTensors, named_tensors
from weighbridge.models.lora import lycoris
from weighbridge.models.model import OpenModel

if TYPE_CHECKING:
    from weighbridge.base.dtypes import DType
    from weighbridge.tensors.nodes import LogicalTensor, Node

    Rounding = Callable[["Node", DType], "Node"]

_TEXT: Final = "text"
_ENCODER: Final = "text_encoder"
_CLIP: Final = "text_model."


class ModulePrefix(NamedTuple):
    """The beginning of a module's name. `encoder`: the number of a text encoder, or None for the denoiser."""

    text: str
    encoder: int | None
    underscored: bool


PREFIXES: Final = (
    *(ModulePrefix(text, None, True) for text in ("lora_unet_", "lora_transformer_")),
    *(ModulePrefix(text, None, False) for text in ("unet.", "transformer.", "diffusion_model.")),
    *(ModulePrefix(f"lora_te{number}_", int(number or 1) - 1, True) for number in ("", "1", "2", "3")),
    *(ModulePrefix(f"text_encoder{number}.", int(number[1:] or 1) - 1, False) for number in ("", "_2", "_3")),
)
#: The end of a tensor's name -> which part of a change it is.
ENDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        ".lora_down.weight": "down", ".lora_up.weight": "up",
        ".lora_A.weight": "down", ".lora_B.weight": "up",
        ".lora_A.default.weight": "down", ".lora_B.default.weight": "up",
        ".lora.down.weight": "down", ".lora.up.weight": "up",
        ".lora_linear_layer.down.weight": "down", ".lora_linear_layer.up.weight": "up",
        ".alpha": "alpha", ".dora_scale": "lengths", ".lora_magnitude_vector": "lengths",
        **lycoris.ENDS,
    }
)  # fmt: skip
#: Other kinds of changes, by a part of a tensor's name.
OTHERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        ".oft_": "OFT", ".on_input": "IA3", ".lora_B.bias": "bias", ".a1.": "GLoRA", ".a2.": "GLoRA", ".b1.": "GLoRA",
        ".b2.": "GLoRA",
    }
)  # fmt: skip
# diffusers before 0.23: attn1.processor.to_q_lora.down.weight
_PROCESSOR: Final = re.compile(r"\.processor\.(to_(?:q|k|v|out))_lora\.(down|up)\.weight")
# The name that may have lengths of columns
_COLUMNS: Final = ".dora_scale"
#: What PEFT puts before names, and diffusers' key of the header with PEFT's settings.
FRONT: Final = "base_model.model."
METADATA: Final = "lora_adapter_metadata"
_SHOWN: Final = 3


class PictureChange(NamedTuple):
    """The change of a module's weight or bias. `parts`: by the names in `lycoris.KINDS`. `lengths`: of the rows, for
    DoRA."""

    prefix: ModulePrefix
    module: str
    parts: Mapping[str, Node]
    scale: float
    lengths: Node | None

    @property
    def tensor(self) -> str:
        """The end of the name of the tensor that it changes."""
        return ".bias" if "diff_b" in self.parts else ".weight"

    def weighted(self, weight: float) -> PictureChange:
        return self._replace(scale=self.scale * weight)


class PicturePart(NamedTuple):
    """The denoiser or a text encoder of a model."""

    network: DiffusionModel
    encoder: int | None


def is_picture_lora(source: OpenModel) -> bool:
    """Whether a file has the tensors of a LoRA of an image or video model."""
    return any(_prefix(name) is not None and _split(name) is not None for name in source.index.by_name)


def merged(
    model: OpenModel, changes: Sequence[PictureChange], rounding: Rounding
) -> tuple[dict[str, LogicalTensor], tuple[str, ...]]:
    """Returns the changed tensors under the model's stored names, and notes.

    Raises UsageError if the LoRA changes modules or shapes that the model doesn't have, and UnsupportedError for
    changes that aren't a LoRA's.
    """
    whole = model.place.trainer in (PIPELINE, COMFY_SET)
    parts = parts_of_pipeline(model) if whole else parts_of_file(model)
    out: dict[str, LogicalTensor] = {}
    absent: dict[int, int] = {}
    for encoder in dict.fromkeys(change.prefix.encoder for change in changes):
        selected = [change for change in changes if change.prefix.encoder == encoder]
        part = next((part for part in parts if part.encoder == encoder), None)
        if part is None and encoder is not None:
            absent[encoder] = len(selected)
        elif part is None:
            raise UsageError(f"the LoRA changes a denoiser, which {model.place.path} doesn't contain")
        else:
            out |= _merged_part(model, part, selected, rounding)
    if not out:
        raise UsageError(f"the LoRA changes only text encoders, which {model.place.path} doesn't contain")
    notes = tuple(
        f"left out: the changes of {plural(count, 'module')} of text encoder {encoder + 1}, which isn't in the file"
        for encoder, count in absent.items()
    )
    return out, notes


def parts_of_file(model: OpenModel) -> list[PicturePart]:
    parts: list[PicturePart] = []
    if model.diffusion is not None and model.diffusion.denoises:
        parts.append(PicturePart(model.diffusion, None))
    shapes = {name: node.spec.shape for name, node in model.logical.items()}
    texts = (match for match in diffusion.matches(shapes) if match.row.part == _TEXT)
    for index, match in enumerate(texts):
        encoder_model = DiffusionModel(match.row, match.title, match.prefix, ORIGINAL, table(match.row.id))
        parts.append(PicturePart(encoder_model, index))
    return parts


_UNQUANTIZED: Final = "convert the pipeline to a folder first: wb convert PIPELINE/ FOLDER/"


def parts_of_pipeline(model: OpenModel) -> list[PicturePart]:
    """The denoiser and the text encoders of a folder of diffusers, or of ComfyUI's set of files."""
    parts: list[PicturePart] = []
    if ggufs := [path for path in model.place.weights if path.suffix == ".gguf"]:
        hint = _UNQUANTIZED if model.place.trainer == PIPELINE else f"{_UNQUANTIZED} --config PATH"
        raise UnsupportedError(f"{ggufs[0]} is a GGUF, which a LoRA isn't merged into", hint=hint)
    if model.place.trainer == PIPELINE:
        models = [(part.name, part.class_name, f"{part.name}.", each) for part, each in pipeline_of(model).models]
    else:
        files = parts_of_set(model).files.items()
        models = [(part, file.title, f"{file.path.parent.name}/{file.path.stem}.", file.model) for part, file in files]
    for name, title, start, each in models:
        network = each.diffusion
        if network is not None and network.denoises:
            parts.append(PicturePart(network._replace(prefix=start + network.prefix), None))
        elif name.startswith(_ENCODER):
            row = next(row for row in diffusion.table().rows if row.part == _TEXT)
            encoder = int(name.removeprefix(_ENCODER).strip("_") or 1)
            parts.append(PicturePart(DiffusionModel(row, title, start, ORIGINAL, None), encoder - 1))
    if sum(part.encoder is None for part in parts) > 1:
        raise UnsupportedError(
            f"{model.place.path} has several denoisers, and the LoRA doesn't name one",
            hint="merge it into the part that it is for",
        )
    return parts


# ------------------------------------------------------------------------------------------------ reading


def read(source: OpenModel) -> Iterator[PictureChange]:
    """Yields the changes of a LoRA file. Raises FormatError for a module without one of its matrices or with ranks that
    differ, and UnsupportedError for changes that aren't a LoRA's."""
    path = str(source.place.path)
    halves: dict[str, dict[str, str]] = {}
    for name in source.index.by_name:
        module_and_part = _split(name)
        if module_and_part is None or _prefix(module_and_part[0]) is None:
            kind = next((kind for part, kind in OTHERS.items() if part in name), "unknown")
            reason = f"{path}: {name} is no part of a LoRA's pair ({kind})"
            raise UnsupportedError(reason, hint="merge it with the tool that it was trained with")
        halves.setdefault(module_and_part[0], {})[module_and_part[1]] = name
    settings = _settings(source)
    for module, names in halves.items():
        nodes = {part: source.stored[name] for part, name in names.items()}
        lengths = nodes.pop("lengths", None)
        bias = {part: nodes.pop(part) for part in ("diff_b",) if part in nodes}
        stored_alpha = names.get("alpha")
        nodes.pop("alpha", None)
        prefix = _prefix(module)
        assert prefix is not None  # checked above
        short = module.removeprefix(FRONT).removeprefix(prefix.text)
        for parts in filter(None, (nodes, bias)) if bias else (nodes,):
            rank = checked_rank(parts, path, module)
            alpha = _alpha(source, stored_alpha, settings.alpha(prefix, short))
            scale = 1.0 if alpha is None or rank is None else alpha / rank
            of_weight = lengths if parts is nodes else None
            yield PictureChange(prefix, short, parts, scale, row_lengths(of_weight, parts, names, path))


def checked_rank(parts: lycoris.Parts, path: str, module: str) -> int | None:
    """The rank of a change. Raises FormatError for parts that don't fit each other."""
    try:
        lycoris.kind_of(frozenset(parts))
    except FormatError as error:
        raise FormatError(error.reason, path=path, field=module) from None
    if "up" in parts:
        down, up = parts["down"], parts["up"]
        inner = parts.get("mid", down).spec.shape
        first = inner[0] if inner else 0
        if len(up.spec.shape) < 2 or not first or up.spec.shape[1] != first or prod(up.spec.shape[2:]) != 1:
            shapes = f"{list(down.spec.shape)} and {list(up.spec.shape)}"
            raise FormatError("down and up have different ranks", path=path, field=module, found=shapes)
    rank = lycoris.rank_of(parts)
    if rank == 0:
        raise FormatError("a matrix has no rows", path=path, field=module)
    return rank


def row_lengths(lengths: Node | None, parts: lycoris.Parts, names: Mapping[str, str], path: str) -> Node | None:
    """The lengths of a DoRA, which LyCORIS (wd_on_out=False) stores of columns, as [1, in], and PEFT of a convolution's
    rows as [1, out, 1, 1]."""
    if lengths is None:
        return None
    if "up" not in parts:
        raise UnsupportedError(f"{path}: {names['lengths']} sets lengths of a change that isn't a LoRA's")
    if lengths.spec.shape[:1] != parts["up"].spec.shape[:1] and names["lengths"].endswith(_COLUMNS):
        raise UnsupportedError(f"{path}: {names['lengths']} has lengths of columns, not of rows")
    return lengths


def _split(name: str) -> tuple[str, str] | None:
    """The module and the part that a tensor's name names; None if it names none."""
    if match := _PROCESSOR.search(name):
        layer = "to_out.0" if match[1] == "to_out" else match[1]
        return f"{name[: match.start()]}.{layer}", match[2]
    return next(((name.removesuffix(end), part) for end, part in ENDS.items() if name.endswith(end)), None)


def _prefix(name: str) -> ModulePrefix | None:
    plain = name.removeprefix(FRONT)
    return next((prefix for prefix in PREFIXES if plain.startswith(prefix.text)), None)


class PeftSettings(NamedTuple):
    """PEFT's settings of a file, which diffusers writes into the header: a key begins with the part's prefix."""

    values: Mapping[str, Any]

    def alpha(self, prefix: ModulePrefix, module: str) -> Any:
        """The alpha of a module; None if no setting has it."""
        patterns = self.values.get(f"{prefix.text}alpha_pattern")
        matching = (alpha for name, alpha in (patterns or {}).items() if module == name or module.endswith(f".{name}"))
        return next(matching, self.values.get(f"{prefix.text}lora_alpha"))


def _settings(source: OpenModel) -> PeftSettings:
    """Reads PEFT's settings. Raises UnsupportedError for those that change the result and aren't an alpha."""
    raw = source.metadata.get(METADATA)
    try:
        settings = json.loads(raw) if isinstance(raw, str) else {}
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise FormatError("isn't a JSON object", path=str(source.place.path), field=METADATA)
    for key, value in settings.items():
        setting = key.rpartition(".")[2]
        if setting in ("use_rslora", "lora_bias") and value:
            raise UnsupportedError(f"{source.place.path}: {METADATA} sets {key}, which isn't an alpha")
        if setting == "alpha_pattern" and not isinstance(value, dict):
            raise FormatError("isn't an alpha for each module", path=str(source.place.path), field=key)
    return PeftSettings(settings)


def _alpha(source: OpenModel, name: str | None, default: Any) -> float | None:
    if name is None:
        return None if default is None else number(default, METADATA)
    values = source.vector(name) if prod(source.index[name].spec.shape) == 1 else None
    if values is None or len(values) != 1:
        raise FormatError("isn't one number", path=str(source.place.path), field=name)
    return number(float(values[0]), name)


# ------------------------------------------------------------------------------------------------ merging


def _merged_part(
    model: OpenModel, part: PicturePart, changes: list[PictureChange], rounding: Rounding
) -> dict[str, LogicalTensor]:
    """The changed tensors of a part under their stored names."""
    network = part.network
    dialects = [network.dialect, *({ORIGINAL, DIFFUSERS} - {network.dialect} if network.names else ())]
    views = {dialect: named_tensors(model, network, dialect) for dialect in dialects}
    targets = {dialect: _targets(view, changes) for dialect, view in views.items()}
    dialect = max(dialects, key=lambda d: len(targets[d]))
    view, target = views[dialect], targets[dialect]
    if unmatched := [change.module for change in changes if change not in target.values()]:
        more = f" and {len(unmatched) - _SHOWN:,} more" if len(unmatched) > _SHOWN else ""
        raise UsageError(
            f"the LoRA changes {plural(len(unmatched), 'module')} that {network.title} doesn't have: "
            f"{', '.join(unmatched[:_SHOWN])}{more}",
            hint="name the model that the LoRA was trained on",
        )
    changed = {name: _changed(name, view.tensors[name], change, rounding) for name, change in target.items()}
    if dialect == network.dialect:
        return {view.sources[name][0]: node for name, node in changed.items()}
    assert network.names is not None  # else there is one dialect
    back = (to_original if dialect == DIFFUSERS else to_diffusers)(network.names, {**view.tensors, **changed})
    affected = {name for name, sources in back.sources.items() if changed.keys() & set(sources)}
    return {network.prefix + name: back.tensors[name] for name in affected}


def _targets(view: NamedTensors, changes: list[PictureChange]) -> dict[str, PictureChange]:
    """The tensor that each change is for, by its name in a dialect, for those that it has."""
    modules = [name.removesuffix(".weight") for name in view.tensors if name.endswith(".weight")]
    # transformers 5 saves CLIP without this start of its names, which LoRAs keep
    start = "" if any(module.startswith(_CLIP) for module in modules) else _CLIP
    names: dict[tuple[bool, str], list[str]] = {}
    for module in modules:
        for name in dict.fromkeys((module, start + module)):
            names.setdefault((False, name), []).append(module)
            names.setdefault((True, name.replace(".", "_")), []).append(module)
    out = {}
    for change in changes:
        found = names.get((change.prefix.underscored, change.module), [])
        if len(found) > 1:
            raise FormatError(f"{change.module} may be {' or '.join(found)}")
        if found and found[0] + change.tensor in view.tensors:
            out[found[0] + change.tensor] = change
    return out


def _changed(name: str, weight: LogicalTensor, change: PictureChange, rounding: Rounding) -> Node:
    """The weight with its change, computed in F32 and rounded to the type of the weight."""
    from weighbridge.tensors.merging import Combination
    from weighbridge.tensors.nodes import is_plain, low_rank, rescale_rows, reshape
    from weighbridge.tensors.nodes.merged import merged as merged_node

    if not is_plain(weight):
        raise RefusedError(
            f"the base weight {name} is quantized, and a merged weight would have to be quantized again",
            hint="merge into the unquantized model, then quantize",
        )
    shape, plain = weight.spec.shape, change.parts.keys() == {"down", "up"}
    if plain:
        down, up = change.parts["down"], change.parts["up"]
        rows, columns = up.spec.shape[0], prod(down.spec.shape[1:])
    else:
        try:
            whole = lycoris.matrix_of(change.parts)
        except FormatError as error:
            raise FormatError(f"{name}: {error.reason}") from None
        rows, columns = whole.spec.shape
    if not shape or (plain and len(shape) < 2) or (rows, columns) != (shape[0], prod(shape[1:])):
        raise UsageError(
            f"the LoRA has {name} as [{rows}, {columns}], the model as {list(shape)}",
            hint="name the model that the LoRA was trained on",
        )
    matrix = reshape(weight, (rows, columns))
    if plain:
        rank = down.spec.shape[0]
        result: Node = low_rank(matrix, reshape(down, (rank, columns)), reshape(up, (rows, rank)), change.scale)
    else:
        result = merged_node([matrix, whole], Combination("linear", (1.0, change.scale)))
    if change.lengths is not None:
        if change.lengths.spec.elements != rows:
            raise UnsupportedError(f"{name}: a DoRA with lengths of columns, not of rows")
        result = rescale_rows(result, reshape(change.lengths, (rows, 1)))
    return rounding(reshape(result, shape), weight.spec.dtype)
