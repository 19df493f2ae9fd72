"""Finds the packed weights of a model: the stored tensors that belong together, by the schemas. Reads only tensor data
that a schema declares as a probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.packings.schema.base import Config, Described, Group, Match, PackingSchema, Recognized

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})

#: Called with the identifying stored tensor and the error if a group can't be read.
OnError = Callable[[str, WeighbridgeError], None]


def find(
    schemas: Iterable[PackingSchema], tensors: Mapping[str, Described], config: Config,
    read: Callable[[str, int], bytes], on_error: OnError | None = None, *, guess: bool = False,
) -> dict[str, Match[Any]]:  # fmt: skip
    """The group of each stored tensor that belongs to one. `on_error` is called for each group that can't be read,
    whose tensors then stay ungrouped; without it the first such error is raised."""
    schemas = tuple(schemas)
    # The ends of names, each with a NUL, as long as the longest suffix: 100,000 names end in a few dozen ways.
    longest = max((len(suffix) for schema in schemas for suffix in schema.suffixes), default=1)
    joined = "\0".join((*{name[-longest:] for name in tensors}, ""))
    present = [schema for schema in schemas if f"{schema.suffix}\0" in joined]
    searches = [_Search(schema, joined, tensors, config, read, guess) for schema in present]
    endings = tuple({schema.suffix for schema in present})
    out: dict[str, Match[Any]] = {}
    for name in tensors if present else ():
        if not name.endswith(endings) or name in out:
            continue
        try:
            match = next((match for search in searches if (match := search.match(name)) is not None), None)
        except (FormatError, UnsupportedError) as error:
            if on_error is None:
                raise
            on_error(name, error)
            continue
        if match:
            module = match.module
            for ending in match.recognized.endings:
                out[module + ending] = match
    return out


class _Search:
    """The groups of one schema in one model. Groups with equal specs are solved once, unless the schema is `by_module`:
    a model may have 100,000."""

    def __init__(
        self, schema: PackingSchema, joined: str, tensors: Mapping[str, Described], config: Config,
        read: Callable[[str, int], bytes], guess: bool,
    ) -> None:  # fmt: skip
        """`joined`: the ends of all names, see `find`. `read(name, limit)` returns the bytes of a stored tensor."""
        self._schema, self._tensors, self._config, self._read, self._guess = schema, tensors, config, read, guess
        self._members = [(role, m.suffix) for role, m in schema.members.items() if f"{m.suffix}\0" in joined]
        self._ignored = [ending for ending in schema.ignored if f"{ending}\0" in joined]
        self._known: dict[tuple[Any, ...], Recognized[Any] | None] = {}

    def match(self, name: str) -> Match[Any] | None:
        """The group that a tensor's name identifies; None if it isn't of this schema."""
        schema, tensors = self._schema, self._tensors
        if not name.endswith(schema.suffix):
            return None
        module = name.removesuffix(schema.suffix)
        stored = [tensors.get(module + ending) for _, ending in self._members]
        ignored = tuple([ending for ending in self._ignored if module + ending in tensors]) if self._ignored else ()
        key = (ignored, *[None if tensor is None else tensor.spec for tensor in stored])
        values = _NONE
        if key in self._known:
            recognized = self._known[key]
        else:
            specs = {role: tensor.spec for (role, _), tensor in zip(self._members, stored, strict=True)
                     if tensor is not None}  # fmt: skip
            probes = Probes(schema, {role: module + schema.members[role].suffix for role in specs}, self._read)
            recognized = schema.recognize(Group(module, specs, self._config, probes, self._guess), ignored)
            if schema.by_module:
                values = probes if probes else _NONE
            else:
                self._known[key] = recognized
        if recognized is None:
            return None
        if not self._guess and schema.logical not in recognized.endings:
            name = module + schema.logical
            if name in tensors:
                raise FormatError(
                    "a weight is stored twice, packed and plain", field=name, expected="one of them", found="both",
                    hint="probably left over from a conversion: remove one",
                )  # fmt: skip
        return Match(module, recognized, values)


def companions(schemas: Iterable[PackingSchema]) -> dict[str, tuple[set[DType], tuple[str, ...]]]:
    """Suffix of a stored tensor -> the dtypes in which it needs a companion, and the companions' suffixes."""
    out: dict[str, tuple[set[DType], dict[str, None]]] = {}
    for schema in schemas:
        for member in schema.members.values():
            if member.needs:
                dtypes, companions = out.setdefault(member.suffix, (set(), {}))
                dtypes.update(member.dtypes)
                companions[schema.members[member.needs].suffix] = None
    return {ending: (dtypes, tuple(companions)) for ending, (dtypes, companions) in out.items()}


class Probes(Mapping[str, bytes]):
    """The values of the members with a probe, read on first access."""

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
