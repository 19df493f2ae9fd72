"""A model's layers: how its tensors are numbered, and which of them a selection covers.

A stack is a run of names that differ in one number: `model.layers.0.` ... `model.layers.31.`, `blk.0.` ... It is found
by its numbers and the config's layer count, so that models of families without a table have layers too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.limits import MAPPED_TENSORS
from weighbridge.base.records import dataclass

_NUMBERED: Final = re.compile(r"(?P<prefix>(?:.*?\.)??)(?P<number>0|[1-9]\d{0,8})\.(?P<rest>.*)", re.ASCII | re.DOTALL)
_RANGE: Final = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})?)?\s*", re.ASCII)


@dataclass(frozen=True)
class LayerStack:
    """`prefix`: the part of a name before the layer number; `count`: the number of layers."""

    prefix: str
    count: int

    def layer(self, name: str) -> int | None:
        """Returns the layer of a tensor or module."""
        if not name.startswith(self.prefix):
            return None
        number = name[len(self.prefix) :].partition(".")[0]
        return int(number) if number.isdecimal() and number.isascii() and len(number) < 10 else None

    def moved(self, name: str, to: int) -> str:
        """Returns the name of the same tensor in another layer."""
        _, dot, suffix = name[len(self.prefix) :].partition(".")
        return f"{self.prefix}{to}{dot}{suffix}"


_FURTHER: Final = "mtp"  # layers that predict further tokens, if they have numbers of their own


def _numbers_by_prefix(names: Iterable[str]) -> dict[str, set[int]]:
    """Returns the prefixes before a number in names, each with the numbers that occur."""
    out: dict[str, set[int]] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            out.setdefault(match["prefix"], set()).add(int(match["number"]))
    return out


def without_layer(name: str) -> str:
    """Returns a name with `*` for its first number, in which layers differ."""
    match = _NUMBERED.fullmatch(name)
    return f"{match['prefix']}*.{match['rest']}" if match else name


def stacks(names: Iterable[str]) -> list[LayerStack]:
    """Returns the stacks that are numbered from 0 without a gap."""
    return [LayerStack(prefix, len(ns)) for prefix, ns in _numbers_by_prefix(names).items() if max(ns) == len(ns) - 1]


def find_stack(names: Iterable[str], stated: int | None) -> LayerStack:
    """Returns the stack of a model whose config declares `stated` layers. Raises UnsupportedError if there is none, or
    several."""
    names = list(names)
    likely = [s for s in stacks(names) if (s.count > 1 if stated is None else s.count >= stated)]
    likely = [s for s in likely if s.count == stated] or likely
    likely = [s for s in likely if _FURTHER not in s.prefix.split(".")] or likely
    if len(likely) == 1:
        return likely[0]
    declared = "" if stated is None else f" The config declares {stated}."
    if not likely:
        numbered = list(_numbers_by_prefix(names).items())[:4]
        have = ", ".join(f"{prefix}N ({len(numbers)})" for prefix, numbers in numbered) or "none"
        raise UnsupportedError(
            f"no tensor names are numbered from 0 like layers.{declared}", hint=f"numbered names: {have}"
        )
    several = ", ".join(f"{s.prefix}N ({s.count})" for s in likely[:4])
    raise UnsupportedError(
        f"the model has several stacks of layers: {several}.{declared}", hint="choose tensors by name: --keep, --drop"
    )


def lists_from_1(key: str, value: Any, kept: Sequence[int], count: int) -> Any:
    """Renumbers an object whose lists count layers from 1 (Kimi Linear's `linear_attn_config`)."""
    if not isinstance(value, Mapping):
        return value
    new = {old + 1: number for number, old in enumerate(kept, 1)}
    lists = {name: layers for name, layers in value.items() if name.endswith("_layers") and isinstance(layers, list)}
    return {**value, **{name: sorted(new[n] for n in layers if n in new) for name, layers in lists.items()}}


def parse_numbers(text: str, count: int, unit: str = "layer") -> tuple[int, ...]:
    """Parses `0-15`, `0,2,4-7` or `8-` to numbers below `count`, in the given order. Raises UsageError for anything
    else."""
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise UsageError(f"{part.strip()!r} isn't a selection of {unit}s", hint="write 0-15, or 0,2,4-7, or 8-")
        first = int(match[1])
        last = first if "-" not in part else int(match[2]) if match[2] else count - 1
        if last < first or last >= count:
            raise UsageError(f"there are no {unit}s {part.strip()}", hint=f"the model has 0 to {count - 1}")
        numbers += range(first, last + 1)
        if len(numbers) > MAPPED_TENSORS:
            raise UsageError(f"more {unit}s than any model has")
    return tuple(numbers)


def renumbered(names: Mapping[str, Any] | Sequence[Any], stack: LayerStack, places: Mapping[int, int]) -> Any:
    """Returns a config's per-module settings (`quantization`, modules not to convert) with layers renumbered."""
    if isinstance(names, Mapping):
        return {n: renumbered(v, stack, places) for key, v in names.items() if (n := _moved(key, stack, places))}
    if isinstance(names, list | tuple):
        kept = (renumbered(v, stack, places) for v in names)
        return [v for v in kept if v is not None]
    return _moved(names, stack, places) if isinstance(names, str) else names


def _moved(name: str, stack: LayerStack, places: Mapping[int, int]) -> str | None:
    layer = stack.layer(name)
    if layer is None:
        return name
    return stack.moved(name, places[layer]) if layer in places else None
