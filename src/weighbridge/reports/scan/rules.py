"""Every rule of a scan, of all its looks: one table, for the docs and for SARIF."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.reports.scan import (
    archives,
    arrays,
    configs,
    engine,
    headers,
    judge,
    pickles,
    polyglots,
    programs,
    templates,
    texts,
    unlooked,
    walk,
    zip_look,
)
from weighbridge.reports.scan.model import Rule

_LOOKS: Final = (
    judge,
    pickles,
    zip_look,
    archives,
    arrays,
    polyglots,
    headers,
    configs,
    templates,
    texts,
    programs,
    unlooked,
    walk,
    engine,
)

RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {name: rule for look in _LOOKS for name, rule in look.RULES.items()}
)
