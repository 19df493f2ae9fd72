"""A compressed stream (gzip, zlib, bzip2, xz, lzma, zstd, lz4) as a source, decompressed while it is read forwards.
Reading before the window starts over. `pieces` decodes a stream once, strictly.

Loaders read such a stream up to its first error, so the source's bytes are those before the damage, and `trouble`
describes the damage. Memory is bounded by the window, regardless of the sizes in the stream. `charge` is called before
bytes are decompressed, once for all of them and again at each restart, and may refuse.
"""

from __future__ import annotations

import bz2
import lzma
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB, SNIFF_XZ, ZSTD_WINDOW
from weighbridge.io.source import Source

_CHUNK: Final = 1 << 16
_WINDOW: Final = 4 * MIB
#: Errors of the decoders: the stream is damaged, or (MemoryError) needs more than its limit.
BROKEN: Final = (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError, MemoryError)


class _Inflate:
    """zlib's decompressor with the interface of the other two."""

    def __init__(self, bits: int) -> None:
        self._inner = zlib.decompressobj(bits)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, most)


class _Library:
    """A decoder of a library, with its errors as ValueErrors."""

    def __init__(self, inner: Any, error: type[Exception]) -> None:
        self._inner, self._error = inner, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def decompress(self, data: bytes, most: int) -> bytes:
        try:
            piece: bytes = self._inner.decompress(data, most)
        except self._error as error:
            raise ValueError(str(error)) from None
        return piece


@cache
def _import(codec: str, *modules: str) -> Any:
    """Imports the first of `modules` that is installed. Raises UnsupportedError if none is."""
    for module in modules:
        try:
            return import_module(module)
        except ImportError:
            continue
    raise UnsupportedError(
        f"unpacking {codec} needs a package that isn't installed", hint="pip install 'weighbridge[archives]'"
    )


def _zstd() -> _Library:
    zstd = _import("zstd", "compression.zstd", "backports.zstd")
    options = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW}
    return _Library(zstd.ZstdDecompressor(options=options), zstd.ZstdError)


def _zstd_head(head: bytes) -> bool:
    """A frame, or a skippable frame, as the seekable format has (RFC 8878, 3.1)."""
    return head[:4] == b"\x28\xb5\x2f\xfd" or (head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5)


def _lz4() -> _Library:
    return _Library(_import("lz4", "lz4.frame").LZ4FrameDecompressor(), RuntimeError)


class StreamCodec(NamedTuple):
    """The first bytes of a stream (two or more suffice), and a function that returns a new decoder."""

    starts: Callable[[bytes], bool]
    decoder: Callable[[], Any]


def _zlib_head(head: bytes) -> bool:
    """Deflate with any window, the two bytes divisible by 31, no preset dictionary (RFC 1950, 2.2)."""
    return len(head) >= 2 and head[0] & 15 == 8 and head[0] >> 4 <= 7 and (head[0] << 8 | head[1]) % 31 == 0


def _lzma_head(head: bytes) -> bool:
    """Properties of the one kind that is written, and a dictionary of whole 64 KiB (xz's lzma-file-format.txt)."""
    return head[:3] == b"\x5d\0\0" and len(head) >= 13 and (head[5:13] == b"\xff" * 8 or head[10:13] == bytes(3))


CODECS: Final[Mapping[str, StreamCodec]] = MappingProxyType(
    {
        "gzip": StreamCodec(lambda h: h[:3] == b"\x1f\x8b\x08", lambda: _Inflate(31)),
        "bz2": StreamCodec(lambda h: h[:3] == b"BZh", bz2.BZ2Decompressor),
        "xz": StreamCodec(lambda h: h[:6] == b"\xfd7zXZ\0", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, SNIFF_XZ)),
        "lzma": StreamCodec(_lzma_head, lambda: lzma.LZMADecompressor(lzma.FORMAT_ALONE, SNIFF_XZ)),
        "zstd": StreamCodec(_zstd_head, _zstd),
        "lz4": StreamCodec(lambda h: h[:4] == b"\x04\x22\x4d\x18", _lz4),
        "zlib": StreamCodec(_zlib_head, lambda: _Inflate(15)),
    }
)
#: Codecs whose streams begin with a magic. The others begin with bytes that many other files begin with too.
WITH_MAGIC: Final = frozenset({"gzip", "bz2", "xz", "zstd", "lz4"})


def decompressed(codec: str, data: bytes, most: int) -> bytes:
    """The bytes of one compressed stream. Raises ValueError if it is damaged, or has more than `most` bytes,
    UnsupportedError if the codec's package is missing."""
    decoder = CODECS[codec].decoder()
    try:
        out: bytes = decoder.decompress(data, most + 1)
    except BROKEN as error:
        raise ValueError(str(error)) from None
    if len(out) > most or not decoder.eof or decoder.unused_data:
        raise ValueError(f"it isn't one stream of at most {most:,} bytes")
    return out


_LITERALS: Final = 18  # bits of a size in the header of a zstd block's literals


def huffman_block(data: bytes, size: int) -> bytes:
    """The `size` bytes of a block of FiniteStateEntropy's Huff0. It is decoded as the literals of a zstd block, which
    have the same form (RFC 8878, 3.1.1.3.1 and 4.2), so both sizes are below 128 KiB. Raises ValueError if it is
    damaged, UnsupportedError if zstd isn't installed."""
    literals = (0b1110 | size << 4 | len(data) << (4 + _LITERALS)).to_bytes(5, "little") + data + b"\0"
    head = b"\x28\xb5\x2f\xfd\x80\x38" + size.to_bytes(4, "little") + (0b101 | len(literals) << 3).to_bytes(3, "little")
    decoder = _zstd()
    out: bytes = decoder.decompress(head + literals, size + 1)
    if len(out) != size or not decoder.eof:
        raise ValueError("the data has another size")
    return out


def codec_of(head: bytes) -> str | None:
    """The name of the codec that a stream with this head is for."""
    return next((name for name, codec in CODECS.items() if codec.starts(head)), None)


def pieces(parent: Source, codec: str) -> Iterator[bytes]:
    """Yields the decompressed bytes of `parent`, which has streams of one codec and perhaps zeros after them. Raises
    FormatError at damage and at other bytes, UnsupportedError if the codec's package is missing."""
    make, taken = CODECS[codec].decoder, 0
    decoder = make()
    while True:
        if decoder.eof:
            at = taken - len(decoder.unused_data or b"")
            head = parent.read(at, min(16, parent.size - at))
            if CODECS[codec].starts(head):
                decoder, taken = make(), at
                continue
            if any(
                parent.read(at, min(_CHUNK, parent.size - at)).strip(b"\0") for at in range(at, parent.size, _CHUNK)
            ):
                raise FormatError(f"bytes follow the {codec} stream", path=parent.name, offset=at)
            return
        packed = parent.read(taken, min(_CHUNK, parent.size - taken)) if decoder.needs_input else b""
        taken += len(packed)
        try:
            if decoder.needs_input and not packed:
                raise EOFError("it ends too early")
            piece = decoder.decompress(packed, _CHUNK)
        except BROKEN as error:
            raise FormatError(
                f"the {codec} stream is damaged: {error}", path=parent.name, offset=taken,
                hint="download or copy it again",
            ) from None  # fmt: skip
        if piece:
            yield piece


class UnpackSource(Source):
    """The decompressed bytes of the `codec` stream at the start of `parent` and of any adjacent streams of the same
    kind. `trouble`: the error that ends them before the parent's end, or None. `trailing`: the parent's offset at which
    other bytes follow; its size if none do. Opening decompresses everything once."""

    sequential = True

    def __init__(
        self, parent: Source, codec: str, name: str | None = None, charge: Callable[[int], None] = lambda count: None
    ) -> None:
        self.parent, self.codec, self.name, self.charge = parent, CODECS[codec], name or parent.name, charge
        self.trouble: str | None = None
        self.trailing = parent.size
        self._lock = threading.Lock()
        self._passes = 0
        self._rewind()
        while not self._over:
            self._step()
        self.size = self._end
        if self.size > len(self._window):  # the front is asked for next
            self._rewind()

    def _rewind(self) -> None:
        self._passes += 1
        self._decoder = self.codec.decoder()
        self._taken = 0  # bytes of the parent given to decoders
        self._window = bytearray()  # the bytes up to `_end`
        self._end = 0
        self._over = False

    def _readinto(self, offset: int, out: memoryview) -> int:
        with self._lock:
            done = 0
            while done < len(out):
                at = offset + done
                if at < self._end - len(self._window):
                    self._rewind()
                while self._end <= at and not self._over:
                    self._step()
                start = at - (self._end - len(self._window))
                piece = self._window[start : start + len(out) - done]
                if not piece:
                    break
                out[done : done + len(piece)] = piece
                done += len(piece)
            return done

    def _step(self) -> None:
        """Unpack a few bytes more, or see that there are none."""
        try:
            if self._decoder.eof:
                self._next_stream()
                return
            packed = self._input() if self._decoder.needs_input else b""
            if self._decoder.needs_input and not packed:
                raise EOFError("it ends too early")
            if self._passes != 2:  # the first one only learns the size
                self.charge(_CHUNK)
            piece = self._decoder.decompress(packed, _CHUNK)
        except BROKEN as error:
            self.trouble, self._over = str(error) or type(error).__name__, True
            return
        if len(self._window) > _WINDOW:
            del self._window[: _WINDOW // 2]
        self._window += piece
        self._end += len(piece)

    def _input(self) -> bytes:
        packed = self.parent.read(self._taken, min(_CHUNK, self.parent.size - self._taken))
        self._taken += len(packed)
        return packed

    def _next_stream(self) -> None:
        at = self._taken - len(self._decoder.unused_data or b"")
        head = self.parent.read(at, min(16, self.parent.size - at))
        if not self.codec.starts(head):
            self.trailing, self._over = at, True
            return
        self._decoder, self._taken = self.codec.decoder(), at
