"""The changes of LyCORIS' networks as matrices [out, in * height * width], built of nodes.

    LoRA, Tucker    up [out, r] @ down', with down' [r, in, h, w] = mid [r, s, h, w] times down [s, in]
    LoHa            (w1_a @ w1_b) * (w2_a @ w2_b), element by element; with t1 and t2, each factor is
                    sum of t [i, j, h, w] w_b [j, in] w_a [i, out]
    LoKr            the Kronecker product of w1 and w2; either may be w_a @ w_b, and w2 with t2 as LoHa's factors
    full            diff

Sources: LyCORIS 3 (modules/locon.py, loha.py, lokr.py), PEFT 0.21 (tuners/loha, tuners/lokr), ComfyUI comfy/lora.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

Parts = Mapping[str, "Node"]
#: The ends of the names of tensors -> which part of a change they are.
ENDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        ".lora_mid.weight": "mid",
        **{f".{part}": part for part in ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2")},
        **{f".{part}": part for part in ("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b")},
        ".lokr_t2": "lokr_t2",
        ".diff": "diff", ".w_norm": "diff", ".diff_b": "diff_b", ".b_norm": "diff_b",
    }
)  # fmt: skip
#: The parts of each kind of change: those that it needs, and those that it may have.
KINDS: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = MappingProxyType(
    {
        "LoRA": (frozenset({"down", "up"}), frozenset({"mid"})),
        "LoHa": (frozenset({"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"}), frozenset({"hada_t1", "hada_t2"})),
        "LoKr": (
            frozenset(),
            frozenset({"lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2"}),
        ),
        "full difference": (frozenset({"diff"}), frozenset()),
        "difference of a bias": (frozenset({"diff_b"}), frozenset()),
    }
)


def kind_of(parts: frozenset[str]) -> str:
    """The kind of a change with these parts. Raises FormatError if one is missing, or if they are of several kinds."""
    for kind, (needed, possible) in KINDS.items():
        if parts & (needed | possible):
            if missing := sorted(needed - parts):
                raise FormatError(f"the module has no {missing[0]} matrix")
            if strange := sorted(parts - needed - possible):
                raise FormatError(f"the module has a {strange[0]} besides the parts of a {kind}")
            return kind
    raise FormatError("the module has no part of a change")


def rank_of(parts: Parts) -> int | None:
    """The rank that alpha is divided by; None for a change without one, whose factor is 1."""
    factor = next((parts[name] for name in ("down", "hada_w1_b", "lokr_w2_b", "lokr_w1_b") if name in parts), None)
    return None if factor is None else (*factor.spec.shape, 0)[0]


def matrix_of(parts: Parts) -> Node:
    """The change [out, columns] in F32, without its factor. Raises FormatError for parts that don't fit each other."""
    from weighbridge.tensors.nodes import pairwise, reshape

    kind = kind_of(frozenset(parts))
    if kind == "LoHa":
        first, second = (_factor(parts, f"hada_w{n}", f"hada_t{n}") for n in (1, 2))
        if first.spec.shape != second.spec.shape:
            raise FormatError(f"the factors have different shapes, {first.spec} and {second.spec}")
        return pairwise(first, second, "times")
    if kind == "LoKr":
        return kronecker(_side(parts, "lokr_w1"), _side(parts, "lokr_w2", "lokr_t2"))
    if kind == "LoRA":
        down, up = parts["down"], parts["up"]
        inner = _tucker(parts["mid"], reshape(down, down.spec.shape[:2])) if "mid" in parts else down
        return _product(_as_matrix(up), _as_matrix(inner))
    return _as_matrix(parts["diff" if "diff" in parts else "diff_b"])


def _as_matrix(node: Node) -> Node:
    """[out, in, h, w] as [out, in * h * w], in F32."""
    from weighbridge.tensors.nodes import cast, reshape

    if not node.spec.elements or not node.spec.shape:
        raise FormatError(f"{node.spec} isn't a matrix")
    return reshape(cast(node, F32), (node.spec.shape[0], prod(node.spec.shape[1:])))


def _side(parts: Parts, name: str, core: str = "") -> Node:
    return _as_matrix(parts[name]) if name in parts else _factor(parts, name, core)


def _factor(parts: Parts, name: str, core: str) -> Node:
    """w_a @ w_b, or with a core t the sum of t [i, j, h, w] w_b [j, in] w_a [i, out]."""
    from weighbridge.tensors.nodes import transpose

    if missing := [part for part in (f"{name}_a", f"{name}_b") if part not in parts]:
        raise FormatError(f"the module has no {missing[0]} matrix")
    left, right = parts[f"{name}_a"], parts[f"{name}_b"]
    if len(left.spec.shape) != 2 or len(right.spec.shape) != 2:
        raise FormatError(f"{name} isn't the product of two matrices")
    if core not in parts:
        return _product(left, right)
    return _product(transpose(left), _as_matrix(_tucker(parts[core], right)))


def _product(left: Node, right: Node) -> Node:
    """left @ right, in F32."""
    from weighbridge.tensors.nodes import low_rank, zeros

    if left.spec.shape[1] != right.spec.shape[0] or not left.spec.shape[1]:
        raise FormatError(f"the matrices have different ranks, {left.spec} and {right.spec}")
    return low_rank(zeros((left.spec.shape[0], right.spec.shape[1]), F32), right, left, 1.0)


def _tucker(core: Node, right: Node) -> Node:
    """[i, in, h, w]: the sum of core [i, j, h, w] times right [j, in]."""
    from weighbridge.tensors.nodes import concat, reshape, slice_rows, transpose

    shape = core.spec.shape
    if len(shape) != 4 or len(right.spec.shape) != 2 or shape[1] != right.spec.shape[0]:
        raise FormatError(f"the core {core.spec} doesn't fit {right.spec}")
    count, rank, *kernel = shape
    flat, turned = reshape(core, (count * rank, prod(kernel))), transpose(right)
    each = [_product(turned, slice_rows(flat, n * rank, (rank, prod(kernel)))) for n in range(count)]
    return reshape(concat(each), (count, right.spec.shape[1], *kernel))


def kronecker(left: Node, right: Node) -> Node:
    """The Kronecker product of [a, b] and [c, d]: row (i, p) and column (j, q) are left [i, j] * right [p, q]."""
    from weighbridge.tensors.nodes import cast, pairwise, reshape, strided

    (a, b), (c, d) = left.spec.shape, right.spec.shape
    first, second = (cast(reshape(node, (node.spec.elements,)), F32) for node in (left, right))
    spread = strided(first, 0, (a, c, b, d), (b, 0, 1, 0)), strided(second, 0, (a, c, b, d), (0, d, 0, 1))
    return pairwise(reshape(spread[0], (a * c, b * d)), reshape(spread[1], (a * c, b * d)), "times")
