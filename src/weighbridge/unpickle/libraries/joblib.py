"""Pickles of joblib: the numbers of an array are inside the pickle, right after the BUILD of the wrapper that describes
the array. joblib's unpickler reads them there and continues; any other derails.

    NumpyArrayWrapper {subclass, shape, order, dtype, allow_mmap, numpy_array_alignment_bytes} BUILD
        [1 byte: n, n bytes of 0xff]  with an alignment (joblib 1.2)
        the array's bytes, or another pickle for an array of objects

A pickle without such a wrapper is read like any other. Reference: joblib/numpy_pickle.py
(`NumpyArrayWrapper.read_array`).
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

from weighbridge.base.limits import DIMS
from weighbridge.unpickle import machine
from weighbridge.unpickle.values import Dict, Global, Object, PickleFault

WRAPPER: Final = ("joblib.numpy_pickle", "NumpyArrayWrapper")
_CODE: Final = re.compile(r"([biufcSUVa])(\d{1,9})\Z|([mMO])8?\Z")
_SIZED: Final = ("S", "U", "V", "a")
_REFCOUNTED: Final = 1  # the flag of a dtype that contains objects (numpy's NPY_ITEM_REFCOUNT)


class JoblibMachine(machine.Machine):
    """A pickle machine that skips arrays like joblib does."""

    #: The offset of the first array, which other unpicklers would read as opcodes; None without arrays.
    array: int | None = None
    #: Whether there are arrays of objects, each a pickle with its own memo.
    objects = False
    _wrapper: Object | None = None

    def note(self, kind: str, subject: Any) -> None:
        super().note(kind, subject)
        if kind == "build" and isinstance(subject, Object) and class_path(subject) == WRAPPER:
            self._wrapper = subject
            self._stop = 0  # the burst ends here

    def _ready(self) -> None:
        wrapper, self._wrapper = self._wrapper, None
        if wrapper is not None:
            if self._frame_end is not None and self.end != self._frame_end:
                self.fail("an array inside a frame", code=PickleFault.FRAME)
            self._frame_end = None
            self._skip_array(wrapper)
        super()._ready()

    def _skip_array(self, wrapper: Object) -> None:
        """Continues after the array."""
        # All states count, each a dict or a pair of dicts; the last value of a name wins.
        parts = [p for state in wrapper.states for p in (state if isinstance(state, tuple) else (state,))]
        state = {k: v for part in parts if isinstance(part, Dict) for k, v in part.pairs if isinstance(k, str)}
        count, (size, objects) = _count(state.get("shape")), _item(state.get("dtype"))
        at = self.end
        self.array = at if self.array is None else self.array
        if count < 0 or size < 0:
            self.fail("a joblib array of unknown shape or type")
        if objects:
            at = self._run_inner(at)
        else:
            padded = state.get("numpy_array_alignment_bytes") is not None
            at += 1 + self.source.read(at, 1)[0] if padded else 0
            self.source.check(at, count * size)
            at += count * size
        self._data, self.base, self._here, self._next = b"", at, 0, 0

    def _run_inner(self, at: int) -> int:
        """Runs the pickle of an array of objects and returns its end. joblib reads it with pickle.load, so arrays in it
        are numpy's own."""
        self.objects = True
        inner = machine.Machine(self.source, at, self.budget - self.spent, strict=self.strict, watch=self.watch)
        try:
            inner.run()
        finally:
            self._log += inner._log
            self.spent += inner.spent
            self.steps += inner.steps
        return inner.end


def class_path(value: Object) -> tuple[str, str] | None:
    """The class of an object, including objects that copyreg creates."""
    callee = value.callee
    if isinstance(callee, Global) and callee.name == "_reconstructor" and isinstance(value.args, tuple) and value.args:
        callee = value.args[0]
    return callee.path if isinstance(callee, Global) else None


def _count(shape: Any) -> int:
    """Numbers in an array of this shape; -1 if it isn't a shape."""
    fits = isinstance(shape, tuple) and len(shape) <= DIMS and all(type(n) is int and 0 <= n < 1 << 62 for n in shape)
    count = math.prod(shape) if fits else -1
    return count if count < 1 << 62 else -1  # numpy's product wraps round


def _item(dtype: Any) -> tuple[int, bool]:
    """The size of a number of a `numpy.dtype` (-1: unknown), and whether it contains objects."""
    args = dtype.args if isinstance(dtype, Object) and class_path(dtype) == ("numpy", "dtype") else None
    match = _CODE.match(args[0]) if isinstance(args, tuple) and args and isinstance(args[0], str) else None
    if match is None:
        return -1, False
    kind, digits, wide = match.groups()
    size = 8 if wide else int(digits) * (4 if kind == "U" else 1)
    state = dtype.states[-1] if dtype.states else None
    declared, flags = (state[5], state[7]) if isinstance(state, tuple) and len(state) > 7 else (-1, 0)
    if len(dtype.states) > 1 or (declared not in (-1, size) if kind in _SIZED else declared != -1):
        return -1, False  # numpy believes the state about the size
    return size, wide == "O" or (isinstance(flags, int) and bool(flags & _REFCOUNTED))
