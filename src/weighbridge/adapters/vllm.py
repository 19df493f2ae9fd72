"""Weighbridge as a load format and a config format of vLLM, which is imported only when it asks for its plug-ins.

vLLM takes a checkpoint's tensors under hub names and cuts each for its own rank. Plain ones are handed over as views of
the file, of which only the part that vLLM copies is read. Weights of a quantization method that vLLM has are handed
over as they are stored, for its own kernels; whatever else is packed (GGUF, MLX, HQQ ...) is decoded to the model's
type, tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.adapters.modules import QUANTIZATION_KEYS
from weighbridge.adapters.torch import BY_TORCH, to_torch
from weighbridge.base.dtypes import DType
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.tensors.nodes import LogicalTensor, Node

if TYPE_CHECKING:
    import torch

#: The value of vLLM's `load_format` and `config_format`.
NAME: Final = "weighbridge"
#: The key of `model_loader_extra_config` that names the weights where they don't lie in the model's folder.
WEIGHTS: Final = "weights"
#: Parameters that every checkpoint has; others (scales of a KV cache) may keep vLLM's defaults.
_OF_CHECKPOINTS: Final = (".weight", ".bias")


class ServedModel(NamedTuple):
    """A checkpoint for vLLM. `tensors`: under hub names; `packed`: they are the stored parts of a scheme that vLLM
    has."""

    tensors: Mapping[str, LogicalTensor]
    packed: bool


#: `(path, native)`: `native` keeps weights of a method that config.json names packed.
Opener = Callable[[str, bool], AbstractContextManager[ServedModel]]


def register(opener: Opener) -> None:
    """Register both formats with vLLM. A second call replaces the first."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.transformers_utils.config import register_config_parser

    register_model_loader(NAME)(loader_class(opener))
    register_config_parser(NAME)(parser_class())


def loader_class(opener: Opener) -> type[Any]:
    """vLLM's `BaseModelLoader` over `opener`."""
    from vllm.model_executor.model_loader import BaseModelLoader

    class WeighbridgeLoader(BaseModelLoader):  # type: ignore[misc]
        """`load_format="weighbridge"`. UsageError for an option that it doesn't have."""

        def __init__(self, load_config: Any) -> None:
            super().__init__(load_config)
            options = dict(load_config.model_loader_extra_config or {})
            self._weights: str | None = options.pop(WEIGHTS, None)
            if options:
                raise UsageError(f"no loader option is called {', '.join(options)}", hint=f"known: {WEIGHTS}")

        def download_model(self, model_config: Any) -> None:
            """Nothing is downloaded; what can't be opened is an error here."""
            with opener(self._weights or model_config.model, False):
                pass

        def load_weights(self, model: Any, model_config: Any) -> None:
            """Hand every tensor to the model. FormatError where the checkpoint lacks a weight of the model."""
            path = self._weights or model_config.model
            with opener(path, model_config.quantization is not None) as served:
                loaded = model.load_weights(weights(served, model_config.dtype))
            if loaded is not None and not served.packed:
                _check_complete(model, loaded, path)

    return WeighbridgeLoader


def parser_class() -> type[Any]:
    """vLLM's `ConfigParserBase` for models whose packed weights are decoded, since vLLM has no method for them."""
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    from vllm.transformers_utils.config import get_config_parser
    from vllm.transformers_utils.config_parser_base import ConfigParserBase

    class WeighbridgeConfigParser(ConfigParserBase):  # type: ignore[misc]
        """`config_format="weighbridge"`."""

        def parse(
            self, model: Any, trust_remote_code: bool, revision: str | None = None, code_revision: str | None = None,
            **options: Any,
        ) -> tuple[dict[str, Any], Any]:  # fmt: skip
            """The config as a dict and as an object of transformers, as the parser of the hub's format gives them,
            without the quantization that vLLM doesn't have."""
            found = get_config_parser("hf").parse(model, trust_remote_code, revision, code_revision, **options)
            config, made = found
            if is_decoded(config, QUANTIZATION_METHODS):
                for key in QUANTIZATION_KEYS:
                    config.pop(key, None)
                    made.__dict__.pop(key, None)
            return config, made

    return WeighbridgeConfigParser


def is_decoded(config: Mapping[str, Any], methods: Collection[str]) -> bool:
    """Whether a config is of packed weights, and of none of `methods`: MLX's names no method."""
    packed = [config[key] for key in QUANTIZATION_KEYS if isinstance(config.get(key), Mapping)]
    named = [method for found in packed if (method := found.get("quant_method"))]
    return bool(packed) and not any(str(method).lower() in methods for method in named)


def weights(served: ServedModel, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of each weight, the weights of a module one after the other, as vLLM groups them. `dtype`: of
    those that have to be decoded."""
    for name in sorted(served.tensors, key=lambda name: name.split(".")):
        node = served.tensors[name]
        yield name, to_torch(node, _decoded(node, dtype))


def _decoded(node: LogicalTensor, dtype: torch.dtype) -> DType | None:
    """None for what torch has a type for."""
    return None if isinstance(node, Node) and node.spec.dtype.torch is not None else BY_TORCH[str(dtype)]


def _check_complete(model: Any, loaded: set[str], path: str) -> None:
    absent = [n for n, _ in model.named_parameters() if n not in loaded and n.endswith(_OF_CHECKPOINTS)]
    if absent:
        shown = ", ".join(absent[:4]) + " ..." * (len(absent) > 4)
        raise FormatError(f"the checkpoint lacks {len(absent)} weights of the model: {shown}", path=path)
