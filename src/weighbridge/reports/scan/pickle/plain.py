"""The names that the extension's first walk over a pickle accepts (native/pickles.hpp), from the table of allowed
calls: those in ordinary checkpoints of tensors. Rows that it can't check completely are left to the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.reports.scan.pickle.allowlist import CALLS, VALUES
from weighbridge.reports.scan.pickle.indices import INDEXED
from weighbridge.reports.scan.pickle.shapes import Path
from weighbridge.unpickle.libraries.torch_types import ALL_WIDTHS, SMALL_STORAGES

# Words of `shapes.WORDS` -> letters of the walk.
_LETTERS: Final[Mapping[str, str]] = MappingProxyType(
    {"storage": "s", "count": "c", "counts": "t", "bool": "b", "hooks": "h", "tensor": "T"}
)


def _rows() -> Iterator[tuple[str, int, str, Path]]:
    """Kind, width, arguments, name."""
    for path, row in CALLS.items():
        arguments = [word for word in row.args if not word.endswith("?")]
        if path[0] == "torch._utils" and path not in INDEXED and all(word in _LETTERS for word in arguments):
            yield "C", 0, "".join(_LETTERS[word] for word in arguments), path
    yield "O", 0, "", ("collections", "OrderedDict")
    for path, width in ALL_WIDTHS.items():
        if path not in SMALL_STORAGES:
            yield "S", width, "", path
    yield from (("V", 0, "", path) for path in sorted(VALUES) if path[0] == "torch" and path not in ALL_WIDTHS)


#: The table in the walk's format: rows of kind, width, and three texts, each after its length.
PLAIN_NAMES: Final = b"".join(
    bytes((ord(kind), width)) + b"".join(bytes((len(text),)) + text.encode() for text in (arguments, *path))
    for kind, width, arguments, path in _rows()
)
