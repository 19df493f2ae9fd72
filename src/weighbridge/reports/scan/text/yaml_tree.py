"""Reads YAML as its loaders do: PyYAML's own parser yields events, and plain values are built from them. No tag is
obeyed.

    read(text) -> YamlText        the documents, every tag in full, and why PyYAML stopped

An alias is the same object as its anchor's value, so the size of the result is linear in the text.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import Any, Final

from weighbridge.base.records import dataclass

_DEPTH: Final = 100  # real files nest below 20; PyYAML's own composer recurses
_TRUE: Final = frozenset({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
_TEXT_TAGS: Final = frozenset({"!", "tag:yaml.org,2002:str"})


class ParsedMapping(dict[str, Any]):
    """A mapping or a JSON object as Python reads it, and the keys that it has more than once."""

    repeated: frozenset[str] = frozenset()

    def fill(self, pairs: list[tuple[str, Any]]) -> ParsedMapping:
        self.update(pairs)
        if len(self) != len(pairs):
            self.repeated = frozenset(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        return self


class Opaque(str):
    """A scalar whose value differs from its text: an alias without an anchor, or a scalar with its own tag."""

    __slots__ = ()


@dataclass
class YamlText:
    """`documents`: their values. `tags`: every tag, with its handle expanded. `handles`: whether %TAG lines rename
    tags. `refused`: why PyYAML stopped; "" if it read everything."""

    documents: list[Any] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    handles: bool = False
    refused: str = ""


@dataclass
class _Node:
    """An unfinished collection. `key`: the key of a mapping whose value is next."""

    value: ParsedMapping | list[Any]
    pairs: list[tuple[str, Any]] = field(default_factory=list)
    key: str | None = None

    def take(self, value: Any) -> None:
        if isinstance(self.value, list):
            self.value.append(value)
        elif self.key is None:
            # A key that is a collection names nothing, but its contents count.
            self.key = value if isinstance(value, str) else f"?{len(self.pairs)}"
            if not isinstance(value, str):
                self.pairs.append((f"{self.key} key", value))
        else:
            self.pairs.append((self.key, value))
            self.key = None

    def close(self) -> None:
        if isinstance(self.value, ParsedMapping):
            self.value.fill(self.pairs)


def read(text: str) -> YamlText:
    """The values of a YAML text."""
    import yaml  # type: ignore[import-untyped]

    result, anchors, stack = YamlText(), dict[str, Any](), [_Node([])]
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.DocumentStartEvent):
                result.handles |= bool(event.tags)
            elif isinstance(event, yaml.AliasEvent):
                stack[-1].take(anchors.get(event.anchor, Opaque(f"*{event.anchor}")))
            elif isinstance(event, yaml.CollectionEndEvent):
                stack.pop().close()
            elif isinstance(event, yaml.NodeEvent):
                result.tags += [event.tag] if event.tag is not None else []
                if not isinstance(event, yaml.ScalarEvent):
                    value: Any = ParsedMapping() if isinstance(event, yaml.MappingStartEvent) else []
                elif event.tag is not None and event.tag not in _TEXT_TAGS:
                    value = Opaque(event.value)
                else:
                    value = True if event.implicit[0] and event.style is None and event.value in _TRUE else event.value
                stack[-1].take(value)
                if event.anchor is not None:
                    anchors[event.anchor] = value
                if isinstance(event, yaml.CollectionStartEvent):
                    stack.append(_Node(value))
                    if len(stack) > _DEPTH:
                        result.refused = "it is nested too deeply to be followed"
                        break
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        result.refused = f"PyYAML stops: {getattr(error, 'problem', None) or type(error).__name__}"
    for node in reversed(stack):
        node.close()
    result.documents = stack[0].value  # type: ignore[assignment]
    return result
