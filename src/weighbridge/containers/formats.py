"""The built-in formats, one row each: first those that are read, then those that are only recognised."""

from __future__ import annotations

from typing import Final

from weighbridge.containers.archive.zip_records import STARTS
from weighbridge.containers.format import Format, Magic, Promises

#: The first bytes of a GGUF.
GGUF_MAGIC: Final = b"GGUF"
_TORCH: Final = (".bin", ".pt", ".pth", ".ckpt")
_TORCH_FILE: Final = "pytorch_model.bin"
_FETCH: Final = "the real file was not fetched: run `git lfs pull`, or download it again with `hf download`"
_ANNEX: Final = "the real file was not fetched: run `git annex get`, or download it again"
_XET: Final = "the real file was not fetched: run `git xet checkout`, or download it again"
_RETRY: Final = (
    "this is not the model: the server sent a page or a message in its place; check the address and your access"
)
_EXTRACT: Final = "unpack it first"

READ: Final = (
    Format("safetensors", "Safetensors", (".safetensors",), module="weighbridge.containers.safetensors.container",
           target="safetensors", aliases=("st",), hub_name="model.safetensors", promises=Promises(ordered=False),
           dense_end=True),
    Format("gguf", "GGUF", (".gguf",), magics=(Magic(0, GGUF_MAGIC, "GGUF magic"),),
           module="weighbridge.containers.gguf.container", target="gguf", promises=Promises(alignment=32),
           dense_end=True, parsed_to_identify=True),
    Format("npz", "NumPy archive", (".npz",), (".zip",), module="weighbridge.containers.numpy.npz", target="npz",
           aliases=("numpy",), promises=Promises(alignment=64, sequential=False)),
    Format("npy", "NumPy array", (".npy",), magics=(Magic(0, b"\x93NUMPY", "NUMPY magic"),),
           module="weighbridge.containers.numpy.npy", target="npy", promises=Promises(alignment=64), dense_end=True,
           parsed_to_identify=True),
    Format("torch-zip", "PyTorch checkpoint", _TORCH, (".zip",), module="weighbridge.containers.torch.zip",
           target="torch", aliases=("pytorch", "pt", "pth", "bin"), hub_name=_TORCH_FILE, pickles=True,
           promises=Promises(alignment=64, sequential=False), dense_end=True),
    Format("torch-legacy", "PyTorch checkpoint (before 1.6)", _TORCH, (".pkl",),
           module="weighbridge.containers.torch.legacy", rewritten_as="torch", hub_name=_TORCH_FILE, pickles=True,
           parsed_to_identify=True),
    Format("torch-tar", "PyTorch checkpoint (0.1, tar)", _TORCH, (".tar",),
           module="weighbridge.containers.torch.tar", pickles=True, parsed_to_identify=True),
    Format("torchscript", "TorchScript program", _TORCH, (".zip",), module="weighbridge.containers.torch.zip",
           pickles=True),
    Format("pickle", "Python pickle", (".pkl", ".pickle"), _TORCH, module="weighbridge.containers.torch.bare_pickle",
           pickles=True),
    Format("ggml", "GGML-family file (before GGUF)", (), (".bin",), module="weighbridge.containers.ggml.container",
           parsed_to_identify=True,
           advice="a llama: wb convert FILE new.gguf; others: wb convert FILE new.safetensors"),
    Format("llamafile", "llamafile", (".llamafile",), (".exe",), module="weighbridge.containers.gguf.llamafile",
           rewritten_as="gguf"),
)  # fmt: skip

_POINTER_FORMATS: Final = (
    Format("git-lfs-pointer", "Git LFS pointer", advice=_FETCH),
    Format("git-annex-pointer", "git-annex pointer", advice=_ANNEX),
    Format("xet-pointer", "Xet pointer", advice=_XET),
)
#: Text that stands for a file which is stored elsewhere.
POINTERS: Final = frozenset(row.name for row in _POINTER_FORMATS)

RECOGNISED: Final = (
    Format("torchserve", "TorchServe archive"),
    Format("imatrix-dat", "importance matrix (legacy .dat)",
           advice="wb inspect FILE shows it, wb quantize --imatrix FILE uses it"),
    Format("onnx", "ONNX model", (".onnx",), (".bin",)),
    Format("hdf5", "HDF5 file", (".h5", ".hdf5"), (".keras",), (Magic(0, b"\x89HDF\r\n\x1a\n", "HDF5 signature"),)),
    Format("keras", "Keras model", (".keras",), (".zip",)),
    Format("tf-savedmodel", "TensorFlow SavedModel", (), (".ckpt",)),
    Format("tf-hub", "TensorFlow Hub archive", (), (".tar",)),
    Format("tflite", "TensorFlow Lite model", (".tflite",), (),
           (Magic(4, b"TFL3", "TFL3 at byte 4 (FlatBuffers file identifier of TensorFlow Lite)"),)),
    Format("executorch", "ExecuTorch program", (".pte",), (),
           (Magic(4, b"ET12", "ET12 at byte 4 (FlatBuffers file identifier of ExecuTorch)"),)),
    Format("coreml", "Core ML model", (".mlmodel",)),
    Format("nemo", "NeMo archive", (".nemo",), (".gz", ".tar")),
    Format("sentencepiece", "SentencePiece model", (".model",)),
    Format("tiktoken", "tiktoken vocabulary", (), (".model",)),
    *_POINTER_FORMATS,
    Format("html", "HTML page", advice=_RETRY),
    Format("error-text", "error message of a server", advice=_RETRY),
    Format("json", "JSON file", (".json",), (".model",)),
    Format("xml", "XML document"),
    Format("modelfile", "Ollama Modelfile"),
    Format("text", "text file", (), (".bin",)),
    Format("executable", "executable program"),
    Format("zip", "zip archive", (".zip",), magics=tuple(Magic(0, sign, "zip signature") for sign in STARTS)),
    Format("tar", "tar archive", (".tar",), (".nemo",), advice=_EXTRACT),
    Format("7z", "7-Zip archive", (".7z",), (), (Magic(0, b"7z\xbc\xaf\x27\x1c", "7z signature"),), advice=_EXTRACT),
    Format("rar", "RAR archive", (), (), (Magic(0, b"Rar!\x1a\x07", "RAR signature"),), advice=_EXTRACT),
    Format("gzip", "gzip stream", (".gz",), (".pkl",), advice=_EXTRACT),
    Format("xz", "xz stream", (), (".pkl",), advice=_EXTRACT),
    Format("bz2", "bzip2 stream", (), (".pkl",), advice=_EXTRACT),
    Format("zstd", "Zstandard stream", (), (), (Magic(0, b"\x28\xb5\x2f\xfd", "zstd signature"),), advice=_EXTRACT),
    Format("lz4", "LZ4 stream", (), (".pkl",), (Magic(0, b"\x04\x22\x4d\x18", "lz4 signature"),), advice=_EXTRACT),
    Format("sqlite", "SQLite database", magics=(Magic(0, b"SQLite format 3\0", "SQLite magic"),)),
    Format("parquet", "Parquet file", magics=(Magic(0, b"PAR1", "PAR1 magic (Parquet)"),)),
    Format("arrow", "Arrow file", magics=(Magic(0, b"ARROW1\0\0", "ARROW1 magic"),)),
    Format("pdf", "PDF document", magics=(Magic(0, b"%PDF-", "PDF magic"),)),
    Format("image", "image", magics=(Magic(0, b"\x89PNG\r\n\x1a\n", "PNG signature", "png"),
                                     Magic(0, b"\xff\xd8\xff", "JPEG signature", "jpeg"))),
    Format("empty", "empty file", advice="nothing was written: download it again"),
    Format("zeros", "file of zero bytes",
           advice="space was reserved but nothing written: the download never started or was interrupted"),
    Format("unknown", "unknown file", (), (".bin", ".ckpt", ".pkl")),
)  # fmt: skip
