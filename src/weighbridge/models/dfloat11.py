"""Models whose weights are in DFloat11's code (`packings/read/dfloat11.py`): decoded as they are read.

The files don't name the matrices. For each pattern of modules' names, `dfloat11_config` in config.json lists the parts
of a module whose weights are in one block; a module without parts has one weight. Shapes are those of the family's
table, or follow from a bias."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.dtypes import BF16, BY_NAME, U8, U32
from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.base.words import plural
from weighbridge.containers.base import Entry, Finding, Index, Severity
from weighbridge.containers.formats import DFLOAT11 as FIRST
from weighbridge.io.source import Source

if TYPE_CHECKING:
    from weighbridge.models.model import OpenModel

#: The key of config.json with the settings.
KEY: Final = "dfloat11_config"
_TYPES: Final = {"output_positions": (U8, U32), "split_positions": (BY_NAME["I64"],)}
_THREADS: Final = 1024  # of a block, on any GPU
_DIGITS: Final = re.compile(r"\\d\+|\[0-9\]\+")


@dataclass(frozen=True)
class CodedBlock:
    """The stored tensors of a module, by their part; the weights in them, with the number of values of each."""

    module: str
    parts: Mapping[str, Entry]
    weights: tuple[tuple[str, int], ...]


def decoded(model: OpenModel, *, lenient: bool = False) -> OpenModel:
    """Returns the model with the decoded weights in the place of the blocks, and the config without their settings.
    Raises UnsupportedError without these settings, FormatError for a block that is incomplete or contradicts them; if
    `lenient`, such a model keeps its stored tensors and gets a finding."""
    try:
        return _decoded(model)
    except (FormatError, UnsupportedError) as error:
        if not lenient:
            raise
        finding = Finding("dfloat11/stored", Severity.WARNING, f"not decoded: {error.message}", str(model.place.path),
                          hint=error.hint)  # fmt: skip
        return replace(model, index=replace(model.index, findings=(*model.index.findings, finding)))


def _decoded(model: OpenModel) -> OpenModel:
    settings = (model.json("config.json") or {}).get(KEY)
    if not isinstance(settings, dict) or not isinstance(settings.get("pattern_dict"), dict):
        raise UnsupportedError(
            f"{model.place.path} has weights in DFloat11's code, whose names are in config.json ({KEY})",
            hint="put the model's config.json next to it, or name it with --config",
        )
    threads = threads_per_block(settings, model)
    blocks = {block.module: block for block in blocks_of(model.index, settings["pattern_dict"])}
    shapes: Mapping[str, Shape] = {}  # of a model without a family
    with suppress(WeighbridgeError):
        shapes = model.family.names("hf", model.sizes)
    index = with_weights(model.index, blocks, shapes, threads)
    config = {key: value for key, value in (model.json("config.json") or {}).items() if key != KEY}
    return replace(model, index=index, texts={**model.texts, "config.json": json.dumps(config, indent=2).encode()})


def threads_per_block(settings: Mapping[str, Any], model: OpenModel) -> int:
    """The threads of a block. Raises UnsupportedError for settings that no release had."""
    threads, size = settings.get("threads_per_block", 512), settings.get("bytes_per_thread", 8)
    (threads,) = threads if isinstance(threads, list) and len(threads) == 1 else (threads,)
    if size != 8 or not isinstance(threads, int) or not 1 <= threads <= _THREADS:
        raise UnsupportedError(f"{model.place.path}: DFloat11 with {threads} threads of {size} bytes",
                               hint="the library writes blocks of 512 threads of 8 bytes")  # fmt: skip
    return threads


def blocks_of(index: Index, patterns: Mapping[str, Any]) -> Iterator[CodedBlock]:
    from weighbridge.packings.read.dfloat11 import PARTS  # late: numpy

    for entry in index.entries:
        if not entry.name.endswith(FIRST):
            continue
        module, path = entry.name.removesuffix(FIRST), index.files[entry.file].name
        present = {part: index.by_name.get(f"{module}.{part}") for part in PARTS}
        parts = {part: stored for part, stored in present.items() if stored is not None}
        if missing := [part for part in PARTS[:-1] if part not in parts]:
            raise FormatError("a block of DFloat11 is incomplete", path=path, field=module, expected=missing[0],
                              hint="open the folder, if the rest is in another file")  # fmt: skip
        wrong = [stored.name for part, stored in parts.items() if stored.dtype not in _TYPES.get(part, (U8,))]
        if wrong or parts["luts"].nbytes % 256 or parts["luts"].nbytes < 512:
            raise FormatError("a tensor of DFloat11 has the wrong type or shape", path=path,
                              field=(wrong or [parts["luts"].name])[0])  # fmt: skip
        names = weight_names(module, patterns)
        if names is None:
            raise FormatError("no pattern of dfloat11_config names the weights of a block", path=path, field=module)
        yield CodedBlock(module, parts, tuple(zip(names, weight_sizes(index, parts, len(names)), strict=True)))


def weight_names(module: str, patterns: Mapping[str, Any]) -> list[str] | None:
    """The weights of a module, by the first pattern that its name has."""
    for pattern, inner in patterns.items():
        if isinstance(inner, list) and all(isinstance(part, str) for part in inner) and matches(pattern, module):
            return [f"{module}.{part}.weight" for part in inner] or [f"{module}.weight"]
    return None


def matches(pattern: str, name: str) -> bool:
    r"""Whether a name has a pattern of literal text and `\d+`. Other expressions don't match: untrusted ones could run
    forever."""
    first, *rest = (re.escape(re.sub(r"\\(.)", r"\1", text)) for text in _DIGITS.split(pattern))
    numbers = "".join(rf"(?=(?P<n{n}>\d+))(?P=n{n}){text}" for n, text in enumerate(rest))
    return len(rest) < 8 and re.fullmatch(first + numbers, name) is not None


def weight_sizes(index: Index, parts: Mapping[str, Entry], weights: int) -> list[int]:
    """The number of values of each weight of a block."""
    total, splits = parts["sign_mantissa"].nbytes, parts.get("split_positions")
    source = index.files[(splits or parts["luts"]).file]
    data = source.read(splits.offset, min(splits.nbytes, 8 * weights)) if splits is not None else b""
    inner = struct.unpack(f"<{len(data) // 8}q", data)
    bounds = [0, *inner, total]
    if len(inner) != weights - 1 or bounds != sorted(bounds):
        field, count = parts["sign_mantissa"].name, plural(weights, "weight")
        reason = "the weights of a block of DFloat11 don't fit it"
        raise FormatError(reason, path=source.name, field=field, expected=count, found=bounds)
    return [end - start for start, end in pairwise(bounds)]


def shape_of(name: str, count: int, shapes: Mapping[str, Shape], index: Index) -> Shape | None:
    """The shape of a weight of `count` values; None if it is unknown. Raises FormatError if it has another size."""
    bias = index.by_name.get(f"{name.removesuffix('weight')}bias")
    shape = shapes.get(name)
    if shape is None and bias is not None and len(bias.shape) == 1 and bias.shape[0] and count % bias.shape[0] == 0:
        return bias.shape[0], count // bias.shape[0]
    if shape is not None and prod(shape) != count:
        raise FormatError("a weight in DFloat11's code has another size than config.json declares", field=name,
                          path=index.files[0].name, expected=shape, found=plural(count, "value"))  # fmt: skip
    return shape


def with_weights(index: Index, blocks: Mapping[str, CodedBlock], shapes: Mapping[str, Shape], threads: int) -> Index:
    from weighbridge.packings.read.dfloat11 import Dfloat11Source  # late: numpy

    stored = {part.name for block in blocks.values() for part in block.parts.values()}
    entries: list[Entry] = []
    files: list[Source] = [*index.files]
    flat: list[str] = []
    for entry in index.entries:
        if entry.name not in stored:
            entries.append(entry)
        elif entry.name.endswith(FIRST):
            block = blocks[entry.name.removesuffix(FIRST)]
            sources = {
                part: index.files[e.file].window(e.offset, e.nbytes, f"{index.files[e.file].name}::{e.name}")
                for part, e in block.parts.items()
            }
            at = 0
            for name, count in block.weights:
                shape = shape_of(name, count, shapes, index)
                flat += [name] if shape is None else []
                entries.append(Entry(name, BF16, shape or (count,), 2 * at, 2 * count, len(files)))
                at += count
            files.append(Dfloat11Source(f"{index.files[entry.file].name}::{block.module}", sources, threads))
    findings = (*index.findings, *_unshaped(flat, index))
    starts = index.data_start + (0,) * (len(files) - len(index.files))
    return replace(index, files=tuple(files), entries=tuple(entries), data_start=starts, findings=findings)


def _unshaped(names: Sequence[str], index: Index) -> Iterator[Finding]:
    if names:
        message = (
            f"the shapes of {plural(len(names), 'weight')} in DFloat11's code are unknown: given as lists of values"
        )
        yield Finding("dfloat11/shape", Severity.WARNING, message, index.files[0].name, tensor=names[0])
