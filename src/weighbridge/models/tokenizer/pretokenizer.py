"""Maps a tokenizer.json's pre-tokenizer to llama.cpp's name for it (`tokenizer.ggml.pre`), and a name to its
definition.

The reference tokenizes a text and hashes the ids, so known rules over an unknown vocabulary are an error. Here the
chain of pre-tokenizers is normalized and looked up in `pretokenizers.toml`. Normalization keeps the meaning:

    Sequence                          its items
    ByteLevel(use_regex)              Split(GPT-2's regex), bytes      (that is how it is implemented)
    Digits(individual), Digits()      Split(\\p{N}), Split(\\p{N}+)
    Split(Removed, invert)            Split(Isolated)                  (every character matches)
    raw CR, LF, TAB in a regex        \\r, \\n, \\t
    '[sS] ... instead of (?i:'s ...   (?i:'s ...
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.imports.tables import read_table
from weighbridge.base.limits import JSON_DEPTH
from weighbridge.base.records import dataclass
from weighbridge.models.tokenizer.vocab import SPACE, Json

Steps = tuple[str, ...]
# The split of raw classes; their normalizer replaces spaces by U+2581 first.
BETWEEN: Final[Json] = {
    "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
}  # fmt: skip
METASPACE: Final[Json] = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
BYTES: Final = "bytes"
UNKNOWN: Final = "unknown: "
SUFFIXES: Final = ("(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])", "(?i:'s|'t|'re|'ve|'m|'ll|'d)")


@dataclass(frozen=True, slots=True)
class PretokenizerClass:
    """A row of the table: the names of a llama.cpp class with the same flags. `raw`: merges are over characters instead
    of the byte alphabet, and spaces are U+2581; `metaspace`: with one before each text; `merges_optional`: llama.cpp
    loads it without merges."""

    name: str
    names: tuple[str, ...]
    steps: tuple[Any, ...]  # patterns in order; empty if the definition is unknown
    canonical: Steps
    ignore_merges: bool = False
    add_bos: bool = False
    raw: bool = False
    metaspace: bool = False
    merges_optional: bool = False


@dataclass(frozen=True, slots=True)
class NameChoice:
    """A row of `choose`: writes `name` if all other fields match."""

    name: str
    tokens: tuple[str, ...] = ()
    normalizer: str | None = None
    processor: str | None = None
    ignore_merges: bool | None = None


@dataclass(frozen=True)
class PretokenizerTable:
    classes: tuple[PretokenizerClass, ...]
    choices: tuple[NameChoice, ...]
    nfc: frozenset[str]

    @property
    def names(self) -> list[str]:
        return [n for c in self.classes for n in c.names]


@cache
def _document() -> Json:
    return read_table(__file__, "pretokenizers.toml")


@cache
def table() -> PretokenizerTable:
    """Returns the table, read from the package once."""
    raw = _document()
    classes = []
    names = ("ignore_merges", "add_bos", "raw", "metaspace", "merges_optional")
    for row in raw["class"]:
        steps = tuple(BYTES if step == BYTES else raw["pattern"][step] for step in row.get("steps", ()))
        flags = {name: bool(row.get(name, False)) for name in names}
        classes.append(PretokenizerClass(row["class"], tuple(row["names"]), steps, tuple(map(key, steps)), **flags))
    choices: Iterator[Json] = (
        {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()} for row in raw["choose"]
    )
    return PretokenizerTable(tuple(classes), tuple(NameChoice(**fields) for fields in choices), frozenset(raw["nfc"]))


def same_rules(a: str | None, b: str | None) -> bool:
    """Whether llama.cpp splits texts in the same way under both names."""
    return a == b or any({a, b} <= {*row.names} for row in table().classes)


def key(step: Any) -> str:
    """Returns a table step in canonical form."""
    if step == BYTES:
        return BYTES
    if isinstance(step, str):
        return f"Isolated {spelled(step)}"
    if step["type"] == "Split":
        return f"{step['behavior']} {spelled(step['regex'])}"
    return f"{step['type']} {step['behavior']}"


def spelled(regex: str) -> str:
    return regex.replace("\r", "\\r").replace("\n", "\\n").replace("\t", "\\t").replace(*SUFFIXES)


def flat(item: Any, child: str, depth: int = 0) -> Iterator[Json]:
    """Yields the items of a possibly nested `Sequence`; none for null."""
    if depth > JSON_DEPTH:
        raise FormatError("nested too deeply", path="tokenizer.json", field=child)
    if isinstance(item, dict) and item.get("type") == "Sequence" and isinstance(item.get(child), list):
        for inner in item[child]:
            yield from flat(inner, child, depth + 1)
    elif isinstance(item, dict):
        yield item
    elif item is not None:
        raise FormatError("not an object", path="tokenizer.json", field=child, found=type(item).__name__)


def canonical(pre_tokenizer: Json | None) -> Steps:
    """Returns the chain in canonical form, with unsupported steps as `unknown: ...`."""
    return tuple(s for item in flat(pre_tokenizer, "pretokenizers") for s in steps_of(item))


def steps_of(item: Json) -> tuple[str, ...]:
    kind = item.get("type")
    if kind == "ByteLevel" and item.get("add_prefix_space", True) is False:
        return (key(built_in_regex()), BYTES) if item.get("use_regex", True) else (BYTES,)
    if kind == "Digits":
        return ("Isolated \\p{N}" if item.get("individual_digits") else "Isolated \\p{N}+",)
    if kind == "Punctuation":
        return (f"Punctuation {item.get('behavior', 'Isolated')}",)
    if kind == "Split" and isinstance(pattern := item.get("pattern"), dict) and isinstance(pattern.get("Regex"), str):
        behavior, invert = item.get("behavior"), bool(item.get("invert", False))
        if behavior == "Removed" and invert:
            behavior, invert = "Isolated", False
        if not invert:
            return (f"{behavior} {spelled(pattern['Regex'])}",)
    return (UNKNOWN + ", ".join(f"{k}={v!r}" for k, v in item.items() if k != "trim_offsets")[:200],)


def built_in_regex() -> str:
    """Returns the regex that is built into `ByteLevel`."""
    return str(_document()["pattern"]["gpt2"])


def recognise(
    steps: Steps,
    tokens: Collection[str],
    *,
    ignore_merges: bool = False,
    normalizer: str | None = None,
    processor: str | None = None,
) -> str:
    """Returns the name for a canonical chain over this vocabulary. Raises UnsupportedError with the nearest name."""
    rows = [c for c in table().classes if c.canonical]
    names = {n for c in rows if c.canonical == steps for n in c.names}
    for choice in table().choices:
        if (
            choice.name in names
            and all(t in tokens for t in choice.tokens)
            and choice.normalizer in (None, normalizer)
            and choice.processor in (None, processor)
            and choice.ignore_merges in (None, ignore_merges)
        ):
            return choice.name
    text = " > ".join(steps)
    nearest = max(rows, key=lambda c: difflib.SequenceMatcher(None, text, " > ".join(c.canonical), False).ratio())
    raise UnsupportedError(
        f"llama.cpp has no pre-tokenizer with this definition: {text or 'none'}",
        hint=f"the nearest is {nearest.names[0]!r}; use --pre NAME to write a name of your choice",
    )


def known(name: str) -> PretokenizerClass:
    """Returns the row of a name. Raises UnsupportedError for a name that llama.cpp doesn't know and refuses to load."""
    row = next((c for c in table().classes if name in c.names), None)
    if row is None:
        close = difflib.get_close_matches(name, table().names, 3, 0.5) or ["gpt-2", "llama-bpe", "qwen2"]
        raise UnsupportedError(f"llama.cpp has no pre-tokenizer named {name!r}", hint=f"it has {', '.join(close)} ...")
    return row


def definition(name: str) -> Json:
    """Returns a name's `pre_tokenizer` for tokenizer.json."""
    row = known(name)
    if row.raw:
        return dict(METASPACE if row.metaspace else BETWEEN)
    if not row.steps:
        raise UnsupportedError(
            f"the pre-tokenizer {name!r} has no known definition in tokenizer.json",
            hint="use --pre NAME with a name that has one (gpt-2, llama-bpe, qwen2 ...)",
        )
    items: list[Json] = []
    for step in row.steps:
        if step == BYTES and items and items[-1] == split(built_in_regex()):
            items[-1] = byte_level(True)
        else:
            items.append(byte_level(False) if step == BYTES else split(step))
    return items[0] if len(items) == 1 else {"type": "Sequence", "pretokenizers": items}


def split(step: Any) -> Json:
    """Returns a table step in tokenizer.json's form."""
    if isinstance(step, dict) and step["type"] != "Split":
        return dict(step)
    regex = step if isinstance(step, str) else step["regex"]
    if regex in ("\\p{N}", "\\p{N}+"):
        return {"type": "Digits", "individual_digits": regex == "\\p{N}"}
    behavior = "Isolated" if isinstance(step, str) else step["behavior"]
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": False}


def byte_level(use_regex: bool) -> Json:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
