"""`Format`: everything about one file format. A built-in format is a row of `formats.py`; a plug-in registers one
as an entry point of the group `weighbridge.formats`:

    FORMAT = Format("tnsr", "Toy tensors", (".tnsr",), magics=(Magic(0, b"TNSR"),), module=__name__, target="tnsr")

`module` names the module that has the format's functions. It is imported when one of them is first called:

    parse(source)              -> Index              the headers; FormatError if they can't be read
    regions(source)            -> [Region]           every byte of the file, named: no gap, no overlap
    layout(tensors, metadata)  -> Layout             if `target` is set: header bytes, offsets of the tensors
    examine(source)            -> Index, [Finding]   optional: the readable part of a damaged file, and its problems
    pickles(source)            -> [(name, source, start)]  optional: the pickles inside (if `pickles` is set)
    recognise(probe)           -> Hit | None         optional, plug-ins only: if `magics` don't suffice
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol, cast

from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Finding, Index, Layout, Region
from weighbridge.containers.sniff.probe import Hit, Probe
from weighbridge.io.source import Source


class Magic(NamedTuple):
    """A file with `sign` at byte `offset` has the format. `words`: the evidence to report."""

    offset: int
    sign: bytes
    words: str = ""
    variant: str = ""


class Promises(NamedTuple):
    """Guarantees for every written file.

    alignment   each tensor's data begins at a multiple of this many bytes
    ordered     the data has the order in which the tensors are given to `layout`
    sequential  front to back in one pass: nothing written depends on the tensors' values"""

    alignment: int = 1
    ordered: bool = True
    sequential: bool = True


_NOTHING_SPECIAL: Final = Promises()


class Functions(Protocol):
    """The functions that the module of a format has."""

    def parse(self, source: Source) -> Index: ...

    def regions(self, source: Source) -> Iterable[Region]: ...

    def layout(self, tensors: Sequence[tuple[str, Spec]], metadata: Mapping[str, Any]) -> Layout: ...


@dataclass(frozen=True)
class Format:
    """One file format.

    name       the stable id, as in reports and in `Index.format`
    title      its name in messages
    suffixes   the format's own suffixes, the usual one first
    met_as     other suffixes under which its files aren't misnamed
    magics     byte strings at fixed offsets that identify the format
    module     the module that reads it (see above); None if it is only recognised
    target     its name for `--to`; empty if it can't be written
    aliases    other names for `target`
    rewritten_as  the target of another format that is written in place of this one
    hub_name   the file name of unsharded weights in a model folder
    pickles    files contain pickles
    promises   guarantees for written files
    dense_end  files don't end in long runs of zeros: one that does is an unfinished download
    parsed_to_identify  only the parser knows whether a file is complete, so `wb identify` runs it
    advice     the next step for users who expected weights
    """

    name: str
    title: str
    suffixes: tuple[str, ...] = ()
    met_as: tuple[str, ...] = ()
    magics: tuple[Magic, ...] = ()
    module: str | None = None
    target: str = ""
    aliases: tuple[str, ...] = ()
    rewritten_as: str = ""
    hub_name: str = ""
    pickles: bool = False
    promises: Promises = _NOTHING_SPECIAL
    dense_end: bool = False
    parsed_to_identify: bool = False
    advice: str | None = None

    @property
    def readable(self) -> bool:
        return self.module is not None

    @property
    def suffix(self) -> str:
        """The usual suffix; empty if there is none."""
        return self.suffixes[0] if self.suffixes else ""

    @property
    def own_target(self) -> str:
        """The target closest to a file's own format; the name if there is none."""
        return self.target or self.rewritten_as or self.name

    def recognise(self, probe: Probe) -> Hit | None:
        """The format's answer to the first bytes of a file. UnsupportedError where the plug-in fails."""
        for magic in self.magics:
            if probe.at(magic.offset, len(magic.sign)) == magic.sign:
                return Hit(self.name, magic.variant, (magic.words or f"{self.title} magic",))
        try:
            recognise = getattr(self._functions, "recognise", None) if self.module else None
            return recognise(probe) if recognise else None
        except WeighbridgeError:
            raise
        except Exception as error:  # foreign code may raise anything
            words = f"plug-in {self.name!r} can't recognise {probe.source.name}: {type(error).__name__}: {error}"
            raise UnsupportedError(words, hint=f"update or uninstall the package of {self.module}") from error

    def parse(self, source: Source) -> Index:
        """The tensors and metadata of a file, from its headers. FormatError if they can't be read."""
        return self._functions.parse(source)

    def examine(self, source: Source) -> tuple[Index, tuple[Finding, ...]]:
        """As `parse`, with all problems; for some damaged files, only the readable part."""
        examine = getattr(self._functions, "examine", None)
        if examine:
            return cast(tuple[Index, tuple[Finding, ...]], examine(source))
        index = self.parse(source)
        return index, index.findings

    def headers(self, source: Source) -> tuple[Index, tuple[Finding, ...]]:
        """As `examine`, including tensors whose data is incomplete, as far as headers declare them."""
        headers = getattr(self._functions, "headers", None)
        return cast(tuple[Index, tuple[Finding, ...]], headers(source)) if headers else self.examine(source)

    def regions(self, source: Source) -> list[Region]:
        """Every byte of a file, named."""
        return list(self.each_region(source))

    def each_region(self, source: Source) -> Iterator[Region]:
        """Every byte of a file, named, one by one: headers may have millions of keys."""
        return iter(self._functions.regions(source))

    def layout(self, tensors: Sequence[tuple[str, Spec]], metadata: Mapping[str, Any]) -> Layout:
        """A file of these tensors. UnsupportedError where the format can't be written."""
        if not self.target:
            raise UnsupportedError(f"{self.title} files can't be written")
        return self._functions.layout(tensors, metadata)

    def pickles_in(self, source: Source) -> list[tuple[str, Source, int]]:
        """The pickles of a file: name, bytes, offset in the file (-1: compressed)."""
        if not self.pickles:
            raise UnsupportedError(
                f"{source.name} isn't a pickle and contains none", hint=f"wb anatomy explains {self.name}"
            )
        return cast(list[tuple[str, Source, int]], cast(Any, self._functions).pickles(source))

    @property
    def _functions(self) -> Functions:
        if self.module is None:
            raise UnsupportedError(f"no reader for {self.name}")
        return cast(Functions, sys.modules.get(self.module) or import_module(self.module))
