"""What packings share."""

from __future__ import annotations

from collections.abc import Mapping

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.tensors.nodes import Node
from weighbridge.tensors.nodes.base import Bytes


class NoBlockForm:
    """The part of a packing whose values no ggml block type can store."""

    @property
    def parameters(self) -> tuple[str, ...]:
        return ()

    @property
    def blocks(self) -> tuple[DType, ...]:
        return ()

    def inexact(self, members: Mapping[str, Node], dtype: DType) -> str:
        return f"{dtype} has not these values"

    def transcode(self, spec: Spec, dtype: DType, parts: Mapping[str, Bytes], out: Bytes) -> None:
        raise UnsupportedError(f"these values can't be stored in {dtype}")
