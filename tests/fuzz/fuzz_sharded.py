"""Invariant: any bytes give a shard index whose files are plain names, or a FormatError."""

from __future__ import annotations

import sys
from pathlib import PureWindowsPath

import harness

from weighbridge.containers import sharded
from weighbridge.io.source import BytesSource


def target(data: bytes) -> None:
    index = sharded.parse_index(BytesSource(data, "model.safetensors.index.json"))
    for name in index.files:  # a Windows path knows every separator and drive
        path = PureWindowsPath(name)
        assert path.name == name
        assert not path.drive
        assert not path.root
    sharded.check(index, {})


def seeds() -> list[bytes]:
    where = dict(zip("abc", sharded.shard_names(3), strict=True))
    return [
        sharded.index_json(where, 12),
        sharded.index_json({**where, "d": "../x"}, 0, {"nested": {"a": [1, 2.5, None, True]}}),
        b'{"weight_map":{"a":"x.safetensors","a":"y"},"metadata":null}',
    ]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
