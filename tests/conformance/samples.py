"""Files of every format that is read: written by the format, by this module, or by the format's library."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from tests.containers import ggml_files, packed_files
from tests.containers.framework_files import llama2c, mindspore
from tests.reports.makers import gguf, imatrix_dat

from weighbridge.base.dtypes import dtype
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers import BUILT_IN, Format
from weighbridge.containers.base import Layout

Tensors = Sequence[tuple[str, Spec]]


def spec(kind: str, *shape: int) -> Spec:
    return Spec(shape, dtype(kind))


#: Sets of tensors that formats are asked to write.
TENSORS: Mapping[str, Tensors] = {
    "none": [],
    "one": [("w", spec("F32", 2, 3))],
    "several": [("a", spec("F32", 3)), ("b.weight", spec("F16", 2, 2)), ("c", spec("U8", 5)), ("d", spec("I64", 2))],
    "small types last": [("z", spec("F64", 1)), ("y", spec("I8", 3)), ("x", spec("F32", 2, 1, 2))],
    "empty": [("e", spec("F32", 0)), ("f", spec("F32", 2, 0)), ("g", spec("F32", 1))],
    "scalar": [("s", spec("F32"))],
    "bf16": [("w", spec("BF16", 4, 8))],
    "blocks": [("q", spec("Q8_0", 2, 64)), ("k", spec("Q4_K", 1, 256))],
    "odd name": [("model/layers.0:weight é", spec("F32", 2))],
}


#: Metadata of each; formats without a place for it leave it out.
METADATA: Final = {"general.architecture": "llama"}


def contents(layout: Layout) -> dict[str, bytes]:
    """Bytes for each slot, different for each."""
    return {s.name: bytes((i * 31 + j) % 251 for j in range(s.spec.nbytes)) for i, s in enumerate(layout.slots)}


def written(layout: Layout, data: Mapping[str, bytes]) -> bytes:
    """The file of a layout with this data in its slots."""
    out = bytearray(layout.size)
    pieces = [*layout.pieces, *((s.offset, data[s.name]) for s in layout.slots)]
    if layout.fixups:
        pieces += layout.fixups({name: zlib.crc32(raw) for name, raw in data.items()})
    for at, piece in pieces:
        out[at : at + len(piece)] = piece
    assert len(out) == layout.size, "a piece lies outside"
    return bytes(out)


#: The sets that a built-in format refuses.
REFUSED: Final[Mapping[str, frozenset[str]]] = {
    "safetensors": frozenset({"blocks"}),
    "gguf": frozenset({"several"}),
    "npz": frozenset({"bf16", "blocks"}),
    "npy": frozenset(TENSORS) - {"one", "scalar", "odd name"},
    "torch-zip": frozenset({"blocks"}),
    "flax": frozenset({"blocks"}),
}


def accepted(format: Format) -> dict[str, Tensors]:
    """The sets that a format writes; of a plug-in's, those that it doesn't refuse."""
    refused = REFUSED.get(format.name, ()) if format.name in BUILT_IN else refused_by(format)
    return {name: tensors for name, tensors in TENSORS.items() if name not in refused}


def refused_by(format: Format) -> frozenset[str]:
    """The sets that a format refuses to write."""
    found = set()
    for name, tensors in TENSORS.items():
        try:
            format.layout(tensors, METADATA)
        except (UnsupportedError, UsageError):
            found.add(name)
    return frozenset(found)


def own(format: Format) -> list[bytes]:
    """The files that a format writes, one for each set that it accepts."""
    layouts = [format.layout(tensors, METADATA) for tensors in accepted(format).values()]
    return [written(layout, contents(layout)) for layout in layouts]


# ---- formats that are only read ----

_TREE = b"\x80\x02}(X\1\0\0\0a%sX\1\0\0\0b%sX\1\0\0\0n]K\1au."
_TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\x0c%stQ"
    b"K\0(K\3K\4t(K%cK%ct\x89ccollections\nOrderedDict\n)RtR"
)


def torch_pickle(view: bytes = b"") -> bytes:
    """A tree of two tensors over one storage of 12 floats."""
    return _TREE % (_TENSOR % (view, 4, 1), _TENSOR % (view, 1, 3))


def torch_zip(method: int = zipfile.ZIP_STORED, members: Mapping[str, bytes] = MappingProxyType({})) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in {"data.pkl": torch_pickle(), "byteorder": b"little", "data/0": bytes(48), **members}.items():
            archive.writestr(f"x/{name}", data)
    return out.getvalue()


def torch_legacy() -> bytes:
    head = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}."
    return head + torch_pickle(b"N") + b"\x80\x02]X\1\0\0\x000a." + struct.pack("<q", 12) + bytes(48)


def torch_tar() -> bytes:
    from tests.unpickle.test_readers import tarred

    return tarred()


def nemo() -> list[bytes]:
    """An archive of one file, and of two ranks."""
    from tests.reports.makers import tarred

    return [
        tarred({"./model_config.yaml": b"a: 1\n", "./model_weights.ckpt": torch_zip()}),
        tarred({f"./mp_rank_0{n}/model_weights.ckpt": torch_zip() for n in range(2)} | {"./model_config.yaml": b""}),
    ]


def torchscript() -> bytes:
    constants = b"\x80\x02]."
    return torch_zip(members={"constants.pkl": constants, "code/x.py": b"pass"})


def llamafile(model: bytes = b"", method: int = zipfile.ZIP_STORED) -> bytes:
    """A program followed by a zip with a GGUF."""
    out = io.BytesIO()
    out.write(b"MZqFpD='\n" + bytes(500))
    with zipfile.ZipFile(out, "a", method) as archive:
        archive.writestr(".args", "-m\nmodel.gguf\n")
        keys = {"general.architecture": ("str", "llama")}
        archive.writestr("model.gguf", model or gguf(keys, {"a": ("F32", (2, 4))}))
    return out.getvalue()


def pickled() -> list[bytes]:
    import numpy as np

    value = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "n": [1, None, "x"]}
    return [pickle.dumps(value, protocol) for protocol in (0, 2, 4, 5)]


def dcp_metadata() -> list[bytes]:
    """A list of torch's, and one of ours."""
    from tests.containers.dcp_cases import GOLDEN

    from weighbridge.containers.torch import dcp_write

    with zipfile.ZipFile(GOLDEN) as archive:
        recorded = archive.read("one/.metadata")
    _, items = dcp_write.data_file("__0_0.distcp", TENSORS["several"])
    tensors = {name: (spec, dcp_write.whole(spec, items[name])) for name, spec in TENSORS["several"]}
    return [recorded, dcp_write.metadata_file(tensors)]


_CORE_ML = "mlpackage/Data/com.apple.CoreML/model.mlmodel"
_BLOBS = "mlpackage/Data/com.apple.CoreML/weights/weight.bin"


def recorded(*names: str, archive: str = "frameworks.zip") -> Callable[[], list[bytes]]:
    """Files that frameworks' libraries wrote."""

    def read() -> list[bytes]:
        from tests.containers.framework_files import GOLDEN

        with zipfile.ZipFile(GOLDEN.with_name(archive)) as files:
            return [files.read(name) for name in names]

    return read


def packed() -> list[bytes]:
    """A packed safetensors file, and a packed GGUF."""
    model = gguf({"general.architecture": ("str", "llama")}, {"a": ("F32", (2, 4))})
    return [packed_files.small(), packed_files.packed_file([packed_files.Part("a", model)])]


READ_ONLY: Mapping[str, Callable[[], list[bytes]]] = {
    "wbpack": packed,
    "zipnn": recorded("plain.bfloat16.safetensors.znn", "plain.float32.streams.safetensors.znn", archive="coded.zip"),
    "gguf": lambda: [gguf({"general.architecture": ("str", "llama")}, {"a": ("F32", (2, 4))}, version=2)],
    "torch-zip": lambda: [torch_zip(), torch_zip(zipfile.ZIP_DEFLATED)],
    "torch-legacy": lambda: [torch_legacy()],
    "torch-tar": lambda: [torch_tar()],
    "torchscript": lambda: [torchscript()],
    "nemo": nemo,
    "torch-dcp": dcp_metadata,
    "pickle": pickled,
    "onnx": recorded("a.onnx", "e.onnx"),
    "tf-checkpoint": recorded("saved/variables/variables.index", "v2/model.ckpt.index", "v1/model.ckpt"),
    "hdf5": recorded("k.weights.h5", "old.h5", "chunks.h5", "latest.h5", "hostile.h5"),
    "keras": recorded("k.keras"),
    "flax": recorded("a.msgpack", "chunked.msgpack"),
    "tflite": recorded("a.tflite"),
    "openvino": recorded("ir.xml"),
    "torch-exported": recorded("m.pt2"),
    "ctranslate2": recorded("ct2/model.bin"),
    "executorch": recorded("a.pte", "mutable.pte", "external.pte", "xnnpack.pte", archive="devices.zip"),
    "executorch-data": recorded("external.ptd", archive="devices.zip"),
    "coreml": recorded(f"half.{_CORE_ML}", f"int4.{_CORE_ML}", archive="devices.zip"),
    "coreml-weights": recorded(
        "w.bin", "int4.mlpackage/Data/com.apple.CoreML/weights/weight.bin", archive="devices.zip"
    ),
    "mindspore": lambda: [
        mindspore([("a", "Float32", (2,), bytes(8)), ("b", "Int8", (3,), b"ab"), ("b", "Int8", (3,), b"c")], packed)
        for packed in (False, True)
    ],
    "imatrix-dat": lambda: [imatrix_dat(), imatrix_dat() + struct.pack("<ii", 7, 5) + b"x.txt"],
    "llama2c": lambda: [llama2c(version, shared) for version in (0, 1) for shared in (True, False)],
    "llamafile": lambda: [llamafile()],
    "ggml": lambda: [
        *(ggml_files.llama(form) for form in ggml_files.MAGICS),
        ggml_files.gpt2(),
        ggml_files.whisper(),
        ggml_files.parakeet(),
        ggml_files.silero(),
    ],
}


def samples(format: Format) -> list[bytes]:
    """Good files of a format; of one that can't be written, those of `READ_ONLY`."""
    found = own(format) if format.target else []
    found += READ_ONLY.get(format.name, list)()
    found += getattr(format.functions, "samples", list)()
    assert found, (
        f"no sample of {format.name}: add one to READ_ONLY in {__file__}, or a function samples() to a plug-in"
    )
    return found
