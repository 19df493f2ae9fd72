"""The time and memory of every parser grow with the file: twice the tensors run at most twice the lines of Python and
take twice the memory. Lines are counted, so a busy machine changes nothing."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pytest
from tests.conformance.samples import spec, torch_zip, written
from tests.containers import ggml_files, many_tensors, packed_files
from tests.containers.framework_files import llama2c, message, mindspore, table, varint
from tests.costs import lines, traced_memory
from tests.reports.makers import gguf, tarred

from weighbridge.containers import BUILT_IN
from weighbridge.containers.torch import dcp_write
from weighbridge.io.source import BytesSource

SIZE = 100
Make = Callable[[int], bytes]


def names(n: int) -> list[str]:
    return [f"layers.{i}.weight" for i in range(n)]


def of_layout(name: str) -> Make:
    """The file that a format writes, with n tensors; of one that holds a single tensor, with n rows."""

    def make(n: int) -> bytes:
        rows = [("w", spec("F32", n, 2))] if name == "npy" else [(t, spec("F32", 2)) for t in names(n)]
        layout = BUILT_IN[name].layout(rows, {})
        return written(layout, {slot.name: bytes(slot.spec.nbytes) for slot in layout.slots})

    return make


def by_torch(n: int, *, legacy: bool = False) -> bytes:
    import torch

    out = io.BytesIO()
    torch.save({name: torch.zeros(2) for name in names(n)}, out, _use_new_zipfile_serialization=not legacy)
    return out.getvalue()


def torchscript(n: int) -> bytes:
    with zipfile.ZipFile(io.BytesIO(by_torch(n))) as archive:
        members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    return torch_zip(members={**members, "constants.pkl": b"\x80\x02]."} | {"code/x.py": b"pass"})


def dcp_metadata(n: int) -> bytes:
    tensors = [(name, spec("F32", 2)) for name in names(n)]
    _, items = dcp_write.data_file("__0_0.distcp", tensors)
    return dcp_write.metadata_file({name: (s, dcp_write.whole(s, items[name])) for name, s in tensors})


def onnx(n: int) -> bytes:
    graph = b"".join(
        message(5, b"\x08\x02\x10\x01" + message(8, name.encode()) + message(9, bytes(8))) for name in names(n)
    )
    return b"\x08\x08" + message(7, graph)


def tf_checkpoint(n: int) -> bytes:
    entry = b"\x08\x01" + message(2, message(2, b"\x08\x02")) + b"\x20%s\x28\x08\x35" + bytes(4)
    rows = [(b"", b"\x08\x01")]
    rows += [(name.encode(), entry.replace(b"%s", varint(8 * i))) for i, name in enumerate(sorted(names(n)))]
    return table(rows)


def hdf5(n: int) -> bytes:
    h5py = pytest.importorskip("h5py")
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        for name in names(n):
            file.create_dataset(f"layers/{name}/vars/0", data=np.zeros(2, np.float32))
    return out.getvalue()


def keras(n: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.15.1"}')
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", hdf5(n))
    return out.getvalue()


def openvino(n: int) -> bytes:
    data = '<data element_type="f32" shape="2" offset="%d" size="8"/>'
    layers = (f'<layer name="{name}" type="Const">{data % (8 * i)}</layer>' for i, name in enumerate(names(n)))
    return f'<net name="m" version="11"><layers>{"".join(layers)}</layers></net>'.encode()


def ctranslate2(n: int) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    out = struct.pack("<I", 6) + text("Spec") + struct.pack("<II", 1, n)
    for name in names(n):
        out += text(name) + struct.pack("<BIBI", 1, 2, 0, 8) + bytes(8)
    return out + struct.pack("<I", 0)


def exported(n: int) -> bytes:
    meta = {
        "dtype": 7,
        "sizes": [{"as_int": 2}],
        "strides": [{"as_int": 1}],
        "storage_offset": {"as_int": 0},
        "layout": 7,
    }
    config = {
        name: {"path_name": f"weight_{i}", "is_param": True, "use_pickle": False, "tensor_meta": meta}
        for i, name in enumerate(names(n))
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("m/archive_format", "pt2")
        archive.writestr("m/byteorder", "little")
        archive.writestr("m/models/model.json", "{}")
        archive.writestr("m/data/weights/model_weights_config.json", json.dumps({"config": config}))
        for i in range(n):
            archive.writestr(f"m/data/weights/weight_{i}", bytes(8))
    return out.getvalue()


def coreml_weights(n: int) -> bytes:
    out = struct.pack("<II", n, 2).ljust(64, b"\0")
    for _ in range(n):
        out += struct.pack("<IIQQQ", 0xDEADBEEF, 2, 8, len(out) + 64, 0).ljust(64, b"\0") + bytes(64)
    return out


def imatrix_dat(n: int) -> bytes:
    out = struct.pack("<i", n)
    for name in names(n):
        out += struct.pack("<i", len(name)) + name.encode() + struct.pack("<2i4f", 100, 4, 1.0, 2.0, 3.0, 4.0)
    return out


def packed(n: int) -> bytes:
    inside = of_layout("safetensors")(n)
    header = 8 + int.from_bytes(inside[:8], "little")
    cut = [inside[at : at + 8] for at in range(header, len(inside), 8)]
    return packed_files.packed_file(
        [packed_files.Part("wbpack.bytes.0", inside[:header]),
         *(packed_files.Part(name, data) for name, data in zip(names(n), cut, strict=True))]
    )  # fmt: skip


MAKERS: Mapping[str, Make] = {
    **{name: of_layout(name) for name in ("safetensors", "gguf", "npz", "npy", "torch-zip", "flax")},
    "wbpack": packed,
    "torch-legacy": lambda n: by_torch(n, legacy=True),
    "torchscript": torchscript,
    "torch-dcp": dcp_metadata,
    "pickle": lambda n: pickle.dumps({name: np.zeros(2, np.float32) for name in names(n)}),
    "nemo": lambda n: tarred({"./model_config.yaml": b"a: 1\n", "./model_weights.ckpt": by_torch(n)}),
    "llamafile": lambda n: b"MZqFpD='\n" + bytes(500) + _zipped_gguf(n),
    "ggml": lambda n: ggml_files.llama("ggjt3", n_layer=n // 9),
    "onnx": onnx,
    "tf-checkpoint": tf_checkpoint,
    "hdf5": hdf5,
    "keras": keras,
    "openvino": openvino,
    "ctranslate2": ctranslate2,
    "torch-exported": exported,
    "coreml-weights": coreml_weights,
    "mindspore": lambda n: mindspore([(name, "Float32", (2,), bytes(8)) for name in names(n)]),
    "imatrix-dat": imatrix_dat,
    "llama2c": lambda n: llama2c(layers=max(n // 9, 1)),
    "zipnn": lambda n: many_tensors.zipnn(of_layout("safetensors")(n)),
    "torch-tar": lambda n: many_tensors.torch_tar(names(n)),
    "tflite": lambda n: many_tensors.tflite(names(n)),
    "executorch": lambda n: many_tensors.executorch(names(n)),
    "executorch-data": lambda n: many_tensors.executorch_data(names(n)),
    "coreml": lambda n: many_tensors.coreml(names(n)),
}


#: Tensors of others than a tensor for each name: a list of files has none, and a layer has nine.
FEWER = {"npy": 1, "ggml": 2 * SIZE // 9 * 9, "llama2c": 2 * SIZE // 9 * 9, "torch-dcp": 0}


def _zipped_gguf(n: int) -> bytes:
    out = io.BytesIO()
    out.write(b"MZqFpD='\n" + bytes(500))
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("model.gguf", gguf({"general.architecture": ("str", "llama")},
                                            {name: ("F32", (2,)) for name in names(n)}))  # fmt: skip
    return out.getvalue()[509:]


def test_every_format_is_here() -> None:
    from weighbridge.containers.formats import READ

    assert MAKERS.keys() == {format.name for format in READ}


@pytest.mark.parametrize("function", ["parse", "examine", "regions"])
@pytest.mark.parametrize("name", MAKERS)
def test_twice_the_tensors_take_twice_the_work(name: str, function: str) -> None:
    work: Callable[[BytesSource], object] = {
        "parse": lambda source: len(BUILT_IN[name].parse(source)), "examine": BUILT_IN[name].examine,
        "regions": lambda source: list(BUILT_IN[name].regions(source)),
    }[function]  # fmt: skip
    counts, peaks = [], []
    for n in (8, SIZE, 2 * SIZE):  # the first one imports
        source = BytesSource(MAKERS[name](n), "x")
        counts.append(lines(partial(work, source)))
        with traced_memory() as memory:
            work(source)
        peaks.append(memory.peak)
    assert len(BUILT_IN[name].parse(source)) >= FEWER.get(name, 2 * SIZE)
    assert counts[2] <= 2.2 * counts[1] + 200
    assert peaks[2] <= 2.3 * peaks[1] + 65_536
