"""Which of a model's layers are of which kind: the sets that a table's `[layers]` names, from a config, from a GGUF,
and as a config says them again.

A set is stated in one of these ways, the first whose keys are there:

    KEY: A, B     a list (or a string of letters) with an entry for each layer, which is A or B
    in KEY        a list of layers' numbers
    [lo:hi:step]  from sizes and numbers, as a slice
    KEY           an array with an entry for each layer, which is there, true or not zero; one value: all layers or none
    @NAME         whether a GGUF has this tensor ({l}: the layer)
    !SET, SET     the layers that aren't in other sets; `!` and one of these ways: that it doesn't say
    SET if WAY    those of another set that one of these ways says too; `SET unless WAY`: that it doesn't

Pure functions over parsed JSON and metadata; what contradicts the number of layers is a FormatError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.models.arch.config import evaluate

Layers = frozenset[int]
_CONDITIONS: Final = {" if ": frozenset[int].intersection, " unless ": frozenset[int].difference}


@dataclass(frozen=True, slots=True)
class Kind:
    """Where a config and a GGUF say which layers are in a set. `spare`: the tensors of these layers may all be absent,
    though the config counts them; lists by layer end before them. `also`: a set whose layers are in it too."""

    hf: tuple[str, ...]
    gguf: tuple[str, ...]
    spare: bool = False
    also: str = ""


def parse_kinds(doc: Mapping[str, Any]) -> dict[str, Kind]:
    return {
        name: Kind(tuple(row["hf"]), tuple(row["gguf"]), row.get("spare", False), row.get("also", ""))
        for name, row in doc.items()
    }


def spare_layers(kinds: Mapping[str, Kind], sets: Mapping[str, Layers]) -> Layers:
    """The layers whose tensors may all be absent, of the sets that are known."""
    return frozenset[int]().union(*(sets[name] for name, kind in kinds.items() if kind.spare and name in sets))


def layer_sets(kinds: Mapping[str, Kind], side: str, values: Mapping[str, Any], count: int) -> dict[str, Layers]:
    """Every set of a model with `count` layers. `side`: "hf" or "gguf". FormatError where nothing says one."""
    out: dict[str, Layers] = {}
    for name, kind in kinds.items():
        sources: tuple[str, ...] = getattr(kind, side)
        listed = count - len(spare_layers(kinds, out))
        found = next((s for source in sources if (s := _read(source, values, listed, out)) is not None), None)
        if found is None:
            raise FormatError("doesn't say which layers are which", field=sources[0].partition(":")[0])
        out[name] = found | out[kind.also] if kind.also else found
    return out


def _read(source: str, values: Mapping[str, Any], count: int, known: Mapping[str, Layers]) -> Layers | None:
    """The layers that one source says; None where its keys are absent."""
    for word, kept in _CONDITIONS.items():
        if word in source:
            name, _, way = source.partition(word)
            told = _read(way, values, count, known)
            return None if told is None else kept(known[name], told)
    if source.startswith("!"):
        names = [name.strip() for name in source[1:].split(",")]
        named = set(names) <= known.keys()
        others = (
            known[names[0]].union(*map(known.__getitem__, names)) if named else _read(source[1:], values, count, known)
        )
        return None if others is None else frozenset(range(count)) - others
    if source.startswith("["):
        return _slice(source, values, count)
    if source.startswith("@"):
        return frozenset(i for i in range(count) if values.get(source.replace("{l}", str(i))))
    if source.startswith("in "):
        listed = values.get(source[3:])
        return None if listed is None else frozenset(_numbers(listed, source[3:], count))
    key, _, wanted = source.partition(":")
    entries = values.get(key)
    if entries is None:
        return None
    if not hasattr(entries, "__len__"):
        return frozenset(range(count)) if entries else frozenset()
    if len(entries) < count:
        raise FormatError("hasn't an entry for each layer", field=key, expected=count, found=len(entries))
    names = [word.strip() for word in wanted.split(",")]
    return frozenset(i for i, e in enumerate(entries[:count]) if (e in names if wanted else e))


def _numbers(listed: Any, key: str, count: int) -> Sequence[int]:
    if not isinstance(listed, list | tuple) or any(type(i) is not int or not 0 <= i < count for i in listed):
        raise FormatError("isn't a list of layers", field=key, expected=f"numbers below {count}", found=listed)
    return listed


def _slice(source: str, values: Mapping[str, Any], count: int) -> Layers | None:
    parts = (*source.strip("[]").split(":"), "", "")[:3]
    lo, hi, step = (evaluate(part, values) if part else None for part in parts)
    if any(part and bound is None for part, bound in zip(parts, (lo, hi, step), strict=True)):
        return None
    if (low := min(lo or 0, hi or 0)) < 0:
        raise FormatError("isn't a number of layers", field=source, expected="0 or more", found=low)
    if step is not None and step < 1:
        raise FormatError("isn't a step from layer to layer", field=source, expected="a positive number", found=step)
    return frozenset(range(count)[slice(lo, hi, step)])


def as_config(kinds: Mapping[str, Kind], sets: Mapping[str, Layers], count: int) -> dict[str, Any]:
    """The sets as a config says them, each in the first of its ways; spare layers it counts."""
    out: dict[str, Any] = {}
    spare = spare_layers(kinds, sets)
    count -= len(spare)
    for name, kind in ((n, k) for n, k in kinds.items() if not k.spare):
        source, layers = kind.hf[0], sets[name] - spare
        if word := next((word for word in _CONDITIONS if word in source), None):
            out |= _flag(source, word, layers, sets)
        elif source.startswith("["):
            out |= _periodic(source, layers, count) if source.count(":") > 1 else {}  # else sizes of their own say it
        elif source.startswith("in "):
            out[source[3:]] = sorted(layers)
        elif not source.startswith("!"):
            key, _, wanted = source.partition(":")
            listed = out.setdefault(key, [None] * count)
            for i in layers:
                listed[i] = wanted.partition(",")[0].strip()
    if unsaid := next((key for key, v in out.items() if isinstance(v, list) and None in v), None):
        raise FormatError("a layer is of no kind that a config has a word for", field=unsaid, found=out[unsaid])
    return out


def _flag(source: str, word: str, layers: Layers, sets: Mapping[str, Layers]) -> dict[str, bool]:
    """The key of a condition, which a config says once for all layers of the other set; nothing where that has none."""
    name, _, key = source.partition(word)
    return {key: bool(layers) == (word == " if ")} if sets[name] else {}


def _periodic(source: str, layers: Layers, count: int) -> dict[str, int]:
    """The first layer and the step of `[lo::step]`: what recurs behind the last layer recurs nowhere."""
    lo, _, step = source.strip("[]").split(":")
    if not lo.isidentifier() or not step.isidentifier():
        raise UsageError(f"{source} can't be said from the layers alone")
    first, *rest = sorted(layers) or [count]
    period = rest[0] - first if rest else max(count, first + 1)
    if frozenset(range(count)[first::period]) != layers or first >= period:
        raise FormatError("the layers follow no period", field=step, found=sorted(layers))
    return {lo: first, step: period}
