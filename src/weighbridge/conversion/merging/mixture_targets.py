"""The architectures that a mixture of dense models can have (mixtures.toml): their models, names and settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from weighbridge.base.imports.tables import read_table

_NUMBER: Final = "= "


class MixtureCounts(NamedTuple):
    """Experts in all, shared ones, those of a token, and the width of one."""

    experts: int
    shared: int
    per_token: int
    width: int


class MixtureTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`models`: the model_type of dense models. `class_`, `model_type`: of the result. `expert`, `router`: names of
    tensors after `model.layers.N.`; `shared`, `shared_router`: of the shared expert and its gate, "" if there is none.
    `parts`: the names of an expert's matrices, if others. `least_shared`: of shared experts; one at most. `settings`,
    `null`: the keys of config.json. `biases`: whether q, k and v have biases."""

    name: str
    models: frozenset[str]
    class_: str = msgspec.field(name="class")
    model_type: str
    expert: str
    router: str
    settings: Mapping[str, Any]
    null: tuple[str, ...] = ()
    shared: str = ""
    shared_router: str = ""
    least_shared: int = 0
    parts: Mapping[str, str] = {}
    biases: bool = False
    note: str = ""

    def named(self, beginning: str) -> bool:
        """Whether the name begins so, in any case."""
        return self.name.lower().startswith(beginning.lower())

    def part(self, name: str) -> str:
        """The name of a dense model's matrix in an expert."""
        return self.parts.get(name, name)

    def config(self, counts: MixtureCounts) -> dict[str, Any]:
        """The keys of config.json that differ from the dense model's."""
        numbers = {**counts._asdict(), "shared": counts.shared or None}
        values = {
            key: numbers[value.removeprefix(_NUMBER)] if isinstance(value, str) and value.startswith(_NUMBER) else value
            for key, value in self.settings.items()
        }
        return {"architectures": [self.class_], "model_type": self.model_type, **values, **dict.fromkeys(self.null)}


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    architecture: tuple[MixtureTarget, ...]


@cache
def targets() -> tuple[MixtureTarget, ...]:
    """All architectures, in the order in which they are tried."""
    return msgspec.convert(read_table(__file__, "mixtures.toml"), _Table).architecture
