"""The language of `flows.toml`: which operators follow which, as a tree.

    flow("+( attention.norm > <attention> )", present) -> Residual(Series(Word(...), ...))

`present` has the canonical names of a layer's tensors; words without tensors are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

import msgspec

from weighbridge.base.imports.tables import read_table
from weighbridge.base.records import dataclass
from weighbridge.forward.graph import FamilyGraph

_TOKEN: Final = re.compile(r"\s*(\+\(|[()|>}-]|<\w+>|@[\w.]+|\w+\{|[\w.]+(?:\[[^\]]*\])?)")
#: Of the tensors of a word; adapters are drawn with the matrix that they change.
_ENDINGS: Final = ("", ".weight", ".bias", ".lora.a", ".lora.b")


class FunctionRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    kind: str
    join: bool = False
    weights: bool = False


class FunctionTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`function`: by word. `outside`: inputs from outside of a layer. `frame`, `title`: what drawings call frames and
    weights."""

    title: Mapping[str, str]
    function: Mapping[str, FunctionRow]
    outside: Mapping[str, str]
    frame: Mapping[str, str]


class PartVariant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`needs`: words or flags that select this variant."""

    needs: str
    flow: str


class FamilyFlow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A family whose graph isn't computed. `flow`: of its layers. `graph`: as in `graphs.toml`."""

    flow: str = "sequential"
    graph: FamilyGraph = FamilyGraph()
    flags: tuple[str, ...] = ()


class FlowTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    part: Mapping[str, tuple[PartVariant, ...]]
    layer: Mapping[str, str]
    outside: Mapping[str, str]
    family: Mapping[str, FamilyFlow]


@cache
def functions() -> FunctionTable:
    return msgspec.convert(_toml("functions.toml"), FunctionTable)


@cache
def flows() -> FlowTable:
    return msgspec.convert(_toml("flows.toml"), FlowTable)


def _toml(name: str) -> object:
    return read_table(__file__, name)


@dataclass(frozen=True, slots=True)
class Word:
    """An operator. `roles`: the canonical names of its tensors."""

    word: str
    roles: tuple[str, ...] = ()

    @property
    def function(self) -> FunctionRow | None:
        """The function that the word names; None for a weight."""
        return functions().function.get(self.word)


@dataclass(frozen=True, slots=True)
class ElsewhereValue:
    """Reads the output of a word elsewhere, or an input from outside of the layer."""

    word: str


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The input as it is."""


@dataclass(frozen=True, slots=True)
class Series:
    items: tuple[Flow, ...]


@dataclass(frozen=True, slots=True)
class Lanes:
    items: tuple[Flow, ...]


@dataclass(frozen=True, slots=True)
class Residual:
    inner: Flow


@dataclass(frozen=True, slots=True)
class Frame:
    name: str
    inner: Flow


Flow = Word | ElsewhereValue | Unchanged | Series | Lanes | Residual | Frame


@dataclass(frozen=True)
class Present:
    """The contents of a layer. `roles`: its tensors. `flags`: variants of parts. `bare`: weights that it does without.
    `functions`: whether a function takes place here, for those that not every layer has."""

    roles: Collection[str]
    flags: frozenset[str] = frozenset()
    bare: frozenset[str] = frozenset()
    functions: Callable[[str], bool] = lambda _: True

    def tensors(self, stems: Sequence[str]) -> tuple[str, ...]:
        return tuple(stem + ending for stem in stems for ending in _ENDINGS if stem + ending in self.roles)

    def has(self, word: str) -> bool:
        return word in self.flags or bool(self.tensors([word]))


def flow(text: str, present: Present) -> Flow | None:
    """Parses a flow and leaves out what isn't there; None if nothing is."""
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r"\s+(?![^\[]*\])", "", text):
        raise ValueError(f"not a flow: {text}")
    return _Parser(iter([*tokens, ""]), present).lanes("")


class _Parser:
    """Reads tokens; each method returns the flow that it reads, None if nothing of it is present."""

    def __init__(self, tokens: Iterator[str], present: Present) -> None:
        self._tokens, self._present = tokens, present
        self._token = next(tokens)

    def _take(self) -> str:
        token, self._token = self._token, next(self._tokens, "")
        return token

    def lanes(self, end: str) -> Flow | None:
        """Reads lanes up to `end`."""
        lanes = [self._series()]
        while self._token == "|":
            self._take()
            lanes.append(self._series())
        if self._take() != end:
            raise ValueError(f"a flow lacks {end!r}")
        kept = [lane for lane in lanes if lane is not None and (len(lanes) == 1 or _matters(lane))]
        if len(kept) > 1:
            return Lanes(tuple(kept))
        return kept[0] if kept else None

    def _series(self) -> Flow | None:
        items: list[Flow] = []
        while True:
            item = self._item()
            joins = isinstance(item, Word) and item.function is not None and item.function.join
            if item is not None and (not joins or (items and isinstance(items[-1], Lanes))):
                items += item.items if isinstance(item, Series) else [item]
            if self._token != ">":
                break
            self._take()
        if not items:
            return None
        return items[0] if len(items) == 1 else Series(tuple(items))

    def _item(self) -> Flow | None:
        token = self._take()
        if token == "-":
            return Unchanged()
        if token in ("(", "+("):
            inner = self.lanes(")")
            return Residual(inner) if token == "+(" and inner is not None else inner
        if token.endswith("{"):
            inner = self.lanes("}")
            return None if inner is None or not any(w.roles for w in words(inner)) else Frame(token[:-1], inner)
        if token.startswith("<"):
            return part(token[1:-1], self._present)
        if token.startswith("@"):
            word = token[1:]
            return ElsewhereValue(word) if word in functions().outside or self._present.has(word) else None
        return self._word(token)

    def _word(self, token: str) -> Flow | None:
        word, _, weights = token.partition("[")
        function = functions().function.get(word)
        if function is None:
            roles = self._present.tensors([word])
            return Word(word, roles) if roles or word in self._present.bare else None
        roles = self._present.tensors(weights.removesuffix("]").split())
        if (function.weights and not roles) or not self._present.functions(word):
            return None
        return Word(word, roles)


def part(name: str, present: Present) -> Flow | None:
    """The first variant of a part that a layer has; None if it has none."""
    for variant in flows().part[name]:
        if all(map(present.has, variant.needs.split())):
            return flow(variant.flow, present)
    return None


def _matters(item: Flow) -> bool:
    """Whether a lane is more than functions of its input."""
    return isinstance(item, Unchanged) or any(
        word.roles or word.function is None or word.function.kind == "part" or word.word == "sigmoid_gate"
        for word in words(item)
    )  # fmt: skip


def words(item: Flow) -> Iterator[Word]:
    """Yields the operators of a flow, in its order."""
    if isinstance(item, Word):
        yield item
    elif isinstance(item, (Series, Lanes)):
        for inner in item.items:
            yield from words(inner)
    elif isinstance(item, (Residual, Frame)):
        yield from words(item.inner)
