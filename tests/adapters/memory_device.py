"""A device of `adapters/streaming.py` that is memory of the process, copied to by a thread: a GPU's copy engine."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from weighbridge.adapters.streaming import Pending
from weighbridge.io.page_cache import BLOCK


@dataclass
class _Done:
    future: Future[None]

    def wait(self) -> None:
        self.future.result()


class MemoryDevice:
    """Memory of the process, as numpy arrays of U8, copied to by one thread: a GPU's copy engine in small."""

    def __init__(self) -> None:
        self._engine = ThreadPoolExecutor(1)

    def staging(self, size: int) -> memoryview:
        whole = np.empty(size + BLOCK, np.uint8)
        return whole[-whole.ctypes.data % BLOCK :][:size].data

    def copy(self, source: memoryview, target: Any, at: int) -> Pending:
        return _Done(self._engine.submit(self._copied, source, target, at))

    @staticmethod
    def _copied(source: memoryview, target: Any, at: int) -> None:
        target[at : at + len(source)] = np.frombuffer(source, np.uint8)

    def finish(self) -> None:
        self._engine.shutdown(wait=True)
