"""Classes of transformers, built from lazy tensors. torch and transformers are imported only when asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from weighbridge.adapters.engines.torchao import composed
from weighbridge.adapters.torch import to_torch, torch_dtype
from weighbridge.base.dtypes import BY_NAME, DType
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.tensors.nodes import LogicalTensor, Node

if TYPE_CHECKING:
    import torch

#: The keys under which config.json states packed weights: MLX's, the hub's.
QUANTIZATION_KEYS: Final = ("quantization", "quantization_config")
#: Methods that transformers 5.23 has a name for and reads no packed weights of: it would go on with random ones.
_UNREAD: Final[Mapping[str, str]] = MappingProxyType({
    "quanto": "it packs plain weights as it loads them, and reads no packed ones",
    "hqq": "its HQQ support is not available yet",
})  # fmt: skip
_DECODED: Final = "leave packed out: the weights are then decoded"


class LazyValue:
    """A weight as transformers takes it from a state dict: read when it is indexed, and then only the part."""

    def __init__(self, node: LogicalTensor, dtype: DType | None) -> None:
        self._node, self._dtype = node, dtype

    @property
    def dtype(self) -> torch.dtype:
        stored = self._node.spec.dtype if isinstance(self._node, Node) else None
        return torch_dtype(self._dtype or (stored if stored is not None and stored.torch else BY_NAME["F32"]))

    @property
    def shape(self) -> tuple[int, ...]:
        return self._node.spec.shape

    def get_shape(self) -> list[int]:
        """The shape, as a safetensors slice gives it."""
        return list(self.shape)

    def is_floating_point(self) -> bool:
        """Whether values are floating point numbers."""
        return bool(self.dtype.is_floating_point)

    def __getitem__(self, key: Any) -> torch.Tensor:
        if key is ... or key == (...,):
            return to_torch(self._node, self._dtype)
        from weighbridge.tensors.slicing import narrow

        rows, rest = narrow(self._node, key)
        return to_torch(rows, self._dtype)[rest]


def transformers_model(
    kind: Any,
    config: Mapping[str, Any],
    tensors: Mapping[str, LogicalTensor],
    dtype: DType | None,
    options: dict[str, Any],
    *,
    packed: bool = False,
    strict: bool = True,
    metadata: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Builds a model of a transformers class from lazy values under hub names. `packed`: the values are the stored
    parts of the config's quantization method, for the class's own modules; `metadata`: the file's. Raises UsageError
    for a class without a config of its own (an Auto class), for weights without a config, and with `packed` for a
    method that transformers lacks; UnsupportedError, with transformers' reason, for a method that can't run here.
    `strict`: raises FormatError if the file lacks weights of the class; otherwise these keep transformers' random
    initial values."""
    if getattr(kind, "config_class", None) is None:
        raise UsageError(
            f"{kind.__name__} isn't a concrete model class",
            hint="pass the class itself: the first of config.json's architectures",
        )
    if not config:
        raise UsageError("the weights have no config to build the class by", hint="name the folder with config.json")
    # The part of the config that is the class's own, as transformers takes it (the text model of a multimodal one).
    part = config.get(getattr(kind.config_class, "base_config_key", "") or "")
    config = part if isinstance(part, Mapping) else config
    if strict:
        # For a config of another kind of model transformers would use default sizes.
        stated, wanted = config.get("model_type"), getattr(kind.config_class, "model_type", None)
        if stated and wanted and stated != wanted:
            raise UsageError(
                f"the model is of type {stated}, {kind.__name__} is for {wanted}",
                hint="name a class of this type; strict=False loads what fits",
            )
    method = _method(config) if packed else None
    own = kind.config_class.from_dict({k: v for k, v in config.items() if packed or k not in QUANTIZATION_KEYS})
    if packed:
        _check_runs(own, options)
    found = None if dtype is None else torch_dtype(dtype)
    lazy: dict[str, Any] = {name: LazyValue(node, None if packed else dtype) for name, node in tensors.items()}
    if method == "torchao":
        lazy = composed(lazy, metadata)
    options = {**options, "config": own, "state_dict": lazy, "dtype": found or "auto"}
    return _whole_model(kind, options) if strict else kind.from_pretrained(None, **options)


def _whole_model(kind: Any, options: dict[str, Any]) -> Any:
    """The model, if every weight was found: transformers fills others at random. FormatError names them."""
    wanted = options.pop("output_loading_info", False)
    model, info = kind.from_pretrained(None, output_loading_info=True, **options)
    if absent := sorted(info["missing_keys"]):
        more = f" and {len(absent) - 4:,} more" if len(absent) > 4 else ""
        raise FormatError(
            f"the file lacks {len(absent):,} of {kind.__name__}'s weights: {', '.join(absent[:4])}{more}",
            hint="name the class that the file was saved from; strict=False fills them with random values",
        )
    return (model, info) if wanted else model


def module_names(module: Any, names: Iterable[str]) -> dict[str, str]:
    """The names of a file's tensors -> those of a module: transformers keeps the names of older versions in files, and
    calls its modules otherwise. Empty for a module that isn't one of transformers'."""
    library = sys.modules.get("transformers")
    if library is None or not isinstance(module, library.PreTrainedModel):
        return {}
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    renamings = [r for r in get_model_conversion_mapping(module) if isinstance(r, WeightRenaming)]
    places = module.state_dict(keep_vars=True)
    prefix = module.base_model_prefix
    return {name: rename_source_key(name, renamings, [], prefix, places)[0] for name in names}


def _method(config: Mapping[str, Any]) -> str:
    """The method of packed weights that a config names. UsageError for none, or one that transformers doesn't have."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    mlx, hub = QUANTIZATION_KEYS
    method = None if mlx in config else (config.get(hub) or {}).get("quant_method")
    if not any(f"{method}{bits}" in AUTO_QUANTIZATION_CONFIG_MAPPING for bits in ("", "_4bit", "_8bit")):
        raise UsageError(
            f"transformers has no modules for weights packed by {method}" if method else
            "the config names no method of packed weights that transformers has", hint=_DECODED,
        )  # fmt: skip
    return str(method)


def _check_runs(config: Any, options: Mapping[str, Any]) -> None:
    """UnsupportedError where transformers can't keep the config's weights packed: it refuses them, or it would decode
    them with no more than a warning. FormatError for settings that it needs and the config lacks."""
    from transformers.quantizers.auto import AutoHfQuantizer, AutoQuantizationConfig

    stated = config.quantization_config
    method = stated["quant_method"]
    if method in _UNREAD:
        raise UnsupportedError(f"transformers can't load weights packed by {method}: {_UNREAD[method]}", hint=_DECODED)
    try:
        copied = AutoQuantizationConfig.from_dict(dict(stated))
        asked = getattr(copied, "dequantize", False)
        quantizer = AutoHfQuantizer.from_config(copied, pre_quantized=True)
        quantizer.validate_environment(device_map=options.get("device_map"), weights_only=True)
    except (KeyError, TypeError) as error:
        raise FormatError(f"transformers can't use the config's settings of {method}: {error!r}") from error
    except (ImportError, RuntimeError, ValueError) as error:
        raise UnsupportedError(
            f"transformers can't run weights packed by {method} here: {error}", hint=_DECODED
        ) from error
    if getattr(copied, "dequantize", False) and not asked:
        raise UnsupportedError(f"transformers would decode weights packed by {method} here", hint=_DECODED)
