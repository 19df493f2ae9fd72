"""Blocks taken apart into what MLX stores, and made of it: the reference and every level give the same bytes, and
llama.cpp reads the same values."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels import ggml
from tests.kernels.data import LEVELS, running

from weighbridge.base.dtypes import BY_NAME, F32
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.native import native
from weighbridge.tensors import kernels
from weighbridge.tensors.reference import affine, regroup
from weighbridge.tensors.reference.regroup import FORMS

JOINED = [name for name, form in FORMS.items() if form.stored]
SIMPLE = [name for name in JOINED if FORMS[name].parameter == "F16"]
NONE = np.empty(0, np.uint8)
Three = tuple[np.ndarray, np.ndarray, np.ndarray]


def random(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def parts_of(name: str, bits: int, group: int, blocks: int) -> Three:
    """Random codes, scales and offsets: every bit pattern."""
    form, elements = FORMS[name], blocks * FORMS[name].elements
    groups, each = elements // group, 2 if form.minimum else 1 if form.zero else 0
    width = BY_NAME[form.parameter].size
    return random(elements * bits // 8, bits), random(groups * width, group), random(groups * each, bits + group)


def joined(name: str, bits: int, group: int, parts: Three) -> np.ndarray:
    form = FORMS[name]
    out = np.zeros(parts[0].size * 8 // bits // form.elements * BY_NAME[name].size, np.uint8)
    kernels.join_blocks(BY_NAME[name], bits, group, *parts, out)
    return out


def split(name: str, blocks: np.ndarray) -> list[np.ndarray]:
    outs = [np.zeros_like(part) for part in regroup.split(name, blocks)]
    kernels.split_blocks(BY_NAME[name], blocks, *outs)
    return outs


@pytest.mark.skipif(native is None, reason="the extension isn't built")
def test_the_native_table_is_the_same() -> None:
    assert native.regroups("split") == list(FORMS)
    assert native.regroups("join") == JOINED


@pytest.mark.parametrize("name", FORMS)
def test_split_equals_the_reference_at_every_level(name: str) -> None:
    blocks = random(41 * BY_NAME[name].size, 7)
    want = regroup.split(name, blocks)
    for level in LEVELS:
        with running(level):
            for ours, theirs in zip(split(name, blocks), want, strict=True):
                np.testing.assert_array_equal(ours, theirs, err_msg=level)


@pytest.mark.parametrize("name", JOINED)
def test_join_equals_the_reference_at_every_level(name: str) -> None:
    form = FORMS[name]
    widths = range(1, 9) if name in SIMPLE else (form.bits,)
    times = (1, 2, 5) if name in SIMPLE else (1,)
    for bits, group in ((b, form.group * t) for b in widths for t in times):
        parts = parts_of(name, bits, group, 20 * times[-1])
        want = regroup.join(name, bits, group, *parts)
        for level in LEVELS:
            with running(level):
                np.testing.assert_array_equal(joined(name, bits, group, parts), want, err_msg=f"{level} {bits} {group}")


@pytest.mark.parametrize("name", JOINED)
def test_a_block_taken_apart_and_joined_is_itself(name: str, path: str) -> None:
    form, blocks = FORMS[name], random(64 * BY_NAME[name].size, 3)
    codes, scales, biases = split(name, blocks)
    offsets = np.full(64, form.zero, np.uint8) if form.zero else biases
    np.testing.assert_array_equal(joined(name, form.bits, form.group, (codes, scales, offsets)), blocks)


@pytest.mark.oracle
@pytest.mark.parametrize("name", SIMPLE)
@pytest.mark.parametrize("bits", range(1, 9))
def test_llama_cpp_reads_the_values_that_were_joined(name: str, bits: int, path: str) -> None:
    """Codes, scales and zero points of which the type has every level."""
    form, groups = FORMS[name], 24
    top = form.zero and form.zero - 1
    if form.minimum and bits > form.bits:
        return
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (groups, 64)).astype(np.uint8)
    zeros = np.minimum(rng.integers(0, 1 << bits, groups), codes.min(axis=1) + form.zero).astype(np.uint8)
    codes = np.minimum(codes, zeros[:, None].astype(int) + top).astype(np.uint8) if form.zero else codes
    scales, minima = rng.normal(size=(2, groups)).astype(np.float16)
    offsets = zeros if form.zero else minima.view(np.uint8)
    parts = (affine.pack_codes(bits, codes.reshape(-1)), scales.view(np.uint8), offsets)
    found = ggml.dequantize(BY_NAME[name], joined(name, bits, 64, parts))
    levels = codes.astype(np.float32) - (zeros[:, None].astype(np.float32) if form.zero else 0)
    want = levels * scales.astype(np.float32)[:, None]
    if form.minimum:
        want = want + minima.astype(np.float32)[:, None]
    np.testing.assert_array_equal(found.reshape(groups, 64), want)


@pytest.mark.parametrize("name", FORMS)
def test_tails_and_alignment(name: str, path: str) -> None:
    """Any number of blocks, at odd addresses, and not a byte beyond."""
    size = BY_NAME[name].size
    blocks = random(9 * size, 1)
    whole = regroup.split(name, blocks)
    for count in range(10):
        source = np.empty(count * size + 1, np.uint8)
        source[1:] = blocks[: count * size]
        outs = [np.full(part.size // 9 * count + 2, 0x5A, np.uint8) for part in whole]
        kernels.split_blocks(BY_NAME[name], source[1:], *(out[1:-1] for out in outs))
        for out, part in zip(outs, whole, strict=True):
            np.testing.assert_array_equal(out[1:-1], part[: out.size - 2])
            assert out[0] == out[-1] == 0x5A
        if name in JOINED and count:
            form = FORMS[name]
            parts = parts_of(name, form.bits, form.group, count)
            again = np.full(count * size + 2, 0x5A, np.uint8)
            kernels.join_blocks(BY_NAME[name], form.bits, form.group, *parts, again[1:-1])
            np.testing.assert_array_equal(again[1:-1], joined(name, form.bits, form.group, parts))
            assert again[0] == again[-1] == 0x5A


@pytest.mark.parametrize("name", FORMS)
def test_parts_that_are_not_wanted_are_left_out(name: str, path: str) -> None:
    blocks = random(5 * BY_NAME[name].size, 2)
    want = regroup.split(name, blocks)
    for part in range(3):
        outs = [np.zeros_like(p) if i == part else NONE for i, p in enumerate(want)]
        kernels.split_blocks(BY_NAME[name], blocks, *outs)
        np.testing.assert_array_equal(outs[part], want[part])


def test_wrong_calls_are_refused(path: str) -> None:
    q4, parts = BY_NAME["Q4_0"], parts_of("Q4_0", 4, 32, 4)
    out = np.zeros(4 * 18, np.uint8)
    for dtype in (BY_NAME["Q6_K"], F32):
        with pytest.raises(UnsupportedError):
            kernels.split_blocks(dtype, random(210), NONE, NONE, NONE)
    with pytest.raises(UnsupportedError):
        kernels.join_blocks(BY_NAME["Q4_K"], 4, 32, *parts, np.zeros(144, np.uint8))
    for bits, group in ((0, 32), (9, 32), (4, 0), (4, 16), (4, 48)):
        with pytest.raises(UnsupportedError):
            kernels.join_blocks(q4, bits, group, *parts, out)
    for bits, group in ((5, 32), (4, 64)):
        with pytest.raises(UnsupportedError):
            kernels.join_blocks(BY_NAME["MXFP4"], bits, group, *parts, np.zeros(17, np.uint8))
    for at in range(3):
        wrong: Three = tuple(part[1:] if i == at else part for i, part in enumerate(parts))  # type: ignore[assignment]
        with pytest.raises(UsageError):
            kernels.join_blocks(q4, 4, 32, *wrong, out)
    with pytest.raises(UsageError):
        kernels.join_blocks(q4, 4, 32, *parts, out[1:])
    with pytest.raises(UsageError):
        kernels.join_blocks(q4, 4, 64, *parts_of("Q4_0", 4, 32, 3), np.zeros(3 * 18, np.uint8))
    with pytest.raises(UsageError):
        kernels.split_blocks(q4, out, np.zeros(15, np.uint8), NONE, NONE)


@pytest.mark.skipif(native is None, reason="the extension isn't built")
@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("split", ("Q4_0", random(17), NONE, NONE, NONE)),
        ("split", ("Q6_K", random(210), NONE, NONE, NONE)),
        ("split", ("Q4_0", random(18), np.zeros(15, np.uint8), NONE, NONE)),
        ("split", ("MXFP4", random(17), NONE, NONE, np.zeros(1, np.uint8))),
        ("join", ("Q4_K", 4, 32, NONE, NONE, NONE, np.zeros(144, np.uint8))),
        ("join", ("Q4_0", 4, 1 << 40, NONE, NONE, NONE, NONE)),
        ("join", ("Q4_0", 4, 64, random(48), random(4), random(2), np.zeros(54, np.uint8))),
        ("join", ("Q4_0", 4, 32, random(16), random(2), NONE, np.zeros(18, np.uint8))),
        ("join", ("NVFP4", 4, 32, random(32), random(4), NONE, np.zeros(36, np.uint8))),
    ],
)
def test_the_door_checks_sizes_itself(call: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(ValueError):
        getattr(native, call)(*arguments)


def test_hand_checked() -> None:
    """A block of Q4_0 with d = 2 and codes 0..15 twice; its parts, and a block of Q5_0 of the same codes less 16."""
    d = np.array([2], np.float16).view(np.uint8)
    block = np.concatenate([d, np.arange(16, dtype=np.uint8) * 17])
    codes, scales, biases = split("Q4_0", block)
    assert codes.tobytes() == bytes.fromhex("1032547698badcfe") * 2
    assert (scales.view(np.float16).item(), biases.view(np.float16).item()) == (2, -16)
    five = joined("Q5_0", 4, 32, (codes, d, np.array([16], np.uint8)))
    assert five.tobytes() == d.tobytes() + bytes(4) + bytes(i * 17 for i in range(16))


def test_rows_are_those_of_the_type_table() -> None:
    for form in FORMS.values():
        assert form.elements % form.group == 0


def _equals_native(name: str) -> bool:
    form, blocks = FORMS[name], random(16 * BY_NAME[name].size, 5)
    same = all(map(np.array_equal, split(name, blocks), regroup.split(name, blocks)))
    if name in JOINED:
        parts = parts_of(name, form.bits, form.group, 16)
        same = same and np.array_equal(
            joined(name, form.bits, form.group, parts),
            regroup.join(name, form.bits, form.group, *parts),
        )
    return same


FAULTS = {
    "bits": lambda form: form._replace(bits=form.bits % 8 + 1),
    "parameter": lambda form: form._replace(parameter={"F16": "BF16", "F32": "F16"}.get(form.parameter, "F16")),
    "codes": lambda form: form._replace(codes=lambda block: np.roll(form.codes(block), 1, axis=1)),
    "scales": lambda form: form._replace(parameters=lambda block: (block[:, 1:3], form.parameters(block)[1])),
    "biases": lambda form: form._replace(parameters=lambda block: (form.parameters(block)[0], block[:, 1:3])),
    "stored": lambda form: form._replace(stored=lambda codes: form.stored(codes[:, ::-1])),
    "zero": lambda form: form._replace(zero=form.zero - 1),
}


@pytest.mark.mutation
@pytest.mark.skipif(native is None, reason="the extension isn't built")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", FORMS)
def test_a_changed_form_is_seen(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form = FORMS[name]
    if (fault == "stored" and form.stored is None) or (fault == "zero" and not form.zero):
        return
    if fault == "parameter" and (form.minimum or form.parameter[:2] == "F8"):
        return  # taken over as bytes
    assert _equals_native(name)
    wrong = {**FORMS, name: FAULTS[fault](form)}
    monkeypatch.setattr(regroup, "FORMS", wrong)
    try:
        assert not _equals_native(name)
    except (ValueError, IndexError, UsageError, UnsupportedError):
        return  # a shape that no longer fits is red too
