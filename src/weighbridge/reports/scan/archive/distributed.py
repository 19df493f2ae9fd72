"""Scans the data files of distributed checkpoints: files of torch.save, one after the other. `.metadata`, which is next
to them, states the bytes that torch loads as a file of their own; these have to be such files, and no part of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.limits import PICKLE_MEMORY
from weighbridge.containers.archive.zip_peek import consecutive
from weighbridge.containers.torch import dcp
from weighbridge.io.location import open_source
from weighbridge.reports.scan.archive import zip_scanner
from weighbridge.reports.scan.model import Part, Piece

_ODD: Final = 64  # items that aren't files of their own, and are scanned as well


def scan(part: Part) -> Iterator[Piece]:
    """Scans each file in a data file. By any other name, several archives in one file are a trick."""
    spans = consecutive(part.source) if part.place.name.endswith(dcp.SUFFIX) else []
    if not spans:
        yield from zip_scanner.scan(part)
    for number, (start, end) in enumerate(spans):
        part.budget.spend(members=1)
        yield part.inside(f"item {number}", part.source.window(start, end - start))


def check_items(part: Part) -> Iterator[Piece]:
    """Finds items of `.metadata` that begin or end inside a file of torch.save."""
    if part.place.members:
        return
    path = resolve_path(part.place.path).parent / dcp.METADATA
    try:
        stat = path.stat()
        items = _listed(str(path), stat.st_size, stat.st_mtime).get(part.place.name, ())
    except OSError:  # no list next to it
        return
    except WeighbridgeError as error:
        yield part.skipped(f"the items of {dcp.METADATA}", error.message)
        return
    spans = set(consecutive(part.source)) if items else set()
    odd = [item for item in dict.fromkeys(items) if (item.offset, item.offset + item.length) not in spans]
    for item in odd[:_ODD]:
        end = min(item.offset + item.length, part.source.size)
        message = f"torch loads bytes {item.offset} to {item.offset + item.length}, which aren't a file of torch.save"
        yield part.finding("dcp/item", message, at=item.offset)
        if item.offset < end:
            inner = part.source.window(item.offset, end - item.offset)
            yield part.inside(f"item at {item.offset}", inner)
    if len(odd) > _ODD:
        yield part.skipped("items", f"more than {_ODD} begin or end inside a file of torch.save")


@lru_cache(maxsize=1)
def _listed(path: str, size: int, time: float) -> Mapping[str, tuple[dcp.DcpItem, ...]]:
    """The items in each data file by the list of a folder; kept for the folder's next file."""
    with open_source(resolve_path(path)) as source:
        metadata = dcp.inspect(source, PICKLE_MEMORY)
    names = metadata.by_file.items()
    return {file: tuple(x if isinstance(x, dcp.DcpItem) else x.item for _, x in stored) for file, stored in names}
