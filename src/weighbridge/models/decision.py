"""Decision models: which folders are one, by the marks of `decision.toml`, and what their GGUFs have besides those of
their base model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, convert

from weighbridge.base.errors import FormatError
from weighbridge.base.imports.tables import read_table
from weighbridge.base.limits import CONFIG_JSON
from weighbridge.models.arch.config import value_at
from weighbridge.models.arch.tables.values import number
from weighbridge.models.jsonfile import decode
from weighbridge.models.locate import Place
from weighbridge.models.model import OpenModel

#: Kinds of questions.
QUESTIONS: Final = ("choice", "score", "noul")
_TOKEN: Final = re.compile(r"@<(\w+)>")
_AS_TEXT: Final = re.compile(r"@\{([\w.]+)\}")


class Mark(Struct, frozen=True, forbid_unknown_fields=True, rename={"equals": "is"}):
    """A value of a JSON file: this one, or a text with this end, or any."""

    file: str
    key: str
    equals: str = ""
    ends: str = ""


class Readout(Struct, frozen=True, forbid_unknown_fields=True):
    """A matrix with one row for each label, which a GGUF has as the output's rows of tokens. `tokens`: a file and the
    key of their ids."""

    file: str
    tensor: str
    tokens: str


class OtherTemplate(Struct, frozen=True, forbid_unknown_fields=True):
    """Another template, if a value of a file is the mark's."""

    mark: Mark
    template: str


class DecisionRow(Struct, frozen=True, forbid_unknown_fields=True, rename={"class_": "class"}):
    """A row of the table. `class_`: the class of its base model, if its config doesn't name it. `temperatures_from`: a
    file and the key of an object, `choice:A:small`. `pointer`: a file with the matrices of queries and keys.
    `head`: its tensors are in HEAD.safetensors, its sizes in HEAD_config.json. `one_of`:
    its folder has one of these files. `in_table`: its family's table has its keys, and the blocks of its head."""

    type: str
    template: str
    files: list[str] = []
    marks: list[Mark] = []
    class_: str = ""
    adapter: bool = False
    temperatures: dict[str, float | str] = {}
    temperatures_from: str = ""
    readout: Readout | None = None
    pointer: str = ""
    head: str = ""
    one_of: list[str] = []
    tokenizer: str = ""
    variant: OtherTemplate | None = None
    in_table: bool = False


class Decision(Struct, frozen=True):
    """A decision model's class, its row, and the folder with its files."""

    name: str
    row: DecisionRow
    place: Place

    @property
    def template(self) -> str:
        """The prompt, as a template of llama.cpp's server."""
        variant = self.row.variant
        text = variant.template if variant and _agrees(self.place, variant.mark) else self.row.template
        text = _AS_TEXT.sub(r"{{ \1 if \1 is string else \1 | tojson }}", text)
        return _TOKEN.sub(lambda match: self._token(match[1]), text)

    def _token(self, name: str) -> str:
        """The text of a special token."""
        file = f"{self.row.tokenizer}/tokenizer_config.json"
        token = _value(self.place, file, name)
        token = token.get("content") if isinstance(token, Mapping) else token
        if not isinstance(token, str):
            raise FormatError("names no token, which the prompt needs", path=str(self.place.folder / file), field=name)
        return token

    @property
    def parts(self) -> set[str]:
        """The files with its further weights, and the folders with its other files."""
        row, readout = self.row, self.row.readout
        weights = {row.pointer, f"{row.head}.safetensors" if row.head else "", readout.file if readout else ""}
        folders = {name.partition("/")[0] for name in (*row.files, *row.one_of) if "/" in name}
        return (weights | folders | {row.tokenizer}) - {""}

    def path(self, name: str) -> Path:
        """Returns the path of a file of the folder. Raises FormatError if there is none."""
        path = self.place.folder / name
        if not path.is_file():
            raise FormatError(f"a {self.name} needs {name}", path=str(self.place.folder), hint="download it")
        return path

    def value(self, source: str) -> Any:
        """The value of `FILE:KEY`, or None."""
        return _value(self.place, *source.split(":", 1))

    def temperatures(self) -> Iterator[tuple[str, float]]:
        """The temperatures by the names that a GGUF has for them. Raises FormatError for other values."""
        for name, stated in self.row.temperatures.items():
            value = self.value(stated) if isinstance(stated, str) else stated
            yield name, number(value, str(stated))
        listed = self.value(self.row.temperatures_from) if self.row.temperatures_from else {}
        for name, value in listed.items() if isinstance(listed, Mapping) else ():
            question, mode, *band = str(name).split(":")
            if mode == _LABELS:  # others are of a head that llama.cpp doesn't compute
                yield ".".join((question, *band)), number(value, str(name))


_LABELS: Final = "A"  # the mode of Lev's temperatures in which labels are read


@cache
def decision_rows() -> dict[str, DecisionRow]:
    """The rows by the reference converter's class."""
    return convert(read_table(__file__, "decision.toml"), dict[str, DecisionRow])


def decision_of(model: OpenModel) -> Decision | None:
    """The decision model that a folder is, or that an adapter makes of it; None for other models."""
    if model.format == "gguf":
        return None
    folders = {file.parent for file in model.place.merged}
    places = [(model.place, False), *((Place(folder, (), folder), True) for folder in sorted(folders))]
    for place, adapter in places:
        for name, row in decision_rows().items():
            has_files = all((place.folder / file).is_file() for file in row.files)
            has_one = not row.one_of or any((place.folder / file).is_file() for file in row.one_of)
            if row.adapter == adapter and has_files and has_one and all(_agrees(place, mark) for mark in row.marks):
                return Decision(name, row, place)
    return None


def _agrees(place: Place, mark: Mark) -> bool:
    value = _value(place, mark.file, mark.key)
    return value is not None and mark.equals in ("", value) and str(value).endswith(mark.ends)


def _value(place: Place, file: str, key: str) -> Any:
    """The value at a dotted path of a JSON file; None if there is none."""
    raw = place.read(file, CONFIG_JSON)
    return None if raw is None else value_at(decode(raw, f"{place.folder / file}", dict[str, Any]), key.split("."))
