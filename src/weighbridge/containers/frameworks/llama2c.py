"""llama2.c's models: a header with the sizes, then all weights in F32, in a fixed order.

    version 0   i32 dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size (negative: with a classifier), seq_len
    version 1   "24ka", i32 1, the same numbers (vocab_size is positive), u8 shared classifier, zeros up to byte 256

The file's size must be that of the weights, so the sizes identify a file without a magic. Tensors have the names of
Meta's checkpoints (`layers.0.attention.wq.weight`). Version 2 (int8) has two layouts that look alike, and is refused.
Reference: export.py of karpathy/llama2.c.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import LAYERS
from weighbridge.base.spec import Shape, Spec
from weighbridge.containers.base import Index, Region, Rule
from weighbridge.containers.frameworks.tensor_list import TensorList, framed
from weighbridge.containers.sniff.probe import Hit, Probe
from weighbridge.io.source import Source

NAME: Final = "llama2c"
RULES: Final[Mapping[str, Rule]] = MappingProxyType({})
MAGIC: Final = b"24ka"
_HEADER: Final = 256  # of version 1
_FIELDS: Final = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
_WIDEST: Final = 1 << 24


class _Sizes(NamedTuple):
    """`start`: the offset of the weights."""

    version: int
    start: int
    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    shared: bool

    @property
    def kv(self) -> int:
        return self.dim // self.heads * self.kv_heads


def _sizes(head: bytes) -> _Sizes | None:
    """The header in the first bytes of a file; None if it isn't one."""
    start = 0
    version = 0
    if head[:4] == MAGIC:
        version, start = int.from_bytes(head[4:8], "little", signed=True), 8
    if len(head) < start + 29:
        return None
    numbers = [int.from_bytes(head[at : at + 4], "little", signed=True) for at in range(start, start + 28, 4)]
    dim, hidden, layers, heads, kv_heads, vocab, context = numbers
    shared = bool(head[start + 28]) if version else vocab > 0
    vocab = numbers[5] = vocab if version else abs(vocab)
    begin = _HEADER if version else 28
    sizes = _Sizes(version, begin, dim, hidden, layers, heads, kv_heads, vocab, context, shared)
    plausible = min(numbers) >= 1 and max(numbers) <= _WIDEST and sizes.layers <= LAYERS
    return sizes if plausible and sizes.dim % sizes.heads == 0 and sizes.kv_heads <= sizes.heads else None


def _tensors(s: _Sizes) -> Iterator[tuple[str, Shape]]:
    """The weights in file order."""
    matrices: dict[str, Shape] = {
        "attention.wq": (s.dim, s.dim), "attention.wk": (s.kv, s.dim), "attention.wv": (s.kv, s.dim),
        "attention.wo": (s.dim, s.dim), "feed_forward.w1": (s.hidden, s.dim), "feed_forward.w2": (s.dim, s.hidden),
        "feed_forward.w3": (s.hidden, s.dim),
    }  # fmt: skip
    norms = {"attention_norm": (s.dim,), "ffn_norm": (s.dim,)}

    def layers(*names: str) -> Iterator[tuple[str, Shape]]:
        for name in names:
            for n in range(s.layers):
                yield f"layers.{n}.{name}.weight", {**matrices, **norms}[name]

    embedding, norm = ("tok_embeddings.weight", (s.vocab, s.dim)), ("norm.weight", (s.dim,))
    if s.version:
        yield from layers(*norms)
        yield norm
        yield embedding
        yield from layers(*matrices)
    else:
        attention = [name for name in matrices if name.startswith("attention")]
        yield embedding
        yield from layers("attention_norm", *attention, "ffn_norm", *(n for n in matrices if n not in attention))
        yield norm
        yield "freqs_cos", (s.context, s.dim // s.heads // 2)
        yield "freqs_sin", (s.context, s.dim // s.heads // 2)
    if not s.shared:
        yield "output.weight", (s.vocab, s.dim)


def _total(s: _Sizes) -> int:
    """The bytes of a file with these sizes, without a loop over its layers."""
    layer = 2 * s.dim + 2 * s.dim * s.dim + 2 * s.kv * s.dim + 3 * s.hidden * s.dim
    tables = 0 if s.version else 2 * s.context * (s.dim // s.heads // 2)
    count = s.layers * layer + s.vocab * s.dim * (1 if s.shared else 2) + s.dim + tables
    return s.start + count * F32.size


def recognise(probe: Probe) -> Hit | None:
    """A header whose sizes give the size of the file."""
    sizes = _sizes(probe.head[:64])
    if sizes is None or sizes.version not in (0, 1, 2):
        return None
    whole = _total(sizes) == probe.size
    if not sizes.version and not whole:
        return None
    damage = () if whole or sizes.version == 2 else (f"truncated: has {probe.size:,} of {_total(sizes):,} bytes",)
    evidence = (f"llama2.c version {sizes.version}: {sizes.layers} layers of {sizes.dim}",)
    return Hit(NAME, f"v{sizes.version}", evidence, "certain" if sizes.version else "likely", damage=damage)


def parse(source: Source) -> Index:
    """The weights in file order; the sizes as metadata."""
    sizes = _sizes(source.head(64))
    if sizes is None:
        raise FormatError("the sizes of a llama2.c model are impossible", path=source.name, offset=0)
    if sizes.version not in (0, 1):
        raise UnsupportedError(f"{source.name}: version {sizes.version} of llama2.c's models isn't read",
                               hint="export the model as version 0 or 1")  # fmt: skip
    if _total(sizes) != source.size:
        raise FormatError("the file has another size than its weights", path=source.name, offset=source.size,
                          expected=_total(sizes), found=source.size, hint="download or copy it again")  # fmt: skip
    tensor_list, at = TensorList(NAME, source, RULES), sizes.start
    for name, shape in _tensors(sizes):
        nbytes = Spec(shape, F32).nbytes
        tensor_list.add(name, F32.name, shape, at, nbytes, kind=F32.name)
        at += nbytes
    numbers = (sizes.dim, sizes.hidden, sizes.layers, sizes.heads, sizes.kv_heads, sizes.vocab, sizes.context)
    return tensor_list.index(dict(zip(_FIELDS, map(str, numbers), strict=True)), sizes.version)


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named."""
    return framed(source, parse, "header")
