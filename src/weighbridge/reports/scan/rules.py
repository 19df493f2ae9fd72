"""Every rule of a scan, of all its looks: one table, for the docs and for SARIF."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.reports.scan import configs, engine, headers, programs, texts, walk
from weighbridge.reports.scan import unsupported as unlooked
from weighbridge.reports.scan.archive import polyglots
from weighbridge.reports.scan.archive import streams as archives
from weighbridge.reports.scan.archive import zip_scanner as zip_look
from weighbridge.reports.scan.model import Rule
from weighbridge.reports.scan.pickle import arrays
from weighbridge.reports.scan.pickle import policy as judge
from weighbridge.reports.scan.pickle import scanner as pickles
from weighbridge.reports.scan.template import scanner as templates

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
