"""A module for TorchScript, which wants to see the source."""

from __future__ import annotations

from typing import Any

import torch


class Scripted(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 3)
        self.register_buffer("shift", torch.ones(2))
        self.sizes = [1, 2]

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x + self.shift) + torch.tensor([1.0, 2.0, 3.0])
