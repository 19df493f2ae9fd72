"""Ollama's Modelfile: instructions as text, parsed and written as Ollama's own parser reads them (ollama fb30760,
parser/parser.go; the values of PARAMETER: api/types.go).

A value is the rest of its line. One that starts with a quote, or three, runs to the same quotes at the end of a line,
over as many lines as that takes. Nothing is escaped.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.io.location import StoredPath, open_source

#: A Modelfile is written by hand; templates and licences are its longest parts.
LIMIT: Final = 4 * MIB
COMMANDS: Final = (
    *("FROM", "LICENSE", "TEMPLATE", "SYSTEM", "ADAPTER", "DRAFT", "RENDERER", "PARSER", "PARAMETER", "MESSAGE"),
    "REQUIRES",
)
ROLES: Final = ("system", "user", "assistant")
#: Name of a PARAMETER -> the type of its value. `stop` may be repeated.
PARAMETERS: Final[Mapping[str, type]] = {
    **dict.fromkeys(("num_ctx", "top_k", "repeat_last_n", "seed", "num_predict", "num_keep", "num_batch"), int),
    **dict.fromkeys(("num_gpu", "main_gpu", "num_thread", "draft_num_predict"), int),
    **dict.fromkeys(("temperature", "top_p", "min_p", "typical_p", "repeat_penalty"), float),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), float),
    "use_mmap": bool,
    "stop": str,
}
#: Parsed with a warning and ignored.
DEPRECATED: Final = frozenset(
    ("penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock", "mirostat", "mirostat_tau")
) | {"mirostat_eta"}
#: Instructions whose values are settings of the model's config, as these are called there.
SETTINGS: Final = ("renderer", "parser", "requires")
#: Part of a model in the store that is a file -> the instruction that names one.
_FILES: Final = {"model": "FROM", "projector": "FROM", "adapter": "ADAPTER", "draft": "DRAFT"}
_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_COMMAND: Final = re.compile(r"[ \t]*([A-Za-z]+)(?:[ \t]+|\Z)(.*)", re.DOTALL)
_NAMED: Final = re.compile(r"([A-Za-z0-9_]+)[ \t]+(\S.*)", re.DOTALL)
_BOOLEANS: Final = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `name`: the parameter of PARAMETER, the role of MESSAGE. `line`: counted from 1."""

    command: str
    value: str
    name: str = ""
    line: int = 0


@dataclass(frozen=True)
class Modelfile:
    """The instructions in their order."""

    path: str
    instructions: tuple[Instruction, ...]

    def values(self, command: str) -> tuple[str, ...]:
        """The values of all instructions of one command."""
        return tuple(i.value for i in self.instructions if i.command == command)

    def last(self, command: str) -> str | None:
        """The value that counts where an instruction is repeated."""
        return next(reversed(self.values(command)), None)

    @property
    def messages(self) -> tuple[tuple[str, str], ...]:
        """Role and content of each MESSAGE."""
        return tuple((i.name, i.value) for i in self.instructions if i.command == "MESSAGE")

    @property
    def parameters(self) -> dict[str, Any]:
        """The PARAMETERs with their types; `stop` is a list. FormatError for an unknown name or a wrong value."""
        found: dict[str, Any] = {}
        for one in self.instructions:
            if one.command != "PARAMETER" or one.name in DEPRECATED:
                continue
            value = self._parameter(one)
            found[one.name] = [*found.get("stop", ()), value] if one.name == "stop" else value
        return found

    def _parameter(self, one: Instruction) -> Any:
        kind = PARAMETERS.get(one.name)
        if kind is None:
            raise self._wrong(one, f"Ollama has no parameter {one.name!r}", ", ".join(sorted(PARAMETERS)))
        try:
            return _BOOLEANS[one.value.lower()] if kind is bool else kind(one.value)
        except (ValueError, KeyError):
            raise self._wrong(one, f"invalid value of {one.name}", f"a value of type {kind.__name__}") from None

    def _wrong(self, one: Instruction, message: str, expected: str) -> FormatError:
        return FormatError(message, path=self.path, field=f"line {one.line}", expected=expected, found=repr(one.value))


def described_by(path: Path) -> Modelfile | None:
    """What describes a model beside its weights: the Modelfile at `path`, or one made of a store's files.
    None for any other path. FormatError where Ollama refuses it."""
    if isinstance(path, StoredPath) and path.parts:
        return Modelfile(str(path), tuple(_stored(path.parts)))
    return read_modelfile(path) if is_modelfile(path) else None


def _stored(parts: Iterable[tuple[str, Path]]) -> Iterator[Instruction]:
    """The files of a model in Ollama's store as instructions, as `ollama show --modelfile` prints them. Parameters that
    Ollama ignores are left out."""
    for part, file in sorted(parts, key=lambda one: one[0] != "model"):
        if part in _FILES:
            yield Instruction(_FILES[part], str(file))
        elif part.upper() in COMMANDS:
            yield Instruction(part.upper(), _read_text(file))
        elif part == "config":
            settings = _stored_json(file, dict)
            yield from (Instruction(name.upper(), str(settings[name])) for name in SETTINGS if settings.get(name))
        elif part == "params":
            for name, value in _stored_json(file, dict).items():
                values = value if isinstance(value, list) else [value]
                yield from (Instruction("PARAMETER", str(v), name) for v in values if name in PARAMETERS)
        elif part == "messages":
            for row in _stored_json(file, list):
                yield Instruction("MESSAGE", str(row["content"]), str(row["role"]))


def _stored_json(file: Path, kind: type) -> Any:
    try:
        found = json.loads(_read_text(file))
    except (ValueError, RecursionError) as error:
        raise FormatError("no JSON", path=str(file), found=repr(error)) from None
    rows = found if isinstance(found, list) else []
    if not isinstance(found, kind) or not all(isinstance(r, dict) and {"role", "content"} <= r.keys() for r in rows):
        raise FormatError("no part of a model in Ollama", path=str(file), expected=kind.__name__)
    return found


def is_modelfile(path: Path) -> bool:
    """Whether a file is named as Modelfiles are: `Modelfile`, `Modelfile.q4`, `mine.modelfile`."""
    name = path.name.lower()
    return name == "modelfile" or name.startswith("modelfile.") or name.endswith(".modelfile")


def read_modelfile(path: Path) -> Modelfile:
    """The Modelfile at `path`. FormatError where Ollama refuses it."""
    return parse_modelfile(_read_text(path), str(path))


def _read_text(path: Path) -> str:
    with open_source(path) as source:
        if source.size > LIMIT:
            raise FormatError("the text is too large", path=str(path), expected=f"at most {LIMIT} bytes")
        return _text(source.read(0, source.size), str(path))


def _text(data: bytes, where: str) -> str:
    """UTF-8, with or without a mark, or UTF-16 with one."""
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError("the file is no text", path=where, offset=error.start) from None


def parse_modelfile(text: str, where: str = "Modelfile") -> Modelfile:
    """The instructions of a Modelfile. FormatError names the line that is wrong."""
    found = tuple(_instructions(text, where))
    if not any(i.command == "FROM" for i in found):
        raise FormatError("the Modelfile has no FROM line", path=where, hint="FROM ./model.gguf")
    return Modelfile(where, found)


def _instructions(text: str, where: str) -> Iterator[Instruction]:
    lines = enumerate(_LINE.findall(text), 1)
    for number, line in lines:
        if not line.strip() or line.lstrip(" \t").startswith("#"):
            continue
        match = _COMMAND.match(line)
        command = match[1].upper() if match else ""
        if match is None or command not in COMMANDS:
            raise FormatError("no instruction of a Modelfile", path=where, field=f"line {number}",
                              expected=", ".join(COMMANDS), found=repr(line.strip()[:60]))  # fmt: skip
        rest, name = match[2], ""
        if command in ("PARAMETER", "MESSAGE"):
            name, rest = _named(command, rest, where, number)
        if not rest.strip():
            raise FormatError(f"{command} has no value", path=where, field=f"line {number}")
        while (value := _unquoted(rest.strip())) is None:
            _, more = next(lines, (0, ""))
            if not more:
                raise FormatError("a quote isn't closed at the end of a line", path=where, field=f"line {number}")
            rest += more
        yield Instruction(command, value, name, number)


def _named(command: str, rest: str, where: str, line: int) -> tuple[str, str]:
    """The name, or the role, before the value."""
    match = _NAMED.match(rest)
    if match is None:
        what = "PARAMETER NAME VALUE" if command == "PARAMETER" else "MESSAGE ROLE TEXT"
        raise FormatError(f"{command} has no name and value", path=where, field=f"line {line}", expected=what)
    if command == "MESSAGE" and match[1] not in ROLES:
        raise FormatError("no role of a message", path=where, field=f"line {line}", expected=", ".join(ROLES),
                          found=repr(match[1]))  # fmt: skip
    return match[1], match[2]


def _unquoted(text: str) -> str | None:
    """The value, without its quotes; None where the closing ones are still to come."""
    for quotes in ('"""', '"'):
        if text.startswith(quotes):
            closed = len(text) >= 2 * len(quotes) and text.endswith(quotes)
            return text[len(quotes) : -len(quotes)] if closed else None
    return text


# ------------------------------------------------------------------------------------------------ writing


def write_modelfile(instructions: Iterable[Instruction]) -> str:
    """The text that parses to these instructions. UnsupportedError for a value that no quoting can express."""
    lines = (f"{i.command} {i.name + ' ' if i.name else ''}{quoted(i.value)}" for i in instructions if i.value)
    return "\n".join(lines) + "\n"


def quoted(value: str) -> str:
    """A value as it is where that reads back, else between three quotes."""
    if value == value.strip() and not value.startswith('"') and not re.search(r"[\r\n]", value):
        return value
    *inner, _ = re.split(r"[\r\n]", value)
    if any(line.rstrip().endswith('"""') for line in inner):
        raise UnsupportedError("a line of the text ends with three quotes, which a Modelfile can't express")
    return f'"""{value}"""'


# ------------------------------------------------------------------------------------------------ what it refers to


def referred(file: Modelfile, value: str, folder: Path) -> Path | str:
    """What FROM or ADAPTER names: a path, relative to the Modelfile's folder, if something is there, else the name of a
    model, as `ollama://NAME`."""
    path = folder / Path(value).expanduser()
    if path.exists():
        return path
    if value.startswith((".", "/", "~")) or value.endswith((".gguf", ".safetensors")):
        raise FormatError("the Modelfile names a file that isn't there", path=file.path, found=str(path))
    return f"ollama://{value}"
