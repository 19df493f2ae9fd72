"""Malformed and odd GGUF files, each with our verdict: the rule that a strict reader stops at (`error`), and the other
rules that findings name. Among them all hand-made files of llama.cpp's test-gguf.cpp (b11549), under their names there.

llama.cpp's verdict is not written down: it follows from `RULES[...].refused`, and a test asks llama.cpp itself.
"""

# ruff: noqa: E501 (tables: one case a line)

from __future__ import annotations

import struct
from typing import NamedTuple

from tests.containers._gguf import ARR, BOOL, F64, I8, I32, STR, U8, U16, U32, File, Item, Tensor, good


class Case(NamedTuple):
    name: str
    data: bytes
    error: str | None = None  # without "gguf/"
    rules: frozenset[str] = frozenset()
    big: bool = False  # llama.cpp must not be asked to load the data


def _case(name: str, file: File | bytes, error: str | None = None, *rules: str, big: bool = False) -> Case:
    data = file if isinstance(file, bytes) else file.bytes()
    return Case(name, data, error, frozenset(rules), big)


def _keys(*keys: tuple[str | bytes, Item], **more: object) -> File:
    return File(keys=list(keys), **more)  # type: ignore[arg-type]


def _tensors(*tensors: Tensor, **more: object) -> File:
    return File(tensors=list(tensors), **more)  # type: ignore[arg-type]


def _aligned(value: int, kind: int = U32, **more: object) -> File:
    return File(keys=[("general.alignment", Item(kind, value))], **more)  # type: ignore[arg-type]


ONE = Item(U8, 1)
T = Tensor("t", [8])

# test-gguf.cpp, `get_handcrafted_file`. Its tensors without data are given data where that isn't the point.
LLAMA_CPP = [
    _case("HEADER_BAD_MAGIC", File(magic=b"FUGG"), "magic"),
    _case("HEADER_BAD_VERSION_0", File(version=0), "version"),
    _case("HEADER_BAD_VERSION_1", b"GGUF" + struct.pack("<IQQ", 1, 0, 0) + bytes(8), None, "version-1"),
    _case("HEADER_BAD_VERSION_FUTURE", File(version=4), "version"),
    _case("HEADER_BAD_N_TENSORS", File(n_tensors=-1), "counts", "name-empty", "truncated-header"),
    _case("HEADER_BAD_N_KV", File(n_keys=-1), "counts", "key-empty", "truncated-header"),
    _case("HEADER_EMPTY", File()),
    _case("KV_BAD_KEY_SIZE", File(n_keys=1, header_pad=b"\xff" * 8 + b"key" + bytes(40)), "truncated-header"),
    _case("KV_EMPTY_KEY", _keys(("", ONE)), None, "key-empty"),
    _case("KV_BAD_TYPE", File(n_keys=1, header_pad=b"\3" + bytes(7) + b"key" + struct.pack("<I", 13) + b"x"), "value-type"),
    _case("KV_DUPLICATE_KEY", _keys(("k", ONE), ("k", ONE)), "key-duplicate"),
    _case("KV_BAD_ALIGN", _aligned(13, alignment=13), None, "alignment-multiple", "alignment-power"),
    _case("KV_WRONG_TYPE_ALIGN", _aligned(13, I32, alignment=13), None, "alignment-type", "alignment-multiple", "alignment-power"),
    _case("KV_SUCCESS", _keys(("my_key_0", Item(ARR, ["a"], STR)), ("my_key_1", Item(F64, 1.0)))),
    _case("TENSORS_BAD_NAME_SIZE", _tensors(Tensor("my_tensor_" + "x" * 90, [8])), None, "name-length"),
    _case("TENSORS_BAD_N_DIMS", _tensors(Tensor("my_tensor", [8], n_dims=5), data=bytes(64)), None, "dims-count", "trailing"),
    _case("TENSORS_BAD_SHAPE", _tensors(Tensor("t", [-1]), data=b""), "truncated-data", "dims-overflow", big=True),
    _case("TENSORS_ZERO_DIM", _tensors(Tensor("t", [8, 0]))),
    _case("TENSORS_NE_TOO_BIG", _tensors(Tensor("t", [4 * (2**31 - 1)] * 2), data=b""), "truncated-data", "dims-overflow"),
    _case("TENSORS_NBYTES_TOO_BIG", _tensors(Tensor("t", [1533916891] * 2, 27), data=b""), "truncated-data", "dims-overflow"),
    _case("TENSORS_NBYTES_PAD_WRAP", _tensors(Tensor("t", [4, 2**30 - 1, 2**30 + 1]), data=b""), "truncated-data", "dims-overflow"),
    _case("TENSORS_BAD_TYPE", _tensors(Tensor("t", [8], 43)), "tensor-type"),
    _case("TENSORS_BAD_OFFSET", _tensors(Tensor("t", [8], offset=-1)), "truncated-data", "offset-alignment", "gap"),
    _case("TENSORS_DUPLICATE_NAME", _tensors(T, T), "name-duplicate"),
    _case("TENSORS_BAD_ALIGN", _aligned(13, tensors=[T], alignment=13), None, "alignment-multiple", "alignment-power"),
    _case("TENSORS_INCONSISTENT_ALIGN", _tensors(T, Tensor("u", [9]), Tensor("v", [8]), alignment=1, header_pad=bytes(17)), None, "offset-alignment", "order", "final-padding"),
    _case("TENSORS_CUSTOM_ALIGN", _aligned(1, tensors=[T, Tensor("u", [9])], alignment=1), None, "alignment-multiple"),
    _case("TENSORS_SUCCESS", good()),
    _case("DATA_NOT_ENOUGH_DATA", _tensors(T, data=bytes(31)), "truncated-data"),
    _case("DATA_MEM_SIZE_OVERFLOW", _tensors(*(Tensor(n, [0x7FFFFFFFFFFFFFC0], 24) for n in "ab"), data=bytes(32)), "truncated-data"),
]  # fmt: skip

HEADERS = [
    _case("nothing", b"", "magic"),
    _case("magic only", b"GGUF", "truncated-header"),
    _case("24 bytes", File(header_pad=b""), None, "header-padding"),
    _case("version 2", File(version=2, keys=[("k", ONE)]), None, "version-2"),
    _case("big-endian", File(order=">", keys=[("k", ONE)], tensors=[T]), None, "big-endian"),
    _case("big-endian version 0", b"GGUF" + bytes(28), "version"),
    _case("counts of 2^63", File(n_keys=1 << 63, n_tensors=1 << 63), "counts", "key-empty", "truncated-header"),
    _case("one tensor too many", _tensors(T, n_tensors=2, header_pad=b"", data=b""), "counts", "truncated-header"),
    _case("cut in the directory", _tensors(T).bytes()[:-80], "truncated-header"),
    _case("trailing bytes", _tensors(T, trailing=b"x"), None, "trailing"),
    _case("trailing bytes after a header", File(trailing=b"x"), None, "trailing"),
    _case("no header padding", _tensors(Tensor("t", [0]), header_pad=b""), "truncated-header"),
]

KEYS = [
    _case("uppercase", _keys(("General.Name", ONE)), None, "key-charset"),
    _case("space", _keys(("a b", ONE)), None, "key-charset"),
    _case("NUL", _keys(("a\0b", ONE)), None, "key-charset"),
    _case("not UTF-8", _keys((b"a\xff", ONE)), None, "key-charset"),
    _case("dots", _keys(("a..b", ONE)), None, "key-charset"),
    _case("hyphen", _keys(("gpt-oss.block_count", Item(U32, 1))), None, "key-hyphen"),
    _case("65535 bytes", _keys(("k" * 65535, ONE))),
    _case("65536 bytes", _keys(("k" * 65536, ONE)), None, "key-length"),
    _case("unknown value type", File(n_keys=1, header_pad=b"\1" + bytes(7) + b"k" + struct.pack("<I", 13) + bytes(20)), "value-type"),
    _case("bool of 2", _keys(("k", Item(BOOL, 2))), None, "bool"),
    _case("string not UTF-8", _keys(("k", Item(STR, b"\xff\xfe"))), None, "utf8"),
    _case("string with NUL", _keys(("k", Item(STR, "a\0b")))),
    _case("string of 2^63", _keys(("k", Item(U8, 8)), header_pad=b"").bytes()[:-5] + struct.pack("<IQ", STR, 1 << 63) + bytes(9), "truncated-header"),
    _case("empty array", _keys(("k", Item(ARR, [], STR)))),
    _case("array of unknown type", _keys(("k", Item(ARR, struct.pack("<Q", 0), 13))), "value-type"),
    _case("array of 2^63 bytes", _keys(("k", Item(ARR, struct.pack("<Q", 1 << 63), U8))), "truncated-header", "array-huge"),
    _case("array of 2^61 strings", _keys(("k", Item(ARR, struct.pack("<Q", 1 << 61), STR))), "truncated-header", "array-huge"),
    _case("strings past the end", _keys(("k", Item(ARR, struct.pack("<QQQ", 2, 0, 99), STR))), "truncated-header"),
    _case("array of arrays", _keys(("k", Item(ARR, [Item(ARR, [1, 2], I8), Item(ARR, ["a"], STR)], ARR))), None, "array-nested"),
    _case("five levels", _keys(("k", Item(ARR, [Item(ARR, [Item(ARR, [Item(ARR, [Item(ARR, [1], U8)], ARR)], ARR)], ARR)], ARR))),
          "array-depth", "array-nested"),
    _case("alignment 8", _aligned(8, tensors=[T, Tensor("u", [2])], alignment=8)),
    _case("alignment 4", _aligned(4, tensors=[T, Tensor("u", [1])], alignment=4), None, "alignment-multiple"),
    _case("alignment 24", _aligned(24, tensors=[T, Tensor("u", [1])], alignment=24), None, "alignment-power"),
    _case("alignment 2^31", _aligned(1 << 31), None, "header-padding"),
    _case("alignment 0", _aligned(0), "alignment-zero"),
    _case("alignment of strings", _keys(("general.alignment", Item(STR, "32"))), "alignment-zero", "alignment-type"),
    _case("alignment as u16", _aligned(32, U16), None, "alignment-type"),
    _case("alignment as bool", _aligned(1, BOOL), "alignment-zero", "alignment-type"),
]  # fmt: skip

TENSORS = [
    _case("name of 63", _tensors(Tensor("x" * 63, [8]))),
    _case("name of 64", _tensors(Tensor("x" * 64, [8])), None, "name-64"),
    _case("name of 65", _tensors(Tensor("x" * 65, [8])), None, "name-length"),
    _case("name of 32 two-byte letters", _tensors(Tensor("é" * 32, [8])), None, "name-64"),
    _case("no name", _tensors(Tensor("", [8])), None, "name-empty"),
    _case("name with a newline", _tensors(Tensor("a\nb", [8])), None, "name-control"),
    _case("name not UTF-8", _tensors(Tensor(b"a\xff", [8])), None, "utf8"),
    _case("scalar", _tensors(Tensor("t", []))),
    _case("four dims", _tensors(Tensor("t", [2, 1, 2, 1]))),
    _case("five dims", _tensors(Tensor("t", [2, 1, 1, 1, 2])), None, "dims-count"),
    _case("65 dims", _tensors(Tensor("t", [1] * 65)), "dims-limit"),
    _case("2^32-1 dims", _tensors(Tensor("t", [8], n_dims=-1)), "dims-limit"),
    _case("empty, but too large", _tensors(Tensor("t", [1 << 40, 1 << 40, 0])), None, "dims-overflow"),
    _case("empty, with a negative dim", _tensors(Tensor("t", [1 << 63, 0])), None, "dims-overflow"),
    _case("empty before it overflows", _tensors(Tensor("t", [0, 1 << 40, 1 << 40]))),
    _case("removed type", _tensors(Tensor("t", [32], 4), data=bytes(64)), "tensor-type"),
    _case("type of a fork", _tensors(Tensor("t", [256], 139), data=bytes(256)), "tensor-type"),
    _case("type -1", _tensors(Tensor("t", [8], -1), data=bytes(64)), "tensor-type"),
    _case("half a block", _tensors(Tensor("t", [48, 2], 8), data=bytes(128)), "row-blocks"),
    _case("scalar of blocks", _tensors(Tensor("t", [], 8), data=bytes(64)), "row-blocks"),
    _case("no blocks", _tensors(Tensor("t", [0, 7], 8))),
    _case("blocks", _tensors(Tensor("t", [256, 2], 12), Tensor("u", [64], 2))),
]  # fmt: skip

PLACES = [
    _case("gap", _tensors(T, Tensor("u", [8], offset=64), data=bytes(96)), None, "gap"),
    _case("gap at the start", _tensors(Tensor("t", [8], offset=32), data=bytes(64)), None, "gap"),
    _case("reversed", _tensors(Tensor("t", [8], offset=32), Tensor("u", [8], offset=0), data=bytes(64)), None, "order"),
    _case("same place", _tensors(T, Tensor("u", [8], offset=0)), None, "overlap", "trailing"),
    _case("inside another", _tensors(Tensor("t", [32]), Tensor("u", [8], offset=32)), None, "overlap", "trailing"),
    _case("empty tensor elsewhere", _tensors(T, Tensor("u", [0], offset=0), Tensor("v", [8], offset=32)), None, "order"),
    _case("unaligned", _tensors(T, Tensor("u", [2], offset=33), data=bytes(64)), None, "offset-alignment", "gap"),
    _case("no final padding", _tensors(T, Tensor("u", [2]), data=bytes(40)), None, "final-padding"),
    _case("one byte short", _tensors(T, Tensor("u", [2]), data=bytes(39)), "truncated-data"),
    _case("only the header", _tensors(T, data=b""), "truncated-data"),
    _case("all data too large together", _tensors(*(Tensor(n, [0x7FFFFFFFFFFFFFC0], 24) for n in "abc"), data=b""),
          "truncated-data", "dims-overflow", big=True),
    _case("non-zero padding", _tensors(T, Tensor("u", [2]), fill=b"\7")),
]  # fmt: skip

PARSED = [*LLAMA_CPP, *HEADERS, *KEYS, *TENSORS, *PLACES]
