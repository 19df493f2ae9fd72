"""Every rule of a scan, of all scanners: one table, for the docs and for SARIF."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.reports.scan import configs, engine, headers, programs, texts, unsupported, walk
from weighbridge.reports.scan.archive import polyglots, streams, zip_scanner
from weighbridge.reports.scan.hdf5 import scanner as hdf5
from weighbridge.reports.scan.model import ScanRule
from weighbridge.reports.scan.pickle import arrays, policy, storages
from weighbridge.reports.scan.pickle import scanner as pickles
from weighbridge.reports.scan.template import scanner as templates

_MODULES: Final = (
    policy, pickles, storages, zip_scanner, streams, arrays, polyglots, headers, hdf5, configs, templates, texts,
    programs, unsupported, walk, engine,
)  # fmt: skip

RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {name: rule for module in _MODULES for name, rule in module.RULES.items()}
)
