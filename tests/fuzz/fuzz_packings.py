"""Invariant: names, types, shapes and what a config says of a quantization are logical tensors, or refused.

An input is JSON: {"config": config.json, "tensors": {name: [type, shape]}}. A logical tensor has a shape whose numbers
are as many as its parts can hold.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import harness
import msgspec
from tests.conformance.packing_examples import EXAMPLES, UNDECODED, Example
from tests.plugins import all_toys
from tests.unpacked import unpack

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.spec import Spec
from weighbridge.io.source import BytesSource
from weighbridge.packings.schema.registry import schemas
from weighbridge.packings.unpacking import groups
from weighbridge.tensors.nodes import Node, QuantizedTensor, Stored

context = all_toys
NOTHING = BytesSource(b"")


def target(data: bytes) -> None:
    try:
        document = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict) or not isinstance(document.get("tensors"), dict):
        return
    nodes = {name: node for name, row in document["tensors"].items() if (node := _node(row)) is not None}
    config = document["config"] if isinstance(document.get("config"), dict) else {}
    assert set(groups(nodes, config)) <= set(nodes)
    for name, tensor in unpack(nodes, config).items():
        if isinstance(tensor, QuantizedTensor):
            assert all(n >= 0 for n in tensor.spec.shape), name


def _node(row: Any) -> Node | None:
    kind, shape = row if isinstance(row, list) and len(row) == 2 else (None, None)
    dtype = BY_NAME.get(kind) if isinstance(kind, str) else None
    if dtype is None or not isinstance(shape, list) or len(shape) > 4:
        return None
    if not all(type(n) is int and 0 <= n < 1 << 20 for n in shape) or (shape or [1])[-1] % dtype.block:
        return None
    return Stored(Spec(tuple(shape), dtype), NOTHING, 0) if math.prod(shape) < 1 << 40 else None


def _file(example: Example) -> bytes:
    tensors = {name: [node.spec.dtype.name, node.spec.shape] for name, node in example.tensors.items()}
    return json.dumps({"config": example.config, "tensors": tensors}, separators=(",", ":")).encode()


def seeds() -> list[bytes]:
    """A module of each registered packing, and damaged ones."""
    whole = [_file(make()) for schema in schemas() for make in EXAMPLES.get(schema.name, [])[:2]]
    whole += [_file(make()) for rows in UNDECODED.values() for make, _ in rows[:1]]
    return whole + [data for file in whole for data in harness.odd(json.loads(file), 8)]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds, context=context))
