"""Forms of a model that are never written: read in any order they have the bytes that are written of it."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import weighbridge as wb
from weighbridge.base.errors import UsageError
from weighbridge.conversion.forms import views
from weighbridge.conversion.forms.library import FORMS, ModelForms
from weighbridge.conversion.forms.shelf import ModelFolder
from weighbridge.conversion.forms.views import SlabCache

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "torch_dtype": "float16", "tie_word_embeddings": False,
}  # fmt: skip


def gguf(folder: Path) -> Path:
    """A small Llama in F16, whose rows hold K-quants' blocks."""
    rng = np.random.default_rng(1)
    weights = {"embed_tokens": (128, 256), "norm": (256,)}
    for i in range(2):
        for name, shape in {"self_attn.q_proj": (256, 256), "self_attn.k_proj": (128, 256), "mlp.gate_proj": (512, 256),
                            "self_attn.v_proj": (128, 256), "self_attn.o_proj": (256, 256), "mlp.up_proj": (512, 256),
                            "mlp.down_proj": (256, 512), "input_layernorm": (256,),
                            "post_attention_layernorm": (256,)}.items():  # fmt: skip
            weights[f"layers.{i}.{name}"] = shape
    tensors = {f"model.{name}.weight": rng.standard_normal(s).astype(np.float16) for name, s in weights.items()}
    tensors["lm_head.weight"] = rng.standard_normal((128, 256)).astype(np.float16)
    hf = folder / "tiny"
    hf.mkdir(parents=True)
    (hf / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, hf / "model.safetensors", {"format": "pt"})
    models = folder / "models"
    models.mkdir()
    wb.convert(hf, models / "tiny.gguf", dtype="f16", tokenizer=False)
    return models / "tiny.gguf"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf(tmp_path_factory.mktemp("forms"))


def written(model: Path, form: str, folder: Path) -> dict[str, bytes]:
    """The files that the commands write."""
    if form in ("safetensors", "mlx-4bit", "mlx-8bit"):
        options = {"to": "hf"} if form == "safetensors" else {"to": "mlx", "q_bits": int(form[4])}
        wb.convert(model, folder / "out", **options)
        return {p.name: p.read_bytes() for p in (folder / "out").iterdir()}
    wb.quantize(model, folder / "out.gguf", form)
    return {f"{model.stem}-{form}.gguf": (folder / "out.gguf").read_bytes()}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_has_the_bytes_that_are_written(form: str, model: Path, tmp_path: Path) -> None:
    with ModelForms(model, (form,)) as forms:
        found = forms.files(form)
        assert not forms.reasons
        expected = written(model, form, tmp_path)
        assert {name: file.read(0, file.size) for name, file in found.items()} == expected


def test_any_ranges_in_any_order_from_a_small_cache(model: Path, tmp_path: Path) -> None:
    data = written(model, "Q4_K_M", tmp_path)["tiny-Q4_K_M.gguf"]
    rng = random.Random(4)
    cache = SlabCache(2, limit=100_000)
    with ModelForms(model, ("Q4_K_M",), cache) as forms:
        (file,) = forms.files("Q4_K_M").values()
        for _ in range(60):
            at = rng.randrange(len(data))
            length = rng.randrange(1, 1 << 17)
            assert file.read(at, length) == data[at : at + length]
        assert file.read(len(data), 5) == b""
        assert file.read(len(data) - 3, 50) == data[-3:]
    cache.close()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[views._Slab]:
    """The slabs in the order in which they are computed."""
    found: list[views._Slab] = []
    compute = views._compute

    def counted(slab: views._Slab) -> bytes:
        found.append(slab)
        return compute(slab)

    monkeypatch.setattr(views, "_compute", counted)
    return found


def test_a_random_read_computes_one_slab(model: Path, computed: list[views._Slab]) -> None:
    with ModelForms(model, ("Q8_0",)) as forms:
        (file,) = forms.files("Q8_0").values()
        file.read(file.size // 2, 64)
        assert len(computed) == 1
        file.read(file.size // 2, 64)
        assert len(computed) == 1


def test_random_reads_compute_one_slab_each(model: Path, computed: list[views._Slab]) -> None:
    """Reads that lie in one slab: that one is computed, and none beside it."""
    with ModelForms(model, ("F16",), cache := SlabCache(2, limit=1)) as forms:
        (file,) = (f for f in forms.files("F16").values() if isinstance(f, views.PlannedBytes))
        wide = [slab for slab in file._slabs if slab.end - slab.start >= 1 << 17]
        assert len(wide) > 5
        rng = random.Random(2)
        for slab in rng.sample(wide[::2], len(wide[::2])):  # none is the next of the one before
            computed.clear()
            file.read(rng.randrange(slab.start, slab.end - (1 << 17) + 1), 1 << 17)
            assert computed == [slab]
    cache.close()


def test_a_file_that_is_only_called_model_has_its_folder_s_name(model: Path, tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    shutil.copy(model, tmp_path / "llama" / "model.gguf")
    with ModelFolder(tmp_path / "llama", ("Q8_0",)) as shelf:
        assert shelf.repositories() == ("llama", "llama-GGUF")
        assert set(shelf.files("llama-GGUF") or {}) == {"llama-Q8_0.gguf"}


def test_etags_follow_the_bytes(model: Path, tmp_path: Path) -> None:
    with ModelForms(model, ("Q8_0", "Q4_0")) as a, ModelForms(model, ("Q8_0",)) as b:
        (one,), (other,), (same,) = (f.values() for f in (a.files("Q8_0"), a.files("Q4_0"), b.files("Q8_0")))
        assert one.etag == same.etag != other.etag


def test_a_form_that_a_model_can_not_take_has_a_reason(model: Path, tmp_path: Path) -> None:
    wb.quantize(model, tmp_path / "small.gguf", "Q4_K_M")
    with ModelForms(tmp_path / "small.gguf", ("Q8_0",)) as forms:
        assert forms.files("Q8_0") == {}
        assert "quantized" in forms.reasons["Q8_0"]


def test_unknown_forms_name_the_known_ones(model: Path) -> None:
    with pytest.raises(UsageError) as caught:
        ModelForms(model, ("Q9",))
    assert "Q4_K_M" in str(caught.value.hint)


def test_a_shelf_knows_its_repositories_and_nothing_else(model: Path) -> None:
    with ModelFolder(model.parent, ("Q8_0", "safetensors")) as shelf:
        assert shelf.repositories() == ("tiny", "tiny-GGUF", "tiny-safetensors")
        assert set(shelf.files("tiny") or {}) == {"tiny.gguf"}
        assert set(shelf.files("tiny-GGUF") or {}) == {"tiny-Q8_0.gguf"}
        for name in ("..", "tiny/..", "", "nothing", "tiny-mlx-4bit", "../models/tiny"):
            assert not shelf.files(name)
        assert [shelf.known(name) for name in ("tiny", "TINY-GGUF", "none")] == ["tiny", "tiny", None]
        assert shelf.gguf("tiny", "Q8_0") is not None
        assert shelf.gguf("tiny", "../Q8_0") is None


def test_a_folder_without_models(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no model"):
        ModelFolder(tmp_path, FORMS)
    with pytest.raises(FileNotFoundError):
        ModelFolder(tmp_path / "none", FORMS)
    for name, data in {"passwd": b"root:x:0:0:root:/root:/bin/bash\n", "a.json": b'{"a": 1}', "b.gguf": b""}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UsageError, match="holds no model"):
            ModelFolder(tmp_path / name, FORMS)
