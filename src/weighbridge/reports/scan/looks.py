"""The dispatch table of a scan: which look is at which kind of file. Kinds are by content (`containers/sniff.py`);
names only add looks, they never take one away."""

from __future__ import annotations

from typing import Final

from weighbridge.reports.scan.model import Row

#: Kinds that hold numbers, text or pictures and nothing that a loader of theirs would run.
DATA: Final = frozenset(
    {"safetensors", "gguf", "ggml", "imatrix-dat", "npy", "sentencepiece", "tiktoken", "git-lfs-pointer", "error-text",
     "text", "json", "xml", "html", "image", "empty", "zeros", "parquet", "arrow"}
)  # fmt: skip

LOOKS: Final[tuple[Row, ...]] = ()
