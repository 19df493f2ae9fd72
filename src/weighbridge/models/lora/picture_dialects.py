"""LoRAs of image and video models under the names of another program.

    kohya        lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight, .alpha
    comfy        diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight, .alpha
    diffusers    transformer.transformer_blocks.0.attn.to_q.lora_A.weight, and PEFT's settings in the header
    peft         the same after base_model.model.

A matrix that diffusers splits has one pair in the file's names and several in those of diffusers: the first factor is
repeated, and the rows of the second are divided. Back, equal first factors become one; others are placed one below
the other, and the second factors in blocks, so that the rank is the sum of theirs.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.dtypes import F32
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.containers.formats import PIPELINE
from weighbridge.models.diffusion.names import NameRow, filled, joined, parts_of
from weighbridge.models.diffusion.pipeline import pipeline_of
from weighbridge.models.lora import lycoris, pictures
from weighbridge.models.lora.picture_names import LocatedChange, LocatedLora, located, text_module
from weighbridge.models.lora.pictures import FRONT, METADATA, PictureChange
from weighbridge.models.model import OpenModel, open_weights
from weighbridge.models.transform.base import Transformed, with_nodes

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor, Node


_MERGE: Final = "merge it: wb convert MODEL DST --lora LORA"
_WEIGHT: Final = "x.weight"


class PictureDialect(NamedTuple):
    """How a program names the tensors of a LoRA. `alphas`: as tensors, or in the header. `others`: whether it has names
    for other changes than LoRA's."""

    down: str
    up: str
    lengths: str
    alphas: bool
    others: bool
    front: str = ""


DIALECTS: Final[Mapping[str, PictureDialect]] = MappingProxyType(
    {
        "kohya": PictureDialect(".lora_down.weight", ".lora_up.weight", ".dora_scale", True, True),
        "comfy": PictureDialect(".lora_A.weight", ".lora_B.weight", ".dora_scale", True, True),
        "diffusers": PictureDialect(".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector", False, False),
        "peft": PictureDialect(".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector", False, False, FRONT),
    }
)


class NamedChange(NamedTuple):
    """A change under its new name, after the prefix of its part."""

    prefix: str
    module: str
    change: PictureChange


def to_dialect(source: OpenModel, dialect: str, base: str | os.PathLike[str] | None = None) -> Transformed:
    """The LoRA under the names of a dialect. `base`: its model, if the names fit several. Raises UsageError for an
    unknown dialect or modules that no table has, and UnsupportedError for a change that has no name there."""
    if dialect not in DIALECTS:
        raise UsageError(f"no program names LoRAs as {dialect!r}", hint=f"one of {', '.join(DIALECTS)}")
    form, path = DIALECTS[dialect], str(source.place.path)
    changes = list(pictures.read(source))
    denoiser = [change for change in changes if change.prefix.encoder is None]
    loras = located(denoiser, path, None if base is None else denoisers_in(base)) if denoiser else ()
    several = [list(denoiser_changes(lora, dialect)) for lora in loras] or [[]]
    if any([(n.prefix, n.module) for n in named] != [(n.prefix, n.module) for n in several[0]] for named in several):
        titles = " and ".join(dict.fromkeys("/".join(lora.table.models) for lora in loras))
        raise UsageError(f"{path} fits {titles}, whose names differ", hint="name its model: --lora-base MODEL")
    named = [*several[0], *encoder_changes(changes, dialect, loras)]
    nodes: dict[str, Node] = {}
    for one in named:
        for end, node in tensors_of(one, form, dialect):
            nodes[f"{form.front}{one.prefix}{one.module}{end}"] = node
    metadata = {**source.metadata, **peft_settings(named)} if not form.alphas else dict(source.metadata)
    if form.alphas:
        metadata.pop(METADATA, None)
    title = f"{loras[0].table.names.class_name}, " if loras else ""
    done = with_nodes(source, nodes)
    done = replace(done, index=replace(done.index, metadata=metadata))
    return Transformed(done, notes=(f"{title}{len(changes):,} changed modules, under the names of {dialect}",))


def denoisers_in(base: str | os.PathLike[str]) -> frozenset[str]:
    """The rows of diffusion.toml of the denoisers in a model or a pipeline."""
    with open_weights(resolve_path(base)) as model:
        pipeline = model.place.trainer == PIPELINE
        parts = [each for _, each in pipeline_of(model).models] if pipeline else [model]
        found = frozenset(each.diffusion.row.id for each in parts if each.diffusion and each.diffusion.denoises)
    if not found:
        raise UsageError(f"{base} has no denoiser that a LoRA could be for")
    return found


def denoiser_changes(lora: LocatedLora, dialect: str) -> Iterator[NamedChange]:
    """The changes of the denoiser under the names of a dialect."""
    kind = "unet" if lora.table.names.class_name.startswith("UNet") else "transformer"
    to_diffusers = lora.table.trained if dialect == "kohya" else dialect != "comfy"
    prefix = {"kohya": "lora_unet_", "comfy": "diffusion_model."}.get(dialect, f"{kind}.")
    changes = [(module_name(one, lora.diffusers), one.change) for one in lora.changes]
    if to_diffusers != lora.diffusers:
        changes = [*(split_for_diffusers(lora) if to_diffusers else fused_for_file(lora))]
    for module, change in changes:
        yield NamedChange(prefix, module.replace(".", "_") if dialect == "kohya" else module, change)


def module_name(one: LocatedChange, diffusers: bool) -> str:
    place = one.place
    template = place.row.diffusers[place.part] if diffusers else place.row.original
    return filled(template, place.numbers).removesuffix(".weight")


def split_for_diffusers(lora: LocatedLora) -> Iterator[tuple[str, PictureChange]]:
    """Changes with the file's names, under those of diffusers."""
    from weighbridge.tensors.nodes import as_node, reshape

    for one in lora.changes:
        row, change = one.place.row, one.change
        modules = [filled(name, one.place.numbers).removesuffix(".weight") for name in row.diffusers]
        if not _is_moved(row):
            yield modules[0], change
            continue
        down, up = _pair(change, modules[0])
        ups = [as_node(part) for part in parts_of(_WEIGHT, row, up, _matrix(down, up))]
        lengths: Sequence[Node | None] = [None] * len(ups)
        if change.lengths is not None:
            column = reshape(change.lengths, (change.lengths.spec.elements, 1))
            lengths = [as_node(part) for part in parts_of(_WEIGHT, row, column, _matrix(down, up))]
        for module, part, length in zip(modules, ups, lengths, strict=True):
            yield module, change._replace(parts={"down": down, "up": part}, lengths=length)


def fused_for_file(lora: LocatedLora) -> Iterator[tuple[str, PictureChange]]:
    """Changes with the names of diffusers, under the file's."""
    groups: dict[tuple[NameRow, tuple[str, ...]], dict[int, PictureChange]] = {}
    for one in lora.changes:
        groups.setdefault((one.place.row, one.place.numbers), {})[one.place.part] = one.change
    for (row, numbers), changes in groups.items():
        module = filled(row.original, numbers).removesuffix(".weight")
        if not _is_moved(row):
            yield module, next(iter(changes.values()))
            continue
        if lacking := [name for part, name in enumerate(row.diffusers) if part not in changes]:
            other = filled(lacking[0], numbers).removesuffix(".weight")
            raise UnsupportedError(
                f"{module} is one matrix in the file's names, and the LoRA doesn't change {other}", hint=_MERGE
            )
        yield module, one_pair(module, row, [changes[part] for part in range(len(row.diffusers))])


def one_pair(module: str, row: NameRow, changes: list[PictureChange]) -> PictureChange:
    """The change of a fused matrix. Equal first factors become one."""
    from weighbridge.tensors.nodes import as_node, concat, reshape

    pairs = [_pair(change, module) for change in changes]
    downs, ups = [down for down, _ in pairs], [up for _, up in pairs]
    dora = [change.lengths for change in changes if change.lengths is not None]
    if len(dora) not in (0, len(changes)):
        raise UnsupportedError(f"{module}: only some of its parts have the lengths of a DoRA", hint=_MERGE)
    scales = {change.scale for change in changes}
    data = downs[0].read_all().tobytes()
    equal = len(scales) == 1 and all(down.read_all().tobytes() == data for down in downs[1:])
    down, up = (downs[0], ups) if equal else (concat(downs), blocks_of(ups, [change.scale for change in changes]))
    weight = _matrix(down, concat(up))
    whole = as_node(joined(_WEIGHT, row, [*up], weight))
    columns: list[LogicalTensor] = [reshape(one, (one.spec.elements, 1)) for one in dora]
    lengths = as_node(joined(_WEIGHT, row, columns, weight)) if dora else None
    scale = 1.0 if len(scales) > 1 else changes[0].scale
    return changes[0]._replace(parts={"down": down, "up": whole}, scale=scale, lengths=lengths)


def blocks_of(ups: Sequence[Node], scales: Sequence[float]) -> list[Node]:
    """Second factors for first ones that are placed one below the other, with their scales if these differ."""
    from weighbridge.tensors.nodes import cast, concat, scaled, zeros

    if len(set(scales)) > 1:
        ups = [scaled(cast(up, F32), scale) for up, scale in zip(ups, scales, strict=True)]
    widths = [up.spec.shape[1] for up in ups]
    out = []
    for n, up in enumerate(ups):
        sides = [zeros((up.spec.shape[0], sum(part)), up.spec.dtype) for part in (widths[:n], widths[n + 1 :])]
        out.append(concat([part for part in (sides[0], up, sides[1]) if part.spec.elements], -1))
    return out


def _is_moved(row: NameRow) -> bool:
    """Whether the matrix has other rows in the other dialect."""
    return len(row.diffusers) > 1 or row.swap


def _pair(change: PictureChange, module: str) -> tuple[Node, Node]:
    """The factors of a linear layer's change, as matrices. UnsupportedError for a change that isn't such a product."""
    from weighbridge.tensors.nodes import reshape

    if change.parts.keys() != {"down", "up"}:
        kind = lycoris.kind_of(frozenset(change.parts))
        raise UnsupportedError(f"{module} has other rows under these names, which a {kind} can't follow", hint=_MERGE)
    down, up = change.parts["down"], change.parts["up"]
    rank = up.spec.shape[1]
    return reshape(down, (rank, down.spec.elements // rank)), reshape(up, (up.spec.shape[0], rank))


def _matrix(down: Node, up: Node) -> dict[str, Any]:
    """The weight that a pair changes, whose columns decide where its rows are divided."""
    return {_WEIGHT: SimpleNamespace(spec=SimpleNamespace(shape=(up.spec.shape[0], down.spec.shape[1])))}


def encoder_changes(
    changes: Iterable[PictureChange], dialect: str, loras: tuple[LocatedLora, ...]
) -> Iterator[NamedChange]:
    """The changes of text encoders. ComfyUI has kohya's names for them."""
    only = any(lora.table.trained for lora in loras)  # its trainer counts no encoders
    for change in changes:
        if (number := change.prefix.encoder) is None:
            continue
        if dialect in ("kohya", "comfy"):
            counted = "" if only and number == 0 else str(number + 1)
            yield NamedChange(f"lora_te{counted}_", change.module.replace(".", "_"), change)
            continue
        if (module := text_module(change)) is None:
            raise UsageError(f"no table of names has the module {change.module} of a text encoder")
        yield NamedChange(f"text_encoder{f'_{number + 1}' if number else ''}.", module, change)


def tensors_of(one: NamedChange, form: PictureDialect, dialect: str) -> Iterator[tuple[str, Node]]:
    """The ends of the names of a change's tensors, and the tensors."""
    from weighbridge.tensors import np
    from weighbridge.tensors.nodes import const, reshape

    change = one.change
    kind = lycoris.kind_of(frozenset(change.parts))
    if change.parts.keys() != {"down", "up"} and not form.others:
        raise UnsupportedError(f"{one.module}: {dialect} has no names for a {kind}", hint=_MERGE)
    ends = {"down": form.down, "up": form.up, "mid": ".lora_mid.weight"}
    yield from ((ends.get(part, f".{part}"), node) for part, node in change.parts.items())
    rank = lycoris.rank_of(change.parts)
    if form.alphas and rank is not None:
        yield ".alpha", const(np.array(change.scale * rank, np.float32), F32)
    if change.lengths is not None:
        count = change.lengths.spec.elements
        yield form.lengths, reshape(change.lengths, (count, 1) if form.alphas else (count,))


def peft_settings(named: Iterable[NamedChange]) -> dict[str, str]:
    """PEFT's settings for the header: ranks and alphas by module."""
    settings: dict[str, Any] = {}
    for prefix in dict.fromkeys(one.prefix for one in named):
        mine = {one.module: one.change for one in named if one.prefix == prefix}
        ranks = {module: change.parts["up"].spec.shape[1] for module, change in mine.items()}
        alphas = {module: change.scale * ranks[module] for module, change in mine.items()}
        rank = Counter(ranks.values()).most_common(1)[0][0]
        alpha = Counter(alphas.values()).most_common(1)[0][0]
        settings |= {
            f"{prefix}r": rank, f"{prefix}lora_alpha": alpha, f"{prefix}target_modules": sorted(mine),
            f"{prefix}rank_pattern": {module: r for module, r in ranks.items() if r != rank},
            f"{prefix}alpha_pattern": {module: a for module, a in alphas.items() if a != alpha},
        }  # fmt: skip
        if any(change.lengths is not None for change in mine.values()):
            settings[f"{prefix}use_dora"] = True
    return {METADATA: json.dumps(settings, sort_keys=True)}
