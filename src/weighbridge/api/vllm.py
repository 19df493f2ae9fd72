"""The entry point of vLLM's plug-ins: `load_format="weighbridge"` and `config_format="weighbridge"`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from weighbridge.base.errors import FormatError, UnsupportedError

if TYPE_CHECKING:
    from weighbridge.adapters.vllm import ServedModel
    from weighbridge.models.checkpoint import Checkpoint


def register() -> None:
    """Register both formats. vLLM calls it in each of its processes, where this package is installed."""
    from weighbridge.adapters import vllm

    vllm.register(served_model)


@contextmanager
def served_model(path: str, native: bool) -> Iterator[ServedModel]:
    """The checkpoint at `path` as vLLM takes it; with `native` the stored parts of packed weights that config.json
    names the method of. Errors: as `wb.open`."""
    from weighbridge.adapters.modules import QUANTIZATION_KEYS
    from weighbridge.adapters.vllm import ServedModel
    from weighbridge.models.names import tensors_named
    from weighbridge.models.open import open_model

    mlx, hub = QUANTIZATION_KEYS
    with open_model(path) as model:
        packed = native and model.format != "gguf" and mlx not in model.config and hub in model.config
        names = "stored" if packed else "hf" if model.format == "gguf" or _dialect(model) == "mlx" else "logical"
        yield ServedModel(tensors_named(model, names), packed)


def _dialect(model: Checkpoint) -> str:
    """The dialect of the file's names; "" where no table knows the model, whose names are then the hub's own."""
    try:
        return model.family.dialect_and_prefix([*model.logical], model.sizes)[0]
    except (UnsupportedError, FormatError):
        return ""
