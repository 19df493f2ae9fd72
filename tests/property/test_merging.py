"""Methods of merging against hand-computed vectors and recorded results of mergekit."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.base.dtypes import F32
from weighbridge.base.spec import Spec
from weighbridge.tensors.merging import Combination, MergeMethod, NearSwap, Sce, TaskVectors
from weighbridge.tensors.merging.task_vectors import draws
from weighbridge.tensors.nodes.base import Const
from weighbridge.tensors.nodes.merged import merged

B = [[1, -2, 3, -4], [0.5, 0.25, -0.125, 0]]
X = [[1.5, -2.5, 3.25, -3], [0.25, 0.5, -0.25, 0.125]]
Y = [[0.5, -1, 4, -4.5], [0.75, 0, -0.5, -0.25]]


def const(values: object) -> Const:
    array = np.array(values, np.float32)
    return Const(Spec(array.shape, F32), array.tobytes())


def run(method: MergeMethod, *inputs: object) -> np.ndarray:
    node = merged([const(one) for one in inputs], method)
    return node.read_all().view(np.float32).reshape(node.shape)


VECTORS = {
    "linear": (Combination("linear", (0.7, 0.3)), (X, Y), "1.2 -2.05 3.475 -3.45 .4 .35 -.325 .0125"),
    "slerp": (
        Combination("slerp", (0.75, 0.25)),
        (X, Y),
        "1.269138 -2.158128 3.500515 -3.439135 .383115 .380148 -.318768 .03069",
    ),
    "task": (TaskVectors((0.5, 0.5)), (B, X, Y), "1 -1.75 3.625 -3.75 .5 .25 -.375 -.0625"),
    "ties": (
        TaskVectors((1, 1), (0.5, 0.5), "smallest", consensus=True, normalize=True),
        (B, X, Y),
        "1.5 -1 3.625 -3 .5 .25 -.125 0",
    ),
    # of equal magnitudes the first count as larger: here the 1 at index 1 of Y is an outlier, not the one at 2
    "breadcrumbs": (
        TaskVectors((1, 1), (0.5, 0.5), "smallest and largest", gamma=0.125),
        (B, X, Y),
        "1 -2.5 4.25 -4.5 .25 .25 -.5 0",
    ),
    "nuslerp": (
        Combination("nuslerp", (0.6, 0.4)),
        (X, Y),
        "1.123399 -1.940762 3.631563 -3.683836 .460955 .306036 -.358309 -.026137",
    ),
    "nuslerp from a base": (
        Combination("nuslerp", (0.6, 0.4), from_base=True),
        (B, X, Y),
        "1.120118 -1.68958 4.136406 -3.329225 .439941 .310059 -.585568 -.077605",
    ),
    "sce": (Sce(), (B, X, Y), "1.5 -1 3.716495 -3 .75 .5 -.405498 -.25"),
    "sce of half": (Sce(0.5), (B, X, Y), "1.5 -1 3.711538 -3 .5 .25 -.125 0"),
    "karcher": (
        Combination("karcher", ()),
        (B, X, Y),
        "1.046815 -1.912724 3.467555 -3.881201 .498377 .267961 -.289856 -.032711",
    ),
    "nearswap": (NearSwap(0.5), (B, X), "1.5 -2.5 3.25 -3.5 .25 .5 -.25 .125"),
}


@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name: str) -> None:
    method, inputs, expected = VECTORS[name]
    got = run(method, *inputs).reshape(-1)
    np.testing.assert_allclose(got, np.array(expected.split(), np.float32), atol=2e-6)


@pytest.mark.parametrize("first", [0, 1, 2, 7, 12_345])
@pytest.mark.parametrize("count", [1, 2, 5, 4096])
def test_random_numbers_are_the_same_from_any_place(first: int, count: int) -> None:
    key = bytes(range(16))
    np.testing.assert_array_equal(draws(key, first, count), draws(key, 0, first + count)[first:])
    assert (draws(key, first, count) != draws(bytes(16), first, count)).any()
