"""The built-in formats, one row each: first those that are read, then those that are only recognised."""

from __future__ import annotations

from typing import Final

from weighbridge.base.dtypes import NUMPY_OWN, TABLE
from weighbridge.containers.archive.zip_records import STARTS
from weighbridge.containers.format import Format, Magic, Rank, Recogniser

#: The first bytes of a GGUF.
GGUF_MAGIC: Final = b"GGUF"
SEVEN_ZIP_MAGIC: Final = b"7z\xbc\xaf\x27\x1c"
#: The last bytes of TensorFlow's tables.
TABLE_MAGIC: Final = bytes.fromhex("57fb808b247547db")
LOGITS_MAGIC: Final = b"_logits_"
#: Packed files: Safetensors files whose metadata begins with this key.
PACKED, PACKED_KEY = "wbpack", "wbpack"
PACKED_SIGN: Final = b'{"__metadata__":{"wbpack":"'
#: llama.cpp's importance matrices from before those in GGUF.
IMATRIX_DAT: Final = "imatrix-dat"
#: ZipNN's files; the key of Safetensors' metadata that lists the tensors it encoded; the formats that hold one file.
ZIPNN: Final = "zipnn"
ZIPNN_KEY: Final = "znn_compressed_vectors"
ENCLOSING: Final = frozenset({PACKED, ZIPNN})
#: How the name of the first tensor of a block of DFloat11 ends.
DFLOAT11: Final = ".encoded_exponent"
#: The format of Orbax's checkpoints, which are folders.
ORBAX_FORMAT: Final = "orbax"
#: The trainer of a diffusers pipeline, a folder of several models; the list of its parts; the stem of the weights of
#: diffusers' own models.
PIPELINE: Final = "diffusers"
PIPELINE_INDEX: Final = "model_index.json"
PIPELINE_STEM: Final = "diffusion_pytorch_model"
#: The key of the class in the configs of diffusers' models.
DIFFUSERS_CLASS: Final = "_class_name"
#: The same for the folders of ComfyUI with a file per part, for a file with all parts, and all that are pipelines.
COMFY_SET: Final = "comfyui"
COMFY_FILE: Final = "comfyui-file"
PIPELINES: Final = frozenset({PIPELINE, COMFY_SET, COMFY_FILE})
#: The description of a tree of its arrays; the items of a step that are a model, the likeliest first.
ORBAX: Final = "_METADATA"
ORBAX_ITEMS: Final = ("default", "params", "model", "state", "items", "train_state")
#: Its database: the file that names the others, and the first bytes of its records.
OCDBT_FILE: Final = "manifest.ocdbt"
OCDBT_MANIFEST, OCDBT_NODE = bytes.fromhex("0cdb3a2a"), bytes.fromhex("0cdb20de")
#: Distributed checkpoints of torch: `.metadata`, and the files with the data.
DISTRIBUTED, DISTRIBUTED_DATA = "torch-dcp", "torch-dcp-data"
#: Formats of PyTorch whose tensors are in a nested structure (containers/torch/tree.py).
PYTORCH: Final = frozenset({"torch-zip", "torch-legacy", DISTRIBUTED})
#: The ends of the names of DeepSpeed's files.
ZERO_MODEL, ZERO_OPTIMIZER = "_model_states.pt", "_optim_states.pt"
_TORCH: Final = (".bin", ".pt", ".pth", ".ckpt")
_TORCH_FILE: Final = "pytorch_model.bin"
_FETCH: Final = "the real file was not fetched: run `git lfs pull`, or download it again with `hf download`"
_ANNEX: Final = "the real file was not fetched: run `git annex get`, or download it again"
_XET: Final = "the real file was not fetched: run `git xet checkout`, or download it again"
_RETRY: Final = (
    "this is not the model: the server sent a page or a message in its place; check the address and your access"
)
_EXTRACT: Final = "unpack it first"
_WRAPPED: Final = "commands read the model inside, and FILE/NAME names one of several"

_GGML_TYPES: Final = frozenset(t.name for t in TABLE if t.ggml is not None)
_SAFETENSORS_TYPES: Final = frozenset(t.name for t in TABLE if t.safetensors)
_NUMPY_TYPES: Final = frozenset(t.name for t in TABLE if t.numpy)
_TORCH_TYPES: Final = frozenset(t.name for t in TABLE if t.torch)


def _recogniser(function: str, rank: Rank, *, any_start: bool = False) -> Recogniser:
    return Recogniser(f"weighbridge.containers.{function}", rank, any_start)


# The recognisers, in the order in which they are asked. Several formats share one.
_EMPTY: Final = (_recogniser("sniff.detect:empty", Rank.FIRST),)
_GGUF: Final = (_recogniser("gguf.recognise:recognise", Rank.FIRST),)
_GGML: Final = (_recogniser("ggml.recognise:recognise", Rank.FIRST),)
_ZIP: Final = (_recogniser("sniff.archive:zip_members", Rank.MEMBERS),)
_HDF5: Final = (_recogniser("sniff.detect:hdf5", Rank.MAGIC),)
_PACKED: Final = (_recogniser("wbpack.container:recognise", Rank.MAGIC),)
_ZIPNN: Final = (_recogniser("zipnn.container:recognise", Rank.MAGIC),)
_COMPRESSED: Final = (_recogniser("sniff.detect:compressed", Rank.MAGIC),)
_SAFETENSORS: Final = (_recogniser("sniff.detect:safetensors", Rank.HEADER),)
_PROGRAM: Final = (_recogniser("sniff.archive:executable", Rank.PROGRAM),)
_TAR: Final = (_recogniser("sniff.archive:tar", Rank.CHECKSUM),)
_TEXT: Final = (_recogniser("sniff.text:text", Rank.TEXT),)
_JSON: Final = (_recogniser("sniff.text:json", Rank.TEXT),)
_PICKLE: Final = (_recogniser("sniff.binary:pickled", Rank.OPCODES),)
_TABLE: Final = (_recogniser("sniff.detect:tensorflow_table", Rank.MAGIC),)
_FLAX: Final = (_recogniser("frameworks.flax:recognise", Rank.FIELDS),)
_OPENVINO: Final = (_recogniser("frameworks.openvino:recognise", Rank.HEADER),)
_CTRANSLATE2: Final = (_recogniser("frameworks.ctranslate2:recognise", Rank.HEADER),)
_COREML_WEIGHTS: Final = (_recogniser("devices.coreml_weights:recognise", Rank.HEADER),)
_MINDSPORE: Final = (_recogniser("frameworks.mindspore:recognise", Rank.HEADER),)
_LLAMA2C: Final = (_recogniser("frameworks.llama2c:recognise", Rank.HEADER),)
_ANY_TEXT: Final = (_recogniser("sniff.text:plain", Rank.ANY_TEXT),)
_PROTOBUF: Final = (_recogniser("sniff.binary:protobuf", Rank.FIELDS),)
_IMATRIX: Final = (_recogniser("sniff.detect:imatrix_dat", Rank.LAST),)
_LATE_ZIP: Final = (_recogniser("sniff.archive:prefixed_zip", Rank.LAST, any_start=True),)

READ: Final = (
    Format(PACKED, "packed file (wb pack)", (), (".safetensors",), (Magic(8, PACKED_SIGN, "header of a packed file"),),
           module="weighbridge.containers.wbpack.container", rewritten_as="safetensors", recognisers=_PACKED,
           advice="every command reads it like the original; wb unpack FILE DST restores that"),
    Format(ZIPNN, "ZipNN file", (".znn",), (), (Magic(0, b"ZN\0", "ZN and a version (ZipNN)"),),
           module="weighbridge.containers.zipnn.container", rewritten_as="safetensors", in_folders=True,
           recognisers=_ZIPNN,
           advice="every command reads it like the original; wb unpack FILE DST restores that"),
    Format("safetensors", "Safetensors", (".safetensors",), module="weighbridge.containers.safetensors.container",
           target="safetensors", aliases=("st",), dtypes=_SAFETENSORS_TYPES, hub_name="model.safetensors",
           dense_end=True, recognisers=_SAFETENSORS),
    Format("gguf", "GGUF", (".gguf",), magics=(Magic(0, GGUF_MAGIC, "GGUF magic"),),
           module="weighbridge.containers.gguf.container", target="gguf", dtypes=_GGML_TYPES, dense_end=True,
           parsed_to_identify=True, recognisers=_GGUF),
    Format("npz", "NumPy archive", (".npz",), (".zip",), module="weighbridge.containers.numpy.npz", target="npz",
           aliases=("numpy",), dtypes=NUMPY_OWN, recognisers=_ZIP),
    Format("npy", "NumPy array", (".npy",), magics=(Magic(0, b"\x93NUMPY", "NUMPY magic"),),
           module="weighbridge.containers.numpy.npy", target="npy", dtypes=NUMPY_OWN,
           dense_end=True, parsed_to_identify=True),
    Format("torch-zip", "PyTorch checkpoint", _TORCH, (".zip", ".distcp"), module="weighbridge.containers.torch.zip",
           target="torch", aliases=("pytorch", "pt", "pth", "bin"), dtypes=_TORCH_TYPES, hub_name=_TORCH_FILE,
           pickles=True, dense_end=True, recognisers=_ZIP),
    Format("torch-legacy", "PyTorch checkpoint (before 1.6)", _TORCH, (".pkl",),
           module="weighbridge.containers.torch.legacy", rewritten_as="torch", hub_name=_TORCH_FILE, pickles=True,
           parsed_to_identify=True, recognisers=_PICKLE),
    Format("torch-tar", "PyTorch checkpoint (0.1, tar)", _TORCH, (".tar",),
           module="weighbridge.containers.torch.tar", pickles=True, parsed_to_identify=True, recognisers=_TAR),
    Format(DISTRIBUTED, "PyTorch distributed checkpoint", module="weighbridge.containers.torch.dcp",
           rewritten_as="safetensors", pickles=True, parsed_to_identify=True, recognisers=_PICKLE),
    Format("torchscript", "TorchScript program", _TORCH, (".zip",), module="weighbridge.containers.torch.zip",
           pickles=True, recognisers=_ZIP),
    Format("pickle", "Python pickle", (".pkl", ".pickle"), (*_TORCH, ".pdparams", ".pdopt"),
           module="weighbridge.containers.torch.bare_pickle", pickles=True, recognisers=_PICKLE),
    Format("ggml", "ggml file", (), (".bin",), (Magic(2, b"gg"),), module="weighbridge.containers.ggml.container",
           parsed_to_identify=True,
           advice="a llama: wb convert FILE new.gguf; a whisper runs in whisper.cpp, and wb convert FILE ./folder/ is "
           "for transformers; others: wb convert FILE new.safetensors", recognisers=_GGML),
    Format("llamafile", "llamafile", (".llamafile",), (".exe",), module="weighbridge.containers.gguf.llamafile",
           rewritten_as="gguf", recognisers=_PROGRAM),
    Format("onnx", "ONNX model", (".onnx",), (".bin",), module="weighbridge.containers.frameworks.onnx",
           rewritten_as="safetensors", in_folders=True, graph=True, recognisers=_PROTOBUF),
    Format("tf-checkpoint", "TensorFlow checkpoint", (), (".ckpt",), rewritten_as="safetensors",
           module="weighbridge.containers.frameworks.tf_checkpoint", in_folders=True, recognisers=_TABLE),
    Format("hdf5", "HDF5 file", (".h5", ".hdf5"), (".keras",), (Magic(0, b"\x89HDF\r\n\x1a\n", "HDF5 signature"),),
           rewritten_as="safetensors", module="weighbridge.containers.hdf5.container", in_folders=True,
           recognisers=_HDF5),
    Format("keras", "Keras model", (".keras",), (".zip",), rewritten_as="safetensors",
           module="weighbridge.containers.hdf5.keras", in_folders=True, recognisers=_ZIP),
    Format("flax", "Flax checkpoint", (".msgpack",), module="weighbridge.containers.frameworks.flax", target="flax",
           aliases=("msgpack",), in_folders=True, dtypes=_NUMPY_TYPES, recognisers=_FLAX),
    Format("tflite", "TensorFlow Lite model", (".tflite",), (),
           (Magic(4, b"TFL3", "TFL3 at byte 4 (FlatBuffers file identifier of TensorFlow Lite)"),),
           rewritten_as="safetensors", module="weighbridge.containers.frameworks.tflite", in_folders=True),
    Format("openvino", "OpenVINO model", (), (".xml",), rewritten_as="safetensors",
           module="weighbridge.containers.frameworks.openvino", in_folders=True, recognisers=_OPENVINO),
    Format("ctranslate2", "CTranslate2 model", (), (".bin",), rewritten_as="safetensors",
           module="weighbridge.containers.frameworks.ctranslate2", in_folders=True, graph=True,
           recognisers=_CTRANSLATE2),
    Format("torch-exported", "exported PyTorch program", (".pt2",), rewritten_as="safetensors",
           module="weighbridge.containers.torch.exported", in_folders=True, recognisers=_ZIP),
    Format("executorch", "ExecuTorch program", (".pte",), (),
           (Magic(4, b"ET12", "ET12 at byte 4 (FlatBuffers file identifier of ExecuTorch)"),),
           rewritten_as="safetensors", module="weighbridge.containers.devices.executorch", in_folders=True),
    Format("executorch-data", "ExecuTorch data file", (".ptd",), (),
           (Magic(4, b"FT01", "FT01 at byte 4 (FlatBuffers file identifier of ExecuTorch's data)"),),
           rewritten_as="safetensors", module="weighbridge.containers.devices.executorch_data", in_folders=True),
    Format("coreml", "Core ML model", (".mlmodel",), rewritten_as="safetensors",
           module="weighbridge.containers.devices.coreml", in_folders=True, recognisers=_PROTOBUF),
    Format("coreml-weights", "weights of a Core ML model", (), (".bin",), rewritten_as="safetensors",
           module="weighbridge.containers.devices.coreml_weights", recognisers=_COREML_WEIGHTS),
    Format("mindspore", "MindSpore checkpoint", (), (".ckpt",), rewritten_as="safetensors",
           module="weighbridge.containers.frameworks.mindspore", recognisers=_MINDSPORE),
    Format("nemo", "NeMo archive", (".nemo",), (".gz", ".tar"), module="weighbridge.containers.torch.nemo",
           rewritten_as="safetensors", pickles=True, in_folders=True, recognisers=(*_ZIP, *_TAR, *_COMPRESSED)),
    Format("llama2c", "llama2.c model", (), (".bin",), rewritten_as="safetensors",
           module="weighbridge.containers.frameworks.llama2c", in_folders=True, recognisers=_LLAMA2C),
    Format(IMATRIX_DAT, "importance matrix (legacy .dat)", module="weighbridge.containers.ggml.imatrix_dat",
           advice="wb inspect and wb view show it, wb quantize --imatrix FILE uses it", recognisers=_IMATRIX),
)  # fmt: skip

#: The formats that are written into an existing file.
GRAPHS: Final = tuple(row.name for row in READ if row.graph)

_POINTER_FORMATS: Final = (
    Format("git-lfs-pointer", "Git LFS pointer", advice=_FETCH, recognisers=_TEXT),
    Format("git-annex-pointer", "git-annex pointer", advice=_ANNEX, recognisers=_TEXT),
    Format("xet-pointer", "Xet pointer", advice=_XET, recognisers=_TEXT),
)
#: Small texts in place of a file that is stored elsewhere.
POINTERS: Final = frozenset(row.name for row in _POINTER_FORMATS)

RECOGNISED: Final = (
    Format(DISTRIBUTED_DATA, "data of a PyTorch distributed checkpoint", (".distcp",),
           advice="name its folder, which has a file .metadata", recognisers=_ZIP),
    Format(ORBAX_FORMAT, "Orbax checkpoint", (), (), (Magic(0, OCDBT_MANIFEST, "the manifest of an OCDBT database"),
                                                      Magic(0, OCDBT_NODE, "a node of an OCDBT database")),
           rewritten_as="safetensors", advice="name its folder, which has a file _METADATA"),
    Format("torchserve", "TorchServe archive", recognisers=_ZIP),
    Format("llama-logits", "log-probabilities of llama-perplexity", (".kld",), (".bin",),
           (Magic(0, LOGITS_MAGIC, "_logits_"),), advice="wb quality FILE MODEL compares a model's with them"),
    Format("tf-savedmodel", "TensorFlow SavedModel", (), (".ckpt",), recognisers=_PROTOBUF),
    Format("tf-hub", "TensorFlow Hub archive", (), (".tar",), recognisers=_TAR),
    Format("sentencepiece", "SentencePiece model", (".model",), recognisers=_PROTOBUF),
    Format("tiktoken", "tiktoken vocabulary", (), (".model",), recognisers=_TEXT),
    *_POINTER_FORMATS,
    Format("html", "HTML page", advice=_RETRY, recognisers=_TEXT),
    Format("error-text", "error message of a server", advice=_RETRY, recognisers=_TEXT),
    Format("json", "JSON file", (".json",), (".model",), recognisers=_JSON),
    Format("xml", "XML document", (), (".xml",), recognisers=_TEXT),
    Format("modelfile", "Ollama Modelfile", recognisers=_TEXT),
    Format("text", "text file", (), (".bin",), recognisers=_ANY_TEXT),
    Format("executable", "executable program", recognisers=_PROGRAM),
    Format("zip", "zip archive", (".zip",), magics=tuple(Magic(0, sign, "zip signature") for sign in STARTS),
           advice=_WRAPPED, recognisers=(*_ZIP, *_LATE_ZIP)),
    Format("tar", "tar archive", (".tar",), (".nemo",), advice=_WRAPPED, recognisers=_TAR),
    Format("7z", "7-Zip archive", (".7z",), (), (Magic(0, SEVEN_ZIP_MAGIC, "7z signature"),), advice=_WRAPPED),
    Format("rar", "RAR archive", (), (), (Magic(0, b"Rar!\x1a\x07", "RAR signature"),), advice=_EXTRACT),
    Format("gzip", "gzip stream", (".gz",), (".pkl",), advice=_WRAPPED, recognisers=_COMPRESSED),
    Format("xz", "xz stream", (), (".pkl",), advice=_WRAPPED, recognisers=_COMPRESSED),
    Format("bz2", "bzip2 stream", (), (".pkl",), advice=_WRAPPED, recognisers=_COMPRESSED),
    Format("zstd", "Zstandard stream", (), (), advice=_WRAPPED, recognisers=_COMPRESSED),
    Format("lz4", "LZ4 stream", (), (".pkl",), advice=_WRAPPED, recognisers=_COMPRESSED),
    Format("sqlite", "SQLite database", magics=(Magic(0, b"SQLite format 3\0", "SQLite magic"),)),
    Format("parquet", "Parquet file", magics=(Magic(0, b"PAR1", "PAR1 magic (Parquet)"),)),
    Format("arrow", "Arrow file", magics=(Magic(0, b"ARROW1\0\0", "ARROW1 magic"),)),
    Format("pdf", "PDF document", magics=(Magic(0, b"%PDF-", "PDF magic"),)),
    Format("image", "image", magics=(Magic(0, b"\x89PNG\r\n\x1a\n", "PNG signature", "png"),
                                     Magic(0, b"\xff\xd8\xff", "JPEG signature", "jpeg"))),
    Format("empty", "empty file", advice="nothing was written: download it again", recognisers=_EMPTY),
    Format("zeros", "file of zero bytes",
           advice="space was reserved but nothing written: the download never started or was interrupted",
           recognisers=_EMPTY),
    Format("unknown", "unknown file", (), (".bin", ".ckpt", ".pkl")),
)  # fmt: skip
