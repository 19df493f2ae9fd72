"""The expression grammar of family tables: shapes, sizes, layer sets, conditions and layout calls.

The grammar is a subset of Python's expressions with Python's precedence. Depending on the field, names are keys of a
config, keys of a GGUF (without the architecture's name), sizes, or sets of layers.

    n_head * head_dim // 2             arithmetic: `+ - *`, and `//`, which rounds down
    max(64, hidden_size // 16)         the larger of two numbers
    len(tokenizer.ggml.tokens)         length of a list
    uniform(head_count_kv)             the only value in a list by layer, except zeros
    head_count_kv[full]                the only value of a set's layers in a list by layer
    layers[lo:hi:step]                 layers by number, as a slice
    layer_types == "mamba"             layers with this entry in a list; `in ("a", "b")`: with one of these
    layout == "split"                  all layers if the value is this word; a text of letters is a list of them
    layer in moe_layers                layers whose number is in a list; `layer + 1`: in a list that counts from 1
    feed_forward_length                layers whose entry in a list is set and not zero; a single value: all or none
    tensor("blk.{l}.attn_v.weight")    whether the model has this tensor
    key("block_size")                  whether a GGUF has this key, in conditions that identify a class
    listed("expert_used_count")        whether a GGUF has a list under this key, in the same conditions
    rows("v.position_embd.weight")     first dimension of this tensor, with {l} of any layer; `columns`: the second one
    count("a.blk.{n}.ln1.weight")      number of tensors of this name, counted from 0
    not full, a and b, a or b          conditions and sets combined
    rope(H), times(a, b[2])            a layout and its arguments, which may be decimals: `shift(0.2)`

A mistake is a UsageError that names the column. `check.py` checks that an expression has the form that its field needs.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import LAYERS
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.models.arch.tables.values import Config, integer, one_value

Expr = ast.expr
_LONGEST: Final = 400  # characters; the longest one in a shipped table has 100
_NODES: Final = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.Subscript, ast.Slice, ast.Attribute, ast.Name,
    ast.Constant, ast.Tuple, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip
_SIGNS: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_TESTS: Final = (ast.Eq, ast.In)
#: Functions of the names of tensors, and the prefix of such a name in a view's keys (see `ArchView`).
OF_TENSORS: Final = MappingProxyType({"rows": "#", "columns": "##", "count": "*"})
_NUMBER: Final = "{n}"


@lru_cache(maxsize=4096)
def parse(text: str, decimals: bool = False) -> Expr:
    """The syntax tree of an expression. `decimals`: allows decimals. UsageError names the column of a mistake."""
    if len(text) > _LONGEST:
        raise UsageError(f"an expression of {plural(len(text), 'character')} is too long (at most {_LONGEST})")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        column = getattr(error, "offset", None) or len(text) + 1
        raise mistake(text, column - 1, getattr(error, "msg", "invalid syntax")) from None
    for node in ast.walk(tree):
        if (problem := _problem(node, decimals)) is not None:
            raise mistake(text, getattr(node, "col_offset", 0), problem)
    return tree


def mistake(text: str, column: int, problem: str) -> UsageError:
    return UsageError(f"in {text!r}, column {column + 1}: {problem}")


def _problem(node: ast.AST, decimals: bool) -> str | None:
    """Why a node isn't part of the grammar, or None."""
    if not isinstance(node, _NODES):
        return f"{type(node).__name__} is not part of the expression grammar"
    if isinstance(node, ast.BinOp) and type(node.op) not in _SIGNS:
        return "use // to divide" if isinstance(node.op, ast.Div) else "unknown operator; use + - * //"
    if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not | ast.USub):
        return "unknown operator; use `not` or `-`"
    if isinstance(node, ast.Compare) and (len(node.ops) > 1 or not isinstance(node.ops[0], _TESTS)):
        return "unknown comparison; use == or in"
    if isinstance(node, ast.Constant) and type(node.value) not in (int, str, float if decimals else int):
        return "expected a whole number or a string"
    if isinstance(node, ast.Call) and (node.keywords or not isinstance(node.func, ast.Name)):
        return "a call has the form name(arguments)"
    return None


def path(node: ast.AST) -> str | None:
    """A dotted name such as `rope.dimension_count`; None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{left}.{node.attr}" if (left := path(node.value)) else None
    return None


def names(node: ast.AST) -> Iterator[str]:
    """The dotted names in an expression, from left to right, without names of functions."""
    if (name := path(node)) is not None:
        yield name
        return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.Call) and child is node.func):
            yield from names(child)


def call(node: ast.AST) -> tuple[str, tuple[ast.expr, ...]] | None:
    """The function's name and the arguments of a call."""
    return (node.func.id, tuple(node.args)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None


def constant(node: ast.AST | None) -> Any:
    """The value of a constant; None for anything else."""
    return node.value if isinstance(node, ast.Constant) else None


def first_number(node: ast.Compare) -> int | None:
    """The number of the first layer in a list: 0 for `layer in a`, 1 for `layer + 1 in a`; None for others."""
    left = node.left
    if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add) and path(left.left) == "layer":
        first: int | None = constant(left.right)
        return first
    return 0 if path(left) == "layer" else None


def elements(node: ast.expr) -> tuple[ast.expr, ...]:
    """The parts of `a, b`, or a single expression."""
    return tuple(node.elts) if isinstance(node, ast.Tuple) else (node,)


# ---------------------------------------------------------------------- numbers


def evaluate(text: str, values: Mapping[str, Any]) -> int | None:
    """The integer value of an expression over a config's or a GGUF's keys (`values`, with the sets of layers under
    `layer_sets`). None if a key is absent or null, or a set is empty."""
    result = Evaluator(partial(stated, values), _scalar).number(parse(text))
    return None if result is None else int(result)


def layer_count(config: Config) -> int:
    """The number of layers of a config."""
    return integer(evaluate("num_hidden_layers", config) or 0, "num_hidden_layers", most=LAYERS)


def stated(values: Mapping[str, Any], key: str) -> Any:
    """The value of a key; for an absent dotted key, the value in the object under its first part."""
    value = values.get(key)
    first, _, inner_key = key.partition(".")
    if value is None and inner_key and isinstance(inner := values.get(first), Mapping):
        return stated(inner, inner_key)
    return value


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Computes numbers. `get` returns the value of a key; `operand` checks a value and converts it to a number."""

    get: Callable[[str], Any]
    operand: Callable[[Any, str], float]

    def number(self, node: ast.expr) -> float | None:
        """The number of an expression; None if one of its keys is absent or null."""
        if isinstance(node, ast.BinOp):
            left, right = self.number(node.left), self.number(node.right)
            if left is None or right is None:
                return None
            if isinstance(node.op, ast.FloorDiv) and right == 0:
                raise FormatError("is zero, but sizes are divided by it", field=ast.unparse(node.right))
            return _SIGNS[type(node.op)](left, right)
        if isinstance(node, ast.UnaryOp):
            operand = self.number(node.operand)
            return None if operand is None else -operand
        if isinstance(node, ast.Subscript):
            key = path(node.value) or ""
            return shared_value(self.get(key), key, self.get("layer_sets")[path(node.slice)])
        if (called := call(node)) is not None:
            function, arguments = called
            if function in ("max", "int"):
                numbers = [n for argument in arguments if (n := self.number(argument)) is not None]
                if len(numbers) < len(arguments):
                    return None
                return max(numbers) if function == "max" else int(numbers[0])
            if function == "tensor":
                return int(bool(self.get(f"@{constant(arguments[0])}")))
            if function in OF_TENSORS:
                size: int | None = self.get(f"{OF_TENSORS[function]}{constant(arguments[0])}")
                return size
            value = self.get(key := path(arguments[0]) or "")
            if function != "len":
                return by_layer(value, key)
            if value is not None and not hasattr(value, "__len__"):
                raise FormatError("is no list", field=key, found=repr(value)[:80])
            return len(value) or None if value is not None else None
        if isinstance(node, ast.Constant):
            if isinstance(value := constant(node), str):
                raise UsageError(f"{ast.unparse(node)} isn't a number")
            return int(value)
        key = path(node) or ""
        return None if (value := self.get(key)) is None else self.operand(value, key)


def by_layer(value: Any, key: str) -> int | None:
    """The one number in a list with an entry for each layer, zeros aside; a single number stands for all layers."""
    if value is None or not hasattr(value, "__len__"):
        return None if value is None else integer(value, key)
    return one_value({integer(v, key) for v in value} - {0}, key, default=0)


def shared_value(value: Any, key: str, layers: Collection[int]) -> int | None:
    """The one number that these layers have in a list with an entry for each layer; a single number is that of all."""
    if value is None or not layers:
        return None
    if not hasattr(value, "__len__"):
        return integer(value, key)
    if len(value) <= max(layers):
        raise FormatError("needs an entry per layer", field=key, expected=max(layers) + 1, found=len(value))
    return one_value({integer(value[i], key) for i in layers}, key)


def _scalar(value: Any, key: str) -> int:
    if not isinstance(value, int | float | str) and hasattr(value, "__len__"):
        raise FormatError("varies by layer, which this family's table doesn't describe", field=key)
    return integer(value, key)


# ---------------------------------------------------------------------- GGUFs


def numbered(name: str, names: Container[str]) -> int:
    """How many of the names `name` with 0, 1, 2 ... in place of `{n}` there are, up to the first that is missing."""
    found = (name.replace(_NUMBER, str(n)) in names for n in range(LAYERS if _NUMBER in name else 1))
    return sum(1 for _ in takewhile(bool, found))


class ArchView(Mapping[str, Any]):
    """A GGUF's key-values by their names without the architecture (`block_count` for `llama.block_count`). `@NAME` is
    whether it has that tensor, `#NAME` its first dimension, `##NAME` its second, `*NAME` how many there are.
    `layer_sets`: the sets of its layers, once they are computed."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str, names: Container[str] = ()) -> None:
        self._metadata, self._architecture, self._names = metadata, architecture, names
        self.layer_sets: Mapping[str, frozenset[int]] = {}

    def __getitem__(self, key: str) -> Any:
        if key == "layer_sets":
            return self.layer_sets
        if key.startswith("@"):
            return key[1:] in self._names
        if key.startswith("*"):
            return numbered(key[1:], self._names)
        if key.startswith("#"):
            return self._dimension(key.lstrip("#"), key.count("#", 0, 2) - 1)
        return self._metadata[key if key.startswith(("general.", "tokenizer.")) else f"{self._architecture}.{key}"]

    def _dimension(self, name: str, axis: int) -> int:
        names = self._names if isinstance(self._names, Mapping) else {}
        start, layer, end = name.partition("{l}")
        name = next((n for n in names if layer and n.startswith(start) and n.endswith(end)), name)
        entry = names.get(name)
        shape = getattr(entry, "shape", entry)
        if not shape or len(shape) <= axis:
            raise KeyError(name)
        return int(shape[axis])

    def __iter__(self) -> Any:
        return iter(self._metadata)

    def __len__(self) -> int:
        return len(self._metadata)

    def shows(self, conditions: Iterable[str]) -> bool:
        """Whether a condition such as `key and not tensor("x")` holds: the key is set and not 0, the tensor exists.
        `key("x")`: the key is set, be it to 0; `listed("x")`: to a list."""
        return any(self._holds(parse(condition)) for condition in conditions)

    def _holds(self, node: ast.expr) -> bool:
        if isinstance(node, ast.BoolOp):
            return (all if isinstance(node.op, ast.And) else any)(map(self._holds, node.values))
        if isinstance(node, ast.UnaryOp):
            return bool(self._names) and not self._holds(node.operand)
        if (called := call(node)) is not None:
            name = str(constant(called[1][0]))
            if called[0] == "tensor":
                return name in self._names
            return hasattr(self.get(name), "__len__") if called[0] == "listed" else self.get(name) is not None
        value = self.get(path(node) or "")
        return value is not None and not (isinstance(value, int | float) and value == 0)
