"""The dispatch table of a scan: which look is at which kind of file. Kinds are by content (`kinds.py`); names only add
looks, they never take one away."""

from __future__ import annotations

from typing import Final

from weighbridge.io.decompress import CODECS
from weighbridge.reports.scan import configs, headers, programs, texts, unsupported
from weighbridge.reports.scan.archive import polyglots, streams, torch_tar, zip_scanner
from weighbridge.reports.scan.detect import STORAGE, ZIPS
from weighbridge.reports.scan.model import Registration, Scanner
from weighbridge.reports.scan.pickle import arrays
from weighbridge.reports.scan.pickle import scanner as pickles
from weighbridge.reports.scan.template import scanner as templates

#: Kinds that hold numbers, text or pictures and nothing that a loader of theirs would run.
DATA: Final = frozenset(
    {"safetensors", "gguf", "ggml", "imatrix-dat", "npy", "sentencepiece", "tiktoken", "git-lfs-pointer", "error-text",
     "text", "json", "xml", "html", "image", "empty", "zeros", "parquet", "arrow", STORAGE}
)  # fmt: skip

#: What looks at a kind that no row is for; it remains one that was not looked into.
OTHERWISE: Final[Scanner] = pickles.probe

#: Looks at every file and member that is more than a storage, whatever its kind; they do not count as looking into it.
EVERY: Final[tuple[Scanner, ...]] = (polyglots.name, polyglots.appended)

SCANNERS: Final[tuple[Registration, ...]] = (
    Registration(pickles.scan, frozenset({"pickle", "torch-legacy"})),
    Registration(arrays.opcodes, frozenset({"pickle", "torch-legacy"})),
    Registration(zip_scanner.scan, ZIPS),
    Registration(programs.scan, ZIPS),
    Registration(streams.stream, frozenset(CODECS)),
    Registration(streams.tar, frozenset({"tar", "tf-hub"})),
    Registration(torch_tar.scan, frozenset({"torch-tar"})),
    Registration(arrays.scan, frozenset({"npy"})),
    Registration(headers.scan_gguf, frozenset({"gguf"})),
    Registration(headers.scan_safetensors, frozenset({"safetensors"})),
    Registration(configs.scan, frozenset({"json"}), ("*.json",)),
    Registration(templates.scan, names=("*.jinja", "*.jinja2", "*.j2")),
    Registration(texts.yaml, names=("*.yaml", "*.yml")),
    Registration(texts.script, names=("*.py", "*.pyw", "*.sh", "*.bash", "*.bat", "*.ps1")),
    *(Registration(unsupported.of(kind), frozenset({kind})) for kind in unsupported.WHY),
    Registration(OTHERWISE, DATA),
)
