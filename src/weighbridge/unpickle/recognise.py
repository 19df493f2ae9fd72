"""Recognises a pickle by its first opcodes: the machine runs over them and stops early."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.io.source import BytesSource
from weighbridge.unpickle.libraries.joblib import JoblibMachine
from weighbridge.unpickle.opcodes import Opcode
from weighbridge.unpickle.values import Global

_BUDGET: Final = 16 << 20
_NAMES: Final = 16


class Prefix(NamedTuple):
    """The `opcodes` at the beginning of some data, up to byte `end`. `declared`: the protocol of PROTO. `names`: their
    imports. `stopped`: STOP was reached, with `value`. `broken`: why every unpickler stops there, unless the data just
    ends."""

    declared: int | None
    opcodes: tuple[Opcode, ...]
    end: int
    names: tuple[str, ...]
    stopped: bool
    value: Any
    broken: str | None

    @property
    def protocol(self) -> int:
        """The declared protocol, or the lowest one that has the opcodes."""
        return max(o.protocol for o in self.opcodes) if self.declared is None else self.declared


def prefix(data: bytes, most: int) -> Prefix:
    """The first opcodes in `data`, at most `most`."""
    machine = JoblibMachine(BytesSource(data), budget=_BUDGET, strict=False)
    opcodes: list[Opcode] = []
    broken = None
    try:
        for opcode in machine.trace():
            if machine.steps >= most:
                break
            if opcode is not None:
                opcodes.append(opcode)
    except FormatError as error:
        broken = None if "ends" in error.reason else error.reason
    except UnsupportedError as error:
        broken = error.message
    opcodes = opcodes[: machine.steps]
    declared = data[1] if opcodes and opcodes[0].name == "PROTO" else None
    names = dict.fromkeys(str(e.what) for e in machine.events if isinstance(e.what, Global))
    value = machine.stack[-1] if machine.done else None
    end = machine.end if broken is None else machine.at
    return Prefix(declared, tuple(opcodes), end, tuple(names)[:_NAMES], machine.done, value, broken)
