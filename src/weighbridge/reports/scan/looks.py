"""The dispatch table of a scan: which look is at which kind of file. Kinds are by content (`containers/sniff.py`);
names only add looks, they never take one away."""

from __future__ import annotations

from typing import Final

from weighbridge.reports.scan import pickles, zip_look
from weighbridge.reports.scan.kinds import STORAGE
from weighbridge.reports.scan.model import Look, Row

#: Kinds that hold numbers, text or pictures and nothing that a loader of theirs would run.
DATA: Final = frozenset(
    {"safetensors", "gguf", "ggml", "imatrix-dat", "npy", "sentencepiece", "tiktoken", "git-lfs-pointer", "error-text",
     "text", "json", "xml", "html", "image", "empty", "zeros", "parquet", "arrow", STORAGE}
)  # fmt: skip

#: What looks at a kind that no row is for; it remains one that was not looked into.
OTHERWISE: Final[Look] = pickles.probe

#: Looks at every file and member that is more than a storage, whatever its kind.
EVERY: Final[tuple[Look, ...]] = ()

ZIPS: Final = frozenset({"torch-zip", "torchscript", "torchserve", "npz", "zip", "keras", "coreml", "nemo"})

LOOKS: Final[tuple[Row, ...]] = (
    Row(pickles.look, frozenset({"pickle", "torch-legacy"})),
    Row(zip_look.look, ZIPS),
    Row(OTHERWISE, DATA),
)
