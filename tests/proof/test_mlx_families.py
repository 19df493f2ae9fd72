"""MLX folders of families that mlx-lm reads in a way of its own: it loads them strictly, computes what transformers (or
the publisher's forward) computes, with a cache too, and quantizes the same modules; and they lead back to the original.
Where its class computes something else the conversion is refused: each of these faults is shown in mlx-lm."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.oracles import families, models, vocabularies
from tests.oracles.case import Case
from tests.oracles.families.common import theta
from tests.oracles.models import F32
from tests.proof.test_loads import refusal

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError
from weighbridge.models.arch.registry import families as tables

if os.environ.get("CI") != "true":
    pytest.importorskip("mlx_lm", reason="MLX TARGETS WERE NOT PROVED: install requirements/oracles.txt")
pytestmark = pytest.mark.oracle
Maker = Callable[[Case], Path]
Forward = Callable[[Path, tuple[int, ...]], F32]
IDS = models.probe(vocabularies.BPE_SIZE, 40)

# ---------------------------------------------------------------------- models, and what they compute


def by_transformers(name: str = "", **settings: Any) -> Forward:
    """The logits of a class of transformers with a folder's weights; "": the one that the folder names."""

    def logits(folder: Path, ids: tuple[int, ...]) -> F32:
        import torch

        with torch.no_grad():
            out: F32 = _loaded(folder, name, **settings)(torch.tensor([ids])).logits[0].numpy()
        return out

    return logits


def _loaded(folder: Path, name: str, **settings: Any) -> Any:
    import torch
    import transformers

    config = json.loads((folder / "config.json").read_text())
    cls = getattr(transformers, name or config["architectures"][0])
    own = {key: value for key, value in config.items() if key not in ("architectures", "model_type")} | settings
    kind = {"dtype": torch.float32, "attn_implementation": "eager"}
    return cls.from_pretrained(folder, config=cls.config_class(**own), **kind).eval()


def looping(folder: Path, ids: tuple[int, ...]) -> F32:
    """Nanbeige's forward (src/models/nanbeige.cpp of llama.cpp): all layers of a Llama again and again, with its last
    norm after each turn or after the last one."""
    import torch

    config = json.loads((folder / "config.json").read_text())
    model: Any = _loaded(folder, "LlamaForCausalLM")
    turns, late = config.get("num_loops", 1), config.get("skip_loop_final_norm", False)
    norm, model.model.norm = model.model.norm, torch.nn.Identity()
    with torch.no_grad():
        x = model.model.embed_tokens(torch.tensor([ids]))
        for turn in range(turns):
            x = model.model(inputs_embeds=x).last_hidden_state
            x = norm(x) if turn == turns - 1 or not late else x
        out: F32 = model.lm_head(x)[0].numpy()
    return out


def ling(folder: Path, ids: tuple[int, ...]) -> F32:
    """Ling 3, whose queries transformers 5.23 has of full rank alone, and no attention behind the last whole group."""
    import torch
    from torch import nn

    config, stored = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    count, size = config["num_hidden_layers"], config["layer_group_size"]
    attends = [(i + 1) % size == 0 or i >= count // size * size for i in range(count)]
    kinds = [["linear_attention", "full_attention"][full] for full in attends]
    model = _loaded(folder, "BailingHybridForCausalLM", layer_types=kinds)
    for i, layer in enumerate(model.model.layers):
        ends = [f"model.layers.{i}.attention.{end}.weight" for end in ("q_a_proj", "q_a_layernorm", "q_b_proj")]
        if ends[0] in stored:
            down, norm, up = (torch.from_numpy(stored[end]) for end in ends)
            layer.self_attn.q_proj = nn.Sequential(
                nn.Linear(*down.shape[::-1], bias=False), nn.RMSNorm(len(norm), config["rms_norm_eps"]),
                nn.Linear(*up.shape[::-1], bias=False),
            )  # fmt: skip
            layer.self_attn.q_proj.load_state_dict({"0.weight": down, "1.weight": norm, "2.weight": up})
    with torch.no_grad():
        out: F32 = model(torch.tensor([ids])).logits[0].numpy()
    return out


def m3(folder: Path, ids: tuple[int, ...]) -> F32:
    """MiniMax M3's language model, whose class in transformers reads no published names."""
    import torch
    from transformers import MiniMaxM3VLForCausalLM, MiniMaxM3VLTextConfig

    told = json.loads((folder / "config.json").read_text())["text_config"]
    rotation = {"rope_theta": told.pop("rope_theta"), "partial_rotary_factor": told["rotary_dim"] / told["head_dim"]}
    config = MiniMaxM3VLTextConfig(**told, rope_parameters=rotation, attn_implementation="eager")
    model = MiniMaxM3VLForCausalLM(config)
    held = {n.removeprefix("language_model."): torch.from_numpy(t) for n, t in _files(folder).items()}
    renamed = (
        ("block_sparse_moe.e_score", "mlp.gate.e_score"),
        ("block_sparse_moe.", "mlp."),
        (".index_", ".indexer."),
    )
    for old, new in renamed:
        held = {name.replace(old, new): tensor for name, tensor in held.items()}
    for gate in [name for name in held if name.endswith(".gate_proj.weight")]:
        parts = [held.pop(gate), held.pop(gate.replace("gate_proj", "up_proj"))]
        held[gate.replace("gate_proj", "gate_up_proj")] = torch.cat(parts)
    for first in [name for name in held if name.endswith("experts.0.w1.weight")]:
        at, count = first.removesuffix("0.w1.weight"), told["num_local_experts"]
        w1, w2, w3 = ([held.pop(f"{at}{e}.w{part}.weight") for e in range(count)] for part in (1, 2, 3))
        held[f"{at}gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(w1, w3, strict=True)])
        held[f"{at}down_proj"] = torch.stack(w2)
    model.load_state_dict(held)
    with torch.no_grad():
        out: F32 = model.eval()(torch.tensor([ids])).logits[0].numpy()
    return out


def _files(folder: Path) -> dict[str, Any]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


OF = families.CASES
_APART = ("model_type", "vocab_size", "first_k_dense_replace", "rope_theta")
_SOLAR = {k: v for k, v in OF["solar-open"].options.items() if k not in _APART}
_LING = OF["ling3-plain"]
_LING_NARROW = {
    "moe_shared_expert_intermediate_size": 32
}  # transformers 5.23 has the experts' width for the shared one
_SHARED = {n: tuple(32 if s == 40 else s for s in shape) for n, shape in _LING.shapes.items()}
_LING_DEEP = {k: v for k, v in OF["ling3"].options.items() if not k.endswith("_limit_list")} | _LING_NARROW
_DEEP = {n: tuple(32 if s == 40 else s for s in shape) for n, shape in OF["ling3"].shapes.items()}
_M3 = OF["minimax-m3-vl"]
_M3_BLOCKS = {"sparse_block_size": 4, "sparse_topk_blocks": 3}

MODELS: dict[str, tuple[Case, Forward]] = {
    "dbrx": (OF["dbrx-rotated"], by_transformers()),
    "gpt2": (OF["gpt2"], by_transformers()),
    "xverse": (OF["xverse"], by_transformers("LlamaForCausalLM")),
    "nanbeige": (OF["nanbeige"], looping),
    "nanbeige, norms between": (
        replace(OF["nanbeige"], options=OF["nanbeige"].options | {"skip_loop_final_norm": False}), looping,
    ),
    "nanbeige-plain": (OF["nanbeige-plain"], looping),
    "solar-open": (Case("solar-open", "SolarOpenConfig", "none", _SOLAR | theta(5000.0),
                        spreads=OF["solar-open"].spreads), by_transformers()),
    "ling3": (replace(_LING, options=_LING.options | _LING_NARROW, shapes=_SHARED),
              ling),
    "ling3, queries of low rank and a layer more": (
        replace(OF["ling3"], options=_LING_DEEP, shapes=_DEEP, spreads=_LING.spreads), ling,
    ),
    "minimax-m3": (
        replace(_M3, shapes={n: s for n, s in _M3.shapes.items() if n.startswith("language_model.")},
                spreads=OF["minimax-m3"].spreads, options=_M3.options | {"text_config": _M3.options["text_config"] | {
                    "sparse_attention_config": _M3.options["text_config"]["sparse_attention_config"] | _M3_BLOCKS}}),
        m3,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    made: dict[str, Path] = {}

    def make(case: Case) -> Path:
        key = repr(case)
        if key not in made:
            made[key] = models.build(case, tmp_path_factory.mktemp("of") / case.name)
        return made[key]

    return make


def loaded(folder: Path) -> Any:
    from mlx_lm.utils import load_model

    return load_model(folder)[0]  # strictly


def computed(model: Any) -> tuple[F32, F32]:
    """mlx-lm's logits, of all tokens at once and with a cache, the last ones token by token."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    with mx.stream(mx.cpu):
        whole, state = model(mx.array([IDS])), make_prompt_cache(model)
        parts = [IDS[:-4], *((token,) for token in IDS[-4:])]
        steps = mx.concatenate([model(mx.array([part]), cache=state) for part in parts], axis=1)
        return np.array(whole[0].astype(mx.float32)), np.array(steps[0].astype(mx.float32))


@pytest.mark.parametrize("name", MODELS)
def test_mlx_lm_computes_what_its_publisher_does(name: str, folder_of: Maker, tmp_path: Path) -> None:
    case, forward = MODELS[name]
    wb.convert(folder_of(case), tmp_path / "mlx", to="mlx", dtype="f32")
    whole, steps = computed(loaded(tmp_path / "mlx"))
    expected = forward(folder_of(case), IDS)
    assert models.relative_error(whole, expected) < 1e-3
    assert models.relative_error(steps, expected) < 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_it_leads_back(name: str, folder_of: Maker, tmp_path: Path) -> None:
    case, _ = MODELS[name]
    wb.convert(folder_of(case), tmp_path / "mlx", to="mlx", dtype="f32")
    wb.convert(tmp_path / "mlx", tmp_path / "back", to="hf")
    before, after = _files(folder_of(case)), _files(tmp_path / "back")
    behind = f"model.layers.{case.options.get('num_hidden_layers')}."  # mlx-lm has no layers that predict more tokens
    before = {key: tensor for key, tensor in before.items() if not key.startswith(behind)}
    assert before.keys() == after.keys()
    assert [key for key, tensor in before.items() if not np.array_equal(tensor, after[key])] == []
    configs = (json.loads((path / "config.json").read_text()) for path in (folder_of(case), tmp_path / "back"))
    first, second = (config["architectures"] for config in configs)
    assert first == second


@pytest.mark.parametrize("name", MODELS)
def test_the_modules_are_quantized_that_mlx_lm_quantizes(name: str, folder_of: Maker, tmp_path: Path) -> None:
    """And mlx-lm loads that: `quant_predicate` of its class is asked."""
    case, forward = MODELS[name]
    wb.convert(folder_of(case), tmp_path / "plain", to="mlx", dtype="f32")
    wb.convert(folder_of(case), tmp_path / "mlx", to="mlx", dtype="f32", q_bits=4, q_group_size=32)
    model = loaded(tmp_path / "plain")
    predicate = getattr(model, "quant_predicate", lambda path, module: True)
    want: dict[str, tuple[int, int]] = {}
    for path, module in model.named_modules():
        if hasattr(module, "to_quantized") and not module.weight.shape[-1] % 32 and (how := predicate(path, module)):
            want[path] = (how["group_size"], how["bits"]) if isinstance(how, dict) else (32, 4)
    quantized = loaded(tmp_path / "mlx")
    found = {path: (m.group_size, m.bits) for path, m in quantized.named_modules() if hasattr(m, "bits")}
    assert found == want
    for form in ("plain", "mlx"):
        wb.convert(tmp_path / form, tmp_path / f"{form}-back", to="hf")
    assert _files(tmp_path / "plain-back").keys() == _files(tmp_path / "mlx-back").keys()
    assert models.rms_error(computed(quantized)[0], forward(folder_of(case), IDS)) < 1.0


# ---------------------------------------------------------------------- what mlx-lm's classes compute otherwise

#: Family -> a recorded model of it, and for each rule a config's change that breaks it, with what the refusal says.
REFUSED: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "bailingmoe3": ("ling3-plain", {
        "expert_swiglu_limit_list": {"expert_swiglu_limit_list": [0.0, 7.0, 7.0, 7.0]},
        "share_expert_swiglu_limit_list": {"share_expert_swiglu_limit_list": [0.0, 7.0, 7.0, 7.0]},
    }),
    "dbrx": ("dbrx-rotated", {
        "attn_config.clip_qkv": {"attn_config": {"kv_n_heads": 2, "rope_theta": 5000.0, "clip_qkv": None}},
        "attn_config.rope_theta": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 1.5}},
        "rope_parameters.rope_theta": {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
        "rope_theta": {"rope_theta": 500.0},
        "ffn_config.moe_normalize_expert_weights": {"ffn_config": {
            "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "moe_normalize_expert_weights": 2.0}},
        "ffn_config.ffn_act_fn.name": {"ffn_config": {
            "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "ffn_act_fn": {"name": "gelu"}}},
    }),
    "falcon-h1": ("falcon-h1", {"mamba_n_groups": {"mamba_n_groups": 2, "mamba_rms_norm": True}}),
    "gpt2": ("gpt2", {
        "n_inner": {"n_inner": 96}, "tie_word_embeddings": {"tie_word_embeddings": False},
        "activation_function": {"activation_function": "gelu"},
    }),
    "kimi-linear": ("kimi-linear", {"q_lora_rank": {"q_lora_rank": 24}}),
    "solar-open": ("solar-open", {"rope.rope_type": {"rope_parameters": {
        "rope_type": "yarn", "factor": 2.0, "rope_theta": 5000.0, "original_max_position_embeddings": 64}}}),
}  # fmt: skip
CHANGES = [(family, key) for family, (_, changes) in REFUSED.items() for key in changes]


def test_each_rule_has_a_change_that_breaks_it() -> None:
    rules = {
        name: {*table.refused, *(entry.config for entry in table.requires_value)}
        for name, family in tables().items()
        if (table := family.document.mlx).refused or table.requires_value
    }
    assert {family: {*changes} for family, (_, changes) in REFUSED.items()} == rules


@pytest.mark.parametrize(("family", "key"), CHANGES)
def test_a_setting_that_mlx_lm_cant_compute_is_refused(family: str, key: str, tmp_path: Path) -> None:
    from tests.fit.test_weights import write_folder

    model, changes = REFUSED[family]
    folder = write_folder(tmp_path / "model", model)
    wb.plan_convert(folder, tmp_path / "x", to="mlx").close()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes[key]))
    with pytest.raises(UnsupportedError, match=rf"mlx-lm's \w+ can't compute {key} = "):
        wb.plan_convert(folder, tmp_path / "x", to="mlx")


def test_limits_of_zero_are_none(tmp_path: Path) -> None:
    from tests.fit.test_weights import write_folder

    folder = write_folder(tmp_path / "model", "ling3-plain")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"expert_swiglu_limit_list": [0.0] * 4}))
    wb.plan_convert(folder, tmp_path / "x", to="mlx").close()


def ignores(name: str, changes: dict[str, Any], folder_of: Maker, tmp_path: Path) -> bool:
    """Whether mlx-lm computes the same with a setting as without."""
    wb.convert(folder_of(MODELS[name][0]), tmp_path / "mlx", to="mlx", dtype="f32")
    plain, _ = computed(loaded(tmp_path / "mlx"))
    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    (tmp_path / "mlx" / "config.json").write_text(json.dumps(config | changes))
    return bool(np.array_equal(computed(loaded(tmp_path / "mlx"))[0], plain))


FFN = {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("solar-open", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}}),
        ("gpt2", {"activation_function": "gelu"}),
        ("dbrx", {"ffn_config": FFN | {"moe_normalize_expert_weights": 2.0}}),
        ("dbrx", {"ffn_config": FFN | {"ffn_act_fn": {"name": "gelu"}}}),
        ("dbrx", {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}, "rope_theta": 500.0}),
        ("ling3", {"expert_swiglu_limit_list": [0.1] * 4, "share_expert_swiglu_limit_list": [0.1] * 4}),
    ],
)
def test_mlx_lm_ignores_it(name: str, changes: dict[str, Any], folder_of: Maker, tmp_path: Path) -> None:
    assert ignores(name, changes, folder_of, tmp_path)


def test_a_tied_solar_open_is_listed_as_one_that_mlx_lm_wont_load(folder_of: Maker, tmp_path: Path) -> None:
    """Its class always has an output, as GLM 4.5's."""
    case, _ = MODELS["solar-open"]
    source = folder_of(replace(case, options=case.options | {"tie_word_embeddings": True}))
    with wb.plan_convert(source, tmp_path / "mlx", to="mlx") as plan:
        assert any("mlx-lm won't load it" in loss.message for loss in plan.losses)
        plan.run()
    assert "Missing 1 parameters" in str(refusal(tmp_path / "mlx"))


@pytest.mark.parametrize("changes", [{"clip_qkv": None}, {"rope_theta": None}])
def test_mlx_lms_dbrx_needs_a_clamp_and_a_base(changes: dict[str, Any], folder_of: Maker, tmp_path: Path) -> None:
    settings = {"attn_config": {"kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 5000.0} | changes}
    with pytest.raises((TypeError, ValueError), match=r"bad operand|Neither base nor freqs"):
        ignores("dbrx", settings, folder_of, tmp_path)


@pytest.mark.parametrize("changes", [{"tie_word_embeddings": False}, {"n_inner": 96}])
def test_mlx_lms_gpt2_is_tied_and_four_times_as_wide(changes: dict[str, Any], folder_of: Maker, tmp_path: Path) -> None:
    """A folder of another GPT-2 in mlx-lm's names doesn't load."""
    case = OF["gpt2"]
    source = folder_of(replace(case, options=case.options | changes))
    (tmp_path / "mlx").mkdir()
    import mlx.core as mx

    stored = {n.replace("transformer.", "model."): t for n, t in load_file(source / "model.safetensors").items()}
    turned = {n: mx.array(t.T if "c_" in n and t.ndim == 2 else t) for n, t in stored.items()}
    mx.save_safetensors(str(tmp_path / "mlx" / "model.safetensors"), turned)
    (tmp_path / "mlx" / "config.json").write_text((source / "config.json").read_text())
    said = refusal(tmp_path / "mlx") or ""
    assert "not in model" in said or "shape" in said


# ---------------------------------------------------------------------- families without MLX names


@pytest.mark.parametrize(("name", "why"), [("olmo", "fails on a text of more than one token"), ("bitnet", "squared")])
def test_why_a_family_has_no_mlx_names_is_said(name: str, why: str, tmp_path: Path) -> None:
    from tests.fit.test_weights import write_folder

    with pytest.raises(UnsupportedError, match=f"has no MLX tensor names: .*{why}"):
        wb.plan_convert(write_folder(tmp_path / "model", name), tmp_path / "x", to="mlx")


def test_mlx_lms_olmo_fails_on_two_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mask is a word since mlx-lm's other classes hand it to a fused kernel. It also needs AI2's own package."""
    from importlib.util import find_spec, module_from_spec

    import mlx.core as mx

    spec = find_spec("mlx_lm.models.olmo")
    assert spec is not None
    assert spec.loader is not None
    olmo: Any = module_from_spec(spec)
    for name, module in {"hf_olmo": ModuleType("hf_olmo"), spec.name: olmo}.items():
        monkeypatch.setitem(sys.modules, name, module)  # and no longer for other tests
    spec.loader.exec_module(olmo)
    sizes = {"d_model": 32, "n_layers": 1, "mlp_hidden_size": 64, "n_heads": 2, "vocab_size": 9, "embedding_size": 9}
    model = olmo.Model(olmo.ModelArgs(model_type="olmo", **sizes))
    assert model(mx.array([[1]])).shape == (1, 1, 9)
    with pytest.raises(ValueError, match="inplace addition on an"):
        model(mx.array([[1, 2]]))


def test_mlx_lms_bitnet_squares_a_relu() -> None:
    """Its matrices need Metal; plain ones in their place show what is between them."""
    import mlx.core as mx
    from mlx import nn
    from mlx_lm.models import bitnet

    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "intermediate_size": 4, "num_attention_heads": 1}
    settings = sizes | {"num_key_value_heads": 1, "rms_norm_eps": 1e-6, "vocab_size": 9}
    mlp = bitnet.MLP(bitnet.ModelArgs.from_dict({"model_type": "bitnet", "hidden_act": "silu"} | settings))
    for part in ("gate_proj", "up_proj", "down_proj", "ffn_sub_norm"):
        setattr(mlp, part, nn.Identity())
    x = np.array([-2.0, -1.0, 1.0, 2.0], np.float32)
    assert np.array(mlp(mx.array(x))).tolist() == (np.maximum(x, 0) ** 2 * x).tolist()


def test_mlx_lm_reads_a_packed_bitnet_as_it_is(tmp_path: Path) -> None:
    """Transformers' BitNetForCausalLM, as an error of ours says."""
    import mlx.core as mx
    from transformers import BitNetConfig, BitNetForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BitNetConfig(**sizes, num_key_value_heads=2, vocab_size=16, tie_word_embeddings=True)
    stored = {
        n: mx.array(t.numpy()) for n, t in BitNetForCausalLM(config).state_dict().items() if n != "lm_head.weight"
    }
    for name in [name for name in stored if name.endswith("_proj.weight")]:
        rows, columns = stored[name].shape
        stored[name] = mx.zeros((rows // 4, columns), mx.uint8)
        stored[f"{name}_scale"] = mx.array([2.0])
    mx.save_safetensors(str(tmp_path / "model.safetensors"), stored)
    method = {"quant_method": "bitnet", "modules_to_not_convert": ["lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict() | {
        "architectures": ["BitNetForCausalLM"], "quantization_config": method}))  # fmt: skip
    assert refusal(tmp_path) is None
    with pytest.raises(UnsupportedError, match="no family has the architecture BitNetForCausalLM") as error:
        wb.plan_convert(tmp_path, tmp_path / "x", to="mlx")
    assert "mlx-lm reads the packed folder as it is" in str(error.value.hint)
