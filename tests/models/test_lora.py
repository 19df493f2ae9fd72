"""LoRA adapters that are wrong, or that are more than B @ A: each is refused with the tensor and the words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.oracles import gguf_file

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.cli.main import main
from weighbridge.models.arch.table import families

Q, FRONT = "model.layers.0.self_attn.q_proj", "base_model.model."
CONFIG = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_hidden_layers": 1, "hidden_size": 32,
    "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 40,
    "num_local_experts": 3, "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
Tensors = dict[str, Any]


def pair(module: str, out: int, width: int, rank: int = 2, seed: int = 0) -> Tensors:
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=shape).astype("f4") for shape in ((rank, width), (out, rank)))
    return {f"{FRONT}{module}.lora_A.weight": a, f"{FRONT}{module}.lora_B.weight": b}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A Mixtral with weights, all random."""
    family, rng = families()["llama"], np.random.default_rng(2)
    folder = tmp_path / "base"
    folder.mkdir()
    shapes = family.names("hf", family.sizes_from_hf(CONFIG))
    held = {n: rng.normal(size=s).astype("f4") for n, s in shapes.items() if not n.endswith(".bias")}
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Callable[..., Path]:
    def make(tensors: Tensors | None = None, **said: Any) -> Path:
        folder = tmp_path / "adapter"
        folder.mkdir(exist_ok=True)
        save_file(pair(Q, 32, 32) if tensors is None else tensors, folder / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(base)} | said
        (folder / "adapter_config.json").write_text(json.dumps(config))
        return folder

    return make


EXPERT = "model.layers.0.block_sparse_moe.experts.{}.w1"
WRONG: dict[str, tuple[Tensors | None, dict[str, Any], type[WeighbridgeError], str]] = {
    "another kind": (None, {"peft_type": "LOHA"}, UnsupportedError, "type LOHA"),
    "DoRA": (None, {"use_dora": True}, UnsupportedError, "use_dora is set. That is DoRA"),
    "DoRA by its tensors": ({f"{FRONT}{Q}.lora_magnitude_vector": np.ones(32, "f4")}, {}, UnsupportedError, "DoRA"),
    "biases of B": (None, {"lora_bias": True}, UnsupportedError, "lora_bias"),
    "an alpha for some": (None, {"alpha_pattern": {"q_proj": 8}}, UnsupportedError, "alpha_pattern"),
    "rsLoRA of two ranks": (
        pair(Q, 32, 32) | pair(Q.replace("q_", "o_"), 32, 32, 3), {"use_rslora": True}, UnsupportedError, "ranks",
    ),
    "a pattern that is none": (None, {"alpha_pattern": [1]}, UnsupportedError, "alpha_pattern"),
    "no pair": ({"x": np.ones(2, "f4")}, {"use_rslora": True}, FormatError, "no pair"),
    "no number": (None, {"lora_alpha": "much"}, FormatError, "lora_alpha"),
    "token ids": (None, {"alora_invocation_tokens": [1, -2]}, FormatError, "alora_invocation_tokens"),
    "no B": (
        {k: v for k, v in pair(Q, 32, 32).items() if "_A" in k}, {}, FormatError, f"{Q}.weight: .*without its B"
    ),
    "two ranks": (
        pair(Q, 32, 32) | {f"{FRONT}{Q}.lora_B.weight": np.ones((32, 3), "f4")}, {}, FormatError, "no one rank"
    ),
    "another model's": (pair(Q, 48, 32), {}, FormatError, r"q_proj.weight is \[48, 32\], expected \[32, 32\]"),
    "an unknown module": (pair("model.layers.0.x_proj", 4, 4), {}, FormatError, "without a rule: model.layers"),
    "a norm": (pair("model.norm", 4, 32), {}, FormatError, "model.norm.weight is"),
    "a whole head": (
        pair(Q, 32, 32) | {f"{FRONT}lm_head.weight": np.ones((40, 32), "f4")}, {}, UnsupportedError, "lm_head.* whole"
    ),
    "a bias": (pair(Q, 32, 32) | {f"{FRONT}{Q}.bias": np.ones(32, "f4")}, {}, UnsupportedError, "q_proj.bias whole"),
    "an expert alone": (pair(EXPERT.format(1), 64, 32), {}, FormatError, "ffn_gate_exps.*found no gate_exp.0.0"),
    "experts of two ranks": (
        {k: v for e in range(3) for k, v in pair(EXPERT.format(e), 64, 32, 2 + e).items()}, {}, UnsupportedError,
        "different ranks",
    ),
    "no base": (None, {"base_model_name_or_path": None}, UsageError, "which model it is for"),
    "a base elsewhere": (None, {"base_model_name_or_path": "somebody/model"}, UsageError, "isn't here"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_lora_for_a_gguf_is_refused(name: str, adapter: Callable[..., Path], tmp_path: Path) -> None:
    tensors, said, kind, words = WRONG[name]
    with pytest.raises(kind, match=words):
        wb.convert(adapter(tensors, **said), tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("module", ["lm_head", "model.embed_tokens"])
def test_a_tied_head_takes_no_change(module: str, adapter: Callable[..., Path], base: Path, tmp_path: Path) -> None:
    (base / "config.json").write_text(json.dumps(CONFIG | {"tie_word_embeddings": True}))
    with pytest.raises(UnsupportedError, match="one tensor"):
        wb.convert(adapter(pair(module, 40, 32)), tmp_path / "out.gguf")


def test_names_of_an_adapter_in_them_and_a_bin(adapter: Callable[..., Path], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    held = pair(Q, 32, 32)
    wb.convert(adapter(held), tmp_path / "a.gguf")
    folder = adapter({k.replace(".weight", ".default.weight"): v for k, v in held.items()})
    wb.convert(folder, tmp_path / "b.gguf")
    (folder / "adapter_model.safetensors").unlink()
    torch.save({k: torch.from_numpy(v) for k, v in held.items()}, folder / "adapter_model.bin")
    wb.convert(folder, tmp_path / "c.gguf")
    assert len({(tmp_path / f"{n}.gguf").read_bytes() for n in "abc"}) == 1


def test_invocation_tokens_are_kept(adapter: Callable[..., Path], base: Path, tmp_path: Path) -> None:
    wb.convert(adapter(alora_invocation_tokens=[3, 5]), tmp_path / "a.gguf")
    field = gguf_file.read(tmp_path / "a.gguf").fields["adapter.alora.invocation_tokens"]
    assert (field.value, field.item.name) == ([3, 5], "UINT32")
    wb.convert(tmp_path / "a.gguf", tmp_path / "back", to="hf", base=base)
    assert json.loads((tmp_path / "back" / "adapter_config.json").read_text())["alora_invocation_tokens"] == [3, 5]


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (lambda f: f.fields.pop("adapter.type"), UnsupportedError, "type None"),
        (lambda f: f.tensors.pop("blk.0.attn_q.weight.lora_a"), FormatError, "other half"),
        (lambda f: f.tensors.update(x=f.tensors["blk.0.attn_q.weight.lora_a"]), UnsupportedError, "x whole"),
    ],
)
def test_a_gguf_that_is_no_adapter(
    fault: Any, kind: type[WeighbridgeError], words: str, adapter: Callable[..., Path], base: Path, tmp_path: Path
) -> None:
    wb.convert(adapter(), tmp_path / "a.gguf")
    gguf_file.mutate(gguf_file.read(tmp_path / "a.gguf"), tmp_path / "b.gguf", fault)
    with pytest.raises(kind, match=words):
        wb.convert(tmp_path / "b.gguf", tmp_path / "back", to="hf", base=base)


def test_a_gguf_without_alpha_counts_once(adapter: Callable[..., Path], base: Path, tmp_path: Path) -> None:
    wb.convert(adapter(), tmp_path / "a.gguf")
    file = gguf_file.read(tmp_path / "a.gguf")
    del file.fields["adapter.lora.alpha"]
    gguf_file.write(tmp_path / "b.gguf", file)
    wb.convert(tmp_path / "b.gguf", tmp_path / "back", to="hf", base=base)
    said = json.loads((tmp_path / "back" / "adapter_config.json").read_text())
    assert said["lora_alpha"] == said["r"] == 2


def test_what_can_not_be_merged(adapter: Callable[..., Path], base: Path, tmp_path: Path) -> None:
    folder = adapter()
    wb.convert(base, tmp_path / "q.gguf", dtype="q8_0", tokenizer=False)
    with pytest.raises(RefusedError, match="q is quantized"):
        wb.convert(tmp_path / "q.gguf", tmp_path / "out.gguf", lora=folder)
    with pytest.raises(UsageError, match="no LoRA adapter"):
        wb.convert(base, tmp_path / "out.gguf", lora=base, tokenizer=False)
    weights = load_file(base / "model.safetensors")
    save_file({n: t for n, t in weights.items() if n != "lm_head.weight"}, base / "model.safetensors")
    with pytest.raises(UsageError, match="doesn't hold by itself"):
        wb.convert(base, tmp_path / "out", lora=adapter(pair("lm_head", 40, 32)))
    with pytest.raises(UnsupportedError, match="no tensor of its shape"):
        wb.convert(
            base, tmp_path / "out", lora=adapter({f"{FRONT}model.norm.weight": np.ones(31, "f4")} | pair(Q, 32, 32))
        )


def test_a_gguf_with_multipliers_in_its_weights_takes_no_change(adapter: Callable[..., Path], tmp_path: Path) -> None:
    """The adapter's change is of the weights without them; what no number multiplies takes it."""
    family, rng = families()["falcon-h1"], np.random.default_rng(2)
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 40, "head_dim": 8, "mamba_d_ssm": 32, "mamba_n_heads": 4,
             "mamba_d_state": 8}  # fmt: skip
    config = {"architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", **sizes, "ssm_out_multiplier": 3.0}
    (folder := tmp_path / "falcon").mkdir()
    shapes = family.names("hf", family.sizes_from_hf(config))
    held = {n: rng.normal(size=s).astype("f4") for n, s in shapes.items() if not n.endswith("mamba.norm.weight")}
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    wb.convert(folder, tmp_path / "falcon.gguf", dtype="f32", tokenizer=False)
    changed = adapter(pair("model.layers.0.mamba.out_proj", 32, 32))
    with pytest.raises(UnsupportedError, match="times a number that it doesn't say"):
        wb.convert(tmp_path / "falcon.gguf", tmp_path / "out.gguf", lora=changed)
    with pytest.raises(UnsupportedError, match="doesn't follow"):
        wb.convert(changed, tmp_path / "adapter.gguf", base=folder)
    wb.convert(folder, tmp_path / "out.gguf", dtype="f32", tokenizer=False, lora=changed)
    wb.convert(
        tmp_path / "falcon.gguf",
        tmp_path / "up.gguf",
        lora=adapter(pair("model.layers.0.feed_forward.up_proj", 64, 32)),
    )
    front = "base_model.model.model.layers.0.mamba.out_proj"
    tensors = load_file(changed / "adapter_model.safetensors")
    assert front + ".lora_A.weight" not in tensors  # the folder holds the second adapter now
    merged = gguf_file.read(tmp_path / "out.gguf").tensors["blk.0.ssm_out.weight"].data.reshape(32, 32)
    delta = pair("model.layers.0.mamba.out_proj", 32, 32)
    want = 3 * (
        held["model.layers.0.mamba.out_proj.weight"]
        + 2 * delta[f"{front}.lora_B.weight"] @ delta[f"{front}.lora_A.weight"]
    )
    np.testing.assert_allclose(merged.view("<f4").reshape(32, 32), want, rtol=1e-4, atol=1e-4)


def test_whole_tensors_take_their_place(adapter: Callable[..., Path], base: Path, tmp_path: Path) -> None:
    head = np.full((40, 32), 2.5, "f4")
    wb.convert(base, tmp_path / "out", lora=adapter({f"{FRONT}lm_head.modules_to_save.weight": head} | pair(Q, 32, 32)))
    assert np.array_equal(load_file(tmp_path / "out" / "model.safetensors")["lm_head.weight"], head)


def test_the_command(
    adapter: Callable[..., Path], base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = adapter(base_model_name_or_path="somebody/model")
    target = tmp_path / "a.gguf"
    assert main(["convert", str(folder), str(target), "--base", str(base)]) == 0
    assert main(["convert", str(base), str(tmp_path / "m"), "--lora", str(target), "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out.partition("\n{")[2].join(("{", "")))
    work = {t["name"]: t["how"] for f in plan["files"] for t in f["tensors"]}
    assert {n for n, how in work.items() if how == "merge"} == {f"{Q}.weight"}
    assert set(work.values()) == {"copy", "merge"}


@pytest.mark.parametrize(
    ("tensors", "said", "kind", "words"),
    [
        ({}, {"fine_tune_type": "dora"}, UnsupportedError, "trained as 'dora'"),
        ({f"{Q}.m": np.ones(32, "f4")}, {}, UnsupportedError, "no part of a LoRA"),
        ({f"{Q}.lora_a": np.ones((32, 2), "f4")}, {}, FormatError, "other half"),
        ({f"{Q}.lora_b": np.ones((3, 32), "f4")}, {}, FormatError, "no one rank"),
        ({}, {"lora_parameters": {"scale": None}}, FormatError, "lora_parameters.scale"),
        ({}, {"lora_parameters": []}, FormatError, "lora_parameters.scale"),
        (
            {"model.norm.lora_a": np.ones((32, 2), "f4"), "model.norm.lora_b": np.ones((2, 1), "f4")}, {}, FormatError,
            "model.norm",
        ),
    ],
)  # fmt: skip
def test_mlx_adapters_that_are_refused(
    tensors: Tensors, said: Any, kind: type[WeighbridgeError], words: str, base: Path, tmp_path: Path
) -> None:
    whole = {f"{Q}.lora_a": np.ones((32, 2), "f4"), f"{Q}.lora_b": np.ones((2, 32), "f4")}
    folder = tmp_path / "mlx"
    folder.mkdir()
    held = tensors if "lora_a" in "".join(tensors) and len(tensors) == 1 else whole | tensors
    save_file(held, folder / "adapters.safetensors")
    config = {"lora_parameters": {"rank": 2, "scale": 2.0}, "model": str(base)} | said
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(kind, match=words):
        wb.convert(folder, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
