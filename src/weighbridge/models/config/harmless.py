"""The keys of config.json that no result depends on, from harmless.toml."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from fnmatch import translate
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from msgspec import Struct, toml

from weighbridge.models.arch.family import Family


class HarmlessGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """Keys that are harmless for one reason. `*` in a key matches any text.

    `families`: only in these families. `off`: only if the config sets this key to false, 0 or null. `without`: only if
    the config doesn't set this key, or sets it to such a value.
    """

    reason: str
    keys: list[str]
    families: list[str] = []
    off: str = ""
    without: str = ""

    def covers(self, names: Collection[str], config: Mapping[str, Any]) -> bool:
        """Whether the group applies to a config. `names`: the family's name and the name of the one it is like."""
        if (self.families and not {*self.families} & {*names}) or config.get(self.without):
            return False
        return not self.off or (self.off in config and not config[self.off])


class _HarmlessTable(Struct, frozen=True, forbid_unknown_fields=True):
    group: list[HarmlessGroup]


@cache
def groups() -> tuple[HarmlessGroup, ...]:
    """Returns the groups of harmless.toml."""
    text = (resources.files(__package__ or "") / "harmless.toml").read_text(encoding="utf-8")
    return tuple(toml.decode(text, type=_HarmlessTable).group)


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile("|".join(map(translate, group.keys))) for group in groups())


def why_harmless(key: str, family: Family, config: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Returns why no result depends on a key of a config, or "" if no group has the key."""
    names = (family.name, family.document.like or "")
    groups_with_key = (g for g, pattern in zip(groups(), _patterns(), strict=True) if pattern.match(key))
    return next((group.reason for group in groups_with_key if group.covers(names, config)), "")
