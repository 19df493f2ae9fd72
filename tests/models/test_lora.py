"""LoRA adapters that are wrong, or that are more than B @ A: each is refused with the tensor and the words."""

from __future__ import annotations

import json
import shutil
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
from weighbridge.models.arch.registry import families

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
    "DoRA": (
        pair(Q, 32, 32) | {f"{FRONT}{Q}.lora_magnitude_vector": np.ones(32, "f4")}, {"use_dora": True},
        UnsupportedError, f"{Q}.weight: DoRA sets the length of each row .* isn't B @ A, .* this format can't store it",
    ),
    "DoRA without lengths": (None, {"use_dora": True}, FormatError, f"{Q}.weight: use_dora is set.*found none"),
    "lengths without a pair": (
        pair(Q, 32, 32) | {f"{FRONT}{Q}2.lora_magnitude_vector": np.ones(32, "f4")}, {}, FormatError,
        f"{Q}2.weight: row lengths .DoRA. without a pair",
    ),
    "lengths of other rows": (
        pair(Q, 32, 32) | {f"{FRONT}{Q}.lora_magnitude_vector": np.ones(31, "f4")}, {}, FormatError,
        r"don't match the pair .expected \[32\], found \[31\]",
    ),
    "biases of B": (None, {"lora_bias": True}, UnsupportedError, "lora_bias"),
    "a pattern without an end": (None, {"alpha_pattern": {"(a+)+b": 8}}, UnsupportedError, "unbounded backtracking"),
    "a pattern that can't be": (None, {"alpha_pattern": {"[q": 8}}, FormatError, r"alpha_pattern.\[q: isn't a valid p"),
    "an alpha that is none": (None, {"alpha_pattern": {"q_proj": "x"}}, FormatError, "alpha_pattern.q_proj"),
    "no patterns": (None, {"alpha_pattern": [1]}, FormatError, "alpha_pattern: isn't a mapping"),
    "no pair": ({"x": np.ones(2, "f4")}, {"use_rslora": True}, FormatError, "no LoRA pairs"),
    "no number": (None, {"lora_alpha": "much"}, FormatError, "lora_alpha"),
    "token ids": (None, {"alora_invocation_tokens": [1, -2]}, FormatError, "alora_invocation_tokens"),
    "no B": (
        {k: v for k, v in pair(Q, 32, 32).items() if "_A" in k}, {}, FormatError, f"{Q}.weight: .*without its B"
    ),
    "two ranks": (
        pair(Q, 32, 32) | {f"{FRONT}{Q}.lora_B.weight": np.ones((32, 3), "f4")}, {}, FormatError, "different ranks"
    ),
    "another model's": (pair(Q, 48, 32), {}, FormatError, r"q_proj.weight is \[48, 32\], expected \[32, 32\]"),
    "an unknown module": (pair("model.layers.0.x_proj", 4, 4), {}, FormatError, "without a rule: model.layers"),
    "a norm": (pair("model.norm", 4, 32), {}, FormatError, "model.norm.weight is"),
    "a whole head": (
        pair(Q, 32, 32) | {f"{FRONT}lm_head.weight": np.ones((40, 32), "f4")}, {}, UnsupportedError, "tensor lm_head"
    ),
    "a bias": (pair(Q, 32, 32) | {f"{FRONT}{Q}.bias": np.ones(32, "f4")}, {}, UnsupportedError, "tensor .*q_proj.bias"),
    "an expert alone": (pair(EXPERT.format(1), 64, 32), {}, FormatError, "ffn_gate_exps.*found no gate_exp.0.0"),
    "experts of two ranks": (
        {k: v for e in range(3) for k, v in pair(EXPERT.format(e), 64, 32, 2 + e).items()}, {}, UnsupportedError,
        "different ranks",
    ),
    "no base": (None, {"base_model_name_or_path": None}, UsageError, "doesn't name its base model"),
    "a base elsewhere": (None, {"base_model_name_or_path": "somebody/model"}, UsageError, "wasn't found"),
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
    with pytest.raises(UnsupportedError, match="are tied"):
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
        (lambda f: f.tensors.pop("blk.0.attn_q.weight.lora_a"), FormatError, "half of an adapter"),
        (lambda f: f.tensors.update(x=f.tensors["blk.0.attn_q.weight.lora_a"]), UnsupportedError, "full tensor x"),
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
    with pytest.raises(UsageError, match="isn't a LoRA adapter"):
        wb.convert(base, tmp_path / "out.gguf", lora=base, tokenizer=False)
    weights = load_file(base / "model.safetensors")
    save_file({n: t for n, t in weights.items() if n != "lm_head.weight"}, base / "model.safetensors")
    with pytest.raises(UsageError, match="doesn't store separately"):
        wb.convert(base, tmp_path / "out", lora=adapter(pair("lm_head", 40, 32)))
    with pytest.raises(UnsupportedError, match="no such tensor of its shape"):
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
    changed = adapter(pair("model.layers.0.mamba.out_proj", 32, 32), base_model_name_or_path=None)
    with pytest.raises(UnsupportedError, match="by an unknown factor"):
        wb.convert(tmp_path / "falcon.gguf", tmp_path / "out.gguf", lora=changed)
    with pytest.raises(UnsupportedError, match="can't be converted"):
        wb.convert(changed, tmp_path / "adapter.gguf", base=folder)
    wb.convert(folder, tmp_path / "out.gguf", dtype="f32", tokenizer=False, lora=changed)
    wb.convert(
        tmp_path / "falcon.gguf",
        tmp_path / "up.gguf",
        lora=adapter(pair("model.layers.0.feed_forward.up_proj", 64, 32), base_model_name_or_path=None),
    )
    front = "base_model.model.model.layers.0.mamba.out_proj"
    tensors = load_file(changed / "adapter_model.safetensors")
    assert front + ".lora_A.weight" not in tensors  # the folder holds the second adapter now
    merge_adapter = gguf_file.read(tmp_path / "out.gguf").tensors["blk.0.ssm_out.weight"].data.reshape(32, 32)
    delta = pair("model.layers.0.mamba.out_proj", 32, 32)
    want = 3 * (
        held["model.layers.0.mamba.out_proj.weight"]
        + 2 * delta[f"{front}.lora_B.weight"] @ delta[f"{front}.lora_A.weight"]
    )
    np.testing.assert_allclose(merge_adapter.view("<f4").reshape(32, 32), want, rtol=1e-4, atol=1e-4)


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
        ({f"{Q}.m": np.ones(32, "f4")}, {}, UnsupportedError, "isn't part of a LoRA"),
        ({f"{Q}.lora_a": np.ones((32, 2), "f4")}, {}, FormatError, "half of an adapter"),
        ({f"{Q}.lora_b": np.ones((3, 32), "f4")}, {}, FormatError, "different ranks"),
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


# ------------------------------------------------------------------------------------------------ what counts otherwise


def changed(base: Path, adapter: Path, out: Path) -> dict[str, Any]:
    """What merging adds to each tensor that it changes."""
    wb.convert(base, out, lora=adapter)
    before, after = load_file(base / "model.safetensors"), load_file(out / "model.safetensors")
    return {n: after[n] - t for n, t in before.items() if not np.array_equal(after[n], t)}


MODULES = tuple(Q.replace("q_proj", f"{x}_proj") for x in "qko")


@pytest.mark.parametrize(
    ("said", "alphas"),
    [
        ({"alpha_pattern": {"k_proj": 10}}, (4, 10, 4)),
        ({"alpha_pattern": {r"layers\.0\.self_attn\.[qk]_proj": 10, "q_proj": 3}}, (10, 10, 4)),
        ({"alpha_pattern": {"proj": 10}}, (4, 4, 4)),  # no module is called so
        ({"use_rslora": True}, (4 * 2**0.5, 4 * 2**0.5, 4 * 3**0.5)),
        ({"use_rslora": True, "alpha_pattern": {"o_proj": 0}}, (4 * 2**0.5, 4 * 2**0.5, 0)),
    ],
)
def test_modules_may_count_differently(said: Any, alphas: Any, adapter: Any, base: Path, tmp_path: Path) -> None:
    q, k, o = MODULES
    pairs = [pair(q, 32, 32), pair(k, 16, 32, seed=1), pair(o, 32, 32, 3, seed=2)]
    folder = adapter(pairs[0] | pairs[1] | pairs[2], **said)
    found = changed(base, folder, tmp_path / "merged")
    wb.convert(folder, gguf := tmp_path / "a.gguf")
    again = changed(base, gguf, tmp_path / "from-gguf")
    for module, one, alpha in zip(MODULES, pairs, alphas, strict=True):
        a, b = one[f"{FRONT}{module}.lora_A.weight"], one[f"{FRONT}{module}.lora_B.weight"]
        want = alpha / len(a) * b @ a
        for merge_adapter in (found, again):
            assert np.allclose(merge_adapter.get(f"{module}.weight", 0), want, rtol=1e-4, atol=1e-5), module


def test_dora_gives_rows_their_lengths(adapter: Any, base: Path, tmp_path: Path) -> None:
    """peft 0.21, tuners/lora/dora.py: magnitude / |W + s B A| by rows, times W + s B A."""
    lengths = np.random.default_rng(5).uniform(0.5, 2, 32).astype("f4")
    one = pair(Q, 32, 32)
    folder = adapter(one | {f"{FRONT}{Q}.lora_magnitude_vector": lengths}, use_dora=True)
    wb.convert(base, tmp_path / "out", lora=folder)
    before, after = (load_file(f / "model.safetensors")[f"{Q}.weight"] for f in (base, tmp_path / "out"))
    want = before + 2 * one[f"{FRONT}{Q}.lora_B.weight"] @ one[f"{FRONT}{Q}.lora_A.weight"]
    want *= (lengths / np.linalg.norm(want, axis=1))[:, None]
    assert np.allclose(after, want, rtol=1e-5, atol=1e-6)
    table = {
        f"{FRONT}model.embed_tokens.lora_embedding_{x}": np.ones(s, "f4") for x, s in (("A", (2, 40)), ("B", (32, 2)))
    }
    folder = adapter(table | {f"{FRONT}model.embed_tokens.lora_magnitude_vector": np.ones(32, "f4")}, use_dora=True)
    with pytest.raises(UnsupportedError, match="lengths of columns"):
        wb.convert(base, tmp_path / "out2", lora=folder)


EXPERTS = "model.layers.0.mlp.experts"


@pytest.fixture
def stacked(tmp_path: Path) -> Path:
    """A Qwen 3 mixture in transformers 5's stacks: three experts of [2 * 48, 32] and [32, 48]."""
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 1, "num_experts": 3,
        "num_experts_per_tok": 2, "hidden_size": 32, "moe_intermediate_size": 48, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 40,
    }  # fmt: skip
    family, rng = families()["qwen3moe"], np.random.default_rng(2)
    folder = tmp_path / "stacked"
    folder.mkdir()
    shapes = family.names("hf5", family.sizes_from_hf(config))
    save_file({n: rng.normal(size=s).astype("f4") for n, s in shapes.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def wrapped(name: str, outer: int, inner: int, seed: int) -> Tensors:
    """A pair of rank 2 for three experts, as `ParamWrapper` has it."""
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=shape).astype("f4") for shape in ((6, inner), (outer, 6)))
    return {f"{FRONT}{name}.lora_A.weight": a, f"{FRONT}{name}.lora_B.weight": b}


def deltas(one: Tensors) -> Any:
    """peft 0.21, `ParamWrapper.get_delta_weight`, at a scale of 2: [experts, out, in]."""
    a, b = one.values()
    return 2 * np.einsum("ore,eri->eoi", b.reshape(len(b), -1, 3), a.reshape(3, -1, a.shape[1]))


def test_parameters_of_experts_are_told_by_their_shapes(stacked: Path, adapter: Any, tmp_path: Path) -> None:
    up, down = wrapped(f"{EXPERTS}.base_layer", 96, 32, 1), wrapped(EXPERTS, 32, 48, 2)
    named = {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
    folder = adapter(up | down, base_model_name_or_path=str(stacked), **named)
    wb.convert(folder, gguf := tmp_path / "a.gguf")
    for number, form in enumerate((folder, gguf)):
        found = changed(stacked, form, tmp_path / f"{number}")
        assert np.allclose(found[f"{EXPERTS}.gate_up_proj"], deltas(up), rtol=1e-4, atol=1e-5)
        assert np.allclose(found[f"{EXPERTS}.down_proj"], deltas(down), rtol=1e-4, atol=1e-5)
    # before 0.19 the other way round
    old = wrapped(EXPERTS, 48, 32, 3)
    folder = adapter(old, base_model_name_or_path=str(stacked), **named)
    found = changed(stacked, folder, tmp_path / "old")
    assert np.allclose(found[f"{EXPERTS}.down_proj"], deltas(old).transpose(0, 2, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("version", "turned"), [("0.18.1", True), ("0.19.0", False), ("0.21.2.dev0", False), (None, None)]
)
def test_square_experts_are_told_by_the_version(
    version: str | None, turned: bool | None, stacked: Path, adapter: Any, tmp_path: Path
) -> None:
    config = json.loads((stacked / "config.json").read_text()) | {"moe_intermediate_size": 32}
    (stacked / "config.json").write_text(json.dumps(config))
    family = families()["qwen3moe"]
    shapes = family.names("hf5", family.sizes_from_hf(config))
    save_file({n: np.ones(s, "f4") for n, s in shapes.items()}, stacked / "model.safetensors")
    one = wrapped(EXPERTS, 32, 32, 1)
    folder = adapter(one, base_model_name_or_path=str(stacked), peft_version=version)
    if turned is None:
        with pytest.raises(UnsupportedError, match="its matrices are square"):
            wb.convert(folder, tmp_path / "a.gguf")
        return
    found = changed(stacked, folder, tmp_path / "out")[f"{EXPERTS}.down_proj"]
    want = deltas(one).transpose(0, 2, 1) if turned else deltas(one)
    assert np.allclose(found, want, rtol=1e-4, atol=1e-5)


def test_a_pair_of_no_stack_is_refused(stacked: Path, adapter: Any, tmp_path: Path) -> None:
    for one in (wrapped(EXPERTS, 40, 32, 1), pair(EXPERTS, 32, 48, 4)):
        with pytest.raises(FormatError, match=f"without a rule: {EXPERTS}.weight"):
            wb.convert(adapter(one, base_model_name_or_path=str(stacked)), tmp_path / "a.gguf")
    twice = wrapped(EXPERTS, 32, 48, 1) | wrapped(f"{EXPERTS}.base_layer", 32, 48, 2)
    with pytest.raises(FormatError, match="two pairs are for one tensor"):
        wb.convert(adapter(twice, base_model_name_or_path=str(stacked)), tmp_path / "a.gguf")


def test_an_adapter_in_the_place_of_a_target_is_not_overwritten(
    base: Path, adapter: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = adapter()
    files = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert main(["merge", str(base), str(folder), "--overwrite", "--replace-folder"]) == 2
    assert f"wb merge {base} {folder} DST" in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == files


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_merge_of_a_model_and_an_adapter_is_the_conversion_with_lora(
    base: Path, adapter: Callable[..., Path], tmp_path: Path, order: tuple[int, int]
) -> None:
    paths = [base, adapter()]
    wb.merge([paths[n] for n in order], f"{tmp_path / 'merged'}/")
    wb.convert(base, f"{tmp_path / 'converted'}/", to="hf", lora=paths[1])
    merged, converted = (tmp_path / name / "model.safetensors" for name in ("merged", "converted"))
    assert load_file(merged).keys() == load_file(converted).keys()
    for name, values in load_file(converted).items():
        np.testing.assert_array_equal(load_file(merged)[name], values, err_msg=name)


def test_several_adapters_add_up(base: Path, adapter: Callable[..., Path], tmp_path: Path) -> None:
    """In F32, and rounded once: two of the same change the weights by twice as much."""
    first = adapter()
    shutil.copytree(first, tmp_path / "second")
    wb.merge([base, first, tmp_path / "second"], f"{tmp_path / 'two'}/", dtype="f32")
    wb.convert(base, f"{tmp_path / 'one'}/", to="hf", lora=first, dtype="f32")
    wb.convert(base, f"{tmp_path / 'none'}/", to="hf", dtype="f32")
    two, one, none = (load_file(tmp_path / name / "model.safetensors") for name in ("two", "one", "none"))
    assert any((one[name] != none[name]).any() for name in none)
    for name in none:
        np.testing.assert_allclose(two[name] - none[name], 2 * (one[name] - none[name]), atol=2e-6)


OF_IMAGES = "model.diffusion_model.input_blocks.0.0.weight"
NOT_A_MODEL: dict[str, tuple[Tensors, str, str]] = {
    "LoRA": (pair(Q, 32, 32), "a LoRA adapter, without its base model", "wb convert BASE DST --lora "),
    "kohya": (
        {f"lora_unet_down_blocks_0.{end}.weight": np.ones((4, 4), "f4") for end in ("lora_down", "lora_up")},
        "a LoRA for an image model", "to .safetensors or .npz",
    ),
    "Stable Diffusion": ({OF_IMAGES: np.ones((4, 4), "f4")}, "a Stable Diffusion checkpoint", "to .safetensors or"),
    "diffusers": ({"down_blocks.0.x.weight": np.ones((4, 4), "f4")}, "a part of an image model", "to .safetensors or"),
    "textual inversion": ({"emb_params": np.ones((4, 4), "f4")}, "an adapter that isn't a LoRA", "trained it"),
}  # fmt: skip


@pytest.mark.parametrize("to", ["gguf", "mlx"])
@pytest.mark.parametrize("name", NOT_A_MODEL)
def test_what_is_no_language_model_is_named(name: str, to: str, tmp_path: Path) -> None:
    tensors, kind, step = NOT_A_MODEL[name]
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(UnsupportedError, match=f"x.safetensors is {kind}") as refused:
        wb.convert(tmp_path / "x.safetensors", tmp_path / "out", to=to)
    assert step in str(refused.value.hint)
    wb.convert(tmp_path / "x.safetensors", tmp_path / "cast.safetensors", dtype="f16")
    assert load_file(tmp_path / "cast.safetensors").keys() == tensors.keys()


OTHERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "by its folder": lambda config: {"base_model_name_or_path": config},
    "by its class": lambda _: {"base_model_name_or_path": None, "auto_mapping": {"base_model_class": "Qwen2Model"}},
}


@pytest.mark.parametrize("way", OTHERS)
def test_an_adapter_of_another_family_is_refused(
    way: str, base: Path, adapter: Callable[..., Path], tmp_path: Path
) -> None:
    (other := tmp_path / "other").mkdir()
    (other / "config.json").write_text(json.dumps({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}))
    with pytest.raises(UsageError, match=r"is an adapter of a qwen2 model, .* is a llama model"):
        wb.convert(base, tmp_path / "out", lora=adapter(**OTHERS[way](str(other))))
    with wb.plan_convert(base, tmp_path / "out", lora=adapter(base_model_name_or_path="someone/else")) as plan:
        assert any("trained on someone/else" in note for note in plan.notes)


EMBED = "model.embed_tokens"


def embedding_pair(tokens: int, width: int, *, own: bool) -> Tensors:
    """The pair of an embedding, with the base's weight (`own`) beside it as PEFT stores it."""
    rng = np.random.default_rng(5)
    shapes = {"lora_embedding_A": (2, tokens), "lora_embedding_B": (width, 2)}
    shapes |= {"base_layer.weight": (tokens, width)} if own else {}
    return {f"{FRONT}{EMBED}.{end}": rng.normal(size=shape).astype("f4") for end, shape in shapes.items()}


def test_the_base_weight_that_an_adapter_stores_is_the_one_that_it_changes(
    base: Path, adapter: Callable[..., Path], tmp_path: Path
) -> None:
    tensors = embedding_pair(40, 32, own=True)
    wb.convert(base, tmp_path / "out", lora=adapter(tensors))
    own, a, b = (
        tensors[f"{FRONT}{EMBED}.{end}"] for end in ("base_layer.weight", "lora_embedding_A", "lora_embedding_B")
    )
    merged = load_file(tmp_path / "out" / "model.safetensors")
    np.testing.assert_allclose(merged[f"{EMBED}.weight"], own + 2 * (b @ a).T, rtol=1e-5, atol=1e-5)
    with wb.plan_convert(adapter(tensors), tmp_path / "a.gguf", base=base) as plan:
        assert [loss.tensor for loss in plan.losses] == [f"{EMBED}.weight"]


def test_a_copy_of_a_changed_embedding_is_left_out_and_listed(adapter: Callable[..., Path], tmp_path: Path) -> None:
    config = {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "num_hidden_layers": 1, "hidden_size": 32,
              "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
              "vocab_size": 40}  # fmt: skip
    family, rng = families()["gemma"], np.random.default_rng(2)
    (folder := tmp_path / "gemma").mkdir()
    held = {n: rng.normal(size=s).astype("f4") for n, s in family.names("hf", family.sizes_from_hf(config)).items()}
    save_file(held | {"lm_head.weight": held[f"{EMBED}.weight"].copy()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    for tensors, kept in ((embedding_pair(40, 32, own=False), False), (pair(Q, 32, 32), True)):
        with wb.plan_convert(folder, tmp_path / str(kept), lora=adapter(tensors, base_model_name_or_path=None)) as plan:
            assert any("left out: lm_head.weight, a copy" in note for note in plan.notes) is not kept
            plan.run()
        assert ("lm_head.weight" in load_file(tmp_path / str(kept) / "model.safetensors")) is kept


@pytest.mark.parametrize(
    ("said", "relation"), [({}, "same"), ({"lora_alpha": 8}, "related"), ({"use_rslora": True}, "related")]
)
def test_lineage_reads_by_what_an_adapter_is_scaled(
    said: dict[str, Any], relation: str, adapter: Callable[..., Path], tmp_path: Path
) -> None:
    first = adapter().rename(tmp_path / "first")
    pair = wb.lineage([first, adapter(**said)]).pairs[0]
    assert pair.relation == relation
    assert ("alpha" in pair.detail) == bool(said)
