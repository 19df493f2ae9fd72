"""The names that the extension's first walk over a pickle lets pass (native/pickles.hpp), from the table of allowed
calls: what checkpoints of tensors consist of. The rows that it can't check whole are left to the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.reports.scan.pickle.allowlist import CALLS, VALUES
from weighbridge.reports.scan.pickle.indices import INDEXED
from weighbridge.reports.scan.pickle.shapes import WIDTHS, Path
from weighbridge.reports.scan.pickle.storages import SMALL

# Words of `shapes.WORDS` -> letters of the walk.
_LETTERS: Final[Mapping[str, str]] = MappingProxyType(
    {"storage": "s", "count": "c", "counts": "t", "bool": "b", "hooks": "h", "tensor": "T"}
)
_MAKERS: Final = "torch._utils"


def _rows() -> Iterator[tuple[str, int, str, Path]]:
    """Kind, width, arguments, name."""
    for path, row in CALLS.items():
        words = [word for word in row.args if not word.endswith("?")]
        if path[0] == _MAKERS and path not in INDEXED and all(word in _LETTERS for word in words):
            yield "C", 0, "".join(_LETTERS[word] for word in words), path
    yield "O", 0, "", ("collections", "OrderedDict")
    for path, width in WIDTHS.items():
        if path[1] not in SMALL:
            yield "S", width, "", path
    yield from (("V", 0, "", path) for path in sorted(VALUES) if path[0] == "torch" and path not in WIDTHS)


def _packed(kind: str, width: int, *texts: str) -> bytes:
    return bytes((ord(kind), width)) + b"".join(bytes((len(text),)) + text.encode() for text in texts)


#: The table, as the walk takes it.
PLAIN_NAMES: Final = b"".join(_packed(kind, width, arguments, *path) for kind, width, arguments, path in _rows())
