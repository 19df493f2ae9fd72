"""Every rule of a scan, of all its looks: one table, for the docs and for SARIF."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.reports.scan import engine, judge, pickles, zip_look
from weighbridge.reports.scan.model import Rule

RULES: Final[Mapping[str, Rule]] = MappingProxyType({**judge.RULES, **pickles.RULES, **zip_look.RULES, **engine.RULES})
