"""What a plan asks of a text (`forward/calibration.py`), and what it gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from weighbridge.conversion.options import MlxOptions, SchemeOptions
from weighbridge.conversion.plan.contents import Preparation
from weighbridge.models.model import OpenModel
from weighbridge.packings.write.rounding import GroupRule
from weighbridge.tensors.nodes import LogicalTensor, Node

#: GPTQ, alone or after the factors of AWQ or SmoothQuant; or scales of inputs, with weights rounded to nearest.
Use = Literal["gptq", "awq", "smooth", "ranges"]


class ToCalibrate(NamedTuple):
    """`layers`: the matrices to round, of one of three float types, by the names of a dialect; `rules`: how their
    groups are rounded, none for "ranges"; `named`: all tensors; `floats`: in the target's types."""

    model: OpenModel
    dialect: str
    named: Mapping[str, LogicalTensor]
    floats: Mapping[str, Node]
    layers: Mapping[str, Node]
    rules: Mapping[str, GroupRule]
    use: Use
    options: SchemeOptions | MlxOptions


class Calibrated(NamedTuple):
    """By layer, the nodes that the text computes, by role: those of `GroupRule.members`, or the scale of its `inputs`;
    `floats`: the other tensors that change."""

    parts: Mapping[str, Mapping[str, Node]]
    floats: Mapping[str, Node]
    preparation: Preparation


Calibrate = Callable[[ToCalibrate], Calibrated]
