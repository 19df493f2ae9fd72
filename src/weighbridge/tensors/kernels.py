"""Loops over numbers: native kernels if the extension has them for a type, numpy otherwise. Both return the same
bytes. Arrays are flat unless a shape is given.

A type is offered if it has a codec in `reference/registry.py`; the native table only makes it fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, F32, DType, swap_plan
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.base.imports.lazy import lazy_module
from weighbridge.base.native import native
from weighbridge.tensors import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weighbridge.tensors.reference import affine, floats, patterns, regroup, rounding
    from weighbridge.tensors.reference import registry as codecs
    from weighbridge.tensors.reference.floats import Array, Bytes, Floats
else:
    affine, floats, patterns, regroup, rounding, codecs = (
        lazy_module(f"weighbridge.tensors.reference.{name}")
        for name in ("affine", "floats", "patterns", "regroup", "rounding", "registry")
    )


class CastCounts(NamedTuple):
    """Losses of a narrowing. overflow: finite values that became Inf or NaN. underflow: non-zero values that became
    zero. For a block type both count its F16 scales."""

    overflow: int
    underflow: int


class RefusedBlock(RefusedError):
    """Values at which llama.cpp's quantizer aborts. `block`: the index of the first such block."""

    reason = "has values whose weighted squares f32 can't hold (llama.cpp's quantizer stops there)"

    def __init__(self, dtype: DType, block: int) -> None:
        super().__init__(f"block {block} {self.reason}, so it can't be quantized to {dtype}")
        self.block = block


class ValueStats(NamedTuple):
    """Value statistics of a float array, or of a block type's scales. The extremes are over finite values; None
    without any."""

    nan: int
    inf: int
    minimum: float | None
    maximum: float | None


_BAND: Final = 1 << 14  # elements of a band of rows that a cache holds with two others

_NATIVE: Final = {
    operation: frozenset(native.formats(operation) if native else ()) for operation in ("decode", "encode", "weighted")
}


def _is_native(operation: str, *names: str) -> bool:
    """Whether the extension has this operation for all these types."""
    return native is not None and _NATIVE[operation].issuperset(names)


def decodes(dtype: DType) -> bool:
    """Whether stored bytes of `dtype` can be decoded to f32."""
    return _is_native("decode", dtype.name) or dtype.name in codecs.DECODE


def encodes(dtype: DType) -> bool:
    """Whether f32 can be encoded as `dtype`; with an importance matrix if `dtype.importance` is "required"."""
    native_too = _is_native("encode", dtype.name) or _is_native("weighted", dtype.name)
    return native_too or dtype.name in codecs.ENCODE or dtype.name in codecs.WEIGHTED


def casts(source: DType, target: DType) -> bool:
    """Whether `cast` supports both: plain float types."""
    return all(dtype.is_float and dtype.plain and dtype.numpy is not None for dtype in (source, target))


def decode(dtype: DType, src: Bytes, out: Floats) -> None:
    """Decodes stored bytes to F32."""
    _need(decodes(dtype), f"{dtype} can't be decoded by this version")
    _sizes(src, dtype.size, out, dtype.block * 4)
    if _is_native("decode", dtype.name):
        native.decode(dtype.name, src, out)
    else:
        _bytes(out)[:] = codecs.DECODE[dtype.name](src).view(np.uint8)


def encode(dtype: DType, src: Floats, out: Bytes, importance: Floats | None = None) -> CastCounts:
    """Encodes F32 to stored bytes and counts losses. `importance`: F32 [columns], one weight per column (llama.cpp's
    quant_weights); `src` must then be whole rows. IQ1_S, IQ2_XXS and IQ2_XS require it (UsageError); types without a
    use for it, such as Q8_0, ignore it (`DType.importance`). RefusedBlock for values at which llama.cpp aborts."""
    _need(encodes(dtype), f"{dtype} can't be written by this version")
    _sizes(src, dtype.block * 4, out, dtype.size)
    if importance is not None:
        if not importance.size or importance.size % dtype.block or src.size % importance.size:
            raise UsageError(f"{src.size} elements of {dtype} aren't whole rows of {importance.size} weighted columns")
        if _is_native("weighted", dtype.name):
            return _counts(dtype, native.encode_weighted(dtype.name, src, importance, out))
        if dtype.name in codecs.WEIGHTED:
            rows = np.require(src, np.float32, "A").reshape(-1, importance.size)
            out[:], lost = codecs.WEIGHTED[dtype.name](rows, np.require(importance, np.float32, "A"))
            return _counts(dtype, lost)
    if _is_native("encode", dtype.name):
        return _counts(dtype, native.encode(dtype.name, src, out))
    if dtype.name not in codecs.ENCODE:
        raise UsageError(f"{dtype} can't be written without an importance matrix")
    out[:], lost = codecs.ENCODE[dtype.name](np.require(src, np.float32, "A"))
    return _counts(dtype, lost)


def encode_finite(source: DType, dtype: DType, src: Bytes, out: Bytes) -> CastCounts | None:
    """Encodes floats of `source`, a plain type that F32 holds. None if a value or a scale of the result isn't finite or
    llama.cpp aborts: `encode` and `stats` report the reason."""
    _need(encodes(dtype), f"{dtype} can't be written by this version")
    if _is_native("encode", dtype.name):
        lost = native.encode_finite(source.name, dtype.name, src, out)
        return None if lost is None else _counts(dtype, lost)
    values = widened(source, src)
    if nonfinite(values):
        return None
    try:
        counts = encode(dtype, values, out)
    except RefusedBlock:
        return None
    scales = stats(dtype, out)
    return None if scales.nan or scales.inf else counts


def _counts(dtype: DType, lost: tuple[int, ...]) -> CastCounts:
    """The result of an encoder: (overflow, underflow), and the first refused block, if any."""
    overflow, underflow, *refused = lost
    if refused:
        raise RefusedBlock(dtype, refused[0])
    return CastCounts(overflow, underflow)


def cast(source: DType, target: DType, src: Bytes, out: Bytes) -> CastCounts:
    """Casts bytes of one float type to another, rounding each value once to nearest even, and counts losses. Values
    beyond the range become Inf, or NaN if the type has no Inf (F8_E4M3, FNUZ, E8M0); nothing saturates."""
    _need(casts(source, target), f"no cast from {source} to {target}")
    _sizes(src, source.size, out, target.size)
    if _is_native("decode", source.name, target.name):
        return CastCounts(*native.cast(source.name, target.name, src, out))
    out[:], lost = floats.cast(source.name, target.name, src)
    return CastCounts(*lost)


def nonfinite(src: Floats) -> int:
    """The number of NaN and Inf values."""
    return int(native.nonfinite(src)) if native else int(np.count_nonzero(~np.isfinite(src)))


def widened(dtype: DType, src: Bytes) -> Floats:
    """Floats of a plain type as a new F32 array."""
    out = np.empty(_whole(src, dtype.size), np.float32)
    cast(dtype, F32, src, _bytes(out))
    return out


def stats(dtype: DType, src: Bytes) -> ValueStats:
    """Counts NaN and Inf and finds the extremes of plain floats, or of a block type's scales."""
    _need(decodes(dtype), f"{dtype} can't be analysed by this version")
    _whole(src, dtype.size)
    function = native.stats if _is_native("decode", dtype.name) else codecs.stats
    return ValueStats(*function(dtype.name, src))


def count_patterns(dtype: DType, src: Bytes, counters: NDArray[np.uint64]) -> None:
    """Counts the values of stored bytes by bit pattern (`reference/patterns.py`): at most `patterns.MOST` elements, in
    `counters`, U64 [65,536] of zeros."""
    _need(decodes(dtype), f"{dtype} can't be decoded by this version")
    count = _whole(src, dtype.size) * dtype.block
    if count > patterns.MOST or counters.shape != (patterns.PATTERNS,):
        raise UsageError(f"{count} elements don't fit {counters.size} counters")
    if _is_native("decode", dtype.name):
        native.count_patterns(dtype.name, src, counters)
    else:
        counters += patterns.count_patterns(dtype.name, src)


def affine_decode(
    bits: int, group: int, scale_dtype: DType, codes: Bytes, scales: Bytes, offsets: Bytes, zeros: bool, out: Floats
) -> None:
    """Decodes a little-endian bit stream of codes to F32, in whole groups: code * scale + bias, or with `zeros`
    (code - zero) * scale with U8 zero points. Computed in F32. A group has a multiple of 32 codes; with 8 bits any
    number."""
    _need(
        1 <= bits <= 8 and (bits == 8 or not group % 32) and group > 0,
        f"unsupported: {bits}-bit codes in groups of {group}",
    )
    _need(casts(scale_dtype, scale_dtype), f"scales can't be {scale_dtype}")
    groups = _whole(scales, scale_dtype.size)
    sizes = (codes.nbytes, offsets.nbytes, out.nbytes)
    if sizes != (groups * group * bits // 8, groups if zeros else scales.nbytes, groups * group * 4):
        raise UsageError(f"parts of {sizes} bytes don't fit {groups} groups of {group} elements of {bits} bits")
    if _is_native("decode", scale_dtype.name):
        native.affine_decode(bits, group, scale_dtype.name, codes, scales, offsets, zeros, out)
    else:
        values = affine.affine_decode(bits, group, scale_dtype.name, codes, scales, offsets, zeros)
        _bytes(out)[:] = values.view(np.uint8)


def ordered_decode(codes: Bytes, scales: Floats, zeros: Bytes, index: NDArray[np.int32], out: Floats) -> None:
    """(code - zero) * scale with columns in any order: column i belongs to group index[i]. Codes are U8 [rows, columns]
    (rows may be padded), scales F32 and zero points U8 [rows, groups]. UsageError for an unknown group in the index, or
    parts that don't match."""
    rows = out.size // max(index.size, 1)
    groups = scales.size // max(rows, 1)
    fits = rows * index.size == out.size and scales.size == zeros.size == rows * groups > 0
    if not fits or codes.size % rows or codes.size < out.size:
        raise UsageError(f"{codes.size} codes and {scales.size} scales don't fit {rows} rows of {index.size} columns")
    if not 0 <= int(index.min()) <= int(index.max()) < groups:
        raise UsageError(f"the index names a group beyond the {groups}")
    if native:
        native.ordered_decode(index.size, groups, codes, scales, zeros, np.ascontiguousarray(index), out)
    else:
        _bytes(out)[:] = affine.ordered_decode(codes, scales, zeros, index, rows).view(np.uint8)


def table_decode(table: Floats, group: int, codes: Bytes, scales: Floats, out: Floats, *, high_first: bool) -> None:
    """table[code] * scale for 4-bit codes, two per byte, with one F32 scale per `group` of codes (a multiple of 16).
    `table`: F32 [16]. `high_first`: the first code is the high nibble."""
    _need(group > 0 and group % 16 == 0 and table.size == 16, f"no groups of {group} codes in a table of {table.size}")
    if (codes.nbytes, out.size) != (scales.size * group // 2, scales.size * group):
        raise UsageError(f"{codes.nbytes} bytes of codes don't fit {scales.size} groups of {group}")
    if native:
        native.table_decode(np.ascontiguousarray(table), group, high_first, codes, scales, out)
    else:
        _bytes(out)[:] = affine.table_decode(table, group, codes, scales, high_first).view(np.uint8)


def affine_encode(
    bits: int, group: int, scale_dtype: DType, src: Floats, codes_too: bool = True
) -> tuple[Bytes, Bytes, Bytes]:
    """Encodes F32 to (codes, scales, biases) with the bytes of MLX's CPU kernel (0.32). Without `codes_too` the codes
    are empty, which is much faster."""
    _need(
        bits in affine.AFFINE_BITS and group in affine.AFFINE_GROUPS,
        f"unsupported: {bits}-bit codes in groups of {group}",
    )
    groups = _whole(src, group * 4)
    if not _is_native("encode", scale_dtype.name):
        return affine.affine_encode(bits, group, scale_dtype.name, src)
    codes = np.empty(groups * group * bits // 8 if codes_too else 0, np.uint8)
    scales, biases = (np.empty(groups * scale_dtype.size, np.uint8) for _ in range(2))
    native.affine_encode(bits, group, scale_dtype.name, src, codes, scales, biases)
    return codes, scales, biases


def scaled_decode(dtype: DType, src: Bytes, scales: Floats, columns: int, width: int, out: Floats) -> None:
    """Stored floats as F32, times one F32 scale per `width` columns of a row; the last run of a row may be shorter."""
    _need(casts(dtype, dtype), f"{dtype} isn't a plain float type")
    _tiles(out, scales, columns, width)
    _sizes(src, dtype.size, out, 4)
    if _is_native("decode", dtype.name):
        native.scaled_decode(dtype.name, columns, width, src, np.ascontiguousarray(scales), out)
    else:
        _bytes(out)[:] = rounding.scaled_decode(dtype.name, src, scales, columns, width).view(np.uint8)


def extremes(src: Floats, columns: int, width: int) -> tuple[Floats, Floats]:
    """The smallest and the largest of each `width` F32 values of a row; NaN if one of them is NaN."""
    count = _whole(src, columns * 4) * -(-columns // width)
    if not native:
        return rounding.extremes(src, columns, width)
    low, high = np.empty(count, np.float32), np.empty(count, np.float32)
    native.extremes(columns, width, src, low, high)
    return low, high


def round_codes(
    rule: str,
    src: Floats,
    scales: Floats,
    columns: int,
    width: int,
    *,
    dtype: DType = F32,
    zeros: Floats | None = None,
    bits: int = 8,
    multiplied: bool = False,
) -> Bytes:
    """Encodes rows of `columns` F32 values to codes by a rule of `rounding.RULES`, with one F32 scale (and zero point)
    per `width` columns: x / scale, or x * scale if `multiplied`, each step rounded to `dtype`. `bits`: for integer
    rules. Codes of fewer than 8 bits form a stream, and `width` must then be a multiple of 16."""
    rounded = rounding.RULES[rule]
    _need(dtype.name in (("F32",) if multiplied else rounded.steps) and (rounded.multiplied or not multiplied),
          f"unknown rule {rule} in steps of {dtype}")  # fmt: skip
    _need(1 <= bits <= 8 and (rounded.bits == 8 or not (width % 16 or columns % width)), "codes don't fill their bytes")
    _tiles(src, scales, columns, width)
    if zeros is not None and zeros.size != scales.size:
        raise UsageError(f"{zeros.size} zero points don't fit {scales.size} scales")
    if not native:
        return rounding.round_codes(
            rule, src, scales, zeros, columns, width, dtype.name, bits, multiplied
        )  # fmt: skip
    out = np.empty(src.size * rounded.bits // 8, np.uint8)
    offsets = np.empty(0, np.float32) if zeros is None else np.ascontiguousarray(zeros)
    native.round_codes(
        rule, dtype.name, multiplied, bits, columns, width, src, np.ascontiguousarray(scales), offsets, out
    )
    return out


def _tiles(values: Floats, scales: Floats, columns: int, width: int) -> None:
    """Checks that each `width` columns of each row have a scale."""
    runs = _whole(values, columns * 4) * -(-columns // width)
    if scales.size != runs:
        raise UsageError(f"{scales.size} scales don't fit {runs} runs of {width} of rows of {columns}")


def add_low_rank(rows: Floats, b: Floats, a: Floats, scale: float = 1) -> None:
    """Adds `scale` times b [rows, rank] @ a [rank, columns] to `rows` [rows, columns]. Summed rank by rank, so that a
    row's bits don't depend on the rows that are added with it, unlike a library's product; in bands that a cache
    holds."""
    step = max(1, _BAND // max(1, a.shape[1]))
    for lo in range(0, len(rows), step):
        band = b[lo : lo + step]
        change = band[:, :1] * a[0]
        term = np.empty_like(change)
        for k in range(1, len(a)):
            change += np.multiply(band[:, k : k + 1], a[k], out=term)
        change *= np.float32(scale)
        rows[lo : lo + step] += change


def unpack_codes(bits: int, src: Bytes) -> Bytes:
    """Unpacks a little-endian bit stream of `bits`-bit codes to one byte per code."""
    eights = _whole(src, bits)
    if not native:
        return affine.unpack_codes(bits, src)
    out = np.empty(eights * 8, np.uint8)
    native.unpack_codes(bits, src, out)
    return out


def unpack_awq(src: Bytes) -> Bytes:
    """Unpacks words of eight 4-bit codes, columns 0 2 4 6 1 3 5 7, to one byte per code in the order of the columns."""
    words = _whole(src, 4)
    if not native:
        return affine.unpack_codes(4, src).reshape(-1, 2, 4).swapaxes(1, 2).reshape(-1)
    out = np.empty(words * 8, np.uint8)
    native.unpack_awq(src, out)
    return out


def awq_by_rows(src: Array, out: Bytes) -> None:
    """Regroups AWQ's words, U32 [8 n, words]: each word of `out`, U32 [n, 8 words], has the codes of eight rows of one
    column."""
    rows, words = src.shape
    if rows % 8 or out.nbytes != src.nbytes:
        raise UsageError(f"words {src.shape} don't become {out.nbytes} bytes")
    if native and src.size:
        native.awq_by_rows(words, src, out)
    elif src.size:
        codes = unpack_awq(src.reshape(-1).view(np.uint8)).reshape(-1, 8, words * 8)
        out[:] = pack_codes(4, np.ascontiguousarray(codes.swapaxes(1, 2)).reshape(-1))


def transpose(src: Array, out: Array) -> None:
    """Writes the matrix `src` to `out` with rows and columns swapped. Both are contiguous along a row, and may be parts
    of wider matrices."""
    rows, columns = src.shape
    if out.shape != (columns, rows) or src.itemsize != out.itemsize:
        raise UsageError(f"a matrix {src.shape} doesn't become {out.shape}")
    if not native or src.itemsize not in (1, 2, 4, 8) or not src.size:
        out[:] = src.T
        return
    native.transpose(src.itemsize, rows, columns, _span(src), src.strides[0], _span(out), out.strides[0])


def _span(matrix: Array) -> Bytes:
    """The bytes from a matrix's first element to its last."""
    size = (matrix.shape[0] - 1) * matrix.strides[0] + matrix.shape[1] * matrix.itemsize
    return np.lib.stride_tricks.as_strided(matrix.view(np.uint8), (size,), (1,))


def pack_codes(bits: int, codes: Bytes) -> Bytes:
    """Packs codes (one byte each, below 2**bits) into a little-endian bit stream; a multiple of eight codes."""
    eights = _whole(codes, 8)
    if not native:
        return affine.pack_codes(bits, codes)
    out = np.empty(eights * bits, np.uint8)
    native.pack_codes(bits, codes, out)
    return out


def split_blocks(dtype: DType, src: Bytes, codes: Bytes, scales: Bytes, biases: Bytes) -> None:
    """Splits blocks into the parts that MLX stores (`regroup.FORMS`); empty arrays are skipped. The values stay the
    same: code * scale + bias, or code * scale for FP4. Parameters beyond their type's range become Inf."""
    form, blocks = _form(dtype), _whole(src, dtype.size)
    parameters = blocks * (form.elements // form.group) * BY_NAME[form.parameter].size
    sizes = (blocks * form.elements // 8 * form.bits, parameters, parameters)
    for part, size in zip((codes, scales, biases), sizes, strict=True):
        if part.nbytes not in (0, size):
            raise UsageError(f"{part.nbytes} bytes are not the {size} that {blocks} blocks of {dtype} become")
    if not blocks:
        return
    if native:
        native.split(dtype.name, src, codes, scales, biases)
        return
    for out, part in zip((codes, scales, biases), regroup.split(dtype.name, src), strict=True):
        if out.nbytes:
            out[:] = part


def join_blocks(dtype: DType, bits: int, group: int, codes: Bytes, scales: Bytes, offsets: Bytes, out: Bytes) -> None:
    """Joins a little-endian bit stream of codes and the parameters of their groups to blocks. `scales`: F16; in the
    stored type for FP4. `offsets`: F16 minima for types with a minimum, else U8 zero points; empty for FP4."""
    form, blocks = _form(dtype), _whole(out, dtype.size)
    simple = form.parameter == "F16"
    fits = (
        1 <= bits <= 8 and group > 0 and group % form.group == 0 if simple else (bits, group) == (form.bits, form.group)
    )
    _need(form.stored is not None and fits, f"no {dtype} of {bits}-bit codes in groups of {group}")
    groups, offset_size = blocks * form.elements // group, 0 if not simple else 2 if form.minimum else 1
    sizes = (groups * group * bits // 8, groups * BY_NAME[form.parameter].size, groups * offset_size)
    actual = (codes.nbytes, scales.nbytes, offsets.nbytes)
    if actual != sizes or groups * group != blocks * form.elements:
        raise UsageError(f"parts of {actual} bytes don't fit {blocks} blocks of {dtype}: {sizes}")
    if native:
        native.join(dtype.name, bits, group, codes, scales, offsets, out)
    else:
        out[:] = regroup.join(dtype.name, bits, group, codes, scales, offsets)


def _form(dtype: DType) -> regroup.RegroupForm:
    _need(dtype.name in regroup.FORMS, f"MLX has no equivalent of {dtype}")
    return regroup.FORMS[dtype.name]


def byteswap(dtype: DType, data: Bytes) -> None:
    """Reverses the byte order of `data` in place: of each word of a plain type, of each scalar in a block."""
    atoms = _whole(data, dtype.size)
    if not dtype.plain:
        blocks = data.reshape(atoms, dtype.size)
        blocks[:] = blocks[:, list(swap_plan(dtype))]
    elif dtype.word == 1:
        return
    elif native:
        native.byteswap(dtype.word, data, data)
    else:
        scalars = data.reshape(-1, dtype.word)
        scalars[:] = scalars[:, ::-1].copy()


def gather_rows(src: Bytes, index: NDArray[np.integer], row_bytes: int, out: Bytes) -> None:
    """Copies the rows of `row_bytes` bytes of `src` to `out` in the order of `index`. UsageError for unknown rows."""
    rows, order = _whole(src, row_bytes), np.ascontiguousarray(index, np.int64)
    if out.nbytes != order.size * row_bytes:
        raise UsageError(f"{order.size} rows of {row_bytes} bytes don't fit {out.nbytes} bytes")
    if order.size and not 0 <= int(order.min()) <= int(order.max()) < rows:
        raise UsageError(f"the index names a row beyond the {rows} there are")
    if native:
        native.gather(src, order, row_bytes, out)
    else:
        out.reshape(-1, row_bytes)[:] = src.reshape(-1, row_bytes)[order]


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise UnsupportedError(message)


def _whole(data: Array, unit: int) -> int:
    """The number of `unit`-byte units in `data`."""
    if data.nbytes % unit:
        raise UsageError(f"{data.nbytes} bytes aren't a multiple of {unit}")
    return data.nbytes // unit


def _sizes(src: Array, unit: int, out: Array, out_unit: int) -> None:
    if out.nbytes != _whole(src, unit) * out_unit:
        raise UsageError(f"{src.nbytes} bytes become {src.nbytes // unit * out_unit}, not {out.nbytes}")


def _bytes(out: Floats) -> Bytes:
    return out.view(np.uint8)
