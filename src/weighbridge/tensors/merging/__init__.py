"""How weights of several models become one tensor: functions of rows, and of what whole tensors say (norms, angles,
orders of magnitude), which is read in a first pass."""

from __future__ import annotations

from weighbridge.tensors.merging.base import Band, Bands, MergeMethod
from weighbridge.tensors.merging.combinations import Combination
from weighbridge.tensors.merging.fusion import ArceeFusion, NearSwap
from weighbridge.tensors.merging.noise import Noisy
from weighbridge.tensors.merging.task_vectors import Sce, TaskVectors

__all__ = ["ArceeFusion", "Band", "Bands", "Combination", "MergeMethod", "NearSwap", "Noisy", "Sce", "TaskVectors"]
