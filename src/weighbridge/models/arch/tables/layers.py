"""Sets of layers (a table's `[layers]`): computed from a config or a GGUF, and written back to a config.

The first expression of a set (`expression.py`) whose keys are present counts. These are pure functions over parsed JSON
and metadata; contradictions with the number of layers are FormatErrors.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from typing import Any, Final

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.expression import evaluate
from weighbridge.models.arch.tables.schema import LayerSetEntry
from weighbridge.models.arch.tables.values import integer

Layers = frozenset[int]
_ALL: Final = "layers"  # the name of all layers, in slices


def optional_layers(sets: Mapping[str, LayerSetEntry], known: Mapping[str, Layers]) -> Layers:
    """The layers of optional sets, as far as these are known."""
    return frozenset[int]().union(*(known[name] for name, s in sets.items() if s.optional and name in known))


def layer_sets(
    sets: Mapping[str, LayerSetEntry], side: str, values: Mapping[str, Any], count: Callable[[str], int]
) -> dict[str, Layers]:
    """Every set of a model. `side`: "hf" or "gguf". `count`: returns the number of values of an index; "": the layer's.
    FormatError if a set has no source."""
    out: dict[str, Layers] = {}
    for name, layer_set in sets.items():
        sources: list[str] = getattr(layer_set, side)
        reader = _Reader(values, count(layer_set.index) - len(optional_layers(sets, out)), out)
        layers = next((s for source in sources if (s := reader.read(expression.parse(source))) is not None), None)
        if layers is None:
            key = next(expression.names(expression.parse(sources[0])), name)
            raise FormatError("is needed to tell the kinds of layers apart", field=key)
        out[name] = layers | out[layer_set.include] if layer_set.include else layers
    return out


def set_orders(
    sets: Mapping[str, LayerSetEntry], side: str, values: Mapping[str, Any], known: Mapping[str, Layers]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The layers of each set with an `order`, in that order. FormatError for a list without a number for each."""
    out = []
    for name, key in ((name, layer_set.order[side]) for name, layer_set in sets.items() if layer_set.order):
        listed = expression.stated(values, key)
        if not isinstance(listed, Sequence) or len(listed) <= max(known[name], default=-1):
            raise FormatError("needs a number for each", field=key, found=repr(listed)[:80])
        by_number = {layer: integer(listed[layer], key) for layer in sorted(known[name])}
        out.append((name, tuple(sorted(by_number, key=by_number.__getitem__))))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads expressions over a config's or a GGUF's keys and the sets known so far, for a model of `count` layers."""

    values: Mapping[str, Any]
    count: int
    known: Mapping[str, Layers]

    def read(self, node: ast.expr) -> Layers | None:
        """The layers of an expression; None if its keys are absent."""
        if isinstance(node, ast.BoolOp):
            parts = [self.read(value) for value in node.values]
            join = Layers.intersection if isinstance(node.op, ast.And) else Layers.union
            return None if None in parts else reduce(join, (part for part in parts if part is not None))
        if isinstance(node, ast.UnaryOp):
            operand = self.read(node.operand)
            return None if operand is None else frozenset(range(self.count)) - operand
        if isinstance(node, ast.Subscript):
            return self._slice(node)
        if (called := expression.call(node)) is not None:
            name = str(expression.constant(called[1][0]))
            return frozenset(i for i in range(self.count) if self.values.get(f"@{name.replace('{l}', str(i))}"))
        if isinstance(node, ast.Compare):
            if (first := expression.first_number(node)) is None:
                return self._entries(expression.path(node.left) or "", compared(node))
            key = expression.path(node.comparators[0]) or ""
            listed = expression.stated(self.values, key)
            return None if listed is None else frozenset(_numbers(listed, key, self.count, first))
        key = expression.path(node) or ""
        return self.known[key] if key in self.known else self._entries(key, None)

    def _entries(self, key: str, constants: Collection[Any] | None) -> Layers | None:
        """The layers whose entry in a list is one of the constants; None: is set. A number or a word counts for all
        layers, but a text that is compared with letters has one per layer."""
        entries = expression.stated(self.values, key)
        if entries is None:
            return None
        if isinstance(entries, str):
            single = constants is None or any(len(word) != 1 for word in constants)
        else:
            single = not hasattr(entries, "__len__")
        if single:
            matches = entries if constants is None else entries in constants
            return frozenset(range(self.count)) if matches else frozenset()
        if len(entries) < self.count:
            raise FormatError("needs an entry per layer", field=key, expected=self.count, found=len(entries))
        return frozenset(i for i, e in enumerate(entries[: self.count]) if (e if constants is None else e in constants))

    def _slice(self, node: ast.Subscript) -> Layers | None:
        bounds = slice_bounds(node)
        numbers = [None if bound is None else evaluate(bound, self.values) for bound in bounds]
        if any(bound is not None and value is None for bound, value in zip(bounds, numbers, strict=True)):
            return None
        lo, hi, step = numbers
        source = ast.unparse(node)
        if (low := min(lo or 0, hi or 0)) < 0:
            raise FormatError("is not a number of layers", field=source, expected="0 or more", found=low)
        if step is not None and step < 1:
            raise FormatError("is not a step between layers", field=source, expected="a positive number", found=step)
        return frozenset(range(self.count)[slice(lo, hi, step)])


def compared(node: ast.Compare) -> tuple[Any, ...]:
    """The constants that entries are compared with: `== "a"`, `in ("a", "b")`."""
    return tuple(expression.constant(element) for element in expression.elements(node.comparators[0]))


def slice_bounds(node: ast.expr) -> tuple[str | None, str | None, str | None]:
    """The bounds of `layers[lo:hi:step]` as expressions; None for an omitted one."""
    if not (
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and expression.path(node.value) == _ALL
    ):
        raise UsageError(f"{ast.unparse(node)} is not a slice of layers; write layers[lo:hi:step]")
    parts = (node.slice.lower, node.slice.upper, node.slice.step)
    lo, hi, step = (None if part is None else ast.unparse(part) for part in parts)
    return lo, hi, step


def _numbers(listed: Any, key: str, count: int, first: int) -> Sequence[int]:
    """The layers in a list of numbers, in which the first layer is number `first`."""
    last = first + count - 1
    is_list = isinstance(listed, Sequence) and not isinstance(listed, str | bytes)
    if not is_list or any(type(i) is not int or not first <= i <= last for i in listed):
        raise FormatError(
            "is not a list of layers", field=key, expected=f"numbers from {first} to {last}", found=listed
        )
    return [i - first for i in listed]


# ---------------------------------------------------------------------- the inverse


def as_config(sets: Mapping[str, LayerSetEntry], known: Mapping[str, Layers], count: int) -> dict[str, Any]:
    """The sets as entries of a config by dotted path, each by its first expression. Optional layers aren't counted,
    except in a list of their numbers. Other sets and sizes add what one set leaves open."""
    out: dict[str, Any] = {}
    optional = optional_layers(sets, known)
    count -= len(optional)
    for name, layer_set in sets.items():
        if layer_set.index:  # rules restore these
            continue
        node, layers = expression.parse(layer_set.hf[0]), known[name] - optional
        if layer_set.optional:
            if isinstance(node, ast.Compare) and (first := expression.first_number(node)) is not None:
                out[expression.path(node.comparators[0]) or ""] = [first + i for i in sorted(known[name])]
            continue
        if isinstance(node, ast.BoolOp):
            base, flag = node.values  # `SET and flag` or `SET and not flag`
            key = expression.path(flag.operand if isinstance(flag, ast.UnaryOp) else flag) or ""
            if known[expression.path(base) or ""]:
                out[key] = bool(layers) != isinstance(flag, ast.UnaryOp)
        elif isinstance(node, ast.Subscript):
            lo, _, step = slice_bounds(node)
            out |= _periodic(lo or "", step, layers, count) if step else {}
        elif isinstance(node, ast.Compare) and (first := expression.first_number(node)) is not None:
            out[expression.path(node.comparators[0]) or ""] = [first + i for i in sorted(layers)]
        elif isinstance(node, ast.Compare):
            listed = out.setdefault(expression.path(node.left) or "", [None] * count)
            for i in layers:
                listed[i] = compared(node)[0]
    if open_key := next((key for key, v in out.items() if isinstance(v, list) and None in v), None):
        raise FormatError("layer type has no config.json equivalent", field=open_key, found=out[open_key])
    return out


def _periodic(lo: str, step: str, layers: Layers, count: int) -> dict[str, int]:
    """The first layer and the step of `layers[lo::step]`, if the layers follow one."""
    if not lo.isidentifier() or not step.isidentifier():
        raise UsageError(f"layers[{lo}::{step}] cannot be derived from layer indices")
    first, *further = sorted(layers) or [count]
    period = further[0] - first if further else max(count, first + 1)
    if frozenset(range(count)[first::period]) != layers or first >= period:
        raise FormatError("the layers follow no period", field=step, found=sorted(layers))
    return {lo: first, step: period}
