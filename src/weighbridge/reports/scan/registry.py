"""The dispatch table of a scan: which look is at which kind of file. Kinds are by content (`kinds.py`); names only add
looks, they never take one away."""

from __future__ import annotations

from typing import Final

from weighbridge.io.decompress import CODECS
from weighbridge.reports.scan import configs, headers, programs, texts
from weighbridge.reports.scan import unsupported as unlooked
from weighbridge.reports.scan.archive import polyglots, torch_tar
from weighbridge.reports.scan.archive import streams as archives
from weighbridge.reports.scan.archive import zip_scanner as zip_look
from weighbridge.reports.scan.detect import STORAGE, ZIPS
from weighbridge.reports.scan.model import Look, Row
from weighbridge.reports.scan.pickle import arrays
from weighbridge.reports.scan.pickle import scanner as pickles
from weighbridge.reports.scan.template import scanner as templates

#: Kinds that hold numbers, text or pictures and nothing that a loader of theirs would run.
DATA: Final = frozenset(
    {"safetensors", "gguf", "ggml", "imatrix-dat", "npy", "sentencepiece", "tiktoken", "git-lfs-pointer", "error-text",
     "text", "json", "xml", "html", "image", "empty", "zeros", "parquet", "arrow", STORAGE}
)  # fmt: skip

#: What looks at a kind that no row is for; it remains one that was not looked into.
OTHERWISE: Final[Look] = pickles.probe

#: Looks at every file and member that is more than a storage, whatever its kind; they do not count as looking into it.
EVERY: Final[tuple[Look, ...]] = (polyglots.name, polyglots.appended)

LOOKS: Final[tuple[Row, ...]] = (
    Row(pickles.look, frozenset({"pickle", "torch-legacy"})),
    Row(arrays.opcodes, frozenset({"pickle", "torch-legacy"})),
    Row(zip_look.look, ZIPS),
    Row(programs.look, ZIPS),
    Row(archives.stream, frozenset(CODECS)),
    Row(archives.tar, frozenset({"tar", "tf-hub"})),
    Row(torch_tar.look, frozenset({"torch-tar"})),
    Row(arrays.look, frozenset({"npy"})),
    Row(headers.gguf_look, frozenset({"gguf"})),
    Row(headers.safetensors_look, frozenset({"safetensors"})),
    Row(configs.look, frozenset({"json"}), ("*.json",)),
    Row(templates.look, names=("*.jinja", "*.jinja2", "*.j2")),
    Row(texts.yaml, names=("*.yaml", "*.yml")),
    Row(texts.script, names=("*.py", "*.pyw", "*.sh", "*.bash", "*.bat", "*.ps1")),
    *(Row(unlooked.of(kind), frozenset({kind})) for kind in unlooked.WHY),
    Row(OTHERWISE, DATA),
)
