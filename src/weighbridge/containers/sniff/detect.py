"""What is this file? By content only, never by name: a table of recognisers, tried in order, each with its evidence.

    sniff(source) -> Identity     any bytes give an answer ("unknown" is one), in bounded time and memory

Order is from the surest sign to the weakest: emptiness, magics at fixed places, structures, text, then formats without
a magic. A recogniser looks at the first 64 KiB, at a zip's tail, and at what these point to.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import ZERO_RUN
from weighbridge.containers import REGISTRY
from weighbridge.containers.sniff import archive as sniff_archive
from weighbridge.containers.sniff import binary as sniff_binary
from weighbridge.containers.sniff import text as sniff_text
from weighbridge.containers.sniff import weights as sniff_weights
from weighbridge.containers.sniff.probe import Hit, Identity, Probe
from weighbridge.io.source import BytesSource, Source

__all__ = ["TITLES", "Identity", "sniff"]


class Magic(NamedTuple):
    """`sign` at `offset` says `format`."""

    offset: int
    sign: bytes
    format: str
    variant: str
    words: str


MAGICS: Final = (
    Magic(0, b"\x93NUMPY", "npy", "", "NUMPY magic"),
    Magic(0, b"\x89HDF\r\n\x1a\n", "hdf5", "", "HDF5 signature"),
    Magic(0, b"7z\xbc\xaf\x27\x1c", "7z", "", "7z signature"),
    Magic(0, b"Rar!\x1a\x07", "rar", "", "RAR signature"),
    Magic(4, b"TFL3", "tflite", "", "TFL3 at byte 4 (FlatBuffers file identifier of TensorFlow Lite)"),
    Magic(4, b"ET12", "executorch", "", "ET12 at byte 4 (FlatBuffers file identifier of ExecuTorch)"),
    Magic(0, b"SQLite format 3\0", "sqlite", "", "SQLite magic"),
    Magic(0, b"PAR1", "parquet", "", "PAR1 magic (Parquet)"),
    Magic(0, b"ARROW1\0\0", "arrow", "", "ARROW1 magic"),
    Magic(0, b"%PDF-", "pdf", "", "PDF magic"),
    Magic(0, b"\x89PNG\r\n\x1a\n", "image", "png", "PNG signature"),
    Magic(0, b"\xff\xd8\xff", "image", "jpeg", "JPEG signature"),
)

#: Format -> what to call it; the key set is the vocabulary of `Identity.format`.
TITLES: Final = MappingProxyType(
    {
        "safetensors": "Safetensors",
        "gguf": "GGUF",
        "npy": "NumPy array",
        "npz": "NumPy archive",
        "torch-zip": "PyTorch checkpoint",
        "torchscript": "TorchScript program",
        "torch-legacy": "PyTorch checkpoint (before 1.6)",
        "torch-tar": "PyTorch checkpoint (0.1, tar)",
        "torchserve": "TorchServe archive",
        "pickle": "Python pickle",
        "ggml": "GGML-family file (before GGUF)",
        "imatrix-dat": "importance matrix (legacy .dat)",
        "llamafile": "llamafile",
        "onnx": "ONNX model",
        "hdf5": "HDF5 file",
        "keras": "Keras model",
        "tf-savedmodel": "TensorFlow SavedModel",
        "tf-hub": "TensorFlow Hub archive",
        "tflite": "TensorFlow Lite model",
        "executorch": "ExecuTorch program",
        "coreml": "Core ML model",
        "nemo": "NeMo archive",
        "sentencepiece": "SentencePiece model",
        "tiktoken": "tiktoken vocabulary",
        "git-lfs-pointer": "Git LFS pointer",
        "html": "HTML page",
        "error-text": "error message of a server",
        "json": "JSON file",
        "xml": "XML document",
        "modelfile": "Ollama Modelfile",
        "text": "text file",
        "executable": "executable program",
        "zip": "zip archive",
        "tar": "tar archive",
        "7z": "7-Zip archive",
        "rar": "RAR archive",
        "gzip": "gzip stream",
        "xz": "xz stream",
        "bz2": "bzip2 stream",
        "zstd": "Zstandard stream",
        "lz4": "LZ4 stream",
        "sqlite": "SQLite database",
        "parquet": "Parquet file",
        "arrow": "Arrow file",
        "pdf": "PDF document",
        "image": "image",
        "empty": "empty file",
        "zeros": "file of zero bytes",
        "unknown": "unknown file",
    }
)

_FETCH: Final = "the real file was not fetched: run `git lfs pull`, or download it again with `hf download`"
_AGAIN: Final = (
    "this is not the model: the server sent a page or a message in its place; check the address and your access"
)
#: Format -> the next step for someone who expected weights.
_ADVICE: Final = MappingProxyType(
    {
        "git-lfs-pointer": _FETCH,
        "html": _AGAIN,
        "error-text": _AGAIN,
        "empty": "nothing was written: download it again",
        "zeros": "space was reserved but nothing written: the download never started or was interrupted",
        "ggml": "a llama: wb convert FILE new.gguf; others: wb convert FILE new.safetensors",
        "imatrix-dat": "wb inspect FILE shows it, wb quantize --imatrix FILE uses it",
        "gzip": "unpack it first", "xz": "unpack it first", "bz2": "unpack it first", "zstd": "unpack it first",
        "lz4": "unpack it first", "7z": "unpack it first", "rar": "unpack it first", "tar": "unpack it first",
    }
)  # fmt: skip


def _magic(probe: Probe) -> Hit | None:
    for row in MAGICS:
        if probe.at(row.offset, len(row.sign)) == row.sign:
            return _keras(probe) if row.format == "hdf5" else Hit(row.format, row.variant, (row.words,))
    return None


def _keras(probe: Probe) -> Hit:
    signs = [s for s in (b"keras_version", b"model_weights", b"layer_names", b"model_config") if s in probe.head]
    if not signs:
        return Hit("hdf5", evidence=("HDF5 signature",))
    return Hit("hdf5", "keras", ("HDF5 signature", f"attribute {signs[0].decode()} (Keras)"))


def _empty(probe: Probe) -> Hit | None:
    if probe.size == 0:
        return Hit("empty", evidence=("0 bytes",), damage=("the file is empty",))
    if probe.head.strip(b"\0"):
        return None
    if not probe.tail.strip(b"\0"):
        return Hit("zeros", evidence=("first and last bytes are all zero",), damage=("it is filled with zeros",))
    zeros = f"the first {len(probe.head):,} bytes are zero"
    return Hit(
        "unknown", evidence=(zeros,), confidence="guess", damage=(f"{zeros}: the head of a download is missing",)
    )


def _compressed(probe: Probe) -> Hit | None:
    found = sniff_archive.compressed(probe)
    if found is None:
        return None
    name, inside = found
    if not inside or probe.depth:
        return Hit(name, evidence=(f"{name} signature",))
    inner = _recognise(Probe(BytesSource(inside), depth=1))
    if inner.format == "nemo":
        return Hit("nemo", name, (f"{name} signature", *inner.evidence))
    return Hit(
        name,
        f"{inner.format}-inside",
        (f"{name} signature", f"inside: {TITLES[inner.format]}"),
        detail={"inside": inner.format},
    )


Recogniser = Callable[[Probe], Hit | None]

RECOGNISERS: Final[tuple[Recogniser, ...]] = (
    _empty,
    sniff_weights.gguf,
    sniff_weights.ggml,
    sniff_archive.archive,
    _magic,
    _compressed,
    sniff_archive.executable,
    sniff_weights.safetensors,
    sniff_archive.tar,
    sniff_text.text,
    sniff_text.json,
    sniff_binary.pickled,
    sniff_text.plain,
    sniff_binary.protobuf,
    sniff_weights.imatrix_dat,
    sniff_archive.prefixed_zip,
)


def _recognise(probe: Probe) -> Hit:
    for recogniser in RECOGNISERS:
        try:
            hit = recogniser(probe)
        except FormatError as error:  # the file shrank while it was read
            return Hit("unknown", evidence=(error.reason,), confidence="guess", damage=(error.reason,))
        if hit is not None:
            return hit
    return Hit("unknown", evidence=(f"first bytes {probe.head[:16].hex(' ')}",), confidence="guess")


def _zero_tail(probe: Probe, hit: Hit) -> tuple[str, ...]:
    """Model data rarely ends in 64 KiB of zeros; a download that reserved its space and stopped does."""
    if hit.format not in ("safetensors", "gguf", "torch-zip", "npy") or probe.size < 2 * ZERO_RUN or hit.damage:
        return ()
    return (
        () if probe.at(probe.size - ZERO_RUN, ZERO_RUN).strip(b"\0") else (f"its last {ZERO_RUN:,} bytes are all zero",)
    )


def sniff(source: Source) -> Identity:
    """What the bytes of `source` are."""
    probe = Probe(source)
    hit = _recognise(probe)
    detail: dict[str, Any] = dict(hit.detail)
    return Identity(
        hit.format, hit.variant, hit.confidence, hit.evidence, detail, readable=hit.format in REGISTRY,
        title=TITLES[hit.format], damage=hit.damage + _zero_tail(probe, hit), advice=_ADVICE.get(hit.format),
    )  # fmt: skip
