"""The files that belong to a language model's GGUF: the mmproj file of its towers, an adapter, a draft model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.containers.gguf import container as gguf
from weighbridge.models.llamacpp.pair import base_fault, check_pair
from weighbridge.models.llamacpp.towers import candidate_of
from weighbridge.models.model import OpenModel
from weighbridge.models.modelfile import described_by, referred
from weighbridge.models.open import open_model


class FoundTowers(NamedTuple):
    """`path`: the mmproj file of a model, or None. `notes`: why other files aren't used."""

    path: Path | None
    notes: tuple[str, ...] = ()


def companion(path: Path, part: str, kind: str, keys: Mapping[str, Any]) -> Path:
    """Returns the file of a projector, an adapter or a draft model for the GGUF with these key-values.

    Raises FormatError if its `general.type` isn't `kind`, UsageError if a projector's embeddings differ in width from
    the model's.
    """
    with open_model(path) as model:
        check_companion(model, part, kind, keys)
        return model.place.weights[0]


def check_companion(model: OpenModel, part: str, kind: str, keys: Mapping[str, Any]) -> None:
    """Raises as `companion`."""
    actual = model.metadata.get("general.type", "model") if model.format == "gguf" else model.format
    if actual != kind:
        raise FormatError(
            f"not a {part}", path=str(model.place.path), field="general.type", expected=kind, found=actual
        )
    if kind == "mmproj":
        check_pair(keys, candidate_of(model))


def described_files(path: Path) -> Iterator[tuple[str, Path, str]]:
    """Yields the further files of the Modelfile at `path`, or of the model there in a store: part, path and
    `general.type` of each."""
    if (described := described_by(path)) is None:
        return
    rows = (("projector", described.values("FROM")[1:], "mmproj"), ("draft", described.values("DRAFT"), "model"),
            ("adapter", described.values("ADAPTER"), "adapter"))  # fmt: skip
    for part, values, kind in rows:
        for value in values:
            file = referred(described, value, path.parent)
            if not isinstance(file, Path):
                raise UnsupportedError(f"{value} isn't a local file", hint="name a GGUF file")
            yield part, file, kind


def find_towers(path: Path, model: OpenModel, given: str | os.PathLike[str] | None = None) -> FoundTowers:
    """Returns the mmproj file of the GGUF that was opened at `path`: the `given` one, else that which its Modelfile or
    its store lists, else the only one in its folder that seems to be the model's."""
    listed = [file for part, file, _ in described_files(path) if part == "projector"]
    if given is not None or listed:
        return FoundTowers(companion(Path(given or listed[0]), "projector", "mmproj", model.metadata))
    if described_by(path) is not None:
        return FoundTowers(None)
    weights = model.place.weights[0]
    faults = {
        file: _fault(file, model.metadata) for file in sorted(weights.parent.glob("*mmproj*.gguf")) if file != weights
    }
    notes = tuple(f"{file.name} isn't used: {fault}" for file, fault in faults.items() if fault)
    suitable = [file for file, fault in faults.items() if fault is None]
    if len(suitable) > 1:
        names = ", ".join(file.name for file in suitable)
        return FoundTowers(
            None, (*notes, f"without a projector, as several fit: --mmproj of wb ship chooses one of {names}")
        )
    return FoundTowers(next(iter(suitable), None), notes)


def _fault(file: Path, keys: Mapping[str, Any]) -> str | None:
    """Why a file isn't the mmproj file of a GGUF with these keys; None if nothing contradicts."""
    try:
        with open_model(file) as towers:
            check_companion(towers, "projector", "mmproj", keys)
            return base_fault(keys, candidate_of(towers))
    except (OSError, WeighbridgeError) as error:
        return error.message if isinstance(error, WeighbridgeError) else str(error)


def mmproj_name(path: Path, title: str) -> str:
    """The name under which clients recognise an mmproj file: its own, or one after the model's title."""
    return path.name if "mmproj" in path.name and path.suffix == gguf.SUFFIX else f"mmproj-{title}{gguf.SUFFIX}"
