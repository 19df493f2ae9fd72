"""The check of `verify` on the statements of a model's licence in its card and its files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from weighbridge.base.limits import MIB
from weighbridge.containers.base import Severity
from weighbridge.models.config.card import read_card
from weighbridge.reports import sidecars
from weighbridge.reports.sbom.licences import differ, of_card, of_metadata
from weighbridge.reports.verify.repo import Repo
from weighbridge.reports.verify.rules import Check, Flaw


def licence_differs(repo: Repo) -> Iterator[Flaw]:
    if "README.md" not in repo.names:
        return
    card, _ = read_card(sidecars.read(repo.root / "README.md", MIB))
    stated = of_card(card, "README.md")
    for file in repo.weights:
        if file.index and (message := differ(stated, of_metadata(file.index.metadata, file.name))):
            yield Flaw(message, file.path, hint="state the same licence in the card and in the file")


RULES: Final = (
    Check("licence/differs", Severity.WARNING, "the model card and a GGUF state the same licence", licence_differs),
)
