"""`wb.from_pretrained` of many classes: the logits of what transformers itself loads, from GGUFs too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import weighbridge as wb
from weighbridge.base.errors import UsageError

NOTHING = "NOTHING HERE WAS PROVED: install requirements/oracles.txt"
torch: Any = pytest.importorskip("torch", reason=NOTHING)
transformers: Any = pytest.importorskip("transformers", reason=NOTHING)
IDS = [[1, 5, 7, 2, 9, 200]]
F32 = {"dtype": torch.float32}


class Case(NamedTuple):
    """A class and its sizes; the type of a GGUF that transformers reads too, or None. `bound`: on the difference there,
    as a part of the largest logit."""

    name: str
    config: str
    sizes: Mapping[str, Any]
    gguf: str | None = None
    bound: float = 0.0


SIZES = {"vocab_size": 256, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {**SIZES, "intermediate_size": 256, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 64}
T5 = {"vocab_size": 256, "d_model": 64, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 16}
CASES = (
    Case("LlamaForCausalLM", "LlamaConfig", {**DECODER, "tie_word_embeddings": True}, "q8_0"),
    Case("FalconForCausalLM", "FalconConfig", {**SIZES, "bias": False, "alibi": False}, "q4_k_m"),  # q|k|v in one
    Case("StableLmForCausalLM", "StableLmConfig", DECODER, "q8_0"),
    Case("MambaForCausalLM", "MambaConfig", {**SIZES, "state_size": 16}, "f16", 1e-5),  # the logarithm of A
    Case("NemotronForCausalLM", "NemotronConfig", {**DECODER, "head_dim": 64}, "q4_k_m"),  # norms less one
    Case("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**DECODER, **MOE}),
    Case("T5ForConditionalGeneration", "T5Config", T5),
    Case("ViTForImageClassification", "ViTConfig", {**SIZES, "image_size": 16, "patch_size": 8}),  # no table knows it
)


def logits(model: Any) -> Any:
    inputs: dict[str, Any] = {"input_ids": torch.tensor(IDS)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor([[0, 3, 4]])
    if model.main_input_name == "pixel_values":
        inputs = {"pixel_values": torch.linspace(-1, 1, 768).reshape(1, 3, 16, 16)}
    with torch.no_grad():
        return model.eval()(**inputs).logits.float()


def saved(case: Case, folder: Path) -> Any:
    """The class; a model of random weights, norms and biases too, in shards."""
    kind = getattr(transformers, case.name)
    torch.manual_seed(3)
    model = kind(getattr(transformers, case.config)(**case.sizes))
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.1)
    model.save_pretrained(folder, max_shard_size="300KB")
    return kind


@pytest.mark.oracle
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    kind = saved(case, tmp_path / "hf")
    want = logits(kind.from_pretrained(tmp_path / "hf", **F32))
    assert torch.equal(logits(wb.from_pretrained(kind, tmp_path / "hf", dtype="f32")), want)
    if case.gguf is None:
        return
    wb.convert(tmp_path / "hf", tmp_path / "f16.gguf", dtype="f16", tokenizer=False)
    file = tmp_path / f"{case.gguf}.gguf"
    if not file.exists():
        wb.quantize(tmp_path / "f16.gguf", file, case.gguf)
    found = logits(wb.from_pretrained(kind, file, dtype="f32"))
    theirs = logits(kind.from_pretrained(tmp_path, gguf_file=file.name, **F32))
    assert float((found - theirs).abs().max()) <= case.bound * float(theirs.abs().max())
    assert not torch.equal(found, want)  # it did come from the GGUF


def test_names_of_a_class_that_were_never_a_hubs(tmp_path: Path) -> None:
    """A state dict under the names of the class, where the hub's files have older ones."""
    case = Case("GPTNeoXForCausalLM", "GPTNeoXConfig", {**SIZES, "intermediate_size": 64})
    kind = saved(case, tmp_path / "hf")
    model = kind.from_pretrained(tmp_path / "hf", **F32)
    assert "lm_head.weight" in model.state_dict()
    (tmp_path / "bin").mkdir()
    torch.save(model.state_dict(), tmp_path / "bin" / "pytorch_model.bin")
    (tmp_path / "bin" / "config.json").write_bytes((tmp_path / "hf" / "config.json").read_bytes())
    assert torch.equal(logits(wb.from_pretrained(kind, tmp_path / "bin", dtype="f32")), logits(model))


def test_weights_without_a_config(tmp_path: Path) -> None:
    """The class's defaults may be of a model that no machine holds."""
    wb.save({"a.weight": torch.zeros(2, 2)}, tmp_path / "x.npz")
    with pytest.raises(UsageError, match="no config to build the class by"):
        wb.from_pretrained(transformers.GPTNeoXForCausalLM, tmp_path / "x.npz")


def test_adapters_of_peft_and_a_device_map(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason=NOTHING)
    kind = saved(CASES[0], tmp_path / "hf")
    torch.manual_seed(5)
    how = peft.LoraConfig(target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    peft.get_peft_model(kind.from_pretrained(tmp_path / "hf", **F32), how).save_pretrained(tmp_path / "lora")
    models = (
        wb.from_pretrained(kind, tmp_path / "hf", dtype="f32", device_map={"": "cpu"}),
        kind.from_pretrained(tmp_path / "hf", **F32),
    )
    plain = logits(models[0])
    one, two = (logits(peft.PeftModel.from_pretrained(model, tmp_path / "lora")) for model in models)
    assert torch.equal(one, two)
    assert not torch.equal(one, plain)


def test_empty_modules_of_accelerate(tmp_path: Path) -> None:
    """Buffers that aren't persistent are in no file: accelerate computes them, the meta device doesn't."""
    accelerate = pytest.importorskip("accelerate", reason=NOTHING)
    kind = saved(CASES[0], tmp_path / "hf")
    want = kind.from_pretrained(tmp_path / "hf", **F32)
    with accelerate.init_empty_weights():
        empty = kind(want.config)
    empty.tie_weights()
    assert wb.load(tmp_path / "hf", into=empty, dtype="f32").on_meta == ()
    assert torch.equal(logits(accelerate.dispatch_model(empty, {"": "cpu"})), logits(want))
    with torch.device("meta"):
        bare = kind(want.config)
    bare.tie_weights()
    report = wb.load(tmp_path / "hf", into=bare, dtype="f32")
    assert "model.rotary_emb.inv_freq" in report.on_meta
    assert not report
