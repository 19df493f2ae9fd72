"""The decision matrix of `wb choose`, by runtime, purpose, device and loss; each word of each rule matters to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pytest

import weighbridge as wb
from weighbridge.shipping.choice_table import ChoiceRule, ChoiceTable, question, table
from weighbridge.shipping.choose import _first

DEVICES = {"cuda": "rtx4090", "rocm": "rx7900xtx", "gpu": "24GB", "metal": "m3-max-36gb"}
FORMATS = {"G": "gguf", "M": "mlx", "H": "hf", "S": "scheme"}
# Runtime: to chat; for embeddings; to serve; to share. Each on CUDA, ROCm, a size, a Mac. S: packed weights, or the
# folder as it is if no value may change.
MATRIX = {
    "any": ("GGGM", "GGGG", "SSSG", "HHHH"),
    "ollama": ("GGGG", "GGGG", "GGGG", "GGGG"),
    "lmstudio": ("GGGM", "GGGG", "GGGG", "GGGG"),
    "llama.cpp": ("GGGG", "GGGG", "GGGG", "GGGG"),
    "mlx": ("MMMM", "MMMM", "MMMM", "MMMM"),
    "vllm": ("SSSS", "SSSS", "SSSS", "SSSS"),
    "sglang": ("SSSS", "SSSS", "SSSS", "SSSS"),
    "transformers": ("HHHH", "HHHH", "HHHH", "HHHH"),
}
COLUMN = {"chat": 0, "embed": 1, "serve": 2, "share": 3}  # to train and to keep: the folder
TYPES = {
    "gguf": {"little": "Q6_K", "some": "Q4_K_M"},
    "mlx": {"little": "8", "some": "4"},
    "scheme": {"little": "fp8_dynamic", "some": "w4a16"},
    "hf": {},
}
DEFAULTS = {"purpose": "chat", "runtime": "any", "device": "this", "loss": "little", "trusted": "no"}

Facts = dict[str, str]


def cases() -> Iterator[tuple[Facts, str, str]]:
    """Every answer, with the format and the type that are right."""
    purposes, losses = (tuple(question(name).answers) for name in ("purpose", "loss"))
    for runtime, purpose, loss, (at, device) in itertools.product(MATRIX, purposes, losses, enumerate(DEVICES)):
        letter = MATRIX[runtime][COLUMN[purpose]][at] if purpose in COLUMN else "H"
        form = FORMATS["H" if letter == "S" and loss == "none" else letter]
        kind = "Q8_0" if (form, purpose) == ("gguf", "embed") and loss != "none" else TYPES[form].get(loss, "")
        facts = {"runtime": runtime, "purpose": purpose, "loss": loss, "device": device}
        yield facts, form, kind


CASES = tuple(cases())


def wrong(rules: ChoiceTable) -> Facts | None:
    """The first answers for which a table decides otherwise."""
    for facts, form, kind in CASES:
        try:
            found = _first(rules.format, facts).gives
            if (found, _first(rules.type, {**facts, "format": found}).gives) != (form, kind):
                return facts
        except StopIteration:
            return facts
    return None


def test_the_matrix() -> None:
    assert question("runtime").answers.keys() == MATRIX.keys()
    assert wrong(table()) is None
    for facts, form, kind in CASES[::7]:
        found = wb.choose(**{**facts, "device": DEVICES[facts["device"]]})  # type: ignore[arg-type]
        assert (found.format, found.type) == (form, kind), facts


def test_the_defaults() -> None:
    assert {q.name: q.default for q in table().question} == DEFAULTS


# ------------------------------------------------------------------------------------------------ mutations


def changed(rule: ChoiceRule) -> Iterator[tuple[str, ChoiceRule]]:
    """A rule with one word less, or another answer."""
    replace = msgspec.structs.replace
    others = {"gguf", "mlx", "hf", "scheme"} if rule in table().format else {"", "4", "8", "Q4_K_M", "Q6_K", "w4a16"}
    yield "gives", replace(rule, gives=next(iter(sorted(others - {rule.gives}))))
    for name, values in rule.when.items():
        yield f"whatever the {name}", replace(rule, when={k: v for k, v in rule.when.items() if k != name})
        for value in values:
            left = tuple(v for v in values if v != value)
            yield f"not {name} {value}", replace(rule, when={**rule.when, name: left})


def mutations() -> Iterator[tuple[str, ChoiceTable]]:
    for kind in ("format", "type"):
        rules = getattr(table(), kind)
        for at, rule in enumerate(rules):
            ways = [("left out", ()), *((what, (new,)) for what, new in changed(rule))]
            for what, new in ways:
                mutant = msgspec.structs.replace(table(), **{kind: (*rules[:at], *new, *rules[at + 1 :])})
                yield f"{rule.id}, {what}", mutant


@pytest.mark.mutation
def test_every_word_matters() -> None:
    unseen = [what for what, mutant in mutations() if wrong(mutant) is None]
    assert unseen == []
