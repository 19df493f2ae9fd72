"""Our GGUF against the reference converter's of the same folder: tensors and keys, types, values, order, every byte.

What may differ is the table in docs/reference-differences.md, read from there, so that the page and the proof are one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.oracles import gguf_file, reference_page
from tests.oracles.gguf_file import File
from tests.oracles.models import REFERENCES as PAIRS
from tests.oracles.reference_page import excused

pytestmark = pytest.mark.oracle

Converter = Callable[[str, str], Path]
Parsed = Callable[[Path], File]


@pytest.mark.parametrize(("name", "dtype"), PAIRS)
def test_equals_the_reference(
    name: str, dtype: str, gguf_of: Converter, reference_of: Converter, parsed: Parsed
) -> None:
    ours, reference = parsed(gguf_of(name, dtype)), parsed(reference_of(name, dtype))
    assert gguf_file.differences(ours, reference, allowed=excused(name).__contains__) == []


@pytest.mark.mutation
def test_every_row_of_the_page_is_needed(gguf_of: Converter, reference_of: Converter, parsed: Parsed) -> None:
    """A row without a difference that it describes is a leftover. (`minilm` has a test of its own.)"""
    differ: dict[str, set[str]] = {}
    for name, dtype in PAIRS:
        ours, reference = parsed(gguf_of(name, dtype)), parsed(reference_of(name, dtype))
        keys = {key for key in excused(name) if gguf_file.differs_at(ours, reference, key)}
        differ.setdefault(name.partition("@")[0], set()).update(keys)
    stale = [(models, key) for models, key in reference_page.rows() if not _needed(models, key, differ)]
    assert stale == []


def _needed(models: set[str], key: str, differ: dict[str, set[str]]) -> bool:
    known = models & differ.keys()
    return all(key in differ[m] for m in known) if known else any(key in keys for keys in differ.values())


@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
def test_a_fused_mixtral_gives_the_same_file(
    dtype: str, gguf_of: Converter, reference_of: Converter, parsed: Parsed
) -> None:
    """The reference can't read this one; it reads the same model with its experts apart. Name and order of tensors
    follow the folder, so those two aren't the same."""
    files = parsed(gguf_of("mixtral-fused", dtype)), parsed(reference_of("mixtral", dtype))
    allowed = excused("mixtral") | {"general.name"}
    assert gguf_file.differences(*map(gguf_file.sorted_by_name, files), allowed=allowed.__contains__) == []


@pytest.mark.mutation
@pytest.mark.parametrize("name", ["llama3", "bert"])
def test_the_comparison_sees_any_change(name: str, reference_of: Converter, parsed: Parsed) -> None:
    """Each key and each tensor of a right file, changed alone, is reported; so are a lost, an added and a moved one."""
    right = parsed(reference_of(name, "f32"))
    for key, field in right.fields.items():
        changed = gguf_file.Field(field.type, field.item, _other(field.value))
        assert gguf_file.differences(File(right.fields | {key: changed}, right.tensors), right), key
        rest = {k: v for k, v in right.fields.items() if k != key}
        assert gguf_file.differences(File(rest, right.tensors), right), key
        assert gguf_file.differences(right, File(rest, right.tensors)), key
    for tensor, value in right.tensors.items():
        flipped = gguf_file.Tensor(value.type, value.shape, value.data.copy())
        flipped.data.reshape(-1).view(np.uint8)[-1] ^= 1
        assert gguf_file.differences(File(right.fields, right.tensors | {tensor: flipped}), right), tensor
    assert gguf_file.differences(File(dict(reversed(right.fields.items())), right.tensors), right)
    assert gguf_file.differences(File(right.fields, dict(reversed(right.tensors.items()))), right)


def _other(value: object) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, list):
        return value[:-1]
    return value + ("x" if isinstance(value, str) else 1)  # type: ignore[operator]
