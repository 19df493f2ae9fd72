"""Pickles as files: tensors and arrays that were pickled without torch.save or numpy.save (`pickle.dump(state, file)`).

One or more pickles, one after the other. Nothing is unpickled: an abstract machine reads them, and imports and calls
are findings. Arrays are inside the pickle, and long ones are read in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from weighbridge.base import gc_pause
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import PICKLE_READING, PICKLES
from weighbridge.containers.base import Index, Region
from weighbridge.containers.torch.entries import SourceList, index_of, no_storage, pickle_regions
from weighbridge.io.source import Source
from weighbridge.unpickle.libraries import torch
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.values import Dict

NAME: Final = "pickle"


@gc_pause.paused()
def parse(source: Source) -> Index:
    """The tensors in the order in which the pickles name them; with several pickles, the first one's under their
    names, others' under a number too: `1.weight`."""
    files = SourceList(source)
    reading = torch.Reading()
    for i, (machine, value) in enumerate(_run(source)):
        part = torch.read(machine, Dict(0, [i, value]) if i else value)
        for name, tensor in part.tensors.items():
            reading.tensors[name if name not in reading.tensors else f"{name}#{i}"] = tensor
        reading.plain |= part.plain
        reading.remarks += part.remarks
    return index_of(NAME, reading, no_storage, files, source.name, 0)


def _run(source: Source) -> Iterator[tuple[Machine, Any]]:
    """The pickles of the file; FormatError if other bytes follow."""
    at = count = 0
    while at < source.size:
        if count == PICKLES:
            raise UnsupportedError(
                f"{source.name} has more than {PICKLES} pickles", hint="find out which program wrote it"
            )
        machine = Machine(source, at, PICKLE_READING)
        yield machine, machine.run()
        at, count = machine.end, count + 1
    if not count:
        raise FormatError("the file is empty", path=source.name, offset=0)


def pickles(source: Source) -> list[tuple[str, Source, int]]:
    """The pickles of the file as far as they can be read: name, bytes, offset."""
    out: list[tuple[str, Source, int]] = []
    try:
        for i, (m, _) in enumerate(_run(source)):
            out.append((f"pickle {i + 1}", source.window(m.start, m.end - m.start), m.start))
    except (FormatError, UnsupportedError):
        at = out[-1][2] + out[-1][1].size if out else 0
        out.append((f"pickle {len(out) + 1}", source.window(at, source.size - at), at))
    return out


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named: each pickle, and in it the long arrays."""
    out: list[Region] = []
    while (at := out[-1].end if out else 0) < source.size:
        out += pickle_regions(source, at)
    return out
