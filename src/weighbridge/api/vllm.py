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


def register() -> None:
    """Registers both formats. vLLM calls this in each of its processes if the package is installed."""
    from weighbridge.adapters.engines import vllm

    vllm.register(served_model, served_folder)


@contextmanager
def served_model(path: str, native: bool) -> Iterator[ServedModel]:
    """The model at `path` for vLLM. `native`: return the stored parts of packed weights if config.json names their
    method. Errors: as `wb.open`."""
    from weighbridge.adapters.engines.transformers import QUANTIZATION_KEYS
    from weighbridge.adapters.engines.vllm import ServedModel
    from weighbridge.models.names import tensors_named
    from weighbridge.models.open import open_model

    mlx, hub = QUANTIZATION_KEYS
    with open_model(path) as model:
        packed = native and model.format != "gguf" and mlx not in model.config and hub in model.config
        try:
            mlx_names = model.family.dialect_and_prefix([*model.logical], model.sizes)[0] == "mlx"
        except (UnsupportedError, FormatError):  # no table knows the model: its names are the hub's
            mlx_names = False
        names = "stored" if packed else "hf" if model.format == "gguf" or mlx_names else "logical"
        yield ServedModel(tensors_named(model, names), packed)


def served_folder(path: str, tokenizer: bool) -> ServedFolder:
    """The folder of the weights at `path` if it has a config.json. For a GGUF, a temporary folder with the config and,
    if `tokenizer`, the tokenizer from its keys; it is removed when the process ends. Raises UsageError without a
    config, UnsupportedError for a tokenizer that can't be converted. Other errors: as `wb.open`."""
    from weighbridge.adapters.engines.vllm import ServedFolder
    from weighbridge.conversion.plan.folder import plan_without_weights
    from weighbridge.models.open import open_model

    with open_model(path) as model:
        if model.format != "gguf":
            if model.json("config.json") is None:
                raise UsageError(
                    f"vLLM needs a config.json next to {path}",
                    hint='name the folder that has one, and the file in --model-loader-extra-config as "weights"',
                )
            return ServedFolder(str(model.place.folder))
        folder = tempfile.TemporaryDirectory(prefix="weighbridge-vllm-")
        atexit.register(folder.cleanup)
        plan = plan_without_weights(model, Path(folder.name) / "model", tokenizer=tokenizer)
        plan.run()
        return ServedFolder(str(plan.target), tuple(loss.message for loss in plan.losses))
