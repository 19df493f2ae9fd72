"""Invariant: any bytes give tensors inside the file, or a Format- or UnsupportedError; regions cover the file."""

from __future__ import annotations

import sys

import harness
from tests.containers import ggml_files
from tests.containers.regions import check_regions

from weighbridge.containers.ggml import container as ggml
from weighbridge.io.source import BytesSource


def target(data: bytes) -> None:
    source = BytesSource(data)
    check_regions(ggml.regions(source), len(data))
    index = ggml.parse(source)
    for entry in index:
        assert entry.offset + entry.nbytes <= len(data)
        assert entry.spec.nbytes == entry.nbytes


def seeds() -> list[bytes]:
    small = {"n_vocab": 5, "n_layer": 1}
    llamas = [ggml_files.llama(form, "F32", 0, **small) for form in ggml_files.MAGICS]
    old = [ggml_files.llama("ggjt1", kind, 2, **small) for kind in ("Q4_0", "Q4_3", "Q5_1")]
    return [
        *llamas,
        *old,
        ggml_files.gpt2(),
        ggml_files.gpt2("Q4_0", 2002),
        ggml_files.whisper(),
        ggml_files.parakeet(),
        ggml_files.silero(),
    ]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
