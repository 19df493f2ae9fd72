"""The layout changes that a family table can name, one row each. Free of numpy: `layouts.py` implements them."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final, NamedTuple


class Run(NamedTuple):
    """`size` entries of an axis, made of `units` that stay whole. `copied`: several ranks may store the same unit."""

    size: int
    units: int
    copied: bool = False


class LayoutRow(NamedTuple):
    """A layout change by the name that tables give it.

    order        the function of nodes/row_orders.py that gives the order of rows, if it only moves rows
    change       otherwise the class or function of layouts.py that makes it
    splits       whether tensor parallelism can split it: every row stays in its head, or `runs` has the new order
    runs         the runs of heads along its axis, from the axis's size and the layout's arguments
    transposes   it swaps a tensor's last two axes
    lora         whether a LoRA's pairs can follow it
    normalizes   it brings rows to the length that the model's class gives them at run time
    multiplies   it makes one of two joined roles of one shape: their product
    from_config  its arguments are keys of the config, which a GGUF doesn't have
    drops        undone, it drops rows, which are zeros if the dialect was written from roles
    one_way      its effect, if it can't be undone: a dialect whose tensor has more than the role is only read
    """

    name: str
    order: str = ""
    change: str = ""
    splits: bool = True
    runs: Callable[..., list[Run]] | None = None
    transposes: bool = False
    lora: bool = False
    normalizes: bool = False
    multiplies: bool = False
    from_config: bool = False
    drops: bool = False
    one_way: str = ""


def _parted_runs(size: int, heads: int, groups: int) -> list[Run]:
    """All queries, all keys, all values."""
    width = size // (heads + 2 * groups)
    return [Run(heads * width, heads), *[Run(groups * width, groups, copied=True)] * 2]


def _tiled_runs(size: int, groups: int, heads: int) -> list[Run]:
    """One head of each group, then the next of each."""
    turns = heads // groups
    return [Run(size // turns, groups)] * turns


LAYOUTS: Final = MappingProxyType(
    {
        row.name: row
        for row in (
            LayoutRow("rope", order="rope_order", lora=True),
            LayoutRow("halves", order="halves_order"),
            LayoutRow("pairs", order="pairs_order"),
            LayoutRow("swapped", order="swapped_order", lora=True),
            LayoutRow("parted", order="parted_order", runs=_parted_runs, lora=True),
            LayoutRow("tiled", order="tiled_order", runs=_tiled_runs),
            LayoutRow("tiled_columns", change="TiledColumns", runs=_tiled_runs),
            LayoutRow("frames", order="frames_order", splits=False),
            LayoutRow("channels_last", change="ChannelsLast", splits=False),
            LayoutRow("transpose", change="Transposed", transposes=True),
            LayoutRow("shift", change="Shifted"),
            LayoutRow("absolute", change="Absolute", splits=False),
            LayoutRow("neg_exp", change="NegExp"),
            LayoutRow("exp", change="Exp"),
            LayoutRow("inverse_exp", change="InverseExp"),
            LayoutRow("softplus", change="Softplus"),
            LayoutRow("times", change="times", from_config=True),
            LayoutRow("rescaled", change="rescaled"),
            LayoutRow("negated_halves", change="NegatedHalves"),
            LayoutRow("padded", change="Padded", drops=True),
            LayoutRow("slots", change="Slots", splits=False, drops=True),
            LayoutRow("halved", change="Halved", splits=False),
            LayoutRow("unit", change="UnitRows", splits=False, normalizes=True),
            LayoutRow("zero_mean", change="ZeroMean", splits=False, normalizes=True),
            LayoutRow("ternary", change="Ternary", splits=False, normalizes=True),
            LayoutRow("resized", change="Resized", splits=False, one_way="resized for one image size"),
            LayoutRow("summed", change="Summed", splits=False, one_way="summed over the frames of a video"),
            LayoutRow("multiplied", change="Multiplied", splits=False, multiplies=True),
        )
    }
)
