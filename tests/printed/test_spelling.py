"""Errors name options as the command line does; raised in Python, as keywords that the functions have."""

from __future__ import annotations

import dataclasses
import inspect
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.printed.commands import PEERS
from tests.printed.texts import messages

import weighbridge as wb
from weighbridge.api.keywords import ConvertKeywords, QuantizeKeywords
from weighbridge.base.errors import COMMANDS_ONLY, FLAGS, RefusedError, in_python
from weighbridge.base.options import options_of
from weighbridge.cli.main import main
from weighbridge.shipping.plan import ShipOptions


@cache
def keywords() -> frozenset[str]:
    """Every keyword of the public functions, and every field of the public options."""
    found = set[str]()
    for value in (getattr(wb, name) for name in wb.__all__):
        if dataclasses.is_dataclass(value):
            found |= {field.name for field in dataclasses.fields(value)}
        elif callable(value):
            found |= set(inspect.signature(value).parameters)
    return frozenset(found)


#: Rooms whose errors no public function of Python raises.
COMMANDS = ("cli/", "fleets/", "adapters/serving/")
FOREIGN = {option for row in PEERS.values() for option in row["options"]} | {"--format", "--query-gpu", "--now"}


@pytest.mark.costly
def test_keywords_that_errors_name_exist() -> None:
    """What is spelled as a keyword is one; within commands and for options of commands only nothing changes."""
    unknown = []
    for text in messages():
        if not text.where.startswith(COMMANDS):
            for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]", text.text):
                spelled = in_python(option).partition("=")[0]
                if option not in in_python(text.text) and option not in FOREIGN and spelled not in keywords():
                    unknown.append(f"{text.where}: {option}")
    assert unknown == []


def test_flags_are_flags_in_python() -> None:
    for kind in (ConvertKeywords, QuantizeKeywords, ShipOptions):
        for field, _ in options_of(kind):
            flag, name = field.type in ("bool", "bool | None"), field.name
            spelled = name.replace("_", "-") in FLAGS
            # `--no-tokenizer`, `--q-bits`, and a flag of convert that is a file of ship
            assert flag == spelled or name in ("tokenizer", "quantize", "mmproj"), name


def test_options_of_commands_only_have_no_keyword() -> None:
    assert [option for option in COMMANDS_ONLY if option.replace("-", "_") in keywords()] == []


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("use --overwrite to allow it", "use overwrite=True to allow it"),
        ("decode it first: --dtype f16", 'decode it first: dtype="f16"'),
        ("leave the tokenizer out: --no-tokenizer; or not", "leave the tokenizer out: tokenizer=False; or not"),
        ("merge it: wb convert BASE DST --lora ADAPTER", "merge it: wb convert BASE DST --lora ADAPTER"),
        ("wb convert A B --to hf, or --to gguf", 'wb convert A B --to hf, or to="gguf"'),
        ("use --max-shard-size 5GB", "use max_shard_size=5 * 10**9"),
        ("quantize them with --q-bits", "quantize them with q_bits"),
        ("lost, and --offline forbids it", "lost, and --offline forbids it"),
    ],
)
def test_spelling(text: str, spelled: str) -> None:
    assert in_python(text) == spelled


def test_each_side_spells_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.npz").write_bytes(b"")
    source = tmp_path / "s.safetensors"
    wb.save({"w": np.ones(1, np.float32)}, source)
    with pytest.raises(RefusedError, match=r"use overwrite=True to allow it$") as caught:
        wb.convert(source, tmp_path / "a.npz")
    assert caught.value.option == "--overwrite"
    assert main(["convert", str(source), str(tmp_path / "a.npz")]) == 2
    assert "use --overwrite to allow it" in capsys.readouterr().err
