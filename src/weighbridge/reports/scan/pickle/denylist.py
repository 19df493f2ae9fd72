"""Names that are known to do harm, and what they do, in words: `denylist.toml`, looked up."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Final

#: What can reach any object can do anything.
ANY: Final = "it can reach any object of Python by its name, and so run anything"
# What Python 2 called these; pickles of protocols 0 to 2 are read with these names (CPython Lib/_compat_pickle.py).
_RENAMED: Final = MappingProxyType(
    {"__builtin__": "builtins", "copy_reg": "copyreg", "cStringIO": "io", "StringIO": "io", "UserDict": "collections"}
)


def _rows() -> Iterator[tuple[tuple[str, str], str]]:
    text = files(__package__).joinpath("denylist.toml").read_text("utf-8")
    for words, modules in tomllib.loads(text).items():
        for module, names in modules.items():
            for name in names.split():
                yield (module, name), words


def _first(rows: Iterator[tuple[tuple[str, str], str]]) -> Mapping[tuple[str, str], str]:
    return MappingProxyType(dict(reversed(list(rows))))


#: (module, name) or (module, "*") -> what follows.
TABLE: Final = _first(_rows())


def consequence(module: str, name: str) -> str | None:
    """What a name would do, where it is known to do harm; None of any other. Of a name with dots its first part counts
    as well, of a module those above it."""
    module = _RENAMED.get(module, module)
    for tried in ((module, name), (module, name.partition(".")[0])):
        if tried in TABLE:
            return TABLE[tried]
    while module:
        if (module, "*") in TABLE:
            return TABLE[module, "*"]
        module, _, last = module.rpartition(".")
        if (module, last) in TABLE:  # a name of the table that is a module: torch.jit
            return TABLE[module, last]
    return None
