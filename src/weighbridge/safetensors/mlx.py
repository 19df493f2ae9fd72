"""The drop-in's functions for MLX arrays."""

from __future__ import annotations

from weighbridge.adapters.mlx import to_mlx
from weighbridge.safetensors.arrays import ArrayFunctions

_FUNCTIONS = ArrayFunctions("mlx", to_mlx)
save, save_file = _FUNCTIONS.save, _FUNCTIONS.save_file
load, load_file = _FUNCTIONS.load, _FUNCTIONS.load_file
