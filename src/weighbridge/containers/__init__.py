"""The registry of formats. Plug-ins are loaded only if no built-in format has the requested name or suffix, or
recognises a file. The modules that read formats are imported on first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.plugins import FORMATS as GROUP
from weighbridge.base.plugins import failed, plugins
from weighbridge.containers.format import Format, Rank
from weighbridge.containers.formats import READ, RECOGNISED

__all__ = [
    "BUILT_IN", "MISNAMED_UNLESS", "PICKLED", "Format", "by_magic", "by_suffix", "by_target", "every", "find",
    "folder_suffixes", "model_suffixes", "own_target", "plugged", "reader", "target_of", "titled", "writable",
]  # fmt: skip

#: Name -> format, in the order of the tables.
BUILT_IN: Final[Mapping[str, Format]] = MappingProxyType({f.name: f for f in (*READ, *RECOGNISED)})
#: Formats whose files contain pickles.
PICKLED: Final = frozenset(f.name for f in READ if f.pickles)


_SUFFIXES: Final = dict.fromkeys(suffix for f in BUILT_IN.values() for suffix in (*f.suffixes, *f.met_as))
#: Suffix -> the formats that files with it may have; other suffixes imply nothing.
MISNAMED_UNLESS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {s: frozenset(f.name for f in BUILT_IN.values() if s in (*f.suffixes, *f.met_as)) for s in _SUFFIXES}
)


@cache
def plugged() -> Mapping[str, Format]:
    """The formats of plug-ins, by name. UnsupportedError names a plug-in that can't be used."""
    formats: dict[str, Format] = {}
    taken = {word for f in BUILT_IN.values() for word in (f.name, f.target, *f.aliases)} - {""}
    for format in plugins(GROUP, Format).values():
        names = {format.name, format.target, *format.aliases} - {""}
        if clash := sorted(names & taken):
            raise UnsupportedError(f"a plug-in registers a format {clash[0]!r}, which exists already",
                                   hint=f"uninstall the package that has the module {format.module}")  # fmt: skip
        if any(recogniser.rank is Rank.FIRST for recogniser in format.recognisers):
            raise failed(format.name, str(format.module), "only built-in formats have recognisers of rank FIRST")
        format.check_functions()
        formats[format.name] = format
        taken |= names
    return MappingProxyType(formats)


def _tables() -> Iterator[Iterable[Format]]:
    """The formats that are read; those of plug-ins only if these don't suffice."""
    yield READ
    yield plugged().values()


def every() -> tuple[Format, ...]:
    """All formats, built in and plugged in."""
    return (*BUILT_IN.values(), *plugged().values())


def find(name: str) -> Format | None:
    """The format of this name."""
    return BUILT_IN.get(name) or plugged().get(name)


def titled(name: str) -> str:
    """The title of a format in messages; the name itself if it is unknown."""
    format = find(name)
    return format.title if format else name


def reader(name: str) -> Format:
    """The format of this name, if it can be read. UnsupportedError otherwise."""
    format = find(name)
    if format is None or not format.readable:
        readable = ", ".join(f.name for f in every() if f.readable)
        raise UnsupportedError(f"no reader for {name}", hint=f"formats that can be read: {readable}")
    return format


def own_target(name: str) -> str:
    """The target closest to a format. UnsupportedError for an unknown one."""
    format = find(name)
    return format.own_target if format is not None else reader(name).own_target


def by_magic(head: bytes) -> Format | None:
    """The built-in format whose magic these first bytes contain."""
    return next((f for f in BUILT_IN.values() for m in f.magics if head[m.offset :].startswith(m.sign)), None)


def by_suffix(suffix: str) -> Format | None:
    """The one readable format with this suffix among its own; None if there are several or none."""
    for formats in _tables() if suffix else ():
        if candidates := [f for f in formats if f.readable and suffix.lower() in f.suffixes]:
            return candidates[0] if len(candidates) == 1 else None
    return None


def writable() -> Mapping[str, Format]:
    """Target -> the built-in format that is written for it."""
    return {f.target: f for f in READ if f.target}


def model_suffixes() -> tuple[str, ...]:
    """The suffixes of built-in writable formats, in the order of preference for a folder's weights."""
    return tuple(dict.fromkeys(suffix for f in writable().values() for suffix in f.suffixes))


def folder_suffixes() -> tuple[str, ...]:
    """The suffixes of the files that a folder is searched for: those of `model_suffixes` first."""
    found = (suffix for f in READ if f.in_folders for suffix in (*f.suffixes, *f.met_as))
    return tuple(dict.fromkeys((*model_suffixes(), *found)))


def target_of(suffix: str) -> str | None:
    """The target for files with this suffix, in any case; None if no writable format has it."""
    tables = _tables() if suffix else ()
    return next((f.target for formats in tables for f in formats if f.target and suffix.lower() in f.suffixes), None)


def by_target(word: str) -> Format | None:
    """The format that `--to WORD` writes. WORD is its target or an alias, in any case."""
    word = word.lower().removeprefix(".")
    every_format = (f for formats in _tables() for f in formats)
    return next((f for f in every_format if f.target and word in (f.target, *f.aliases)), None)
