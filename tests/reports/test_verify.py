"""A table of wrong files and folders, each with the rules that must speak, and no other; and each rule is needed: taken
out of its table, its finding is gone."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.containers import dcp_cases, dcp_files
from tests.containers._gguf_models import model as llama
from tests.containers.framework_files import GOLDEN
from tests.examples import examples
from tests.reports import bad_packings
from tests.reports import makers as m

from weighbridge.base.spec import Spec
from weighbridge.cli.main import main
from weighbridge.containers.base import Severity
from weighbridge.containers.boxes import Box
from weighbridge.containers.formats import READ
from weighbridge.containers.gguf.container import KV
from weighbridge.conversion.edit.apply import journal_of
from weighbridge.io.sink import Sink
from weighbridge.models.llamacpp.rules import RULES as LOADER_RULES
from weighbridge.reports.identify import identify
from weighbridge.reports.inspect.report import inspect
from weighbridge.reports.verify import distributed as verify_distributed
from weighbridge.reports.verify import packing as verify_packing
from weighbridge.reports.verify import report as module
from weighbridge.reports.verify import rules as verify_rules
from weighbridge.reports.verify import runs as verify_runs
from weighbridge.reports.verify import values as verify_values
from weighbridge.reports.verify.report import RULES as EVERY_RULE
from weighbridge.reports.verify.report import VerifyReport, failed, verify

#: Those of signatures have their cases in tests/signature.
RULES = tuple(rule for rule in EVERY_RULE if not rule.id.startswith("signature/"))
Break = Callable[[Path], Path | None]
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [{"id": 31, "content": "<x>"}],
    "model": {"type": "BPE", "vocab": {"a": 0}},
}


def model(folder: Path, shards: int = 2) -> Path:
    """A whole, clean model folder."""
    m.llama_folder(folder, shards)
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return folder


def shard(folder: Path, number: int = 1) -> Path:
    return folder / f"model-{number:05d}-of-00002.safetensors"


def edit_json(path: Path, change: Callable[[Any], Any]) -> None:
    doc = json.loads(path.read_text())
    change(doc)
    path.write_text(json.dumps(doc))


def index_of(folder: Path) -> Path:
    return folder / "model.safetensors.index.json"


def rewritten(path: Path, tensors: m.Tensors) -> None:
    path.write_bytes(m.safetensors(tensors, {"format": "pt"}))


def held(folder: Path, number: int) -> dict[str, Any]:
    """What a shard of the whole folder holds."""
    names = json.loads(index_of(folder).read_text())["weight_map"]
    tensors = m.llama_tensors()
    return {name: tensors[name] for name, file in names.items() if file == shard(folder, number).name}


class Case:
    """`breaks` wounds a clean folder (or gives another path to look at); `rules`: all ids that must be found."""

    def __init__(self, name: str, rules: set[str], breaks: Break, words: str = "") -> None:
        self.name, self.rules, self.breaks, self.words = name, rules, breaks, words


CASES: list[Case] = []


def case(*rules: str, words: str = "") -> Callable[[Break], Break]:
    def add(breaks: Break) -> Break:
        CASES.append(Case(breaks.__name__, set(rules), breaks, words))
        return breaks

    return add


# ---- files ----


@case("file/unreadable", words="does not exist")
def a_dangling_link(folder: Path) -> None:
    (folder / "extra.gguf").symlink_to("nowhere")


@case("file/unreadable", words="does not exist")
def links_that_lead_in_a_circle(folder: Path) -> None:
    (folder / "extra.gguf").symlink_to("other.gguf")
    (folder / "other.gguf").symlink_to("extra.gguf")


@case("file/unreadable", words="regular file")
def a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


@case("file/lfs-pointer", words="4,702,341,120 bytes")
def a_shard_that_is_a_pointer(folder: Path) -> None:
    shard(folder).write_bytes(m.POINTER)


@case("file/lfs-pointer", words="a git-annex pointer to a file of 4,702,341,120 bytes")
def a_shard_that_is_an_annex_pointer(folder: Path) -> None:
    shard(folder).write_bytes(m.ANNEX)


@case("file/lfs-pointer", words="a Xet pointer to a file of 4,702,341,120 bytes")
def a_shard_that_is_a_xet_pointer(folder: Path) -> None:
    shard(folder).write_bytes(m.XET)


@case("file/web-page", words="Sign in")
def a_web_page_for_a_shard(folder: Path) -> None:
    shard(folder).write_bytes(m.PAGE)


@case("file/web-page", words="Repository not found")
def a_message_for_a_config(folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(b"Repository not found")


@case("file/empty")
def an_empty_file(folder: Path) -> None:
    shard(folder).write_bytes(b"")


@case("file/zeros")
def a_file_of_zeros(folder: Path) -> None:
    shard(folder).write_bytes(bytes(5000))


@case("file/wrong-format", words="GGUF")
def a_gguf_named_safetensors(folder: Path) -> None:
    (folder / "other.safetensors").write_bytes(m.gguf({"general.architecture": ("str", "llama")}, {"a": ("F32", (8,))}))


@case("pickle/broken", "folder/two-formats", words="too early")
def a_pickle_cut_short(folder: Path) -> None:
    (folder / "old.pkl").write_bytes(pickle.dumps(list(range(100)), 2)[:-40])


@case("file/modelfile", words="bogus")
def a_modelfile_that_ollama_refuses(folder: Path) -> None:
    (folder / "Modelfile").write_text("FROM .\nPARAMETER bogus 1\n")


@case("file/modelfile", words="missing file")
def a_modelfile_of_a_missing_file(folder: Path) -> None:
    (folder / "Modelfile").write_text("FROM ./other.gguf\n")


@case("file/damaged", words="directory")
def a_zip_cut_short(folder: Path) -> None:
    with zipfile.ZipFile(folder / "more.zip", "w") as archive:
        archive.writestr("notes.txt", "x" * 100)
    (folder / "more.zip").write_bytes((folder / "more.zip").read_bytes()[:-40])


@case("file/leftover")
def a_half_download_left_behind(folder: Path) -> None:
    (folder / "model-00001-of-00002.safetensors.incomplete").write_bytes(b"xyz")


@case("file/journal", words="half written")
def an_edit_that_was_cut_off(folder: Path) -> Path:
    journal_of(shard(folder)).write_bytes(b"{}\n")
    return shard(folder)


@case("file/journal", words="restores the old bytes")
def an_edit_that_was_cut_off_in_a_folder(folder: Path) -> None:
    journal_of(shard(folder)).write_bytes(b"{}\n")


@case("file/leftover", words="the next write of x.gguf")
def a_write_that_was_killed(folder: Path) -> None:
    with Sink(folder / "x.gguf", folder=False, size=4, overwrite=True) as sink:
        sink.create("", 4).write(0, b"GGUF")
        (name,) = (p.name for p in folder.iterdir() if p.name.startswith("."))
    (folder / "x.gguf").unlink()
    (folder / name).write_bytes(b"GGUF")


@case("file/leftover", words="delete it")
def a_folder_that_was_half_written(folder: Path) -> None:
    stage = folder.parent / f".{folder.name}.4711.partial"
    model(stage)
    shard(stage).write_bytes(b"")


@case("file/leftover", words="if that is missing")
def a_folder_that_stepped_aside(folder: Path) -> None:
    (folder / ".part.4711.old").mkdir()
    shard(folder / ".part.4711.old").write_bytes(b"")


@case("file/zero-tail", words="1 whole tensor,")
def a_download_that_stopped_in_reserved_space(folder: Path) -> Path:
    file = folder / "x.safetensors"
    filled = ("U8", (70_000,), b"\x01" * 70_000)
    file.write_bytes(m.safetensors({"a": filled, "b": ("U8", (200_000,), bytes(200_000))}))
    return file


@case("file/unwritten-tail", words="stops inside a row, and 1 whole matrix is zero after it")
def a_download_that_stopped_inside_a_row(folder: Path) -> Path:
    file = folder / "x.safetensors"
    data = m.safetensors({"a": ("U8", (100, 1000), b"\x01" * 100_000), "b": ("U8", (100, 1000), b"\x01" * 100_000)})
    file.write_bytes(data[: len(data) - 150_500] + bytes(150_500))
    return file


@case("file/hole", words="never written")
def a_hole(folder: Path) -> Path:
    size, file = 1 << 20, folder / "x.safetensors"
    data = m.safetensors({"a": ("U8", (size,), b"\x01" * size)})
    with file.open("wb") as out:
        out.write(data[: 1 << 18])
        out.seek(3 << 18)
        out.write(data[3 << 18 :])
    if not hasattr(os, "SEEK_HOLE") or file.stat().st_blocks * 512 >= len(data):
        pytest.skip("this file system keeps no holes")
    return file


def changed_blob(folder: Path) -> Path:
    blobs, snapshot = folder / "blobs", folder / "snapshots" / ("c" * 40)
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    data = m.safetensors({"a": ("U8", (64,), b"\x01" * 64)})
    blob = blobs / hashlib.sha256(data).hexdigest()
    blob.write_bytes(data[:-1] + b"\x02")
    (snapshot / "model.safetensors").symlink_to(blob)
    return snapshot


@case("file/digest", words="its name in the store has sha256")
def a_blob_that_changed(folder: Path) -> Path:
    return changed_blob(folder) / "model.safetensors"


@case("file/digest", words="its name in the store has git")
def a_small_blob_that_changed(folder: Path) -> Path:
    snapshot = changed_blob(folder)
    data = (snapshot / "model.safetensors").read_bytes()
    (snapshot / "model.safetensors").unlink()
    blob = folder / "blobs" / hashlib.sha1(b"blob %d\0" % len(data) + data[::-1]).hexdigest()
    blob.write_bytes(data)
    (snapshot / "model.safetensors").symlink_to(blob)
    return snapshot / "model.safetensors"


# ---- sets ----


@case("index/broken", words="weight_map")
def an_index_without_a_map(folder: Path) -> None:
    index_of(folder).write_text("{}")


@case("index/broken")
def an_index_cut_short(folder: Path) -> None:
    index_of(folder).write_text(index_of(folder).read_text()[:100])


@case("index/traversal", "sharded/unlisted-tensor", words="../../x")
def an_index_that_leaves_its_folder(folder: Path) -> None:
    edit_json(index_of(folder), lambda d: d["weight_map"].update({"lm_head.weight": "../../x.safetensors"}))


@case("index/none")
def shards_without_an_index(folder: Path) -> None:
    index_of(folder).unlink()


@case("index/none", "index/gaps", words="missing: 2")
def a_shard_gone_and_no_index(folder: Path) -> None:
    index_of(folder).unlink()
    shard(folder, 2).unlink()


@case("sharded/missing-shard")
def a_shard_gone(folder: Path) -> None:
    shard(folder, 2).unlink()


@case("sharded/missing-tensor")
def an_index_that_names_a_tensor_no_shard_has(folder: Path) -> None:
    rewritten(shard(folder), {k: v for k, v in held(folder, 1).items() if k != "model.embed_tokens.weight"})
    edit_json(index_of(folder), lambda d: d["metadata"].pop("total_size"))


@case("sharded/misplaced-tensor")
def a_tensor_in_another_shard_than_the_index_says(folder: Path) -> None:
    name = "model.embed_tokens.weight"
    edit_json(index_of(folder), lambda d: d["weight_map"].update({name: shard(folder, 2).name}))


@case("sharded/unlisted-tensor", "config/unmapped")
def a_tensor_that_the_index_lacks(folder: Path) -> None:
    edit_json(index_of(folder), lambda d: d["metadata"].update(total_size=d["metadata"]["total_size"] + 8))
    rewritten(shard(folder), held(folder, 1) | {"extra": ("F32", (2,))})


@case("sharded/repeated-tensor")
def one_tensor_in_two_shards(folder: Path) -> None:
    edit_json(index_of(folder), lambda d: d["metadata"].update(total_size=d["metadata"]["total_size"] + 1024))
    rewritten(shard(folder), held(folder, 1) | {"lm_head.weight": ("F32", (32, 8))})


@case("sharded/stray-file")
def a_whole_model_beside_its_shards(folder: Path) -> None:
    rewritten(folder / "model.safetensors", m.llama_tensors())


@case("sharded/total-size")
def a_wrong_total_size(folder: Path) -> None:
    edit_json(index_of(folder), lambda d: d["metadata"].update(total_size=5))


# ---- containers ----


@case("safetensors/truncated", words="last 3 of")
def a_truncated_shard(folder: Path) -> Path:
    file = shard(folder)
    file.write_bytes(file.read_bytes()[:-300])
    return file


@case("safetensors/overlap", "safetensors/trailing-bytes")
def tensors_that_overlap(folder: Path) -> Path:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    (folder / "o.safetensors").write_bytes(m.raw_safetensors({"a": entry, "b": entry}, bytes(8) + b"\x01" * 8))
    return folder / "o.safetensors"


@case("gguf/truncated-data")
def a_truncated_gguf(folder: Path) -> Path:
    file = folder / "t.gguf"
    file.write_bytes(m.gguf(KEYS, {"a": ("F32", (64, 64))})[:-1000])
    return file


@case("gguf/key-duplicate")
def a_gguf_with_a_key_twice(folder: Path) -> Path:
    data = m.gguf(KEYS | {"general.architecturf": ("str", "x")}, {"a": ("F32", (8,))})
    (folder / "d.gguf").write_bytes(data.replace(b"architecturf", b"architecture"))
    return folder / "d.gguf"


@case("licence/differs", words="README.md states apache-2.0, but m.gguf states mit")
def a_card_with_another_licence_than_the_file(folder: Path) -> Path:
    place = folder.parent / "licensed"
    place.mkdir()
    (place / "m.gguf").write_bytes(m.gguf(KEYS | {"general.license": ("str", "mit")}, {"a": ("F32", (8,))}))
    (place / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    return place


@case("gguf/split-missing")
def a_gguf_split_that_lacks_a_part(folder: Path) -> Path:
    keys = KEYS | {"split.no": ("u16", 0), "split.count": ("u16", 3), "split.tensors.count": ("i32", 2)}
    (folder / "s-00001-of-00003.gguf").write_bytes(m.gguf(keys, {"a": ("F32", (8,))}))
    third = {"split.no": ("u16", 2), "split.count": ("u16", 3), "split.tensors.count": ("i32", 2)}
    (folder / "s-00003-of-00003.gguf").write_bytes(m.gguf(third, {"b": ("F32", (8,))}))
    return folder / "s-00001-of-00003.gguf"


def arrays(**more: Any) -> dict[str, Any]:
    return {"a": np.arange(1, 4000, dtype="f4"), "b": np.arange(1, 9, dtype="f4"), **more}


@case("npz/checksum", words="changed after they were written")
def a_flipped_bit_in_an_array(folder: Path) -> Path:
    np.savez(folder / "x.npz", **arrays())
    data = bytearray((folder / "x.npz").read_bytes())
    data[9000] ^= 1
    (folder / "x.npz").write_bytes(data)
    return folder / "x.npz"


@case("npz/checksum", words="download or copy it again")
def a_compressed_array_that_does_not_unpack(folder: Path) -> Path:
    np.savez_compressed(folder / "x.npz", a=np.random.default_rng(3).integers(1, 250, 90_000, "u1"), b=np.ones((2, 2)))
    data = bytearray((folder / "x.npz").read_bytes())
    data[70_000:70_100] = bytes(100)
    (folder / "x.npz").write_bytes(data)
    return folder / "x.npz"


@case("npz/other-member", words="notes.txt")
def an_archive_with_something_else(folder: Path) -> Path:
    (folder / "x.npz").write_bytes(m.zipped({"a.npy": m.npy(np.ones(3)), "notes.txt": b"hello"}))
    return folder / "x.npz"


@case("npz/trailing-bytes", "npy/trailing-bytes")
def arrays_with_something_behind(folder: Path) -> None:
    (folder / "x.npz").write_bytes(m.zipped({"a.npy": m.npy(np.ones(3)) + b"more"}))
    (folder / "y.npy").write_bytes(m.npy(np.ones(3)) + b"more")


@case("npz/broken", words="zip")
def an_archive_cut_short(folder: Path) -> Path:
    np.savez(folder / "x.npz", **arrays())
    (folder / "x.npz").write_bytes((folder / "x.npz").read_bytes()[:-30])
    return folder / "x.npz"


@case("npy/broken", words="cut off")
def an_array_cut_short(folder: Path) -> None:
    (folder / "y.npy").write_bytes(m.npy(np.ones(9))[:-1])


@case("npy/unread", "npz/unread", words="pickle")
def arrays_that_are_not_read(folder: Path) -> None:
    np.save(folder / "y.npy", np.array([{}], object), allow_pickle=True)
    (folder / "x.npz").write_bytes(m.zipped({"a.npy": m.npy(np.array(["text"]))}))


# ---- the folder ----


@case("folder/too-many")
def more_files_than_are_looked_at(folder: Path) -> None:
    for i in range(FEW):
        (folder / f"{i}.txt").write_text(f"note {i}")


@case("folder/case-clash")
def names_that_differ_in_case(folder: Path) -> None:
    (folder / "README.md").write_text("a")
    (folder / "readme.md").write_text("b")
    if len(list(folder.glob("[rR]*.md"))) == 1:
        pytest.skip("this file system doesn't tell cases apart")


@case("folder/link-outside")
def a_link_out_of_the_folder(folder: Path) -> None:
    (folder.parent / "secret.txt").write_text("x")
    (folder / "notes.txt").symlink_to("../secret.txt")


@case("folder/two-formats")
def pickles_beside_safetensors(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(m.zipped({"x/data.pkl": b"\x80\x02}.", "x/version": b"3"}))


def pipeline(folder: Path) -> None:
    """Two parts, one without weights of its own, and a third that the pipeline goes without."""
    parts = {"scheduler": ["diffusers", "Scheduler"], "unet": ["diffusers", "UNet"], "safety": [None, None]}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "Pipeline", **parts}))
    for name, files in {"scheduler": ["scheduler_config.json"], "unet": ["config.json", "w.safetensors"]}.items():
        (folder / name).mkdir()
        for file in files:
            data = (folder / "model-00001-of-00002.safetensors").read_bytes() if file[0] == "w" else b"{}"
            (folder / name / file).write_bytes(data)


@case("folder/pipeline", words="scheduler (Scheduler) is missing")
def a_pipeline_without_a_part(folder: Path) -> None:
    pipeline(folder)
    (folder / "scheduler" / "scheduler_config.json").unlink()


@case("folder/pipeline", words="unet (UNet) has a config and no weights")
def a_part_without_weights(folder: Path) -> None:
    pipeline(folder)
    (folder / "unet" / "w.safetensors").unlink()


# ---- config ----


@case("config/json")
def a_config_that_is_not_json(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"a": 1,}')


@case("config/python-json", words="it has Infinity, NaN")
def a_config_as_python_writes_it(folder: Path) -> None:
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("{", '{"embd_pdrop": NaN, "time_step_max": Infinity, ', 1))


@case("config/none")
def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


@case("config/unknown")
def an_architecture_nobody_knows(folder: Path) -> None:
    edit_json(folder / "config.json", lambda d: d.update(architectures=["NovelForCausalLM"], model_type="novel"))


@case("config/size", words="num_hidden_layers")
def a_config_without_layers(folder: Path) -> None:
    edit_json(folder / "config.json", lambda d: d.update(num_hidden_layers="two"))


@case("config/setting", words="max_position_embeddings")
def a_config_with_words_for_a_number(folder: Path) -> None:
    edit_json(folder / "config.json", lambda d: d.update(max_position_embeddings="a lot"))


@case("config/unread", words="attention_flavour = 3")
def a_config_with_a_key_that_no_table_reads(folder: Path) -> None:
    edit_json(folder / "config.json", lambda d: d.update(attention_flavour=3))


@case("config/repeated-key", words="rms_norm_eps, vocab_size")
def a_config_with_keys_given_twice(folder: Path) -> None:
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("{", '{"rms_norm_eps": 1, "vocab_size": 7, ', 1))


@case("config/missing", words="9 tensors")
def a_config_of_more_layers(folder: Path) -> None:
    edit_json(folder / "config.json", lambda d: d.update(num_hidden_layers=3))


@case("config/unmapped", words="9 tensors")
def a_config_of_fewer_layers(folder: Path) -> None:
    edit_json(folder / "config.json", lambda d: d.update(num_hidden_layers=1))


@case("config/shape", words="[16, 8]")
def a_config_of_another_width(folder: Path) -> None:
    edit_json(folder / "config.json", lambda d: d.update(intermediate_size=32))


@case("config/quantization", words="stale")
def a_config_that_speaks_of_quantization(folder: Path) -> None:
    edit_json(folder / "config.json", lambda d: d.update(quantization_config={"quant_method": "gptq", "bits": 4}))


@case("config/quantization", words="doesn't declare it")
def packed_weights_and_a_silent_config(folder: Path) -> None:
    _pack(folder)


def _pack(folder: Path, scales: str = "F16", **changed: tuple[int, ...]) -> None:
    """The weight of one layer replaced by GPTQ's parts, their shapes as given or right."""
    name = "model.layers.0.mlp.up_proj"
    shapes: dict[str, tuple[int, ...]] = {"qweight": (1, 16), "qzeros": (1, 2), "scales": (1, 16), **changed}
    layer = {f"{name}.{part}": (scales if part == "scales" else "I32", shape) for part, shape in shapes.items()}
    where = json.loads(index_of(folder).read_text())["weight_map"]
    file, tensors = where.pop(f"{name}.weight"), m.llama_tensors()
    held = {n: tensors[n] for n, f in where.items() if f == file} | layer
    rewritten(folder / file, held)
    total = sum(m.SIZES[t] * math.prod(shape) for t, shape in ({n: tensors[n] for n in where} | layer).values())
    index = {"metadata": {"total_size": total}, "weight_map": where | dict.fromkeys(layer, file)}
    index_of(folder).write_text(json.dumps(index))


@case("config/packing", words="scales of another type")
def scales_of_integers(folder: Path) -> None:
    _said(folder)
    _pack(folder, scales="U8")


@case("config/packing", words="qzeros")
def zero_points_of_another_number_of_groups(folder: Path) -> None:
    _said(folder)
    _pack(folder, qzeros=(2, 2))


@case("config/packing-unread", words="marlin")
def words_in_the_order_of_a_kernel(folder: Path) -> None:
    _said(folder, checkpoint_format="marlin")
    _pack(folder)


def _said(folder: Path, **more: str) -> None:
    told = {"quant_method": "gptq", "bits": 4, **more}
    edit_json(folder / "config.json", lambda d: d.update(quantization_config=told))


# ---- tokenizer ----


@case("tokenizer/none")
def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@case("tokenizer/size", words="33 tokens")
def an_added_token_without_an_embedding(folder: Path) -> None:
    edit_json(folder / "tokenizer.json", lambda d: d["added_tokens"].append({"id": 32, "content": "<y>"}))


@case("tokenizer/size", words="40 tokens")
def more_words_than_embeddings(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    (folder / "vocab.txt").write_text("".join(f"{w}\n" for w in (*special, *(f"w{i}" for i in range(35)))))


@case("llamacpp/missing", words="blk.0.ffn_up.weight")
def a_gguf_that_lacks_a_tensor(folder: Path) -> Path:
    def change(_: object, slots: list[tuple[str, Spec]]) -> None:
        slots[:] = [slot for slot in slots if slot[0] != "blk.0.ffn_up.weight"]

    (folder / "l.gguf").write_bytes(llama(change))
    return folder / "l.gguf"


@case("tokenizer/gguf-size", words="2 tokens")
def a_gguf_whose_embedding_does_not_fit(folder: Path) -> Path:
    tokens = {"tokenizer.ggml.model": ("str", "gpt2"), "tokenizer.ggml.tokens": ("arr[str]", ["a", "b"])}
    (folder / "v.gguf").write_bytes(m.gguf(KEYS | tokens, {"token_embd.weight": ("F32", (3, 8))}))
    return folder / "v.gguf"


def a_pair(folder: Path, width: int, base: str) -> Path:
    """A language model's keys of width 64, and a projector's."""
    (folder / "pair").mkdir()
    text = {**KEYS, "llama.embedding_length": ("u32", 64), "general.basename": ("str", "tiny")}
    (folder / "pair" / "text.gguf").write_bytes(m.gguf(text, {"x": ("F32", (1, 8))}))
    keys = {
        "general.architecture": ("str", "clip"), "general.type": ("str", "mmproj"), "general.basename": ("str", base),
        "general.quantization_version": ("u32", 2), "clip.vision.projection_dim": ("u32", width),
    }  # fmt: skip
    (folder / "pair" / "mmproj.gguf").write_bytes(m.gguf(keys, {"x": ("F32", (1, 8))}))
    return folder / "pair"


@case("llamacpp/mmproj-width", words="of width 96")
def a_projector_of_another_width(folder: Path) -> Path:
    return a_pair(folder, 96, "tiny")


@case("llamacpp/mmproj-base", words="tiny and other")
def a_projector_of_another_model(folder: Path) -> Path:
    return a_pair(folder, 64, "other")


@case("mlx/key", "config/quantization", words="rms_norm_eps of llama")
def a_folder_of_mlx_that_lacks_a_key(folder: Path) -> None:
    edit_json(folder / "config.json", lambda config: config.update(quantization={"group_size": 64, "bits": 4}))
    edit_json(folder / "config.json", lambda config: config.pop("rms_norm_eps"))


# ---- parts ----


@case("parts/missing", words="1_Pooling")
def a_part_that_is_not_there(folder: Path) -> None:
    parts = [
        {"path": "", "type": "t.Transformer"},
        {"path": "1_Pooling", "type": "t.Pooling"},
        {"path": "2_N", "type": "t.Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(parts))


@case("parts/pooling", words="384")
def pooling_of_another_model(folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"word_embedding_dimension": 384}')


@case("adapter/config", words="PEFT")
def an_adapter_without_its_config(folder: Path) -> None:
    rewritten(folder / "adapter_model.safetensors", {"base_model.model.q.lora_A.weight": ("F32", (4, 8))})


@case("adapter/config", words="rank 16")
def an_adapter_of_another_rank(folder: Path) -> None:
    rewritten(folder / "adapter_model.safetensors", {"base_model.model.q.lora_A.weight": ("F32", (4, 8))})
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 16}')


# ---- values ----


def f32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


@case("values/nan", words="1 value is NaN")
def a_nan(folder: Path) -> Path:
    rewritten(folder / "n.safetensors", {"w": ("F32", (2, 2), f32(1, float("nan"), 2, 3))})
    return folder / "n.safetensors"


@case("values/nan", "values/all-zero", words="1 value is NaN")
def a_nan_in_a_compressed_array(folder: Path) -> Path:
    hidden = np.array([[np.nan, 1]], ">f2")
    np.savez_compressed(folder / "n.npz", first=np.ones(700, ">f8"), zero=np.zeros((700, 9), ">f4"), hidden=hidden)
    return folder / "n.npz"


@case("values/nan", words="1 block scale is NaN")
def a_nan_in_a_block_scale(folder: Path) -> Path:
    blocks = b"\x00\x7e" + bytes([7] * 32) + b"\x00\x3c" + bytes([7] * 32)
    (folder / "n.gguf").write_bytes(m.gguf(KEYS, {"w": ("Q8_0", (2, 32), blocks)}))
    return folder / "n.gguf"


@case("values/code", "safetensors/zipnn", "values/all-zero", words="isn't that of its tensor")
def damaged_code(folder: Path) -> Path:
    """A plane, and the shape in a stream's header."""
    with zipfile.ZipFile(GOLDEN.with_name("coded.zip")) as archive:
        data = archive.read("plain.znn.safetensors")
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    start = 8 + int.from_bytes(data[:8], "little")
    first, last = header["odd"]["data_offsets"][0] + start, header["bf16"]["data_offsets"][1] + start
    data = data[: first + 34] + b"\1" + data[first + 35 :]
    (folder / "n.safetensors").write_bytes(data[: last - 99] + bytes(99) + data[last:])
    return folder / "n.safetensors"


@case("values/inf")
def an_infinity(folder: Path) -> Path:
    inf = (np.array([1, -np.inf, 2, 3], "f4").view("u4") >> 16).astype("u2").tobytes()
    rewritten(
        folder / "i.safetensors", {"w": ("BF16", (2, 2), inf), "h.attn.masked_bias": ("F32", (1,), f32(-float("inf")))}
    )
    return folder / "i.safetensors"


@case("values/all-zero")
def a_matrix_of_zeros(folder: Path) -> Path:
    zeros = {"w.weight": ("F32", (2, 2), bytes(16)), "w.bias": ("F32", (2,), bytes(8)),
             "q.lora_B.weight": ("F32", (2, 2), bytes(16))}  # fmt: skip
    rewritten(folder / "z.safetensors", zeros)
    return folder / "z.safetensors"


@case("values/zero-end", words="70,000")
def a_tensor_that_ends_in_zeros(folder: Path) -> Path:
    body = b"\x01" * 9_000_000 + bytes(70_000)
    rewritten(folder / "e.safetensors", {"a": ("U8", (len(body),), body), "b": ("U8", (2,), b"\x01\x01")})
    return folder / "e.safetensors"


# ---- ranks ----


@case("ranks/whole", words="2 ranks of one model")
def a_set_of_ranks(folder: Path) -> Path:
    return m.ranks(folder.parent / "ranks")


def distributed(folder: Path, **options: Any) -> Path:
    """A distributed checkpoint of two processes."""
    array = np.arange(24, dtype=np.float32).reshape(6, 4)
    boxes = [Box((0, 0), (3, 4)), Box((3 - options.pop("overlap", 0), 0), (3, 4))]
    return dcp_files.write(folder.parent / "step-1", {"w": (array, boxes)}, **options)


@case("dcp/missing", words="__1_0.distcp")
def a_data_file_that_is_missing(folder: Path) -> Path:
    path = distributed(folder)
    (path / "__1_0.distcp").unlink()
    return path


@case("dcp/stray", words="another save")
def a_data_file_of_another_save(folder: Path) -> Path:
    path = distributed(folder)
    (path / "__2_0.distcp").write_bytes((path / "__1_0.distcp").read_bytes())
    return path


@case("dcp/unfinished", words="2 data files without .metadata")
def a_save_that_did_not_finish(folder: Path) -> Path:
    path = distributed(folder)
    (path / ".metadata").unlink()
    return path


@case("dcp/second", words="use_collectives=False")
def a_list_of_each_process(folder: Path) -> Path:
    path = distributed(folder)
    (path / ".metadata").rename(path / "__0.metadata")
    return path


@case("dcp/copies", "torch-dcp/overlap", words="different values for [1, 4] elements at [2, 0]")
def copies_that_differ(folder: Path) -> Path:
    other = np.ones((3, 4), np.float32)
    return distributed(folder, overlap=1, copies={("w", 1): other}, edit=lambda listed: listed.update(w=_short(listed)))


def _short(listed: Any) -> Any:
    """The same chunks of a tensor of five rows."""
    spec, chunks = listed["w"]
    return spec.with_shape(5, 4), chunks


@case("torch-dcp/cut-off", words="the file ends before byte")
def a_data_file_that_is_cut_off(folder: Path) -> Path:
    path = distributed(folder)
    (path / "__1_0.distcp").write_bytes((path / "__1_0.distcp").read_bytes()[:-1])
    return path


@case("dcp/parts", words="no file has [6] elements from [0] on")
def safetensors_without_the_first_parts(folder: Path) -> Path:
    path = dcp_cases.unpack("hf", folder.parent)
    min(path.iterdir()).unlink()
    return path


@case("ranks/part", words="rank 1 of 2")
def a_rank_alone(folder: Path) -> Path:
    return m.ranks(folder.parent / "ranks") / "model-rank-1-of-2.safetensors"


@case("ranks/missing", words="1 of 2 ranks of one model are missing: model-rank-0-of-2.safetensors")
def a_rank_that_is_missing(folder: Path) -> Path:
    (m.ranks(folder.parent / "ranks") / "model-rank-0-of-2.safetensors").unlink()
    return folder.parent / "ranks"


@case("ranks/apart", "ranks/whole", words="rank 0 of 2, unlike its name")
def the_same_rank_twice(folder: Path) -> Path:
    files = sorted(m.ranks(folder.parent / "ranks").glob("*.safetensors"))
    files[1].write_bytes(files[0].read_bytes())
    return folder.parent / "ranks"


# ---- importance matrices ----


def legacy_matrix(values: list[float], calls: int = 3) -> bytes:
    name = b"blk.0.attn_k.weight"
    return struct.pack(f"<ii{len(name)}sii{len(values)}f", 1, len(name), name, calls, len(values), *values)


def gguf_matrix(sums: list[list[float]], counts: list[float]) -> bytes:
    """By the `gguf` package, as convert scripts would."""
    import tempfile

    gguf = pytest.importorskip("gguf")
    with tempfile.TemporaryDirectory() as folder:
        writer = gguf.GGUFWriter(Path(folder) / "m.gguf", "none")
        writer.add_type("imatrix")
        writer.add_array("imatrix.datasets", ["a.txt"])
        writer.add_uint32("imatrix.chunk_count", 1)
        writer.add_uint32("imatrix.chunk_size", 512)
        writer.add_tensor("blk.0.ffn_up_exps.weight.in_sum2", np.array(sums, np.float32))
        if counts:
            writer.add_tensor("blk.0.ffn_up_exps.weight.counts", np.array(counts, np.float32)[:, None])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return (Path(folder) / "m.gguf").read_bytes()


def matrix_file(folder: Path, data: bytes, name: str = "imatrix.dat") -> Path:
    (folder.parent / name).write_bytes(data)
    return folder.parent / name


@case("imatrix-dat/broken", words="bytes follow the end")
def a_matrix_with_more_behind_it(folder: Path) -> Path:
    return matrix_file(folder, legacy_matrix([1, 2]) + struct.pack("<iii", 1, 0, 7))


@case("imatrix/broken", words="sums without counts")
def a_matrix_without_counts(folder: Path) -> Path:
    return matrix_file(folder, gguf_matrix([[1, 2]], []), "imatrix.gguf")


@case("imatrix/not-finite", words="1 number is NaN")
def a_matrix_with_an_infinity(folder: Path) -> Path:
    return matrix_file(folder, legacy_matrix([1, float("inf")]))


@case("imatrix/not-finite", words="1 number is NaN")
def a_matrix_with_a_count_that_is_none(folder: Path) -> Path:
    return matrix_file(folder, gguf_matrix([[1, 2], [3, 4]], [5, float("nan")]), "imatrix.gguf")


@case("imatrix/negative", words="2 values")
def a_matrix_with_negative_squares(folder: Path) -> Path:
    return matrix_file(folder, legacy_matrix([1, -1, -2]))


@case("imatrix/unused", words="1 of its 3")
def a_matrix_of_an_expert_that_nobody_asked(folder: Path) -> Path:
    return matrix_file(folder, gguf_matrix([[1, 2], [1, 2], [0, 0]], [5, 1, 0]), "imatrix.gguf")


@case("imatrix/unused", words="1 of its 1")
def a_legacy_matrix_of_no_calls(folder: Path) -> Path:
    return matrix_file(folder, legacy_matrix([1, 2], calls=0))


FEW = 40


@pytest.fixture(autouse=True)
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound on files, small enough to be met."""
    monkeypatch.setattr(verify_rules, "FOLDER_FILES", FEW)


KEYS: dict[str, tuple[str, Any]] = {
    "general.architecture": ("str", "llama"),
    "general.quantization_version": ("u32", 2),
}
# Rules that speak of other things in some cases' small files, and are not what these are about.
LOADER = set(LOADER_RULES)
ASIDE = {"gguf/final-padding", "gguf/no-architecture", "safetensors/data-alignment", "sharded/no-total-size"}


def found_by(case: Case, folder: Path) -> VerifyReport:
    path = case.breaks(model(folder)) or folder
    return verify(path, values=any(rule.startswith(("values/", "npz/checksum", "dcp/copies")) for rule in case.rules))


def rules(report: VerifyReport) -> set[str]:
    """The rules that a report names, less those of llama.cpp's loader: but for one these small GGUFs are no whole
    models (the loader is the subject of tests/models/test_llamacpp.py)."""
    return {f.rule for f in report.findings} - ASIDE - (LOADER - {"llamacpp/missing", "tokenizer/gguf-size"})


def test_a_whole_model_has_no_findings(tmp_path: Path) -> None:
    report = verify(model(tmp_path / "m"), values=True)
    assert report.findings == ()
    assert report.ok
    assert (report.files, report.tensors) == (6, len(m.llama_tensors()))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_what_is_wrong_is_found_and_nothing_else(case: Case, tmp_path: Path) -> None:
    report = found_by(case, tmp_path / "m")
    assert rules(report) == case.rules
    first = next(f for f in report.findings if f.rule in case.rules)
    if case.words:
        assert any(case.words in f.message or case.words in (f.hint or "") for f in report.findings), report.findings
    assert first.path is not None
    assert report.ok == all(f.severity is not Severity.ERROR for f in report.findings)


EVERY = {rule.id: rule.severity for rule in (*RULES, *verify_packing.VALUE_RULES)}
EVERY |= {rule.id: rule.severity for rule in (*verify_values.RULES, *verify_distributed.VALUE_RULES)}


def test_every_rule_has_a_case() -> None:
    packed = {rule for bad in bad_packings.BAD.values() for rule in bad.rules}
    runs = {rule.id for rule in verify_runs.RULES}  # test_runs.py, test_zero.py, test_zero_parts.py, test_megatron.py
    assert set(EVERY) <= {rule for case in CASES for rule in case.rules} | packed | runs
    tables = (RULES, verify_values.RULES, verify_packing.VALUE_RULES, verify_distributed.VALUE_RULES)
    assert len(EVERY) == sum(map(len, tables))


def test_every_rule_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rules.md").read_text("utf-8")
    ends = {f"{f.name}/{end}" for f in READ for end in ("broken", "unread")}  # FORMAT/broken, there
    assert [rule for case in CASES for rule in case.rules - ends if f"| `{rule}` |" not in page] == []


def of_ours() -> Iterator[Any]:
    for case in CASES:
        for rule in sorted(case.rules & set(EVERY)):
            yield pytest.param(case, rule, id=f"{case.name}-{rule}")


@pytest.mark.mutation
@pytest.mark.parametrize(("case", "rule"), [*of_ours()])
def test_without_its_rule_nothing_is_found(
    case: Case, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RULES", tuple(r for r in RULES if r.id != rule))
    monkeypatch.setattr(module, "VALUE_RULES", tuple(r for r in module.VALUE_RULES if r.id != rule))
    monkeypatch.setattr(verify_values, "RULES", tuple(r for r in verify_values.RULES if r.id != rule))
    assert rules(found_by(case, tmp_path / "m")) == case.rules - {rule}


@pytest.mark.mutation
@pytest.mark.parametrize("name", list(verify_rules.PASSED_ON))
def test_what_others_find_is_passed_on(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the three sources of foreign rules has cases that go silent without it."""
    rest = {key: check for key, check in verify_rules.PASSED_ON.items() if key != name}
    monkeypatch.setattr(verify_rules, "PASSED_ON", rest)
    foreign = [c for c in CASES if c.rules - set(EVERY)]
    lost = [c.name for i, c in enumerate(foreign) if not rules(found_by(c, tmp_path / str(i))) >= c.rules]
    assert lost


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_severity_is_the_rules(case: Case, tmp_path: Path) -> None:
    for finding in found_by(case, tmp_path / "m").findings:
        if finding.rule in EVERY:
            assert finding.severity is EVERY[finding.rule]


def test_findings_are_sorted_and_the_same_every_time(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    for wound in (a_web_page_for_a_shard, no_tokenizer, pickles_beside_safetensors, a_half_download_left_behind):
        wound(folder)
    reports = [verify(folder) for _ in range(3)]
    assert reports[0] == reports[1] == reports[2]
    ranks = [list(Severity).index(f.severity) for f in reports[0].findings]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == 3
    assert (reports[0].errors, reports[0].warnings, reports[0].infos) == tuple(ranks.count(i) for i in range(3))


def test_fail_on(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    assert not failed(verify(folder), Severity.INFO)
    pickles_beside_safetensors(folder)
    assert failed(verify(folder), Severity.INFO)
    assert not failed(verify(folder), Severity.WARNING)
    no_tokenizer(folder)
    assert failed(verify(folder), Severity.WARNING)
    assert not failed(verify(folder), Severity.ERROR)
    an_empty_file(folder)
    assert failed(verify(folder))


def test_an_index_stands_for_its_folder(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    a_shard_gone(folder)
    assert rules(verify(index_of(folder))) == {"sharded/missing-shard"}


def test_links_of_the_cache_of_hugging_face_are_fine(tmp_path: Path) -> None:
    repo, whole = tmp_path / "models--a--b", model(tmp_path / "m")
    snapshot = repo / "snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    for i, file in enumerate(sorted(whole.iterdir())):
        (repo / "blobs" / str(i)).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/{i}")
    assert verify(snapshot).findings == ()


def test_digests_of_a_store_are_compared_once(tmp_path: Path) -> None:
    repo = tmp_path / "models--a--b"
    for commit in "cd":
        (repo / "snapshots" / (commit * 40)).mkdir(parents=True)
    (repo / "blobs").mkdir()
    for file in model(tmp_path / "m").iterdir():
        data = file.read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        name = hashlib.sha256(data).hexdigest() if file.suffix == ".safetensors" else git
        (repo / "blobs" / name).write_bytes(data)
        for commit in "cd":
            (repo / "snapshots" / (commit * 40) / file.name).symlink_to(f"../../blobs/{name}")
    seen: list[tuple[int, int, str]] = []
    report = verify(repo, progress=lambda *now: seen.append(now))
    assert (report.ok, report.digests) == (True, len(list((repo / "blobs").iterdir())))
    assert len(seen) == report.digests


def test_gguf_has_a_second_judge(tmp_path: Path) -> None:
    """llama.cpp refuses what the specification allows, and takes what it forbids."""
    gap = tmp_path / "gap.gguf"
    gap.write_bytes(m.gguf(KEYS | {"general.alignment": ("u32", 32)}, {"a": ("F32", (8,)), "b": ("F32", (8,))}))
    data = bytearray(gap.read_bytes())
    at = bytes(data).rindex(struct.pack("<Q", 32))
    data[at : at + 8] = struct.pack("<Q", 64)
    gap.write_bytes(bytes(data) + bytes(32))
    report = verify(gap)
    assert report.ok
    assert [(v.accepts, v.stage) for v in report.verdicts] == [(False, "header")]
    odd = tmp_path / "odd.gguf"
    odd.write_bytes(llama(lambda keys, _: keys.update({"Odd Key": KV("u32", 1)})))
    report = verify(odd)
    assert not report.ok
    assert [v.accepts for v in report.verdicts] == [True]


def test_values_of_a_truncated_file_are_no_error_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "t.gguf"
    file.write_bytes(m.gguf(KEYS, {"a": ("F32", (8,)), "b": ("F32", (640,))})[:-400])
    assert "gguf/truncated-data" in rules(verify(file, values=True))


def test_progress_counts_every_tensor(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    verify(model(tmp_path / "m"), values=True, progress=lambda done, total, label: seen.append((done, total)))
    assert len(seen) == len(m.llama_tensors())
    assert seen[-1][0] == seen[-1][1]


def seeds() -> list[bytes]:
    tensors = {"model.norm.weight": ("F32", (8,)), "lm_head.weight": ("F32", (32, 8))}
    tokens = {"tokenizer.ggml.model": ("str", "gpt2"), "tokenizer.ggml.tokens": ("arr[str]", ["a", "b"])}
    texts: list[Any] = [m.CONFIG, TOKENIZER, {"metadata": {"total_size": 8}, "weight_map": {"a": "model.safetensors"}}]
    return [m.safetensors(tensors), m.gguf(KEYS | tokens, tensors), *(json.dumps(doc).encode() for doc in texts)]


@pytest.mark.costly
@given(st.data())
@examples(150)
def test_any_damage_gives_a_report(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever bytes lie under whatever name: findings, never an exception."""
    folder = tmp_path_factory.mktemp("m")
    names = ["model.safetensors", "x.gguf", "config.json", "tokenizer.json", "model.safetensors.index.json"]
    for name, good in zip(names, seeds(), strict=True):
        body = bytearray(good)
        for _ in range(data.draw(st.integers(0, 2))):
            at = data.draw(st.integers(0, len(body)))
            body[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
        (folder / name).write_bytes(body)
    verify(folder, values=True)


@pytest.mark.parametrize(
    "values",
    [[], {}, 5, "x", None, [1, {"path": 5}], {"model": 7, "added_tokens": 3}, {"model": {"vocab": 7}}, [[]]],
    ids=str,
)
def test_json_of_another_shape_is_no_error_of_ours(values: Any, tmp_path: Path) -> None:
    names = (
        "config.json",
        "tokenizer.json",
        "modules.json",
        "adapter_config.json",
        "1_Pooling/config.json",
        "params.json",
    )
    for name in (*names, "model_index.json", "tokenizer_config.json", "model.safetensors.index.json"):
        folder = model(tmp_path / name.replace("/", "-"), shards=1)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(values))
        verify(folder)
        identify(folder)


@pytest.mark.parametrize("key", list(m.CONFIG))
@pytest.mark.parametrize("value", [None, "x", -1, 0, 2**80, 1.5, [], {}, [None]], ids=str)
def test_a_config_of_odd_values_is_no_error_of_ours(key: str, value: Any, tmp_path: Path) -> None:
    folder = model(tmp_path / "m", shards=1)
    edit_json(folder / "config.json", lambda d: d.update({key: value}))
    verify(folder)
    inspect(folder)


def test_a_missing_path_is_the_systems_own_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "none")


@pytest.mark.oracle
def test_mlx_folders_are_checked_against_their_config(tmp_path: Path) -> None:
    """Packed weights are held against the config by their logical shapes."""
    mx = pytest.importorskip("mlx.core")
    config = m.CONFIG | {"hidden_size": 64, "intermediate_size": 128, "quantization": {"bits": 4, "group_size": 32}}
    tensors: dict[str, Any] = {}
    for name, (_, shape) in m.llama_tensors().items():
        wide = tuple({8: 64, 16: 128, 4: 32}.get(n, n) for n in shape)
        array = mx.random.normal(wide)
        if len(wide) == 2:
            parts = mx.quantize(array, group_size=32, bits=4)
            stem = name.removesuffix(".weight")
            tensors |= {f"{stem}.{part}": a for part, a in zip(("weight", "scales", "biases"), parts, strict=True)}
        else:
            tensors[name] = array
    mx.save_safetensors(str(tmp_path / "model.safetensors"), tensors, {"format": "mlx"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    assert {f.rule for f in verify(tmp_path).findings if f.severity is not Severity.INFO} == set()
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 96}))
    assert "config/shape" in rules(verify(tmp_path))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("random.bin", bytes((i * 37 + 11) % 251 for i in range(5000))),
        ("passwd", b"root:x:0:0:root:/root:/bin/bash\n"),
        ("Modelfile", b"FROM llama3\n"),
        ("x.tar", m.tarred({"Modelfile": b"FROM llama3\n"})),
        (None, b""),
    ],
)
def test_what_nothing_checks_is_not_ok(
    name: str | None, data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path if name is None else tmp_path / name
    if name is not None:
        path.write_bytes(data)
    report = verify(path)
    assert report.verdict == "not-checked"
    assert not report
    assert not report.ok
    assert main(["verify", str(path)]) == 2
    assert "not checked" in capsys.readouterr().out


def test_files_beside_a_model_that_nothing_checks_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = m.llama_folder(tmp_path / "llama")
    (folder / "all.7z").write_bytes(b"7z\xbc\xaf\x27\x1c")
    report = verify(folder)
    assert (report.verdict, report.unchecked) == ("ok", ("all.7z",))
    assert main(["verify", str(folder), str(folder)]) == 0
    assert "not checked: all.7z" in capsys.readouterr().out


def test_a_whole_pipeline_has_no_fault(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    pipeline(folder)
    assert "folder/pipeline" not in {finding.rule for finding in verify(folder).findings}
