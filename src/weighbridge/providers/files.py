"""The provider over every format that this package reads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.models.config.general import general_to_gguf
from weighbridge.models.mlxlm.quantization import inferred
from weighbridge.models.model import OpenModel, SourceOptions
from weighbridge.models.names import check_names, tensors_named
from weighbridge.models.open import open_model
from weighbridge.models.tokenizer import from_hf, to_gguf
from weighbridge.models.wrapped import unwrapped
from weighbridge.providers.base import DEFAULTS, Provider, ProviderOptions
from weighbridge.providers.config import ModelConfig, config_of
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor

if TYPE_CHECKING:
    from weighbridge.packings.unpacking import PackedGroup


class FileProvider(Provider):
    """The weights of a model's files. `names`: as for `wb.open`, or an alias table (`akunu`). `quantized_by`: the
    source of bits and group size: the "config", the "shapes", or an argument ("caller")."""

    def __init__(
        self, model: OpenModel, names: str = "canonical", options: ProviderOptions = DEFAULTS,
        quantized_by: str = "config", rank: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        """`rank`: a rank and the number of ranks, whose parts the weights are then."""
        super().__init__(options)
        self.model, self.names, self.quantized_by, self.rank = model, names, quantized_by, rank

    @cached_property
    def tensors(self) -> Mapping[str, LogicalTensor]:
        if self.rank is None:
            return tensors_named(self.model, self.names)
        from weighbridge.models.tensor_parallel.rank_names import rank_tensors

        return rank_tensors(self.model, self.names, *self.rank)

    def stored(self, name: str) -> Mapping[str, Node]:
        tensor = self.tensor(name)
        group = self._groups.get(id(tensor)) if isinstance(tensor, QuantizedTensor) else None
        if group is None:
            return {}
        module = group.name.rpartition(".")[0]
        return {name.removeprefix(f"{module}."): self.model.stored[name] for name in group.match.stored.values()}

    @cached_property
    def _groups(self) -> Mapping[int, PackedGroup]:
        """The packed weights of the file by the identity of their tensors, which moves and joins don't keep."""
        return {id(group.node): group for group in self.model.packed.values()}

    @cached_property
    def config(self) -> ModelConfig:
        return config_of(unwrapped(self.model)[0])

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
        made = general_to_gguf(model.family, directory=model.place.title, config=model.config, shapes=shapes,
                               generation_config=model.json("generation_config.json"))  # fmt: skip
        return {key: kv.value for key, kv in made.items()}

    @cached_property
    def _tokenizer(self) -> Mapping[str, Any]:
        """Returns a folder's tokenizer as GGUF keys; {} without one."""
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
    source: SourceOptions = SourceOptions(), rank: tuple[int, int] | None = None,
) -> FileProvider:  # fmt: skip
    """The provider over the files at `path`. `quantization`: instead of config.json's object of that name (MLX's:
    `{"bits": 4, "group_size": 64}`, with entries for modules that differ)."""
    model = open_model(path, source)
    try:
        own = quantization
        if own is None and model.format == "safetensors":
            own = inferred(model.config, model.index.by_name)
        by = "caller" if quantization is not None else "shapes" if own else "config"
        check_names(model, names)
        return FileProvider(_with_quantization(model, own), names, options, by, rank)
    except BaseException:
        model.close()
        raise


def _with_quantization(model: OpenModel, own: Mapping[str, Any] | None) -> OpenModel:
    """The checkpoint with another `quantization` in its config."""
    if own is None:
        return model
    config = {k: v for k, v in (model.json("config.json") or {}).items() if k != "quantization_config"}
    return replace(model, texts={**model.texts, "config.json": json.dumps({**config, "quantization": own}).encode()})
