"""Finding the family of a model builds the tables that could be its own, never all of them: what a command costs
doesn't grow with the number of families."""

from __future__ import annotations

import pytest

from weighbridge.models.arch import registry
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.tables.short_forms import parse

# A draft with the type of a class that several graphs run is the most.
MOST = 4
CLASSES = sorted(
    (name, architecture.stated_type, family.gguf)
    for family in registry.families().values()
    for name, architecture in family.architectures.items()
)
# Classes that only their name tells from those of another family.
NAMED = {n for f in registry.families().values() for n, a in f.architectures.items() if not a.model_type}


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_shared_type_alone_means_the_other_family(name: str) -> None:
    (mine,) = registry.families_of_class(name)
    other = registry.family_of_hf({"model_type": mine.architectures[name].stated_type})
    assert other.name != mine.name
    assert registry.family_of_hf({"architectures": [name], "model_type": other.name}) is mine


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the families that a lookup asks for; each would be built in a process of its own."""
    names: set[str] = set()
    build = registry.family

    def counted(name: str) -> Family:
        names.add(name)
        return build(name)

    monkeypatch.setattr(registry, "family", counted)
    return names


@pytest.mark.parametrize(("name", "model_type", "graph"), CLASSES)
def test_a_lookup_builds_few_tables(name: str, model_type: str, graph: str, built: set[str]) -> None:
    config = registry.with_mtp_layers({"architectures": [name], "model_type": model_type}, ())
    assert name in registry.family_of_hf(config).architectures
    assert 1 <= len(built) <= MOST
    built.clear()
    assert any(f.gguf == graph for f in registry.families_of_graph(graph))
    assert 1 <= len(built) <= MOST


@pytest.mark.parametrize(("name", "model_type", "graph"), [case for case in CLASSES if case[0] not in NAMED])
def test_a_model_type_finds_the_families_of_its_classes(name: str, model_type: str, graph: str) -> None:
    """Wrappers, too, whose model_type stands in no family's own table."""
    found = [f for f in registry._of_model_type(model_type) if name in f.architectures and f.gguf == graph]
    assert found


def test_one_row_names_several_roles() -> None:
    """`{}` is the first word of each role's name."""
    short = parse("""[role]\n"gate_exp up_exp" = { hf = ".experts.{e}.{}_proj.", mlx = "{}.", layers = "moe" }""")
    long = parse(
        """[role]
gate_exp = { hf = ".experts.{e}.gate_proj.", mlx = "gate.", layers = "moe" }
up_exp = { hf = ".experts.{e}.up_proj.", mlx = "up.", layers = "moe" }"""
    )
    assert short == long
