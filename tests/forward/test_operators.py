"""The operator graph of every family: no tensor is missing or drawn twice, values go from the layer's input to its end,
and matrices are as wide as what they read."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.models.family_judges import golden

from weighbridge.base.spec import Shape
from weighbridge.forward.graph import table
from weighbridge.forward.operators import build, flow
from weighbridge.forward.operators.model import GraphStage, LayerKind, OperatorGraph
from weighbridge.forward.operators.wiring import mismatches
from weighbridge.models.arch.registry import families
from weighbridge.providers.config import build_config, unified_keys

MODELS = tuple(golden())


@cache
def family_of(model: str) -> Any:
    return next(f for f in families().values() if f.architecture(golden()[model]["config"]) is not None)


@cache
def shapes_of(model: str) -> dict[str, Shape]:
    family = family_of(model)
    sizes = family.sizes_from_hf(golden()[model]["config"])
    return {name: place.shape for name, place in family.expansion("canonical", sizes, "").places.items()}


@cache
def graph_of(model: str) -> OperatorGraph:
    family, config, shapes = family_of(model), golden()[model]["config"], shapes_of(model)
    settings = build_config(
        family, config, unified_keys(family, config, {}), vocab=None, tied="head.weight" not in shapes
    )
    return build.build_graph(family.name, settings, shapes, family.effective(config))


def layers_of(model: str) -> dict[tuple[str, int], dict[str, Shape]]:
    """The tensors of each layer by role, found by splitting names here."""
    out: dict[tuple[str, int], dict[str, Shape]] = {}
    for name, shape in shapes_of(model).items():
        stack, found, rest = name.partition("layers.")
        if found:
            number, _, role = rest.partition(".")
            out.setdefault((stack.rstrip("."), int(number)), {})[role] = shape
    return out


def judge(model: str, graph: OperatorGraph) -> None:
    layers = layers_of(model)
    assert Counter((k.stack, n) for k in graph.kinds for n in k.layers) == Counter(layers.keys())
    for kind in graph.kinds:
        for number in kind.layers:
            roles = [role for operator in kind.stage.operators for role in operator.roles]
            assert Counter(roles) == Counter(layers[kind.stack, number].keys()), f"layer {number}"
        if kind.stage.wiring != "unknown":
            judge_wiring(kind.stage)
            assert mismatches(kind.stage, layers[kind.stack, kind.layers[0]]) == []
    for stage in (graph.before, graph.after):
        judge_wiring(stage)
        assert mismatches(stage, shapes_of(model)) == []


def judge_wiring(stage: GraphStage) -> None:
    """Every operator reads something that begins outside of the stage and is read by one that ends it."""
    ids = [operator.id for operator in stage.operators]
    assert len(ids) == len(set(ids))
    kinds = {operator.id: operator.kind for operator in stage.operators}
    ahead: dict[str, set[str]] = {name: set() for name in ids}
    for edge in stage.edges:
        assert edge.source in kinds
        ahead[edge.source].add(edge.target)
    read = {edge.target for edge in stage.edges}
    assert all(kinds[name] == "outside" for name in ids if name not in read)
    ends = [name for name in ids if not ahead[name]]
    assert len(ends) == (1 if ids else 0), ends
    assert all(ends[0] in reached(name, ahead) for name in ids)


def reached(name: str, ahead: dict[str, set[str]]) -> set[str]:
    seen, todo = set(), [name]
    while todo:
        if (item := todo.pop()) not in seen:
            seen.add(item)
            todo += ahead[item]
    return seen


@pytest.mark.parametrize("model", MODELS)
def test_every_tensor_is_in_one_operator_and_values_reach_the_end(model: str) -> None:
    judge(model, graph_of(model))


@pytest.mark.costly
def test_every_family_is_either_connected_or_says_that_it_isnt() -> None:
    """Also layers for further tokens. What isn't connected is in neither table."""
    wired = {*table().graph, *flow.flows().family}
    for model in MODELS:
        graph = graph_of(model)
        unknown = [kind for kind in graph.kinds if kind.stage.wiring == "unknown"]
        assert bool(unknown) == (graph.family not in wired), model
        assert any("isn't known" in note for note in graph.notes) == bool(unknown), model
        assert not any(kind.stage.edges for kind in unknown)


def test_families_are_declared_once() -> None:
    declared = flow.flows().family.keys()
    assert not declared & table().graph.keys()
    assert declared <= families().keys()
    assert {row.flow for row in flow.flows().family.values()} <= flow.flows().layer.keys()


def test_every_function_has_a_title_and_is_used() -> None:
    texts = " ".join([*flow.flows().layer.values(), *flow.flows().outside.values(),
                      *(variant.flow for part in flow.flows().part.values() for variant in part)])  # fmt: skip
    for word in flow.functions().function:
        assert word in texts, word
    for name in flow.functions().outside:
        assert f"@{name}" in texts or name == "encoder", name


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("attention", "> attention.o", ""),  # a tensor is missing
        ("mlp", "mlp.gate > activation", "mlp.gate > mlp.gate"),  # one is there twice
        ("mlp", "( mlp.gate > activation | mlp.up ) > times", "mlp.gate > activation > mlp.up"),  # reads another width
        ("moe", "( moe.router > choose", "( moe.router > moe.router > choose"),
        ("ssm", "> scan[ssm.a_log ssm.d]", "> scan[ssm.a_log]"),
    ],
)
def test_a_wrong_flow_is_found(monkeypatch: pytest.MonkeyPatch, part: str, old: str, new: str) -> None:
    known = flow.flows()
    variants = tuple(msgspec.structs.replace(v, flow=v.flow.replace(old, new)) for v in known.part[part])
    assert variants != known.part[part]
    wrong = msgspec.structs.replace(known, part={**known.part, part: variants})
    monkeypatch.setattr(flow, "flows", lambda: wrong)
    model = {"moe": "qwen3next", "ssm": "jamba"}.get(part, "llama-bare")
    graph = graph_of.__wrapped__(model)
    if all(kind.stage.wiring != "unknown" for kind in graph.kinds):  # else a tensor is left over, which is said
        with pytest.raises(AssertionError):
            judge(model, graph)


def kinds(model: str) -> dict[str, LayerKind]:
    return {kind.title: kind for kind in graph_of(model).kinds}


def operators(kind: LayerKind) -> dict[str, tuple[str, ...]]:
    return {operator.id: operator.facts for operator in kind.stage.operators}


def test_layers_that_differ_are_told_apart() -> None:
    assert {title: kind.layers for title, kind in kinds("gemma2").items()} == {
        "window of 24": (0,), "whole context": (1,)
    }  # fmt: skip
    assert {title: kind.layers for title, kind in kinds("jamba").items()} == {
        "state space, feed forward": (0, 2), "attention, experts": (1,), "state space, experts": (3,),
        "attention, feed forward": (4,),
    }  # fmt: skip
    assert [*kinds("deepseek-v3")] == ["feed forward", "experts"]
    assert [*kinds("llama-bare")] == ["all layers"]


def test_facts_are_those_of_the_settings() -> None:
    sliding, whole = (operators(kind) for kind in kinds("gemma2").values())
    assert sliding["attend"] == ("4 heads, 2 of keys and values", "window of 24", "soft cap 5")
    assert whole["attend"] == ("4 heads, 2 of keys and values", "soft cap 5")
    assert sliding["mlp.gate"] == ("64 → 96",)
    (embed,) = (o.facts for o in graph_of("gemma2").before.operators if o.id == "embed")
    assert embed == ("640 × 64", "× 8")
    assert sliding["rope"] == ("base 10,000",)
    oss = operators(next(iter(kinds("gpt-oss").values())))
    assert "sinks" in oss["attend"]
    assert oss["choose"] == ("2 of 6",)
    assert oss["moe.router"] == ("64 → 6", "bias")


def test_adapters_are_drawn_with_their_matrices() -> None:
    (switch,), (jina,) = (map(operators, kinds(model).values()) for model in ("granite-switch", "jina-bert-v3"))
    assert switch["attention.q"] == ("64 → 64", "adapters")
    assert jina["attention.qkv"] == ("adapters",)
    assert jina["attention.q"] == ("64 → 64", "bias")
    read = {edge.source for edge in kinds("jina-bert-v3")["all layers"].stage.edges if edge.target == "add"}
    assert read == {"join", "attention.qkv"}


def test_layers_without_rotation_have_no_operator_for_it() -> None:
    for title, kind in kinds("smollm3").items():
        assert ("rope" in operators(kind)) == ("not rotated" not in title)
    assert {"rotated", "not rotated"} == kinds("smollm3").keys()


def test_a_residual_sum_reads_what_its_block_reads() -> None:
    stage = kinds("llama-bare")["all layers"].stage
    bypassed = {(edge.source, edge.target) for edge in stage.edges if edge.residual}
    assert bypassed == {("input", "sum"), ("sum", "sum 2")}
    assert ("attention.o", "sum") in {(edge.source, edge.target) for edge in stage.edges}


def test_what_a_word_cant_be_is_an_error() -> None:
    with pytest.raises(ValueError, match="flow"):
        flow.flow("attention.q > %", flow.Present({"attention.q.weight"}))
    with pytest.raises(ValueError, match="lacks"):
        flow.flow("( attention.q", flow.Present({"attention.q.weight"}))


CALLED = json.loads((Path(__file__).parent / "golden" / "called.json").read_text("utf-8"))


def in_layer(module: str) -> str:
    """A module's name from its layer on: what is before it may be otherwise in memory."""
    return module[max(module.find("layers."), 0) :]


def module_roles(model: str) -> dict[str, list[str]]:
    """The canonical names of what a module of transformers holds, by its name within the layers."""
    family = family_of(model)
    sizes = family.sizes_from_hf(golden()[model]["config"])
    dialect, prefix = family.dialect_and_prefix(golden()[model]["hf"], sizes)
    canonical = {i: n for n, p in family.expansion("canonical", sizes, "").places.items() for i in p.instances}
    out: dict[str, list[str]] = {}
    for name, place in family.expansion(dialect, sizes, prefix).places.items():
        module = in_layer(name.rpartition(".")[0])
        out.setdefault(module, []).extend(canonical[i] for i in place.instances if i in canonical)
    return out


@pytest.mark.parametrize("model", CALLED)
def test_declared_graphs_agree_with_the_order_of_calls_in_transformers(model: str) -> None:
    """What is computed before something else in the graph is called before it; and a module that was given the output
    of another as it is reads it in the graph."""
    rows, roles = CALLED[model], module_roles(model)
    inner = {
        name.rpartition(".")[0] for name, _ in rows
    }  # modules with weights of their own are called before those in them
    at = {name: number for number, (name, _) in enumerate(rows) if name not in inner}
    found = 0
    for kind in graph_of(model).kinds:
        stack = f"{kind.stack}." if kind.stack else ""
        operator_of = {role: o.id for o in kind.stage.operators for role in o.roles}
        ahead: dict[str, set[str]] = {}
        for edge in kind.stage.edges:
            ahead.setdefault(edge.source, set()).add(edge.target)
        for layer in kind.layers:
            start = f"{stack}layers.{layer}."
            modules: dict[str, set[str]] = {}  # operator -> modules
            for name in at:
                for role in roles.get(in_layer(name), ()):
                    if role.startswith(start) and (operator := operator_of.get(role.removeprefix(start))):
                        modules.setdefault(operator, set()).add(name)
            for operator, names in modules.items():
                later = reached_from(operator, ahead)
                for other in later & modules.keys():
                    for name in names:
                        assert all(at[name] <= at[second] for second in modules[other]), (name, modules[other])
                        found += 1
            owner = {name: operator for operator, names in modules.items() for name in names}
            for name, source in rows:
                if source in owner and name in owner and owner[source] != owner[name]:
                    assert owner[name] in reached_from(owner[source], ahead), f"{name} reads {source}"
                    found += 1
    assert found > 3, "nothing was compared"


def reached_from(name: str, ahead: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    todo = [*ahead.get(name, ())]
    while todo:
        if (item := todo.pop()) not in seen:
            seen.add(item)
            todo += ahead.get(item, ())
    return seen
