"""An image and a sound through our mmproj files: llama.cpp's tower gives the embeddings that transformers computes from
the folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.models.projector_cases import CASES, golden, write_folder
from tests.models.record_projectors import class_of_transformers

import weighbridge as wb
from weighbridge.adapters.runtimes.process import RuntimeProcess
from weighbridge.models.llamacpp.pair import projected_widths
from weighbridge.models.llamacpp.towers import candidate_of
from weighbridge.models.open import open_model
from weighbridge.reports.prove.images import language_model

torch = pytest.importorskip("torch", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")
pytest.importorskip("transformers", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")

#: Of the largest value. ggml computes convolutions and GELU in F16.
TOLERANCE: Final = 2e-3
Features = Callable[..., Any]


def whole(features: Features, image: Any, patch: int) -> Any:
    return features(image)


def one_tile(features: Features, image: Any, patch: int) -> Any:
    return features(image[:, None])


def with_size(features: Features, image: Any, patch: int) -> Any:
    return features(image, image_sizes=torch.tensor([image.shape[-2:]]))


def patches(image: Any, patch: int, merge: int = 1) -> Any:
    """[patches, channels, patch, patch] of an image [1, channels, height, width], those that are merged together."""
    _, channels, height, width = image.shape
    split = (channels, height // patch // merge, merge, patch, width // patch // merge, merge, patch)
    return image[0].reshape(split).permute(1, 4, 2, 5, 0, 3, 6).reshape(-1, channels, patch, patch)


def grid(image: Any, patch: int) -> Any:
    return torch.tensor([[1, image.shape[-2] // patch, image.shape[-1] // patch]])


def twice_in_time(features: Features, image: Any, patch: int) -> Any:
    """As of a video of two frames, in blocks of four patches."""
    cut = patches(image, patch, 2)[:, :, None].expand(-1, -1, 2, -1, -1)
    return features(cut.reshape(len(cut), -1), image_grid_thw=grid(image, patch))


def frame_by_frame(features: Features, image: Any, patch: int) -> Any:
    """As of a video of two frames, one after the other; without the norm that llama.cpp's language model has."""
    features.__self__.model.perception_emb_norm = torch.nn.Identity()  # type: ignore[attr-defined]
    frames = patches(image, patch)[:, None].expand(-1, 2, -1, -1, -1)
    return features(frames.reshape(len(frames), -1), image_grid_thw=grid(image, patch))


def cut(features: Features, image: Any, patch: int) -> Any:
    return features(patches(image, patch), image_grid_thw=grid(image, patch))


def in_squares(features: Features, image: Any, patch: int) -> Any:
    """In blocks of four patches."""
    return features(patches(image, patch, 2).flatten(1), image_grid_thw=grid(image, patch))


def channels_last(image: Any, patch: int) -> Any:
    return patches(image, patch).permute(0, 2, 3, 1).flatten(1)[None]


def siglip2(features: Features, image: Any, patch: int) -> Any:
    pixels, shapes = channels_last(image, patch), grid(image, patch)[:, 1:]
    mask = torch.ones(1, pixels.shape[1], dtype=torch.long)
    return features(pixels, spatial_shapes=shapes, pixel_attention_mask=mask)


def in_a_strip(features: Features, image: Any, patch: int) -> Any:
    strip = patches(image, patch).permute(1, 2, 0, 3).reshape(1, image.shape[1], patch, -1)
    return features(strip, target_sizes=grid(image, patch)[:, 1:])


def tiled(features: Features, image: Any, patch: int) -> Any:
    """Whole and as its only tile; the features in the order of the layers that they feed."""
    found = features(image[:, None].expand(-1, 2, -1, -1, -1), image_sizes=torch.tensor([image.shape[-2:]]))
    first, *others = (torch.cat(parts) for _, parts in sorted(found.deepstack_features, key=lambda pair: pair[0]))
    return SimpleNamespace(pooler_output=first, deepstack_features=others)


def with_places(features: Features, image: Any, patch: int) -> Any:
    axes = (torch.arange(side // patch) for side in image.shape[:-3:-1])
    places = torch.stack(torch.meshgrid(*axes, indexing="xy"), -1).reshape(1, -1, 2)
    return features(channels_last(image, patch), places)


class Seen(NamedTuple):
    """`side`: of the image, in pixels, so that llama.cpp doesn't resize it. `config` and `shapes`: what differs from
    the recorded folder, whose table of positions is too small for such an image."""

    features: Callable[[Features, Any, int], Any]
    side: int
    config: Mapping[str, Any] = {}
    shapes: Mapping[str, list[int]] = {}


_TABLE: Final = "model.vision_tower.patch_embedder.position_embedding_table"
_ROWS: Final = "model.vision_tower.embeddings.position_embedding.weight"
SEEN: Final[dict[str, Seen]] = {
    **dict.fromkeys(("gemma3", "gemma3-tokens", "cohere2-vision", "janus", "janus-silu", "llama4"), Seen(whole, 56)),
    **dict.fromkeys(("pixtral", "lightonocr", "lightonocr-gelu"), Seen(with_size, 56)),
    **dict.fromkeys(("llava-siglip", "llava-siglip-layers"), Seen(whole, 56)),
    "mistral3": Seen(with_size, 112), "internvl": Seen(whole, 56), "smolvlm": Seen(one_tile, 56),
    **dict.fromkeys(("qwen2-vl", "qwen2.5-vl", "exaone-4.5"), Seen(twice_in_time, 112)),
    **dict.fromkeys(("glm-4v", "glm-4v-gelu", "glm-ocr", "minimax-m3"), Seen(twice_in_time, 112)),
    **dict.fromkeys(("qwen3-vl", "qwen3.5", "qwen4-exp"), Seen(twice_in_time, 128)),
    "dots3-note": Seen(in_squares, 112), "glm-5.3": Seen(twice_in_time, 56), "granite4-vision": Seen(tiled, 56),
    "muse-glimmer": Seen(frame_by_frame, 112),
    "paddleocr-vl": Seen(cut, 112),
    "lfm2-vl": Seen(siglip2, 512), "lfm2-vl-plain": Seen(siglip2, 256),
    "minicpm-v-4.6": Seen(in_a_strip, 112, {"image_size": 980}, {_ROWS: [4900, 64]}),
    "gemma4": Seen(with_places, 378, {"position_embedding_size": 64}, {_TABLE: [2, 64, 64]}),
}  # fmt: skip
#: Models of whose table of positions llama.cpp adds each row to the patch before: it puts the class token behind the
#: patches, but the table has its row first (tools/mtmd/models/internvl.cpp, b11549).
SHIFTED: Final = ("internvl",)
#: Models whose tokens llama.cpp hands on column by column (tools/mtmd/models/llama4.cpp, b11549).
TRANSPOSED: Final = ("llama4",)
#: Models between whose rows of tokens llama.cpp puts the row of [IMG_BREAK], as their processors put the token.
BROKEN: Final = ("pixtral", "mistral3")


def image_of(side: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)


def pixels(image: NDArray[np.uint8], preprocessor: Mapping[str, Any]) -> Any:
    """Normalized, [1, channels, height, width]."""
    stated = preprocessor.get("vision_config", preprocessor)
    mean, deviation = (np.array(stated.get(key, [0.5] * 3)) for key in ("image_mean", "image_std"))
    return torch.tensor(((image / 255 - mean) / deviation).transpose(2, 0, 1)[None], dtype=torch.float32)


def by_llama_cpp(mmproj: Path, width: int, media: NDArray[Any]) -> NDArray[np.float32]:
    """[tokens, width], of an image or a sound."""
    text, saved = mmproj.with_name("text.gguf"), mmproj.with_name("media.npy")
    text.write_bytes(language_model(width))
    np.save(saved, media)
    with RuntimeProcess("mtmd", mmproj, {"text": str(text)}) as runtime:
        return runtime.media(saved)


def by_transformers(name: str, folder: Path, image: Any, seen: Seen) -> NDArray[np.float32]:
    """[tokens, width]; the features of deeper layers behind one another, as llama.cpp has them."""
    model = class_of_transformers(CASES[name][0]).from_pretrained(folder).eval()
    inner = model if hasattr(model, "get_image_features") else model.model
    if name in SHIFTED:
        table = inner.model.vision_tower.embeddings.position_embeddings
        table.data = table.data.roll(1, 1)
    patch = model.config.vision_config.patch_size
    with torch.inference_mode():
        found = seen.features(inner.get_image_features, image, patch[0] if isinstance(patch, list | tuple) else patch)
        if getattr(found, "pooler_output", None) is None:  # Llama 4 projects outside
            return np.asarray(model.multi_modal_projector(found.last_hidden_state)[0])
    parts = [found.pooler_output, *(getattr(found, "deepstack_features", None) or ())]
    tensors = [part[0] if isinstance(part, list | tuple) else part for part in parts]
    return np.concatenate([np.asarray(t.reshape(-1, t.shape[-1])) for t in tensors], axis=1)


def in_order(name: str, tokens: NDArray[np.float32]) -> NDArray[np.float32]:
    """llama.cpp's tokens of a square image, [tokens, width], in transformers' order."""
    side = math.isqrt(len(tokens))
    if name in TRANSPOSED:
        return tokens.reshape(side, side, -1).swapaxes(0, 1).reshape(tokens.shape)
    return np.delete(tokens, slice(side, None, side + 1), axis=0) if name in BROKEN else tokens


def folder_of(name: str, path: Path) -> Path:
    case, seen = golden()[name], SEEN[name]
    config = {**case["config"], "vision_config": {**case["config"]["vision_config"], **seen.config}}
    return write_folder({**case, "config": config, "names": {**case["names"], **seen.shapes}}, path)


@pytest.mark.parametrize("name", SEEN)
def test_llama_cpp_sees_what_transformers_sees(name: str, tmp_path: Path) -> None:
    case, seen = golden()[name], SEEN[name]
    config = {**case["config"], "vision_config": {**case["config"]["vision_config"], **seen.config}}
    folder = write_folder(
        {**case, "config": config, "names": {**case["names"], **seen.shapes}}, tmp_path / "tiny-model"
    )
    wb.convert(folder, tmp_path / "mmproj.gguf", mmproj=True, dtype="f32")
    image = image_of(seen.side)
    expected = by_transformers(name, folder, pixels(image, case["preprocessor"]), seen)
    found = by_llama_cpp(tmp_path / "mmproj.gguf", expected.shape[1], image)
    found = in_order(
        name, found[-len(expected) :] if name == "smolvlm" else found
    )  # which llama.cpp shows whole and cut
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_llama_cpp_sees_what_transformers_sees_with_radio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nemotron Nano VL, as published, which transformers has under another class. It resizes positions without aligning
    the corners of the grids, unlike the reference converter."""
    from transformers import NemotronH_Omni_Reasoning_V3
    from transformers.models.radio import modeling_radio

    case = golden()["nemotron-vl"]
    folder = write_folder(case, tmp_path / "tiny-model")
    wb.convert(folder, tmp_path / "mmproj.gguf", mmproj=True, dtype="f32")
    config, tower = case["config"], case["config"]["vision_config"]
    vision = {**tower, "mlp_ratio": 2.0, "max_img_size": 112, "video_temporal_patch_size": 2}
    text = {key: value for key, value in config["llm_config"].items() if key != "num_hidden_layers"}
    text["layers_block_type"] = ["linear_attention", "mlp", "full_attention"]
    theirs = {"architectures": ["NemotronH_Omni_Reasoning_V3"], "model_type": "nemotron_h_omni", "text_config": text}
    kept = {key: config[key] for key in ("force_image_size", "downsample_ratio", "projector_hidden_size")}
    (folder / "config.json").write_text(
        json.dumps({**theirs, **kept, "vision_config": vision, "vision_hidden_size": 64})
    )
    model: Any = NemotronH_Omni_Reasoning_V3.from_pretrained(folder).eval()
    resize = torch.nn.functional.interpolate
    aligned = {**vars(torch.nn.functional), "interpolate": lambda x, **how: resize(x, **{**how, "align_corners": True})}
    monkeypatch.setattr(modeling_radio, "F", SimpleNamespace(**aligned))
    image = image_of(64)
    flat = patches(pixels(image, case["preprocessor"]), 16).flatten(1)
    with torch.inference_mode():
        expected = np.asarray(model.get_image_features(flat, image_grid_hw=torch.tensor([[4, 4]])).pooler_output[0])
    found = by_llama_cpp(tmp_path / "mmproj.gguf", 64, image)
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("name", SEEN)
def test_a_quantized_file_computes_nearly_the_same(name: str, tmp_path: Path) -> None:
    exact, small = tmp_path / "exact.gguf", tmp_path / "small.gguf"
    wb.convert(folder_of(name, tmp_path / "tiny-model"), exact, mmproj=True, dtype="f32")
    wb.quantize(exact, small, "Q8_0")
    with open_model(exact) as model:
        width = next(projected_widths(candidate_of(model))).size
    x, y = (by_llama_cpp(path, width, image_of(SEEN[name].side)).ravel() for path in (exact, small))
    assert 1 - np.dot(x, y) / np.linalg.norm(x) / np.linalg.norm(y) < 1e-3


RATE: Final = 16_000  # samples a second


@pytest.mark.parametrize("name", ["qwen2-audio", "audio-flamingo"])
def test_llama_cpp_hears_what_transformers_hears(name: str, tmp_path: Path) -> None:
    """Thirty seconds, which neither pads; the spectrogram is that of either."""
    from transformers import WhisperFeatureExtractor

    folder = write_folder(golden()[name], tmp_path / "tiny-model")
    wb.convert(folder, tmp_path / "mmproj.gguf", mmproj=True, dtype="f32")
    seconds = np.arange(30 * RATE) / RATE
    noise = np.random.default_rng(0).normal(0, 0.1, seconds.shape)
    sound = (np.sin(2 * np.pi * 440 * seconds * (1 + seconds / 20)) * 0.3 + noise).astype(np.float32)
    model = class_of_transformers(CASES[name][0]).from_pretrained(folder).eval()
    bins = golden()[name]["config"]["audio_config"]["num_mel_bins"]
    mel = WhisperFeatureExtractor(feature_size=bins)(sound, sampling_rate=RATE, return_tensors="pt").input_features
    inner = getattr(model, "model", model)
    masked = {"input_features_mask": torch.ones(1, mel.shape[2], dtype=torch.long)} if name == "audio-flamingo" else {}
    with torch.inference_mode():
        expected = np.asarray(inner.multi_modal_projector(inner.audio_tower(mel, **masked).last_hidden_state)[0])
    found = by_llama_cpp(tmp_path / "mmproj.gguf", expected.shape[1], sound)[: len(expected)]
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_llama_cpp_hears_what_transformers_hears_with_dots3_note(tmp_path: Path) -> None:
    """Three seconds and a part of a frame, which neither pads to a minute."""
    from transformers import Dots3NoteFeatureExtractor

    folder = write_folder(golden()["dots3-note"], tmp_path / "tiny-model")
    wb.convert(folder, tmp_path / "mmproj.gguf", mmproj=True, dtype="f32")
    sound = np.random.default_rng(0).normal(0, 0.2, 3 * RATE + 40).astype(np.float32)
    model = class_of_transformers("Dots3Note").from_pretrained(folder).eval()
    heard = Dots3NoteFeatureExtractor(feature_size=16)(sound, sampling_rate=RATE)
    with torch.inference_mode():
        expected = np.asarray(
            model.get_audio_features(heard["input_features"], heard["chunk_sample_lengths"]).pooler_output
        )
    found = by_llama_cpp(tmp_path / "mmproj.gguf", expected.shape[1], sound)
    assert len(found) == math.ceil(len(sound) / 1280)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()
