"""What inspect says is what went in: parameters of every packing, selection, tree, facts of configs and GGUF keys."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.family_judges import golden as families
from tests.reports import makers as m

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.ftypes import BY_NUMBER
from weighbridge.base.words import ranges
from weighbridge.containers.base import Entry
from weighbridge.models import parameter_count
from weighbridge.models.arch.registry import family_of_hf
from weighbridge.reports.inspect import model_info, schemes
from weighbridge.reports.inspect.report import InspectedTensor, inspect, short
from weighbridge.reports.inspect.tree import TreeNode, build_tree, lines
from weighbridge.reports.select import FIELDS, Selection, select
from weighbridge.shipping.servers import quantization_method

# ---- parameters of packed weights ----

Group = dict[str, tuple[str, tuple[int, ...]]]
OUT, IN, GROUP = 96, 256, 64


def mlx(bits: int, group: int | None = None) -> dict[str, Any]:
    return {"quantization": {"bits": bits, **({"group_size": group} if group else {})}}


# (scheme, tensors of one module, what the config says): a weight of OUT x IN, as its writer packs it
PACKED: list[tuple[str, Group, dict[str, Any]]] = [
    ("mlx", {"weight": ("U32", (OUT, IN // 8)), "scales": ("F16", (OUT, IN // 64)), "biases": ("F16", (OUT, IN // 64))},
     mlx(4, 64)),
    ("mlx", {"weight": ("U32", (OUT, IN // 8)), "scales": ("F16", (OUT, IN // 64)), "biases": ("F16", (OUT, IN // 64))},
     {}),
    ("mlx", {"weight": ("U32", (OUT, IN // 4)), "scales": ("F16", (OUT, IN // 64)), "biases": ("F16", (OUT, IN // 64))},
     mlx(4, 64)),  # the layer's own bits differ from the config's
    ("mlx", {"weight": ("U32", (OUT, IN // 8)), "scales": ("F16", (OUT, IN // 32)), "biases": ("F16", (OUT, IN // 32))},
     mlx(4, 48)),  # a group size that can't be
    ("mlx", {"weight": ("U32", (OUT, IN * 3 // 32)), "scales": ("F16", (OUT, 4)), "biases": ("F16", (OUT, 4))},
     mlx(3, 64)),
    ("mlx", {"weight": ("U32", (4, OUT // 4, IN // 8)), "scales": ("U8", (4, OUT // 4, IN // 32))}, mlx(4, 32)),
    ("mlx", {"weight": ("U32", (OUT, IN // 8)), "scales": ("U8", (OUT, IN // 16))}, mlx(4, 16)),
    ("mlx", {"weight": ("U32", (OUT, IN // 4)), "scales": ("U8", (OUT, IN // 32))}, mlx(8, 32)),
    ("gptq", {"qweight": ("I32", (IN // 8, OUT)), "qzeros": ("I32", (IN // 64, OUT // 8)),
              "scales": ("F16", (IN // 64, OUT)), "g_idx": ("I32", (IN,))}, {}),
    ("gptq", {"qweight": ("I32", (IN * 3 // 32, OUT)), "qzeros": ("I32", (IN // 64, OUT * 3 // 32)),
              "scales": ("F16", (IN // 64, OUT)), "g_idx": ("I32", (IN,))}, {}),
    ("gptq", {"qweight": ("I32", (IN // 4, OUT)), "qzeros": ("I32", (IN // 64, OUT // 4)),
              "scales": ("F16", (IN // 64, OUT))}, mlx(8)),
    ("awq", {"qweight": ("I32", (IN, OUT // 8)), "qzeros": ("I32", (IN // 64, OUT // 8)),
             "scales": ("F16", (IN // 64, OUT))}, {}),
    ("compressed-tensors", {"weight_packed": ("I32", (OUT, IN // 8)), "weight_scale": ("BF16", (OUT, IN // 64)),
                            "weight_shape": ("I64", (2,))}, mlx(4)),
    ("fp4-packed", {"weight_packed": ("U8", (OUT, IN // 2)), "weight_scale": ("F8_E4M3", (OUT, IN // 16)),
                    "weight_global_scale": ("F32", (1,))}, {}),
    ("nvfp4", {"weight": ("U8", (OUT, IN // 2)), "weight_scale": ("F8_E4M3", (OUT, IN // 16)),
               "weight_scale_2": ("F32", ()), "input_scale": ("F32", ())}, {}),
    ("fp4-packed", {"weight_packed": ("U8", (OUT, IN * 3 // 4)), "weight_scale": ("U8", (OUT, IN // 32))}, {}),
    ("ggml-nvfp4", {"weight": ("NVFP4", (OUT, IN)), "scale": ("F32", (1,)), "input_scale": ("F32", (1,))}, {}),
    ("torchao", {"_weight_qdata": ("I8", (OUT, IN)), "_weight_scale": ("F32", (OUT, 1)),
                 "_weight_zero_point": ("I8", (OUT, 1))}, {}),
    ("torchao", {"_weight_qdata": ("U8", (OUT, IN // 2)), "_weight_scale": ("F8_E4M3", (OUT, IN // 16)),
                 "_weight_per_tensor_scale": ("F32", ())}, {}),
    ("bnb-4bit", {"weight": ("U8", (OUT * IN // 2, 1)), "weight.absmax": ("F32", (OUT * IN // 64,)),
                  "weight.quant_map": ("F32", (16,)), "weight.quant_state.bitsandbytes__nf4": ("U8", (80,))}, {}),
    ("bnb-4bit", {"weight": ("BF16", (OUT * IN // 4, 1)), "weight.absmax": ("F32", (OUT * IN // 64,)),
                  "weight.quant_map": ("F32", (16,)), "weight.quant_state.bitsandbytes__fp4": ("U8", (80,))}, {}),
    ("bnb-int8", {"weight": ("I8", (OUT, IN)), "SCB": ("F32", (OUT,)), "weight_format": ("U8", ())}, {}),
    ("fp8", {"weight": ("F8_E4M3", (OUT, IN)), "weight_scale_inv": ("F32", (1, 2))}, {}),
    ("fp8", {"weight": ("F8_E4M3", (OUT, IN)), "weight_scale": ("F32", ()), "input_scale": ("F32", ())}, {}),
    ("int8", {"weight": ("I8", (OUT, IN)), "weight_scale": ("F32", (OUT, 1))}, {}),
    ("hqq", {"W_q": ("U8", (OUT * IN // 2 // 64, 64)), "scale": ("F16", (OUT * IN // 64, 1)),
             "zero": ("F16", (OUT * IN // 64, 1)), "nbits": ("I64", ()), "shape": ("I64", (2,))}, mlx(4)),
]  # fmt: skip


def entries(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> list[Entry]:
    out, at = [], 0
    for name, (dtype, shape) in tensors.items():
        row = BY_NAME[dtype]
        size = math.prod(shape) // row.block * row.size
        out.append(Entry(name, row, shape, at, size))
        at += size
    return out


@pytest.mark.parametrize(("scheme", "group", "config"), PACKED, ids=[f"{i}-{p[0]}" for i, p in enumerate(PACKED)])
def test_packed_weights_count_as_what_they_stand_for(scheme: str, group: Group, config: dict[str, Any]) -> None:
    layer = {f"model.layers.0.mlp.up_proj.{suffix}": what for suffix, what in group.items()}
    others = {"model.norm.weight": ("F32", (7,)), "model.layers.0.mlp.up_proj.bias": ("F16", (5,))}
    rows = entries({**layer, **others})
    for order in (rows, rows[::-1], random.Random(1).sample(rows, len(rows))):
        found = parameter_count.count(order, config)
        assert found.schemes == {scheme: 1}
        assert found.total == OUT * IN + 7 + 5
        assert set(found.packed) == set(layer)


def test_mxfp4_of_gpt_oss() -> None:
    names = {"m.experts.gate_up_proj_blocks": ("U8", (2, 8, 3, 16)), "m.experts.gate_up_proj_scales": ("U8", (2, 8, 3)),
             "m.experts.gate_up_proj_bias": ("BF16", (2, 8))}  # fmt: skip
    found = parameter_count.count(entries(names))
    assert (found.schemes, found.total) == ({"mxfp4": 1}, 2 * 8 * 96 + 16)


COUNTED: dict[str, tuple[Group, dict[str, Any], int]] = {
    "BitNet": ({"m.weight": ("U8", (16, 64)), "m.weight_scale": ("F32", (1,))},
               {"quantization_config": {"quant_method": "bitnet"}}, 4096),
    "DeepSeek V4": ({"m.weight": ("F8_E4M3", (256, 256)), "m.scale": ("F8_E8M0", (2, 2))}, {}, 65_536),
    "experts": ({"m": ("F8_E4M3", (2, 256, 256)), "m_scale_inv": ("F32", (2, 2, 2))}, {}, 131_072),
    "E4M3FNUZ": ({"m.weight": ("F8_E4M3FNUZ", (256, 256)), "m.weight_scale": ("F32", (256, 1))}, {}, 65_536),
}  # fmt: skip


@pytest.mark.parametrize("case", COUNTED)
def test_scales_are_no_parameters(case: str) -> None:
    tensors, config, want = COUNTED[case]
    assert parameter_count.count(entries(tensors), config).total == want


def test_plain_and_block_types_count_their_shape() -> None:
    found = parameter_count.count(entries({"a": ("Q4_K", (2, 512)), "b": ("F32", (3,)), "c.weight": ("U32", (2, 2))}))
    assert (found.total, found.schemes) == (1024 + 3 + 4, {})


@pytest.mark.oracle
@pytest.mark.parametrize(("bits", "group"), [(4, 64), (8, 32), (3, 64), (6, 128), (2, 32)])
def test_files_that_mlx_writes(tmp_path: Path, bits: int, group: int) -> None:
    mx = pytest.importorskip("mlx.core")
    weight = mx.random.normal((32, 256))
    packed, scales, biases = mx.quantize(weight, group_size=group, bits=bits)
    file = tmp_path / "model.safetensors"
    mx.save_safetensors(str(file), {"l.weight": packed, "l.scales": scales, "l.biases": biases}, {"format": "mlx"})
    (tmp_path / "config.json").write_text(json.dumps({"quantization": {"bits": bits, "group_size": group}}))
    report = inspect(tmp_path)
    assert report.parameters == 32 * 256
    assert report.model.quantization is not None
    assert report.model.quantization.method == "mlx-affine"
    assert report.bits_per_weight == round(file_bytes(report) * 8 / (32 * 256), 4)


def file_bytes(report: Any) -> int:
    return sum(t.nbytes for t in report.tensors)


# ---- the report ----


def test_a_folder(tmp_path: Path) -> None:
    folder = m.llama_folder(tmp_path / "m", shards=3)
    report = inspect(folder)
    wanted = {name: shape for name, (_, shape) in m.llama_tensors().items()}
    assert {t.name: t.shape for t in report.tensors} == wanted
    assert report.parameters == sum(map(math.prod, wanted.values()))
    assert report.bits_per_weight == 32
    assert len(report.files) == 3
    assert sum(f.tensors for f in report.files) == report.tensor_count == len(wanted)
    assert report.nbytes == sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    model = report.model
    assert (model.architecture, model.family, model.layers, model.hidden_size) == ("LlamaForCausalLM", "llama", 2, 8)
    assert (model.heads, model.kv_heads, model.context_length, model.vocab_size) == (2, 1, 64, 32)
    for t in report.tensors:  # the place is where the bytes are
        data = (folder / t.file).read_bytes()[t.offset : t.offset + t.nbytes]
        assert data == (bytes([1, 2, 3, 60]) * (t.nbytes // 4))[: t.nbytes]


def test_a_gguf(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    keys: dict[str, Any] = {
        "general.architecture": ("str", "llama"), "general.name": ("str", "Tiny"), "general.type": ("str", "model"),
        "general.file_type": ("u32", 15), "llama.block_count": ("u32", 2), "llama.embedding_length": ("u32", 256),
        "llama.context_length": ("u32", 4096), "llama.attention.head_count": ("arr[u32]", [8, 4]),
        "tokenizer.ggml.model": ("str", "gpt2"), "tokenizer.ggml.pre": ("str", "llama-bpe"),
        "tokenizer.ggml.tokens": ("arr[str]", [f"t{i}" for i in range(20)]),
        "tokenizer.chat_template": ("str", "{{x}}"),
    }  # fmt: skip
    file.write_bytes(m.gguf(keys, {"a": ("Q4_K", (2, 256)), "b": ("F32", (8,))}))
    report = inspect(file)
    model = report.model
    assert (report.format, report.version, report.byte_order, report.alignment) == ("gguf", 3, "little", 32)
    assert (model.architecture, model.name, model.kind, model.layers, model.heads) == ("llama", "Tiny", "model", 2, 8)
    assert model.tokenizer == model_info.Tokenizer("BPE", 20, "llama-bpe", "tokenizer.ggml.*")
    assert (model.context_length, model.vocab_size, model.chat_template) == (4096, 20, 5)
    assert model.quantization is not None
    assert model.quantization.words == "Q4_K_M"
    assert report.parameters == 520
    assert report.metadata["tokenizer.ggml.tokens"]["length"] == 20
    assert report.metadata["tokenizer.ggml.tokens"]["first"] == [f"t{i}" for i in range(8)]
    assert [d.dtype for d in report.dtypes] == ["Q4_K", "F32"]


def test_one_tensor(tmp_path: Path) -> None:
    folder = m.llama_folder(tmp_path / "m")
    report = inspect(f"{folder}::model.norm.weight")
    assert [t.name for t in report.tensors] == ["model.norm.weight"]
    with pytest.raises(UsageError, match="no tensor") as caught:
        inspect(f"{folder}::model.norm.weigth")
    assert "model.norm.weight" in (caught.value.hint or "")


def test_a_file_with_colons_in_its_name(tmp_path: Path) -> None:
    file = tmp_path / "a::b.safetensors"
    file.write_bytes(m.safetensors({"x": ("F32", (2,))}))
    assert inspect(file).tensor_count == 1
    assert inspect(f"{file}::x").tensor_count == 1 if "::" not in str(tmp_path) else True


@pytest.mark.parametrize("data", [m.POINTER, m.PAGE, b"", b"GGUF"])
def test_what_cannot_be_read_is_said_in_our_words(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises((FormatError, UnsupportedError)):
        inspect(tmp_path / "x.safetensors")


def test_adapters_are_not_told_by_the_config_beside_them(tmp_path: Path) -> None:
    folder = m.llama_folder(tmp_path / "m")
    lora = m.safetensors({f"base_model.model.q.lora_{k}.weight": ("F32", (2, 2)) for k in "AB"})
    (folder / "adapter_model.safetensors").write_bytes(lora)
    report = inspect(folder / "adapter_model.safetensors")
    assert report.model.architecture is None
    assert "LoRA" in (report.model.kind or "")


# ---- facts ----

QUANTIZED: list[tuple[dict[str, Any], str, float | None, int | None]] = [
    (mlx(4, 64), "mlx-affine", 4, 64),
    ({"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}, "mlx-mxfp4", 4, 32),
    ({"quantization_config": {"quant_method": "gptq", "bits": 3, "group_size": 128}}, "gptq", 3, 128),
    ({"quantization_config": {"quant_method": "awq", "w_bit": 4, "q_group_size": 128}}, "awq", 4, 128),
    ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "fp8", 8, None),
    ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "bitsandbytes", 4, None),
    ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "bitsandbytes", 8, None),
    ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4", 4, None),
    ({"quantization_config": {"quant_method": "compressed-tensors",
                              "config_groups": {"g": {"weights": {"num_bits": 4}}}}}, "compressed-tensors", 4, None),
    ({"text_config": {"quantization_config": {"quant_method": "mxfp4"}}}, "mxfp4", 4, None),
]  # fmt: skip


@pytest.mark.parametrize(("config", "method", "bits", "group"), QUANTIZED, ids=[q[1] for q in QUANTIZED])
def test_quantization_of_a_config(config: dict[str, Any], method: str, bits: float | None, group: int | None) -> None:
    found = model_info.quantization(config)
    assert found is not None
    assert (found.method, found.bits, found.group_size) == (method, bits, group)
    assert method in found.words


@pytest.mark.parametrize(
    ("name", "part"),
    [("qwen2.5-omni", "thinker_config.text_config"), ("internvl-qwen2", "llm_config"), ("janus", "text_config")],
)
def test_facts_are_those_of_the_language_model(name: str, part: str, tmp_path: Path) -> None:
    """Its sizes and its packing, wherever the class of the config has them."""
    config = json.loads(json.dumps(families()[name]["config"]))
    sizes = family_of_hf(config).effective(config)
    inner = reduce(lambda value, key: value[key], part.split("."), config)
    inner["quantization_config"] = {"quant_method": "awq", "w_bit": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    info = model_info.of_folder(tmp_path)
    assert (info.hidden_size, info.layers) == (sizes["hidden_size"], sizes["num_hidden_layers"])
    assert info.quantization is not None
    assert info.quantization.method == quantization_method(config) == "awq"


def test_no_quantization() -> None:
    assert model_info.quantization(m.CONFIG) is None
    assert model_info.quantization({"quantization_config": None}) is None


@pytest.mark.parametrize(
    ("files", "kind", "size"),
    [
        ({"tokenizer.json": '{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}}'}, "BPE", 2),
        ({"tokenizer.json": '{"model": {"vocab": {"a": 0}}}'}, "BPE", 1),
        ({"tokenizer.json": '{"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}'}, "Unigram", 1),
        ({"tokenizer.json": "{"}, "unreadable", None),
        ({"tokenizer.model": "x"}, "SentencePiece", None),
        ({"vocab.txt": "[PAD]\n"}, "WordPiece", None),
    ],
)
def test_tokenizers(tmp_path: Path, files: dict[str, str], kind: str, size: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = model_info.of_folder(tmp_path).tokenizer
    assert found is not None
    assert (found.kind, found.vocab_size) == (kind, size)


@pytest.mark.parametrize(
    ("name", "text", "size"),
    [
        ("chat_template.jinja", "{{ é }}", 7),
        ("tokenizer_config.json", '{"chat_template": "abc"}', 3),
        ("tokenizer_config.json", '{"chat_template": [{"name": "default", "template": "ab"}, {"template": "c"}]}', 3),
        ("tokenizer_config.json", "{}", None),
    ],
)
def test_chat_templates(tmp_path: Path, name: str, text: str, size: int | None) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert model_info.of_folder(tmp_path).chat_template == size


@pytest.mark.oracle
def test_file_types_are_the_reference_s() -> None:
    gguf = pytest.importorskip("gguf")
    known = {
        t.value: t.name.removeprefix("MOSTLY_").removeprefix("ALL_") for t in gguf.LlamaFileType if t.name != "GUESSED"
    }
    for number, row in BY_NUMBER.items():
        assert known.get(number, row.name) == row.name, number


# ---- selection ----


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    file = tmp_path_factory.mktemp("s") / "x.safetensors"
    file.write_bytes(m.safetensors({"b.weight": ("F32", (300, 100)), "a.weight": ("F16", (10, 10)),
                                    "a.bias": ("F32", (10,)),
                                    "scalar": ("F32", ())}))  # fmt: skip
    return list(inspect(file).tensors)


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (Selection(), ["b.weight", "a.weight", "a.bias", "scalar"]),
        (Selection(filters=("size>100kB",)), ["b.weight"]),
        (Selection(filters=("size>=120000",)), ["b.weight"]),
        (Selection(filters=("size<1KiB", "rank>0")), ["a.weight", "a.bias"]),
        (Selection(filters=("dtype=f16",)), ["a.weight"]),
        (Selection(filters=("dtype!=F32",)), ["a.weight"]),
        (Selection(filters=("params > 0.03M",)), []),
        (Selection(filters=("params>=30K",)), ["b.weight"]),
        (Selection(filters=("name~a.*",)), ["a.weight", "a.bias"]),
        (Selection(filters=("rows=10",)), ["a.weight", "a.bias"]),
        (Selection(include=("*.weight",), exclude=("b.*",)), ["a.weight"]),
        (Selection(sort="name"), ["a.bias", "a.weight", "b.weight", "scalar"]),
        (Selection(sort="size:desc", limit=2), ["b.weight", "a.weight"]),
        (Selection(sort="offset:desc", limit=1), ["scalar"]),
        (Selection(limit=0), []),
    ],
    ids=str,
)
def test_selection(rows: list[Any], selection: Selection, names: list[str]) -> None:
    assert [r.name for r in select(rows, selection)] == names


@pytest.mark.parametrize(
    "selection",
    [
        Selection(filters=(text,))
        for text in ("size", "size>", "size>big", "colour=red", "name>a", "size~1", "size>1XB", "")
    ]
    + [Selection(sort=text) for text in ("colour", "size:up", "")][:2],
    ids=str,
)
def test_selection_that_makes_no_sense(rows: list[Any], selection: Selection) -> None:
    with pytest.raises(UsageError):
        select(rows, selection)


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_sorts(rows: list[Any], field: str) -> None:
    down = select(rows, Selection(sort=f"{field}:desc"))
    assert [FIELDS[field](r) for r in down] == sorted((FIELDS[field](r) for r in rows), reverse=True)


# ---- tree ----


def test_the_tree_folds_layers_that_look_alike(tmp_path: Path) -> None:
    report = inspect(m.llama_folder(tmp_path / "m"))
    shown = {line.name: line for line in lines(build_tree(report.tensors))}
    assert shown["0-1"].node.repeat == 2
    assert shown["0-1"].node.tensors == 18
    top = [line.node for line in lines(build_tree(report.tensors)) if line.depth == 0]
    assert sum(node.parameters for node in top) == report.parameters
    assert sum(node.tensors for node in top) == report.tensor_count


def test_the_tree_keeps_layers_that_differ_apart(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    odd = {f"l.{i}.w.weight": ("F32", (2 + (i == 2),)) for i in range(5)} | {
        f"l.{i}.w.bias": ("F32", (2,)) for i in range(5)
    }
    file.write_bytes(m.safetensors(odd))
    named = {line.name: line.node.repeat for line in lines(build_tree(inspect(file).tensors))}
    assert named["0-1,3-4.w"] == 4
    assert named["2.w"] == 1


def spread(nodes: list[TreeNode], above: str = "") -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes that a folded tree stands for."""
    for node in nodes:
        ranges = [part.split("-") for part in node.part.split(",")] if node.repeat > 1 else [[node.part]]
        for first, last in ((r[0], r[-1]) for r in ranges):
            for part in range(int(first), int(last) + 1) if first != last else [first]:
                if node.shape is not None:
                    yield f"{above}{part}", node.shape
                yield from spread(node.children, f"{above}{part}.")


PARTS = st.sampled_from(["a", "b", "0", "1", "2", "10", "layers", "w"])
NAMES = st.lists(PARTS, min_size=1, max_size=5).map(".".join) | PARTS.map(lambda part: f"{part}." * 33 + "end")


@given(st.dictionaries(NAMES, st.sampled_from([(2,), (3,)]), max_size=40))
def test_the_tree_stands_for_every_tensor(shapes: dict[str, tuple[int, ...]]) -> None:
    """Layers that share what is below them, whatever their order and depth."""
    rows = [InspectedTensor(name, "F32", shape, 1, 4, "x", 0) for name, shape in shapes.items()]
    tree = build_tree(rows)
    assert sorted(spread(tree)) == sorted(shapes.items())
    assert sum(node.tensors for node in tree) == sum(node.parameters for node in tree) == len(rows)


@given(st.lists(NAMES, max_size=20, unique=True))
def test_the_roles_of_weights_are_their_names_without_numbers(names: list[str]) -> None:
    roles: dict[str, set[int]] = {}
    for name in names:
        numbers = [int(part) for part in name.split(".") if part.isdecimal()]
        role = ".".join("*" if part.isdecimal() else part for part in name.split("."))
        roles.setdefault(role, set()).update(numbers[:1])
    assert {where.role: where.layers for where in schemes._layers(names)} == {
        role: ranges(numbers, ", ") for role, numbers in roles.items()
    }


def test_the_tree_shown_unasked_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header of a million tensors is legal: what is left out is said, and can be had."""
    from click.testing import CliRunner

    from weighbridge.base import limits
    from weighbridge.cli.commands.inspect import inspect as command

    file = tmp_path / "x.safetensors"
    file.write_bytes(m.safetensors({f"t{i:02}": ("F32", (1,)) for i in range(30)}))
    monkeypatch.setattr(limits, "TREE_LINES", 10)
    monkeypatch.setattr(limits, "TREE_TENSORS", 20)
    said = CliRunner().invoke(command, [str(file)]).output
    assert "t09 " in said
    assert "t10 " not in said
    assert "... 10 more lines (--tree shows all)" in said
    assert "... 10 more tensors" in said
    whole = CliRunner().invoke(command, [str(file), "--tree"]).output
    assert "t29 " in whole
    assert "more" not in whole


def test_a_limit_makes_no_rows_beyond_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weighbridge.reports.inspect import report as reports

    file = tmp_path / "x.safetensors"
    file.write_bytes(m.safetensors({f"t{i:02}": ("F32", (1,)) for i in range(30)}))
    made: list[str] = []
    row = reports.InspectedTensor

    def counted(name: str, *rest: Any) -> Any:
        made.append(name)
        return row(name, *rest)

    monkeypatch.setattr(reports, "InspectedTensor", counted)
    report = inspect(file, limit=3)
    assert made == [t.name for t in report.tensors] == ["t00", "t01", "t02"]
    assert report.selected == 30
    made.clear()
    report = inspect(file, include=["t1*"], limit=1)
    assert made == [f"t1{i}" for i in range(10)]
    assert report.selected == 10
    assert len(report.tensors) == 1


def test_short_values() -> None:
    assert short([1, 2]) == [1, 2]
    assert short(list(range(100))) == {"array": "mixed", "length": 100, "first": list(range(8))}
    assert short("x" * 1000) == "x" * 1000


def test_inspect_loads_no_numpy(tmp_path: Path) -> None:
    """The command as a whole: neither numpy nor rich, for safetensors and GGUF alike."""
    folder = m.llama_folder(tmp_path / "m")
    file = tmp_path / "x.gguf"
    file.write_bytes(m.gguf({"general.architecture": ("str", "llama")}, {"a": ("Q8_0", (2, 32))}))
    code = (
        "import sys; from weighbridge.cli.main import main; assert main(['inspect', sys.argv[1]]) == 0;"
        "assert main(['inspect', sys.argv[1], '--json']) == 0;"
        "assert not {'numpy', 'rich', 'torch', 'ml_dtypes'} & set(sys.modules)"
    )
    for path in (folder, file):
        subprocess.run([sys.executable, "-c", code, str(path)], check=True, stdout=subprocess.DEVNULL)
