"""Which scanners run on which kind of file. Kinds are by content (`detect.py`); a name only adds scanners.

Every kind has a row, also those that hold data only. The format of a plug-in that declares `pickles` is scanned by the
pickles it names; any other unknown kind is probed, and reported as not scanned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase, translate
from functools import cache, partial
from typing import Final

from weighbridge.containers import PICKLED, find
from weighbridge.containers.format import Format
from weighbridge.containers.formats import POINTERS
from weighbridge.containers.sniff.archive import TARS, ZIPS
from weighbridge.io.decompress import CODECS
from weighbridge.io.source import Source
from weighbridge.reports.scan import configs, headers, onnx, texts, unsupported
from weighbridge.reports.scan.archive import polyglots, streams, torch_tar, zip_scanner
from weighbridge.reports.scan.detect import STORAGE
from weighbridge.reports.scan.hdf5 import scanner as hdf5
from weighbridge.reports.scan.model import Budget, MemberPath, Nested, Piece, Registration, Scanner
from weighbridge.reports.scan.pickle import arrays
from weighbridge.reports.scan.pickle import scanner as pickles
from weighbridge.reports.scan.template import scanner as templates

#: Kinds that hold numbers, text or pictures and nothing that a loader of theirs would run.
DATA: Final = frozenset(
    {"safetensors", "gguf", "ggml", "imatrix-dat", "npy", "sentencepiece", "tiktoken", *POINTERS, "error-text", "text",
     "json", "xml", "html", "image", "empty", "zeros", "parquet", "arrow", STORAGE}
)  # fmt: skip
_BARE: Final = PICKLED - ZIPS - TARS

SCANNERS: Final[tuple[Registration, ...]] = (
    Registration(pickles.scan, _BARE),
    Registration(arrays.opcodes, _BARE),
    Registration(zip_scanner.scan, ZIPS),
    Registration(streams.stream, frozenset(CODECS)),
    Registration(streams.not_unpacked, frozenset({"zstd", "lz4"})),
    Registration(streams.tar, TARS - {"torch-tar"}),
    Registration(torch_tar.scan, frozenset({"torch-tar"})),
    Registration(arrays.scan, frozenset({"npy"})),
    Registration(headers.scan_gguf, frozenset({"gguf"})),
    Registration(hdf5.scan, frozenset({"hdf5"})),
    Registration(onnx.scan, frozenset({"onnx"})),
    Registration(headers.scan_safetensors, frozenset({"safetensors"})),
    Registration(configs.scan, frozenset({"json"}), ("*.json",)),
    Registration(templates.scan, names=("*.jinja", "*.jinja2", "*.j2")),
    Registration(texts.yaml, names=("*.yaml", "*.yml", "mlmodel", "*.dvc")),
    Registration(texts.script, names=("*.py", "*.pyw", "*.sh", "*.bash", "*.bat", "*.ps1")),
    *(Registration(unsupported.of(kind), frozenset({kind})) for kind in unsupported.WHY),
)

#: What may be the block that the user of an HDF5 file has in front of it.
_VAGUE: Final = ("unknown", "text", "zeros")

# Whatever a file is to us, other loaders read it as what they expect: each of these asks whether it is that as well.
_SECOND_READINGS: Final = (
    (_BARE | {"unknown"}, pickles.probe),
    (ZIPS, polyglots.appended),
    (TARS, polyglots.as_tar),
    (frozenset({"hdf5", *_VAGUE}), polyglots.as_hdf5),
)


_OF_STORAGES: Final[Sequence[Scanner]] = (partial(pickles.probe, storage=True),)


def scanners_for(kind: str, place: MemberPath) -> tuple[bool, Sequence[Scanner]]:
    """Whether a file's kind or name is supported; and all scanners that run on it."""
    if kind == STORAGE:
        return True, _OF_STORAGES
    rows = _of_kind(kind)
    name = place.name.lower()
    more = [r.scanner for r in SCANNERS if kind not in r.kinds and any(fnmatchcase(name, n) for n in r.names)] if (
        _named().match(name)) else []  # fmt: skip
    return bool(rows or more or kind in DATA), [polyglots.name, *_second(kind), *rows, *more]


@cache
def _second(kind: str) -> tuple[Scanner, ...]:
    unknown = (partial(pickles.probe, unknown=True),) if kind == "unknown" else ()
    vague = (partial(polyglots.as_hdf5, known=False),) if kind in _VAGUE else ()
    return (*unknown, *vague, *(scanner for kinds, scanner in _SECOND_READINGS if kind not in kinds))


@cache
def _of_kind(kind: str) -> tuple[Scanner, ...]:
    rows = tuple(r.scanner for r in SCANNERS if kind in r.kinds)
    plugged = find(kind) if not rows and kind not in DATA else None
    return (partial(_declared, plugged),) if plugged is not None and plugged.pickles else rows


def is_special(name: str) -> bool:
    """Whether a file of this name is scanned for its name's sake, whatever it holds."""
    return not name.isprintable() or _named().match(name.lower()) is not None


def _declared(form: Format, source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """The pickles that a format declares."""
    for name, inner, _ in form.pickles_in(source):
        budget.spend(members=1)
        yield Nested(inner, place.inside(name), "pickle")


@cache
def _named() -> re.Pattern[str]:
    """Every name that some row has; few files have one."""
    return re.compile("|".join(translate(n) for r in SCANNERS for n in r.names) or r"(?!)")
