"""The memory of a context equals llama.cpp's own figures, byte for byte."""

from __future__ import annotations

import re

import pytest
from tests.architecture.house import ROOT
from tests.fit.published import FIGURES, MODELS

from weighbridge.base.dtypes import F16, Q8_0
from weighbridge.base.limits import GIB
from weighbridge.fitting.cache import RunSettings, cache_memory, cache_of
from weighbridge.fitting.per_token import token_costs

SETTINGS = {
    "c4096": RunSettings(context=4096),
    "c32768": RunSettings(context=32768),
    "c5000": RunSettings(context=5000),
    "four_unified": RunSettings(context=8192, parallel=4, unified=True),
    "four": RunSettings(context=8192, parallel=4),
    "ubatch_1024": RunSettings(context=8192, ubatch=1024),
    "q8_0": RunSettings(context=8192, type_k=Q8_0, type_v=Q8_0),
    "swa_full": RunSettings(context=8192, swa_full=True),
    "no_flash": RunSettings(context=8192, flash_attention=False),
}


@pytest.mark.parametrize("name", FIGURES)
def test_equals_llama_cpp(name: str) -> None:
    model = cache_of(MODELS[name])
    assert {s: cache_memory(model, SETTINGS[s]).total for s in SETTINGS} == FIGURES[name]._asdict()


@pytest.mark.parametrize("name", MODELS)
def test_the_cost_of_a_token_is_the_slope(name: str) -> None:
    model, short, long = cache_of(MODELS[name]), 1 << 18, 1 << 19  # longer than any window
    one, other = (cache_memory(model, RunSettings(context=n)) for n in (short, long))
    found = token_costs(model, short, F16)
    assert found.total == one.total
    assert found.nbytes * (long - short) == sum(other.kv) - sum(one.kv)
    for cost, few, many, state in zip(found.layers, one.kv, other.kv, one.states, strict=True):
        assert cost.state == state
        assert cost.nbytes * (long - short) == many - few
        assert bool(cost.window) == bool(cost.sliding)


def test_what_other_calculators_say() -> None:
    """Our column, the errors of the others, and how many models and settings are compared."""
    page = (ROOT / "docs/benchmarks.md").read_text()
    text = page[page.index("## Memory figures of other calculators") :]
    rows = re.findall(r"^\| (\S+) \| ([\d,]+) \| ([\d.]+) \| (.+) \|$", text, re.MULTILINE)
    assert len(rows) == 9
    for name, context, expected, others in rows:
        settings = RunSettings(context=int(context.replace(",", "")))
        assert f"{cache_memory(cache_of(MODELS[name]), settings).total / GIB:.2f}" == expected, name
        for found, error in re.findall(r"([\d.]+) \(([+-]\d+) %\)", others):
            assert f"{100 * (float(found) / float(expected) - 1):+.0f}" == error, name
    assert f"each of the {len(FIGURES)} models and {len(SETTINGS)} settings" in text
    assert (ROOT / "benchmarks/benchmarks.md.in").read_text().endswith(text)
