"""Whisper models of whisper.cpp: their tensors, types and header. The reader is in `container.py`.

whisper.cpp (src/whisper.cpp, `whisper_model_load`) creates each tensor of the header's sizes with one type, and refuses
a file that lacks one, has another, or stores one in another type. convert-pt-to-ggml.py and
`examples/quantize` write such files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, F16, F32, DType, Kind
from weighbridge.base.spec import Spec
from weighbridge.base.words import plural
from weighbridge.containers.base import Entry, Finding, Layout, Rule, Severity, Slot

#: The sizes in the header, in order; `ftype` follows.
SIZES: Final = (
    "n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer", "n_text_ctx", "n_text_state",
    "n_text_head", "n_text_layer", "n_mels",
)  # fmt: skip
#: Type of the matrices -> `ftype` (ggml.h, `ggml_ftype`; examples/common-ggml.cpp, `GGML_FTYPE_MAP`).
FTYPES: Final = MappingProxyType({
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12,
    "Q5_K": 13, "Q6_K": 14,
})  # fmt: skip
#: Added to the `ftype` of quantized files: GGML_QNT_VERSION * GGML_QNT_VERSION_FACTOR.
QUANTIZED: Final = 2000
MAGIC: Final = b"lmgg"

_ATTENTION: Final = (
    ("{}.key.weight", "S S"), ("{}.value.weight", "S S"), ("{}.value.bias", "S"), ("{}.query.weight", "S S"),
    ("{}.query.bias", "S"), ("{}.out.weight", "S S"), ("{}.out.bias", "S"), ("{}_ln.weight", "S"), ("{}_ln.bias", "S"),
)  # fmt: skip
_MLP: Final = (
    ("mlp.0.weight", "F S"), ("mlp.0.bias", "F"), ("mlp.2.weight", "S F"), ("mlp.2.bias", "S"),
    ("mlp_ln.weight", "S"), ("mlp_ln.bias", "S"),
)  # fmt: skip


def _attention(name: str) -> tuple[tuple[str, str], ...]:
    return tuple((template.format(name), axes) for template, axes in _ATTENTION)


class Stack(NamedTuple):
    """The encoder or the decoder: names and axes of its tensors before the blocks, of each block, and after them.

    Axes: S state, F four times the state, C context, V vocabulary, M mel bands, or a number. `sizes` are the sizes
    of S, C and the number of blocks."""

    name: str
    sizes: tuple[str, str, str]
    first: tuple[tuple[str, str], ...]
    block: tuple[tuple[str, str], ...]
    last: tuple[tuple[str, str], ...]


#: The tensors in the order of transformers' state dict, which its converter keeps.
STACKS: Final = (
    Stack(
        "encoder", ("n_audio_state", "n_audio_ctx", "n_audio_layer"),
        (("conv1.weight", "S M 3"), ("conv1.bias", "S 1"), ("conv2.weight", "S S 3"), ("conv2.bias", "S 1"),
         ("positional_embedding", "C S")),
        (*_attention("attn"), *_MLP), (("ln_post.weight", "S"), ("ln_post.bias", "S")),
    ),
    Stack(
        "decoder", ("n_text_state", "n_text_ctx", "n_text_layer"),
        (("token_embedding.weight", "V S"), ("positional_embedding", "C S")),
        (*_attention("attn"), *_attention("cross_attn"), *_MLP), (("ln.weight", "S"), ("ln.bias", "S")),
    ),
)  # fmt: skip
#: Matrices that are F32 in every file: ggml adds them to F32 activations.
_F32: Final = frozenset(
    {"encoder.conv1.bias", "encoder.conv2.bias", "encoder.positional_embedding", "decoder.positional_embedding"}
)
RULES: Final = MappingProxyType({
    "missing-tensor": Rule(Severity.ERROR, "a tensor of the model's sizes is missing", "download the file again"),
    "unknown-tensor": Rule(Severity.ERROR, "whisper.cpp refuses a tensor that it doesn't know"),
    "shape": Rule(Severity.ERROR, "a tensor doesn't have the shape that follows from the header's sizes"),
    "type": Rule(Severity.ERROR, "a tensor's type isn't the one that the header's ftype demands"),
    "ftype": Rule(Severity.ERROR, "the header's ftype is not one of whisper.cpp's"),
})  # fmt: skip


def tensor_count(sizes: Mapping[str, int]) -> int:
    """The number of tensors of a model."""
    return sum(len(s.first) + len(s.last) + len(s.block) * sizes[s.sizes[2]] for s in STACKS)


def tensors(sizes: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each tensor, lazily: a damaged header may count billions of blocks."""
    for stack in STACKS:
        state, context, blocks = (sizes[name] for name in stack.sizes)
        axes = {"S": state, "F": 4 * state, "C": context, "V": sizes["n_vocab"], "M": sizes["n_mels"]}
        in_blocks = ((f"blocks.{i}.{name}", shape) for i in range(blocks) for name, shape in stack.block)
        for name, shape in chain(stack.first, in_blocks, stack.last):
            yield f"{stack.name}.{name}", tuple(axes[axis] if axis in axes else int(axis) for axis in shape.split())


def stored_type(name: str, axes: int, matrices: DType) -> DType:
    """The type of a tensor in a file whose matrices have the type `matrices`. Convolutions are never quantized."""
    if axes < 2 or name in _F32:
        return F32
    return F16 if axes > 2 and matrices.kind is Kind.BLOCK else matrices


def problems(sizes: Mapping[str, int], entries: Sequence[Entry], path: str) -> Iterator[Finding]:
    """The differences between a file's tensors and those that whisper.cpp creates for its sizes."""
    numbers = {number: name for name, number in FTYPES.items()}
    ftype = numbers.get(sizes["ftype"] % 1000)
    if ftype is None:
        yield _finding("ftype", f"the file type {sizes['ftype']} is not one of whisper.cpp's", path)
    stored = {entry.name: entry for entry in entries}
    total = tensor_count(sizes)
    shapes = dict(islice(tensors(sizes), 2 * len(entries) + 64))
    missing = total - sum(name in stored for name in shapes)
    if missing > 0:
        first = next((name for name in shapes if name not in stored), None)
        yield _finding("missing-tensor", f"{plural(missing, 'tensor', 'are')} missing, first {first}", path, first)
    for entry in entries:
        shape = shapes.get(entry.name)
        if shape is None:
            if total == len(shapes):
                yield _finding("unknown-tensor", f"{entry.name[:80]} is not a tensor of a Whisper", path, entry.name)
        elif shape != entry.shape:
            message = f"{entry.name} has the shape {list(entry.shape)}, not {list(shape)}"
            yield _finding("shape", message, path, entry.name)
        elif ftype is not None:
            dtype = stored_type(entry.name, len(shape), BY_NAME[ftype])
            if entry.dtype.name != dtype.name:
                yield _finding("type", f"{entry.name} is {entry.dtype}, not {dtype}", path, entry.name)


def _finding(rule: str, message: str, path: str, tensor: str | None = None) -> Finding:
    row = RULES[rule]
    return Finding(f"ggml/{rule}", row.severity, message, path, tensor=tensor, hint=row.hint)


def layout(
    tensors: Sequence[tuple[str, Spec]], sizes: Mapping[str, int], filters: bytes, tokens: Sequence[bytes]
) -> Layout:
    """A file of these tensors. `sizes`: with `ftype`. `filters`: F32 of n_mels x bins."""
    bins = len(filters) // 4 // sizes["n_mels"]
    header = struct.pack(f"<4s{len(SIZES) + 1}I", MAGIC, *(sizes[name] for name in (*SIZES, "ftype")))
    counted = struct.pack("<II", sizes["n_mels"], bins)
    words = (struct.pack("<I", len(token)) + token for token in tokens)
    head = b"".join((header, counted, filters, struct.pack("<I", len(tokens)), *words))
    pieces, slots, at = [(0, head)], [], len(head)
    for name, spec in tensors:
        text, axes = name.encode("utf-8", "surrogateescape"), len(spec.shape)
        record = struct.pack(f"<III{axes}I", axes, len(text), spec.dtype.ggml or 0, *reversed(spec.shape)) + text
        pieces.append((at, record))
        slots.append(Slot(name, spec, at + len(record)))
        at += len(record) + spec.nbytes
    return Layout("ggml", tuple(pieces), tuple(slots), at)
