"""A file is what its bytes say: one row a format (a small real file, the verdict), and the laws over all of them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.samples import dcp_metadata, recorded
from tests.containers import packed_files
from tests.containers.framework_files import llama2c, mindspore, openvino, table
from tests.examples import examples
from tests.reports import makers as m

from weighbridge.containers import BUILT_IN
from weighbridge.containers.archive import zip_peek
from weighbridge.containers.format import Magic
from weighbridge.containers.formats import OCDBT_MANIFEST
from weighbridge.containers.sniff.detect import sniff
from weighbridge.containers.sniff.probe import Identity, Probe
from weighbridge.containers.sniff.tensor_names import ADAPTERS, FAMILIES, PACKINGS, distinct, first
from weighbridge.io.source import BytesSource


def what(data: bytes) -> Identity:
    return sniff(BytesSource(data))


def torch_saved(**options: Any) -> bytes:
    torch = pytest.importorskip("torch")
    out = io.BytesIO()
    torch.save({"w": torch.ones(2, 2)}, out, **options)
    return out.getvalue()


def torchscript() -> bytes:
    torch = pytest.importorskip("torch")
    out = io.BytesIO()
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), out)
    return out.getvalue()


def saved(write: Callable[..., None], **arrays: Any) -> bytes:
    out = io.BytesIO()
    write(out, *([np.ones(3)] if not arrays else []), **arrays)
    return out.getvalue()


def sentencepiece() -> bytes:
    pieces = [(b"<unk>", 0.0, 2), (b"<s>", 0.0, 3), (b"the", -3.5, 1)]
    return b"".join(m.field(1, m.field(1, p) + m.field(2, s) + m.field(3, t)) for p, s, t in pieces) + m.field(
        2, m.field(3, 1)
    )


ONNX = m.field(1, 8) + m.field(2, b"pytorch") + m.field(7, m.field(1, b"node")) + m.field(8, m.field(2, 17))
COREML = m.field(1, 4) + m.field(2, m.field(1, b"input")) + m.field(500, b"\x0a\x00")
SAVED_MODEL = m.field(1, 1) + m.field(2, m.field(1, m.field(5, b"2.1")))
LLAMA_KEYS = {"general.architecture": ("str", "llama"), "general.type": ("str", "model"), "general.name": ("str", "x")}
TOKENS = {"tokenizer.ggml.model": ("str", "gpt2"), "tokenizer.ggml.tokens": ("arr[str]", ["a", "b"])}
LLAMAFILE = (
    b"MZqFpD='\n" + bytes(range(256)) * 16 + m.zipped({"model.gguf": m.gguf(LLAMA_KEYS), ".args": b"-m\nmodel.gguf\n"})
)
LORA = {f"base_model.model.model.layers.0.self_attn.q_proj.lora_{k}.weight": ("F32", (2, 2)) for k in "AB"}
KOHYA = {
    "lora_unet_down_blocks_0.lora_down.weight": ("F32", (2, 2)),
    "lora_unet_down_blocks_0.lora_up.weight": ("F32", (2, 2)),
}
MLX = {
    "model.layers.0.self_attn.q_proj.weight": ("U32", (2, 2)),
    "model.layers.0.self_attn.q_proj.scales": ("F16", (2, 1)),
}
LEGACY_TAR = {"./sys_info": b"", "./pickle": b"", "./tensors": b"", "./storages": b""}

# (name, bytes or how to make them, format, variant)
ROWS: list[tuple[str, bytes | Callable[[], bytes], str, str]] = [
    ("safetensors", m.safetensors({"a": ("F32", (2, 2))}, {"format": "pt"}), "safetensors", ""),
    ("safetensors of MLX, unpadded header", m.safetensors(MLX, {"format": "mlx"}, pad=1), "safetensors", "mlx"),
    ("safetensors, PEFT LoRA", m.safetensors(LORA), "safetensors", "lora-peft"),
    ("safetensors, kohya LoRA", m.safetensors(KOHYA), "safetensors", "lora-kohya"),
    ("safetensors, no tensors", m.raw_safetensors({}), "safetensors", ""),
    ("safetensors, leading space in the header", struct.pack("<Q", 4) + b" { }", "safetensors", ""),
    ("safetensors, array-form entry", m.raw_safetensors({"x": ["I32", [2], [0, 8]]}, bytes(8)), "safetensors", ""),
    ("gguf v3", m.gguf(LLAMA_KEYS, {"a": ("F32", (2, 4))}), "gguf", "model"),
    ("gguf v2", m.gguf(LLAMA_KEYS, {"a": ("F32", (2, 4))}, version=2), "gguf", "model"),
    ("gguf v1", m.gguf(LLAMA_KEYS, {"a": ("F32", (2, 4))}, version=1), "gguf", "model"),
    ("gguf big-endian", m.gguf(LLAMA_KEYS, {"a": ("F32", (2, 4))}, order=">"), "gguf", "model"),
    ("gguf LoRA", m.gguf({"general.type": ("str", "adapter"), "adapter.type": ("str", "lora")}), "gguf",
     "lora-adapter"),
    ("gguf mmproj", m.gguf({"general.architecture": ("str", "clip"), "general.type": ("str", "mmproj")}), "gguf",
     "mmproj"),
    ("gguf mmproj before general.type", m.gguf({"general.architecture": ("str", "clip")}), "gguf", "mmproj"),
    ("gguf imatrix", m.gguf({"general.type": ("str", "imatrix")}, {"a.in_sum2": ("F32", (1, 4))}), "gguf", "imatrix"),
    ("gguf vocabulary", m.gguf({"general.architecture": ("str", "llama")} | TOKENS), "gguf", "vocab"),
    ("gguf control vector", m.gguf({"general.architecture": ("str", "controlvector")}), "gguf", "control-vector"),
    ("packed", packed_files.small(), "wbpack", "safetensors"),
    ("ZipNN", recorded("plain.bfloat16.safetensors.znn", archive="coded.zip")()[0], "zipnn", "safetensors"),
    ("manifest of Orbax", OCDBT_MANIFEST + bytes(60), "orbax", ""),
    ("npy", lambda: saved(np.save), "npy", ""),
    ("npz", lambda: saved(np.savez, a=np.ones(3)), "npz", ""),
    ("npz and notes", lambda: m.zipped({"a.npy": saved(np.save), "notes.txt": b"x"}), "npz", "mixed"),
    ("npz deflated", lambda: saved(np.savez_compressed, a=np.ones(3)), "npz", ""),
    ("torch zip", torch_saved, "torch-zip", ""),
    ("torch legacy", lambda: torch_saved(_use_new_zipfile_serialization=False), "torch-legacy", ""),
    ("torch legacy, protocol 4", lambda: torch_saved(_use_new_zipfile_serialization=False, pickle_protocol=4),
     "torch-legacy", ""),
    ("torch legacy, protocol 0", pickle.dumps(0x1950A86A20F9469CFC6C, 0) + pickle.dumps(1001, 0), "torch-legacy", ""),
    ("distributed checkpoint", lambda: dcp_metadata()[0], "torch-dcp", ""),
    ("data of one", lambda: torch_saved() * 2, "torch-dcp-data", ""),
    ("torch tar", m.tarred(LEGACY_TAR), "torch-tar", ""),
    ("torchscript", torchscript, "torchscript", ""),
    ("torchscript 1.0", m.zipped({"net/model.json": b"{}", "net/code/net.py": b""}), "torchscript", "1.0"),
    ("torch.package", m.zipped({"p/.data/extern_modules": b"", "p/model/model.pkl": b""}), "torch-zip", "package"),
    ("torch.export", m.zipped({"m/archive_format": b"pt2", "m/models/model.json": b"{}"}), "torch-exported", ""),
    ("torchserve", m.zipped({"MAR-INF/MANIFEST.json": b"{}", "handler.py": b""}), "torchserve", ""),
    *((f"pickle protocol {p}", pickle.dumps({"w": [1.5, "x", None]}, p), "pickle", f"protocol-{p}") for p in range(6)),
    ("ggml", b"lmgg" + bytes(40), "ggml", "ggml"),
    ("ggmf", b"fmgg" + struct.pack("<I", 1) + bytes(40), "ggml", "ggmf-v1"),
    *((f"ggjt v{v}", b"tjgg" + struct.pack("<I", v) + bytes(40), "ggml", f"ggjt-v{v}") for v in (1, 2, 3)),
    ("ggla", b"algg" + struct.pack("<I", 1) + bytes(40), "ggml", "ggla-v1"),
    ("imatrix.dat", m.imatrix_dat(), "imatrix-dat", ""),
    ("git-lfs pointer", m.POINTER, "git-lfs-pointer", ""),
    ("git-annex pointer", m.ANNEX, "git-annex-pointer", ""),
    ("xet pointer", m.XET, "xet-pointer", ""),
    ("html", m.PAGE, "html", ""),
    ("html after a comment", b"<!-- cached -->\n<html lang=en>", "html", ""),
    ("storage error", b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>', "error-text", "xml"),
    ("hub error", b"Repository not found", "error-text", ""),
    ("json error", b'{"error": "Unauthorized"}', "json", "error"),
    ("config.json", json.dumps(m.CONFIG).encode(), "json", "hf-config"),
    ("index", json.dumps({"metadata": {}, "weight_map": {"a": "x.safetensors"}}).encode(), "json", "sharded-index"),
    ("adapter_config.json", b'{"peft_type": "LORA", "r": 8}', "json", "peft-config"),
    ("tokenizer.json", b'{"version": "1", "added_tokens": [], "pre_tokenizer": 0, "model": {}}', "json", "tokenizer"),
    ("tokenizer_config.json", b'{"tokenizer_class": "LlamaTokenizer"}', "json", "tokenizer-config"),
    ("model_index.json", b'{"_class_name": "X", "_diffusers_version": "1", "scheduler": []}', "json",
     "diffusers-pipeline"),
    ("params.json", b'{"dim": 8, "n_layers": 2, "n_heads": 2}', "json", "mistral-params"),
    ("json array", b"[1, 2]", "json", "array"),
    ("onnx", ONNX, "onnx", ""),
    ("core ml", COREML, "coreml", "mlmodel"),
    ("savedmodel", SAVED_MODEL, "tf-savedmodel", ""),
    ("sentencepiece", sentencepiece(), "sentencepiece", ""),
    ("tiktoken", b"IQ== 0\nIg== 1\nIw== 2\nJA== 3\n", "tiktoken", ""),
    ("hdf5", b"\x89HDF\r\n\x1a\n" + bytes(64), "hdf5", ""),
    ("keras h5", b"\x89HDF\r\n\x1a\n" + bytes(64) + b"keras_version" + bytes(9), "hdf5", "keras"),
    ("keras 3", m.zipped({"metadata.json": b"{}", "config.json": b"{}", "model.weights.h5": b""}), "keras", "v3"),
    ("tflite", b"\x1c\0\0\0TFL3" + bytes(32), "tflite", ""),
    ("executorch", b"\x1c\0\0\0ET12" + bytes(32), "executorch", ""),
    ("llamafile", LLAMAFILE, "llamafile", ""),
    ("elf", b"\x7fELF\x02\x01\x01" + bytes(64), "executable", ""),
    ("nemo", m.tarred({"./model_config.yaml": b"", "./model_weights.ckpt": b"x"}), "nemo", ""),
    ("nemo, gzipped", m.tarred({"./model_config.yaml": b"", "./model_weights.ckpt": b"x"}, "w:gz"), "nemo", "gzip"),
    ("gzip", gzip.compress(m.safetensors({"a": ("F32", (2,))})), "gzip", "safetensors-inside"),
    ("xz", lzma.compress(m.gguf(LLAMA_KEYS)), "xz", "gguf-inside"),
    ("bz2", bz2.compress(pickle.dumps([1])), "bz2", "pickle-inside"),
    ("zstd", b"\x28\xb5\x2f\xfd" + bytes(16), "zstd", ""),
    ("7z", b"7z\xbc\xaf\x27\x1c" + bytes(32), "7z", ""),
    ("rar", b"Rar!\x1a\x07\x01\0" + bytes(16), "rar", ""),
    ("zip", m.zipped({"readme.txt": b"hi"}), "zip", ""),
    ("zip of safetensors", m.zipped({"a/model.safetensors": b""}), "zip", "safetensors-inside"),
    ("zip behind junk", bytes(range(1, 200)) + b"\xff\xfe" + m.zipped({"x/data.pkl": b"",
     "x/version": b"3"}), "torch-zip", ""),
    ("tar", m.tarred({"a.txt": b"hi"}), "tar", ""),
    ("parquet", b"PAR1" + bytes(20), "parquet", ""),
    ("png", b"\x89PNG\r\n\x1a\n" + bytes(20), "image", "png"),
    ("modelfile", b"# my model\nFROM ./x.gguf\n", "modelfile", ""),
    ("logits", b"_logits_" + bytes(12), "llama-logits", ""),
    ("text", b"hello, this is the model card\n", "text", ""),
    ("empty", b"", "empty", ""),
    ("TensorFlow table", table([(b"", b"\x08\x01")]), "tf-checkpoint", ""),
    ("executorch data", b"\x1c\0\0\0FT01" + bytes(32), "executorch-data", ""),
    ("core ml weights", b"\1\0\0\0\2\0\0\0" + bytes(56) + b"\xef\xbe\xad\xde" + bytes(60), "coreml-weights", ""),
    ("mindspore", mindspore([("a", "Int8", (1,), b"x")]), "mindspore", ""),
    ("llama2.c", llama2c(), "llama2c", "v0"),
    ("llama2.c with a magic", llama2c(1), "llama2c", "v1"),
    ("OpenVINO", b'<?xml version="1.0"?>\n' + openvino("24"), "openvino", ""),
    ("Flax", b"\x81\xa1w\xc7\x0b\x01\x93\x91\x01\xa4int8\xc4\x01\x07", "flax", ""),
    ("CTranslate2", struct.pack("<IH", 6, 8) + b"ToySpec\0" + bytes(12), "ctranslate2", ""),
    ("zeros", bytes(5000), "zeros", ""),
    ("noise", bytes(range(200, 256)) * 3, "unknown", ""),
]  # fmt: skip


@pytest.mark.parametrize(("data", "kind", "variant"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_recognised(data: bytes | Callable[[], bytes], kind: str, variant: str) -> None:
    identity = what(data if isinstance(data, bytes) else data())
    assert (identity.format, identity.variant) == (kind, variant), identity
    assert identity.evidence
    assert identity.readable == BUILT_IN[kind].readable
    assert identity.title == BUILT_IN[kind].title


def test_every_format_of_the_vocabulary_that_can_be_made_is_made() -> None:
    missing = set(BUILT_IN) - {row[2] for row in ROWS}
    assert missing <= {
        "xml",
        "pdf",
        "sqlite",
        "arrow",
        "lz4",
        "tf-hub",
    }  # recognised by one magic or one name, tested below


#: Those that suffice to name the format; the others only select a recogniser.
MAGICS = [
    (f.name, magic)
    for f in BUILT_IN.values()
    for magic in f.magics
    if (magic.evidence or magic.offset == 0) and f.name != "zipnn"
]  # three bytes: the header behind them counts too


@pytest.mark.parametrize(("name", "magic"), MAGICS, ids=lambda value: str(value)[:20])
def test_magic_rows(name: str, magic: Magic) -> None:
    data = b"\x01" * magic.offset + magic.sign + bytes(20)
    assert what(data).format == name
    assert what(data[: magic.offset + len(magic.sign) - 1]).format != name  # a byte less is not enough


@pytest.mark.parametrize(
    ("data", "digest", "step"),
    [
        (m.POINTER, "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393", "git lfs pull"),
        (m.ANNEX, f"sha256:{'4d' * 32}", "git annex get"),
        (m.XET, None, "git xet checkout"),
    ],
)
def test_detail_and_evidence_of_a_pointer(data: bytes, digest: str | None, step: str) -> None:
    identity = what(data)
    assert identity.detail["size"] == 4702341120
    assert identity.detail.get("oid") == digest
    assert identity.advice is not None
    assert step in identity.advice


def test_llamafile_says_where_its_gguf_lies() -> None:
    at = what(LLAMAFILE).detail["gguf"]
    assert LLAMAFILE[at["offset"] : at["offset"] + 4] == b"GGUF"
    assert at["size"] == len(m.gguf(LLAMA_KEYS))


def test_llamafile_with_a_compressed_member_is_no_llamafile() -> None:
    data = b"\x7fELF" + bytes(64) + m.zipped({"model.gguf": m.gguf(LLAMA_KEYS)}, 8)
    assert what(data).format == "executable"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (m.safetensors({"a": ("F32", (64,)), "b": ("F32", (64,))})[:-260], "2 of 2 tensors"),
        (m.safetensors({"a": ("F32", (64,)), "b": ("F32", (64,))})[:-3], "1 of 2 tensors"),
        (m.safetensors({"a": ("F32", (64,))})[:20], "header ends at byte"),
        (m.safetensors({"a": ("F32", (64,))}) + b"x", "1 bytes follow"),
        (struct.pack("<Q", 20) + b'{"a": nonsense      ', "not valid JSON"),
        (m.zipped({"x/data.pkl": bytes(300), "x/version": b"3"})[:-40], "directory"),
        (m.gguf(LLAMA_KEYS)[:40], "cut or broken"),
        (m.gguf(LLAMA_KEYS, version=3)[:4] + struct.pack("<I", 9), "version 9"),
        (b"", "empty"),
        (bytes(100_000), "zeros"),
        (bytes(70_000) + b"x" * 70_000, "head of a download"),
        (m.safetensors({"a": ("U8", (300_000,), bytes(300_000))}), "all zero"),
        (b'{"weight_map": {"a": "x.safe', "not valid JSON"),
        (pickle.dumps(["some text"] * 2, 2)[:-4], "no STOP"),
        (ONNX[:-3], "truncated"),
    ],
)
def test_damage_is_named(data: bytes, words: str) -> None:
    assert any(words in d for d in what(data).damage), what(data)


@pytest.mark.parametrize("row", [r for r in ROWS if isinstance(r[1], bytes)], ids=lambda r: r[0])
def test_whole_files_show_no_damage(row: tuple[str, bytes, str, str]) -> None:
    if row[2] not in ("empty", "zeros"):
        assert what(row[1]).damage == ()


# Names that adapters and packings are told by, as their writers write them.
NAMES = {
    "lora-peft": "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
    "lora-kohya": "lora_te_text_model_encoder_layers_0_mlp_fc1.lora_up.weight",
    "lora": "unet.down_blocks.0.attn.to_q.lora.up.weight",
    "lokr": "lycoris_blocks_0.lokr_w1", "loha": "lycoris_blocks_0.hada_w1_a",
    "ia3": "base_model.model.h.0.attn.ia3_l", "prompt": "prompt_embeddings",
    "control-vector": "direction.3", "textual-inversion": "emb_params",
    "gptq-or-awq": "model.layers.0.mlp.up_proj.qzeros",
    "compressed-tensors": "model.layers.0.mlp.up_proj.weight_packed",
    "bnb-4bit": "model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4", "bnb-int8": "h.0.mlp.SCB",
    "fp8-block": "model.layers.0.mlp.up_proj.weight_scale_inv",
    "mxfp4": "model.layers.0.mlp.experts.gate_up_proj_blocks",
    "nvfp4": "model.layers.0.mlp.up_proj.weight_scale_2", "hqq": "model.layers.0.mlp.up_proj.W_q",
    "exl2": "model.layers.0.mlp.up_proj.q_groups", "exl3": "model.layers.0.mlp.up_proj.suh",
    "qtip": "model.layers.0.mlp.up_proj.rcp",
    "dfloat11": "model.layers.0.encoded_exponent", "aqlm": "model.layers.0.mlp.up_proj.codebooks",
    "comfy-quant": "double_blocks.0.img_mlp.0.comfy_quant",
    "fp8-comfy": "double_blocks.0.img_mlp.0.scale_weight", "mlx": "model.layers.0.mlp.up_proj.scales",
    "decoder-hf": "model.layers.0.self_attn.q_proj.weight", "decoder-meta": "layers.0.attention.wq.weight",
    "bert": "bert.encoder.layer.0.attention.self.query.weight", "gpt2": "transformer.h.0.attn.c_attn.weight",
    "gpt-neox": "gpt_neox.layers.0.attention.dense.weight", "t5": "encoder.block.0.layer.0.SelfAttention.q.weight",
    "mamba": "backbone.layers.0.mixer.in_proj.weight", "whisper": "model.decoder.layers.0.encoder_attn.k_proj.weight",
    "clip": "text_model.encoder.layers.0.mlp.fc1.weight", "ldm": "model.diffusion_model.input_blocks.0.0.weight",
    "flux": "double_blocks.0.img_attn.qkv.weight", "dit": "transformer_blocks.0.attn.to_q.weight",
    "unet": "down_blocks.0.resnets.0.conv1.weight", "gguf": "blk.0.attn_q.weight",
}  # fmt: skip


@pytest.mark.parametrize("look", [*ADAPTERS, *PACKINGS, *FAMILIES], ids=lambda look: look.id)
def test_name_rows(look: Any) -> None:
    assert look.pattern.search(NAMES[look.id])
    assert not look.pattern.search("model.norm.weight")


def test_globals_of_a_pickle_are_named() -> None:
    assert "collections.OrderedDict" in what(pickle.dumps(__import__("collections").OrderedDict(), 4)).detail["globals"]
    assert "collections.OrderedDict" in what(pickle.dumps(__import__("collections").OrderedDict(), 2)).detail["globals"]


def test_zip64_directory_is_followed() -> None:
    """A directory end whose 16- and 32-bit fields are saturated points to the zip64 record."""
    data = bytearray(m.zipped({"a.npy": b"1", "b.npy": b"2"}))
    end = data.rindex(b"PK\x05\x06")
    count, length, start = struct.unpack("<H2I", data[end + 10 : end + 20])
    record = b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, length, start)
    locator = b"PK\x06\x07" + struct.pack("<IQI", 0, end, 1)
    tail = bytearray(data[end:])
    tail[8:20] = b"\xff" * 12
    found = zip_peek.directory(Probe(BytesSource(bytes(data[:end]) + record + locator + bytes(tail))))
    assert found is not None
    assert [member.name for member in found.members] == ["a.npy", "b.npy"]


@given(st.binary(max_size=400))
@examples(300)
def test_any_bytes_give_an_identity(data: bytes) -> None:
    identity = what(data)
    assert identity.format in BUILT_IN
    assert identity.evidence


@given(st.sampled_from([r[1] for r in ROWS if isinstance(r[1], bytes) and r[1]]), st.data())
@examples(300)
def test_any_damaged_file_gives_an_identity(good: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(good) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=12))
    assert what(good[:at] + patch + good[at + len(patch) :]).format in BUILT_IN
    assert what(good[:at]).format in BUILT_IN


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<Q", 8 << 20) + b'{"a":' + b"[" * (8 << 20),
        b'{"a":' + b"[" * (4 << 20),
        b'"' * (2 << 20),
        b"\x80\x04" + b"(" * (2 << 20),
        b"\x08\x07" + b"\x12\x00" * (2 << 20),
        b"A" * (4 << 20),
        b"# \n" * (1 << 20),
        gzip.compress(bytes(64 << 20)),
        b"PK\x03\x04" + bytes(100) + (b"PK\x01\x02" + bytes(42)) * 60000 + b"PK\x05\x06"
        + struct.pack("<HHHHIIH", 0, 0, 65535, 65535, 60000 * 46, 104, 0),
    ],
    ids=["deep header", "deep json", "quotes", "marks", "fields", "one letter", "comments", "bomb", "directory"],
)  # fmt: skip
def test_hostile_bytes_take_no_time(data: bytes) -> None:
    start = time.process_time()
    what(data)
    assert time.process_time() - start < 2


def test_every_recogniser_is_needed() -> None:
    """Without any one of them some row is told wrongly."""
    import weighbridge.containers.sniff.detect as module

    samples = [row[1] for row in ROWS if isinstance(row[1], bytes)]
    verdicts = [what(data) for data in samples]
    questions = module._questions(())
    for left_out in [question for question in questions if question.recogniser.function]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_questions", lambda _, out=left_out: tuple(q for q in questions if q is not out))
            assert [what(data) for data in samples] != verdicts, left_out.recogniser.function


_FRAGMENTS = (
    "model", "layers", "h", "0", "1", "10", "12", "self_attn", "q_proj", "weight", "lora_A", "lokr_w1", "direction",
    "blk", "attn_q", "encoder", "layer", "attention", "query", "transformer_blocks", "double_blocks", "qweight",
)  # fmt: skip


@given(st.lists(st.lists(st.sampled_from(_FRAGMENTS), min_size=1, max_size=6).map(".".join), min_size=1, max_size=6))
def test_numbers_of_further_layers_decide_nothing(names: list[str]) -> None:
    for row in (*ADAPTERS, *FAMILIES, *PACKINGS):
        assert first([row], names) == first([row], distinct(names))


def test_layers_count_once() -> None:
    names = [f"model.layers.{n}.mlp.experts.{e}.up_proj.weight" for n in range(50) for e in range(20)]
    assert len(distinct(names)) == 4
