"""Invariant: any bytes give tensors that can be read, or a Format-, Unsupported- or RefusedError; regions cover."""

from __future__ import annotations

import sys

import harness
from tests.conformance.samples import samples
from tests.containers.regions import check_regions

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import MIB
from weighbridge.containers import BUILT_IN
from weighbridge.containers.data_files import DataFile
from weighbridge.io.source import BytesSource

FORMATS = (
    "onnx", "tf-checkpoint", "hdf5", "keras", "flax", "tflite", "openvino", "ctranslate2", "llama2c",
    "torch-exported", "executorch", "executorch-data", "coreml", "coreml-weights", "mindspore",
)  # fmt: skip


def target(data: bytes) -> None:
    """The first byte chooses the format, so that each of them reads files of the others too."""
    if not data:
        return
    format = BUILT_IN[FORMATS[data[0] % len(FORMATS)]]
    source = BytesSource(data[1:])
    check_regions(format.regions(source), source.size)
    index = format.parse(source)
    for entry in index:
        assert entry.spec.nbytes == entry.nbytes
        file = index.files[entry.file]
        file.check(entry.offset, entry.nbytes)
        if not isinstance(file, DataFile):
            try:
                file.read(entry.offset, min(entry.nbytes, MIB))
            except FormatError:  # a chunk that doesn't unpack
                assert file is not source


def seeds() -> list[bytes]:
    return [bytes((n,)) + data for n, name in enumerate(FORMATS) for data in samples(BUILT_IN[name])]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
