"""Checkpoints with MaxText's parameters become the models of transformers that they are made from. `maxtext_tree`
writes the layout that MaxText's own converters read (models/maxtext_roles.py); MaxText isn't run."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.golden_files import extracted, tensor_bytes
from tests.models.role_rows import remove_row

import weighbridge as wb
from weighbridge.base.errors import FormatError, WeighbridgeError
from weighbridge.models import keras_roles, maxtext_roles, megatron_roles, wrapped
from weighbridge.models.arch import registry
from weighbridge.models.keras_roles import plain_path

GOLDEN = Path(__file__).with_name("golden") / "keras_roles.zip"
Tree = dict[str, NDArray[Any]]
LAYER = {
    "pre_self_attention_layer_norm.scale": "input_layernorm", "mlp.wi_0.kernel": "mlp.gate_proj",
    "post_self_attention_layer_norm.scale": "post_attention_layernorm", "mlp.wi_1.kernel": "mlp.up_proj",
    "self_attention.query.kernel": "self_attn.q_proj", "mlp.wo.kernel": "mlp.down_proj",
    "self_attention.key.kernel": "self_attn.k_proj", "self_attention.query_norm.scale": "self_attn.q_norm",
    "self_attention.value.kernel": "self_attn.v_proj", "self_attention.key_norm.scale": "self_attn.k_norm",
    "self_attention.out.kernel": "self_attn.o_proj", "MoeBlock_0.gate.kernel": "block_sparse_moe.gate",
}  # fmt: skip
EXPERT = {"MoeBlock_0.wi_0": "w1", "MoeBlock_0.wi_1": "w3", "MoeBlock_0.wo": "w2"}
CASES = [(case, scan, pairs) for case in ("llama", "mistral", "mixtral", "qwen3", "tied") for scan in (True, False)
         for pairs in ((False, True) if case == "llama" else (False,))]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = extracted(GOLDEN, tmp_path_factory.mktemp("maxtext"))
    for config in top.glob("*/config.json"):  # a model with rotary pairs is the same but for its config
        settings = json.loads(config.read_text())
        if settings["model_type"] == "llama":
            paired = top / f"{config.parent.name}-pairs"
            shutil.copytree(config.parent, paired)
            scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                       "original_max_position_embeddings": 8192, "rope_theta": 5e5}  # fmt: skip
            settings.pop("rope_parameters", None)
            (paired / "config.json").write_text(json.dumps(settings | {"rope_scaling": scaling, "rope_theta": 5e5}))
    return top


def as_maxtext(name: str, weight: NDArray[Any], config: dict[str, Any], pairs: bool) -> NDArray[Any]:
    """A layer's parameter in MaxText's layout."""
    if weight.ndim == 1:
        return weight
    if "self_attention" not in name:
        return weight.T
    if ".out." in name:
        return weight.T.reshape(config["num_attention_heads"], -1, len(weight))
    heads = config["num_attention_heads" if "query" in name else "num_key_value_heads"]
    kernel = weight.T.reshape(weight.shape[1], heads, -1)
    if pairs and "value" not in name:  # rows 0, size/2, 1, size/2 + 1 ...
        kernel = np.stack(np.split(kernel, 2, axis=-1), axis=-1).reshape(kernel.shape)
    if "query" in name and config["model_type"] != "qwen3":
        kernel = kernel / np.float32(math.sqrt(kernel.shape[-1]))
    return kernel


def maxtext_tree(folder: Path, scan: bool, pairs: bool = False) -> Tree:
    config = json.loads((folder / "config.json").read_text())
    with wb.open(folder) as model:
        stored = {name: model[name].numpy() for name in model}
    layers: list[Tree] = []
    for layer in range(config["num_hidden_layers"]):
        front = f"model.layers.{layer}."
        named = {mine: stored.get(f"{front}{theirs}.weight") for mine, theirs in LAYER.items()}
        layers.append({k: as_maxtext(k, v, config, pairs) for k, v in named.items() if v is not None})
        for mine, theirs in EXPERT.items():
            each = [stored.get(f"{front}block_sparse_moe.experts.{e}.{theirs}.weight") for e in range(3)]
            if each[0] is not None:
                layers[-1][mine] = np.stack([expert.T for expert in each if expert is not None])
    padded = np.concatenate([stored["model.embed_tokens.weight"], np.ones((6, config["hidden_size"]), np.float32)])
    tree: Tree = {"token_embedder.embedding": padded, "decoder.decoder_norm.scale": stored["model.norm.weight"]}
    if "lm_head.weight" in stored:
        tree["decoder.logits_dense.kernel"] = stored["lm_head.weight"].T
    for name in layers[0]:
        if scan:
            tree[f"decoder.layers.{name}"] = np.stack([layer[name] for layer in layers], axis=1)
        else:
            tree |= {f"decoder.layers_{n}.{name}": layer[name] for n, layer in enumerate(layers)}
    return {f"params.params.{name}": np.ascontiguousarray(array) for name, array in tree.items()}


def saved(tree: Tree, path: Path) -> Path:
    wb.save({**tree, "opt_state.0.count": np.zeros((), np.int32)}, path)
    return path


@pytest.mark.parametrize(("case", "scan", "pairs"), CASES)
def test_a_folder_has_the_tensors_of_transformers(
    case: str, scan: bool, pairs: bool, root: Path, tmp_path: Path
) -> None:
    source = root / (f"{case}-pairs" if pairs else case)
    path = saved(maxtext_tree(source, scan, pairs), tmp_path / "maxtext.safetensors")
    result = wb.convert(path, tmp_path / "out", to="hf", config=source)
    assert tensor_bytes(tmp_path / "out") == tensor_bytes(source)
    assert any("MaxText's names are replaced" in note for note in result.notes)
    assert any("are multiplied by" in note for note in result.notes) == (case != "qwen3")


@pytest.mark.parametrize("case", ["llama", "mixtral", "qwen3"])
@pytest.mark.parametrize("target", ["gguf", "mlx"])
def test_other_targets_are_those_of_transformers_folder(case: str, target: str, root: Path, tmp_path: Path) -> None:
    path = saved(maxtext_tree(root / case, scan=True), tmp_path / "maxtext.safetensors")
    options: dict[str, Any] = {"to": "gguf", "tokenizer": False} if target == "gguf" else {"to": "mlx"}
    end = ".gguf" if target == "gguf" else ""
    wb.convert(path, tmp_path / f"mine{end}", config=root / case, **options)
    wb.convert(root / case, tmp_path / f"theirs{end}", **options)
    assert tensor_bytes(tmp_path / f"mine{end}") == tensor_bytes(tmp_path / f"theirs{end}")


_GEMMA: dict[str, Any] = {
    "vocab_size": 20, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
    "intermediate_size": 32, "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "sliding_window": 32,
    "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 4, "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}  # fmt: skip
GEMMA: dict[str, dict[str, Any]] = {
    "gemma2": {**_GEMMA, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "num_hidden_layers": 4,
               "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": {**_GEMMA, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 14,
               "sliding_window_pattern": 6, "rope_local_base_freq": 10000.0},
}  # fmt: skip
_OF_GEMMA = {
    "input_layernorm": "pre_self_attention_norm.scale", "post_attention_layernorm": "post_self_attention_norm.scale",
    "pre_feedforward_layernorm": "pre_ffw_norm.scale", "post_feedforward_layernorm": "post_ffw_norm.scale",
    "self_attn.q_norm": "self_attention.query_norm.scale", "self_attn.k_norm": "self_attention.key_norm.scale",
    "self_attn.q_proj": "self_attention.query.kernel", "self_attn.k_proj": "self_attention.key.kernel",
    "self_attn.v_proj": "self_attention.value.kernel", "self_attn.o_proj": "self_attention.out.kernel",
    "mlp.gate_proj": "mlp.wi_0.kernel", "mlp.up_proj": "mlp.wi_1.kernel", "mlp.down_proj": "mlp.wo.kernel",
}  # fmt: skip


def gemma_folder(folder: Path, case: str) -> Tree:
    """A model whose numbers are exact sixty-fourths: sums with 1 and products with 4, the root of 16, are exact."""
    config, rng = GEMMA[case], np.random.default_rng(5)
    family = registry.family_of_hf(config)
    places = family.expansion("hf", family.sizes_from_hf(config), family.dialect("hf").prefixes[0]).places
    model = {n: (rng.integers(-99, 99, p.shape) / 64).astype(np.float32) for n, p in places.items() if p.need is None}
    folder.mkdir()
    wb.save(model, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return model


def gemma_tree(model: Tree, case: str, scan: bool) -> Tree:
    """MaxText's parameters: GEMMA2_ and GEMMA3_MAXTEXT_TO_HF_PARAM_MAPPING and their hooks, the other way round."""
    config = GEMMA[case]
    tree: Tree = {"token_embedder.embedding": model["model.embed_tokens.weight"] * np.float32(4),
                  "decoder.decoder_norm.scale": model["model.norm.weight"] + np.float32(1)}  # fmt: skip
    stacks: dict[str, list[NDArray[Any]]] = {}
    count = config["num_hidden_layers"]
    for layer in range(count):
        for theirs, mine in _OF_GEMMA.items():
            weight = model.get(f"model.layers.{layer}.{theirs}.weight")
            if weight is None:
                continue
            if weight.ndim == 1:
                array = weight + np.float32(1)
            elif "self_attention" not in mine:
                array = weight.T
            elif ".out." in mine:
                array = weight.T.reshape(4, -1, len(weight))
            else:
                array = weight.T.reshape(weight.shape[1], 4 if "query" in mine else 2, -1)
            if "query.kernel" in mine and case == "gemma2":
                array = array / np.float32(2)
            if case == "gemma2":
                first, _, rest = mine.partition(".")
                name, block = f"{first}{('_local', '_global')[layer % 2]}.{rest}", layer // 2
                if scan:
                    stacks.setdefault(f"decoder.layers.{name}", []).append(array)
                else:
                    tree[f"decoder.layers_{block}.{name}"] = array
            elif not scan:
                tree[f"decoder.layers_{layer}.{mine}"] = array
            elif layer >= count // 6 * 6:
                tree[f"decoder.layers_remainder.layers_{layer % 6}.{mine}"] = array
            else:
                stacks.setdefault(f"decoder.layers.layers_{layer % 6}.{mine}", []).append(array)
    tree |= {name: np.stack(arrays, axis=1) for name, arrays in stacks.items()}
    return {f"params.params.{name}": np.ascontiguousarray(array) for name, array in tree.items()}


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("case", GEMMA)
def test_gemma_has_the_tensors_of_transformers(case: str, scan: bool, tmp_path: Path) -> None:
    model = gemma_folder(tmp_path / "hf", case)
    path = saved(gemma_tree(model, case, scan), tmp_path / "maxtext.safetensors")
    result = wb.convert(path, tmp_path / "out", to="hf", config=tmp_path / "hf")
    assert tensor_bytes(tmp_path / "out") == tensor_bytes(tmp_path / "hf")
    assert any("the norms are stored plus 1" in note for note in result.notes)
    wb.convert(path, tmp_path / "mine.gguf", config=tmp_path / "hf", tokenizer=False)
    wb.convert(tmp_path / "hf", tmp_path / "theirs.gguf", tokenizer=False)
    assert tensor_bytes(tmp_path / "mine.gguf") == tensor_bytes(tmp_path / "theirs.gguf")


@pytest.mark.parametrize(
    ("kind", "row", "case"),
    [*((kind, case, case) for kind in ("repeated", "families") for case in GEMMA),
     ("vectors", "attn_post_norm", "gemma2"), ("vectors", "ffn_post_norm", "gemma3")],
)  # fmt: skip
def test_each_row_of_gemma_counts(
    kind: str, row: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_row(monkeypatch, maxtext_roles, "maxtext_roles", kind, row)
    path = saved(gemma_tree(gemma_folder(tmp_path / "hf", case), case, scan=True), tmp_path / "maxtext.safetensors")
    with contextlib.suppress(WeighbridgeError):
        wb.convert(path, tmp_path / "out", to="hf", config=tmp_path / "hf")
        assert tensor_bytes(tmp_path / "out") != tensor_bytes(tmp_path / "hf")


@pytest.mark.parametrize(("case", "root"), [("gemma2", 24**0.5), ("gemma3", 4.90625)])  # as F32, as BF16
def test_the_embedding_is_divided_by_the_root_of_its_width(
    case: str, root: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GEMMA, case, {**GEMMA[case], "hidden_size": 24})
    model = gemma_folder(tmp_path / "hf", case)
    tree = gemma_tree(model, case, scan=True)
    tree["params.params.token_embedder.embedding"] *= np.float32(root / 4)
    path = saved(tree, tmp_path / "maxtext.safetensors")
    with wb.open(path, config=tmp_path / "hf", names="hf") as found:
        embedding = found["model.embed_tokens.weight"].numpy()
    assert np.allclose(embedding, model["model.embed_tokens.weight"], rtol=1e-6, atol=0)


@pytest.mark.parametrize(("value", "bf16"), [(4.0, 4.0), (33.941125, 34.0), (50.596443, 50.5), (61.967734, 62.0)])
def test_the_factor_of_an_embedding_is_rounded(value: float, bf16: float) -> None:
    assert maxtext_roles.rounded(value, "BF16") == bf16
    assert maxtext_roles.rounded(value, "F32") == float(np.float32(value))


def test_padding_and_the_optimizer_are_listed(root: Path, tmp_path: Path) -> None:
    path = saved(maxtext_tree(root / "llama", scan=True), tmp_path / "maxtext.safetensors")
    plan = wb.plan_convert(path, tmp_path / "out", to="hf", config=root / "llama")
    lost = {str(loss.tensor): loss.message for loss in plan.losses}
    assert "optimizer" in lost["opt_state.0.count"]
    assert "rows beyond the vocabulary" in lost["params.params.token_embedder.embedding"]


def test_another_model_s_config_is_refused(root: Path, tmp_path: Path) -> None:
    path = saved(maxtext_tree(root / "llama", scan=True), tmp_path / "maxtext.safetensors")
    with pytest.raises(FormatError, match="shape differs"):
        wb.convert(path, tmp_path / "out", to="hf", config=root / "qwen3")
    assert not (tmp_path / "out").exists()


ROWS = [
    *((kind, role, {"router": "mixtral"}.get(role, "qwen3")) for kind in ("outside", "vectors", "matrices")
      for role in getattr(maxtext_roles.maxtext_roles(), kind) if role != "embed" and not role.endswith("post_norm")),
    *(("experts", role, "mixtral") for role in maxtext_roles.maxtext_roles().experts),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "role", "case"), ROWS)
def test_each_row_counts(
    kind: str, role: str, case: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its row a role has no tensor."""
    remove_row(monkeypatch, maxtext_roles, "maxtext_roles", kind, role)
    path = saved(maxtext_tree(root / case, scan=True), tmp_path / "maxtext.safetensors")
    with contextlib.suppress(WeighbridgeError):
        wb.convert(path, tmp_path / "out", to="hf", config=root / case)
        assert tensor_bytes(tmp_path / "out") != tensor_bytes(root / case)


def test_models_of_other_programs_are_recognised_by_a_row_of_their_table() -> None:
    """Whether a model has such a tensor is asked of every model, before the table is read."""
    assert maxtext_roles.maxtext_roles().outside["embed"] == wrapped._MAXTEXT_EMBEDDING
    assert keras_roles.keras_roles().variables["embed"] == plain_path(wrapped._KERAS_EMBEDDING)
    assert megatron_roles._EMBEDDING.endswith(wrapped._EMBEDDING)
