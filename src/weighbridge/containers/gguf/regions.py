"""Every byte of a GGUF with its meaning, from the parser's walk. A damaged file is named as far as its bytes have a
meaning; the rest is "unknown".
"""

from __future__ import annotations

from collections.abc import Iterator

from weighbridge.base.errors import FormatError
from weighbridge.containers.base import Region
from weighbridge.containers.gguf.read import MAGIC, GgufHeader, padded, value_text, walk
from weighbridge.containers.gguf.rules import Collector
from weighbridge.containers.gguf.values import LazyArray
from weighbridge.io.source import Source


def regions(source: Source) -> Iterator[Region]:
    """All bytes of the file, named, without gap or overlap; all unknown if it isn't a GGUF."""
    try:
        header = walk(source, Collector(source.name, strict=False))
    except FormatError:
        yield from _unknown(0, source.size)
        return
    yield Region(0, 4, "magic", "magic", MAGIC.decode())
    order = "big" if header.order == ">" else "little"
    yield Region(4, 8, "version", "version", f"{header.version}, {order}-endian")
    width = header.width
    if header.end > 8:
        yield Region(8, 8 + width, "count", "number of tensors", str(header.n_tensors))
        yield Region(8 + width, 8 + 2 * width, "count", "number of key-values", str(header.n_kv))
    for pair in header.pairs:
        key, (kind, value) = pair.key, pair.kv
        begin = pair.start + width
        yield Region(pair.start, begin, "length", f"length of key {key}", str(pair.type_at - begin))
        yield Region(begin, pair.type_at, "key", key)
        yield Region(
            pair.type_at, pair.value_at, "type", f"type of {key}", "arr" if isinstance(value, LazyArray) else kind
        )
        at = pair.value_at
        if isinstance(value, LazyArray):
            yield Region(at, at + 4, "type", f"element type of {key}", value.type)
            yield Region(at + 4, at + 4 + width, "count", f"number of elements of {key}", str(len(value)))
            at += 4 + width
        elif kind == "str":
            yield Region(at, at + width, "length", f"length of {key}", str(pair.end - at - width))
            at += width
        yield Region(at, pair.end, "value", key, value_text(pair.kv))
    for info in header.infos:
        name, begin, dims_end = info.name, info.start + width, info.end - 12
        yield Region(info.start, begin, "length", f"length of name of {name}", str(info.dims_at - begin))
        yield Region(begin, info.dims_at, "name", name)
        yield Region(info.dims_at, info.dims_at + 4, "count", f"number of dimensions of {name}", str(len(info.dims)))
        yield Region(info.dims_at + 4, dims_end, "dims", f"dimensions of {name}", " x ".join(map(str, info.dims)))
        yield Region(dims_end, info.end - 8, "type", f"type of {name}", f"{info.dtype or 'unknown'} ({info.type_id})")
        yield Region(info.end - 8, info.end, "offset", f"offset of {name}", str(info.offset))
    yield from _unknown(header.end, source.size) if header.broken else _data(header)


def _data(header: GgufHeader) -> Iterator[Region]:
    """Padding and tensors in the order of their bytes, and bytes that belong to no tensor."""
    size, start = header.source.size, header.data_start
    at = min(start, size)
    if at > header.end:
        yield Region(header.end, at, "padding", "to the start of the data")
    for info in sorted(header.infos, key=lambda info: info.offset):
        begin, end = (min(start + info.offset + extra, size) for extra in (0, info.nbytes))
        if end <= at:
            continue  # empty, past the end of the file, or inside another tensor
        yield from _between(header, at, begin)
        whole = "" if start + info.offset + info.nbytes <= size else ", cut off"
        yield Region(max(at, begin), end, "tensor", info.name, f"{info.dtype} {list(info.dims[::-1])}{whole}")
        at = end
    yield from _between(header, at, size)


def _between(header: GgufHeader, at: int, end: int) -> Iterator[Region]:
    """Bytes outside the tensors: padding up to the alignment, then unknown."""
    start = header.data_start
    stop = min(start + padded(max(at - start, 0), header.alignment), end)
    if stop > at:
        yield Region(at, stop, "padding", "to the alignment")
    yield from _unknown(max(at, stop), end)


def _unknown(at: int, end: int) -> Iterator[Region]:
    if end > at:
        yield Region(at, end, "unknown")
