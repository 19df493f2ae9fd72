"""What hears a voice, predicts and makes sound, through our mmproj files: llama.cpp computes the same as torch from the
folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.projector_cases import golden, write_folder
from tests.models.test_images_in_llamacpp import by_llama_cpp

import weighbridge as wb
from weighbridge.reports.prove.images import language_model

torch = pytest.importorskip("torch", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")
pytest.importorskip("xllamacpp", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")
from tests.oracles import mtmd_speech, torch_speech  # noqa: E402  # they need both

pytestmark = pytest.mark.oracle
#: Of the largest value. ggml computes convolutions and GELU in F16.
TOLERANCE: Final = 4e-3
WIDTH: Final = 64


class Speaker:
    """A recorded folder whose sound is neither silent nor cut off at 1, its tensors by their start, and its file."""

    def __init__(self, name: str, path: Path, quiet: Mapping[str, float], weights: str) -> None:
        self.folder, self.mmproj, self.text = write_folder(golden()[name], path / "g"), path / "m.gguf", path / "t.gguf"
        stored = load_file(self.folder / weights)
        for part, factor in quiet.items():
            stored |= {n: np.float32(factor) * t for n, t in stored.items() if part in n}
        stored |= {n: np.abs(t) + np.float32(0.5) for n, t in stored.items() if n.endswith("cluster_usage")}
        save_file(stored, self.folder / weights, {"format": "pt"})
        wb.convert(self.folder, self.mmproj, mmproj=True, dtype="f32")
        self.text.write_bytes(language_model(WIDTH))

    def tensors(self, start: str = "", weights: str = "model.safetensors") -> dict[str, Any]:
        stored = load_file(self.folder / weights)
        return {n.removeprefix(start): torch.tensor(t) for n, t in stored.items() if n.startswith(start)}

    def generates(self, **given: Any) -> dict[str, Any]:
        return mtmd_speech.generated(self.mmproj, self.text, given)

    def hears(self, sound: Any) -> Any:
        return by_llama_cpp(self.mmproj, WIDTH, sound)


VOCODER: Final = "speech_tokenizer/model.safetensors"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Speaker:
    quiet = {".conv.weight": 0.25, "layers.": 0.25, "decoder.decoder.6.conv.": 0.02}
    return Speaker("qwen3-tts", tmp_path_factory.mktemp("qwen"), quiet, VOCODER)


@pytest.fixture(scope="module")
def pocket(tmp_path_factory: pytest.TempPathFactory) -> Speaker:
    quiet = {"mimi.decoder.model.11.": 2.0**-11}
    return Speaker("pocket-tts", tmp_path_factory.mktemp("pocket"), quiet, "model.safetensors")


def drawn(*shape: int) -> Any:
    return np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)


def assert_near(found: Any, expected: Any) -> None:
    found, expected = np.asarray(found).ravel(), np.asarray(expected).ravel()
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected - expected.mean()).max()


def test_llama_cpp_hears_a_speaker_as_torch_does(qwen: Speaker) -> None:
    sound = 0.1 * drawn(48_000)
    with torch.inference_mode():
        expected = torch_speech.speaker(qwen.tensors("speaker_encoder."), torch_speech.spectrogram(torch.tensor(sound)))
    assert_near(qwen.hears(sound), expected)


def test_llama_cpp_predicts_the_same_codes(qwen: Speaker) -> None:
    config, hidden, code = golden()["qwen3-tts"]["config"]["talker_config"]["code_predictor_config"], drawn(WIDTH), 5
    first = qwen.tensors()["talker.model.codec_embedding.weight"][code]
    with torch.inference_mode():
        codes, total = torch_speech.predicted(
            qwen.tensors("talker.code_predictor."), config, torch.tensor(hidden), first
        )
    found = qwen.generates(embd=hidden, code0=np.int32(code))
    assert found["codes"].tolist() == [code, *codes]
    assert_near(found["embd"], total)


def test_llama_cpp_makes_the_same_sound_of_codes(qwen: Speaker) -> None:
    config = golden()["qwen3-tts"]["files"]["speech_tokenizer/config.json"]["decoder_config"]
    codes = np.random.default_rng(0).integers(0, config["codebook_size"], (config["sliding_window"], 16))
    with torch.inference_mode():
        expected = torch_speech.vocoded(qwen.tensors("decoder.", VOCODER), config, torch.tensor(codes.T))
    assert 0.01 < expected.abs().max() < 1
    assert_near(qwen.generates(codes=codes.astype(np.int32))["audio"], expected)


def test_llama_cpp_hears_a_voice_as_torch_does(pocket: Speaker) -> None:
    sound = 0.1 * drawn(12 * 1920)
    with torch.inference_mode():
        expected = torch_speech.heard(pocket.tensors(), torch.tensor(sound))
    assert_near(pocket.hears(sound), expected)


def test_llama_cpp_predicts_the_same_latent(pocket: Speaker) -> None:
    hidden = drawn(WIDTH)
    with torch.inference_mode():
        expected = torch_speech.flowed(pocket.tensors(), torch.tensor(hidden))
        total = torch_speech.linear(pocket.tensors(), "flow_lm.input_linear", expected)
    found = pocket.generates(embd=hidden)
    assert_near(found["feats"], expected)
    assert_near(found["embd"], total)


def test_llama_cpp_makes_the_same_sound_of_latents(pocket: Speaker) -> None:
    latents = drawn(3, golden()["pocket-tts"]["config"]["latent_size"])
    with torch.inference_mode():
        expected = torch_speech.sounded(pocket.tensors(), torch.tensor(latents))
    assert 1e-4 < expected.abs().max() < 1
    assert_near(pocket.generates(feats=latents)["audio"], expected)
