"""llama-quantize's choice of types, against llama.cpp's own snapshots: twelve real models, each file type.

A snapshot lists, for each file type, the tensors whose type isn't the usual one. So all its sections together name
nearly every tensor that is quantized; what they leave out is added from the models' published shapes, which also say
where rows aren't whole blocks. (The snapshots come with the reference's source; nothing of them is kept here.)
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.oracles import tree

from weighbridge.base.dtypes import BY_NAME, F32, DType
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.conversion import mixtures
from weighbridge.conversion.mixtures import Facts, Options, choose, ftype, ordered

pytestmark = pytest.mark.oracle


class Model(NamedTuple):
    """One of the twelve: columns of its tensors by name (the first pattern counts; else the embedding's), and names
    that no section lists, for each layer that has the tensor in brackets."""

    arch: str
    columns: Mapping[str, int] = {}
    unlisted: tuple[tuple[str, str], ...] = ()


_EXPERTS = (("ffn_gate_exps", "ffn_down_exps"), ("ffn_up_exps", "ffn_down_exps"))
MODELS = {
    "deepseek-v3.1": Model(
        "deepseek2",
        {"attn_k_b": 128, "attn_v_b": 512, "attn_q_b": 1536, "attn_output": 16384, "down_(exps|shexp)": 2048, "ffn_down": 18432},
        (*_EXPERTS, ("attn_v_b", "attn_k_b")),
    ),
    "gemma-3-4b-it": Model("gemma3", {"attn_output": 2048, "ffn_down": 10240}),
    "glm-4.6v": Model("glm4moe", {"attn_output": 12288, "down_(exps|shexp)": 1408, "ffn_down": 10944}, _EXPERTS),
    "gpt-oss-120b": Model("gpt-oss", {"attn_output": 4096, "ffn_down": 2880}, _EXPERTS),
    "meta-llama-3.1-70b-instruct": Model("llama", {"ffn_down": 28672}),
    "nvidia-nemotron-3-nano-30b-a3b": Model(
        "nemotron_h_moe", {"attn_output": 4096, "ssm_out": 4096, "down_exps": 1856, "down_shexp": 3712}, _EXPERTS[1:]
    ),
    "qwen3-0.6b": Model("qwen3", {"attn_output": 2048, "ffn_down": 3072}),
    "qwen3-14b": Model("qwen3", {"ffn_down": 17408}),
    "qwen3-coder-next": Model("qwen3next", {"attn_output": 4096, "ssm_out": 4096, "ffn_down": 512}, _EXPERTS),
    "qwen3.5-397b-a17b": Model("qwen35moe", {"attn_output": 8192, "ssm_out": 8192, "ffn_down": 1024}, _EXPERTS),
    "qwen3.6-27b": Model("qwen35", {"attn_output": 6144, "ssm_out": 6144, "ffn_down": 17408}),
    "step-3.5-flash": Model("step35", {"attn_output": 8192, "down_(exps|shexp)": 1280, "ffn_down": 11264}, _EXPERTS),
}  # fmt: skip
# What every model has besides and llama-quantize leaves alone; the last two have two dimensions.
LEFT = ("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.attn_k.bias", "blk.0.ffn_gate_inp.weight", "blk.0.ssm_conv1d.weight")


class Snapshot(NamedTuple):
    """One file: what it says of the model, and for each file type the default and the types that differ."""

    facts: Facts
    embedding: int
    sections: Mapping[str, tuple[str, Mapping[str, str]]]
    tensors: tuple[tuple[str, Spec], ...]


def parse(path: Path, model: Model) -> Snapshot:
    lines = path.read_text("utf-8").splitlines()
    said = {k: int(n) for k, n in re.findall(r"(\w+)=(\d+)", lines[1])}
    facts = Facts(model.arch, said["n_layer"], said["n_head"], said["n_head_kv"], said.get("n_expert", 0))
    sections: dict[str, tuple[str, dict[str, str]]] = {}
    for line in filter(None, lines[2:]):
        first, second = line.split(" ")
        if first.startswith("["):
            listed: dict[str, str] = {}
            sections[first.strip("[]")] = second.upper(), listed
        else:
            listed[first] = second.upper()
    names = {name for _, types in sections.values() for name in types}
    for extra, beside in model.unlisted:
        names |= {name.replace(beside, extra) for name in names if beside + "." in name}
    shaped = [(name, Spec(shape(name, model, said), F32)) for name in names]
    return Snapshot(facts, said["n_embd"], sections, tuple(ordered(shaped)))


def shape(name: str, model: Model, said: Mapping[str, int]) -> tuple[int, ...]:
    columns = next((n for pattern, n in model.columns.items() if re.search(pattern, name)), said["n_embd"])
    stacked = "_exps." in name or re.search("attn_[kv]_b", name)
    return (said.get("n_expert") or 1, 64, columns) if stacked else (64, columns)


@cache
def snapshot(name: str) -> Snapshot:
    return parse(tree.require() / "tests" / "snapshots" / f"{name}.schema", MODELS[name])


@pytest.mark.parametrize("name", MODELS)
def test_every_file_type_of_a_real_model(name: str) -> None:
    found = snapshot(name)
    assert len(found.sections) >= 33
    for wanted, (default, listed) in found.sections.items():
        row = mixtures.table().ftypes[wanted]
        assert row.type == BY_NAME[default], wanted
        got = choose(found.tensors, found.facts, row).types
        assert {n: t.name for n, t in got.items() if t.name != default} == listed, wanted


def test_all_snapshots_are_compared() -> None:
    assert {p.stem for p in (tree.require() / "tests" / "snapshots").glob("*.schema")} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_left_alone_changes_nothing(name: str) -> None:
    """Norms, biases, routers between the others are kept, and no other type moves for it."""
    found = snapshot(name)
    vector = [(n, Spec((64,) if i < 3 else (64, 256), F32)) for i, n in enumerate(LEFT)]
    for wanted in ("Q4_K_M", "IQ3_XS", "MXFP4_MOE"):
        plain = choose(found.tensors, found.facts, ftype(wanted)).types
        both = choose(ordered([*found.tensors, *vector]), found.facts, ftype(wanted)).types
        assert {n: both[n] for n in LEFT} == dict.fromkeys(LEFT, F32)
        assert {n: t for n, t in both.items() if n not in LEFT} == plain
