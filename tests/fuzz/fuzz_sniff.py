"""Invariant: any bytes give an Identity with a known format and evidence, never an exception, in bounded time."""

from __future__ import annotations

import gzip
import pickle
import struct
import sys

import harness
from tests.reports import makers

from weighbridge.containers import BUILT_IN
from weighbridge.containers.sniff.detect import sniff
from weighbridge.io.source import BytesSource


def target(data: bytes) -> None:
    identity = sniff(BytesSource(data))
    assert identity.format in BUILT_IN
    assert identity.evidence


def seeds() -> list[bytes]:
    keys = {"general.architecture": ("str", "llama"), "tokenizer.ggml.tokens": ("arr[str]", ["a", "b"])}
    gguf = makers.gguf(keys, {"a": ("F32", (2, 4))})
    return [
        makers.safetensors({"a.lora_A.weight": ("F32", (2, 2)), "b": ("F16", (4,))}, {"format": "pt"}),
        gguf,
        makers.gguf(keys, version=1),
        makers.gguf(keys, order=">"),
        b"MZqFpD='\n" + makers.zipped({"m.gguf": gguf}),
        makers.zipped({"m/data.pkl": pickle.dumps({"w": 1}, 2), "m/data/0": bytes(8), "m/version": b"3\n"}),
        makers.tarred({"sys_info": b"x", "pickle": b"y", "storages": b"z"}),
        gzip.compress(gguf),
        pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps({"a": [1.5, "x"]}, 2),
        pickle.dumps({"a": [1.5, "x"]}, 0),
        makers.field(1, 8) + makers.field(2, b"pytorch") + makers.field(7, makers.field(1, b"node")),
        makers.field(1, makers.field(1, b"<unk>") + makers.field(2, 0.0) + makers.field(3, 2)) * 4,
        makers.imatrix_dat(),
        makers.POINTER,
        makers.PAGE,
        b'{"metadata": {"total_size": 8}, "weight_map": {"a": "model.safetensors"}}',
        b"tjgg" + struct.pack("<8I", 3, 32000, 4096, 256, 32, 32, 128, 2),
    ]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
