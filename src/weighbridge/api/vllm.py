"""The entry point of vLLM's plug-ins: `load_format="weighbridge"`, `config_format="weighbridge"`, files as models."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from weighbridge.adapters.engines.vllm import ServedFolder, ServedModel
    from weighbridge.models.checkpoint import Checkpoint


def register() -> None:
    """Register both formats. vLLM calls it in each of its processes, where this package is installed."""
    from weighbridge.adapters.engines import vllm

    vllm.register(served_model, served_folder)


@contextmanager
def served_model(path: str, native: bool) -> Iterator[ServedModel]:
    """The checkpoint at `path` as vLLM takes it; with `native` the stored parts of packed weights that config.json
    names the method of. Errors: as `wb.open`."""
    from weighbridge.adapters.engines.transformers import QUANTIZATION_KEYS
    from weighbridge.adapters.engines.vllm import ServedModel
    from weighbridge.models.names import tensors_named
    from weighbridge.models.open import open_model

    mlx, hub = QUANTIZATION_KEYS
    with open_model(path) as model:
        packed = native and model.format != "gguf" and mlx not in model.config and hub in model.config
        names = "stored" if packed else "hf" if model.format == "gguf" or _dialect(model) == "mlx" else "logical"
        yield ServedModel(tensors_named(model, names), packed)


def served_folder(path: str, tokenizer: bool) -> ServedFolder:
    """The folder of the file, set or folder of weights at `path`: the one it lies in if that has a config.json; for a
    GGUF a temporary one of the config and, with `tokenizer`, the tokenizer that its keys stand for, which is removed as
    the process ends. UsageError where there is neither. Errors: as `wb.open`; UnsupportedError for a tokenizer that has
    no form of its own there."""
    from weighbridge.adapters.engines.vllm import ServedFolder
    from weighbridge.conversion.plan.folder import plan_without_weights
    from weighbridge.models.open import open_model

    with open_model(path) as model:
        if model.format != "gguf":
            if model.json("config.json") is None:
                raise UsageError(
                    f"no config.json lies beside {path}, which vLLM needs",
                    hint='name the folder that has one, and the file in --model-loader-extra-config as "weights"',
                )
            return ServedFolder(str(model.place.folder))
        folder = tempfile.TemporaryDirectory(prefix="weighbridge-vllm-")
        atexit.register(folder.cleanup)
        plan = plan_without_weights(model, Path(folder.name) / "model", tokenizer=tokenizer)
        plan.run()
        return ServedFolder(str(plan.target), tuple(loss.message for loss in plan.losses))


def _dialect(model: Checkpoint) -> str:
    """The dialect of the file's names; "" where no table knows the model, whose names are then the hub's own."""
    try:
        return model.family.dialect_and_prefix([*model.logical], model.sizes)[0]
    except (UnsupportedError, FormatError):
        return ""
