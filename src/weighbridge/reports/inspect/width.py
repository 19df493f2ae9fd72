"""Float tensors that seem to be wider than their values: a sample of a model's largest ones, without numpy."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.limits import MIB
from weighbridge.base.words import plural
from weighbridge.containers.base import Entry, Finding, Index, Severity

#: The rule of the note.
WIDER: Final = "dtype/wider"
#: Tensors that are sampled, bytes of a sample, and places in each tensor.
_TENSORS, _SAMPLE, _PLACES = 8, 4096, 3


def _is_bf16(data: bytes) -> bool:
    return not any(data[0::4]) and not any(data[1::4])


def _is_f16(data: bytes) -> bool:
    if any(data[0::4]):
        return False
    try:
        return all(
            struct.unpack("<e", struct.pack("<e", value))[0] == value for (value,) in struct.iter_unpack("<f", data)
        )
    except OverflowError:
        return False


_TESTS: Final[Mapping[str, Callable[[bytes], bool]]] = MappingProxyType({"BF16": _is_bf16, "F16": _is_f16})


def wider(index: Index) -> Iterator[Finding]:
    """Yields a note if samples of the F32 matrices of a local file are all of a 16-bit type."""
    if index.byte_order != "<":
        return
    near = {n for n, file in enumerate(index.files) if not (file.remote or file.sequential)}
    large = [e for e in index if e.dtype is F32 and e.nbytes >= MIB and e.strides is None and e.file in near]
    chosen = sorted(large, key=lambda e: -e.nbytes)[:_TENSORS]
    with suppress(WeighbridgeError):  # the file is too short: other notes report it
        samples = [data for e in chosen if any(data := _sample(index, e))]
        fitting = next((name for name, test in _TESTS.items() if samples and all(map(test, samples))), None)
        if fitting is not None:
            message = (
                f"F32 values that {fitting} holds exactly, in samples of {plural(len(samples), 'tensor')}: "
                "wb convert --dtype smallest-exact checks all of them"
            )
            yield Finding(WIDER, Severity.INFO, message, index.files[chosen[0].file].name)


def _sample(index: Index, entry: Entry) -> bytes:
    """Some bytes from the beginning, the middle and the end of a tensor."""
    steps = (n * (entry.nbytes - _SAMPLE) // (_PLACES - 1) // 4 * 4 for n in range(_PLACES))
    return b"".join(index.files[entry.file].read(entry.offset + step, _SAMPLE) for step in steps)
