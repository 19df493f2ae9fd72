"""Classes of transformers, built from lazy tensors. torch and transformers are imported only when asked for."""

from __future__ import annotations

from collections.abc import Mapping
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
    "hqq": "it says that HQQ is not available yet",
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
    metadata: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """A model of a transformers class from lazy values under hub names. `packed`: they are the stored parts of a method
    that the config names, for the class's own modules of it; `metadata`: the file's. UsageError for a class that has no
    config of its own (an Auto class), for weights without one, and with `packed` for a method that transformers doesn't
    have; UnsupportedError for one that it can't run here, with its own reason."""
    if getattr(kind, "config_class", None) is None:
        raise UsageError(
            f"{kind.__name__} is no class of one architecture",
            hint="pass the class itself: the first of config.json's architectures",
        )
    if not config:
        raise UsageError("the weights have no config to build the class by", hint="name the folder with config.json")
    method = _method(config) if packed else None
    own = kind.config_class.from_dict({k: v for k, v in config.items() if packed or k not in QUANTIZATION_KEYS})
    if packed:
        _check_runs(own, options)
    found = None if dtype is None else torch_dtype(dtype)
    lazy: dict[str, Any] = {name: LazyValue(node, None if packed else dtype) for name, node in tensors.items()}
    if method == "torchao":
        lazy = composed(lazy, metadata)
    options = {**options, "config": own, "state_dict": lazy, "dtype": found or "auto"}
    return _packed_model(kind, options) if packed else kind.from_pretrained(None, **options)


def _packed_model(kind: Any, options: dict[str, Any]) -> Any:
    """The model, where every weight was found: transformers fills others at random. FormatError names them."""
    wanted = options.pop("output_loading_info", False)
    model, info = kind.from_pretrained(None, output_loading_info=True, **options)
    if absent := sorted(info["missing_keys"]):
        raise FormatError(f"the packed weights lack {len(absent)} of the model's: {', '.join(absent[:4])}")
    return (model, info) if wanted else model


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
