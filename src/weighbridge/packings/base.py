"""Shared by the packings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.tensors.nodes import Node
from weighbridge.tensors.nodes.base import Bytes


class NoBlockForm:
    """A mixin for packings whose values no ggml block type can store."""

    @property
    def parameters(self) -> tuple[str, ...]:
        return ()

    @property
    def blocks(self) -> tuple[DType, ...]:
        return ()

    def inexact(self, members: Mapping[str, Node], dtype: DType) -> str:
        return f"{dtype} doesn't have these values"

    def transcode(self, spec: Spec, dtype: DType, parts: Mapping[str, Bytes], out: Bytes) -> None:
        raise UnsupportedError(f"these values can't be stored in {dtype}")


def row_ranges(node: Node, nbytes: int = 8 << 20) -> Iterator[tuple[int, int]]:
    """Ranges of rows that cover a tensor, each of at most `nbytes` bytes or one row."""
    step = max(1, nbytes // max(node.spec.row_bytes, 1))
    for lo in range(0, node.spec.rows, step):
        yield lo, min(lo + step, node.spec.rows)
