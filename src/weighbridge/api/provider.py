"""`provider`: what an engine takes its weights from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weighbridge.base.dtypes import dtype as _dtype

if TYPE_CHECKING:
    from weighbridge.providers.base import Provider


def provider(
    source: str | os.PathLike[str] | Mapping[str, Any], *, device: str = "numpy", dtype: str | None = None,
    names: str = "canonical", cache: int | None = 0, quantization: Mapping[str, Any] | None = None,
    backend: str | None = None,
) -> Provider:  # fmt: skip
    """The weights of a model by the names of an engine, with its config, whatever the format.

    `source`: a file or folder, or a dict of arrays. `device`: what `get` hands out: "numpy", "torch", "cuda:0", "mlx",
    "jax". `dtype`: the type of its values; None keeps plain ones and decodes quantized ones to F32. `names`:
    "canonical", "akunu", or those of `wb.open`. `cache`: bytes of arrays and buffers that are kept; None without a
    bound. `quantization`: bits and group size instead of config.json's. `backend`: a provider of another package.
    Errors: FormatError, UnsupportedError, UsageError, OSError.
    """
    from weighbridge.providers.base import ProviderOptions
    from weighbridge.providers.registry import open_provider

    options = ProviderOptions(device=device, dtype=None if dtype is None else _dtype(dtype), cache=cache)
    return open_provider(source, names, options, quantization, backend)
