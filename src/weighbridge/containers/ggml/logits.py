"""The log-probabilities that llama-perplexity saves (--kl-divergence-base) and compares with another model's.

    "_logits_", u32 context, i32 vocab, i32 chunks, i32 tokens[chunks * context]
    per chunk, per position from context / 2 to context - 2: f32 scale, f32 least, u16 codes[vocab, padded to even]

log p = scale * code + least. A position's largest value is kept, and those down to 16 below it; the codes of all others
are 0. Tokens are those of the text: BOS doesn't take the place of a chunk's first one.

Source: tools/perplexity/perplexity.cpp of llama.cpp b11549.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.containers.formats import LOGITS_MAGIC
from weighbridge.io.source import Source

_HEAD: Final = struct.Struct("<8sIii")
#: log p - the largest, of the smallest value that is kept.
RANGE: Final = 16.0


class LogitsHeader(NamedTuple):
    """`context`: tokens of a chunk."""

    context: int
    vocab: int
    chunks: int

    @property
    def positions(self) -> int:
        """Of a chunk; the first half only gives context, and the last token has no next one."""
        return self.context - 1 - self.context // 2

    @property
    def row(self) -> int:
        """Bytes of a position."""
        return 8 + 2 * (self.vocab + self.vocab % 2)

    @property
    def tokens_start(self) -> int:
        return _HEAD.size

    @property
    def rows_start(self) -> int:
        return self.tokens_start + 4 * self.context * self.chunks

    @property
    def nbytes(self) -> int:
        return self.rows_start + self.chunks * self.positions * self.row

    def encode(self) -> bytes:
        return _HEAD.pack(LOGITS_MAGIC, *self)


def read_header(source: Source) -> LogitsHeader:
    """The numbers at the beginning of a file. Raises FormatError for another file, or one of the wrong size."""
    if source.head(len(LOGITS_MAGIC)) != LOGITS_MAGIC:
        raise FormatError("not a file of log-probabilities", path=source.name, offset=0, expected=LOGITS_MAGIC.decode())
    _, *numbers = _HEAD.unpack(source.read(0, _HEAD.size))
    header = LogitsHeader(*numbers)
    for name, value, least in zip(header._fields, header, (3, 1, 1), strict=True):
        if value < least:
            raise FormatError("a number is too small", path=source.name, field=name, found=f"{value:,}",
                              expected=f"at least {least}")  # fmt: skip
    if header.nbytes != source.size:
        raise FormatError("the numbers don't belong to the file's size", path=source.name,
                          found=f"{source.size:,} bytes", expected=f"{header.nbytes:,}")  # fmt: skip
    return header
