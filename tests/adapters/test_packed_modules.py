"""`wb.from_pretrained(..., packed=True)`: transformers' own modules of packed weights, bit for bit what transformers
makes of the folder itself. `tests/peers/run_packed.py` runs the methods whose libraries don't go with the tests'."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llama import CONFIG, llama_tensors

import weighbridge as wb
from weighbridge.adapters.engines import torchao
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError

NOTHING = "NOTHING HERE WAS PROVED: install requirements/oracles.txt"
torch: Any = pytest.importorskip("torch", reason=NOTHING)
IDS = [[1, 5, 7, 2]]


def wide_llama(folder: Path) -> Path:
    """A Llama whose rows are wide enough for groups of 128."""
    wb.save(
        {k: np.resize(v, [128 if n in (64, 96) else n for n in v.shape]) for k, v in llama_tensors().items()}, folder
    )
    config = {**CONFIG, "hidden_size": 128, "intermediate_size": 128, "head_dim": 32, "num_key_value_heads": 1}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("scheme", ["w4a16", "w8a8", "fp8_dynamic"])
def test_packed_weights_go_to_the_modules_of_transformers(scheme: str, tmp_path: Path) -> None:
    """Bit for bit what transformers makes of the folder itself."""
    transformers = pytest.importorskip("transformers", reason=NOTHING)
    pytest.importorskip("compressed_tensors", reason=NOTHING)
    wide = wide_llama(tmp_path / "wide")
    wb.convert(wide, tmp_path / "packed", to=wb.SchemeOptions(scheme=scheme))
    want = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "packed")
    found = wb.from_pretrained(transformers.LlamaForCausalLM, tmp_path / "packed", packed=True)
    assert found.config.quantization_config.quant_method == "compressed-tensors"
    with torch.no_grad():
        assert torch.equal(*(model(torch.tensor([[1, 5, 7, 2]])).logits for model in (found, want)))


@pytest.mark.parametrize("options", [{"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, {"load_in_8bit": True}])
def test_weights_of_bitsandbytes_go_to_its_modules(options: dict[str, Any], tmp_path: Path) -> None:
    """Every stored byte is what transformers makes of the folder itself."""
    transformers = pytest.importorskip("transformers", reason=NOTHING)
    pytest.importorskip("bitsandbytes", reason=NOTHING)
    wide = wide_llama(tmp_path / "wide")
    kind, how = transformers.LlamaForCausalLM, transformers.BitsAndBytesConfig(**options)
    made = kind.from_pretrained(wide, quantization_config=how, device_map="cpu")
    made.save_pretrained(tmp_path / "packed")
    want = kind.from_pretrained(tmp_path / "packed", device_map="cpu").state_dict()
    found = wb.from_pretrained(kind, tmp_path / "packed", packed=True).state_dict()
    assert any(tensor.dtype in (torch.uint8, torch.int8) for tensor in want.values())
    assert {name: (t.dtype, t.tolist()) for name, t in found.items()} == {
        name: (t.dtype, t.tolist()) for name, t in want.items()
    }


def test_packed_is_refused_where_transformers_has_no_modules(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason=NOTHING)
    folder = wide_llama(tmp_path / "wide")
    wb.convert(folder, tmp_path / "mlx", to=wb.MlxOptions(q_bits=4, q_group_size=32))
    for path in (folder, tmp_path / "mlx"):
        with pytest.raises(UsageError, match="names no method"):
            wb.from_pretrained(transformers.LlamaForCausalLM, path, packed=True)
    config = {**CONFIG, "quantization_config": {"quant_method": "mine"}}
    (tmp_path / "mlx" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="packed by mine"):
        wb.from_pretrained(transformers.LlamaForCausalLM, tmp_path / "mlx", packed=True)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")  # of torchao's imports
@pytest.mark.parametrize("method", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig", "IntxWeightOnlyConfig"])
def test_tensors_of_torchao_are_put_together(method: str, tmp_path: Path) -> None:
    """Of a sharded set, where each file describes its own tensors."""
    transformers = pytest.importorskip("transformers", reason=NOTHING)
    pytest.importorskip("torchao", reason=NOTHING)
    from torchao import quantization

    kind, options = transformers.LlamaForCausalLM, {"dtype": torch.bfloat16}
    how = transformers.TorchAoConfig(getattr(quantization, method)())
    made = kind.from_pretrained(wide_llama(tmp_path / "wide"), quantization_config=how, **options)
    made.save_pretrained(tmp_path / "packed", max_shard_size="100KB")
    assert len(list((tmp_path / "packed").glob("*.safetensors"))) > 1
    want = kind.from_pretrained(tmp_path / "packed", **options)
    found = wb.from_pretrained(kind, tmp_path / "packed", packed=True, dtype="bf16")
    one, two = (model.model.layers[1].mlp.up_proj.weight for model in (found, want))
    assert type(one) is type(two) is not torch.nn.Parameter
    assert torch.equal(one.qdata, two.qdata)
    with torch.no_grad():
        assert torch.equal(*(model(torch.tensor(IDS)).logits for model in (found, want)))


@pytest.mark.parametrize("metadata", [
    {}, {"tensor_names": "1"}, {"tensor_names": '["m.weight"]'}, {"tensor_names": "[1]", "1": "{}"},
    {"tensor_names": '["m.weight"]', "m.weight": "[]"}, {"tensor_names": "[["},
    {"tensor_names": '["m.weight"]', "m.weight": '{"_type": "Int8Tensor", "_tensor_data_names": 3}'},
    {"tensor_names": '["m.weight"]', "m.weight": '{"_type": "Int8Tensor", "_tensor_data_names": ["scale"]}'},
])  # fmt: skip
def test_metadata_that_does_not_describe_torchao(metadata: dict[str, str]) -> None:
    with pytest.raises(FormatError, match=r"describe|lacks a part"):
        torchao.composed({"m._weight_qdata": None}, metadata)


SETTINGS = {"bits": 4, "group_size": 128, "weights": "int8", "quant_config": {}, "skip_modules": []}
#: Methods, what lacks here for them, and what transformers says.
REFUSED = {
    "gptq": ("optimum", "requires optimum"),
    "awq": ("gptqmodel", "requires gptqmodel"),
    "mxfp4": ("kernels", "would decode"),
    "fp8": ("cuda", "would decode"),
    "quanto": ("", "reads no packed ones"),
    "hqq": ("", "not available yet"),
}


@pytest.mark.parametrize("method", REFUSED)
def test_what_transformers_can_not_run_is_refused_in_its_words(method: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason=NOTHING)
    absent, words = REFUSED[method]
    if torch.cuda.is_available() or (absent and importlib.util.find_spec(absent)):
        pytest.skip(f"{method} may run here")
    folder = wide_llama(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {**SETTINGS, "quant_method": method}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match=words) as raised:
        wb.from_pretrained(transformers.LlamaForCausalLM, folder, packed=True)
    assert "leave packed out" in str(raised.value.hint)


def test_settings_that_transformers_needs(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason=NOTHING)
    folder = wide_llama(tmp_path / "m")
    config = {**json.loads((folder / "config.json").read_text()), "quantization_config": {"quant_method": "gptq"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match=r"settings of gptq: .*bits"):
        wb.from_pretrained(transformers.LlamaForCausalLM, folder, packed=True)


def test_a_weight_that_is_not_there_is_not_filled_at_random(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason=NOTHING)
    pytest.importorskip("compressed_tensors", reason=NOTHING)
    wb.convert(wide_llama(tmp_path / "wide"), tmp_path / "packed", to=wb.SchemeOptions(scheme="w8a8"))
    with wb.open(tmp_path / "packed", names="stored") as model:
        left = {name: model[name].numpy() for name in model if name != "model.norm.weight"}
    (tmp_path / "packed" / "model.safetensors").unlink()
    wb.save(left, tmp_path / "packed" / "model.safetensors")
    with pytest.raises(FormatError, match=r"lacks 1 of LlamaForCausalLM's weights: model\.norm\.weight"):
        wb.from_pretrained(transformers.LlamaForCausalLM, tmp_path / "packed", packed=True)
