"""The form of a packing in a file, as data: the stored tensors of one logical matrix, and the rules that derive its
shape and parameters from their specs, the config and a few small values.

Recognising is a pure function of specs, config and probed values. Nothing here imports numpy, so `wb inspect` counts
parameters with the code that unpacks, after reading only headers. The schema's `reader` (`packings/read/`) builds the
tensors from a `Match`.

The relation between a stored tensor and its matrix [.., out, in] is written as one word for each of its last axes:

    rows, columns         one entry for each row or column of the matrix
    columns/word          entries shared by several columns: `Solution.units` has the number
    -                     the axis runs along neither
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from functools import cached_property
from math import gcd
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from weighbridge.base.dtypes import BF16, F16, F32, DType
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape, Spec

#: The config key for the metadata of the weights file, in which torchao describes its tensors.
METADATA: Final = "__metadata__"
ROWS, COLUMNS = 0, 1
FLOATS: Final = (F16, BF16, F32)
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})

Config = Mapping[str, Any]
Layout = TypeVar("Layout")


class Described(Protocol):
    """A tensor with a known spec: a node, or an entry of a container."""

    @property
    def spec(self) -> Spec: ...


class Shared(NamedTuple):
    """`each` rows or columns of the matrix share `entries` entries of a stored tensor. `what`: their name, for
    messages."""

    each: int
    entries: int = 1
    what: str = "a scale"


class AxisUse(NamedTuple):
    """An axis of a stored tensor that runs along `side` of the matrix: `each` rows or columns share `entries`
    entries. `what`: the name of the entries, for messages."""

    side: int
    each: int = 1
    entries: int = 1
    what: str = "an entry"


#: One per last axis of a tensor; None: the axis runs along neither rows nor columns.
StorageAxes = tuple[AxisUse | None, ...]


class Member(NamedTuple):
    """One of the stored tensors of a packed weight.

    suffix    the end of its name, after the module's
    dtypes    allowed dtypes; () for any
    axes      how it runs along the matrix; see the module's docstring
    required  a group without it is incomplete: FormatError
    selects   a group without it, or with another dtype, belongs to another packing
    probe     the most bytes of its data that recognising or building may read; 0: none
    needs     the role without which it has no meaning in any packing
    """

    suffix: str
    dtypes: tuple[DType, ...] = ()
    axes: str = ""
    required: bool = True
    selects: bool = False
    probe: int = 0
    needs: str = ""


class Group(NamedTuple):
    """The stored tensors of one module, by role. `values`: data of the members with a probe. `guess`: assume the
    usual parameters where shapes and config leave them open."""

    module: str
    specs: Mapping[str, Spec]
    config: Config
    values: Mapping[str, bytes]
    guess: bool = False

    def need(self, condition: object, what: str, expected: object, found: object = None) -> None:
        """Raises a FormatError that names the module, unless `condition`."""
        if not condition:
            text = described(self.specs) if found is None else str(found)
            raise FormatError(what, field=self.module, expected=str(expected), found=text)


class Solution(NamedTuple):
    """The interpretation of a group: the matrix's shape, bits of a code and columns that share a scale (None: not
    applicable, or unknown), data for its reader, and the units of its members' axes (None: all share one)."""

    shape: Shape
    bits: int | None = None
    group: int | None = None
    layout: Any = None
    units: Mapping[str, Shared | None] = _NONE
    axes: Mapping[str, StorageAxes] = _NONE


@dataclass(frozen=True, slots=True)
class Recognized(Generic[Layout]):
    """The interpretation of a group except the module's name: one object for all groups with equal specs.

    roles     role -> ending of a stored tensor's name
    ignored   endings of companions that don't affect its values, such as scales of activations
    endings   all of these
    codes     the ending of the tensor that has the codes
    axes      how the members run along the matrix; {} if they don't"""

    schema: PackingSchema
    shape: Shape
    bits: int | None
    group: int | None
    layout: Layout
    roles: Mapping[str, str]
    ignored: tuple[str, ...]
    endings: tuple[str, ...]
    codes: str
    axes: Mapping[str, StorageAxes]
    spec: Spec


class Match(NamedTuple, Generic[Layout]):
    """One logical tensor in several stored ones: those of `module`. `values`: data of the members with a probe. (A
    model has 100,000, which share their `recognized` objects.)"""

    module: str
    recognized: Recognized[Layout]
    values: Mapping[str, bytes] = _NONE

    @property
    def schema(self) -> PackingSchema:
        return self.recognized.schema

    @property
    def shape(self) -> Shape:
        return self.recognized.shape

    @property
    def bits(self) -> int | None:
        return self.recognized.bits

    @property
    def group(self) -> int | None:
        return self.recognized.group

    @property
    def layout(self) -> Layout:
        return self.recognized.layout

    @property
    def spec(self) -> Spec:
        """The spec of the logical tensor, as F32."""
        return self.recognized.spec

    @property
    def name(self) -> str:
        return self.module + self.recognized.schema.logical

    @property
    def stored(self) -> dict[str, str]:
        """Role -> name of a stored tensor."""
        return {role: self.module + ending for role, ending in self.recognized.roles.items()}

    @property
    def ignored(self) -> tuple[str, ...]:
        """The companions that don't affect its values."""
        return tuple(self.module + ending for ending in self.recognized.ignored)

    @property
    def tensors(self) -> list[str]:
        """All stored tensors."""
        return [self.module + ending for ending in self.recognized.endings]

    @property
    def storage_axes(self) -> dict[str, StorageAxes]:
        """How each stored tensor runs along the matrix, by name. A cut of the matrix between entries of all of them
        is a cut of each. UnsupportedError if they don't run along it."""
        if not self.recognized.axes:
            raise UnsupportedError(
                f"{self.name} is packed as {self.schema.label}, whose parts don't follow its rows and columns"
            )
        axes = {name: self.recognized.axes[role] for role, name in self.stored.items()}
        return axes | dict.fromkeys(self.ignored, ())

    @property
    def weight(self) -> str:
        """The name of the stored tensor that has the codes."""
        return self.module + self.recognized.codes


class Evidence(NamedTuple):
    """Evidence about a file in the name of a single tensor: an id, a description, and the role whose suffix is the
    evidence (None: the schema's key). `marks`: full names that are evidence too."""

    what: str
    text: str
    role: str | None = None
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackingSchema:
    """How packed weights are stored.

    name      unique; `packing` is the name shared by variants
    label     its name in reports
    members   role -> stored tensor; the first has the codes
    key       the role whose name identifies a group: the rarest
    solve     shape and parameters of a group; FormatError if it is misshapen, UnsupportedError if its layout is known
              but unsupported
    reader    the module whose `build(match, stored)` makes the tensor; "": it is recognised and not decoded
    applies   a further condition on groups
    logical   the suffix of the logical tensor's name
    ignored   suffixes of companions that don't affect the weight
    bits      the usual bits of a code
    movable   whether the stored tensors are the members of the quantized tensor row for row, so that its rows can be
              moved and stored again
    by_module whether the config or the members' values may differ between modules of equal specs; if not, groups with
              equal specs are solved once
    evidence  evidence about a file in its names; None if there is none, or if another schema has it
    """

    name: str
    packing: str
    label: str
    members: Mapping[str, Member]
    key: str
    solve: Callable[[Group], Solution]
    reader: str
    applies: Callable[[Group], object] = lambda group: True
    logical: str = ".weight"
    ignored: tuple[str, ...] = ()
    bits: int = 4
    movable: bool = False
    by_module: bool = True
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        if problem := _fault(self):
            raise UsageError(f"the packing {self.name!r}: {problem}", hint="see 'Extending' in Weighbridge's docs")

    @property
    def codes(self) -> str:
        """The role of the tensor that has the codes."""
        return next(iter(self.members))

    @cached_property
    def suffixes(self) -> tuple[str, ...]:
        """The endings of all its stored tensors."""
        return (*(member.suffix for member in self.members.values()), *self.ignored)

    @cached_property
    def suffix(self) -> str:
        """The ending that shows a group."""
        return self.members[self.key].suffix

    def recognize(self, group: Group, ignored: tuple[str, ...]) -> Recognized[Any] | None:
        """Interprets a group, given the suffixes of its ignored companions; None if it doesn't match this schema."""
        specs, guess = group.specs, group.guess
        selected = all(
            role in specs and (not m.dtypes or specs[role].dtype in m.dtypes)
            for role, m in self.members.items()
            if m.selects
        )
        if not selected or not self.applies(group) or (guess and self.codes not in specs):
            return None
        try:
            for role, member in self.members.items():
                spec = group.specs.get(role)
                group.need(spec or not member.required, f"a packed weight without {role}", group.module + member.suffix)
                group.need(spec is None or not member.dtypes or spec.dtype in member.dtypes,
                           f"{role} of another type", " or ".join(map(str, member.dtypes)))  # fmt: skip
            solution = self.solve(group)
        except (FormatError, UnsupportedError, KeyError):
            if not guess:
                raise
            bits = configured_bits(group.config) or self.bits
            solution = Solution((specs[self.codes].nbytes * 8 // bits,))
        has_axes = not guess and (solution.axes or any(m.axes for m in self.members.values()))
        axes = {role: solution.axes.get(role) or _axes(m, specs[role], solution.units)
                for role, m in self.members.items() if has_axes and role in specs}  # fmt: skip
        roles = {role: self.members[role].suffix for role in specs}
        return Recognized(
            self, solution.shape, solution.bits, solution.group, solution.layout, roles, ignored,
            (*roles.values(), *ignored), self.members[self.codes].suffix, axes, Spec(solution.shape, F32),
        )  # fmt: skip


_AXIS: Final = re.compile(r"-|(rows|columns)(/[\w-]+)?")


def _fault(schema: PackingSchema) -> str | None:
    """The first mistake in a schema's declaration."""
    if schema.key not in schema.members:
        return f"its key {schema.key!r} is none of its members {', '.join(schema.members)}"
    if not schema.suffix:
        return f"its key {schema.key!r} has no suffix"
    if schema.evidence and (schema.evidence.role or schema.key) not in schema.members:
        return f"its evidence names the unknown member {schema.evidence.role!r}"
    for role, member in schema.members.items():
        if member.needs and member.needs not in schema.members:
            return f"the member {role!r} needs the unknown member {member.needs!r}"
        for axis in member.axes.split():
            if not _AXIS.fullmatch(axis):
                return f"the member {role!r} has the axis {axis!r}, not rows, columns, rows/UNIT, columns/UNIT or -"
    return None


def _axes(member: Member, spec: Spec, units: Mapping[str, Shared | None]) -> StorageAxes:
    """The uses of a member's last axes. A single number for the whole matrix has none."""
    if not member.axes or spec.elements == 1:
        return (None,) * len(spec.shape) if member.axes else ()
    uses: list[AxisUse | None] = []
    for axis in member.axes.split():
        side, _, unit = axis.partition("/")
        if unit and unit not in units:
            raise UsageError(f"the axis {axis!r} of a packing has a unit that solve() doesn't return in Solution.units")
        shared = None if side == "-" else units[unit] if unit else Shared(1, 1, "an entry")
        uses.append(None if shared is None else AxisUse({"rows": ROWS, "columns": COLUMNS}[side], *shared))
    return tuple(uses)[: len(spec.shape)]


def axes_of_blocks(dtype: DType) -> StorageAxes:
    """The axes of a tensor of a block type: rows one by one, columns in whole blocks."""
    return (AxisUse(ROWS), AxisUse(COLUMNS, dtype.block, dtype.block, "a block"))


# ------------------------------------------------------------------------------------------------ for the schemas


def described(specs: Mapping[str, Spec]) -> str:
    return ", ".join(f"{role} {spec}" for role, spec in specs.items())


def settings(config: Config) -> Config:
    """A config's quantization settings; {} without any."""
    declared = config.get("quantization_config") or config.get("quantization") or {}
    return declared if isinstance(declared, Mapping) else {}


def configured_bits(config: Config) -> int:
    """The bits that a config declares for all packed weights; 0 if there are none, or several."""
    table = settings(config)
    bits = next((table[key] for key in ("bits", "w_bit", "num_bits") if isinstance(table.get(key), int)), 0)
    return bits or configured_group_bits(config)


def configured_group_bits(config: Config) -> int:
    """The bits that compressed-tensors' config declares for all groups of layers; 0 if there are none, or several."""
    groups = settings(config).get("config_groups")
    tables = (
        [g.get("weights") for g in groups.values() if isinstance(g, Mapping)] if isinstance(groups, Mapping) else []
    )
    bits: set[Any] = {w.get("num_bits") for w in tables if isinstance(w, Mapping)}
    declared = bits.pop() if len(bits) == 1 else 0
    return declared if isinstance(declared, int) else 0


def in_group(size: int, columns: int) -> Shared | None:
    """Columns per scale; None if all share one."""
    return None if size >= columns else Shared(size)


def in_words(bits: int, count: int, words: int) -> Shared:
    """`count` codes in `words` 32-bit words: dense (a continuous stream), or whole codes in each word."""
    return dense(bits) if words == -(-count * bits // 32) else Shared(32 // bits, 1, "a word")


def dense(bits: int) -> Shared:
    """Codes in 32-bit words without gaps: the fewest words that contain whole codes."""
    even = gcd(bits, 32)
    return Shared(32 // even, bits // even, "a word" if bits == even else "words")


_CODES: Final = MappingProxyType({"I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B"})


def integers(group: Group, role: str) -> list[int]:
    """The values of a setting: a tensor of 1 to 8 integers. FormatError for anything else."""
    spec = group.specs[role]
    code = _CODES.get(spec.dtype.name, "")
    group.need(code and 0 < spec.elements <= 8, "a setting isn't an integer", "integers", spec)
    return list(struct.unpack(f"<{spec.elements}{code}", group.values[role]))


def json_object(text: bytes | str, what: str, name: str) -> Mapping[str, Any]:
    """Parses a JSON object. FormatError if the text isn't one."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise FormatError(f"{what} isn't JSON: {error}", field=name) from None
