"""Looks up names that are known to do harm, and their consequences, in `denylist.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.imports.tables import read_table

#: The consequence of reaching any object.
ANY: Final = "it can reach any object of Python by its name, and so run anything"
# Python 2's names; pickles of protocols 0 to 2 are read with these (CPython Lib/_compat_pickle.py).
_RENAMED: Final = MappingProxyType(
    {"__builtin__": "builtins", "copy_reg": "copyreg", "cStringIO": "io", "StringIO": "io", "UserDict": "collections"}
)


_SECTIONS: Final = read_table(__file__, "denylist.toml")
#: (module, name) or (module, "*") -> the consequence. The first row of a name counts.
TABLE: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        (module, name): consequence
        for consequence, modules in reversed(_SECTIONS.items())
        for module, names in modules.items()
        for name in names.split()
    }
)


def consequence(module: str, name: str) -> str | None:
    """The consequence of using a name that is known to do harm, or None. The first component of a dotted name counts as
    well, and so do the packages above a module."""
    module = _RENAMED.get(module, module)
    for candidate in ((module, name), (module, name.partition(".")[0])):
        if candidate in TABLE:
            return TABLE[candidate]
    while module:
        if (module, "*") in TABLE:
            return TABLE[module, "*"]
        module, _, last = module.rpartition(".")
        if (module, last) in TABLE:  # a name of the table that is a module: torch.jit
            return TABLE[module, last]
    return None
