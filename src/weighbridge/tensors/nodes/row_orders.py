"""The orders of rows between conventions, as lists of row numbers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, product
from operator import mul

from weighbridge.base.errors import FormatError


def _transposed(sizes: Sequence[int], axes: Sequence[int]) -> array[int]:
    """The elements of an array of `sizes`, which counts from 0 in C order, in the C order of its axes `axes`."""
    steps = [*accumulate(reversed(sizes[1:]), mul, initial=1)][::-1]
    spans = [range(0, sizes[axis] * steps[axis], steps[axis]) for axis in axes]
    starts = [sum(each) for each in product(*spans[:-1])]
    order, last = array("q"), spans[-1]
    for start in starts:
        order.extend(range(start, start + last.stop, last.step))
    return order


def rope_order(rows: int, heads: int) -> array[int]:
    """The order that turns the rotary halves of each head (Hugging Face) into adjacent pairs (ggml).

    Hugging Face rotates the pairs (j, j + d/2) of a head of d rows, ggml's NORM rope the pairs (2j, 2j + 1).
    llama.cpp `LlamaModel.permute`: reshape(heads, 2, d/2, ...), swap axes 1 and 2.
    """
    if heads <= 0 or rows % (2 * heads):
        raise FormatError("rotary heads don't divide the rows", expected=f"a multiple of {2 * heads}", found=rows)
    return _transposed((heads, 2, rows // heads // 2), (0, 2, 1))


def halves_order(rows: int, heads: int, rotated: int) -> array[int]:
    """The order that turns the adjacent pairs (2j, 2j + 1) in the first `rotated` rows of each head (Hugging Face's
    GPT-J) into halves (j, j + rotated/2): the rotation of GPT-NeoX, which ggml calls NEOX."""
    if heads <= 0 or rows % heads or rotated % 2 or not 0 < rotated <= rows // heads:
        raise FormatError(
            "the rotated rows aren't pairs within a head", expected=f"an even part of {rows}", found=rotated
        )
    width, order = rows // heads, array("q")
    for head in range(0, rows, width):
        order.extend(range(head, head + rotated, 2))
        order.extend(range(head + 1, head + rotated, 2))
        order.extend(range(head + rotated, head + width))
    return order


def pairs_order(rows: int, heads: int, rotated: int) -> array[int]:
    """The opposite: the order that turns halves (j, j + rotated/2) into adjacent pairs (2j, 2j + 1), which ggml's NORM
    rope rotates, in the first `rotated` rows of each head."""
    return inverse_order(halves_order(rows, heads, rotated))


def inverse_order(order: array[int]) -> array[int]:
    """The order that undoes another."""
    back = array("q", bytes(8 * len(order)))
    for place, row in enumerate(order):
        back[row] = place
    return back


def swapped_order(rows: int, heads: int, outer: int, inner: int) -> array[int]:
    """The order that turns `outer` parts of each head (Hugging Face: halves), each of `inner` runs (axes of rotation),
    into `inner` parts of `outer` runs (ggml). The rows left over at the end of a head stay."""
    if min(heads, outer, inner) <= 0 or rows % heads or rows // heads < outer * inner:
        raise FormatError("the runs don't fit into a head", expected=f"{outer * inner} runs", found=rows)
    runs = outer * inner
    within, order = _transposed((outer, inner, rows // heads // runs), (1, 0, 2)), array("q")
    for head in range(0, rows, rows // heads):
        order.extend(head + row for row in within)
        order.extend(range(head + len(within), head + rows // heads))
    return order


def parted_order(rows: int, heads: int, groups: int) -> array[int]:
    """The order that gathers all queries, then all keys, then all values (ggml), from groups that each store their
    queries, key and value together (Hugging Face's GPT-NeoX and BLOOM: one group per head; Falcon: several heads per
    group)."""
    if groups <= 0 or heads <= 0 or heads % groups or rows % (heads + 2 * groups):
        raise FormatError("heads don't divide the rows", expected=f"a multiple of {heads + 2 * groups}", found=rows)
    queries, width = heads // groups, rows // (heads + 2 * groups)
    order = array("q")
    for first, count in ((0, queries), (queries, 1), (queries + 1, 1)):
        for group in range(0, rows, (queries + 2) * width):
            order.extend(range(group + first * width, group + (first + count) * width))
    return order


def interleaved_order(rows: int, groups: int, *heights: int) -> array[int]:
    """The order that interleaves stacked parts of these heights: each group gets its share of every part (Qwen3-Next:
    each key head has its query, key, values and gates)."""
    if groups <= 0 or any(h % groups for h in heights):
        raise FormatError("groups don't divide the rows", expected=f"multiples of {groups}", found=heights)
    order = array("q")
    for group in range(groups):
        for start, height in zip(accumulate(heights, initial=0), heights, strict=False):
            share = height // groups
            order.extend(range(start + group * share, start + (group + 1) * share))
    return order


def tiled_order(rows: int, groups: int, heads: int) -> array[int]:
    """The order in which the heads of all groups take turns: the first of each group, then the second of each.
    Value heads, grouped by key head (Hugging Face) <-> one of each key head, then the next of each (ggml, which repeats
    key heads as a whole: Qwen 3.5).

    llama.cpp b11549, conversion/qwen.py `_reorder_v_heads`: reshape(groups, heads/groups, width), swap axes 0 and 1.
    """
    if heads <= 0 or rows % heads:
        raise FormatError("heads don't divide the rows", expected=f"a multiple of {heads}", found=rows)
    return _take_turns(1, groups, heads, rows // heads)


def tiled_heads_order(rows: int, groups: int, heads: int) -> array[int]:
    """As `tiled_order`, for `rows / heads` stacked parts with one row per head."""
    return _take_turns(rows // heads, groups, heads, 1)


def _take_turns(times: int, groups: int, heads: int, width: int) -> array[int]:
    if groups <= 0 or heads % groups:
        raise FormatError("groups don't divide the heads", expected=f"a multiple of {groups}", found=heads)
    return _transposed((times, groups, heads // groups, width), (0, 2, 1, 3))


def halves_apart_order(rows: int, heads: int) -> array[int]:
    """The order of the first halves of all heads, then the second halves."""
    if heads <= 0 or rows % (2 * heads):
        raise FormatError("heads don't divide the rows", expected=f"a multiple of {2 * heads}", found=rows)
    return _transposed((heads, 2, rows // heads // 2), (1, 0, 2))


def frames_order(rows: int, count: int, height: int) -> array[int]:
    """The order in which the kernels of `count` frames, one frame after the other (ggml), become one kernel over time
    (a Conv3D of Hugging Face), whose rows alternate between the frames in runs of `height`."""
    if count <= 0 or height <= 0 or rows % (count * height):
        raise FormatError("frames don't divide the rows", expected=f"a multiple of {count * height}", found=rows)
    return _transposed((count, rows // (count * height), height), (1, 0, 2))
