"""Builds a family from its table and checks the table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from weighbridge.models.arch.config import DERIVED
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.rules import completing_rules
from weighbridge.models.arch.tables import spec, validate
from weighbridge.models.arch.tables.layers import build_layer_set
from weighbridge.models.arch.tables.meta import check_meta
from weighbridge.models.arch.tables.schema import FamilyTable


def build_family(document: Mapping[str, Any]) -> Family:
    """Builds a family from its whole table (see `documents.resolve`). UsageError names the first mistake."""
    table = validate.convert(document, FamilyTable)
    roles = {name: spec.build_role(name, entry) for name, entry in table.role.items()}
    dialects = {name: spec.build_dialect(name, table, roles) for name in table.dialect}
    sizes = {symbol: spec.build_size(entry) for symbol, entry in table.size.items()}
    sets = {name: build_layer_set(entry) for name, entry in table.layers.items()}
    spec.check(table, roles, dialects.values(), sets)
    check_meta(table, sets, DERIVED)
    completing_rules(tuple(table.config_rules))
    architectures = {n: spec.build_architecture(n, a, table.defaults) for n, a in table.architecture.items()}
    return Family(
        table.name, table.gguf, MappingProxyType(roles), MappingProxyType(dialects), MappingProxyType(architectures),
        MappingProxyType(sizes), MappingProxyType(table.index), MappingProxyType(sets), table,
    )  # fmt: skip
