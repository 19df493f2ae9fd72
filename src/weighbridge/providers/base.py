"""The weight provider as an engine sees it. A backend gives three things, everything else follows from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from weighbridge.adapters.placing import place
from weighbridge.base.closeable import Closing
from weighbridge.base.dtypes import DType, DTypeLike, requested_dtype
from weighbridge.base.errors import UsageError
from weighbridge.base.limits import PROVIDER_CACHE
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.base.words import UnknownNameError
from weighbridge.providers.cache import ByteCache
from weighbridge.providers.config import ModelConfig
from weighbridge.providers.dtypes import WeightType, type_of
from weighbridge.providers.fusion import FusedWeight, Mixed, fuse
from weighbridge.providers.layouts import LayoutOptions, WeightBuffer, buffer_of
from weighbridge.providers.quantization import WeightQuantization, most_common, quantization_of
from weighbridge.tensors.nodes import LogicalTensor, Node, stored_bytes
from weighbridge.tensors.slicing import narrow


@dataclass(frozen=True, kw_only=True)
class ProviderOptions:
    """`device`: what `get` hands out, see `adapters/placing.py`. `dtype`: the type of its values; None keeps plain ones
    and decodes quantized ones to F32. `cache`: bytes that are kept at most; 0 keeps nothing, None everything. Arrays
    of numpy that are kept are read-only."""

    device: str = "numpy"
    dtype: DType | None = None
    cache: int | None = PROVIDER_CACHE

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

    # ---------------------------------------------------------------- implemented by a backend

    @property
    @abstractmethod
    def tensors(self) -> Mapping[str, LogicalTensor]:
        """Every weight by name, in the order of the source; nothing is read. Packed weights are `QuantizedTensor`s."""

    @property
    @abstractmethod
    def config(self) -> ModelConfig:
        """The model's hyperparameters. Raises UnsupportedError if the backend doesn't know the model."""

    @abstractmethod
    def metadata(self, key: str, default: Any = None) -> Any:
        """Returns a value by its GGUF key, with or without the architecture prefix (`context_length`,
        `general.name`, `tokenizer.ggml.tokens`), for every format; `default` if it is missing."""

    def stored(self, name: str) -> Mapping[str, Node]:
        """Returns the stored tensors of a packed weight, by the suffixes of their names (`qweight`, `scales`), if
        the file contains the weight unchanged; otherwise {}, for example if its rows are reordered."""
        return {}

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
        """How a weight is read. KeyError, with similar names, if there is none of this name."""
        found = self.tensors.get(name)
        if found is None:
            raise UnknownNameError(name, "weight", self.tensors)
        return found

    def shape(self, name: str) -> Shape:
        """The logical shape; codes and scales of a packed weight don't show in it."""
        return self.tensor(name).spec.shape

    def dtype(self, name: str) -> WeightType:
        """How a weight is stored, by name and by code."""
        return type_of(self.tensor(name))

    def nbytes(self, name: str) -> int:
        """Bytes in which a weight is stored."""
        return stored_bytes(self.tensor(name))

    def get(self, name: str, index: Any = ..., *, dtype: DTypeLike | None = None) -> Any:
        """The values of a weight, or the part that `index` (integers, slices, `...`) names, as an array of the
        provider's device. Only the rows that the leading indices name are read. `dtype`: instead of the provider's."""
        wanted = self.options.dtype if dtype is None else requested_dtype(dtype)
        key = ("get", name, repr(index), wanted)
        return self.cache.get(key, lambda: self._kept(self._placed(self.tensor(name), index, wanted)), _size)

    def _kept(self, array: Any) -> Any:
        """An array as the cache keeps it: several callers share it."""
        if self.options.cache == 0 or not isinstance(array, np.ndarray):
            return array
        view = array.view()
        view.flags.writeable = False
        return view

    def _placed(self, tensor: LogicalTensor, index: Any, dtype: DType | None) -> Any:
        if index is ...:
            return place(tensor, self.options.device, dtype)
        rows, rest = narrow(tensor, index)
        found = place(rows, self.options.device, dtype)
        return found[rest] if rest else found

    def quantization(self, name: str | None = None) -> WeightQuantization | None:
        """Returns bits, group size and mode of a weight, or of most of the model without a name. None if it isn't
        quantized."""
        return most_common(self.tensors.values()) if name is None else quantization_of(self.tensor(name))

    def fuse(
        self, *names: str, axis: int | None = None, mixed: Mixed = "parts", dtype: DTypeLike | None = None
    ) -> FusedWeight:
        """Joins weights on the axis of their outputs, or on `axis`: q|k|v, gate|up, also of experts.

        Weights of one type keep it. Weights of several types are returned separately, with the reason;
        `mixed="decode"` joins them as F32, and `dtype` as that type. Raises UsageError if the shapes don't fit.
        """
        wanted = requested_dtype(dtype)
        return fuse(names, [self.tensor(n) for n in names], axis=axis, mixed=mixed, dtype=wanted)

    def buffer(
        self, *names: str, layout: str | None = None, axis: int | None = None, dtype: DTypeLike | None = None,
        bits: int | None = None, group: int | None = None, scales: DTypeLike | None = None,
    ) -> WeightBuffer:  # fmt: skip
        """A weight, or several fused, as one block in a layout (`providers/layouts.py`), which starts at a multiple of
        64 bytes; `.to("cuda:0")` copies it to a device. UsageError, with the reason, for weights of several types;
        UnsupportedError for a layout that doesn't hold a weight's codes."""
        options = LayoutOptions(requested_dtype(dtype), bits, group, requested_dtype(scales))
        key = ("buffer", names, layout, axis, options)
        return self.cache.get(key, lambda: self._buffer(names, layout, axis, options), _size)  # type: ignore[no-any-return]

    def _buffer(
        self, names: Sequence[str], layout: str | None, axis: int | None, options: LayoutOptions
    ) -> WeightBuffer:
        stored = self.stored(names[0]) if len(names) == 1 else {}
        tensor = self.tensor(names[0]) if len(names) == 1 else self.fuse(*names, axis=axis).tensor
        return buffer_of(tensor, layout, options, stored)

    def close(self) -> None:
        """Frees the cache and closes the files."""
        self.cache.clear()


def _size(value: Any) -> int:
    """Bytes of memory that an array keeps; 0 for a view of the file."""
    shared = getattr(value, "shared", None)
    if shared is None and isinstance(value, np.ndarray):
        base: object = value.base
        shared = not (base.flags.writeable if isinstance(base, np.ndarray) else value.flags.writeable)
    return 0 if shared else int(value.nbytes)
