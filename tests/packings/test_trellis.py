"""EXL3: codebooks and tiles are those of exllamav3's own code, rotations those of scipy; every width, every form."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tests.conformance.packing_examples import IN, OUT, exl3
from tests.unpacked import unpack

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.io.source import BytesSource
from weighbridge.packings import trellis
from weighbridge.packings.unpacking import groups
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes.base import Stored

BOOKS: tuple[trellis.Codebook, ...] = ("3inst", "mcg", "mul1")
#: The first half of the SHA-256 of 40 decoded tiles, F16 in rows, by width and codebook: those of dq_dispatch in
#: exllamav3_ext/quant/exl3_dq.cuh (4f8ad01), compiled for a processor, in the places of reconstruct.cu.
DIGESTS = {
    1: ("0a31be06305df0fe", "078f5551e040bd46", "3348e1a5131b640f"),
    2: ("3f509f428cd33594", "bbe99cf857757eea", "66483f9e66cbf76f"),
    3: ("af2bbee97a5b86a3", "63ac64c70811aa4d", "8ba0513713bba142"),
    4: ("5fc2fc8be46cdfac", "94167b62f86aaa3a", "0c54f5c7f1a3766c"),
    5: ("a679db44191aedb1", "4bf961a5cc263094", "51df9b0546d9a051"),
    6: ("b795ce14654d5008", "672cd48a825631bb", "88331009575b6c9b"),
    7: ("79b1524a89a22803", "914d991cc363bed4", "835877684ff0c641"),
    8: ("f2b8764fcaf3001d", "7d098b888fe6a0ce", "ffb731e9e5d75233"),
}


def tiles(bits: int, book: trellis.Codebook) -> NDArray[np.float32]:
    """The decoded tiles of random words; not from a cache, so that a fault in a constant shows."""
    for cached in (trellis.codebook, trellis.tile_order, trellis._rotation):
        cached.cache_clear()
    words = np.random.default_rng(bits).integers(0, 1 << 32, (40, 8 * bits), np.uint32)
    return trellis.codebook(book)[trellis.states(words, bits)][:, trellis.tile_order()]


@pytest.mark.parametrize("bits", DIGESTS)
@pytest.mark.parametrize("book", BOOKS)
def test_tiles_are_those_of_exllamav3(bits: int, book: trellis.Codebook) -> None:
    found = tiles(bits, book)
    assert np.array_equal(found, found.astype(np.float16))
    digest = hashlib.sha256(found.astype("<f2").tobytes()).hexdigest()[:16]
    assert digest == DIGESTS[bits][BOOKS.index(book)]


def matrix(example: Any) -> NDArray[np.float32]:
    (node,) = unpack(example.tensors, {}).values()
    found: NDArray[np.float32] = nodes.decode(node).read_all().view(np.float32).reshape(node.spec.shape)
    return found


def array(node: Any, kind: str) -> NDArray[Any]:
    return node.read_all().view(kind).reshape(node.spec.shape)


def check_matrix(book: str = "", *, signs: bool = False) -> None:
    """The matrix is diag(suh) H W H diag(svh), of blocks of 128, here in F64."""
    linalg = pytest.importorskip("scipy.linalg")
    example = exl3(4, book, signs=signs)
    words = array(example.tensors["m.trellis"], "<i2").view("<u4").reshape(-1, 32)
    tiles(4, "3inst")  # no cached constants
    rows = trellis.codebook(BOOKS[BOOKS.index(book) if book else 0])[trellis.states(words, 4)][:, trellis.tile_order()]
    inner = rows.reshape(IN // 16, OUT // 16, 16, 16).swapaxes(1, 2).reshape(IN, OUT).astype(np.float64)
    left, right = (np.kron(np.eye(n // 128), linalg.hadamard(128) / 128**0.5) for n in (IN, OUT))
    if signs:
        names = ("m.su", "m.sv")
        flags = (np.unpackbits(array(example.tensors[n], "<i2").view(np.uint8), bitorder="little") for n in names)
        first, last = (1.0 - 2.0 * one for one in flags)
    else:
        first, last = (array(example.tensors[name], "<f2").astype(np.float64) for name in ("m.suh", "m.svh"))
    expected = (first[:, None] * (left @ inner @ right) * last).T
    found = matrix(example)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("book", ["", "mcg", "mul1"])
def test_a_matrix_is_rotated_and_scaled(book: str) -> None:
    check_matrix(book)


def test_an_older_file_has_signs() -> None:
    check_matrix(signs=True)


def test_codes_of_two_widths_are_counted_and_not_decoded() -> None:
    with pytest.raises(UnsupportedError, match="codes of two widths"):
        groups(exl3(2.5, "mul1").tensors, {})


@pytest.mark.parametrize("left_out", ["suh", "svh"])
def test_scales_are_needed(left_out: str) -> None:
    tensors = {name: node for name, node in exl3(4).tensors.items() if name != f"m.{left_out}"}
    with pytest.raises(FormatError, match="scales don't belong to the trellis"):
        groups(tensors, {})


@pytest.mark.parametrize("shape", [(0, 8, 64), (8, 0, 64), (8, 8, 0), (7, 8, 64), (8, 7, 64), (8, 8, 144), (8, 64)])
def test_misshapen_tiles_are_refused(shape: tuple[int, ...]) -> None:
    tensors = dict(exl3(4).tensors)
    tensors["m.trellis"] = Stored(Spec(shape, tensors["m.trellis"].spec.dtype), BytesSource(b""), 0)
    errors: list[Exception] = []
    assert not groups(tensors, {}, lambda _, error: errors.append(error))
    assert all(isinstance(error, FormatError) for error in errors)


@pytest.mark.parametrize("memory", [None, 40 << 20])
def test_a_file_is_converted(tmp_path: Path, memory: int | None) -> None:
    example = exl3(3, "mcg")
    kinds = {"I16": "<i2", "I32": "<i4", "F16": "<f2"}
    stored = {name: array(node, kinds[node.spec.dtype.name]) for name, node in example.tensors.items()}
    save_file(stored, tmp_path / "packed.safetensors")
    plan = wb.plan_convert(
        tmp_path / "packed.safetensors", tmp_path / "plain.safetensors", dtype="f32", max_memory=memory
    )
    assert any("rotated" in loss.message for loss in plan.losses)
    plan.run()
    np.testing.assert_array_equal(load_file(tmp_path / "plain.safetensors")["m.weight"], matrix(example))
