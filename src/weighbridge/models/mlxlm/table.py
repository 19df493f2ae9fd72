"""The requirements of mlx-lm's classes, read from classes.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from msgspec import Struct, convert


class ClassTable(Struct, frozen=True, forbid_unknown_fields=True):
    """classes.toml documents the fields."""

    set: Mapping[str, list[str]]
    set_for_layers: Mapping[str, Mapping[str, list[str]]]
    text: Mapping[str, list[str]]
    instead: Mapping[str, Mapping[str, str]]
    square: list[str]
    only: Mapping[str, Mapping[str, str]]
    scaling: Mapping[str, list[str]]
    untied: list[str]
    tied_fails: list[str]
    other_names: Mapping[str, list[str]]
    always: Mapping[str, list[str]]
    every_layer: Mapping[str, list[str]]
    unrenamed: list[str]
    unrenamed_of: Mapping[str, list[str]]


@cache
def table() -> ClassTable:
    """Returns the parsed classes.toml."""
    text = (files(__package__) / "classes.toml").read_text("utf-8")
    return convert(tomllib.loads(text), ClassTable)
