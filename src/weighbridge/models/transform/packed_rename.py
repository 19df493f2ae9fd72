"""Renames quantized tensors: the stored parts of each, and per-module settings in the config.

A tensor that only changes its name keeps its parts and their suffixes. If its layout changes (experts stacked or
unstacked), its parts are moved row by row, provided they have the rows of the tensor (MLX, FP8). Nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.model import OpenModel
from weighbridge.models.transform.base import KeyChange, RenamedTensor, with_config

if TYPE_CHECKING:
    from weighbridge.packings.unpacking import PackedGroup
    from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor

_CONVERT: Final = "convert it: wb convert SRC DST"
# Config keys with per-module settings.
_SETTINGS: Final = ("quantization", "quantization_config")


def parts(model: OpenModel, named: Mapping[str, LogicalTensor], renamed: Iterable[RenamedTensor]) -> dict[str, Node]:
    """Returns the stored tensors of logical tensors under new names. Raises UnsupportedError if a quantized one would
    have to be decoded, or if its parts have no valid form under the new names."""
    from weighbridge.tensors.nodes import Node, QuantizedTensor, walk

    groups = {group.name: group for group in model.packed.values()}
    old = {r.new: r.old for r in renamed}
    out: dict[str, Node] = {}
    for name, node in named.items():
        origin = old.get(name, (name,))
        group = groups.get(origin[0]) if origin else None
        if group is not None and node is group.node:
            out |= {_under(group, part, name): model.stored[part] for part in sorted(group.stored)}
        elif group is not None and isinstance(node, QuantizedTensor):
            out |= _move(name, node, group, model.stored)
        elif group is None and not isinstance(node, QuantizedTensor):
            out[name] = node
        else:
            below = walk(node) if isinstance(node, Node) else ()
            reason = next((f": {text}" for step in below if (text := getattr(step, "reason", ""))), "")
            raise UnsupportedError(f"{name} would have to be decoded{reason}", hint=_CONVERT)
    return out


def _under(group: PackedGroup, part: str, name: str) -> str:
    """Returns the name of a stored part after its group was renamed."""
    if part.startswith(group.name):
        return name + part.removeprefix(group.name)
    ending = group.match.schema.logical
    if not name.endswith(ending):
        raise UnsupportedError(f"{part} has no name next to {name}", hint=_CONVERT)
    return name.removesuffix(ending) + part.removeprefix(group.match.module)


def _move(name: str, node: QuantizedTensor, group: PackedGroup, stored: Mapping[str, Node]) -> dict[str, Node]:
    """Returns the stored parts of a tensor whose rows were moved: its members, with the dtypes and shapes that the
    schema requires."""
    from weighbridge.tensors.nodes import bitcast, reshape

    members = _members(node, group, stored)
    if members is None:
        raise UnsupportedError(
            f"{name} fuses or splits tensors packed as {node.packing.name}, whose parts don't allow that", hint=_CONVERT
        )
    out = {}
    for part, role in members.items():
        spec, member = stored[part].spec, node.members[role]
        matrix = reshape(member, (member.spec.elements // member.spec.shape[-1], member.spec.shape[-1]))
        typed = bitcast(matrix, spec.dtype, spec.shape[-1]) if member.spec.dtype is not spec.dtype else matrix
        rows = typed.spec.rows * node.spec.shape[-2] // node.spec.rows
        out[_under(group, part, name)] = reshape(typed, (*node.spec.shape[:-2], rows, typed.spec.shape[-1]))
    return out


def _members(node: QuantizedTensor, group: PackedGroup, stored: Mapping[str, Node]) -> dict[str, str] | None:
    """Returns the quantized tensor's member for each stored tensor, or None if they don't correspond one to one or have
    other rows."""
    roles = {name: role for role, name in group.match.stored.items()}
    if not group.match.schema.movable or group.stored != set(roles) or set(roles.values()) != set(node.members):
        return None
    return roles if all(len(stored[name].spec.shape) > 1 for name in roles) else None


# ------------------------------------------------------------------------------------------------ config


def settings(
    model: OpenModel, renamed: Iterable[RenamedTensor]
) -> tuple[OpenModel, tuple[KeyChange, ...], tuple[str, ...]]:
    """Returns the model with its config's per-module settings under the new names, the changes, and notes on patterns
    that may match other names now."""
    config = model.config if model.format != "gguf" else {}
    before = {key: config[key] for key in _SETTINGS if isinstance(config.get(key), Mapping)}
    modules = _new_modules(renamed)
    after = {key: _rename_modules(value, modules) for key, value in before.items()}
    changes = tuple(KeyChange(key, value, after[key]) for key, value in before.items() if value != after[key])
    notes = tuple(f"{key}: {text!r} may match other names now" for key in before for text in _patterns(before[key]))
    return with_config(model, {**config, **after}, changes), changes, notes if changes or modules else ()


def _patterns(declared: Any) -> Iterator[str]:
    """Yields regular expressions over names: llm-compressor's `re:...`, the keys of GPTQModel's `dynamic`."""
    if isinstance(declared, Mapping):
        for key, value in declared.items():
            yield from value if key == "dynamic" and isinstance(value, Mapping) else _patterns(value)
    elif isinstance(declared, list | tuple):
        for value in declared:
            yield from _patterns(value)
    elif isinstance(declared, str) and declared.startswith("re:"):
        yield declared


def _new_modules(renamed: Iterable[RenamedTensor]) -> dict[str, dict[str, None]]:
    """Returns the new names of each module, several if a stack was split: of a tensor's module, and of its parents as
    long as the rest of the name is unchanged."""
    out: dict[str, dict[str, None]] = {}
    for tensor in renamed:
        for old in tensor.old:
            before, after = (name.rpartition(".")[0] if "." in name else name for name in (old, tensor.new))
            while before and after:
                out.setdefault(before, {})[after] = None
                (before, _, end), (after, _, new_end) = before.rpartition("."), after.rpartition(".")
                if end != new_end:
                    break
    return out


def _rename_modules(declared: Any, modules: Mapping[str, Iterable[str]]) -> Any:
    """Returns settings with new module names; other keys stay."""
    if isinstance(declared, Mapping):
        renamed = ((name, value) for key, value in declared.items() for name in modules.get(key, (key,)))
        return {name: _rename_modules(value, modules) for name, value in renamed}
    if not isinstance(declared, list | tuple):
        return declared
    if all(isinstance(value, str) for value in declared):
        return list(dict.fromkeys(name for value in declared for name in modules.get(value, (value,))))
    out: list[Any] = []
    for value in declared:
        out += modules.get(value, (value,)) if isinstance(value, str) else [_rename_modules(value, modules)]
    return out
