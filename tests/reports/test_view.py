"""What a page shows of a model: every tensor once, with the role that the family's table gives it; the map of a file is
the file; what moved is what another file has elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.reports import makers as m

from weighbridge.base.errors import UsageError
from weighbridge.models import tensor_roles
from weighbridge.models.arch.registry import families
from weighbridge.models.open import open_model
from weighbridge.page.views import layout
from weighbridge.page.views.architecture import architecture
from weighbridge.page.views.layout import layout_map, moves
from weighbridge.page.views.tensor_columns import TensorColumns, tensor_columns
from weighbridge.page.views.tree import NumberedNode, TensorTree, tensor_tree
from weighbridge.reports.anatomy import anatomy
from weighbridge.reports.inspect.report import inspect
from weighbridge.reports.summary import summary
from weighbridge.reports.survey import roles_by_name, survey

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32,
}  # fmt: skip
MIXTRAL = CONFIG | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 2}
LAYER = {
    "input_layernorm.weight": (64,), "self_attn.q_proj.weight": (64, 64), "self_attn.k_proj.weight": (32, 64),
    "self_attn.v_proj.weight": (32, 64), "self_attn.o_proj.weight": (64, 64), "post_attention_layernorm.weight": (64,),
}  # fmt: skip
DENSE = {"mlp.gate_proj.weight": (96, 64), "mlp.up_proj.weight": (96, 64), "mlp.down_proj.weight": (64, 96)}
SPARSE = {
    "block_sparse_moe.gate.weight": (2, 64),
    **{f"block_sparse_moe.experts.{e}.{w}.weight": shape for e in range(2)
       for w, shape in (("w1", (96, 64)), ("w2", (64, 96)), ("w3", (96, 64)))},
}  # fmt: skip
WHOLE = {"model.embed_tokens.weight": (32, 64), "model.norm.weight": (64,), "lm_head.weight": (32, 64)}


def folder(path: Path, config: Mapping[str, Any], layer: Mapping[str, Any], dtype: str = "BF16") -> Path:
    """A model's folder whose tensors have the names of transformers."""
    path.mkdir()
    tensors = WHOLE | {f"model.layers.{n}.{name}": shape for n in range(2) for name, shape in layer.items()}
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(m.safetensors({name: (dtype, s) for name, s in tensors.items()}))
    return path


def columns(path: Path) -> TensorColumns:
    with open_model(path) as model:
        return tensor_columns(model)


def rows(found: TensorColumns) -> dict[str, tuple[str, int, str]]:
    """Name -> role, layer, part."""
    return {
        name: (found.roles[role], layer, found.parts[part])
        for name, role, layer, part in zip(found.names, found.role, found.layer, found.part, strict=True)
    }


def test_columns_are_the_rows_of_inspect(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", CONFIG, LAYER | DENSE)
    found, report = columns(path), inspect(path)
    for i, t in enumerate(report.tensors):
        assert (found.names[i], found.dtypes[found.dtype[i]], found.shapes[found.shape[i]]) == (
            t.name,
            t.dtype,
            t.shape,
        )
        assert (found.offset[i], found.nbytes[i], found.parameters[i]) == (t.offset, t.nbytes, t.parameters)
        assert found.files[found.file[i]] == t.file
    assert len(found.names) == report.tensor_count
    assert json.loads(msgspec.json.encode(found))["family"] == "llama"


def test_roles_are_the_tables(tmp_path: Path) -> None:
    found = rows(columns(folder(tmp_path / "m", CONFIG, LAYER | DENSE)))
    assert found["model.embed_tokens.weight"] == ("embed.weight", -1, "embedding")
    assert found["model.layers.1.self_attn.q_proj.weight"] == ("attention.q.weight", 1, "attention")
    assert found["model.layers.0.input_layernorm.weight"] == ("attention.norm.weight", 0, "norms")
    assert found["model.layers.1.mlp.down_proj.weight"] == ("mlp.down.weight", 1, "feed forward")
    assert found["lm_head.weight"] == ("head.weight", -1, "output")
    experts = rows(columns(folder(tmp_path / "x", MIXTRAL, LAYER | SPARSE)))
    assert experts["model.layers.1.block_sparse_moe.experts.0.w2.weight"] == ("moe.experts.down.weight", 1, "experts")
    assert experts["model.layers.0.block_sparse_moe.gate.weight"] == ("moe.router.weight", 0, "experts")


def test_members_of_a_packed_weight_have_its_role(tmp_path: Path) -> None:
    config = CONFIG | {"quantization": {"bits": 4, "group_size": 32}}
    path = folder(tmp_path / "m", config, LAYER | DENSE)
    q = "model.layers.0.self_attn.q_proj"
    packed: dict[str, Any] = {
        f"{q}.weight": ("U32", (64, 8)),
        f"{q}.scales": ("BF16", (64, 2)),
        f"{q}.biases": ("BF16", (64, 2)),
    }
    plain: dict[str, Any] = {t.name: (t.dtype, t.shape) for t in inspect(path).tensors}
    (path / "model.safetensors").write_bytes(m.safetensors(plain | packed))
    found = columns(path)
    assert {rows(found)[name] for name in packed} == {("attention.q.weight", 0, "attention")}
    at = [found.names.index(name) for name in packed]
    assert [found.packings[found.packing[i]] for i in at] == ["mlx"] * 3
    assert [found.parameters[i] for i in at] == [4096, 0, 0]


def test_an_unknown_family_has_its_names(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(m.safetensors({"blocks.3.mix.7.w": ("F32", (2,)), "\u202e</script>\n": ("F32", (2,))}))
    found = columns(path)
    assert found.family is None
    assert rows(found) == {
        "blocks.3.mix.7.w": ("blocks.*.mix.*.w", 3, "other"),
        "\u202e</script>\n": ("\u202e</script>\n", -1, "other"),
    }


def test_every_part_has_roles_of_a_table() -> None:
    canonical = {t.name for f in families().values() for t in f.dialects["canonical"].templates}
    words = {word for name in canonical for word in name.split(".")}
    assert words >= set(tensor_roles._PARTS)
    assert set(tensor_roles._PARTS.values()) | {"other"} == set(tensor_roles.PARTS)


def test_summary_divides_all_bytes(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", CONFIG, LAYER | DENSE)
    (path / "README.md").write_text("---\nlicense: [mit, apache-2.0]\n---\n# A model\n")
    with open_model(path) as model:
        found = summary(model)
    assert [p.part.name for p in found.parts] == ["embedding", "attention", "feed forward", "norms", "output"]
    assert sum(p.part.nbytes for p in found.parts) == sum(d.nbytes for d in found.dtypes) == found.report.tensor_nbytes
    assert all(sum(d.nbytes for d in p.dtypes) == p.part.nbytes for p in found.parts)
    assert (found.licence, found.family) == ("mit, apache-2.0", "llama")
    assert found.report.tensors == ()


def test_the_licence_of_a_gguf_is_its_key(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(m.gguf({"general.architecture": ("str", "x"), "general.license": ("str", "mit")}, {}))
    with open_model(path) as model:
        assert summary(model).licence == "mit"


def test_the_map_is_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(m.safetensors({"a": ("F32", (4,)), "none": ("F32", (0,)), "b": ("F16", (3, 5))}))
    found, parts = layout_map(path), [p for p in anatomy(path).parts if p.length]
    assert found.start == tuple(p.start for p in parts)
    assert [found.kinds[kind] for kind in found.kind] == [p.kind for p in parts]
    assert found.labels == tuple(p.label for p in parts)
    assert found.size == path.stat().st_size
    with pytest.raises(UsageError, match="folder"):
        layout_map(tmp_path)


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_the_header_of_a_file_of_many_tensors_is_one_region(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {f"t{i}": ("F32", (i,)) for i in range(1, 9)}
    (tmp_path / "x").write_bytes(m.safetensors(tensors, pad=64) if form == "safetensors" else m.gguf({}, tensors))
    fine = layout_map(tmp_path / "x")
    monkeypatch.setattr(layout, "VIEW_DETAIL", 4)
    coarse = layout_map(tmp_path / "x")
    assert (fine.detailed, coarse.detailed, coarse.kinds[coarse.kind[0]]) == (True, False, "header")
    tensors_of = [[r for r in zip(f.start, f.labels, strict=True) if r[1] in tensors] for f in (fine, coarse)]
    assert set(tensors_of[1]) <= set(tensors_of[0])
    assert len(tensors_of[1]) == len(tensors)


def test_what_moved(tmp_path: Path) -> None:
    files = {
        "a": {"a": ("F32", (4,)), "b": ("F16", (4,)), "gone": ("F32", (1,))},
        "b": {"new": ("F32", (2,)), "a": ("F32", (4,)), "b": ("F16", (6,))},
    }
    for name, tensors in files.items():
        (tmp_path / name).write_bytes(m.safetensors(tensors, pad=512))
    one, other = layout_map(tmp_path / "a"), layout_map(tmp_path / "b")
    found = {r.label: (r.a_size, r.b_size, r.shift) for r in moves(one, other) if r.kind == "tensor"}
    assert found == {"a": (16, 16, 8), "b": (8, 12, 8), "gone": (4, -1, None), "new": (-1, 8, None)}
    assert moves(one, one) == ()


def test_the_architecture_is_one_layer_a_kind(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", MIXTRAL, LAYER | SPARSE)
    with open_model(path) as model:
        found = architecture(model)
    assert (found.family, found.architecture, found.sizes["L"]) == ("llama", "MixtralForCausalLM", 2)
    assert [b.role for b in found.before.boxes] == ["embed.weight"]
    assert [b.role for b in found.after.boxes] == ["norm.weight", "head.weight"]
    (group,) = found.groups
    assert group.layers == (0, 1)
    boxes = {box.role: box for box in group.boxes}
    assert (boxes["moe.experts.down.weight"].count, boxes["moe.experts.down.weight"].shape) == (2, (64, 96))
    assert boxes["attention.q.weight"].dtypes == ("BF16",)
    every = [*found.before.boxes, *group.boxes, *found.after.boxes]
    assert sum(b.total_nbytes for b in every) == inspect(path).tensor_nbytes
    assert boxes["attention.q.weight"].total_nbytes == sum(boxes["attention.q.weight"].nbytes)


def test_layers_that_differ_are_groups_of_their_own(tmp_path: Path) -> None:
    tensors = {"b.0.w": ("F32", (2, 2)), "b.1.w": ("F32", (2, 3)), "b.2.w": ("F16", (2, 2)), "b.2.v": ("F32", (1,)),
               "b.3.w": ("F16", (2, 2))}  # fmt: skip
    (tmp_path / "x.safetensors").write_bytes(m.safetensors(tensors))
    with open_model(tmp_path / "x.safetensors") as model:
        found = architecture(model)
    assert [g.layers for g in found.groups] == [(0, 3), (1,), (2,)]
    (box,) = found.groups[0].boxes
    assert (box.dtypes, box.nbytes, box.total_nbytes) == (("F32", "F16"), (8, 16), 24)
    assert (found.groups[0].nbytes, found.groups[0].parts) == ((8, 16), {"other": (8, 16)})
    assert all(low == high for group in found.groups[1:] for low, high in [group.nbytes, *group.parts.values()])
    assert (found.family, found.sizes, found.before.boxes) == (None, {}, ())


def tree_of(path: Path, counted: bool = True) -> TensorTree:
    with open_model(path) as model:
        return tensor_tree(model, survey(model).counted if counted else None)


def leaves(nodes: tuple[NumberedNode, ...]) -> list[NumberedNode]:
    return [leaf for node in nodes for leaf in (leaves(node.children) if node.children else [node])]


def test_the_tree_folds_equal_layers(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", CONFIG, LAYER | DENSE)
    found, report = tree_of(path), inspect(path)
    root, head = found.nodes
    assert (root.label, head.label, head.children) == ("model", "lm_head.weight", ())
    labels = {node.label: node for node in root.children}
    assert list(labels) == ["embed_tokens.weight", "norm.weight", "layers"]
    (layer,) = labels["layers"].children
    assert (layer.label, layer.repeat, layer.tensors) == ("0–1", 2, 2 * len(LAYER | DENSE))
    sums = [sum(getattr(node, name) for node in found.nodes) for name in ("tensors", "parameters", "nbytes")]
    assert sums == [report.tensor_count, report.parameters, report.tensor_nbytes]
    assert all(report.tensors[n.tensor].name == n.path and report.tensors[n.tensor].shape == n.shape
               for n in leaves(found.nodes))  # fmt: skip


def test_the_tree_before_weights_are_counted(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", CONFIG, LAYER | DENSE)
    swift, counted = tree_of(path, counted=False), tree_of(path)
    assert {node.parameters for node in swift.nodes} == {None}
    assert [node.label for node in leaves(swift.nodes)] == [node.label for node in leaves(counted.nodes)]


@pytest.mark.parametrize(
    ("numbers", "label", "first"), [((0, 1, 2), "0–2", 0), ((0, 2, 3), "0, 2–3", 0), ((3, 2), "2–3", 2)]
)
def test_alike_siblings_are_folded(tmp_path: Path, numbers: tuple[int, ...], label: str, first: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(m.safetensors({f"h.{n}.{w}": ("F32", (2,)) for n in numbers for w in "ab"}))
    (root,) = tree_of(path).nodes
    (node,) = root.children
    assert (node.label, node.path, node.repeat, node.tensors) == (label, f"h.{first}", len(numbers), 2 * len(numbers))
    assert [inspect(path).tensors[leaf.tensor].name for leaf in node.children] == [f"h.{first}.a", f"h.{first}.b"]


@pytest.mark.parametrize("other", [("F16", (4,)), ("F32", (1, 2)), None])
def test_unequal_siblings_are_not_folded(tmp_path: Path, other: tuple[str, tuple[int, ...]] | None) -> None:
    tensors: dict[str, Any] = {"h.0.a": ("F32", (2,)), "h.0.b": ("F32", (2,)), "h.1.a": ("F32", (2,))}
    tensors["h.1.b" if other else "h.1.c"] = other or ("F32", (2,))
    path = tmp_path / "x.safetensors"
    path.write_bytes(m.safetensors(tensors))
    (root,) = tree_of(path).nodes
    assert [node.label for node in root.children] == ["0", "1"]


def test_a_name_that_is_a_branch_too_and_a_deep_one(tmp_path: Path) -> None:
    deep = ".".join("abcdefghij" * 8)
    path = tmp_path / "x.safetensors"
    path.write_bytes(m.safetensors({"x": ("F32", (2,)), "x.y": ("F32", (2,)), "x.": ("F32", (1,)), "": ("F32", (1,)),
                                    deep: ("F32", (2,))}))  # fmt: skip
    found = leaves(tree_of(path).nodes)
    names = {e.name for e in inspect(path).tensors}
    assert {node.path for node in found} == names
    assert len(found) == 5


def test_canonical_names_have_roles() -> None:
    assert tensor_roles.canonical_role("layers.3.attention.q.weight") == ("attention.q.weight", 3, "attention")
    assert tensor_roles.canonical_role("layers.0.moe.experts.7.up.weight") == ("moe.experts.*.up.weight", 0, "experts")
    assert tensor_roles.canonical_role("embed.weight") == ("embed.weight", -1, "embedding")


def test_roles_by_name_are_those_of_the_columns(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", CONFIG, LAYER | DENSE)
    with open_model(path) as model:
        named = roles_by_name(model)
    assert {name: tuple(row) for name, row in named.items()} == rows(columns(path))
