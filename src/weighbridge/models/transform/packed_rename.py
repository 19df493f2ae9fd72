"""Renames quantized tensors: the stored parts of each, and per-module settings in the config.

A tensor that changes only its name keeps its parts and their suffixes. One whose layout changes (experts stacked or
unstacked) has its parts moved row by row, if they have the same rows as the tensor (MLX, FP8). Nothing is decoded.

"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.transform.base import KeyChange, RenamedTensor, with_config

if TYPE_CHECKING:
    from weighbridge.packings.unpacking import PackedGroup
    from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor

_CONVERT: Final = "convert it: wb convert SRC DST"
# Config keys with per-module settings.
_SETTINGS: Final = ("quantization", "quantization_config")


def parts(model: Checkpoint, named: Mapping[str, LogicalTensor], renamed: Iterable[RenamedTensor]) -> dict[str, Node]:
    """The stored tensors of logical tensors under new names. UnsupportedError where a quantized one would have to be
    decoded, or where its parts have no valid form under the new names."""
    from weighbridge.tensors.nodes import QuantizedTensor

    found = {group.name: group for group in model.packed.values()}
    old = {r.new: r.old for r in renamed}
    out: dict[str, Node] = {}
    for name, node in named.items():
        origin = old.get(name, (name,))
        group = found.get(origin[0]) if origin else None
        if group is not None and node is group.node:
            out |= {_under(group, part, name): model.stored[part] for part in sorted(group.stored)}
        elif group is not None and isinstance(node, QuantizedTensor):
            out |= _moved(name, node, group, model.stored)
        elif group is None and not isinstance(node, QuantizedTensor):
            out[name] = node
        else:
            raise UnsupportedError(f"{name} would have to be decoded{_reason(node)}", hint=_CONVERT)
    return out


def _reason(tensor: LogicalTensor) -> str:
    from weighbridge.tensors.nodes import Node, walk

    nodes = walk(tensor) if isinstance(tensor, Node) else ()
    why = next((reason for below in nodes if (reason := getattr(below, "reason", ""))), "")
    return f": {why}" if why else ""


def _under(group: PackedGroup, part: str, name: str) -> str:
    """The name of a stored part after its group was renamed."""
    if part.startswith(group.name):
        return name + part.removeprefix(group.name)
    ending = group.match.schema.logical
    if not name.endswith(ending):
        raise UnsupportedError(f"{part} has no name next to {name}", hint=_CONVERT)
    return name.removesuffix(ending) + part.removeprefix(group.match.module)


# ------------------------------------------------------------------------------------------------ moved


def _moved(name: str, node: QuantizedTensor, group: PackedGroup, stored: Mapping[str, Node]) -> dict[str, Node]:
    """The stored parts of a tensor whose rows were moved: its members, with the dtypes and shapes that the schema
    requires."""
    from weighbridge.tensors.nodes import bitcast, reshape

    members = _members(node, group, stored)
    if members is None:
        raise UnsupportedError(
            f"{name} fuses or splits tensors packed as {node.packing.name}, whose parts don't allow that", hint=_CONVERT
        )
    out = {}
    for part, member in members.items():
        spec = stored[part].spec
        kept = node.members[member]
        matrix = reshape(kept, (kept.spec.elements // kept.spec.shape[-1], kept.spec.shape[-1]))
        typed = bitcast(matrix, spec.dtype, spec.shape[-1]) if kept.spec.dtype is not spec.dtype else matrix
        rows = typed.spec.rows * node.spec.shape[-2] // node.spec.rows
        out[_under(group, part, name)] = reshape(typed, (*node.spec.shape[:-2], rows, typed.spec.shape[-1]))
    return out


def _members(node: QuantizedTensor, group: PackedGroup, stored: Mapping[str, Node]) -> dict[str, str] | None:
    """Stored tensor -> the quantized tensor's member with the same rows; None if they don't correspond one to one."""
    roles = {name: role for role, name in group.match.stored.items()}
    if not group.match.schema.movable or group.stored != set(roles) or set(roles.values()) != set(node.members):
        return None
    return roles if all(len(stored[name].spec.shape) > 1 for name in roles) else None


# ------------------------------------------------------------------------------------------------ config


def settings(
    model: Checkpoint, renamed: Iterable[RenamedTensor]
) -> tuple[Checkpoint, tuple[KeyChange, ...], tuple[str, ...]]:
    """The model with its config's per-module settings under the new names, the changes, and notes on patterns that
    may now match other names."""
    config = model.config if model.format != "gguf" else {}
    kept = {key: config[key] for key in _SETTINGS if isinstance(config.get(key), Mapping)}
    modules = _Modules(renamed)
    after = {key: modules.moved(declared) for key, declared in kept.items()}
    changes = tuple(KeyChange(key, declared, after[key]) for key, declared in kept.items() if declared != after[key])
    notes = tuple(f"{key}: {text!r} may match other names now" for key in kept for text in _patterns(kept[key]))
    return with_config(model, {**config, **after}, changes), changes, notes if changes or modules.new else ()


def _patterns(declared: Any) -> Iterator[str]:
    """Regular expressions over names: llm-compressor's `re:...`, the keys of GPTQModel's `dynamic`."""
    if isinstance(declared, Mapping):
        for key, value in declared.items():
            yield from value if key == "dynamic" and isinstance(value, Mapping) else _patterns(value)
    elif isinstance(declared, list | tuple):
        for value in declared:
            yield from _patterns(value)
    elif isinstance(declared, str) and declared.startswith("re:"):
        yield declared


class _Modules:
    """The new name of each module."""

    def __init__(self, renamed: Iterable[RenamedTensor]) -> None:
        self.new: dict[str, dict[str, None]] = {}  # several if a stack was split
        for one in renamed:
            for old in one.old:
                for before, after in _levels(old, one.new):
                    self.new.setdefault(before, {})[after] = None

    def moved(self, declared: Any) -> Any:
        """The same settings under new names; keys that aren't module names stay."""
        if isinstance(declared, Mapping):
            return {name: self.moved(value) for key, value in declared.items() for name in self.new.get(key, (key,))}
        if isinstance(declared, list | tuple):
            found = (name for value in declared for name in self._of_list(value))
            return list(dict.fromkeys(found)) if all(isinstance(v, str) for v in declared) else list(found)
        return declared

    def _of_list(self, value: Any) -> Iterable[Any]:
        return self.new.get(value, (value,)) if isinstance(value, str) else (self.moved(value),)


def _levels(old: str, new: str) -> Iterator[tuple[str, str]]:
    """The modules in a tensor's name and their new names: its own module, and parents as long as the rest of the
    name is unchanged."""
    before, after = _module(old), _module(new)
    yield before, after
    while before and after and before.rpartition(".")[2] == after.rpartition(".")[2]:
        before, after = before.rpartition(".")[0], after.rpartition(".")[0]
        if not before or not after:
            return
        yield before, after


def _module(name: str) -> str:
    return name.rpartition(".")[0] if "." in name else name
