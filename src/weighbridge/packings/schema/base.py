"""What a packing is in a file, as data: the stored tensors that make one logical matrix, and the rules by which their
specs, the config and a few small values give its shape and parameters.

Recognising is a pure function of specs, config and probed values. Nothing here imports numpy, so `wb inspect` counts
parameters with the very code that unpacks, at the price of a header. The tensors themselves are built from a `Match` by
the schema's `reader` (`packings/read/`).

How a stored tensor relates to its matrix [.., out, in] is written as one word for each of its last axes:

    rows, columns         one entry for each row or column of the matrix
    columns/word          entries that several columns share: `Solution.units` says how many
    -                     the axis runs along neither
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import gcd
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from weighbridge.base.dtypes import BF16, F16, F32, DType
from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.base.spec import Shape, Spec

#: The key of a config that holds the metadata of the weights file itself, where torchao describes its tensors.
METADATA: Final = "__metadata__"
ROWS, COLUMNS = 0, 1
FLOATS: Final = (F16, BF16, F32)
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})

Config = Mapping[str, Any]
Layout = TypeVar("Layout")


class Described(Protocol):
    """A tensor of which the spec is known: a node, or an entry of a container."""

    @property
    def spec(self) -> Spec: ...


class Shared(NamedTuple):
    """`each` rows or columns of the matrix are `entries` entries of a stored tensor, which share `what`."""

    each: int
    entries: int = 1
    what: str = "a scale"


class AxisUse(NamedTuple):
    """An axis of a stored tensor that runs along `side` of the matrix: `each` of that side are `entries` of it, which
    share `what`."""

    side: int
    each: int = 1
    entries: int = 1
    what: str = "an entry"


#: One for each of a tensor's last axes; None: the axis runs along neither rows nor columns.
StorageAxes = tuple[AxisUse | None, ...]


class Member(NamedTuple):
    """One of the stored tensors of a packed weight.

    suffix    what its name ends in, behind the module's
    dtypes    what it may be stored as; () for anything
    axes      how it runs along the matrix, see the module
    required  whether a group without it is incomplete, which is a FormatError
    selects   whether a group without it, or with another dtype, is another packing's
    probe     the most bytes of it that recognising or building may read; 0: none
    needs     the role without which it means nothing, where no other packing stores it alone
    """

    suffix: str
    dtypes: tuple[DType, ...] = ()
    axes: str = ""
    required: bool = True
    selects: bool = False
    probe: int = 0
    needs: str = ""


class Group(NamedTuple):
    """The stored tensors of one module, by role. `values`: of the members with a probe. `guess`: take what is usual
    where shapes and config leave something open."""

    module: str
    specs: Mapping[str, Spec]
    config: Config
    values: Mapping[str, bytes]
    guess: bool = False

    def need(self, condition: object, what: str, expected: object, found: object = None) -> None:
        """FormatError that names the module, unless `condition`."""
        if not condition:
            text = described(self.specs) if found is None else str(found)
            raise FormatError(what, field=self.module, expected=str(expected), found=text)


class Solution(NamedTuple):
    """What a group is: the matrix's shape, bits of a code and columns that share a scale (None: it has none, or a
    config doesn't name them), what its reader needs besides, and the units of its members' axes (None: all share
    one)."""

    shape: Shape
    bits: int | None = None
    group: int | None = None
    layout: Any = None
    units: Mapping[str, Shared | None] = _NONE
    axes: Mapping[str, StorageAxes] = _NONE


@dataclass(frozen=True)
class Match(Generic[Layout]):
    """One logical tensor in several stored ones. `stored`: role -> name of a stored tensor; `ignored`: companions that
    don't affect its values, such as scales of activations; `values`: of the members with a probe."""

    schema: PackingSchema
    module: str
    name: str
    shape: Shape
    bits: int | None
    group: int | None
    layout: Layout
    stored: Mapping[str, str]
    ignored: tuple[str, ...]
    axes: Mapping[str, StorageAxes]  # {}: its members don't run along the matrix
    values: Mapping[str, bytes]

    @property
    def tensors(self) -> frozenset[str]:
        return frozenset((*self.stored.values(), *self.ignored))

    @property
    def storage_axes(self) -> dict[str, StorageAxes]:
        """How each stored tensor runs along the matrix, by name. A cut of the matrix that falls between entries of
        every one of them is a cut of each. UnsupportedError where they don't run along it."""
        if not self.axes:
            raise UnsupportedError(
                f"{self.name} is packed as {self.schema.label}, whose parts don't lie along its rows and columns"
            )
        return {name: self.axes[role] for role, name in self.stored.items()} | dict.fromkeys(self.ignored, ())

    @property
    def weight(self) -> str:
        """The name of the stored tensor that has the codes."""
        return self.stored[self.schema.codes]

    @property
    def spec(self) -> Spec:
        return Spec(self.shape, F32)


class Evidence(NamedTuple):
    """What the name of a single tensor shows of a file: a word for it, the same in words, and the role whose ending
    shows it (None: the schema's key). `marks`: whole names that show it too."""

    what: str
    text: str
    role: str | None = None
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackingSchema:
    """A form in which packed weights are stored.

    name      unique; `packing` names the family of forms it belongs to
    label     what reports call it
    members   role -> stored tensor; the first has the codes
    key       the role whose name shows a group: the rarest
    solve     shape and parameters of a group; FormatError where it is misshapen, UnsupportedError where its layout is
              known and not read
    reader    the module whose `build(match, stored)` makes the tensor
    applies   what else decides whether a group is of this form
    logical   the ending of the logical tensor's name
    ignored   endings of companions that don't affect the weight
    bits      the usual bits of a code
    movable   whether the members are those of the quantized tensor, row for row, so that its rows can be moved and
              stored again
    evidence  what names alone show of a file; None: nothing, or another schema says it
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
    evidence: Evidence | None = None

    @property
    def codes(self) -> str:
        """The role of the tensor that has the codes."""
        return next(iter(self.members))

    @property
    def suffix(self) -> str:
        """The ending that shows a group."""
        return self.members[self.key].suffix

    def match(
        self, module: str, tensors: Mapping[str, Described], config: Config, read: Callable[[str, int], bytes],
        *, guess: bool = False,
    ) -> Match[Any] | None:  # fmt: skip
        """The group of `module`; None where it isn't of this form. `read` gives the bytes of a stored tensor, at most
        so many."""
        stored = {role: module + m.suffix for role, m in self.members.items() if module + m.suffix in tensors}
        specs = {role: tensors[name].spec for role, name in stored.items()}
        group = Group(module, specs, config, Probes(self, stored, read), guess)
        if not self._selected(specs) or not self.applies(group) or (guess and self.codes not in specs):
            return None
        ignored = tuple(module + ending for ending in self.ignored if module + ending in tensors)
        found = self._solution(group)
        known = not guess and (found.axes or any(m.axes for m in self.members.values()))
        axes = {role: found.axes.get(role) or _axes(m, specs[role], found) for role, m in self.members.items()
                if known and role in specs}  # fmt: skip
        return Match(self, module, module + self.logical, found.shape, found.bits, found.group, found.layout, stored,
                     ignored, axes, group.values)  # fmt: skip

    def _selected(self, specs: Mapping[str, Spec]) -> bool:
        return all(
            role in specs and (not m.dtypes or specs[role].dtype in m.dtypes)
            for role, m in self.members.items()
            if m.selects
        )

    def _solution(self, group: Group) -> Solution:
        if not group.guess:
            return self._solve(group)
        try:
            return self._solve(group)
        except (FormatError, UnsupportedError, KeyError):
            bits = configured_bits(group.config) or self.bits
            return Solution((group.specs[self.codes].nbytes * 8 // bits,))

    def _solve(self, group: Group) -> Solution:
        for role, member in self.members.items():
            spec = group.specs.get(role)
            group.need(spec or not member.required, f"a packed weight without {role}", group.module + member.suffix)
            group.need(spec is None or not member.dtypes or spec.dtype in member.dtypes,
                       f"{role} of another type", " or ".join(map(str, member.dtypes)))  # fmt: skip
        return self.solve(group)


class Probes(Mapping[str, bytes]):
    """The values of the members that a schema declares probes of, each read when it is first asked for."""

    def __init__(self, schema: PackingSchema, stored: Mapping[str, str], read: Callable[[str, int], bytes]) -> None:
        self._limits = {role: schema.members[role].probe for role in stored if schema.members[role].probe}
        self._stored, self._read, self._known = stored, read, dict[str, bytes]()

    def __getitem__(self, role: str) -> bytes:
        if role not in self._known:
            self._known[role] = self._read(self._stored[role], self._limits[role])
        return self._known[role]

    def __iter__(self) -> Any:
        return iter(self._limits)

    def __len__(self) -> int:
        return len(self._limits)


def _axes(member: Member, spec: Spec, found: Solution) -> StorageAxes:
    """The uses of a member's last axes. A single number for the whole matrix has none."""
    words = member.axes.split()
    if not words or spec.elements == 1:
        return (None,) * len(spec.shape) if words else ()
    return tuple(_use(word, found.units) for word in words)[: len(spec.shape)]


def _use(word: str, units: Mapping[str, Shared | None]) -> AxisUse | None:
    side, _, unit = word.partition("/")
    if side == "-":
        return None
    shared = units[unit] if unit else Shared(1, 1, "an entry")
    return None if shared is None else AxisUse({"rows": ROWS, "columns": COLUMNS}[side], *shared)


def axes_of_blocks(dtype: DType) -> StorageAxes:
    """Of a tensor of a block type: rows one by one, columns in whole blocks."""
    return (AxisUse(ROWS), AxisUse(COLUMNS, dtype.block, dtype.block, "a block"))


# ------------------------------------------------------------------------------------------------ groups of a model

#: Called with the stored tensor that shows a group, and the error, where the group can't be read.
OnError = Callable[[str, WeighbridgeError], None]


def find(
    schemas: Iterable[PackingSchema], tensors: Mapping[str, Described], config: Config,
    read: Callable[[str, int], bytes], on_error: OnError | None = None, *, guess: bool = False,
) -> dict[str, Match[Any]]:  # fmt: skip
    """The group of each stored tensor that is in one. `on_error` gets each group that can't be read, which then stays
    as it is stored; without it the first such error is raised."""
    joined = "\0".join((*tensors, ""))  # one search over all names a schema: most models have no packed weights
    active = [schema for schema in schemas if f"{schema.suffix}\0" in joined]
    endings = tuple({schema.suffix for schema in active})
    out: dict[str, Match[Any]] = {}
    for name in tensors if active else ():
        if not name.endswith(endings) or name in out:
            continue
        try:
            match = _first(active, name, tensors, config, read, guess)
        except (FormatError, UnsupportedError) as error:
            if on_error is None:
                raise
            on_error(name, error)
            continue
        if match:
            out.update(dict.fromkeys(match.tensors, match))
    return out


def _first(
    schemas: Iterable[PackingSchema], name: str, tensors: Mapping[str, Described], config: Config,
    read: Callable[[str, int], bytes], guess: bool,
) -> Match[Any] | None:  # fmt: skip
    for schema in schemas:
        if name.endswith(schema.suffix):
            match = schema.match(name.removesuffix(schema.suffix), tensors, config, read, guess=guess)
            if match:
                if not guess:
                    _check_alone(match, tensors)
                return match
    return None


def _check_alone(match: Match[Any], tensors: Collection[str]) -> None:
    """FormatError where the logical tensor is there a second time, under its own name."""
    if match.name in tensors and match.name not in match.tensors:
        raise FormatError(
            "a weight is there twice, packed and plain", field=match.name, expected="one of them", found="both",
            hint="leftovers of a conversion: remove one",
        )  # fmt: skip


def companions(schemas: Iterable[PackingSchema]) -> dict[str, tuple[set[DType], tuple[str, ...]]]:
    """Ending of a stored tensor's name -> dtypes in which it means nothing alone, and the endings of which one must be
    there too."""
    out: dict[str, tuple[set[DType], dict[str, None]]] = {}
    for schema in schemas:
        for member in schema.members.values():
            if member.needs:
                dtypes, companions = out.setdefault(member.suffix, (set(), {}))
                dtypes.update(member.dtypes)
                companions[schema.members[member.needs].suffix] = None
    return {ending: (dtypes, tuple(companions)) for ending, (dtypes, companions) in out.items()}


# ------------------------------------------------------------------------------------------------ for the schemas


def described(specs: Mapping[str, Spec]) -> str:
    return ", ".join(f"{role} {spec}" for role, spec in specs.items())


def settings(config: Config) -> Config:
    """What a config says of quantization; {} where it says nothing."""
    found = config.get("quantization_config") or config.get("quantization") or {}
    return found if isinstance(found, Mapping) else {}


def configured_bits(config: Config) -> int:
    """The bits that a config gives all packed weights; 0 where it names none, or several."""
    own = settings(config)
    named = next((own[key] for key in ("bits", "w_bit", "num_bits") if isinstance(own.get(key), int)), 0)
    return named or configured_group_bits(config)


def configured_group_bits(config: Config) -> int:
    """The bits that compressed-tensors' config gives all its groups of layers; 0 where it names none, or several."""
    groups = settings(config).get("config_groups")
    tables = (
        [g.get("weights") for g in groups.values() if isinstance(g, Mapping)] if isinstance(groups, Mapping) else []
    )
    bits: set[Any] = {w.get("num_bits") for w in tables if isinstance(w, Mapping)}
    found = bits.pop() if len(bits) == 1 else 0
    return found if isinstance(found, int) else 0


def in_group(size: int, columns: int) -> Shared | None:
    """Columns under one scale; None where that is all of them."""
    return None if size >= columns else Shared(size)


def in_words(bits: int, count: int, words: int) -> Shared:
    """`count` codes in `words` words of 32 bits: dense (as many codes as come out even), or whole ones in each word."""
    return dense(bits) if words == -(-count * bits // 32) else Shared(32 // bits, 1, "a word")


def dense(bits: int) -> Shared:
    """Codes in words of 32 bits without a gap: as few words as hold whole codes."""
    even = gcd(bits, 32)
    return Shared(32 // even, bits // even, "a word" if bits == even else "words")
