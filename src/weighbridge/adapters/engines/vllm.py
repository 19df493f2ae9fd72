"""Weighbridge as a load format and a config format of vLLM, which is imported only after it has loaded its plug-ins.

vLLM takes a checkpoint's tensors under hub names and cuts each for its own rank. Plain tensors are passed as views
of the file, and only the part that vLLM copies is read. Weights in a quantization method that vLLM supports are
passed unchanged, for its own kernels; other packed weights (GGUF, MLX, HQQ ...) are decoded to the model's type,
tensor by tensor.

vLLM's registries of load formats and config formats are public, but vLLM reads the model's folder before it consults
them: it parses a file as config.json to find a speculator's config, and takes the tokenizer from the same path. So
`EngineArgs.create_engine_config` is wrapped: if the model is a file, its arguments are first changed to those of a
folder. vLLM's own plug-in for GGUF (vllm-gguf-plugin 0.0.5) wraps `EngineArgs` for the same reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.adapters.engines.transformers import QUANTIZATION_KEYS
from weighbridge.adapters.torch import BY_TORCH, to_torch
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.words import plural
from weighbridge.tensors.nodes import LogicalTensor, Node

if TYPE_CHECKING:
    import torch

#: The value of vLLM's `load_format` and `config_format`.
NAME: Final = "weighbridge"
#: The key of `model_loader_extra_config` that names the weights if they aren't in the model's folder.
WEIGHTS: Final = "weights"
_AUTO: Final = "auto"
_WRAPPED: Final = "__weighbridge_wrapped__"
#: Parameters that every checkpoint has; others (scales of a KV cache) may keep vLLM's defaults.
_OF_CHECKPOINTS: Final = (".weight", ".bias")


class ServedModel(NamedTuple):
    """A checkpoint for vLLM. `tensors`: under hub names; `packed`: they are the stored parts of a scheme that vLLM
    has."""

    tensors: Mapping[str, LogicalTensor]
    packed: bool


class ServedFolder(NamedTuple):
    """A folder with the config for weights in a different place, and the settings that it couldn't take from them."""

    path: str
    losses: tuple[str, ...] = ()


#: `(path, native)`: `native` keeps weights of a method that config.json names packed.
Opener = Callable[[str, bool], AbstractContextManager[ServedModel]]
#: `(path, tokenizer)`: the folder of a file of weights, with its tokenizer if requested.
FolderOf = Callable[[str, bool], ServedFolder]


def register(opener: Opener, folder_of: FolderOf) -> None:
    """Register both formats with vLLM, and let a file be its model. A second call replaces the first."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.transformers_utils.config import register_config_parser

    register_model_loader(NAME)(loader_class(opener))
    register_config_parser(NAME)(parser_class())
    EngineArgs.create_engine_config = _with_files(EngineArgs.create_engine_config, folder_of)


def _with_files(create: Callable[..., Any], folder_of: FolderOf) -> Callable[..., Any]:
    """vLLM's `create_engine_config`, before which a model that is a file becomes a folder."""
    create = getattr(create, _WRAPPED, create)

    @wraps(create)
    def create_engine_config(arguments: Any, *rest: Any, **options: Any) -> Any:
        complete(arguments, folder_of)
        return create(arguments, *rest, **options)

    setattr(create_engine_config, _WRAPPED, create)
    return create_engine_config


def complete(arguments: Any, folder_of: FolderOf) -> None:
    """Sets the arguments in vLLM's `EngineArgs` that follow from a local model: the formats, unless others are
    given, and, for a model without a config, a folder of config and tokenizer. Models that vLLM loads by itself are
    left unchanged."""
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    path = arguments.model
    if arguments.load_format not in (_AUTO, NAME) or not os.path.exists(path):
        return
    config = _config_of(path)
    if config is None:
        if arguments.load_format == _AUTO and path.endswith(".gguf") and _has_loader("gguf"):
            return  # belongs to a different plug-in
        # The folder takes the place of the file, which keeps its name towards clients.
        from vllm.logger import init_logger

        weights, tokenizer = arguments.model, arguments.tokenizer
        own_tokenizer = tokenizer in (None, weights)
        folder = folder_of(weights, own_tokenizer and not arguments.skip_tokenizer_init)
        for loss in folder.losses:
            init_logger("vllm.plugins.weighbridge").warning("%s: %s", weights, loss)
        arguments.model, arguments.model_weights = folder.path, weights
        arguments.tokenizer = folder.path if own_tokenizer else tokenizer
        arguments.served_model_name = arguments.served_model_name or [weights]
        arguments.load_format, config = NAME, _config_of(arguments.model)
    if config is not None and is_decoded(config, QUANTIZATION_METHODS):
        arguments.load_format = NAME
        if arguments.config_format == _AUTO:
            arguments.config_format = NAME


def _config_of(path: str) -> dict[str, Any] | None:
    """config.json of a folder, {} of one in Mistral's own format. None where vLLM would find neither."""
    if os.path.isfile(os.path.join(path, "params.json")):
        return {}
    try:
        with open(os.path.join(path, "config.json"), "rb") as file:
            found = json.load(file)
    except OSError:
        return None
    except ValueError:
        return {}  # vLLM's to refuse
    return found if isinstance(found, dict) else {}


def _has_loader(name: str) -> bool:
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    try:
        return get_model_loader(LoadConfig(load_format=name)) is not None
    except ValueError:
        return False


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
            """Downloads nothing; raises an error if the model can't be opened."""
            with opener(self._path(model_config), False):
                pass

        def load_weights(self, model: Any, model_config: Any) -> None:
            """Passes every tensor to the model. Raises FormatError if the checkpoint lacks a weight of the model."""
            path = self._path(model_config)
            with opener(path, model_config.quantization is not None) as served:
                loaded = model.load_weights(weights(served, model_config.dtype))
            if loaded is not None and not served.packed:
                absent = [n for n, _ in model.named_parameters() if n not in loaded and n.endswith(_OF_CHECKPOINTS)]
                if absent:
                    shown = ", ".join(absent[:4]) + " ..." * (len(absent) > 4)
                    raise FormatError(
                        f"the checkpoint lacks {plural(len(absent), 'weight')} of the model: {shown}", path=path
                    )

        def _path(self, model_config: Any) -> str:
            return self._weights or model_config.model_weights or model_config.model

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
        known_to_torch = isinstance(node, Node) and node.spec.dtype.torch is not None
        yield name, to_torch(node, None if known_to_torch else BY_TORCH[str(dtype)])
