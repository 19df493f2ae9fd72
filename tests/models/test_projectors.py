"""mmproj files: the towers of models that see or hear. The judge is the reference converter, whose keys and digests of
tensors are recorded in golden/projectors."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.projector_cases import (
    CASES,
    FOLDERS,
    OUTTYPES,
    THINKERS,
    WITHOUT_CLASS,
    WITHOUT_TEXT,
    digests,
    expected,
    golden,
    referenced,
    saved_by_transformers,
    weights,
    write_folder,
)
from tests.models.record_projectors import class_of_transformers, renamed
from tests.models.record_reference import record

import weighbridge as wb
from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.limits import LAYERS
from weighbridge.models.arch import registry
from weighbridge.models.arch.expand import height
from weighbridge.models.arch.naming import MappingError
from weighbridge.models.arch.registry import build_family
from weighbridge.models.arch.tables.documents import projector_document, projector_texts
from weighbridge.models.arch.tables.expression import ArchView, evaluate
from weighbridge.models.llamacpp.towers import towers_of, towers_of_gguf
from weighbridge.models.open import open_model
from weighbridge.tensors.nodes import cast, decode, storage_name

gguf = pytest.importorskip("gguf", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")


@pytest.mark.parametrize("outtype", OUTTYPES)
@pytest.mark.parametrize("name", referenced())
def test_keys_and_tensors_are_the_reference_s(name: str, outtype: str, tmp_path: Path) -> None:
    case, target = golden()[name], tmp_path / "mmproj.gguf"
    wb.convert(write_folder(case, tmp_path / "tiny-model"), target, mmproj=True, dtype=outtype)
    assert record(gguf, target)["keys"] == case["reference"][outtype]["keys"]
    assert known(digests(target)) == known(expected(case, outtype))


IMG_BREAK: Final = "v.token_embd.img_break"


@pytest.mark.parametrize(("name", "number"), [("pixtral", 12), ("mistral3", 13)])
def test_the_row_of_a_token_is_copied(name: str, number: int, tmp_path: Path) -> None:
    """llama.cpp refuses the reference's file, which lacks it."""
    case = golden()[name]
    folder = write_folder(case, tmp_path / "g")
    wb.convert(folder, tmp_path / "m.gguf", mmproj=True, dtype="q8_0")
    (row,) = (t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors if t.name == IMG_BREAK)
    embedding = load_file(folder / "model.safetensors")["language_model.model.embed_tokens.weight"]
    assert np.array_equal(row.data, embedding[number])
    assert IMG_BREAK not in {tensor for tensor, *_ in case["reference"]["f16"]["tensors"]}
    for content, error in ({}, "lists \\[IMG_BREAK\\]"), ({"40": {"content": "[IMG_BREAK]"}}, "id below 32"):
        changed = {**case, "files": {"tokenizer_config.json": {"added_tokens_decoder": content}}}
        with pytest.raises(WeighbridgeError, match=error):
            wb.convert(write_folder(changed, tmp_path / error), tmp_path / "n.gguf", mmproj=True)
    assert not (tmp_path / "n.gguf").exists()


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("lfm2-audio", "architectures", True), ("deepseek-ocr2", "architectures", {"a": 1}),
        ("deepseek-ocr2", "vision_config", "x"), ("deepseek-ocr2", "vision_config", True),
        ("gemma3n", "audio_config", [1]), ("gemma3n", "vision_config", None), ("meralion2", "speech_config", 7),
        ("deepseek-v4-vision", "vision_n_layers", -1),
        ("dots3-note", "vision_config", {"num_hidden_layers": 4}), ("dots3-note", "audio_config", [1]),
        ("dots3-note", "vision_config", {"num_hidden_layers": 4, "pyramid_num_routed": [-1, 2, -1, "4"]}),
        ("dots3-note", "vision_config", {"num_hidden_layers": 4, "pyramid_num_routed": [-1, 2, -1]}),
        ("dots3-note", "vision_config", {"num_hidden_layers": 4, "pyramid_num_routed": [1 << 30] * 4}),
        ("granite4-vision", "deepstack_layer_map", [[-6, 3], [-3]]), ("granite4-vision", "deepstack_layer_map", 7),
        ("granite4-vision", "deepstack_layer_map", [[-6, 3], [-3, 4]]),
        ("granite4-vision", "deepstack_layer_map", [[-6, 3], [0, 0]]),
        ("granite4-vision", "deepstack_layer_map", [[-6, 3], [-9, 0]]),
        ("granite4-vision", "deepstack_layer_map", [[-6, 6], [-3, 0]]),
        ("granite4-vision", "spatial_target_layers", [4, 1, 5, True]),
        ("granite4-vision", "image_grid_pinpoints", [[56, "56"]]), ("granite4-vision", "downsample_rate", "1/0"),
        ("granite4-vision", "downsample_rate", 0.5), ("granite4-vision", "text_config", {"num_hidden_layers": 1 << 30}),
    ],
)  # fmt: skip
def test_a_wrong_config_is_an_error(name: str, path: str, value: Any, tmp_path: Path) -> None:
    case = {**golden()[name], "config": {**golden()[name]["config"], path: value}}
    with pytest.raises(WeighbridgeError):
        wb.plan_convert(write_folder(case, tmp_path / "g"), tmp_path / "m.gguf", mmproj=True)


def test_a_llava_with_another_tower_is_refused(tmp_path: Path) -> None:
    case = json.loads(json.dumps(golden()["pixtral"]))
    case["config"]["vision_config"]["model_type"] = "clip_vision_model"
    folder = write_folder(case, tmp_path / "g")
    with pytest.raises(UnsupportedError, match=r'has this LlavaForC[^"]* "siglip_vision_model" or [^"]* "pixtral"'):
        wb.convert(folder, tmp_path / "m.gguf", mmproj=True)
    plan = wb.plan_convert(folder, tmp_path / "t.gguf", tokenizer=False)
    assert not any("--mmproj" in str(loss) for loss in plan.losses)


def test_granite_4_s_layers_are_counted_as_transformers_counts(tmp_path: Path) -> None:
    """From either end, in any order: the same projectors in the same places."""
    case, files = golden()["granite4-vision"], []
    first, second = case["config"]["deepstack_layer_map"]
    swapped = {
        name.replace(f"layerwise_projectors.{n}.", f"layerwise_projectors.{1 - n}."): tensor
        for name, tensor in weights(case["names"]).items()
        for n in [int(name.partition("layerwise_projectors.")[2][:1] or 0)]
    }
    maps = [[first, second], [[8 + first[0], first[1]], [8 + second[0], second[1]]], [second, first]]
    for n, (pairs, tensors) in enumerate(zip(maps, (None, None, swapped), strict=True)):
        changed = {**case, "config": {**case["config"], "deepstack_layer_map": pairs}}
        folder = write_folder(changed, tmp_path / str(n) / "tiny-model")
        if tensors:
            save_file(tensors, folder / "model.safetensors")
        wb.convert(folder, tmp_path / f"{n}.gguf", mmproj=True, dtype="f32")
        files.append((record(gguf, tmp_path / f"{n}.gguf")["keys"], sorted(digests(tmp_path / f"{n}.gguf"))))
    assert files[0] == files[1] == files[2]


def known(tensors: list[list[Any]]) -> list[list[Any]]:
    """The tensors without the digests of computed ones, whose last bits depend on the reference's processor, and
    without the copied row, which the reference leaves out."""
    table = ["a.position_embd.weight", "F32", [1500, 64]] if computed(tensors) else []
    folded = any(t[0].endswith("conv_norm.bias") for t in tensors)  # others' norms have no bias
    last = (".alpha", ".beta", "per_dim_scale.weight", *(("conv_norm.weight", "conv_norm.bias") if folded else ()))
    inexact = (t[:3] == table or t[0].endswith(last) for t in tensors)
    return [t[:3] if less else t for t, less in zip(tensors, inexact, strict=True) if t[0] != IMG_BREAK]


def computed(tensors: list[list[Any]]) -> bool:
    """Whether the position embedding of an audio encoder is computed: it is then the first tensor."""
    return tensors[0][0] == "a.position_embd.weight"


def test_a_computed_position_embedding_is_that_of_transformers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import SinusoidsPositionEmbedding

    for name in (name for name, case in referenced().items() if computed(case["reference"]["f32"]["tensors"])):
        wb.convert(write_folder(golden()[name], tmp_path / name), tmp_path / f"{name}.gguf", mmproj=True)
        data = next(t.data for t in gguf.GGUFReader(tmp_path / f"{name}.gguf").tensors if t.name.startswith("a.pos"))
        expected = SinusoidsPositionEmbedding(1500, 64).positional_embedding
        assert torch.allclose(torch.tensor(data.reshape(1500, 64)), expected, rtol=0, atol=1e-6)


def test_a_softplus_is_that_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    source = write_folder(golden()["gemma4-audio"], tmp_path / "g")
    wb.convert(source, tmp_path / "m.gguf", mmproj=True)
    stored = load_file(source / "model.safetensors")
    scales = [t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors if "per_dim_scale" in t.name]
    assert len(scales) == 3
    for scale in scales:
        layer = scale.name.split(".")[2]
        before = stored[f"model.audio_tower.layers.{layer}.self_attn.per_dim_scale"]
        expected = torch.nn.functional.softplus(torch.tensor(before))
        assert torch.allclose(torch.tensor(np.array(scale.data)), expected, rtol=2**-22, atol=0)


def test_the_numbers_of_a_snake_are_torch_s(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    source = write_folder(golden()["qwen3-tts"], tmp_path / "g")
    wb.convert(source, tmp_path / "m.gguf", mmproj=True)
    vocoder = load_file(source / "speech_tokenizer" / "model.safetensors")
    found = [t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors if t.name.endswith((".alpha", ".beta"))]
    assert len(found) == 2 * (4 * 7 + 1)
    for tensor in found:
        block = re.fullmatch(r"a\.gen\.wav\.dac\.blk\.(\d)\.(?:snake|res\.(\d)\.(act\d))\.(\w+)", tensor.name)
        name = "5" if block is None else f"{int(block[1]) + 1}.block.{int(block[2] or -2) + 2}"
        act, end = (f"{block[3]}." if block is not None and block[3] else ""), tensor.name.rpartition(".")[2]
        before = torch.exp(torch.tensor(vocoder[f"decoder.decoder.{name}.{act}{end}"]))
        expected = before if end == "alpha" else 1.0 / (before + 1e-9)
        assert torch.allclose(torch.tensor(np.array(tensor.data)), expected, rtol=2**-21, atol=0), tensor.name


def test_a_vocoder_is_read_from_its_folder(tmp_path: Path) -> None:
    """Each of its tensors is in the file, listed, or an error; without the folder there is a next step."""
    case = golden()["qwen3-tts"]
    source = write_folder(case, tmp_path / "g")
    with wb.plan_convert(source, tmp_path / "m.gguf", mmproj=True) as plan:
        listed = {loss.tensor: loss.message for loss in plan.losses if loss.tensor}
        assert any("speech_tokenizer" in str(file) for file in plan.sources)
        plan.run()
    left_out = {name for name, message in listed.items() if message.startswith("left out: llama.cpp doesn't compute")}
    divided = {
        name for name, message in listed.items() if re.search(r"has a\.gen\.wav\..*codebook.* divided by", message)
    }
    assert left_out == {"speech_tokenizer.encoder.x.weight"}
    assert divided == {name for name in case["names"] if "._codebook." in name} == listed.keys() - left_out
    more = {**case, "names": {**case["names"], "speech_tokenizer.decoder.extra": [8]}}
    with pytest.raises(MappingError, match=r"speech_tokenizer\.decoder\.extra"):
        wb.convert(write_folder(more, tmp_path / "more"), tmp_path / "n.gguf", mmproj=True)
    (tmp_path / "outside").mkdir()
    (source / "speech_tokenizer" / "model.safetensors").rename(tmp_path / "outside" / "model.safetensors")
    (source / "speech_tokenizer" / "model.safetensors").symlink_to(tmp_path / "outside" / "model.safetensors")
    with pytest.raises(RefusedError):
        wb.convert(source, tmp_path / "n.gguf", mmproj=True)
    (source / "speech_tokenizer").rename(tmp_path / "apart")
    with pytest.raises(UnsupportedError, match="has no folder speech_tokenizer"):
        wb.convert(source, tmp_path / "n.gguf", mmproj=True)
    assert not (tmp_path / "n.gguf").exists()


def test_a_talker_without_a_speaker_encoder_is_refused(tmp_path: Path) -> None:
    """Qwen3-TTS' CustomVoice and VoiceDesign: llama.cpp loads no file that only generates (test_llamacpp.py). The
    language model converts, and what it leaves out has no command that the next run refuses."""
    case = json.loads(json.dumps(golden()["qwen3-tts"]))
    del case["config"]["speaker_encoder_config"]
    case["config"]["talker_config"] |= {"spk_id": {"vivian": 40}, "vocab_size": 3072, "codec_eos_token_id": 3070}
    names = {name: shape for name, shape in case["names"].items() if not name.startswith("speaker_encoder.")}
    names |= {
        name: [3072, *shape[1:]] for name, shape in names.items() if name == "talker.model.codec_embedding.weight"
    }
    front, width = "talker.model.", case["config"]["talker_config"]["hidden_size"]
    talker = {
        "layers.0.self_attn.q_norm.weight": [16], "layers.0.self_attn.k_norm.weight": [16],
        "layers.0.self_attn.q_proj.weight": [64, 64], "layers.0.self_attn.k_proj.weight": [32, 64],
        "layers.0.self_attn.v_proj.weight": [32, 64], "layers.0.self_attn.o_proj.weight": [64, 64],
        "layers.0.mlp.gate_proj.weight": [96, 64], "layers.0.mlp.up_proj.weight": [96, 64],
        "layers.0.mlp.down_proj.weight": [64, 96], "layers.0.input_layernorm.weight": [64],
        "layers.0.post_attention_layernorm.weight": [64], "norm.weight": [64], "text_embedding.weight": [32, 48],
    }  # fmt: skip
    names |= {front + name: shape for name, shape in talker.items()}
    names |= {"talker.codec_head.weight": [3072, width]}
    for part, shape in (("fc1", [48, 48]), ("fc2", [64, 48])):
        names |= {
            f"talker.text_projection.linear_{part}.{end}": s for end, s in (("weight", shape), ("bias", shape[:1]))
        }
    source = write_folder({**case, "names": names}, tmp_path / "g")
    with pytest.raises(UnsupportedError, match=r"has no speaker_encoder, and llama\.cpp loads no mmproj file"):
        wb.convert(source, tmp_path / "m.gguf", mmproj=True)
    with wb.plan_convert(source, tmp_path / "t.gguf", tokenizer=False) as plan:
        said = [loss.message for loss in plan.losses if "mmproj" in loss.message]
        assert said
        assert all("loads no mmproj file without speaker_encoder" in message for message in said)
        plan.run()


def test_a_predictor_of_the_talker_s_width_has_no_projection(tmp_path: Path) -> None:
    case = json.loads(json.dumps(golden()["qwen3-tts"]))
    case["config"]["talker_config"]["code_predictor_config"]["hidden_size"] = 64
    for name in [name for name in case["names"] if name.startswith("talker.code_predictor.")]:
        keys = 1 if "k_proj" in name or "v_proj" in name else 0  # whose rows are not the width
        shape = case["names"].pop(name)
        if "small_to_mtp" not in name:
            case["names"][name] = [*shape[:keys], *(64 if size == 32 else size for size in shape[keys:])]
    wb.convert(write_folder(case, tmp_path / "g"), tmp_path / "m.gguf", mmproj=True)
    found = {name for name, *_ in digests(tmp_path / "m.gguf")}
    whole = {name for name, *_ in golden()["qwen3-tts"]["reference"]["f32"]["tensors"]}
    assert whole - found == {"a.gen.code.proj_in.weight", "a.gen.code.proj_in.bias"}


def test_tensors_are_counted_up_to_the_first_that_is_missing() -> None:
    view = ArchView({}, "clip", {"a.0.b": (2,), "a.1.b": (2,), "a.3.b": (2,), "c": (2,)})
    counted = {name: evaluate(f'count("{name}")', view) for name in ("a.{n}.b", "c", "d", "d.{n}")}
    assert counted == {"a.{n}.b": 2, "c": 1, "d": 0, "d.{n}": 0}
    endless = ArchView({}, "clip", {f"a.{n}": (1,) for n in range(2 * LAYERS)})
    assert evaluate('count("a.{n}")', endless) == LAYERS


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_the_tensors_of_pocket_tts_come_back(dtype: str, tmp_path: Path) -> None:
    """Under the folder's names; no folder is made, since the language model's embedding is computed."""
    source = write_folder(golden()["pocket-tts"], tmp_path / "g")
    wb.convert(source, tmp_path / "m.gguf", mmproj=True, dtype=dtype)
    stored = load_file(source / "model.safetensors")
    with open_model(tmp_path / "m.gguf") as model:
        resolved = towers_of_gguf(model)
        found = {name: cast(node, F32).read_all().view("<f4") for name, node in resolved.save("hf").items()}
        halves = {name for name, node in resolved.save("hf").items() if storage_name(node) == "F16"}
    with open_model(source) as folder:
        assert found.keys() == towers_of(folder).resolved.tensors.keys()
    for name, values in found.items():
        exact = stored[name].ravel()
        assert np.array_equal(values, exact.astype(np.float16) if name in halves else exact), name
    wb.convert(source, tmp_path / "t.gguf", tokenizer=False)
    with pytest.raises(UnsupportedError, match=r"no folder can be made of it, since token_embd\.weight"):
        wb.convert(tmp_path / "t.gguf", tmp_path / "back", to="hf", tokenizer=False, projector=tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("name", "shape", "error"),
    [
        ("mimi.decoder_transformer.transformer.layers.3.norm1.weight", [128], "without a rule: mimi.decoder"),
        ("mimi.encoder_transformer.transformer.layers.3.norm1.weight", [128], "missing: mimi.encoder_transformer"),
        ("flow_lm.flow_net.res_blocks.2.in_ln.weight", [32], "missing: flow_lm.flow_net.res_blocks.2.adaLN"),
        ("flow_lm.flow_net.res_blocks.3.in_ln.weight", [32], "without a rule: flow_lm.flow_net.res_blocks.3"),
        ("mimi.encoder.model.0.conv.weight", None, "needs this size"),
    ],
)
def test_a_pocket_tts_of_other_sizes_is_refused(name: str, shape: list[int] | None, error: str, tmp_path: Path) -> None:
    """Sizes are those of the tensors: of both of Mimi's transformers alike, which llama.cpp has one key for."""
    case = golden()["pocket-tts"]
    names = {n: s for n, s in case["names"].items() if n != name} | ({name: shape} if shape else {})
    with pytest.raises(FormatError, match=re.escape(error)):
        wb.convert(write_folder({**case, "names": names}, tmp_path / "g"), tmp_path / "m.gguf", mmproj=True)


def norms_folded(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors with each batch norm's mean and variance folded into its weight and bias, computed in F64."""
    out = dict(tensors)
    for start in [name.removesuffix("running_var") for name in tensors if name.endswith(".running_var")]:
        mean, variance = (out.pop(f"{start}running_{part}").astype(float) for part in ("mean", "var"))
        out.pop(f"{start}num_batches_tracked", None)
        scale = tensors[f"{start}weight"] / np.sqrt(variance + 1e-5)
        out |= {f"{start}weight": scale, f"{start}bias": tensors[f"{start}bias"] - mean * scale}
    return out


def test_a_folded_batch_norm_computes_the_same(tmp_path: Path) -> None:
    """torch's last bits depend on the processor, as its square root isn't rounded to the nearest."""
    source = write_folder(golden()["granite-speech"], tmp_path / "g")
    plan = wb.plan_convert(source, tmp_path / "m.gguf", mmproj=True)
    assert any("batch norms are folded" in str(loss) for loss in plan.losses)
    plan.run()
    found = norms_folded(load_file(source / "model.safetensors"))
    norms = [t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors if ".conv_norm." in t.name]
    assert len(norms) == 6
    for norm in norms:
        _, _, layer, _, part = norm.name.split(".")
        exact = found[f"encoder.layers.{layer}.conv.batch_norm.{part}"]
        assert np.allclose(norm.data, exact, rtol=2**-22, atol=2**-22)
    tensors = weights({key: shape for key, shape in golden()["granite-speech"]["names"].items() if "1.conv" not in key})
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(MappingError, match=r"missing: encoder\.layers\.1\.conv\.batch_norm\.weight"):
        wb.convert(source, tmp_path / "n.gguf", mmproj=True)


#: Folders of published code, whose pairs become a folder of the class that transformers has.
PUBLISHED: Final = ("internvl-chat",)
#: The towers of models with experts are those of the models without; a GGUF of GLM-OCR is known by its
#: further layer.
PAIRS: Final = [
    name
    for name, case in golden().items()
    if not name.endswith("-moe")
    and name
    not in (
        "clef",
        "glm-ocr-gelu",
        "glm-5.2-vision-joined",
        "mimo-v2.5",
        "pocket-tts",
        "qwen3-omni",
        *PUBLISHED,
        *WITHOUT_TEXT,
    )
    if not registry.projector_of_hf(case["config"]).one_way  # type: ignore[union-attr]  # tests/models/test_one_way.py
]


TOKENIZER: Final = "audio_tokenizer"


def test_mimo_s_second_folder(tmp_path: Path) -> None:
    """Every tensor of it is in the file or listed; codebooks come out of it as high as they were. The way back is
    refused, since no GGUF has what makes sounds."""
    case = golden()["mimo-v2.5"]
    folder = write_folder(case, tmp_path / "tiny-model")
    plan = wb.plan_convert(folder, tmp_path / "m.gguf", mmproj=True, dtype="f32")
    left = {loss.tensor for loss in plan.losses if loss.tensor}
    assert left == {name for name in case["names"] if "decoder.x" in name or name.endswith(("size", "avg", "inited"))}
    assert str(folder / TOKENIZER / "model.safetensors") in str(plan.sources)
    plan.run()
    with open_model(tmp_path / "m.gguf") as model:
        again = towers_of_gguf(model).save("hf")
        inside = {name for name in case["names"] if name.startswith(f"{TOKENIZER}.")} - left
        stored = weights(case["names"])
        assert inside == {name for name in again if name.startswith(f"{TOKENIZER}.")}
        for name in inside:
            rows = height(again[name].spec.shape)
            read = decode(again[name], "").read(0, rows)
            assert np.array_equal(np.frombuffer(read, "<f4"), stored[name].ravel()), name
    wb.convert(folder, tmp_path / "t.gguf", tokenizer=False)
    with pytest.raises(UnsupportedError, match="audio_tokenizer has parts that no GGUF has"):
        wb.convert(tmp_path / "t.gguf", tmp_path / "b", to="hf", tokenizer=False, projector=tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("model.safetensors", "", None), ("config.json", "", None), ("config.json", "codebook_size", [12, 20, 9]),
        ("config.json", "codebook_size", [12, 20]), ("config.json", "codebook_size", ["12", 20, 8]),
        ("config.json", "num_quantizers", 1 << 30), ("config.json", "encoder_layers", 1 << 30),
        ("config.json", "encoder_attn_window_size", 24), ("config.json", "codebook_size", {}),
    ],
)  # fmt: skip
def test_a_second_folder_that_does_not_fit_is_refused(file: str, key: str, value: Any, tmp_path: Path) -> None:
    folder = write_folder(golden()["mimo-v2.5"], tmp_path / "tiny-model")
    path = folder / TOKENIZER / file
    if key:
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    else:
        path.unlink()
    with pytest.raises((FormatError, UnsupportedError, UsageError)):
        wb.convert(folder, tmp_path / "m.gguf", mmproj=True)
    assert not (tmp_path / "m.gguf").exists()


def test_a_tensor_of_a_second_folder_that_no_row_has_is_an_error(tmp_path: Path) -> None:
    case = golden()["mimo-v2.5"]
    folder = write_folder({**case, "names": {**case["names"], f"{TOKENIZER}.encoder.x": [2]}}, tmp_path / "tiny-model")
    with pytest.raises(MappingError, match=r"audio_tokenizer\.encoder\.x"):
        wb.convert(folder, tmp_path / "m.gguf", mmproj=True)


def test_nemotron_s_mean_and_deviation_have_other_names(tmp_path: Path) -> None:
    """As published. The reference reads `image_mean` only, and writes ImageNet's numbers."""
    case = golden()["nemotron-vl"]
    theirs = {f"norm_{key.removeprefix('image_')}": value for key, value in case["preprocessor"].items()}
    for preprocessor, name in ((case["preprocessor"], "a"), (theirs, "b")):
        source = write_folder({**case, "preprocessor": preprocessor}, tmp_path / name / "tiny-model")
        wb.convert(source, tmp_path / f"{name}.gguf", mmproj=True)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_qwen_3_omni_hears(tmp_path: Path) -> None:
    """The file has what hears; the plan lists the rest, and says why nothing sees. No folder is made of a part, but one
    of the language model."""
    source = write_folder(golden()["qwen3-omni"], tmp_path / "g")
    plan = wb.plan_convert(source, tmp_path / "m.gguf", mmproj=True)
    listed = {loss.tensor for loss in plan.losses if loss.tensor}
    assert listed == {"code2wav.x.weight", "talker.x.weight", "thinker.visual.x.weight"}
    assert any("no two towers of different widths" in loss.message for loss in plan.losses if loss.effect == "results")
    plan.run()
    wb.convert(source, tmp_path / "t.gguf", tokenizer=False)
    with pytest.raises(UnsupportedError, match="Qwen3OmniMoeForConditionalGeneration has further parts") as error:
        wb.convert(tmp_path / "t.gguf", tmp_path / "b", to="hf", tokenizer=False, projector=tmp_path / "m.gguf")
    assert "a folder with the language model is written" in (error.value.hint or "")
    wb.convert(tmp_path / "t.gguf", tmp_path / "b", to="hf", tokenizer=False)
    wb.convert(tmp_path / "b", tmp_path / "again.gguf", tokenizer=False)
    assert not wb.diff(tmp_path / "t.gguf", tmp_path / "again.gguf").tensors


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_pair_of_published_code_is_a_folder_of_transformers(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    files: dict[str, dict[str, Any]] = {"text.gguf": {"tokenizer": False}, "mmproj.gguf": {"mmproj": True}}
    source, pairs = write_folder(golden()[name], tmp_path / "tiny-model"), []
    for root in (tmp_path, tmp_path / "again"):
        for file, options in files.items():
            wb.convert(source, root / file, dtype="f32", **options)
        pairs.append([sorted(digests(root / file)) for file in files])
        source = tmp_path / "back"
        if not pairs[1:]:
            wb.convert(root / "text.gguf", source, to="hf", tokenizer=False, projector=root / "mmproj.gguf")
    assert pairs[0] == pairs[1]
    config = json.loads((source / "config.json").read_text())
    made = getattr(transformers, config["architectures"][0])
    _, report = made.from_pretrained(source, output_loading_info=True)
    assert not any(report[keys] for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"))


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_of_ggufs_is_a_folder_again(name: str, tmp_path: Path) -> None:
    case = golden()[name]
    source = write_folder(case, tmp_path / "tiny-model")
    wb.convert(source, tmp_path / "text.gguf", dtype="f32", tokenizer=False)
    wb.convert(source, tmp_path / "mmproj.gguf", dtype="f32", mmproj=True)
    lost = wb.plan_convert(source, tmp_path / "mmproj2.gguf", dtype="f32", mmproj=True)
    plan = wb.plan_convert(
        tmp_path / "text.gguf", tmp_path / "back", to="hf", tokenizer=False, projector=tmp_path / "mmproj.gguf"
    )
    assert "mmproj.gguf" in str(plan.sources[-1])
    plan.run()
    before, after = (norms_folded(load_file(folder / "model.safetensors")) for folder in (source, tmp_path / "back"))
    dropped = {loss.tensor for loss in lost.losses if loss.tensor}
    assert before.keys() - dropped == after.keys()
    inexact = {"norm", *(t for t in INEXACT)}
    for key in after:
        if case["config"].get("model_type") == "hunyuan_vl" and "position_embedding" in key:  # the first row isn't read
            before[key][0] = 0
        if not any(part in key for part in inexact):
            assert np.array_equal(before[key], after[key]), key
        assert np.allclose(before[key], after[key], rtol=2**-10, atol=2**-22), key
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    stated = inner(case["config"])
    same = registry_projectors[towers_table(case)].architectures
    assert config["architectures"][0] in same
    restored, original = described(inner(config)), {**described(stated), "vision_use_head": False}
    if config["architectures"] != case["config"]["architectures"]:  # a class with the same GGUFs
        original["model_type"] = restored["model_type"]
    differ = {key for key, value in restored.items() if original.get(key) != value}
    computed_ = {"deepstack_visual_indexes", "num_position_embeddings", "spatial_merge_size", "intermediate_size"}
    assert differ <= computed_ - original.keys()
    if case["preprocessor"]:
        prepared = json.loads((tmp_path / "back" / "preprocessor_config.json").read_text())
        image = case["config"].get("vision_config", {}).get("image_size")
        inside = [case["preprocessor"].get(key, {}) for key in ("media_proc_cfg", "vision_config")]
        before_ = {**case["preprocessor"], **inside[0], **inside[1]}
        assert all(prepared[key] == before_.get(key, {"longest_edge": image}) for key in prepared)


def inner(config: dict[str, Any]) -> dict[str, Any]:
    """The config of a model that thinks, of the whole of which transformers makes only a large model; or the config."""
    return config.get("thinker_config", config)


def described(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that describes a tower."""
    parts = ("vision_config", "encoder_config", "speech_config", "audio_config", "encoder")
    flat = {key: value for key, value in config.items() if key.startswith("vision_")}
    return next((config[part] for part in parts if config.get(part)), flat)


#: Weights that a GGUF has as F16 whatever is requested, and such that the language model's family rounds.
INEXACT = (
    "conv1.weight", "conv2.weight", "conv2d", "conv_out", "mm_input_projection", "A_log", "per_dim_scale",
    "input_proj_linear",
)  # fmt: skip


#: Parts of names of tensors that llama.cpp doesn't read, so that a pair lacks them.
UNREAD: Final = (".head.", "post_layernorm.", "bos_eos", ".vqmodel.", ".generation_")


@pytest.mark.parametrize("name", [name for name in PAIRS if name not in WITHOUT_CLASS])
def test_transformers_computes_the_same_with_the_folder_made_of_a_pair(name: str, tmp_path: Path) -> None:
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("transformers")
    case = golden()[name]
    source = write_folder(case, tmp_path / "tiny-model")
    wb.convert(source, tmp_path / "text.gguf", dtype="f32", tokenizer=False)
    wb.convert(source, tmp_path / "mmproj.gguf", dtype="f32", mmproj=True)
    wb.convert(tmp_path / "text.gguf", tmp_path / "back", to="hf", tokenizer=False, projector=tmp_path / "mmproj.gguf")
    made = class_of_transformers(CASES[name][0])
    states = []
    for folder in (source, tmp_path / "back"):
        alone = {}
        if CASES[name][0] in THINKERS:
            config = json.loads((folder / "config.json").read_text())["thinker_config"]
            alone["config"] = made.config_class(**config)
            rename_thinker(folder, CASES[name][0])
        if "vq_config" in case["config"]:
            alone["vq_config"] = case["config"]["vq_config"]
        model, report = made.from_pretrained(folder, output_loading_info=True, **alone)
        assert not [key for key in report["missing_keys"] if not any(part in key for part in UNREAD)]
        assert not report["unexpected_keys"]
        states.append(model.eval())
    first, second = states
    with torch.inference_mode():
        for x, y in zip(outputs(first, case), outputs(second, case), strict=True):
            assert torch.allclose(x, y, rtol=1e-2, atol=2e-3)


def rename_thinker(folder: Path, class_: str) -> None:
    """Gives the tensors of a folder the names that transformers has for a model without the rest."""
    tensors = load_file(folder / "model.safetensors")
    plain = {name.removeprefix("thinker."): tensor for name, tensor in tensors.items()}
    if class_ == "Qwen3ASR":
        plain = {saved_by_transformers(name): tensor for name, tensor in plain.items()}
    save_file(plain, folder / "model.safetensors", {"format": "pt"})


def outputs(model: Any, case: dict[str, Any]) -> list[Any]:
    """The embeddings that the towers compute for one image or sound, and the language model's logits of five tokens."""
    import torch

    generator = torch.Generator().manual_seed(1)
    if "gemma" in case["config"]["model_type"] and "audio_config" in case["config"]:
        whole = getattr(model, "model", model)  # with a head it needs a pad token, which a tokenizer would bring
        states = whole.language_model(input_ids=torch.arange(5)[None]).last_hidden_state
        return [states, *seen_and_heard(whole, case["config"], generator)]
    logits = model(input_ids=torch.arange(5)[None]).logits
    if "thinker_config" in case["config"]:
        return [logits, *thought(model, inner(case["config"]), generator)]
    if "encoder_config" in case["config"]:
        sound = torch.randn(1, 60, case["config"]["encoder_config"]["input_dim"], generator=generator)
        return [*model.get_audio_features(sound).pooler_output, logits]
    if "audio_config" in case["config"]:
        bins = case["config"]["audio_config"]["num_mel_bins"]
        sound = torch.randn(1, bins, 3000, generator=generator)
        tower = getattr(model, "audio_tower", None) or model.model.audio_tower
        masked = case["config"]["model_type"] == "audioflamingo3"
        mask = {"input_features_mask": torch.ones(1, 3000, dtype=torch.long)} if masked else {}
        return [tower(sound, **mask).last_hidden_state, logits]
    vision = case["config"]["vision_config"]
    if "scale_resolution" in case["preprocessor"]:
        pixels = torch.randn(1, 3, 14, 64 * 14, generator=generator)
        return [*model.get_image_features(pixels, target_sizes=torch.tensor([[8, 8]])).pooler_output, logits]
    if vision["model_type"] == "minimax_m3_vl_vision":
        pixels = torch.randn(16, 3 * 2 * 14**2, generator=generator)
        return [*model.get_image_features(pixels, torch.tensor([[1, 4, 4]])).pooler_output, logits]
    if vision["model_type"] == "paddleocr_vl_vision":
        pixels = torch.randn(16, 3, 14, 14, generator=generator)
        return [*model.get_image_features(pixels, torch.tensor([[1, 4, 4]])).pooler_output, logits]
    if vision["model_type"] == "hunyuan_vl_vision":
        pixels = torch.randn(16, 3 * 14**2, generator=generator)
        return [*model.get_image_features(pixels, torch.tensor([[1, 4, 4]])).pooler_output, logits]
    if vision["model_type"] == "siglip2_vision_model":
        pixels = torch.randn(1, 16, 3 * vision["patch_size"] ** 2, generator=generator)
        whole = {"spatial_shapes": torch.tensor([[4, 4]]), "pixel_attention_mask": torch.ones(1, 16, dtype=torch.long)}
        return [*model.get_image_features(pixels, **whole).pooler_output, logits]
    if "depth" in vision and vision["model_type"] != "janus_vision_model":
        side = 4
        pixels = torch.randn(side * side, 3 * 2 * vision["patch_size"] ** 2, generator=generator)
        image = model.model.visual(pixels, grid_thw=torch.tensor([[1, side, side]]))
        return [getattr(image, "pooler_output", image), logits]
    if case["config"]["model_type"] == "granite4_vision":
        pixels = torch.randn(1, 2, 3, 56, 56, generator=generator)
        fed = model.get_image_features(pixels, image_sizes=torch.tensor([[56, 56]])).deepstack_features
        return [*(torch.cat(parts) for _, parts in sorted(fed, key=lambda pair: pair[0])), logits]
    size = vision["image_size"][0] if isinstance(vision["image_size"], list) else vision["image_size"]
    tiles = [1] if "scale_factor" in case["config"] else []  # Idefics 3 cuts an image into tiles
    pixels = torch.randn(1, *tiles, 3, size, size, generator=generator)
    sizes = {"image_sizes": torch.tensor([[size, size]])} if vision["model_type"] == "pixtral" else {}
    images = getattr(model, "get_image_features", None) or model.model.get_image_features
    features = images(pixels, **sizes)
    pooled = features.last_hidden_state if features.pooler_output is None else features.pooler_output
    return [pooled[0] if isinstance(pooled, list | tuple) else pooled, logits]


def seen_and_heard(model: Any, config: dict[str, Any], generator: Any) -> Iterator[Any]:
    """The embeddings of an image of 6 times 6 patches, and of a sound."""
    import torch

    places = torch.cartesian_prod(torch.arange(6), torch.arange(6))[None]
    vision, audio = config["vision_config"], config["audio_config"]
    side = vision["patch_size"] * (vision["pooling_kernel_size"] if "mm_embed_dim" in vision else 1)
    pixels = torch.rand(1, 36, 3 * side**2, generator=generator)
    yield from model.get_image_features(pixels, image_position_ids=places).pooler_output
    if audio:
        sound = torch.randn(1, 48, audio.get("audio_embed_dim", 64), generator=generator)
        yield model.get_audio_features(sound, torch.ones(1, 48, dtype=torch.bool)).pooler_output


def thought(model: Any, config: dict[str, Any], generator: Any) -> Iterator[Any]:
    """The embeddings of an image and of a sound of a model that thinks."""
    import torch

    if vision := config.get("vision_config"):
        pixels = torch.randn(16, 3 * 2 * vision["patch_size"] ** 2, generator=generator)
        image = model.get_image_features(pixels, torch.tensor([[1, 4, 4]])).pooler_output
        yield image[0] if isinstance(image, tuple) else image
    sound = torch.randn(1, config["audio_config"]["num_mel_bins"], 200, generator=generator)
    yield model.get_audio_features(sound, torch.ones(1, 200, dtype=torch.long)).pooler_output


def test_the_way_out_of_a_missing_tower_is_named(tmp_path: Path) -> None:
    plan = wb.plan_convert(write_folder(golden()["gemma3"], tmp_path / "g"), tmp_path / "t.gguf", tokenizer=False)
    assert any("wb convert SRC DST.gguf --mmproj writes it" in str(loss) for loss in plan.losses)


def test_both_files_in_one_command(tmp_path: Path) -> None:
    source = write_folder(golden()["qwen2.5-vl"], tmp_path / "tiny-model")
    with pytest.raises(UsageError, match="DST must be a folder"):
        wb.convert(source, tmp_path / "one.gguf", with_mmproj=True, tokenizer=False)
    plan = wb.plan_convert(source, f"{tmp_path}/both/", to="gguf", with_mmproj=True, tokenizer=False, dtype="f16")
    assert not [loss for loss in plan.losses if "another part" in str(loss)]
    plan.run()
    wb.convert(source, tmp_path / "alone.gguf", mmproj=True, dtype="f16")
    assert {path.name for path in (tmp_path / "both").iterdir()} == {"both.gguf", "mmproj-Tiny-Model-F16.gguf"}
    assert (tmp_path / "both" / "mmproj-Tiny-Model-F16.gguf").read_bytes() == (tmp_path / "alone.gguf").read_bytes()


@pytest.mark.parametrize(("folder", "file"), [*zip(FOLDERS, golden()["gemma3"]["reference"]["files"], strict=True)])
def test_the_file_beside_has_the_reference_s_name(folder: str, file: str, tmp_path: Path) -> None:
    source = write_folder(golden()["gemma3"], tmp_path / folder)
    plan = wb.plan_convert(source, f"{tmp_path}/out/", to="gguf", with_mmproj=True, tokenizer=False, dtype="f16")
    assert file in plan.names


@pytest.mark.parametrize("name", [name for name, case in golden().items() if case.get("preprocessor")])
def test_a_folder_without_its_preprocessor_is_refused_or_has_noted_defaults(name: str, tmp_path: Path) -> None:
    """Each key that the file sets is named, once: in the error, or in the note on the defaults."""
    folder = write_folder(golden()[name], tmp_path / "m")
    with wb.plan_convert(folder, tmp_path / "whole.gguf", mmproj=True) as plan:
        plan.run()
        assert not any("preprocessor_config.json" in note for note in plan.notes)
    (folder / "preprocessor_config.json").unlink()
    try:
        with wb.plan_convert(folder, tmp_path / "m.gguf", mmproj=True) as plan:
            plan.run()
        (said,) = [note for note in plan.notes if "preprocessor_config.json" in note]
    except (UnsupportedError, FormatError) as error:
        said = str(error)
        assert not (tmp_path / "m.gguf").exists()
        assert "clip.vision.image_mean, clip.vision.image_std" in said or "patch_size" in said
    else:
        before, after = (wb.open(tmp_path / file).metadata for file in ("whole.gguf", "m.gguf"))
        assert all(key in said for key in before if before[key] != after[key])
    assert "preprocessor_config.json" in said


def test_files_of_different_models_are_refused(tmp_path: Path) -> None:
    first, second = golden()["qwen2.5-vl"], golden()["qwen3-vl"]
    wb.convert(write_folder(first, tmp_path / "a"), tmp_path / "a.gguf", tokenizer=False)
    wb.convert(write_folder(second, tmp_path / "b"), tmp_path / "b.gguf", mmproj=True)
    with pytest.raises(UsageError, match=r"width 192 .*language model's have width 64"):
        wb.convert(tmp_path / "a.gguf", tmp_path / "c", to="hf", projector=tmp_path / "b.gguf")
    with pytest.raises(UsageError, match="isn't an mmproj file"):
        wb.convert(tmp_path / "a.gguf", tmp_path / "c", to="hf", projector=tmp_path / "a.gguf")


def test_every_tensor_is_in_one_of_the_two_files_or_listed(tmp_path: Path) -> None:
    """A tensor of the tower that no table knows is refused, not left out."""
    case = json.loads(json.dumps(golden()["gemma3"]))
    case["names"]["vision_tower.vision_model.encoder.layers.1.gate"] = [64]
    with pytest.raises(MappingError, match=r"layers\.1\.gate"):
        wb.convert(write_folder(case, tmp_path / "g"), tmp_path / "m.gguf", mmproj=True)


@pytest.mark.parametrize(
    ("name", "older", "newer"),
    [
        ("gemma3", "vision_tower.vision_model.", "vision_tower."),
        ("lfm2-vl", "model.vision_tower.vision_model.", "model.vision_tower."),
        ("internvl", "model.vision_tower.", "vision_tower."),
        ("llava-siglip", "vision_tower.vision_model.", "vision_tower."),
    ],
)
def test_names_of_transformers_5_are_understood(name: str, older: str, newer: str, tmp_path: Path) -> None:
    """A tower as transformers 5 saves it, which the reference refuses: the file is that of the older names."""
    case = golden()[name]
    old, new = write_folder(case, tmp_path / "old" / "x"), write_folder(case, tmp_path / "new" / "x")
    projector = {"model.multi_modal_projector.": "multi_modal_projector."} if name == "internvl" else {}
    tensors = {renamed(n, {older: newer, **projector}): t for n, t in weights(case["names"]).items()}
    assert tensors.keys() != case["names"].keys()
    save_file(tensors, new / "model.safetensors")
    for folder in (old, new):
        wb.convert(folder, folder.parent / "m.gguf", mmproj=True)
    assert (tmp_path / "old" / "m.gguf").read_bytes() == (tmp_path / "new" / "m.gguf").read_bytes()


def test_dots3_note_saved_by_transformers_converts_to_the_same_files(tmp_path: Path) -> None:
    """Its config has other keys then, and the text's in an object; the names are the published ones."""
    case, roots = golden()["dots3-note"], (tmp_path / "old", tmp_path / "new")
    bias = {f"model.layers.{n}.mlp.gate.e_score_correction_bias": [6] for n in (1, 2, 3)}
    config = {**case["config"], "apply_mla_qkv_lora_rescale": True}
    case = {**case, "config": config, "names": {**case["names"], **bias}}
    older, newer = write_folder(case, roots[0] / "x"), roots[1] / "x"
    class_of_transformers("Dots3Note").from_pretrained(older).save_pretrained(newer)
    (newer / "preprocessor_config.json").write_bytes((older / "preprocessor_config.json").read_bytes())
    saved = json.loads((newer / "config.json").read_text())
    assert "per_layer_config" in saved["text_config"]
    assert "pyramid_num_routed" not in saved["vision_config"]
    for root in roots:
        wb.convert(root / "x", root / "m.gguf", mmproj=True)
        plan = wb.plan_convert(root / "x", root / "t.gguf", tokenizer=False)
        assert not [loss for loss in plan.losses if loss.effect == "results"]
        plan.run()
    assert (roots[0] / "m.gguf").read_bytes() == (roots[1] / "m.gguf").read_bytes()
    for read in (lambda path: record(gguf, path)["keys"], digests):
        assert read(roots[0] / "t.gguf") == read(roots[1] / "t.gguf")


def test_phi_4_counts_patches_in_either_file(tmp_path: Path) -> None:
    """As the reference reads the counts: of preprocessor_config.json, else of config.json."""
    case = json.loads(json.dumps(golden()["phi4-vision"]))
    case["config"]["min_num_patches"] = case["preprocessor"].pop("min_num_patches")
    wb.convert(write_folder(case, tmp_path / "tiny-model"), tmp_path / "m.gguf", mmproj=True, dtype="f16")
    assert record(gguf, tmp_path / "m.gguf")["keys"] == case["reference"]["f16"]["keys"]


def test_the_part_of_a_model_that_draws_is_listed(tmp_path: Path) -> None:
    case = golden()["janus"]
    plan = wb.plan_convert(write_folder(case, tmp_path / "g"), tmp_path / "m.gguf", mmproj=True)
    listed = {loss.tensor for loss in plan.losses if loss.tensor}
    assert listed == {name for name in case["names"] if name.startswith(("model.vqmodel.", "model.generation_"))}


def test_a_block_whose_output_is_not_the_last_is_listed(tmp_path: Path) -> None:
    case = golden()["lfm2-vl"]
    earlier = {**case, "config": {**case["config"], "vision_feature_layer": -2}}
    for record_, listed in ((case, False), (earlier, True)):
        plan = wb.plan_convert(write_folder(record_, tmp_path / str(listed)), tmp_path / "m.gguf", mmproj=True)
        assert any("vision_feature_layer" in str(loss) for loss in plan.losses) == listed


def test_both_spellings_of_a_class_convert_to_the_same_files(tmp_path: Path) -> None:
    """LightOnOCR as published, and as transformers 5 saves it, which the reference refuses."""
    case = golden()["lightonocr"]
    other = {**case, "config": {**case["config"], "architectures": ["LightOnOcrForConditionalGeneration"]}}
    for parent, record_ in (("old", case), ("new", other)):
        folder = write_folder(record_, tmp_path / parent / "x")
        wb.convert(folder, tmp_path / parent / "m.gguf", mmproj=True)
        wb.convert(folder, tmp_path / parent / "t.gguf", tokenizer=False)
    for file in ("m.gguf", "t.gguf"):
        assert (tmp_path / "old" / file).read_bytes() == (tmp_path / "new" / file).read_bytes()


def test_gemma_3n_has_the_blocks_of_timm() -> None:
    """All names and shapes of `mobilenetv5_300m_enc` as timm 1.0.31 makes it: a digest of its lines. The case's tower
    has the same blocks, narrower."""
    case = json.loads(json.dumps(golden()["gemma3n"]["config"]))
    case["vision_config"]["hidden_size"] = 2048
    table = registry_projectors["gemma3n"]
    places = table.expansion("hf", table.sizes_from_hf(case)).places.items()
    start = "model.vision_tower.timm_model."
    blocks = sorted((name.removeprefix(start), [*place.shape]) for name, place in places if name.startswith(start))
    text = "".join(f"{name} {shape}\n" for name, shape in blocks)
    assert hashlib.sha256(text.encode()).hexdigest() == TIMM


TIMM: Final = "3e3e4a316b16cde14ef4516d241a9084d94a758521499377bd4bad5130b0c048"

#: A table's field and its change, which the golden must show.
FAULTS: Final[dict[str, Callable[[Any], Any]]] = {
    "names": lambda names: {dialect: f"{name}x" for dialect, name in names.items()},
    "shape": lambda shape: f"2*({shape.partition(',')[0]}){shape[len(shape.partition(',')[0]) :]}",
    "shapes": lambda shapes: {},
    "layout": lambda layout: [] if isinstance(layout, list) else {},
    "gguf_dtype": lambda dtype: {"F32": "F16", "F16": "F32"}.get(dtype, "F16"),
    "name": lambda name: f"{name}x",
    "type": lambda kind: "f32" if kind == "u32" else "i32",
    "config": lambda config: ["nothing"],
    "value": lambda value: (
        not value
        if isinstance(value, bool)
        else f"{value}x"
        if isinstance(value, str)
        else [*value, 1.0]
        if isinstance(value, list)
        else value + 1
    ),
    "omit_if": lambda value: value + 1,
    "when": lambda when: {"nothing": ["*"]},
    "map": lambda values: {key: f"{value}x" for key, value in values.items()},
    "layers": lambda layers: None,
    "roles": lambda roles: roles[::-1],
    "order": lambda order: {},
    "index": lambda index: "",
}


def entries_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a table by section: those of a section by name or number."""
    fuses = {f"fuse.{dialect}": fuses for dialect, fuses in document.get("fuse", {}).items()}
    return {
        "role": document["role"], "key": dict(enumerate(document["meta"]["key"])),
        "layers": document.get("layers", {}), **fuses,
    }  # fmt: skip


def faults(table: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields a label and the damaged table for each fault."""
    for section, entries in entries_of(projector_document(table)).items():
        for entry, fields in entries.items():
            for field in sorted(FAULTS.keys() & fields.keys()):
                document = copy.deepcopy(projector_document(table))
                changed = entries_of(document)[section][entry]
                changed[field] = FAULTS[field](changed[field])
                yield f"{section} {entry}: {field}", document


Intact = Callable[[str, str], tuple[Path, bytes | None]]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Intact:
    """The folder of a case, and the digest of the file that its table makes of it, which is the reference's by the
    first test of this file."""
    root = tmp_path_factory.mktemp("intact")

    @cache
    def of(name: str, outtype: str) -> tuple[Path, bytes | None]:
        folder = root / name / "tiny-model"
        if not folder.exists():
            write_folder(golden()[name], folder)
        return folder, digest_of_projector(folder, root / f"{name}-{outtype}.gguf", outtype)

    return of


def digest_of_projector(folder: Path, target: Path, outtype: str) -> bytes | None:
    """None if the conversion is refused."""
    try:
        wb.convert(folder, target, mmproj=True, dtype=outtype)
    except WeighbridgeError:
        return None
    return hashlib.sha256(target.read_bytes()).digest()


@pytest.mark.parametrize("table", projector_texts())
def test_a_fault_in_a_table_is_seen(
    table: str, intact: Intact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each field of a table wrong: the conversion of a case fails or makes another file."""
    before = {(name, outtype): intact(name, outtype) for name in cases_of(table) for outtype in ("f16", "bf16")}
    assert all(digest is not None for _, digest in before.values())
    tables = dict(registry_projectors)
    monkeypatch.setattr(registry, "projectors", lambda: tables)
    monkeypatch.setattr(registry, "_projector", tables.__getitem__)
    target, unseen = tmp_path / "m.gguf", []
    for label, document in faults(table):
        try:
            tables[table] = build_family(document)
        except UsageError:
            continue
        if all(digest_of_projector(folder, target, key[1]) == old for key, (folder, old) in before.items()):
            unseen.append(label)
    assert unseen == []


registry_projectors = registry.projectors()


def towers_table(case: dict[str, Any]) -> str:
    class_ = case["config"]["architectures"][0]
    return next(name for name, table in registry_projectors.items() if class_ in table.architectures)


#: The table of each case, found before a test replaces tables.
TABLES_OF: Final = {name: registry.projector_of_hf(case["config"]) for name, case in golden().items()}


def cases_of(table: str) -> list[str]:
    return [name for name, family in TABLES_OF.items() if family is registry_projectors[table]]


def test_every_class_has_a_case() -> None:
    recorded = {case["config"]["architectures"][0] for case in golden().values()}
    classes = [a for table in registry_projectors.values() for a in table.architectures.values()]
    assert {a.name for a in classes} == recorded - {alias for a in classes for alias in a.aliases}


@pytest.mark.parametrize("table", projector_texts())
def test_a_table_is_well_formed(table: str) -> None:
    build_family(projector_document(table))


def test_a_config_s_projector_is_the_first_table_that_has_its_class() -> None:
    """Only tables whose text contains the class are parsed, so none of them may have it from a mixin."""
    for table in registry_projectors.values():
        for a in table.architectures.values():
            stated = {"architectures": [a.name], "model_type": a.model_type}
            configs: list[dict[str, Any]] = [stated, {"model_type": a.model_type}]
            for config in (*configs, {"architectures": [*a.aliases, a.name][:1]}):
                expected = next((t for t in registry_projectors.values() if t.architecture(config) is not None), None)
                assert registry.projector_of_hf(config) is expected
    for listed in ([], [7], ["LlamaForCausalLM"]):
        assert registry.projector_of_hf({"architectures": listed}) is None
