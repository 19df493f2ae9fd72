"""Hand-built safetensors files with their verdicts: what the reference refuses, with the rule that does it, and what it
accepts, with what we remark on. Every verdict is compared with the reference itself where the tests run."""

from __future__ import annotations

from typing import Final, NamedTuple


class Case(NamedTuple):
    """`rule`: the one that refuses the file, or None where it is accepted. `remarks`: the rules of the findings on an
    accepted file, but for those on alignment."""

    name: str
    data: bytes
    rule: str | None = None
    remarks: tuple[str, ...] = ()


def file(header: str | bytes, data: bytes | int = b"", length: int | None = None) -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    body = bytes(data) if isinstance(data, int) else data
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + body


def entry(dtype: str = "I32", shape: object = "[2]", offsets: object = "[0,8]") -> str:
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


def one(value: str, data: bytes | int = 8, pad: int = 0) -> bytes:
    """A file of one tensor `a`, whose entry is `value`."""
    return file(f'{{"a":{value}}}' + " " * pad, data)


def extra(value: str) -> bytes:
    """A file of one good tensor with an unknown field of this value."""
    return one(f'{{"dtype":"I32","shape":[2],"data_offsets":[0,8],"x":{value}}}')


def meta(value: str) -> bytes:
    return file(f'{{"__metadata__":{value},"a":{entry()}}}', 8)


GOOD: Final = one(entry())
_TWO: Final = f'{{"a":{entry()},"b":{entry(offsets="[8,16]")}}}'
_X: Final = ("unknown-field",)


def _rows() -> list[Case]:
    c = Case
    return [
        # -- the frame
        c("empty file", b"", "no-header"),
        c("seven bytes", bytes(7), "no-header"),
        c("no header bytes", bytes(8), "json"),
        c("length of 2^64-1", file("{}", length=2**64 - 1), "header-too-large"),
        c("length of 2^63", file("{}", length=2**63), "header-too-large"),
        c("length above the cap", file("{}", length=100_000_001), "header-too-large"),
        c("length at the cap", file("{}", length=100_000_000), "header-cut"),
        c("length one too long", file("{}", length=3), "header-cut"),
        c("length one too short", file("{} ", length=1), "json"),
        c("only braces", file("{}")),
        c("one tensor", GOOD),
        c("two tensors", file(_TWO, 16)),
        c("Git-LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "header-too-large"),
        c("web page", b"<!DOCTYPE html><html></html>", "header-too-large"),
        c("zip", b"PK\x03\x04" + bytes(60), "header-cut"),
        # -- white space, encoding, JSON
        c("leading space", file(" \n{}"), None, ("leading-space",)),
        c("padded with spaces", one(entry(), pad=5)),
        c("padded with all white space", file("{} \t\n\r"), None, ("padding",)),
        c("padded with NUL", file("{}\0\0"), "json"),
        c("vertical tab", file("{}\x0b"), "json"),
        c("byte order mark", file("\ufeff{}"), "json"),
        c("not UTF-8", file(b'{"\xff":' + entry().encode() + b"}", 8), "utf8"),
        c("encoded surrogate", file(b'{"\xed\xa0\x80":' + entry().encode() + b"}", 8), "utf8"),
        c("overlong NUL", file(b'{"\xc0\x80":' + entry().encode() + b"}", 8), "utf8"),
        c("UTF-16", file("{}".encode("utf-16-le")), "json"),
        c("empty header of spaces", file("   "), "json"),
        c("list", file("[]"), "json"),
        c("null", file("null"), "json"),
        c("string", file('"a"'), "json"),
        c("two documents", file("{}{}"), "json"),
        c("trailing comma", file(f'{{"a":{entry()},}}', 8), "json"),
        c("trailing comma inside", one('{"dtype":"I32","shape":[2,],"data_offsets":[0,8]}'), "json"),
        c("comment", file("{}//"), "json"),
        c("single quotes", file("{'a':1}"), "json"),
        c("number as key", file("{1:2}"), "json"),
        c("cut JSON", file('{"a":'), "json"),
        c("missing colon", file('{"a" 1}'), "json"),
        # -- __metadata__
        c("metadata", meta('{"format":"pt"}')),
        c("metadata empty", meta("{}")),
        c("metadata null", meta("null"), None, ("metadata-null",)),
        c("metadata last", file(f'{{"a":{entry()},"__metadata__":{{"k":"v"}}}}', 8)),
        c("metadata only", file('{"__metadata__":{"k":"v"}}')),
        c("metadata key spelled with escapes", file('{"__met\\u0061data__":{"k":"v"}}')),
        c("entry as metadata, by escapes", file(f'{{"__met\\u0061data__":{entry()}}}', 8), "metadata"),
        c("metadata twice, once by escapes", file('{"__metadata__":{},"__met\\u0061data__":{}}'), "repeated-metadata"),
        c("entry and metadata under one key", file(
            f'{{"__metadata__":{{}},"__met\\u0061data__":{entry()}}}', 8), "repeated-metadata"),
        c("metadata list", meta("[]"), "metadata"),
        c("metadata string", meta('"pt"'), "metadata"),
        c("metadata of an integer", meta('{"k":1}'), "metadata"),
        c("metadata of null", meta('{"k":null}'), "metadata"),
        c("metadata nested", meta('{"k":{"l":"m"}}'), "metadata"),
        c("metadata twice", file('{"__metadata__":{},"__metadata__":{}}'), "repeated-metadata"),
        c("metadata null twice", file('{"__metadata__":null,"__metadata__":null}'), "repeated-metadata"),
        c("metadata key twice", meta('{"k":"v","k":"w"}'), None, ("repeated-metadata-key",)),
        c("metadata like an entry", meta(entry()), "metadata"),
        c("metadata with a lone surrogate", meta('{"k":"\\ud800"}'), "json"),
        c("metadata key inside an entry", one(f'{{"__metadata__":{{}},{entry()[1:]}'), None, _X),
        # -- the form of an entry
        c("array entry", one('["I32",[2],[0,8]]'), None, ("array-entry",)),
        c("array entry in all white space", one('\t[\r"I32"\n,\t[ 2\t]\r,[0,\n8]\t]'), None, ("array-entry",)),
        c("array entry of 2^64-1", one('["I32",[0,18446744073709551615],[0,0]]', 0), None, ("array-entry",)),
        c("array entry of 2^64", one('["I32",[0,18446744073709551616],[0,0]]', 0), "shape"),
        c("array entry of two", one('["I32",[2]]'), "entry"),
        c("array entry of four", one('["I32",[2],[0,8],0]'), "entry"),
        c("null entry", one("null"), "entry"),
        c("string entry", one('"I32"'), "entry"),
        c("no dtype", one('{"shape":[2],"data_offsets":[0,8]}'), "missing-field"),
        c("no shape", one('{"dtype":"I32","data_offsets":[0,8]}'), "missing-field"),
        c("no offsets", one('{"dtype":"I32","shape":[2]}'), "missing-field"),
        c("empty entry", one("{}"), "missing-field"),
        c("dtype twice", one(f'{{"dtype":"I32",{entry()[1:]}'), "repeated-field"),
        c("shape twice", one(f'{{"shape":[2],{entry()[1:]}'), "repeated-field"),
        c("offsets twice", one(f'{{"data_offsets":[0,8],{entry()[1:]}'), "repeated-field"),
        c("dtype twice, once by escapes", one(f'{{"d\\u0074ype":"I32",{entry()[1:]}'), "repeated-field"),
        c("fields spelled with escapes", one('{"d\\u0074ype":"I32","sh\\u0061pe":[2],"data\\u005foffsets":[0,8]}')),
        c("twice in one entry, hidden in another",
          file(f'{{"a:":{{"dtype":"I32",{entry()[1:]},'
               '"b":{"d\\u0074ype":"I32","shape":[0],"data_offsets":[8,8]}}', 8), "repeated-field"),
        c("unknown field", extra("1"), None, _X),
        c("unknown field twice", extra('1,"x":2'), None, (*_X, *_X)),
        c("unknown field of 125 levels", extra("[" * 125 + "]" * 125), None, _X),
        c("unknown field of 126 levels", extra("[" * 126 + "]" * 126), "json"),
        c("unknown field of 100,000 levels", extra("[" * 100_000), "json"),
        c("unknown field NaN", extra("NaN"), "json"),
        c("unknown field Infinity", extra("-Infinity"), "json"),
        c("unknown field 1e400", extra("1e400"), "json"),
        c("unknown field 0e400", extra("0e400"), None, _X),
        c("unknown field 1e-400", extra("1e-400"), None, _X),
        c("unknown field 1e99999999999", extra("1e99999999999"), "json"),
        c("unknown field of 400 digits", extra("9" * 400), "json"),
        c("unknown field, largest double", extra("1.7976931348623157e308"), None, _X),
        c("unknown field, largest double rounded up", extra("1.7976931348623158e308"), "json"),
        c("unknown field 01", extra("01"), "json"),
        c("unknown field 1.", extra("1."), "json"),
        c("unknown field +1", extra("+1"), "json"),
        c("unknown field, lone surrogate", extra('"\\udc00"'), "json"),
        c("unknown field, surrogate pair", extra('"\\ud83d\\ude00"'), None, _X),
        c("unknown field, raw control character", extra('"\x1f"'), "json"),
        c("unknown field, unknown escape", extra('"\\x41"'), "json"),
        # -- dtype
        c("unknown dtype", one(entry("F128")), "dtype"),
        c("lower case dtype", one(entry("i32")), "dtype"),
        c("dtype number", one('{"dtype":5,"shape":[2],"data_offsets":[0,8]}'), "dtype"),
        c("dtype null", one('{"dtype":null,"shape":[2],"data_offsets":[0,8]}'), "dtype"),
        c("dtype object", one('{"dtype":{"I32":null},"shape":[2],"data_offsets":[0,8]}'), None, ("object-dtype",)),
        c("dtype object of a value", one('{"dtype":{"I32":1},"shape":[2],"data_offsets":[0,8]}'), "dtype"),
        c("dtype object of two", one('{"dtype":{"I32":null,"F32":null},"shape":[2],"data_offsets":[0,8]}'), "dtype"),
        c("unknown dtype of a name that comes again", file(f'{{"a":{entry("X")},"a":{entry()}}}', 8), "dtype"),
        # -- integers
        c("shape null", one(entry(shape="null")), "shape"),
        c("shape object", one(entry(shape="{}")), "shape"),
        c("shape negative", one(entry(shape="[-2]")), "shape"),
        c("shape of two negatives", one(entry(shape="[-1,-2]")), "shape"),
        c("shape float", one(entry(shape="[2.0]")), "shape"),
        c("shape exponent", one(entry(shape="[2e0]")), "shape"),
        c("shape minus zero", one(entry(shape="[-0]", offsets="[0,0]"), 0), "shape"),
        c("shape string", one(entry(shape='["2"]')), "shape"),
        c("shape true", one(entry(shape="[true,2]")), "shape"),
        c("shape leading zero", one(entry(shape="[02]")), "json"),
        c("shape nested", one(entry(shape="[[2]]")), "shape"),
        c("shape 2^64", one(entry(shape="[0,18446744073709551616]", offsets="[0,0]"), 0), "overflow"),
        c("offsets negative", one(entry(offsets="[-8,0]")), "offsets"),
        c("offsets float", one(entry(offsets="[0,8.0]")), "offsets"),
        c("offsets exponent", one(entry(offsets="[0,8e0]")), "offsets"),
        c("offsets minus zero", one(entry(offsets="[-0,8]")), "offsets"),
        c("offsets string", one(entry(offsets='["0","8"]')), "offsets"),
        c("offsets of one", one(entry(offsets="[8]")), "offsets"),
        c("offsets of three", one(entry(offsets="[0,8,8]")), "offsets"),
        c("offsets object", one(entry(offsets='{"begin":0}')), "offsets"),
        # -- shapes and sizes
        c("scalar", one(entry(shape="[]", offsets="[0,4]"), 4)),
        c("zero size", one(entry(shape="[0,5]", offsets="[0,0]"), 0)),
        c("zero size, largest dimension", one(entry(shape="[0,18446744073709551615]", offsets="[0,0]"), 0)),
        c("zero size, zero first", one(entry(shape="[0,9223372036854775808,4]", offsets="[0,0]"), 0)),
        c("overflow before the zero", one(entry(shape="[9223372036854775808,4,0]", offsets="[0,0]"), 0), "overflow"),
        c("overflow of elements", one(entry(shape="[4294967296,4294967296]", offsets="[0,0]"), 0), "overflow"),
        c("overflow of bits", one(entry("U8", "[2305843009213693952]", "[0,0]"), 0), "overflow"),
        c("too small", one(entry(shape="[3]")), "size"),
        c("too large", one(entry(shape="[1]")), "size"),
        c("F4 of two", one(entry("F4", "[2]", "[0,1]"), 1)),
        c("F4 of three", one(entry("F4", "[3]", "[0,2]"), 2), "sub-byte"),
        c("F4 scalar", one(entry("F4", "[]", "[0,1]"), 1), "sub-byte"),
        c("F4 of odd rows", one(entry("F4", "[2,3]", "[0,3]"), 3)),
        c("F6 of four", one(entry("F6_E2M3", "[4]", "[0,3]"), 3)),
        c("F6 of two", one(entry("F6_E3M2", "[2]", "[0,1]"), 1), "sub-byte"),
        # -- places
        c("hole at the start", one(entry(offsets="[4,12]"), 12), "hole"),
        c("hole between", file(f'{{"a":{entry()},"b":{entry(offsets="[12,20]")}}}', 20), "hole"),
        c("overlap", file(f'{{"a":{entry()},"b":{entry(offsets="[4,12]")}}}', 12), "overlap"),
        c("same place", file(f'{{"a":{entry()},"b":{entry()}}}', 8), "overlap"),
        c("end before begin", one(entry(shape="[0]", offsets="[8,0]"), 8), "hole"),
        c("end before begin, in place",
          file(f'{{"a":{entry()},"b":{entry(shape="[0]", offsets="[8,4]")}}}', 8), "reversed"),
        c("empty tensor between", file(
            f'{{"a":{entry()},"b":{entry(shape="[0]", offsets="[8,8]")},"c":{entry(offsets="[8,16]")}}}', 16)),
        c("empty tensor at the end", file(f'{{"a":{entry()},"b":{entry(shape="[0]", offsets="[8,8]")}}}', 8)),
        c("two empty tensors in one place", file(
            f'{{"a":{entry(shape="[0]", offsets="[0,0]")},"b":{entry(shape="[0]", offsets="[0,0]")}}}')),
        c("empty tensor parked inside", file(
            f'{{"a":{entry()},"b":{entry(offsets="[8,16]")},"z":{entry(shape="[0]", offsets="[4,4]")}}}', 16),
          "overlap"),
        c("header order is not file order", file(f'{{"b":{entry(offsets="[8,16]")},"a":{entry()}}}', 16)),
        c("truncated by one", GOOD[:-1], "truncated"),
        c("no data", GOOD[:-8], "truncated"),
        c("one byte more", GOOD + b"\0", "trailing-bytes"),
        c("data without tensors", file("{}", 8), "trailing-bytes"),
        c("offsets of 2^64-1", one(entry(offsets="[0,18446744073709551615]")), "size"),
        c("offsets beyond the file", one(entry("U8", "[1000]", "[0,1000]")), "truncated"),
        # -- names
        c("empty name", file(f'{{"":{entry()}}}', 8), None, ("odd-name",)),
        c("NUL in a name", file(f'{{"a\\u0000b":{entry()}}}', 8), None, ("odd-name",)),
        c("path as a name", file(f'{{"../../a":{entry()}}}', 8)),
        c("colons in names", file(f'{{"a:0":{entry()},"b::":{entry(offsets="[8,16]")}}}', 16)),
        c("colons in names, dtype twice", file(f'{{"a:0":{{"dtype":"I32",{entry()[1:]}}}', 8), "repeated-field"),
        c("minus signs in names", file(f'{{"a-1":{entry()}," -2":{entry(offsets="[8,16]")}}}', 16)),
        c("name like a field", file(f'{{"dtype":{entry()}}}', 8)),
        c("field name as a value", extra('"shape"'), None, _X),
        c("name of surrogate halves", file(f'{{"\\ud83d\\ude00":{entry()}}}', 8)),
        c("lone surrogate in a name", file(f'{{"\\ud83d":{entry()}}}', 8), "json"),
        c("surrogates in the wrong order", file(f'{{"\\ude00\\ud83d":{entry()}}}', 8), "json"),
        c("raw newline in a name", file(f'{{"a\n":{entry()}}}', 8), "json"),
        c("delete character in a name", file(f'{{"a\x7f":{entry()}}}', 8), None, ("odd-name",)),
        c("name twice, same entry", file(f'{{"a":{entry()},"a":{entry()}}}', 8), None, ("repeated-name",)),
        c("name twice, the last fits", file(f'{{"a":{entry(offsets="[0,4]")},"a":{entry()}}}', 8), None,
          ("repeated-name",)),
        c("name twice, the first fits", file(f'{{"a":{entry()},"a":{entry(offsets="[0,4]")}}}', 8), "size"),
        c("name twice by escapes", file(f'{{"a":{entry()},"\\u0061":{entry()}}}', 8), None, ("repeated-name",)),
        c("name twice, one null", file(f'{{"a":null,"a":{entry()}}}', 8), "entry"),
        # -- what other writers do
        c("MLX: no padding, no metadata", meta("null"), None, ("metadata-null",)),
        c("a float after an odd number of bytes", file(
            f'{{"a":{entry("U8", "[1]", "[0,1]")},"b":{entry("F32", "[1]", "[1,5]")}}}', 5)),
        c("padded to a page", file(f'{{"a":{entry()}}}'.ljust(4088), 8)),
    ]  # fmt: skip


CASES: Final = _rows()
