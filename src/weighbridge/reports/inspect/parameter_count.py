"""How many parameters a checkpoint has, when several numbers lie in one stored word. One row a packing scheme: a weight
by its suffix, the companions that show it is packed, and how many logical elements a stored one stands for.

Names and shapes only: the same rule as the packings, at the price of a header. Companions (scales, zero points, group
indexes) are not parameters. A ggml block type counts itself: its shape is logical already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.containers.base import Entry

_Group = Mapping[str, Entry]  # suffix -> member of one module


class Told(NamedTuple):
    """What the config says of a packing, where names and shapes leave it open; of `modules`, what it says of each."""

    bits: float | None = None
    group_size: int | None = None
    modules: Mapping[str, Told] = MappingProxyType({})


_Count = Callable[[_Group, Told], int]


class Scheme(NamedTuple):
    """`weight` and all of `needs` (suffixes behind the module's name, or alternatives joined by |) make the scheme;
    `extras` belong to it too. `types`: dtypes the weight must have, any where empty."""

    name: str
    weight: str
    needs: tuple[str, ...]
    extras: tuple[str, ...]
    types: tuple[str, ...]
    parameters: _Count


def _stored(group: _Group, suffix: str) -> int:
    return group[suffix].spec.elements


def _words(suffix: str) -> _Count:
    """Integers of 32 bits full of codes of `bits` (from the config; 4 where it doesn't say)."""
    return lambda group, told: int(_stored(group, suffix) * group[suffix].dtype.size * 8 / (told.bits or 4))


def _times(suffix: str, factor: int) -> _Count:
    return lambda group, told: _stored(group, suffix) * factor


def _micro(group: _Group, told: Told) -> int:
    """Two floats of 4 bits a byte; where 32 of them are 24 bytes, they have 6 bits."""
    packed, scales = group["weight_packed"], group["weight_scale"]
    six = bool(scales.shape) and packed.shape[-1] == 24 * scales.shape[-1]
    return packed.spec.elements * 4 // 3 if six else packed.spec.elements * 2


def _torchao(group: _Group, told: Told) -> int:
    """A byte a code, of floats of 4 bits half of one."""
    codes = group["_weight_qdata"]
    return codes.spec.elements * (2 if codes.dtype.name == "U8" else 1)


def _bytes_as_nibbles(suffix: str) -> _Count:
    return lambda group, told: group[suffix].nbytes * 2


def _mlx(group: _Group, told: Told) -> int:
    """bits x group size = 32 x packed columns / groups. Layers may have bits of their own, rarely a group size of
    their own; so the config's group size is believed first, then its bits, then what is usual (mlx.nn.quantize)."""
    weight, scales = group["weight"], group["scales"]
    columns, groups = (weight.shape or (0,))[-1], (scales.shape or (0,))[-1]
    words = weight.spec.elements
    if not columns or not groups:
        return words * 8
    product = 32 * columns / groups
    if "biases" not in group:  # mxfp4, nvfp4, mxfp8: (bits, group) one of these (mlx-lm 0.32 utils.py)
        return words * (4 if product == 8 * 32 else 8)
    by_group = [product / told.group_size] if told.group_size else []
    usual = [b for b in (*([told.bits] if told.bits else []), 4, 8, 6, 5, 3, 2) if product / b in (16, 32, 64, 128)]
    bits = next((b for b in (*by_group, *usual) if b in (1, 2, 3, 4, 5, 6, 8)), told.bits or 4)
    return int(words * 32 / bits)


def _gptq(group: _Group, told: Told) -> int:
    """Rows are packed: in = g_idx's length where it is there; columns of scales are the outputs."""
    weight, index = group["qweight"], group.get("g_idx")
    if index is not None and len(weight.shape) == 2 and index.shape:
        return index.shape[0] * weight.shape[1]
    return _words("qweight")(group, told)


def _awq(group: _Group, told: Told) -> int:
    return group["qweight"].shape[0] * group["scales"].shape[1]


def _columns_differ(group: _Group) -> bool:
    """AWQ packs columns, GPTQ rows: with AWQ the scales have more columns than the words."""
    weight, scales = group["qweight"].shape, group["scales"].shape
    return len(weight) == len(scales) == 2 and weight[1] != scales[1]


SCHEMES: Final = (
    Scheme("mlx", "weight", ("scales",), ("biases", "global_scale"), ("U32",), _mlx),
    Scheme("awq", "qweight", ("qzeros", "scales"), (), ("I32",), _awq),
    Scheme("gptq", "qweight", ("scales",), ("qzeros", "g_idx"), ("I32",), _gptq),
    Scheme("compressed-tensors", "weight_packed", ("weight_shape", "weight_scale"),
           ("weight_zero_point", "weight_g_idx"), ("I32",), _words("weight_packed")),
    Scheme("fp4-packed", "weight_packed", ("weight_scale",), ("weight_global_scale", "input_global_scale"), ("U8",),
           _micro),
    Scheme("nvfp4", "weight", ("weight_scale", "weight_scale_2"), ("input_scale",), ("U8",), _times("weight", 2)),
    Scheme("ggml-nvfp4", "weight", ("scale",), ("input_scale",), ("NVFP4",), _times("weight", 1)),
    Scheme("torchao", "_weight_qdata", ("_weight_scale",), ("_weight_zero_point", "_weight_per_tensor_scale"),
           ("I8", "F8_E4M3", "U8"), _torchao),
    Scheme("bnb-4bit", "weight",
           ("weight.absmax", "weight.quant_state.bitsandbytes__nf4|weight.quant_state.bitsandbytes__fp4"),
           ("weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map"), (), _bytes_as_nibbles("weight")),
    Scheme("bnb-int8", "weight", ("SCB",), ("weight_format",), ("I8",), _times("weight", 1)),
    Scheme("fp8", "weight", ("weight_scale_inv|weight_scale|scale_weight|qscale_weight",),
           ("input_scale", "activation_scale", "qscale_act", "scale_input"), ("F8_E4M3", "F8_E5M2"),
           _times("weight", 1)),
    Scheme("int8", "weight", ("weight_scale",), ("weight_zero_point", "input_scale"), ("I8",), _times("weight", 1)),
    Scheme("hqq", "W_q", ("scale", "zero"),
           ("nbits", "group_size", "shape", "axis", "packing", "view_as_float", "compute_dtype", "unpack_view_dtype",
            "encoded_state_dict", "stores_quant_config", "channel_wise", "optimize", "round_zero", "offload_meta"),
           (), _words("W_q")),
)  # fmt: skip
# gpt-oss MXFP4: names end in _blocks and _scales, not behind a dot.
_BLOCKS: Final = (("_blocks", "_scales"), (".blocks", ".scales"))
# What a packed weight's name ends in: one look rules out most tensors.
_WEIGHTS: Final = (*{f".{scheme.weight}" for scheme in SCHEMES}, *(weight for weight, _ in _BLOCKS))


class Count(NamedTuple):
    """`logical`: name of a weight -> its parameters; companions map to 0. `schemes`: scheme -> packed weights.
    `members`: name of a packed weight -> its companions."""

    logical: Mapping[str, int]
    schemes: Mapping[str, int]
    parts: Mapping[str, str]  # name -> scheme, for every tensor that a scheme owns
    members: Mapping[str, Sequence[str]] = MappingProxyType({})

    @property
    def total(self) -> int:
        return sum(self.logical.values())


def count(entries: Sequence[Entry], told: Told = Told()) -> Count:  # noqa: B008
    """Logical parameters of every tensor."""
    by_name = {e.name: e for e in entries}
    logical = {e.name: prod(e.shape) for e in entries}
    schemes: dict[str, int] = {}
    parts: dict[str, str] = {}
    groups: dict[str, Sequence[str]] = {}
    for name in by_name:
        if not name.endswith(_WEIGHTS) or name in parts:
            continue
        found = _blocks(name, by_name) or _match(name, by_name, told)
        if found:
            scheme, parameters, members = found
            groups[name] = members
            logical |= dict.fromkeys(members, 0) | {name: parameters}
            parts |= dict.fromkeys((name, *members), scheme)
            schemes[scheme] = schemes.get(scheme, 0) + 1
    return Count(logical, schemes, parts, groups)


_Found = tuple[str, int, list[str]]


def _match(name: str, by_name: Mapping[str, Entry], told: Told) -> _Found | None:
    """The scheme whose weight `name` is, with its companions."""
    for scheme in SCHEMES:
        module = name.removesuffix("." + scheme.weight)
        if module == name or (scheme.types and by_name[name].dtype.name not in scheme.types):
            continue
        group = _members(scheme, module, by_name)
        if group is None or (scheme.name == "awq" and not _columns_differ(group)):
            continue
        others = [e.name for suffix, e in group.items() if suffix != scheme.weight]
        return scheme.name, scheme.parameters(group, told.modules.get(module, told)), others
    return None


def _members(scheme: Scheme, module: str, by_name: Mapping[str, Entry]) -> dict[str, Entry] | None:
    group = {}
    for need in scheme.needs:
        suffix = next((s for s in need.split("|") if f"{module}.{s}" in by_name), None)
        if suffix is None:
            return None
        group[suffix] = by_name[f"{module}.{suffix}"]
    optional = {s: by_name[f"{module}.{s}"] for s in (scheme.weight, *scheme.extras) if f"{module}.{s}" in by_name}
    return group | optional


def _blocks(name: str, by_name: Mapping[str, Entry]) -> _Found | None:
    for blocks, scales in _BLOCKS:
        partner = name.removesuffix(blocks) + scales
        if name.endswith(blocks) and partner in by_name and by_name[name].dtype.name == "U8":
            return "mxfp4", by_name[name].spec.elements * 2, [partner]
    return None
