"""Log-probabilities in the file of llama-perplexity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.closeable import Closing
from weighbridge.base.errors import FormatError
from weighbridge.containers.ggml.logits import RANGE, LogitsHeader, read_header
from weighbridge.forward.texts import Ids
from weighbridge.io.location import open_source
from weighbridge.io.sink.target import Sink

Doubles = NDArray[np.float64]


class SavedLogits(Closing):
    """An open file. `tokens` [chunks, context]. Raises FormatError for a token that isn't in the vocabulary."""

    def __init__(self, path: Path | str) -> None:
        self._source = open_source(path)
        try:
            self.header = header = read_header(self._source)
            stored = self._source.read(header.tokens_start, header.rows_start - header.tokens_start)
            self.tokens: Ids = np.frombuffer(stored, "<i4").astype(np.int64).reshape(header.chunks, header.context)
            if not ((self.tokens >= 0) & (self.tokens < header.vocab)).all():
                raise FormatError("a token isn't in the vocabulary", path=self._source.name, field="tokens")
        except BaseException:
            self._source.close()
            raise

    def chunk(self, number: int) -> Doubles:
        """The log-probabilities of a chunk, [positions, vocab]. Raises FormatError for one that isn't finite."""
        header = self.header
        size = header.positions * header.row
        data = self._source.read(header.rows_start + number * size, size)
        rows = np.frombuffer(data, np.uint8).reshape(header.positions, header.row)
        scale, least = rows[:, :8].copy().view("<f4").T[:, :, None].astype(np.float64)
        if not (np.isfinite(scale) & np.isfinite(least)).all():
            raise FormatError("a scale isn't finite", path=self._source.name, field=f"chunk {number}")
        codes = rows[:, 8:].copy().view("<u2")[:, : header.vocab]
        out: Doubles = codes * scale + least
        return out

    def close(self) -> None:
        """Closes the file."""
        self._source.close()


class LogitsWriter:
    """Writes a file, chunk by chunk, into a sink."""

    def __init__(self, sink: Sink, tokens: Ids, vocab: int) -> None:
        self.header = header = LogitsHeader(tokens.shape[1], vocab, len(tokens))
        self._file, self._end = sink.create("", header.nbytes), header.rows_start
        self._file.write(0, header.encode() + tokens.astype("<i4").tobytes())

    def add(self, log_probabilities: Doubles) -> None:
        """The next chunk, [positions, vocab]."""
        rows = encode(log_probabilities, self.header.row)
        self._file.write(self._end, rows.tobytes())
        self._end += rows.size


def encode(values: Doubles, width: int) -> NDArray[np.uint8]:
    """Rows of log-probabilities [positions, vocab] as bytes, u8[positions, width]."""
    most = values.max(-1, keepdims=True)
    least = np.maximum(values.min(-1, keepdims=True), most - RANGE).astype(np.float32)
    scale = ((most - least) / 65535).astype(np.float32)
    steps = np.divide(values - least, scale, out=np.zeros_like(values), where=scale > 0)
    out = np.zeros((len(values), width), np.uint8)
    out[:, :8] = np.concatenate([scale, least], -1).astype("<f4").view(np.uint8)
    codes = np.rint(np.clip(steps, 0, 65535)).astype("<u2")
    out[:, 8 : 8 + 2 * codes.shape[1]] = codes.view(np.uint8)
    return out
