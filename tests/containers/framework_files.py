"""Small writers of frameworks' formats, for files that their libraries don't write."""

from __future__ import annotations

import struct
from pathlib import Path

GOLDEN = Path(__file__).with_name("golden") / "frameworks.zip"


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def message(number: int, data: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def onnx_external(
    location: str, offset: str = "0", length: str = "24", shape: tuple[int, ...] = (2, 3), key: str = ""
) -> bytes:
    """A model with one F32 tensor, whose data is in another file."""
    entries = {"location": location, "offset": offset, "length": length, **({key: "x"} if key else {})}
    texts = [message(13, message(1, k.encode()) + message(2, v.encode())) for k, v in entries.items()]
    dims = b"".join(b"\x08" + varint(n) for n in shape)
    tensor = dims + b"\x10\x01" + message(8, b"w") + b"".join(texts) + b"\x70\x01"
    return b"\x08\x08" + message(7, message(5, tensor))


def mindspore(values: list[tuple[str, str, tuple[int, ...], bytes]], packed: bool = False) -> bytes:
    """A checkpoint of values: tag, type, shape and bytes; values with one tag are pieces of a tensor."""
    out = b""
    for tag, kind, shape, data in values:
        numbers = [varint(n & (1 << 64) - 1) for n in shape]
        dims = message(1, b"".join(numbers)) if packed else b"".join(b"\x08" + number for number in numbers)
        tensor = dims + message(2, kind.encode()) + message(3, data)
        out += message(1, message(1, tag.encode()) + message(2, tensor))
    return out


def block(entries: list[tuple[bytes, bytes]], compression: int) -> bytes:
    from weighbridge.containers.frameworks.sstable import masked_crc
    from weighbridge.io.source import BytesSource

    body = b"".join(varint(0) + varint(len(k)) + varint(len(v)) + k + v for k, v in entries)
    body += struct.pack("<2I", 0, 1) + bytes((compression,))
    return body + struct.pack("<I", masked_crc(BytesSource(body), 0, len(body)))


def table(entries: list[tuple[bytes, bytes]], compression: int = 0) -> bytes:
    """A TensorFlow table of one block."""
    data = block(entries, compression)
    handle = varint(0) + varint(len(data) - 5)
    index = block([(b"~", handle)], 0)
    footer = varint(0) + varint(len(data) - 5) + varint(len(data)) + varint(len(index) - 5)
    return data + index + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def openvino(size: str) -> bytes:
    """A graph with one constant."""
    data = f'<data element_type="f32" shape="2, 3" offset="0" size="{size}"/>'
    return f'<net name="m" version="11"><layers><layer name="w" type="Const">{data}</layer></layers></net>'.encode()


def llama2c(version: int = 0, shared: bool = True, layers: int = 2) -> bytes:
    """Layers of width 4 with two heads, one of them for keys and values."""
    dim, hidden, heads, kv_heads, vocab, context = 4, 6, 2, 1, 5, 3
    signed = vocab if shared or version else -vocab
    head = struct.pack("<7i", dim, hidden, layers, heads, kv_heads, signed, context)
    kv = dim // heads * kv_heads
    count = layers * (2 * dim + 2 * dim * dim + 2 * kv * dim + 3 * hidden * dim) + vocab * dim + dim
    count += 0 if shared else vocab * dim
    if version:
        head = (b"24ka" + struct.pack("<i", version) + head + bytes((shared,))).ljust(256, b"\0")
    else:
        count += 2 * context * (dim // heads // 2)
    return head + struct.pack(f"<{count}f", *(i / 8 for i in range(count)))
