"""The package's TOML files as data.

Python compiles a module once and keeps the result in `__pycache__`; here it does the same for a table, under the same
rules: the result is used while the file has the recorded size and time, and PYTHONDONTWRITEBYTECODE and
PYTHONPYCACHEPREFIX apply. tomllib is plain Python: parsing the 18 tables of a plan took a sixteenth of its time.
"""

from __future__ import annotations

import os
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, Final

_MODULE: Final = ".py"  # ends the name under which a table is compiled, which is then no other module's


class _TableLoader(SourceFileLoader):
    """Loads NAME.toml as if it were a module NAME.toml.py with the constant TABLE."""

    def get_data(self, path: str) -> bytes:
        return super().get_data(path.removesuffix(_MODULE))

    def path_stats(self, path: str) -> Any:
        return super().path_stats(path.removesuffix(_MODULE))

    def source_to_code(self, data: bytes, path: str, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        import tomllib

        text = f"inf = 1e999\nTABLE = {tomllib.loads(data.decode())!r}"
        return super().source_to_code(text.encode(), path, _optimize=_optimize)


def tables_in(module: str, folder: str) -> list[str]:
    """The tables in a folder next to a module: names without `.toml`, in the order of their files' names."""
    files = sorted(name for name in os.listdir(os.path.join(os.path.dirname(module), folder)) if name.endswith(".toml"))
    return [name.removesuffix(".toml") for name in files]


def read_table(module: str, file: str) -> dict[str, Any]:
    """Returns a new copy of the table in `file`, a path from the folder of the module whose `__file__` is `module`."""
    path = os.path.join(os.path.dirname(module), file)
    table = ModuleType(path)
    _TableLoader(path, path + _MODULE).exec_module(table)
    return table.TABLE  # type: ignore[no-any-return]
