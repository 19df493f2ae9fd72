"""A source with some bits of its parent flipped on reading, for tensors saved negated or conjugated."""

from __future__ import annotations

from weighbridge.io.source import Source


class FlippedSource(Source):
    """`parent` with every run of `len(mask)` bytes combined with `mask` by exclusive or."""

    def __init__(self, parent: Source, mask: bytes, name: str | None = None) -> None:
        self.parent, self.mask, self.size = parent, mask, parent.size
        self.name = name or parent.name
        self.sequential = parent.sequential

    def _readinto(self, offset: int, out: memoryview) -> int:
        got = self.parent._readinto(offset, out)
        for i, bits in enumerate(self.mask):
            if bits:
                lane = slice((i - offset) % len(self.mask), got, len(self.mask))
                out[lane] = bytes(out[lane]).translate(bytes(b ^ bits for b in range(256)))
        return got
