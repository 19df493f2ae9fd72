"""An MLX folder as mlx-lm runs it, with logits as F32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weighbridge.adapters.runtimes.transformers import FolderTokenizer
from weighbridge.base.errors import UnsupportedError


class MlxLmRuntime(FolderTokenizer):
    """One loaded folder."""

    def __init__(self, path: str) -> None:
        from pathlib import Path

        from mlx_lm.utils import load_model

        self._path = path
        self._model: Any = load_model(Path(path))[0]

    def logits(self, ids: Sequence[int], answer: Sequence[int]) -> NDArray[np.float32]:
        """After every position: [ids, vocabulary]."""
        import mlx.core as mx

        return np.array(self._model(mx.array([list(ids)]))[0].astype(mx.float32))

    def embedding(self, ids: Sequence[int]) -> NDArray[np.float32]:
        raise UnsupportedError("mlx-lm gives no embeddings")
