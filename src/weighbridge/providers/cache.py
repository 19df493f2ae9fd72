"""What was read, kept up to a bound: the least recently used goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import field
from typing import Any

from weighbridge.base.records import dataclass


@dataclass(frozen=True, slots=True)
class CacheStats:
    """`bytes` kept now of at most `limit` (None: no bound), in `entries`; requests that were served from it (`hits`)
    and not (`misses`), and entries that had to go (`evictions`)."""

    bytes: int
    limit: int | None
    entries: int
    hits: int
    misses: int
    evictions: int


@dataclass
class ByteCache:
    """Values by key. A value larger than the bound is handed out and not kept. Safe to share between threads; two
    threads that ask for the same value at once may both make it."""

    limit: int | None = None
    _kept: OrderedDict[Hashable, tuple[Any, int]] = field(default_factory=OrderedDict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _bytes: int = field(default=0, init=False)
    _hits: int = field(default=0, init=False)
    _misses: int = field(default=0, init=False)
    _evictions: int = field(default=0, init=False)

    def get(self, key: Hashable, make: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        """Returns the value of `key`, calling `make` if it isn't cached. `size`: its bytes."""
        with self._lock:
            if key in self._kept:
                self._hits += 1
                self._kept.move_to_end(key)
                return self._kept[key][0]
            self._misses += 1
        value = make()
        self._keep(key, value, size(value))
        return value

    def _keep(self, key: Hashable, value: Any, size: int) -> None:
        with self._lock:
            if key in self._kept or (self.limit is not None and size > self.limit):
                return
            self._kept[key] = value, size
            self._bytes += size
            while self.limit is not None and self._bytes > self.limit:
                self._bytes -= self._kept.popitem(last=False)[1][1]
                self._evictions += 1

    def clear(self) -> None:
        """Drop everything. Arrays that are in use elsewhere stay valid."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    @property
    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(
                self._bytes, self.limit, len(self._kept), self._hits, self._misses, self._evictions
            )  # fmt: skip
