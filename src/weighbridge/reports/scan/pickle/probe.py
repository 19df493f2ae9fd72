"""Finds pickles in bytes that look like another format: protocols 0 and 1 have no magic."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.containers.archive import tar
from weighbridge.io.source import Source
from weighbridge.reports.scan.detect import PICKLES
from weighbridge.reports.scan.model import Budget, Part, Piece
from weighbridge.reports.scan.pickle import denylist
from weighbridge.reports.scan.pickle.scanner import FEW, LEGACY, OPCODES, Metered, harmful_names, is_idle
from weighbridge.reports.scan.pickle.shapes import class_of
from weighbridge.unpickle.libraries.joblib import JoblibMachine
from weighbridge.unpickle.state import Event

# Limits on bytes that may not be a pickle at all: of a member, of a file.
_PROBED: Final = MIB
_PROBED_FILE: Final = 64 * MIB
_NAMED: Final = (".pkl", ".pickle", ".pt", ".pth", ".joblib", ".dill", ".p")
_WEIGHTS: Final = (*_NAMED, ".npy", ".npz", ".bin", ".ckpt", ".model", ".dat", ".data", ".weights", ".tar")
# Suffixes of text files as well: lists of paths (.pth), notes without a suffix, tables.
_TEXTUAL: Final = (".pth", ".model", ".dat", ".data", ".p", ".weights")
#: joblib goes by the first bytes, whatever compression the name suggests.
_PACKED: Final = re.compile(r"\.(gz|gzip|bz2|xz|lzma|z|zlib|lz4|zst)\Z")
_WORD: Final = re.compile(r"[A-Za-z_][\w.]*\Z", re.ASCII)
_TEXT: Final = 1024
_PRINTABLE: Final = MappingProxyType(dict.fromkeys((9, 10, 13)))  # lines and columns of text


def probe(part: Part, *, unknown: bool = False, storage: bool = False) -> Iterator[Piece]:
    """Checks whether an unpickler would run bytes that look like something else. They count as a pickle if they end as
    one, or if an unpickler would import or call before it stops. `unknown`: they have no other format. `storage`: they
    are a storage, which no loader of checkpoints unpickles."""
    source, name = part.source, part.place.name
    head = source.head(1)
    named_pickle = unknown and name.lower().endswith(_NAMED)
    if not head or (head not in OPCODES if named_pickle else is_idle(source.head(FEW), source.size)):
        return
    most = _PROBED if part.place.members else _PROBED_FILE
    machine = JoblibMachine(Metered(source, Budget(min(most, part.budget.nbytes))), strict=False)
    named = not storage and is_named_pickle(name)
    whole, text = False, is_text(source)
    prose = text and may_be_text(name)
    try:
        machine.run()
        whole = machine.end == source.size and machine.steps > 1
        whole = whole or (named and _more_pickles_act(machine.source, machine.end, prose))
    except UnsupportedError:
        if not storage and not _acts(machine.events, named, prose):
            yield part.finding("pickle/limit", "as a pickle it is too long to follow", at=machine.at)
    except FormatError as error:
        if named_pickle and not text and not _acts(machine.events, named, prose):
            yield part.finding("pickle/not-one", f"named like a pickle: {error.message}", at=machine.at)
        whole = source.head(2) in PICKLES and any(harmful_names(source.head(_PROBED)))
    if whole or _acts(machine.events, named, prose, tar.begins(source)) or (named and machine.reframed):
        yield Part(source, part.place, part.budget, "pickle")


def _more_pickles_act(source: Source, at: int, prose: bool) -> bool:
    """Whether one of the next pickles does something: torch's format before 1.6 has five."""
    for _ in range(LEGACY - 1):
        machine = JoblibMachine(source, at, strict=False)
        try:
            machine.run()
        except UnsupportedError:
            return True
        except FormatError:
            return _acts(machine.events, True, prose)
        if _acts(machine.events, True, prose):
            return True
        at = machine.end
    return False


def is_named_pickle(name: str) -> bool:
    """Whether loaders unpickle a file of this name, whatever it contains."""
    plain = _PACKED.sub("", name.lower())
    return plain.endswith(_WEIGHTS) or "." not in plain


def may_be_text(name: str) -> bool:
    """Whether a file of this name may legitimately be text."""
    return "." not in name or name.lower().endswith(_TEXTUAL) or not is_named_pickle(name)


def is_text(source: Source) -> bool:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(source.head(_TEXT))
    except UnicodeDecodeError:
        return False
    return text.translate(_PRINTABLE).isprintable()


def _acts(events: Iterable[Event], named: bool, prose: bool, is_tar: bool = False) -> bool:
    """Whether an unpickler would do something: call a name that can be imported, or import one that does harm. `named`:
    the file has the name of a pickle, so importing is enough. In `prose` a module must be an identifier, as lines of
    text look like imports; in a tar a module with the zeros after a member's name is none."""
    for event in events:
        name = class_of(event.what.callee) if event.kind == "call" else event.what if event.kind == "import" else None
        if name is None:
            continue
        package = name.module.partition(".")[0]
        if is_tar and "\0" in name.module:  # config.json, the first member: only the package would be imported
            return bool(denylist.consequence(package, ""))
        is_file_name = bool(package) and not set(package) & {"/", "\0"}  # Python looks for a file of any such name
        if named and event.kind == "call":
            acts = is_file_name
        elif named:
            acts = package.isidentifier() or (not prose and is_file_name)
        else:
            acts = package.isidentifier() and bool(_WORD.match(name.name))
            if event.kind == "import":
                # INST needs a mark: without one only Python's unpickler imports, and two words in a list look like it.
                acts = acts and name.op != "INST" and bool(denylist.consequence(*name.path))
        if acts:
            return True
    return False
