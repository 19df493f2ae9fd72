"""NVFP4 with a scale for the whole tensor: blocks and `.scale` in a GGUF as the reference converter writes them and
llama.cpp runs them, and back to a model folder with the same codes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.oracles import gguf_file, llamacpp, models, ours, reference_converter, vocabularies
from tests.oracles.case import Case
from tests.oracles.models import CASES, probe, probe_of
from tests.proof.test_schemes import WIDE, floats

import weighbridge

pytestmark = pytest.mark.oracle
Maker = Callable[[str], Path]
Parsed = Callable[[Path], gguf_file.File]


@pytest.fixture(scope="module")
def compressed(workshop: Path) -> Path:
    """compressed-tensors' form of a llama."""
    source = models.build(WIDE, workshop / "nvfp4-of", dtype="bfloat16")
    weighbridge.convert(source, workshop / "nvfp4", scheme="nvfp4a16")
    return workshop / "nvfp4"


def as_modelopt(source: Path, target: Path) -> Path:
    """ModelOpt's names: its global scale is the other's inverse, and it has one for the activations."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target)
    tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.endswith("weight_global_scale"):
            tensors[name.replace("weight_global_scale", "weight_scale_2")] = (1 / tensor).reshape(())
            tensors[name.replace("weight_global_scale", "input_scale")] = torch.tensor(0.25)
        else:
            tensors[name.replace("weight_packed", "weight")] = tensor
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize("form", ["compressed-tensors", "modelopt"])
def test_the_gguf_is_the_reference_converters(form: str, compressed: Path, tmp_path: Path, parsed: Parsed) -> None:
    folder = compressed if form == "compressed-tensors" else as_modelopt(compressed, tmp_path / "modelopt")
    theirs = parsed(reference_converter.convert(folder, tmp_path / "r.gguf", "bf16"))
    result = weighbridge.convert(folder, tmp_path / "o.gguf", inexact="refuse")
    assert {(m.target, m.kind) for m in result.moves} == {("NVFP4", "exact")}
    mine = parsed(tmp_path / "o.gguf")
    # No graph of llama.cpp looks at the scale of activations: it is left out.
    assert set(theirs.tensors) - set(mine.tensors) == {n for n in theirs.tensors if n.endswith(".input_scale")}
    for name, tensor in mine.tensors.items():
        np.testing.assert_array_equal(tensor.data, theirs.tensors[name].data, err_msg=name)
    assert sum(name.endswith("_q.scale") for name in mine.tensors) == 1
    for key in ("general.file_type", "general.architecture"):
        assert mine.fields[key].value == theirs.fields[key].value


def test_llama_cpp_runs_it(compressed: Path, tmp_path: Path) -> None:
    """As it runs the same values in f32; it quantizes activations to 8 bits for block types."""
    kept = ours.to_gguf(compressed, tmp_path / "kept.gguf", None)
    plain = ours.to_gguf(compressed, tmp_path / "f32.gguf", "f32")
    ids = probe(vocabularies.SIZES[WIDE.tokenizer])
    with llamacpp.Model(kept) as quantized, llamacpp.Model(plain) as values:
        found, want = quantized.logits(ids), values.logits(ids)
    assert np.mean((found - want) ** 2) / np.var(want) < 0.01


def test_and_back(compressed: Path, tmp_path: Path) -> None:
    gguf = ours.to_gguf(compressed, tmp_path / "kept.gguf", None)
    result = weighbridge.convert(gguf, tmp_path / "back", scheme="nvfp4a16", inexact="refuse")
    assert {(m.source, m.target, m.kind) for m in result.moves} == {("nvfp4", "nvfp4a16", "exact")}
    found, want = floats(tmp_path / "back"), floats(compressed)
    assert sorted(found) == sorted(want)
    for name, values in want.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    weighbridge.convert(gguf, tmp_path / "floats", to="hf", dtype="f32")
    for name, values in floats(tmp_path / "floats").items():
        np.testing.assert_array_equal(values, want[name], err_msg=name)


@pytest.mark.costly
def test_experts_have_a_scale_each(folder_of: Maker, tmp_path: Path, parsed: Parsed) -> None:
    source = folder_of("qwen3moe@bfloat16")
    weighbridge.convert(source, tmp_path / "q", scheme="nvfp4a16")
    pre = CASES["qwen3moe"].pre
    kept = ours.to_gguf(tmp_path / "q", tmp_path / "kept.gguf", None, pre=pre)
    file = parsed(kept)
    experts = file.tensors["blk.0.ffn_up_exps.weight"].shape[0]
    assert file.tensors["blk.0.ffn_up_exps.scale"].data.view(np.float32).size == experts > 1
    plain = ours.to_gguf(tmp_path / "q", tmp_path / "f32.gguf", "f32", pre=pre)
    with weighbridge.open(kept, names="canonical") as a, weighbridge.open(plain, names="canonical") as b:
        for name in b:
            np.testing.assert_array_equal(a[name].numpy(dtype="f32"), b[name].numpy(dtype="f32"), err_msg=name)
    with llamacpp.Model(kept) as quantized, llamacpp.Model(plain) as values:
        found, want = quantized.logits(probe_of("qwen3moe")), values.logits(probe_of("qwen3moe"))
    assert np.mean((found - want) ** 2) / np.var(want) < 0.02
    weighbridge.convert(kept, tmp_path / "back", scheme="nvfp4a16", inexact="refuse")
    want_ = floats(tmp_path / "q")
    for name, values_ in floats(tmp_path / "back").items():
        np.testing.assert_array_equal(values_, want_[name], err_msg=name)


def test_mxfp4_goes_both_ways(folder_of: Maker, tmp_path: Path) -> None:
    weighbridge.convert(folder_of("llama3-v4@bfloat16"), tmp_path / "q", scheme="mxfp4a16")
    gguf = ours.to_gguf(tmp_path / "q", tmp_path / "kept.gguf", None, pre=CASES["llama3-v4"].pre)
    weighbridge.convert(gguf, tmp_path / "back", scheme="mxfp4a16", inexact="refuse")
    found, want = floats(tmp_path / "back"), floats(tmp_path / "q")
    for name, values in want.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def stored_scale(shape: tuple[int, ...]) -> Any:
    from tests.packings.stored import of_numpy

    return of_numpy(np.ones(shape, np.float32), "F32")


def test_a_scale_that_does_not_belong_is_named() -> None:
    from tests.unpacked import unpack

    from weighbridge.base.dtypes import BY_NAME
    from weighbridge.base.errors import FormatError
    from weighbridge.base.spec import Spec
    from weighbridge.tensors import nodes

    weight = nodes.Const(Spec((4, 64), BY_NAME["NVFP4"]), bytes(4 * 36))
    with pytest.raises(FormatError, match="doesn't belong"):
        unpack({"blk.0.attn_q.weight": weight, "blk.0.attn_q.scale": stored_scale((3,))}, {})
    found = unpack({"blk.0.attn_q.weight": weight, "blk.0.attn_q.scale": stored_scale((1,))}, {})
    assert list(found) == ["blk.0.attn_q.weight"]


def scaled(columns: int = 64) -> Any:
    """A matrix in compressed-tensors' form with a global scale of 3."""
    from tests.packings.stored import of_numpy
    from tests.unpacked import unpack

    rng = np.random.default_rng(1)
    found = unpack(
        {
            "m.weight_packed": of_numpy(rng.integers(0, 256, (4, columns // 2), np.uint8), "U8"),
            "m.weight_scale": of_numpy(rng.integers(1, 0x7F, (4, columns // 16), np.uint8), "F8_E4M3"),
            "m.weight_global_scale": of_numpy(np.array([3], np.float32), "F32"),
        },
        {},
    )
    return found["m.weight"]


def test_only_where_llama_cpp_multiplies_with_it() -> None:
    """Elsewhere the scale has no place, and rounding isn't a way either: the values would be others by its factor."""
    from weighbridge.base.dtypes import F16
    from weighbridge.conversion.gguf import plan
    from weighbridge.conversion.options import GgufOptions
    from weighbridge.packings.read import ggml

    for name in ggml.SCALED:
        parted = ggml.split_global_scale("llama", f"blk.0.{name}.weight", scaled())
        assert parted is not None
        np.testing.assert_array_equal(parted.scale.read_all().view(np.float32), [np.float32(1) / np.float32(3)])
    assert ggml.split_global_scale("llama", "token_embd.weight", scaled()) is None
    assert ggml.split_global_scale("qwen2", "blk.0.ffn_up.weight", scaled()) is None
    assert ggml.split_global_scale("llama", "blk.0.attn_q.weight", scaled(columns=48)) is None
    near = plan._transcoded("token_embd.weight", scaled(), F16, GgufOptions(inexact="near"))
    assert (near.move.kind, near.tensors) == ("decoded", {})


def test_a_graph_that_ignores_the_scale_gets_values(tmp_path: Path) -> None:
    """llama.cpp loads `ffn_up.scale` for a Qwen 2 and doesn't multiply with it: what the reference converter writes
    runs, and says something else. Ours decodes."""
    small = CASES["qwen2"]
    options = dict(small.options) | {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 1}
    source = models.build(Case("wide-qwen2", small.config, small.tokenizer, options), tmp_path / "s", dtype="bfloat16")
    weighbridge.convert(source, tmp_path / "q", scheme="nvfp4a16")
    ids = probe(vocabularies.SIZES[small.tokenizer])
    reference = reference_converter.convert(tmp_path / "q", tmp_path / "r.gguf", "bf16", pre=small.pre)
    result = weighbridge.convert(tmp_path / "q", tmp_path / "o.gguf", pre=small.pre)
    assert {m.kind for m in result.moves} == {"decoded"}
    plain = ours.to_gguf(tmp_path / "q", tmp_path / "f32.gguf", "f32", pre=small.pre)

    def logits(path: Path) -> np.ndarray:
        with llamacpp.Model(path) as model:
            return model.logits(ids)

    want, theirs, mine = logits(plain), logits(reference), logits(tmp_path / "o.gguf")
    assert np.mean((mine - want) ** 2) / np.var(want) < 1e-3
    assert not np.mean((theirs - want) ** 2) / np.var(want) < 0.1  # NaN, or far away
