"""Data files of ExecuTorch (.ptd): named tensors that a program keeps outside its file. See `executorch.py`."""

from __future__ import annotations

from typing import Final

from weighbridge.containers.base import Index, Region
from weighbridge.containers.devices.executorch import RULES as RULES
from weighbridge.containers.devices.executorch import parse_data
from weighbridge.containers.frameworks.tensor_list import framed
from weighbridge.io.source import Source

NAME: Final = "executorch-data"


def parse(source: Source) -> Index:
    """The tensors by their names."""
    return parse_data(source, NAME)


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named."""
    return framed(source, parse, "tables of the FlatBuffer, padding")
