"""What is a word, a list or a flag in a table of somebody's own (`--arch-file`): told by the place that is otherwise.

Tables that are shipped aren't checked so: the tests hold them. What the words mean is checked by `rows.check`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from weighbridge.base.errors import UsageError
from weighbridge.models.arch.rows import ATTRIBUTES

Some = Annotated[list[str], msgspec.Meta(min_length=1)]
Gone = Literal[False]  # of what the table that it is like has


class Architecture(TypedDict, total=False):
    model_type: str
    aliases: list[str]
    prefix: str
    gguf: list[str]
    defaults: dict[str, Any]
    null: dict[str, str]
    like: list[str]
    full_layers: list[str]
    part: str
    some: str
    none: str


class Dialect(TypedDict, total=False):
    base: str
    replace: dict[str, str]
    prefixes: Some
    order: Literal["table", "source"]
    together: list[list[str]] | Gone
    first: list[str]
    holds: str
    without: list[str]


class Size(TypedDict, total=False):
    hf: list[str]
    gguf: list[str]
    optional: bool


class Layers(TypedDict, total=False):
    hf: Some
    gguf: Some
    spare: bool


class Role(TypedDict, total=False):
    kind: str
    shape: str
    via: dict[str, str | Gone] | Gone
    when: str | Gone
    group: str | Gone
    tied: str | Gone
    make: str | Gone
    span: str | Gone
    layers: str | Gone
    flat: list[str] | Gone
    each: list[str] | Gone
    keyed: list[str] | Gone
    zeros: bool | list[str]
    shaped: dict[str, str] | Gone


class Fuse(TypedDict, total=False):
    roles: Some
    name: str
    dealt: str
    via: list[str]


class _Named(TypedDict):
    name: str
    type: str


class Key(_Named, total=False):
    config: list[str]
    map: dict[str, Any]
    when: dict[str, list[Any]]
    back: bool | str | list[str]
    null: bool
    times: float
    token: str
    last: bool
    first: bool
    whole: bool
    instead: bool
    over: str
    root: str
    less: str
    padded: int
    layers: str


class _Implied(TypedDict):
    config: str
    value: Any


class Implied(_Implied, total=False):
    when: dict[str, list[Any]]


class _Computed(TypedDict):
    config: str
    why: str


class Computed(_Computed, total=False):
    only: list[Any]
    equals: str
    some: bool
    when: dict[str, list[Any]]


class Meta(TypedDict, total=False):
    base: bool
    without: list[str]
    key: list[Key]
    tokenizer: list[Key]
    tokens: dict[str, str]
    presence: dict[str, str | dict[str, Any]]
    silent: dict[str, list[Any]]
    implied: list[Implied]
    graph: list[Computed]


class Table(TypedDict, total=False):
    name: str
    gguf: str
    like: str
    apart: list[str]
    defaults: dict[str, Any]
    architecture: dict[str, Architecture]
    dialect: dict[str, Dialect | Gone]
    size: dict[str, Size | Gone]
    index: dict[str, str | Gone]
    layers: dict[str, Layers | Gone]
    role: dict[str, Role | Gone]
    fuse: dict[str, dict[str, Fuse | Gone] | Gone]
    drop: dict[str, list[str] | Gone]
    meta: Meta


def check(document: Mapping[str, Any], path: str) -> None:
    """UsageError naming the first place where something else stands than there should."""
    try:
        msgspec.convert(document, Table)
    except msgspec.ValidationError as error:
        words = str(error).replace("`$.", "`").replace("[...]", ".NAME")
        raise UsageError(f"{path}: {words}", hint="docs/guide-families.md says what a table has") from None
    for name, role in document.get("role", {}).items():
        for key, value in role.items() if role else ():
            if key not in ATTRIBUTES and not (isinstance(value, str) or value is False):
                raise UsageError(f"{path}: role {name}: its {key} name is {value!r}, not a text")
