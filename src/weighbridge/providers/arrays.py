"""The provider over arrays in memory: for tests of engines, and for weights that no file holds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from weighbridge.base.errors import UnsupportedError
from weighbridge.providers.base import DEFAULTS, Provider, ProviderOptions
from weighbridge.providers.config import ModelConfig
from weighbridge.tensors.nodes import LogicalTensor


class ArrayProvider(Provider):
    """`tensors`: names to nodes, as `adapters.arrays.nodes_of` makes them of arrays."""

    def __init__(
        self, tensors: Mapping[str, LogicalTensor], config: ModelConfig | None = None,
        metadata: Mapping[str, Any] = MappingProxyType({}), options: ProviderOptions = DEFAULTS,
    ) -> None:  # fmt: skip
        super().__init__(options)
        self._tensors, self._config, self._metadata = tensors, config, metadata

    @property
    def tensors(self) -> Mapping[str, LogicalTensor]:
        return self._tensors

    @property
    def config(self) -> ModelConfig:
        if self._config is None:
            raise UnsupportedError("arrays have no config", hint="pass config=wb.provider(...).config, or your own")
        return self._config

    def metadata(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(key, default)
