"""The drop-in's functions for JAX arrays, under the reference's name."""

from __future__ import annotations

from weighbridge.adapters.jax import to_jax
from weighbridge.safetensors.arrays import ArrayFunctions

_FUNCTIONS = ArrayFunctions("flax", to_jax)
save, save_file = _FUNCTIONS.save, _FUNCTIONS.save_file
load, load_file = _FUNCTIONS.load, _FUNCTIONS.load_file
