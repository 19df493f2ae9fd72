"""The page inside a browser that runs this package itself (Pyodide): it reads ranges of files on the local disk, and
sends nothing anywhere. `release/browser` is the document around it; its worker calls these functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from weighbridge.base.errors import UsageError, WeighbridgeError, error_words
from weighbridge.page.data import PageData
from weighbridge.page.export import framed

#: Packages that browsers' Python lacks; the values of tensors need them.
_MISSING: Final = frozenset({"numpy", "ml_dtypes"})
_INSTALLED: Final = "pip install weighbridge, and wb view FILE"


class Desk:
    """Opens models dropped on the page, one at a time, and answers the page's questions about them, as JSON."""

    def __init__(self) -> None:
        self._data: PageData | None = None

    def open(self, root: str) -> str:
        """Opens the folder `root`, or the only thing inside it. Returns the page as `document`, or the error. The page
        sends its questions as messages to the window around its frame."""
        if self._data is not None:
            self._data.close()
            self._data = None
        path = Path(root)
        while path.is_dir() and len(inside := list(path.iterdir())) == 1:
            path = inside[0]
        try:
            self._data = PageData(path)
            self._data.read_here = False  # browsers hide the memory of their machine
            return json.dumps({"document": framed(self._data)})
        except (WeighbridgeError, OSError, MemoryError) as error:
            return json.dumps(error_words(error))

    def answer(self, question: str) -> str:
        """Returns the `answer` to a question of the page, or the error."""
        name, _, query = question.partition("?")
        try:
            if self._data is None:
                raise UsageError("no model is open")
            encoded = self._data.answer(name, dict(parse_qsl(query, keep_blank_values=True)))
            return json.dumps({"answer": json.loads(encoded)})
        except ModuleNotFoundError as error:
            if error.name not in _MISSING:
                raise
            message = f"this needs the values of tensors, and a browser's Python has no {error.name} to read them"
            return json.dumps({"error": message, "hint": _INSTALLED})
        except (WeighbridgeError, OSError, MemoryError) as error:
            return json.dumps(error_words(error))
