"""The weight provider as an engine sees it. A backend gives three things, everything else follows from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weighbridge.adapters.placing import place
from weighbridge.base.closeable import Closing
from weighbridge.base.dtypes import DType
from weighbridge.base.errors import UsageError
from weighbridge.base.spec import Shape
from weighbridge.providers.cache import ByteCache
from weighbridge.providers.config import ModelConfig
from weighbridge.providers.dtypes import WeightType, type_of
from weighbridge.providers.fusion import FusedWeight, Mixed, fuse
from weighbridge.providers.layouts import LayoutOptions, WeightBuffer, buffer_of
from weighbridge.providers.quantization import WeightQuantization, most_common, quantization_of
from weighbridge.tensors.nodes import LogicalTensor, stored_bytes
from weighbridge.tensors.slicing import narrow


@dataclass(frozen=True, kw_only=True)
class ProviderOptions:
    """`device`: what `get` hands out, see `adapters/placing.py`. `dtype`: the type of its values; None keeps plain ones
    and decodes quantized ones to F32. `cache`: bytes that are kept at most; 0 keeps nothing, None everything."""

    device: str = "numpy"
    dtype: DType | None = None
    cache: int | None = 0

    def __post_init__(self) -> None:
        if self.cache is not None and self.cache < 0:
            raise UsageError("cache must be a number of bytes, or None for no bound", hint=f"not {self.cache}")


DEFAULTS: Final = ProviderOptions()


class Provider(Closing, ABC):
    """Weights by name. Safe to share between threads; `close` frees the files, and arrays that were handed out stay
    valid."""

    def __init__(self, options: ProviderOptions = DEFAULTS) -> None:
        self.options = options
        self.cache = ByteCache(options.cache)

    # ---------------------------------------------------------------- what a backend gives

    @property
    @abstractmethod
    def tensors(self) -> Mapping[str, LogicalTensor]:
        """Every weight by name, in the order of the source; nothing is read. Packed weights are `QuantizedTensor`s."""

    @property
    @abstractmethod
    def config(self) -> ModelConfig:
        """The model's hyperparameters. UnsupportedError where the backend doesn't know the model."""

    @abstractmethod
    def metadata(self, key: str, default: Any = None) -> Any:
        """A value by GGUF's key, with or without the architecture in front (`context_length`, `general.name`,
        `tokenizer.ggml.tokens`), whatever the format; `default` where there is none."""

    # ---------------------------------------------------------------- weights

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def has(self, name: str) -> bool:
        """Whether there is a weight of this name."""
        return name in self.tensors

    __contains__ = has

    def tensor(self, name: str) -> LogicalTensor:
        """How a weight is read. KeyError where there is none of this name."""
        return self.tensors[name]

    def shape(self, name: str) -> Shape:
        """The logical shape; codes and scales of a packed weight don't show in it."""
        return self.tensors[name].spec.shape

    def dtype(self, name: str) -> WeightType:
        """How a weight is stored, by name and by code."""
        return type_of(self.tensors[name])

    def nbytes(self, name: str) -> int:
        """Bytes in which a weight is stored."""
        return stored_bytes(self.tensors[name])

    def get(self, name: str, index: Any = ..., *, dtype: str | None = None) -> Any:
        """The values of a weight, or the part that `index` (integers, slices, `...`) names, as an array of the
        provider's device. Only the rows that the leading indices name are read. `dtype`: instead of the provider's."""
        wanted = self.options.dtype if dtype is None else _dtype(dtype)
        key = ("get", name, repr(index), wanted)
        return self.cache.get(key, lambda: self._placed(self.tensors[name], index, wanted), _size)

    def _placed(self, tensor: LogicalTensor, index: Any, dtype: DType | None) -> Any:
        if index is ...:
            return place(tensor, self.options.device, dtype)
        rows, rest = narrow(tensor, index)
        found = place(rows, self.options.device, dtype)
        return found[rest] if rest else found

    def quantization(self, name: str | None = None) -> WeightQuantization | None:
        """Bits, group size and mode of a weight; without a name of most of the model. None where it isn't quantized."""
        return most_common(self.tensors.values()) if name is None else quantization_of(self.tensors[name])

    def fuse(
        self, *names: str, axis: int | None = None, mixed: Mixed = "parts", dtype: str | None = None
    ) -> FusedWeight:
        """Weights as one, on the axis of their outputs unless `axis` names another: q|k|v, gate|up, of experts too.

        Weights of one type keep it. Of several types they come apart, with the reason; with `mixed="decode"` as F32,
        and with `dtype` as that type whatever they are. UsageError where the shapes don't fit.
        """
        wanted = None if dtype is None else _dtype(dtype)
        return fuse(names, [self.tensors[n] for n in names], axis=axis, mixed=mixed, dtype=wanted)

    def buffer(
        self, *names: str, layout: str | None = None, axis: int | None = None, dtype: str | None = None,
        bits: int | None = None, group: int | None = None, scales: str | None = None,
    ) -> WeightBuffer:  # fmt: skip
        """A weight, or several fused, as one block in a layout (`providers/layouts.py`), which starts at a multiple of
        64 bytes. UsageError, with the reason, for weights of several types; UnsupportedError for a layout that doesn't
        hold a weight's codes."""
        options = LayoutOptions(dtype and _dtype(dtype), bits, group, scales and _dtype(scales))  # type: ignore[arg-type]
        key = ("buffer", names, layout, axis, options)
        return self.cache.get(key, lambda: buffer_of(self._one(names, axis), layout, options), _size)  # type: ignore[no-any-return]

    def _one(self, names: Sequence[str], axis: int | None) -> LogicalTensor:
        return self.tensors[names[0]] if len(names) == 1 else self.fuse(*names, axis=axis).tensor

    def close(self) -> None:
        """Free what is kept, and the files."""
        self.cache.clear()


def _dtype(name: str) -> DType:
    from weighbridge.base.dtypes import dtype

    return dtype(name)


def _size(value: Any) -> int:
    """Bytes of memory that an array keeps; 0 for a view of the file."""
    shared = getattr(value, "shared", None)
    if shared is None and hasattr(value, "flags") and hasattr(value.flags, "writeable"):
        shared = not value.flags.writeable and not value.flags.owndata
    return 0 if shared else int(value.nbytes)
