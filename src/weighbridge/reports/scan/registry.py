"""Which scanners run on which kind of file. Kinds are by content (`detect.py`); a name only adds scanners.

Every kind has a row, including those that hold only data. A plug-in format that declares `pickles` is scanned by the
pickles it names; any other unknown kind is probed, and reported as not scanned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase, translate
from functools import cache, partial
from typing import Final, NamedTuple

from weighbridge.containers import PICKLED, find
from weighbridge.containers.formats import DISTRIBUTED_DATA, ENCLOSING, ORBAX_FORMAT, PACKED, POINTERS
from weighbridge.containers.sniff.archive import TARS, ZIPS
from weighbridge.io.decompress import CODECS
from weighbridge.reports.scan import hdf5, headers, onnx, unsupported
from weighbridge.reports.scan.archive import distributed, polyglots, streams, torch_tar, zip_scanner
from weighbridge.reports.scan.detect import STORAGE
from weighbridge.reports.scan.model import MemberPath, Part, Piece, Scanner
from weighbridge.reports.scan.pickle import arrays, probe
from weighbridge.reports.scan.pickle import scanner as pickles
from weighbridge.reports.scan.template import scanner as templates
from weighbridge.reports.scan.text import scanner as texts

#: Kinds that hold numbers, text or pictures, and nothing that their loaders would run.
DATA: Final = frozenset(
    {"safetensors", "gguf", "ggml", "imatrix-dat", "llama-logits", "npy", "sentencepiece", "tiktoken", *POINTERS,
     "tf-checkpoint", "flax", "ctranslate2", "llama2c", "openvino", "executorch-data", "coreml-weights", "mindspore",
     "error-text", "text", "json", "xml", "html", "image", "empty", "zeros", "parquet", "arrow", ORBAX_FORMAT,
     STORAGE}
)  # fmt: skip
#: Texts of any kind, which a loader may read as YAML.
_TEXTS: Final = frozenset(
    {"text", "error-text", "xml", "openvino", "html", "tiktoken", "modelfile", "imatrix-dat", *POINTERS}
)
_BARE: Final = PICKLED - ZIPS - TARS
_DCP_DATA: Final = frozenset({DISTRIBUTED_DATA})


class Registration(NamedTuple):
    """`scanner` runs on files whose kind is in `kinds`, or whose lower-case name matches one of `names` (as in
    `fnmatch`)."""

    scanner: Scanner
    kinds: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()


SCANNERS: Final[tuple[Registration, ...]] = (
    Registration(pickles.scan, _BARE),
    Registration(zip_scanner.scan, ZIPS),
    Registration(distributed.scan, _DCP_DATA),
    Registration(distributed.check_items, names=("*.distcp",)),
    Registration(streams.stream, frozenset(CODECS)),
    Registration(streams.seven_zip, frozenset({"7z"})),
    Registration(streams.tar, TARS - {"torch-tar"}),
    Registration(torch_tar.scan, frozenset({"torch-tar"})),
    Registration(arrays.scan, frozenset({"npy"})),
    Registration(headers.scan_gguf, frozenset({"gguf"})),
    Registration(hdf5.scan, frozenset({"hdf5"})),
    Registration(onnx.scan, frozenset({"onnx"})),
    Registration(headers.scan_safetensors, frozenset({"safetensors", PACKED})),
    Registration(streams.enclosed, ENCLOSING),
    Registration(texts.json, frozenset({"json"}), ("*.json",)),
    Registration(texts.scan, _TEXTS, texts.YAML_NAMES),
    Registration(templates.scan, names=("*.jinja", "*.jinja2", "*.j2", "chat_template", "chat_template.txt")),
    Registration(texts.script, names=texts.SCRIPT_NAMES),
    *(Registration(partial(unsupported.scan, kind), frozenset({kind})) for kind in unsupported.WHY),
)

#: Kinds that may be the user block in front of an HDF5 file.
_VAGUE: Final = ("unknown", "text", "zeros")

# Loaders read a file as the format that they expect: each of these checks whether the file is that format as well.
_SECOND_READINGS: Final = (
    (_BARE | {"unknown"}, probe.probe),
    (ZIPS | _DCP_DATA, polyglots.appended),
    (TARS, polyglots.as_tar),
    (frozenset({"hdf5", *_VAGUE}), polyglots.as_hdf5),
)


def scanners_for(kind: str, place: MemberPath) -> tuple[bool, Sequence[Scanner]]:
    """Whether a file's kind or name is supported, and all scanners that run on it."""
    if kind == STORAGE:
        return True, (partial(probe.probe, storage=True),)
    scanners, name = _scanners_of_kind(kind), place.name.lower()
    if _special_names().match(name):
        by_name = [r.scanner for r in SCANNERS if kind not in r.kinds and any(fnmatchcase(name, n) for n in r.names)]
    else:
        by_name = []
    return bool(scanners or by_name or kind in DATA), [polyglots.name, *_second(kind), *scanners, *by_name]


@cache
def _second(kind: str) -> tuple[Scanner, ...]:
    unknown = (partial(probe.probe, unknown=True),) if kind == "unknown" else ()
    vague = (partial(polyglots.as_hdf5, has_format=False),) if kind in _VAGUE else ()
    return (*unknown, *vague, *(scanner for kinds, scanner in _SECOND_READINGS if kind not in kinds))


@cache
def _scanners_of_kind(kind: str) -> tuple[Scanner, ...]:
    scanners = tuple(r.scanner for r in SCANNERS if kind in r.kinds)
    plugin = find(kind) if not scanners and kind not in DATA else None
    if plugin is None or not plugin.pickles:
        return scanners

    def scan_plugin(part: Part) -> Iterator[Piece]:
        for name, inner, _ in plugin.pickles_in(part.source):
            part.budget.spend(members=1)
            yield part.inside(name, inner, "pickle")

    return (scan_plugin,)


def is_special(name: str) -> bool:
    """Whether a file with this name is scanned because of its name, whatever it holds."""
    return not name.isprintable() or _special_names().match(name.lower()) is not None


@cache
def _special_names() -> re.Pattern[str]:
    """Every name in the registry; few files have one."""
    return re.compile("|".join(translate(n) for r in SCANNERS for n in r.names) or r"(?!)")
