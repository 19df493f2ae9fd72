"""An abstract pickle machine: it runs the opcodes of any protocol over inert values. It imports, calls and hashes
nothing from the pickle, so no input can make it run code. It records the actions of a real unpickler instead.

    machine = Machine(source)
    value = machine.run()        FormatError if the pickle is broken; `machine.events` has the actions before that
    machine.end                  the offset after the pickle: others may follow
    for step in Machine(source).trace():    one opcode at a time, with the stack in between

CPython's unpicklers, its disassembler and torch's read some bytes differently: an integer in hex, a number with a NUL
in it, an opcode across the end of its frame, PROTO in the middle. A strict machine refuses them. A lenient one
(`strict=False`) records a `disputed` event and continues like the most permissive unpickler. When it raises
FormatError, every unpickler has stopped too. UnsupportedError marks a limit of this machine: an unpickler may continue.

Every opcode has a cost (`opcodes.Opcode`). Their sum bounds memory (`limits.PICKLE_MEMORY`), and the number of bytes
bounds time.

Opcodes run in bursts over a window of the source that begins at offset `base`. An opcode whose argument isn't complete
in the window raises before it changes anything, and runs again in a longer window.

Reference: CPython Lib/pickle.py (`_Unpickler`), Lib/pickletools.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from weighbridge.base import gc_pause
from weighbridge.unpickle.opcodes import COSTS, TABLE, WIDTHS, Opcode
from weighbridge.unpickle.state import MachineState, Short
from weighbridge.unpickle.steps import STEPS


class Machine(MachineState):
    """One pickle of `source`, from `offset` on. `budget` bounds the memory of its values. `watch` receives each call
    and each BUILD when it happens, because the values in it may change later."""

    def run(self) -> Any:
        """Runs the pickle and returns its value."""
        with gc_pause.paused():
            while not self.done:
                self._ready()
                self._burst()
        value = self.stack[-1]
        self.stack, self.marks, self.memo = [], [], []
        self.base, self._data, self._here, self._next = self.end, b"", 0, 0
        return value

    def run_at_most(self, steps: int) -> None:
        """Runs the pickle's first opcodes, `steps` of them."""
        while not self.done and self.steps < steps:
            self._ready()
            self._stop = min(self._stop, self._next + steps - self.steps)  # an opcode has at least one byte
            self._burst()

    def trace(self) -> Iterator[Opcode | None]:
        """Runs one opcode at a time. Yields each before running it (None for an unknown code): its offset is `end`, and
        `stack` is its input."""
        while not self.done:
            self._ready()
            yield TABLE.get(self._data[self._next])
            steps = self.steps
            while self.steps == steps:  # again in a longer window if its argument is incomplete
                self._ready()
                self._stop = self._next + 1
                self._burst()

    def _burst(self) -> None:
        """Runs the opcodes that begin before `_stop`."""
        data, run, costs = self._data, STEPS, COSTS
        count = spent = 0
        at = self._next
        try:
            while at < self._stop:
                self._here = at
                code = data[at]
                spent += costs[code]
                at = run[code](self, data, at + 1)
                count += 1
            self._next = at
        except Short as short:
            self._again(short.need)
        except (IndexError, struct.error):  # of the window, or of the stack
            self._again(1 + WIDTHS[data[self._here]])
        finally:
            self.steps += count
            self.spent += spent
