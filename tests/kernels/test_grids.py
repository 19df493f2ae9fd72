"""The codebooks: sets of points of a lattice, compared with those of llama.cpp's own Python package."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.tensors.reference.codebooks.grids import LATTICES, grid


@pytest.mark.parametrize("name", LATTICES)
def test_sizes(name: str) -> None:
    lattice, points = LATTICES[name], grid(name)
    assert points.shape == (lattice.size, lattice.dimensions)
    assert set(np.unique(points).tolist()) == set(lattice.values)
    assert len({p.tobytes() for p in points}) == lattice.size


@pytest.mark.oracle
@pytest.mark.parametrize("name", LATTICES)
def test_points_equal_llama_cpp(name: str) -> None:
    quants = pytest.importorskip("gguf.quants")
    theirs = getattr(quants, name)
    theirs.init_grid()
    np.testing.assert_array_equal(grid(name), theirs.grid.reshape(grid(name).shape))
