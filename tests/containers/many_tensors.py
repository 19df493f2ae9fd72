"""Files with any number of tensors, F32 [2], of formats that only their libraries write."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.containers.framework_files import message, varint


def flatbuffer(root: dict[int, Any], head: bytes) -> bytearray:
    """A FlatBuffer. Tables are dicts by field, vectors of tables lists, bytes and texts themselves; (code, number) is a
    number, (code, list) a vector of them. `head`: the bytes between the root's offset and the first table."""
    out = bytearray(4) + head
    todo: deque[tuple[int, Any]] = deque([(0, root)])
    while todo:
        place, value = todo.popleft()
        out += bytes(-len(out) % 8)
        if isinstance(value, dict):
            vtable, count = len(out), max(value, default=-1) + 1
            places = {field: 8 * n + 8 for n, field in enumerate(value)}
            out += struct.pack(
                f"<{count + 2}H", 2 * count + 4, 8 * len(value) + 8, *(places.get(n, 0) for n in range(count))
            )
            out += bytes(-len(out) % 8)
            at = len(out)
            out += struct.pack("<ii", at - vtable, 0)
            for item in value.values():
                if isinstance(item, tuple) and not isinstance(item[1], list):
                    out += struct.pack(f"<{item[0]}", item[1]).ljust(8, b"\0")
                else:
                    todo.append((len(out), item))
                    out += bytes(8)
        elif isinstance(value, list):
            at = len(out)
            out += struct.pack("<I", len(value)) + bytes(4 * len(value))
            todo.extend((at + 4 + 4 * n, item) for n, item in enumerate(value))
        else:
            at = len(out)
            code, data = (
                value if isinstance(value, tuple) else ("B", [*(value.encode() if isinstance(value, str) else value)])
            )
            out += struct.pack(f"<I{len(data)}{code}", len(data), *data)
        struct.pack_into("<I", out, place, at - place)
    return out


def tflite(names: list[str]) -> bytes:
    tensors = [{0: ("i", [2]), 1: ("b", 0), 2: ("I", n), 3: name} for n, name in enumerate(names, 1)]
    buffers = [{}, *({0: bytes(8)} for _ in names)]
    return bytes(flatbuffer({0: ("I", 3), 2: [{0: tensors}], 4: buffers}, b"TFL3"))


def executorch(names: list[str]) -> bytes:
    """Its constants have no names."""
    count = len(names)
    values = [{0: ("B", 5), 1: {0: ("b", 6), 2: ("i", [2]), 3: ("B", [0]), 5: ("I", n)}} for n in range(1, count + 1)]
    offsets = ("Q", [8 * max(n - 1, 0) for n in range(count + 1)])
    out = flatbuffer({1: [{0: "forward", 2: values}], 4: [{0: ("Q", 0), 1: ("Q", 8 * count)}],
                      5: {0: ("I", 0), 1: offsets}}, b"ET12eh00" + struct.pack("<IQQ", 24, 0, 0))  # fmt: skip
    struct.pack_into("<QQ", out, 16, len(out), len(out))
    return bytes(out) + bytes(8 * count)


def executorch_data(names: list[str]) -> bytes:
    segments = [{0: ("Q", 8 * n), 1: ("Q", 8)} for n in range(len(names))]
    layout = {0: ("b", 6), 1: ("i", [2]), 2: ("B", [0])}
    named = [{0: name, 1: ("I", n), 2: layout} for n, name in enumerate(names)]
    out = flatbuffer({1: segments, 2: named}, b"FT01FH01" + struct.pack("<IQQQQ", 40, 0, 0, 0, 0))
    struct.pack_into("<QQQQ", out, 16, 0, len(out), len(out), 8 * len(names))
    return bytes(out) + bytes(8 * len(names))


def coreml(names: list[str]) -> bytes:
    def entry(key: str, value: bytes) -> bytes:
        return message(1, key.encode()) + message(2, value)

    kind = message(1, b"\x08\x0b" + message(3, message(1, b"\x08\x02")))
    block = b""
    for n, name in enumerate(names):
        blob = message(1, b"@model_path/weights/weight.bin") + b"\x10" + varint(64 + 128 * n)
        value = entry("val", message(2, kind) + message(5, blob))
        block += message(3, message(1, b"const") + message(3, message(1, name.encode())) + message(5, value))
    function = message(3, entry("CoreML7", block))
    return b"\x08\x07" + message(502, message(2, entry("main", function)))


def zipnn(inside: bytes) -> bytes:
    """The bytes of a file in chunks of 1 KiB, whose two planes are stored."""
    chunk = 1 << 10
    parts = [inside[at : at + chunk] for at in range(0, len(inside), chunk)]
    planes = [[part[plane::2] for part in parts] for plane in (0, 1)]
    methods, ends, data = b"", b"", b""
    for plane in planes:
        methods += bytes(len(plane))
        at = 0
        for part in plane:
            at += len(part)
            ends += struct.pack("<Q", at)
        data += b"".join(plane)
    packed = 32 + len(methods + ends + data)
    head = b"ZN\0" + bytes([5, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 10, 4]) + struct.pack("<QQ", len(inside), packed)
    return head + methods + ends + data


def torch_tar(names: list[str]) -> bytes:
    """A checkpoint as torch 0.1 wrote it."""
    import torch
    from tests.unpickle.test_readers import _Key, _Pickler

    def row(value: Any, dump: Callable[[io.BytesIO], Any] = lambda out: pickle.Pickler(out, 2)) -> bytes:
        out = io.BytesIO()
        dump(out).dump(value)
        return out.getvalue()

    count = len(names)
    storages, tensors = row(count), row(count)
    for n in range(1, count + 1):
        storages += row((1000 + n, "cpu", torch.FloatStorage)) + struct.pack("<q", 2) + bytes(8)
        tensors += row((n, 1000 + n, torch.FloatTensor)) + struct.pack("<ii3q", 1, 0, 2, 1, 0)
    storages += row([])
    saved = row({name: _Key(n) for n, name in enumerate(names, 1)}, lambda out: _Pickler(out, 2))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in (("sys_info", row({"little_endian": True})), ("pickle", saved), ("tensors", tensors),
                           ("storages", storages)):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return archive.getvalue()
