"""`Format`: everything about one file format. A built-in format is a row of `formats.py`; a plug-in registers one
as an entry point of the group `weighbridge.formats`:

    FORMAT = Format("tnsr", "Toy tensors", (".tnsr",), magics=(Magic(0, b"TNSR"),), module=__name__, target="tnsr",
                    dtypes=frozenset({"F32", "F16", "BF16"}))

`module` names the module that has the format's functions. It is imported when one of them is first called:

    parse(source)              -> Index              the headers; FormatError if they can't be read
    regions(source)            -> [Region]           every byte of the file, named: no gap, no overlap
    layout(tensors, metadata)  -> Layout             if `target` is set: header bytes, offsets of the tensors
    parts(index, recoded)      -> [Replacement]      if `graph` is set: the places of the tensors (`rewritten.py`)
    examine(source)            -> Index, [Finding]   optional: the readable part of a damaged file, and its problems
    pickles(source)            -> [(name, source, start)]  required with `pickles`: the pickles inside

Every call into a plug-in is guarded: its unexpected exceptions become a PluginError.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cache, cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from weighbridge.base.dtypes import BY_NAME, F32, F64, DType, Kind
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.plugins import failed, guard, is_own
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Finding, Index, Layout, Region
from weighbridge.containers.sniff.probe import Hit, Probe
from weighbridge.io.source import Source

if TYPE_CHECKING:
    from weighbridge.containers.rewritten import Replacement

_T = TypeVar("_T")


class Magic(NamedTuple):
    """A file with the bytes `sign` at byte `offset` has the format. `evidence`: the text to report."""

    offset: int
    sign: bytes
    evidence: str = ""
    variant: str = ""


class Rank(IntEnum):
    """The kind of sign that a recogniser looks for. Surer signs come first; among recognisers of one rank, plug-ins
    come before built-in formats."""

    FIRST = 0  # built-in only: an empty file, GGUF, ggml
    MEMBERS = 1  # the members of a zip that begins at the first byte
    MAGIC = 2  # fixed bytes at a fixed place
    HEADER = 3  # a header that is consistent in itself
    PROGRAM = 4  # the magic of an executable: two bytes, which a header may have too
    CHECKSUM = 5  # a header with a checksum
    TEXT = 6  # the beginning of a text
    OPCODES = 7  # a walk over opcodes
    ANY_TEXT = 8
    FIELDS = 9  # a walk over the fields of a message
    LAST = 10


class Recogniser(NamedTuple):
    """A function `recognise(probe) -> Hit | None`, written "module:function"; formats may share one.

    If the format has magics, the function is only called for files with one of them, unless `any_start` is set."""

    function: str
    rank: Rank
    any_start: bool = False


@dataclass(frozen=True)
class Format:
    """One file format.

    name       the stable id, as in reports and in `Index.format`
    title      its name in messages
    suffixes   the format's own suffixes, the usual one first
    met_as     other suffixes under which its files aren't misnamed
    magics     byte strings at fixed offsets; one of them identifies the format
    recognisers  functions that identify the format, if `magics` don't suffice
    module     the module that reads it (see above); None if it is only recognised
    target     its name for `--to`; empty if it can't be written
    aliases    other names for `target`
    rewritten_as  the target of the format that is written in place of this one
    dtypes     the types that a written file can hold, by name; required with `target`
    hub_name   the file name of unsharded weights in a model folder
    pickles    files contain pickles
    dense_end  files don't end in long runs of zeros: one that does is an unfinished download
    parsed_to_identify  only the parser knows whether a file is complete, so `wb identify` runs it
    in_folders a folder is searched for its files, if it has none of a format that is written
    graph      new weights can be written into an existing file (`--graph`)
    advice     the next step for users who expected weights
    """

    name: str
    title: str
    suffixes: tuple[str, ...] = ()
    met_as: tuple[str, ...] = ()
    magics: tuple[Magic, ...] = ()
    recognisers: tuple[Recogniser, ...] = ()
    module: str | None = None
    target: str = ""
    aliases: tuple[str, ...] = ()
    rewritten_as: str = ""
    dtypes: frozenset[str] = frozenset()
    hub_name: str = ""
    pickles: bool = False
    dense_end: bool = False
    parsed_to_identify: bool = False
    in_folders: bool = False
    graph: bool = False
    advice: str | None = None

    def __post_init__(self) -> None:
        for wrong, problem in (
            (not self.name or self.name != self.name.lower(), "has no name in lower case"),
            (any(s != s.lower() or s[:1] != "." for s in (*self.suffixes, *self.met_as)), "has a suffix unlike .abc"),
            (any(m.offset < 0 or not m.sign for m in self.magics), "has an empty magic or a negative offset"),
            (any(r.function.count(":") != 1 for r in self.recognisers), "has a recogniser unlike module:function"),
            (self.target and not self.dtypes, "is written but declares no dtypes"),
            (self.target and not self.module, "is written but names no module"),
            (self.dtypes - BY_NAME.keys(), f"declares unknown dtypes {sorted(self.dtypes - BY_NAME.keys())}"),
            (self.target != self.target.lower(), "has a target that isn't lower case"),
        ):
            if wrong:
                raise UsageError(f"the format {self.name!r} {problem}", hint="see 'Extending' in Weighbridge's docs")

    @property
    def readable(self) -> bool:
        return self.module is not None

    @cached_property
    def plugged(self) -> bool:
        """Whether a plug-in has registered the format."""
        return self.module is not None and not is_own(self.module)

    @property
    def suffix(self) -> str:
        """The usual suffix; empty if there is none."""
        return self.suffixes[0] if self.suffixes else ""

    @property
    def own_target(self) -> str:
        """The target closest to a file's own format; the name if there is none."""
        return self.target or self.rewritten_as or self.name

    def stored_as(self, dtype: DType) -> DType:
        """The type for tensors of `dtype` in written files: itself if the format declares it; else, for blocks and
        floats, a declared float type that holds every value. `layout` refuses the others."""
        if dtype.name in self.dtypes or dtype.kind not in (Kind.BLOCK, Kind.FLOAT):
            return dtype
        return next((wide for wide in (F32, F64) if wide.name in self.dtypes and dtype is not F64), dtype)

    def questions(self) -> tuple[Recogniser, ...]:
        """The recognisers of the format; if it has magics only, one that compares them."""
        return self.recognisers or ((Recogniser("", Rank.MAGIC),) if self.magics else ())

    def ask(self, recogniser: Recogniser, probe: Probe) -> Hit | None:
        """The answer of one of the format's recognisers to the first bytes of a file."""
        if self.magics and not recogniser.any_start:
            for magic in self.magics:
                if probe.at(magic.offset, len(magic.sign)) == magic.sign:
                    break
            else:
                return None
            if not recogniser.function:
                return Hit(self.name, magic.variant, (magic.evidence or f"{self.title} magic",))
        if not self.plugged:
            return cast(Hit | None, _function(recogniser.function)(probe))
        with self._guard():
            hit = _function(recogniser.function)(probe)
        if hit is not None and (not isinstance(hit, Hit) or hit.format != self.name):
            raise failed(self.name, str(self.module), f"its recogniser returned {hit!r}, no Hit of this format")
        return hit

    def recognise(self, probe: Probe) -> Hit | None:
        """The format's answer to the first bytes of a file."""
        return next((hit for question in self.questions() if (hit := self.ask(question, probe))), None)

    def parse(self, source: Source) -> Index:
        """The tensors and metadata of a file, from its headers. FormatError if they can't be read."""
        return self._call("parse", Index, source)

    def examine(self, source: Source) -> tuple[Index, tuple[Finding, ...]]:
        """As `parse`, with all problems; for some damaged files, only the readable part."""
        if not hasattr(self.functions, "examine"):
            index = self.parse(source)
            return index, index.findings
        return cast(tuple[Index, tuple[Finding, ...]], self._call("examine", tuple, source))

    def headers(self, source: Source) -> tuple[Index, tuple[Finding, ...]]:
        """As `examine`, including tensors whose data is incomplete, as far as headers declare them."""
        if not hasattr(self.functions, "headers"):
            return self.examine(source)
        return cast(tuple[Index, tuple[Finding, ...]], self._call("headers", tuple, source))

    def regions(self, source: Source) -> Iterator[Region]:
        """Every byte of a file, named, one by one: headers may have millions of keys."""
        with self._guard():
            yield from self.functions.regions(source)

    def layout(self, tensors: Sequence[tuple[str, Spec]], metadata: Mapping[str, Any]) -> Layout:
        """A file of these tensors. UnsupportedError if the format can't be written."""
        if not self.target:
            raise UnsupportedError(f"{self.title} files can't be written")
        for name, spec in tensors:
            if spec.dtype.name not in self.dtypes:
                raise UnsupportedError(f"{self.title} files can't store {name}: {spec.dtype}",
                                       hint=f"its types: {', '.join(sorted(self.dtypes))}")  # fmt: skip
        return self._call("layout", Layout, tensors, metadata)

    def parts(self, index: Index, recoded: Collection[str]) -> list[Replacement]:
        """The places of the tensors in an existing file, those of `recoded` in another form than there."""
        return cast("list[Replacement]", self._call("parts", list, index, recoded))

    def pickles_in(self, source: Source) -> list[tuple[str, Source, int]]:
        """The pickles of a file: name, bytes, offset in the file (-1: compressed)."""
        if not self.pickles:
            raise UnsupportedError(
                f"{source.name} isn't a pickle and contains none", hint=f"wb anatomy explains {self.name}"
            )
        return cast(list[tuple[str, Source, int]], self._call("pickles", list, source))

    @property
    def functions(self) -> Any:
        """The module with the format's functions."""
        if self.module is None:
            raise UnsupportedError(f"no reader for {self.name}")
        with self._guard():
            return sys.modules.get(self.module) or import_module(self.module)

    def check_functions(self) -> None:
        """PluginError if the module lacks a function that the format must have."""
        optional = {"layout": self.target, "pickles": self.pickles, "parts": self.graph}
        required = ("parse", "regions", *(name for name, needed in optional.items() if needed))
        if lacking := [name for name in required if not callable(getattr(self.functions, name, None))]:
            raise failed(self.name, str(self.module), f"its module has no function {', '.join(lacking)}")

    def _call(self, function: str, kind: type[_T], *arguments: object) -> _T:
        """The result of one of the format's functions, which must be a `kind`."""
        with self._guard():
            result = getattr(self.functions, function)(*arguments)
        if not isinstance(result, kind):
            raise failed(self.name, str(self.module), f"{function} returned {result!r:.60}, not a {kind.__name__}")
        return result

    def _guard(self) -> guard:
        return guard(self.name, self.module or "weighbridge")


@cache
def _function(path: str) -> Any:
    """The function "module:name", imported when it is first needed."""
    module, _, name = path.partition(":")
    return getattr(sys.modules.get(module) or import_module(module), name)
