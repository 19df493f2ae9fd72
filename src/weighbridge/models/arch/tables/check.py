"""Checks a table beyond the types of its fields: all names in it must exist, and each expression must have the form
that its field needs. A typo there would silently lose a value. A mistake is a UsageError that names the place and the
nearest known word.

The tables of users and plug-ins are checked when they are read, the shipped ones by a test.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from weighbridge.base.errors import UsageError
from weighbridge.models.arch.computed import FUNCTIONS
from weighbridge.models.arch.config import DERIVED
from weighbridge.models.arch.tables.expression import (
    OF_TENSORS,
    call,
    constant,
    elements,
    first_number,
    mistake,
    names,
    parse,
    path,
)
from weighbridge.models.arch.tables.layers import slice_bounds
from weighbridge.models.arch.tables.schema import FamilyTable, MetaEntry, MlxEntry
from weighbridge.models.arch.tables.spec import INTEGERS, PREFIXES, Dialect, Role, numbering, placeholders
from weighbridge.models.arch.tables.validate import nearest_word

# The similarity from which on an unknown key is a typo: one letter in a dozen. Valid keys may be unknown to the other
# sections; the two nearest keys of published configs are `eos_token_id` and `eod_token_id` (0.917).
_TYPO = 0.92
_ALL_LAYERS = "*"


def check(table: FamilyTable, roles: Mapping[str, Role], dialects: Iterable[Dialect]) -> None:
    """Checks that all names in a table exist, and that joined roles differ only in their first axis."""
    layers = table.layers
    _check_meta(table)
    if not table.index or next(iter(table.index.values())) not in table.size:
        raise UsageError("index: the size of the first index, the number of layers, is unknown")
    for symbol, size in table.size.items():
        _check_expressions(f"size.{symbol}", (*size.hf, *size.gguf), partial(check_number, sets=layers))
    for name, layer_set in layers.items():
        _check_expressions(f"layers.{name}", (*layer_set.hf, *layer_set.gguf), check_layers)
    for name, entry in table.architecture.items():
        place = f"architecture.{name}"
        if not (entry.model_type or entry.shared_type):
            raise UsageError(f"{place}: model_type is missing")
        _check_expressions(place, entry.null.values(), check_number)
        _check_expressions(place, entry.gguf or (), check_condition)
        _check_expressions(place, entry.full_layers, lambda text: slice_bounds(parse(text)))
        _check_known(place, "set of layers", filter(None, (entry.requires, entry.forbids)), layers)
    for dialect in dialects:
        for template in dialect.templates:
            _check_known(template.name, "role", template.roles, roles)
            joined = [roles[name] for name in template.roles]
            if any(r.shape[1:] != joined[0].shape[1:] or r.group != joined[0].group for r in joined):
                raise UsageError(f"{template.name}: joined roles differ in shape or group")
            _check_known(template.name, "size", filter(None, [template.interleave]), table.size)
            _check_known(
                template.name, "index", [i for pair in numbering(template.name) for i in pair if i], table.index
            )
            _check_known(template.name, "size", (s for call in template.layouts for s in call.sizes), table.size)
            if any(call.row.from_config for call in template.layouts):
                raise UsageError(f"{template.name}: `times` isn't allowed on a fused tensor; put it on the roles")
        used = {i for name in dialect.drop for i in placeholders(name)}
        _check_known(f"drop.{dialect.name}", "index", used, {*table.index, *PREFIXES})
        _check_known(f"dialect.{dialect.name}.without", "set of layers", dialect.without, layers)
        sets = [name for template in dialect.templates for name, _ in template.set_names]
        _check_known(f"dialect.{dialect.name}.set_prefixes", "set of layers", sets, layers)
    for name, fuses in table.fuse.items():
        _check_known("fuse", "dialect", [name], table.dialect)
        for key, fuse in fuses.items():
            _check_known(f"fuse.{name}.{key}.roles", "role", fuse.roles, roles)
    _check_known("drop", "dialect", table.drop, table.dialect)
    for role in roles.values():
        _check_role(role, table, roles)


def _check_expressions(place: str, texts: Iterable[str], check_one: Callable[[str], object]) -> None:
    for text in texts:
        try:
            check_one(text)
        except UsageError as error:
            raise UsageError(f"{place}: {error}") from None


def _check_known(place: str, kind: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"{place}: unknown {kind} {name!r}{nearest_word(name, known)}")


def _check_role(role: Role, table: FamilyTable, roles: Mapping[str, Role]) -> None:
    place, layers = f"role.{role.name}", table.layers
    by_dialect = (role.names, role.layouts, role.shapes, role.zeros, role.unstacked, role.as_metadata)
    for column in by_dialect:
        _check_known(place, "dialect", column, table.dialect)
    for dim in (*role.shape, *(dim for shape in role.shapes.values() for dim in shape)):
        _check_expressions(f"{place}.shape", [dim], check_number)
    _check_known(f"{place}.shape", "size", role.symbols, table.size)
    for dialect, called in role.layouts.items():
        _check_known(f"{place}.layout.{dialect}", "size", called.sizes, table.size)
    if role.when is not None:
        _check_expressions(f"{place}.when", [role.when], check_condition)
        _check_known(f"{place}.when", "size", names(parse(role.when)), table.size)
    _check_known(f"{place}.tied", "role", filter(None, [role.tied]), roles)
    _check_known(f"{place}.copies", "role", filter(None, [role.copies]), roles)
    _check_known(f"{place}.written_with", "role", filter(None, [role.written_with]), roles)
    if role.computed is not None:
        _check_known(f"{place}.computed", "function", [role.computed.function], FUNCTIONS)
        _check_known(f"{place}.computed", "role", role.computed.roles, roles)
    _check_known(place, "index", role.stacked, table.index)
    listed = role.shape == ("1",) or (role.kind == INTEGERS and len(role.shape) == 1)
    if role.as_metadata and not (listed and all("{" not in role.names.get(d, "{") for d in role.as_metadata)):
        raise UsageError(f"{place}: `as_metadata` needs the shape 1, or a list of integers, and a name without indices")
    if role.layers is not None and role.layers not in layers:
        if not isinstance(tree := parse(role.layers), ast.Subscript):
            raise UsageError(
                f"{place}.layers: unknown set of layers {role.layers!r}{nearest_word(role.layers, layers)}"
            )
        _check_expressions(f"{place}.layers", [role.layers], check_layers)
        _check_known(f"{place}.layers", "size", names(tree.slice), table.size)


# ---------------------------------------------------------------------- expressions


def check_number(text: str, sets: Collection[str] = ()) -> None:
    """UsageError unless an expression is a number over keys. `sets`: sets of layers that subscripts may name."""
    _require(text, parse(text), partial(_in_number, sets), "is not part of a number")


def check_layers(text: str) -> None:
    """UsageError unless an expression states a set of layers."""
    _require(text, parse(text), _in_layers, "is not part of a set of layers")


def check_condition(text: str) -> None:
    """UsageError unless an expression combines names, `tensor(...)` and `key(...)` by `and`, `or`, `not`."""
    _require(text, parse(text), _in_condition, "is not part of a condition")


def _require(text: str, node: ast.expr, parts: Callable[[ast.expr], Sequence[ast.expr] | None], problem: str) -> None:
    """Checks an expression and its parts. `parts` returns these, or None if the expression isn't allowed here."""
    if (inner := parts(node)) is None:
        raise mistake(text, node.col_offset, f"{ast.unparse(node)} {problem}")
    for part in inner:
        _require(text, part, parts, problem)


def _in_number(sets: Collection[str], node: ast.expr) -> Sequence[ast.expr] | None:
    if isinstance(node, ast.BinOp):
        return node.left, node.right
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return (node.operand,)
    if isinstance(node, ast.Subscript):
        return () if path(node.value) and path(node.slice) in sets else None
    if (called := call(node)) is not None and len(called[1]) == (2 if called[0] == "max" else 1):
        function, arguments = called
        if function in ("int", "max"):
            return arguments
        named = function in ("tensor", *OF_TENSORS)
        ok = type(constant(arguments[0])) is str if named else path(arguments[0]) is not None
        return () if ok and (named or function in ("len", "uniform")) else None
    return () if path(node) or type(constant(node)) is int else None


def _in_layers(node: ast.expr) -> Sequence[ast.expr] | None:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and path(node.value) == "layers":
        for bound in filter(None, (node.slice.lower, node.slice.upper, node.slice.step)):
            check_number(ast.unparse(bound))
        return ()
    if isinstance(node, ast.Compare) and (path(node.left) or first_number(node) is not None):
        right = elements(node.comparators[0])
        return () if path(right[0]) or all(isinstance(e, ast.Constant) for e in right) else None
    return _in_condition(node)


def _in_condition(node: ast.expr) -> Sequence[ast.expr] | None:
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return (node.operand,)
    if (called := call(node)) is not None:
        return (
            () if called[0] in ("tensor", "key", "listed") and [type(constant(a)) for a in called[1]] == [str] else None
        )
    return () if path(node) else None


# ---------------------------------------------------------------------- [meta]


def _check_meta(table: FamilyTable) -> None:
    """Checks the expressions of `[meta]` and its sets of layers, and refuses a misspelled key of config.json."""
    if table.meta is None:
        return
    classes = table.architecture.values()
    elsewhere = [text for a in classes for text in a.null.values()]
    elsewhere += [text for size in table.size.values() for text in size.hf]
    elsewhere += [text for layer_set in table.layers.values() for text in layer_set.hf]
    known = {name.partition(".")[0] for text in elsewhere for name in names(parse(text))}
    known |= {*DERIVED, *table.defaults, *(key for a in classes for key in (*a.defaults, *a.null))}
    for place, text in _expressions(table.meta, table.mlx):
        _check_expressions(place, [text], check_number)
        for key in (name.partition(".")[0] for name in names(parse(text))):
            if key not in known and (near := difflib.get_close_matches(key, known, 1, _TYPO)):
                raise UsageError(f"{place}: unknown key {key!r}; did you mean {near[0]!r}?")
    for entry in (*table.meta.key, *table.meta.tokenizer):
        if entry.layers not in (None, _ALL_LAYERS):
            _check_known(f"meta.key.{entry.name}.layers", "set of layers", [str(entry.layers)], table.layers)


def _expressions(meta: MetaEntry, mlx: MlxEntry) -> Iterator[tuple[str, str]]:
    """Each expression over a config in `[meta]` and `[mlx]`, with its place."""
    for entry in (*meta.key, *meta.tokenizer):
        others = filter(None, (entry.subtract, entry.divide_by, entry.divide_by_sqrt, entry.others))
        restored = entry.restored if not isinstance(entry.restore, bool) else ()
        yield from ((f"meta.key.{entry.name}", text) for text in (*entry.config, *entry.when, *others, *restored))
    for implied in meta.implied:
        value = [implied.value] if isinstance(implied.value, str) else []
        yield from ((f"meta.implied.{implied.config}", text) for text in (implied.config, *value, *implied.when))
    for place, needs in (("meta", meta.requires_value), ("mlx", mlx.requires_value)):
        for need in needs:
            texts = (need.config, *filter(None, [need.equals, need.at_least]), *need.when)
            yield from ((f"{place}.requires_value.{need.config}", text) for text in texts)
    for part, keys in (("presence", meta.presence), ("assumed", meta.assumed)):
        yield from ((f"meta.{part}", key) for key in keys)
