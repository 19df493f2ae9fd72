"""The provider over every format that this package reads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.models.checkpoint import Checkpoint, SourceOptions
from weighbridge.models.config.general import general_to_gguf
from weighbridge.models.names import check_names, tensors_named
from weighbridge.models.open import open_model
from weighbridge.models.tokenizer import from_hf, to_gguf
from weighbridge.providers.base import DEFAULTS, Provider, ProviderOptions
from weighbridge.providers.config import ModelConfig, config_of
from weighbridge.providers.quantization import inferred
from weighbridge.tensors.nodes import LogicalTensor


class FileProvider(Provider):
    """The weights of a checkpoint. `names`: as for `wb.open`, or an alias table (`akunu`). `quantized_by`: whether bits
    and group size come from the "config", from "shapes" alone, or were passed in ("caller")."""

    def __init__(
        self, model: Checkpoint, names: str = "canonical", options: ProviderOptions = DEFAULTS,
        quantized_by: str = "config",
    ) -> None:  # fmt: skip
        super().__init__(options)
        self.model, self.names, self.quantized_by = model, names, quantized_by

    @cached_property
    def tensors(self) -> Mapping[str, LogicalTensor]:
        return tensors_named(self.model, self.names)

    @cached_property
    def config(self) -> ModelConfig:
        return config_of(self.model)

    def metadata(self, key: str, default: Any = None) -> Any:
        if self.model.format == "gguf" and key in self.model.metadata:
            return self.model.metadata[key]
        if key.startswith("tokenizer."):
            return self._tokenizer.get(key, default)
        if key.startswith("general."):
            return self._general.get(key, default)
        if key in self.model.metadata:
            return self.model.metadata[key]
        if self.model.format == "gguf" and not self._known:
            architecture = self.model.metadata.get("general.architecture")
            return self.model.metadata.get(f"{architecture}.{key}", default)
        prefix = f"{self.model.family.gguf}."
        return self.config.keys.get(key.removeprefix(prefix), default)

    @cached_property
    def _known(self) -> bool:
        """Whether there is a family for the model."""
        try:
            return bool(self.model.family)
        except UnsupportedError:
            return False

    @cached_property
    def _general(self) -> Mapping[str, Any]:
        """The model's name, license and the like, from its card and folder."""
        if self.model.format == "gguf":
            return {}
        model = self.model
        shapes = {name: node.spec.shape for name, node in model.logical.items()}
        folder = model.place.folder.resolve().name
        made = general_to_gguf(model.family, directory=folder, config=model.config, shapes=shapes,
                               generation_config=model.json("generation_config.json"))  # fmt: skip
        return {key: kv.value for key, kv in made.items()}

    @cached_property
    def _tokenizer(self) -> Mapping[str, Any]:
        """A folder's tokenizer as a GGUF's keys; {} where there is none."""
        if self.model.format == "gguf":
            return {}
        place, rules = self.model.place, self.model.family.document.tokenizer
        try:
            vocab = from_hf(lambda name: place.read(name, TOKENIZER_JSON), names=place.names(), rules=rules)
        except UnsupportedError:
            return {}
        return {key: kv.value for key, kv in to_gguf(vocab).items()}

    def close(self) -> None:
        super().close()
        self.model.close()


def open_files(
    path: str | os.PathLike[str], names: str, options: ProviderOptions, quantization: Mapping[str, Any] | None,
    source: SourceOptions = SourceOptions(),
) -> FileProvider:  # fmt: skip
    """The provider over the files at `path`. `quantization`: instead of config.json's object of that name (MLX's:
    `{"bits": 4, "group_size": 64}`, with entries for modules that differ)."""
    model = open_model(path, source)
    try:
        own = quantization if quantization is not None else inferred(model)
        by = "caller" if quantization is not None else "shapes" if own else "config"
        check_names(model, names)
        return FileProvider(_with_quantization(model, own), names, options, by)
    except BaseException:
        model.close()
        raise


def _with_quantization(model: Checkpoint, own: Mapping[str, Any] | None) -> Checkpoint:
    """The checkpoint with another `quantization` in its config."""
    if own is None:
        return model
    config = {k: v for k, v in (model.json("config.json") or {}).items() if k != "quantization_config"}
    return replace(model, texts={**model.texts, "config.json": json.dumps({**config, "quantization": own}).encode()})
