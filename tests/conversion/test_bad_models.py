"""A model whose config, or whose GGUF's keys, and tensors contradict each other is refused before anything is written,
both ways: the message names the file, the tensor, what was expected and found, and what to do. The table is the verdict
on each kind of fault, for a dense model, a mixture in either spelling, an encoder and a hybrid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.oracles import gguf_file

from weighbridge.cli.main import main
from weighbridge.models.arch import diagnose as blame
from weighbridge.models.arch.registry import families

Tensors = dict[str, Any]
Config = dict[str, Any]

_DECODER: Config = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 48, "intermediate_size": 96, "tie_word_embeddings": False, "max_position_embeddings": 64,
    "rope_theta": 1e4, "rms_norm_eps": 1e-5,
}  # fmt: skip
_MIXTURE: Config = _DECODER | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}  # fmt: skip


class Kind(NamedTuple):
    """A family, the dialect of its folder, a config; in tensors' names: a layer, a matrix of one; its inner width."""

    family: str
    dialect: str
    config: Config
    layer: str = "model.layers.{}."
    matrix: str = "self_attn.q_proj.weight"
    inner: str = "intermediate_size"


KINDS = {
    "dense": Kind("llama", "hf", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | _DECODER),
    "mixture": Kind("qwen3moe", "hf", _MIXTURE, inner="moe_intermediate_size"),
    "stacks": Kind("qwen3moe", "hf5", _MIXTURE, inner="moe_intermediate_size"),
    "encoder": Kind("bert", "hf", {
        "architectures": ["BertModel"], "model_type": "bert", "num_hidden_layers": 2, "hidden_size": 64,
        "num_attention_heads": 4, "vocab_size": 48, "intermediate_size": 96, "max_position_embeddings": 32,
        "type_vocab_size": 2,
    }, "encoder.layer.{}.", "intermediate.dense.weight"),
    "hybrid": Kind("jamba", "hf", {
        "architectures": ["JambaForCausalLM"], "model_type": "jamba", "num_experts": 4, "num_experts_per_tok": 2,
        "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
        "mamba_d_state": 8, "mamba_dt_rank": 4, "mamba_expand": 2, "mamba_d_conv": 4,
    } | _DECODER | {"num_hidden_layers": 4}, matrix="feed_forward.up_proj.weight"),
}  # fmt: skip


def tensors(kind: Kind) -> Tensors:
    family, rng = families()[kind.family], np.random.default_rng(1)
    shapes = family.names(kind.dialect, family.sizes_from_hf(kind.config))
    unsaid = ("self_attn", "mlp"), ("cls.", "classifier")  # whose biases, and which tensors, are another class's
    wanted = {
        n: s for n, s in shapes.items()
        if not (n.endswith("proj.bias") and any(part in n for part in unsaid[0])) and not n.startswith(unsaid[1])
    }  # fmt: skip
    return {n: rng.normal(size=s).astype("f4") for n, s in wanted.items()}


def first(held: Tensors, *parts: str) -> str:
    return next(name for name in held if all(part in name for part in parts))


def gone(*parts: str) -> Callable[[Kind, Tensors, Config], str]:
    """A tensor is missing."""

    def change(kind: Kind, held: Tensors, config: Config) -> str:
        name = first(held, *(part.format(kind.layer.format(1)) for part in parts))
        del held[name]
        return rf"1 missing: {name}"

    return change


def narrow(kind: Kind, held: Tensors, config: Config) -> str:
    name = f"{kind.layer.format(0)}{kind.matrix}"
    rows, columns = held[name].shape
    held[name] = held[name][:, :-1].copy()
    return rf"1 of the wrong shape: {name} is \[{rows}, {columns - 1}\], expected \[{rows}, {columns}\]"


def strange(kind: Kind, held: Tensors, config: Config) -> str:
    held["model.layers.0.strange.weight"] = np.ones((2, 2), "f4")
    return r"1 without a rule: model.layers.0.strange.weight"


def said(key: str, by: Callable[[Any], Any]) -> Callable[[Kind, Tensors, Config], str]:
    def change(kind: Kind, held: Tensors, config: Config) -> str:
        name = kind.inner if key == "inner" else key
        config[name] = by(config[name])
        return "expected|missing|without a rule|is not|positive|is zero"

    return change


def some_experts(kind: Kind, held: Tensors, config: Config) -> str:
    name = first(held, "gate_up_proj")
    held[name] = held[name][:3].copy()
    return rf"1 of the wrong shape: {name} is \[3, 64, 64\], expected \[4, 64, 64\]"


def part_of_a_group(kind: Kind, held: Tensors, config: Config) -> str:
    held["model.layers.0.self_attn.q_proj.bias"] = np.ones(64, "f4")
    return r"7 missing: model.layers.0.self_attn.k_proj.bias"


ALL = tuple(KINDS)
_EXPERTS = ("mixture", "hybrid")
_FILE, _FITS = "hint: a file of the model is missing or was changed: wb verify", "wb arch check"
# fault -> what it does (and gives the words for it), which models it is of, what to do (or the key that is blamed)
FAULTS: dict[str, tuple[Callable[[Kind, Tensors, Config], str], tuple[str, ...], str]] = {
    "a tensor of a layer is missing": (gone("{}"), ALL, _FILE),
    "an expert is missing": (gone("experts.2.up_proj"), _EXPERTS, _FILE),
    "a stack of experts is missing": (gone("experts.down_proj"), ("stacks",), _FILE),
    "a stack of too few": (some_experts, ("stacks",), f"or the weights may belong to another model: {_FITS}"),
    "one tensor is narrow": (narrow, ALL, f"or the weights may belong to another model: {_FITS}"),
    "an unknown tensor": (strange, ALL, _FITS),
    "part of a group": (part_of_a_group, ("dense",), _FILE),
    "more layers are said": (
        said("num_hidden_layers", lambda n: n + 1), ALL, "num_hidden_layers is {}, but the tensors have {}"
    ),
    "fewer layers are said": (
        said("num_hidden_layers", lambda n: n - 1), ALL, "num_hidden_layers is {}, but the tensors have {}"
    ),
    "another hidden size": (
        said("hidden_size", lambda n: 128), ALL, "hidden_size is 128, but the tensors have 64"
    ),
    "another inner width": (said("inner", lambda n: 80), ALL, "{key} is 80, but the tensors have {}"),
    "more experts are said": (
        said("num_experts", lambda n: 6), ("mixture", "stacks", "hybrid"),
        "num_experts is 6, but the tensors have 4",
    ),
    "a longer vocabulary": (said("vocab_size", lambda n: 50), ALL, "vocab_size is 50, but the tensors have 48"),
    "no heads": (said("num_attention_heads", lambda n: 0), ALL, "correct it, or get the original file"),
    "heads in words": (said("num_attention_heads", lambda n: "four"), ALL, "correct it, or get the original file"),
    "heads that don't divide": (
        said("num_attention_heads", lambda n: 5), ("encoder",), "correct it, or get the original file"
    ),
}  # fmt: skip


def refused(arguments: list[str], target: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a command that has to fail, on one line; nothing is written."""
    assert main(arguments) == 2
    out = " ".join(capsys.readouterr().err.split())
    assert not target.exists()
    assert "Traceback" not in out
    return out


@pytest.mark.parametrize(
    ("fault", "name"), [(fault, name) for fault, (_, names, _) in FAULTS.items() for name in names]
)
def test_a_folder_that_contradicts_itself(
    fault: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, (change, _, hint) = KINDS[name], FAULTS[fault]
    held, config = tensors(kind), dict(kind.config)
    words = change(kind, held, config)
    save_file(held, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    target = tmp_path / "out.gguf"
    out = refused(["convert", str(tmp_path), str(target), "--no-tokenizer"], target, capsys)
    assert re.search(words, out), out
    assert str(tmp_path) in out
    key = kind.inner if "inner" in fault else "num_hidden_layers"
    wanted = hint.replace("{key}", key)
    if "{}" in wanted:
        right = kind.config[key]
        told = (config[key], right) if wanted.count("{}") == 2 else (right,)
        wanted = wanted.format(*told)
    assert wanted in out, out


# ------------------------------------------------------------------------------------------------ a GGUF


def key(name: str, by: Callable[[Any], Any]) -> Callable[[gguf_file.File], None]:
    def change(file: gguf_file.File) -> None:
        full = f"{file.architecture}.{name}"
        file.fields[full] = replace(file.fields[full], value=by(file.fields[full].value))

    return change


def without(name: str) -> Callable[[gguf_file.File], None]:
    return lambda file: file.tensors.__delitem__(name)


def more(file: gguf_file.File) -> None:
    file.tensors["blk.0.strange.weight"] = next(t for n, t in file.tensors.items() if n.endswith("norm.weight"))


def short(name: str) -> Callable[[gguf_file.File], None]:
    def change(file: gguf_file.File) -> None:
        data = np.ascontiguousarray(np.asarray(file.tensors[name].data)[:-1])
        file.tensors[name] = replace(file.tensors[name], data=data, shape=data.shape)

    return change


_STATED = ("dense", "mixture", "hybrid")
GGUF_FAULTS: dict[str, tuple[Callable[[gguf_file.File], None], tuple[str, ...], str, str]] = {
    "a tensor is missing": (without("blk.1.attn_norm.weight"), _STATED, "1 missing: blk.1.attn_norm.weight", _FILE),
    "a stack is missing": (
        without("blk.1.ffn_up_exps.weight"), ("mixture", "hybrid"), "1 missing: blk.1.ffn_up_exps.weight", _FILE
    ),
    "a stack of too few": (
        short("blk.1.ffn_up_exps.weight"), ("mixture",), r"ffn_up_exps.weight is \[3, 32, 64\], expected \[4, 32, 64\]",
        f"the weights may belong to another model: {_FITS}",
    ),
    "an unknown tensor": (more, (*_STATED, "encoder"), "1 without a rule: blk.0.strange.weight", _FITS),
    "one tensor is short": (
        short("blk.0.ffn_up.weight"), ("dense", "encoder", "hybrid"),
        r"blk.0.ffn_up.weight is \[95, 64\], expected \[96, 64\]", f"the weights may belong to another model: {_FITS}",
    ),
    "more layers are said": (
        key("block_count", lambda n: n + 1), ("dense", "mixture", "encoder"), "missing: blk.2.",
        "the GGUF's keys may belong to another model: block_count is 3, but the tensors have 2",
    ),
    "fewer layers are said": (
        key("block_count", lambda n: 1), ("dense", "mixture", "encoder"), "without a rule: blk.1.",
        "block_count is 1, but the tensors have 2",
    ),
    "more experts are said": (
        key("expert_count", lambda n: 6), ("mixture",), r"is \[4, 64\], expected \[6, 64\]",
        "expert_count is 6, but the tensors have 4",
    ),
    "another inner width": (
        key("feed_forward_length", lambda n: 80), ("dense", "encoder"), r"is \[96, 64\], expected \[80, 64\]",
        "feed_forward_length is 80, but the tensors have 96",
    ),
    "no heads": (
        key("attention.head_count", lambda n: 0), ("dense",), "attention.head_count",
        "correct it with wb edit, or get the original file",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("good")

    def make(name: str) -> Path:
        folder, target = root / name, root / f"{name}.gguf"
        if not target.exists():
            folder.mkdir()
            save_file(tensors(KINDS[name]), folder / "model.safetensors")
            (folder / "config.json").write_text(json.dumps(KINDS[name].config))
            assert main(["convert", str(folder), str(target), "--no-tokenizer", "--dtype", "f32"]) == 0
        return target

    return make


@pytest.mark.parametrize(
    ("fault", "name"), [(fault, name) for fault, (_, names, _, _) in GGUF_FAULTS.items() for name in names]
)
def test_a_gguf_that_contradicts_itself(
    fault: str, name: str, good: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, _, words, hint = GGUF_FAULTS[fault]
    file = gguf_file.read(good(name))
    if name == "hybrid":  # its vocabulary is counted by its tokens
        import gguf

        kinds = gguf.GGUFValueType
        file.fields["tokenizer.ggml.tokens"] = gguf_file.Field(kinds.ARRAY, kinds.STRING, [f"t{n}" for n in range(48)])
    change(file)
    gguf_file.write(bad := tmp_path / "bad.gguf", file)
    capsys.readouterr()
    target = tmp_path / "out"
    out = refused(["convert", str(bad), str(target), "--to", "hf", "--no-tokenizer"], target, capsys)
    assert re.search(words, out), out
    assert str(bad) in out
    assert hint in out, out


@pytest.mark.parametrize(
    ("rule", "fault"),
    [("_fewer", "more layers are said"), ("_more", "fewer layers are said"), ("_dimensions", "another hidden size")],
)
def test_a_rule_that_sees_nothing_is_missed(
    rule: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blame, rule, lambda *_: None if rule != "_dimensions" else ())
    with pytest.raises(AssertionError):
        test_a_folder_that_contradicts_itself(fault, "dense", tmp_path, capsys)
