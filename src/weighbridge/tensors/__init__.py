"""Lazily read tensors, their layouts and kernels.

`np` is numpy, imported when one of its names is first used. A plan reads headers and computes no element, and the
import of numpy took a third of the time of a small model's plan. So modules that a plan imports take `np` from here,
and NDArray for the type checker only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weighbridge.base.imports.lazy import lazy_module

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:
    np = lazy_module("numpy")
