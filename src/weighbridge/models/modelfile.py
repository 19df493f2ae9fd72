"""Parses and writes Ollama's Modelfile as Ollama does (ollama fb30760, parser/parser.go; the values of PARAMETER:
api/types.go).

A value is the rest of its line. One that starts with one or three quotes extends to the same quotes at the end of a
line, over any number of lines. Nothing is escaped."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.io.location import StoredPath, open_source

#: Bytes of a Modelfile. It is written by hand; templates and licences are its longest parts.
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
#: Instructions that are settings of the model's config, under the names of these settings.
SETTINGS: Final = ("renderer", "parser", "requires")
#: A file of a model in the store -> the instruction that names one.
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
    """The instructions in order."""

    path: str
    instructions: tuple[Instruction, ...]

    def values(self, command: str) -> tuple[str, ...]:
        """Returns the values of all instructions of one command."""
        return tuple(i.value for i in self.instructions if i.command == command)

    def last(self, command: str) -> str | None:
        """Returns the value of the last instruction of a command, which counts if it is repeated."""
        return next(reversed(self.values(command)), None)

    @property
    def messages(self) -> tuple[tuple[str, str], ...]:
        """The role and content of each MESSAGE."""
        return tuple((i.name, i.value) for i in self.instructions if i.command == "MESSAGE")

    @property
    def parameters(self) -> dict[str, Any]:
        """The PARAMETERs with their types; `stop` is a list. Raises FormatError for an unknown name or value."""
        out: dict[str, Any] = {}
        for row in self.instructions:
            if row.command != "PARAMETER" or row.name in DEPRECATED:
                continue
            kind = PARAMETERS.get(row.name)
            message, expected = f"Ollama has no parameter {row.name!r}", ", ".join(sorted(PARAMETERS))
            if kind is not None:
                message, expected = f"invalid value of {row.name}", f"a value of type {kind.__name__}"
            try:
                value = _BOOLEANS[row.value.lower()] if kind is bool else PARAMETERS[row.name](row.value)
            except (ValueError, KeyError):
                place = f"line {row.line}"
                raise FormatError(
                    message, path=self.path, field=place, expected=expected, found=repr(row.value)
                ) from None
            out[row.name] = [*out.get("stop", ()), value] if row.name == "stop" else value
        return out


def described_by(path: Path) -> Modelfile | None:
    """Returns the Modelfile at `path`, or the one that a store's files amount to; None for any other path. Raises
    FormatError if Ollama would refuse it."""
    if isinstance(path, StoredPath) and path.parts:
        return Modelfile(str(path), tuple(_instructions_in_store(path.parts)))
    return read_modelfile(path) if is_modelfile(path) else None


def _instructions_in_store(parts: Iterable[tuple[str, Path]]) -> Iterator[Instruction]:
    """Yields the files of a model in Ollama's store as instructions, as `ollama show --modelfile` prints them.
    Parameters that Ollama ignores are left out."""
    for part, file in sorted(parts, key=lambda row: row[0] != "model"):
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
        value = json.loads(_read_text(file))
    except (ValueError, RecursionError) as error:
        raise FormatError("invalid JSON", path=str(file), found=repr(error)) from None
    rows = value if isinstance(value, list) else []
    if not isinstance(value, kind) or not all(isinstance(r, dict) and {"role", "content"} <= r.keys() for r in rows):
        raise FormatError("not a part of a model in Ollama", path=str(file), expected=kind.__name__)
    return value


def is_modelfile(path: Path) -> bool:
    """Whether a file has the name of a Modelfile: `Modelfile`, `Modelfile.q4`, `mine.modelfile`."""
    name = path.name.lower()
    return name == "modelfile" or name.startswith("modelfile.") or name.endswith(".modelfile")


def read_modelfile(path: Path) -> Modelfile:
    """Reads the Modelfile at `path`. Raises FormatError if Ollama would refuse it."""
    return parse_modelfile(_read_text(path), str(path))


def _read_text(path: Path) -> str:
    """Reads UTF-8, with or without a byte order mark, or UTF-16 with one."""
    with open_source(path) as source:
        if source.size > LIMIT:
            raise FormatError("the text is too large", path=str(path), expected=f"at most {LIMIT} bytes")
        data = source.read(0, source.size)
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError("the file isn't text", path=str(path), offset=error.start) from None


def parse_modelfile(text: str, path: str = "Modelfile") -> Modelfile:
    """Parses a Modelfile. Raises a FormatError that names the invalid line."""
    instructions = tuple(_parse_instructions(text, path))
    if not any(i.command == "FROM" for i in instructions):
        raise FormatError("the Modelfile has no FROM line", path=path, hint="FROM ./model.gguf")
    return Modelfile(path, instructions)


def _parse_instructions(text: str, path: str) -> Iterator[Instruction]:
    lines = enumerate(_LINE.findall(text), 1)
    for number, line in lines:
        if not line.strip() or line.lstrip(" \t").startswith("#"):
            continue
        place, match = f"line {number}", _COMMAND.match(line)
        command = match[1].upper() if match else ""
        if match is None or command not in COMMANDS:
            names, start = ", ".join(COMMANDS), repr(line.strip()[:60])
            raise FormatError("unknown instruction", path=path, field=place, expected=names, found=start)
        text, name = match[2], ""
        if command in ("PARAMETER", "MESSAGE"):
            named = _NAMED.match(text)
            if named is None:
                usage = "PARAMETER NAME VALUE" if command == "PARAMETER" else "MESSAGE ROLE TEXT"
                raise FormatError(f"{command} has no name and value", path=path, field=place, expected=usage)
            name, text = named[1], named[2]
            if command == "MESSAGE" and name not in ROLES:
                roles = ", ".join(ROLES)
                raise FormatError("unknown role", path=path, field=place, expected=roles, found=repr(name))
        if not text.strip():
            raise FormatError(f"{command} has no value", path=path, field=place)
        while (value := _unquote(text.strip())) is None:
            _, more = next(lines, (0, ""))
            if not more:
                raise FormatError("a quote isn't closed at the end of a line", path=path, field=place)
            text += more
        yield Instruction(command, value, name, number)


def _unquote(text: str) -> str | None:
    """Returns the value without its quotes, or None if the closing quotes are still missing."""
    for quotes in ('"""', '"'):
        if text.startswith(quotes):
            closed = len(text) >= 2 * len(quotes) and text.endswith(quotes)
            return text[len(quotes) : -len(quotes)] if closed else None
    return text


# ------------------------------------------------------------------------------------------------ writing


def write_modelfile(instructions: Iterable[Instruction]) -> str:
    """Returns the text that parses to these instructions. Raises UnsupportedError for a value that no quotes can
    express."""
    lines = (f"{i.command} {i.name + ' ' if i.name else ''}{quoted(i.value)}" for i in instructions if i.value)
    return "\n".join(lines) + "\n"


def quoted(value: str) -> str:
    """Returns a value unchanged if it parses back, otherwise between three quotes."""
    if value == value.strip() and not value.startswith('"') and not re.search(r"[\r\n]", value):
        return value
    *inner, _ = re.split(r"[\r\n]", value)
    if any(line.rstrip().endswith('"""') for line in inner):
        raise UnsupportedError("a line of the text ends with three quotes, which a Modelfile can't express")
    return f'"""{value}"""'


# ------------------------------------------------------------------------------------------------ references


def referred(file: Modelfile, value: str, folder: Path) -> Path | str:
    """Resolves the value of FROM or ADAPTER: a path relative to the Modelfile's folder, if it exists, otherwise the
    name of a model, as `ollama://NAME`."""
    path = folder / Path(value).expanduser()
    if path.exists():
        return path
    if value.startswith((".", "/", "~")) or value.endswith((".gguf", ".safetensors")):
        raise FormatError("the Modelfile names a missing file", path=file.path, found=str(path))
    return f"ollama://{value}"
