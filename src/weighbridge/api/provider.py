"""`provider` returns a model's weights for an engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weighbridge.base.dtypes import DTypeLike, requested_dtype
from weighbridge.base.errors import UsageError
from weighbridge.base.limits import PROVIDER_CACHE

if TYPE_CHECKING:
    from weighbridge.providers.base import Provider


def provider(
    source: str | os.PathLike[str] | Mapping[str, Any], *, device: str = "numpy", dtype: DTypeLike | None = None,
    names: str = "canonical", cache: int | None = PROVIDER_CACHE, quantization: Mapping[str, Any] | None = None,
    backend: str | None = None, rank: int | None = None, of: int | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> Provider:  # fmt: skip
    """The weights of a model by an engine's names, with its config, for any format.

    `source`: a file or folder, or a dict of arrays. `device`: the kind of array that `get` returns: "numpy", "torch",
    "cuda:0", "mlx", "jax". `dtype`: the type of its values; None keeps plain values and decodes quantized ones to F32.
    `names`: "canonical", "akunu", or those of `wb.open`. `cache`: maximum bytes of cached arrays and buffers; None for
    no limit. `quantization`: bits and group size instead of config.json's. `backend`: a provider of another package.
    `rank`, `of`: only the part of one rank of a tensor-parallel group of that size; only that part is read.
    `config`: of weights without one: a dict, a config.json, or a folder (or hf:// name) with config and tokenizer.
    Errors: FormatError, UnsupportedError, UsageError, OSError.
    """
    from weighbridge.providers.base import ProviderOptions
    from weighbridge.providers.registry import open_provider

    options = ProviderOptions(device=device, dtype=requested_dtype(dtype), cache=cache)
    if (rank is None) != (of is None):
        raise UsageError("rank and of must be given together", hint="rank=0, of=2")
    share = None if rank is None or of is None else (rank, of)
    return open_provider(source, names, options, quantization, backend, share, config)
