"""llama-quantize's choice of types, against llama.cpp's own snapshots: twelve real models, each file type.

A snapshot lists, for each file type, the tensors whose type isn't the usual one. So all its sections together name
nearly every tensor that is quantized; what they leave out is added from the models' published shapes, which also say
where rows aren't whole blocks. (The snapshots come with the reference's source; nothing of them is kept here.)
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.conversion.mixture_cases import CASES, Case
from tests.oracles import tree

from weighbridge.base.dtypes import BY_NAME, F32, DType
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.ftypes import FILE_TYPES, FileType
from weighbridge.base.spec import Spec
from weighbridge.conversion.quantize import ftypes, type_conditions
from weighbridge.conversion.quantize.ftypes import ModelFacts, TypeOptions, choose_types, ordered, parse_ftype

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
        {"attn_k_b": 128, "attn_v_b": 512, "attn_q_b": 1536, "attn_output": 16384, "down_[es]": 2048, "_down": 18432},
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
LEFT = (
    "output_norm.weight",
    "blk.0.attn_norm.weight",
    "blk.0.attn_k.bias",
    "blk.0.ffn_gate_inp.weight",
    "blk.0.ssm_conv1d.weight",
)


class Snapshot(NamedTuple):
    """One file: what it says of the model, and for each file type the default and the types that differ."""

    facts: ModelFacts
    embedding: int
    sections: Mapping[str, tuple[str, Mapping[str, str]]]
    tensors: tuple[tuple[str, Spec], ...]


def parse(path: Path, model: Model) -> Snapshot:
    lines = path.read_text("utf-8").splitlines()
    said = {k: int(n) for k, n in re.findall(r"(\w+)=(\d+)", lines[1])}
    facts = ModelFacts(model.arch, said["n_layer"], said["n_head"], said["n_head_kv"], said.get("n_expert", 0))
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


@pytest.mark.costly
@pytest.mark.parametrize("name", MODELS)
def test_every_file_type_of_a_real_model(name: str) -> None:
    found = snapshot(name)
    assert len(found.sections) >= 33
    for wanted, (default, listed) in found.sections.items():
        row = ftypes.table().ftypes[wanted]
        assert row.type == BY_NAME[default], wanted
        got = choose_types(found.tensors, found.facts, row).types
        assert {n: t.name for n, t in got.items() if t.name != default} == listed, wanted


def test_all_snapshots_are_compared() -> None:
    assert {p.stem for p in (tree.require() / "tests" / "snapshots").glob("*.schema")} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_left_alone_changes_nothing(name: str) -> None:
    """Norms, biases, routers between the others are kept, and no other type moves for it."""
    found = snapshot(name)
    vector = [(n, Spec((64,) if i < 3 else (64, 256), F32)) for i, n in enumerate(LEFT)]
    for wanted in ("Q4_K_M", "IQ3_XS", "MXFP4_MOE"):
        plain = choose_types(found.tensors, found.facts, parse_ftype(wanted)).types
        both = choose_types(ordered([*found.tensors, *vector]), found.facts, parse_ftype(wanted)).types
        assert {n: both[n] for n in LEFT} == dict.fromkeys(LEFT, F32)
        assert {n: t for n, t in both.items() if n not in LEFT} == plain


# -- models that the snapshots don't have: recorded from the reference's own code ------------------------------------

GOLDEN = json.loads((Path(__file__).with_name("golden") / "mixtures.json").read_text("utf-8"))


def expand(recorded: str) -> list[str]:
    return [name for run in recorded.split() for name, _, n in [run.partition("*")] for _ in range(int(n or 1))]


def chosen(case: Case, wanted: FileType) -> list[str]:
    """As recorded: types in the order of the tensors, or that the reference stops."""
    tensors = [(name, Spec(shape, F32)) for name, shape in case.tensors]
    given = dict(case.options)
    patterns = tuple(ftypes.tensor_type(p) for p in given.pop("patterns", ()))
    named: dict[str, Any] = {k: BY_NAME[v] if isinstance(v, str) else v for k, v in given.items()}
    options = TypeOptions(**named, tensor_types=patterns)
    found = choose_types(tensors, ModelFacts(*case.facts), wanted, options, {"x": 1} if case.imatrix else None)
    if any(r.rule in ("layer", "fallback") for r in found.refusals):
        return ["refused"]
    return [t.name for t in found.types.values()]


@pytest.mark.parametrize("name", CASES)
def test_recorded_models(name: str) -> None:
    assert len(GOLDEN[name]) >= 35
    for wanted, recorded in GOLDEN[name].items():
        assert chosen(CASES[name], ftypes.table().ftypes[wanted]) == expand(recorded), wanted


# -- mutations: no row, and no word in one, can be changed without a difference --------------------------------------


def raw() -> dict[str, Any]:
    rules = tomllib.loads(Path(ftypes.__file__).with_name("ftypes.toml").read_text("utf-8"))
    return {**rules, "ftypes": dict(FILE_TYPES)}


_OTHER = {"Q8_0": "Q4_0"}


Fault = tuple[str, Collection[str], dict[str, Any]]  # what, the file types that it may show in, the table with it
_FEW = ("Q4_K_S", "Q2_K", "IQ3_XS", "MXFP4_MOE")


def row_faults(row: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "another type", {**row, "type": _OTHER.get(row["type"], "Q8_0")}
    for column in ("role", "ftype", "part", "when", "except", "from"):
        for word in row.get(column, ()):
            rest = [w for w in row[column] if w != word]
            # Without any word a column fits everything, which is a fault of conditions only.
            yield f"{column} without {word}", {**row, column: rest if rest or column == "when" else ["none"]}


def rule_faults(good: dict[str, Any]) -> Iterator[Fault]:
    for section in ("mix", "lift"):
        for i, row in enumerate(good[section]):
            before, after = good[section][:i], good[section][i + 1 :]
            shows = row.get("ftype", row.get("except", ()) and [*row["except"], *_FEW])
            label = f"{section} {i} {row.get('role')} {row.get('ftype')}"
            yield f"{label} out", shows, {**good, section: [*before, *after]}
            for what, bad in row_faults(row):
                yield f"{label}: {what}", shows, {**good, section: [*before, bad, *after]}


def name_faults(good: dict[str, Any]) -> Iterator[Fault]:
    keep = good["keep"]
    for column in ("names", "parts"):
        for word in keep[column]:
            yield f"keep {word}", _FEW[:1], {**good, "keep": {**keep, column: [w for w in keep[column] if w != word]}}
    for arch, parts in keep["architecture"].items():
        # those of mmproj files are ours: tests/proof/test_quantize.py
        for part in () if arch.startswith("clip ") else parts:
            bad = {**keep, "architecture": {**keep["architecture"], arch: [p for p in parts if p != part]}}
            yield f"keep {part} of {arch}", _FEW[:1], {**good, "keep": bad}
    for i, row in enumerate(good["role"]):
        for column in ("whole", "part"):
            for word in row.get(column, ()):
                roles = [*good["role"]]
                roles[i] = {**row, column: [w for w in row[column] if w != word]}
                yield f"role {row['is']} without {word}", _FEW, {**good, "role": roles}


def other_faults(good: dict[str, Any]) -> Iterator[Fault]:
    for name, other in good["fallback"].items():
        bad = {**good["fallback"], name: _OTHER.get(other, "Q8_0")}
        yield f"fallback of {name}", (), {**good, "fallback": bad}
    for name, row in good["ftypes"].items():
        if row.type:
            bad = {**good["ftypes"], name: row._replace(type=BY_NAME[_OTHER.get(row.type.name, "Q8_0")])}
            yield f"type of {name}", [name], {**good, "ftypes": bad}
        if row.counted:
            bad = {**good["ftypes"], name: row._replace(counted=False)}
            yield f"layers of {name}", [name], {**good, "ftypes": bad}
    # Not for 8 experts: attn_v is Q8_0 then, giant or not (`test_what_is_called_70b` has the word itself).
    for word in ["plain heads"]:
        llama = {**good["large"]["llama"], "unless": [w for w in good["large"]["llama"]["unless"] if w != word]}
        yield f"llama is large with {word}", (), {**good, "large": {**good["large"], "llama": llama}}


def faults() -> list[Fault]:
    good = raw()
    return [*rule_faults(good), *name_faults(good), *other_faults(good)]


def difference(shows: Collection[str], order: list[str]) -> bool:
    """Whether anything that is recorded comes out otherwise. The case that shows it is the next one's first."""
    rows = ftypes.table().ftypes
    for name in order:
        for wanted in shows or GOLDEN[name]:
            if chosen(CASES[name], rows[wanted]) != expand(GOLDEN[name][wanted]):
                order.insert(0, order.pop(order.index(name)))
                return True
    return False


@pytest.mark.mutation
@pytest.mark.slow
def test_every_word_of_the_table_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    found, survivors, order = faults(), [], [*CASES]
    assert len(found) > 300
    for what, shows, bad in found:
        rows = ftypes.build_table(bad, bad["ftypes"])
        for place in (ftypes, type_conditions):
            monkeypatch.setattr(place, "table", lambda rows=rows: rows)
        if not difference(shows, order):
            survivors.append(what)
    assert survivors == []


# -- names, options, facts, refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("q4_k_m", "Q4_K_M"), ("Q4_K", "Q4_K_M"), ("Q3_K", "Q3_K_M"), ("q5_k", "Q5_K_M"), ("15", "Q4_K_M"),
        ("0", "F32"), ("2", "Q4_0"), ("mxfp4_moe", "MXFP4_MOE"),
    ],
)  # fmt: skip
def test_names_of_file_types(text: str, name: str) -> None:
    found = parse_ftype(text)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("text", ["Q4_K_X", "2_K", "4", "NVFP4", "39", "", "Q8_1"])
def test_no_file_type(text: str) -> None:
    with pytest.raises(UsageError):
        parse_ftype(text)


def test_every_name_is_known() -> None:
    assert len([parse_ftype(name) for name in ftypes.ftype_names()]) == 39
    assert parse_ftype("copy") is None
    kept = [("blk.0.ffn_down.weight", Spec((64, 512), F32))]
    assert choose_types(kept, ModelFacts("llama", 1), None).types == {"blk.0.ffn_down.weight": F32}


@pytest.mark.parametrize(
    "text",
    ["attn_q", "=q8_0", "x=", "x=q9_0", "a=q8_1", "a=i32", "(=q4_0", "(?i)a=q4_0", r"a\Z=q4_0", "[[:alpha:]]=q4_0"],
)
def test_bad_patterns(text: str) -> None:
    with pytest.raises(UsageError):
        ftypes.tensor_type(text)


def test_patterns() -> None:
    pattern, dtype = ftypes.tensor_type("ATTN_Q=Q8_0")
    assert (pattern.pattern, dtype.name) == ("attn_q", "Q8_0")
    assert [t.name for _, t in ftypes.tensor_type_file("a=q4_0\n  b=tq1_0 c=F16\n")] == ["Q4_0", "TQ1_0", "F16"]


def test_entries_by_name() -> None:
    names = ["blk.0.attn_q", "blk.0.attn_k", "output"]
    assert ftypes.selected(names) == names
    assert ftypes.selected(names, include=["attn", "k"]) == names[:2]
    assert ftypes.selected(names, exclude=["attn_q", "out"]) == ["blk.0.attn_k"]
    with pytest.raises(UsageError):
        ftypes.selected(names, include=["a"], exclude=["b"])


def test_order() -> None:
    names = ["blk.10.a", "blk.2.b", "blk.2.a", "output.weight", "token_embd.weight", "a", "blk.x"]
    got = [n for n, _ in ordered([(n, Spec((1,), F32)) for n in names])]
    assert got == ["a", "blk.x", "output.weight", "token_embd.weight", "blk.2.a", "blk.2.b", "blk.10.a"]


def test_facts() -> None:
    base: dict[str, Any] = {"general.architecture": "x", "x.block_count": 4, "x.attention.head_count": [8, 4]}
    assert ModelFacts.of(base) == ModelFacts("x", 4, 8, 8)
    more = {"x.attention.head_count_kv": [0, 2], "x.expert_count": 8, "x.nextn_predict_layers": 1}
    assert ModelFacts.of({**base, **more}) == ModelFacts("x", 4, 8, 0, 8, 1)
    assert ModelFacts.of({**base, **more}).gqa == 0
    part = {"general.architecture": "clip", "clip.block_count": 80, "clip.attention.head_count": 8}
    assert ModelFacts.of(part) == ModelFacts("clip", 0)


@pytest.mark.parametrize("bad", [{"general.architecture": None}, {"x.block_count": "4"}, {"x.expert_count": True}])
def test_bad_facts(bad: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        ModelFacts.of({"general.architecture": "x", "x.block_count": 4, **bad})


@pytest.mark.parametrize(
    ("facts", "giant"),
    [
        (ModelFacts("llama", 80, 64, 8), True),
        (ModelFacts("llama", 80, 64, 64), False),
        (ModelFacts("llama", 80, 64, 8, 8), False),
        (ModelFacts("llama", 81, 64, 8, nextn=1), True),
        (ModelFacts("llama", 32), False),
        (ModelFacts("qwen2", 80, 8, 8), True),
        (ModelFacts("deci", 80), True),
        (ModelFacts("olmo", 80), True),
        (ModelFacts("jais2", 68), True),
        (ModelFacts("gemma", 80), False),
    ],
)
def test_what_is_called_70b(facts: ModelFacts, giant: bool) -> None:
    """From load_arch_hparams of each architecture."""
    assert facts.is_70b is giant


def refused(name: str, dtype: DType, to: str, imatrix: Mapping[str, int] | None = None, **options: Any) -> list[str]:
    found = choose_types(
        [(name, Spec((2, 64, 512), dtype))],
        ModelFacts("llama", 1, 8, 8),
        parse_ftype(to),
        TypeOptions(**options),
        imatrix,
    )
    return [r.rule for r in found.refusals]


X = "blk.0.x.weight"


@pytest.mark.parametrize("to", ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "Q2_K_S"])
def test_types_that_need_an_imatrix(to: str) -> None:
    assert refused(X, F32, to) == ["imatrix-missing"]
    assert refused(X, F32, to, {"y": 1}) == ["imatrix-missing"]
    assert refused(X, F32, to, {X: 1024}) == []
    assert refused("token_embd.weight", F32, to, pure=True) == []


def test_other_refusals() -> None:
    q8, i32 = BY_NAME["Q8_0"], BY_NAME["I32"]
    assert [refused(X, F32, to) for to in ("Q2_K", "IQ3_S", "IQ4_XS", "TQ1_0")] == [[]] * 4
    assert refused(X, F32, "Q4_0", {X: 512}) == ["imatrix-size"]
    assert refused("token_embd.weight", F32, "Q4_0", {"token_embd.weight": 512}) == []
    assert refused(X, q8, "Q4_0") == ["requantize"]
    assert refused(X, q8, "Q4_0", allow_requantize=True) == []
    assert refused(X, q8, "Q8_0") == []
    assert refused(X, BY_NAME["IQ1_S"], "IQ1_S") == ["imatrix-missing"]
    assert refused(X, i32, "Q4_0") == ["source"]
    assert refused("blk.0.x.bias", i32, "Q4_0") == []


def test_fallbacks_are_told() -> None:
    found = choose_types([(X, Spec((2, 96), F32))], ModelFacts("llama", 1), parse_ftype("Q4_K_S"))
    assert found.fallbacks == {X: (BY_NAME["Q4_K"], BY_NAME["Q5_0"])}
