"""Scans arrays that aren't only numbers: NumPy's .npy files of objects, which are a pickle after a header, and joblib's
arrays inside a pickle, whose numbers other unpicklers take for opcodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.numpy import npy
from weighbridge.reports.scan.model import Part, Piece, ScanFinding
from weighbridge.reports.scan.names import harm_of
from weighbridge.reports.scan.pickle.policy import PicklePolicy
from weighbridge.unpickle.libraries.joblib import WRAPPER, JoblibMachine
from weighbridge.unpickle.machine import Machine


def scan(part: Part) -> Iterator[Piece]:
    """Scans an .npy file, or a member of an .npz."""
    part.budget.spend(members=1)
    start = npy.objects_at(part.source)
    if start is not None:
        size = part.source.size - start
        yield part.inside("(objects)", part.source.window(start, size, f"{part.source.name} (objects)"), "pickle")


Load = Callable[[int, Any], Iterator[Piece]]
#: Rules whose findings have no name.
_COMPUTED: Final = ("pickle/computed-name", "pickle/computed-call")
_TEXT: Final = "torch.jit._pickle.restore_type_tag"  # the only allowed call that may return text


def opcodes(part: Part, joblib: JoblibMachine, load: Load) -> Iterator[Piece]:
    """Reports how an unpickler other than joblib's would treat the numbers of the arrays in the pickle that `joblib`
    read. `load` scans bytes that torch would load as a file."""
    assert joblib.array is not None
    policy = PicklePolicy(part)
    machine = Machine(part.source, joblib.start, strict=False, watch=policy.watch)
    try:
        with suppress(FormatError):  # harmless numbers aren't opcodes
            machine.run()
    except UnsupportedError as error:
        yield part.finding("pickle/array-limit", error.message, at=machine.at)
    policy.check(machine)
    for at, value in policy.loaded:
        if at >= joblib.array:
            yield from load(at, value)
    if any(event.at >= joblib.array for event, _ in policy.indexed):
        yield part.finding("pickle/array-limit", "read as opcodes, an array's numbers make tensors of indices")
    derails = joblib.objects and not any(str(e.what) == _TEXT for e in machine.events if e.kind == "import")
    for finding in policy.findings():
        in_array = finding.offset is not None and finding.offset >= joblib.array
        if not in_array or not (is_importable(finding.name) if finding.name else finding.rule in _COMPUTED):
            continue
        if derails and _is_harmless(finding, part):
            continue
        message = f"read as opcodes, an array's numbers name {finding.name or 'the result of a call'}"
        yield part.finding(
            "pickle/array-opcodes", message, at=finding.offset, opcode=finding.opcode, name=finding.name,
            use=finding.use, arguments=finding.arguments, consequence=finding.consequence,
        )  # fmt: skip
        return


def is_importable(name: str) -> bool:
    """Whether Python would look for a file for the module of `name`: it accepts any name, not only identifiers. Names
    made of random numbers have control characters."""
    package = name.partition(".")[0]
    return bool(package) and "/" not in package and name.isprintable() and "\\x" not in name


def _is_harmless(finding: ScanFinding, part: Part) -> bool:
    """Whether a harmless array of objects causes this finding in an unpickler that reads the array with the memo of the
    surrounding pickle: it uses another text for `numpy` in `numpy.dtype`, and the result as the type of the array."""
    if finding.name is None:
        return True
    module, _, name = finding.name.rpartition(".")
    if finding.rule == "pickle/odd-state":
        return name == "_reconstruct"
    folder = Path(part.place.path).parent
    nearby = any((folder / f"{module.partition('.')[0]}{suffix}").exists() for suffix in ("", ".py"))
    return name == "dtype" and (module == WRAPPER[0] or harm_of(module, name) is None) and not nearby
