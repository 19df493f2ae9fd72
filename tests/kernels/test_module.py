"""The extension as a module: levels, sizes checked at the door, no leaks, threads, and life without it."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.kernels.data import LEVELS, numbers, running

from weighbridge.base import native as door
from weighbridge.base.dtypes import BY_NAME, F16, F32, Q8_0, DType
from weighbridge.base.errors import UsageError
from weighbridge.tensors import kernels
from weighbridge.tensors.reference import registry as codecs
from weighbridge.tensors.reference.floats import SCALAR

native = door.native
needs_native = pytest.mark.skipif(native is None, reason="the extension isn't built")
SLOW = "import weighbridge.base.native as d; from weighbridge.tensors import kernels; print(d.native is None, d.reason)"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)


@needs_native
def test_levels() -> None:
    assert LEVELS[0] == "baseline"
    code = "from weighbridge.base.native import native; print(native.level())"
    assert python(code, WEIGHBRIDGE_SIMD="").stdout.strip() == LEVELS[-1]  # the widest, unless told otherwise
    for level in LEVELS:
        with running(level):
            assert native.level() == level
    with pytest.raises(ValueError, match="no instruction-set level sse9"):
        native.set_level("sse9")


@needs_native
@pytest.mark.parametrize("level", LEVELS)
def test_the_environment_chooses_a_level(level: str) -> None:
    code = "from weighbridge.base.native import native; print(native.level())"
    assert python(code, WEIGHBRIDGE_SIMD=level).stdout.strip() == level


def test_the_environment_turns_it_off_and_refuses_nonsense() -> None:
    assert python(SLOW, WEIGHBRIDGE_SIMD="none").stdout.split(maxsplit=1)[0] == "True"
    if native is not None:
        assert "doesn't have that instruction-set level" in python(SLOW, WEIGHBRIDGE_SIMD="mmx").stderr


@needs_native
def test_import_leaks_nothing() -> None:
    """nanobind reports what is still alive when the interpreter ends; a fresh one must have nothing to report."""
    code = (
        "import numpy as np, weighbridge._native as n\n"
        "n.decode('Q8_0', bytes(340), np.zeros(320, 'f4')); n.read_strings(bytes(80), 0, 10, 8, False)\n"
        "try: n.decode('Q8_0', bytes(33), bytearray(4))\n"
        "except ValueError: pass"
    )
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_native
def test_every_native_type_is_in_the_table_with_its_size() -> None:
    for name in native.formats():
        dtype = BY_NAME[name]
        assert name in codecs.DECODE
        native.decode(name, bytes(dtype.size * 3), np.zeros(dtype.block * 3, np.float32))
        with pytest.raises(ValueError, match="src" if dtype.size > 1 else "out"):
            native.decode(name, bytes(dtype.size * 3 + 1), np.zeros(dtype.block * 3, np.float32))
    assert set(native.formats("encode")) <= set(codecs.ENCODE)
    assert set(native.formats("weighted")) <= set(codecs.WEIGHTED)


@pytest.mark.parametrize("dtype", BY_NAME.values(), ids=str)
def test_a_plan_knows_the_types_without_the_reference_codecs(dtype: DType) -> None:
    assert kernels.decodes(dtype) == (dtype.name in codecs.DECODE)
    assert kernels.encodes(dtype) == (dtype.name in {*codecs.ENCODE, *codecs.WEIGHTED})
    assert kernels.casts(dtype, F32) == kernels.casts(F32, dtype) == (dtype.name in SCALAR)


FOUR = np.zeros(4, np.uint8)
SIXTEEN = np.zeros(16, np.uint8)
ONES = np.ones(32, np.float32)
WRONG_CALLS = {
    "unknown type": lambda: native.decode("Q9_9", FOUR, FOUR),
    "unaligned atoms": lambda: native.decode("F16", FOUR[:3], FOUR),
    "short out": lambda: native.decode("F16", FOUR, FOUR),
    "long out": lambda: native.decode("F32", FOUR, np.zeros(8, np.uint8)),
    "overlap": lambda: native.decode("F32", FOUR, FOUR),
    "no encoder": lambda: native.encode("Q8_K", np.zeros(256, np.float32), np.zeros(292, np.uint8)),
    "no encoder of floats": lambda: native.encode_finite(
        "F32", "Q8_K", np.zeros(256, np.float32), np.zeros(292, np.uint8)
    ),
    "from a block": lambda: native.encode_finite("Q8_0", "Q8_0", bytes(34), np.zeros(34, np.uint8)),
    "from f64": lambda: native.encode_finite("F64", "Q8_0", np.zeros(32), np.zeros(34, np.uint8)),
    "half a block of floats": lambda: native.encode_finite("BF16", "Q8_0", bytes(32), np.zeros(34, np.uint8)),
    "short blocks": lambda: native.encode_finite("BF16", "Q8_0", bytes(64), np.zeros(33, np.uint8)),
    "blocks in floats": lambda: native.encode_finite("F32", "Q8_0", ONES, ONES.view(np.uint8)[:34]),
    "no such way": lambda: native.formats("backwards"),
    "weights that mean nothing": lambda: native.encode_weighted("Q8_0", ONES, ONES, np.zeros(34, np.uint8)),
    "no weights": lambda: native.encode_weighted("Q4_0", ONES[:0], ONES[:0], FOUR[:0]),
    "half a block of weights": lambda: native.encode_weighted("Q4_0", ONES, ONES[:16], np.zeros(18, np.uint8)),
    "half a row": lambda: native.encode_weighted("Q4_0", ONES, np.ones(64, np.float32), np.zeros(18, np.uint8)),
    "weighted short": lambda: native.encode_weighted("Q4_0", ONES, ONES, np.zeros(17, np.uint8)),
    "weights in out": lambda: native.encode_weighted("Q4_0", np.zeros(32, np.float32), ONES, ONES.view(np.uint8)[:18]),
    "block in a cast": lambda: native.cast("Q8_0", "F32", bytes(34), np.zeros(32, np.float32)),
    "cast short": lambda: native.cast("F32", "F16", FOUR, FOUR),
    "affine bits": lambda: native.affine_decode(9, 32, "F32", bytes(36), FOUR, FOUR, False, np.zeros(32, np.float32)),
    "affine group": lambda: native.affine_decode(4, 0, "F32", b"", b"", b"", False, FOUR[:0]),
    "affine weight": lambda: native.affine_decode(4, 32, "F32", bytes(15), FOUR, FOUR, False, np.zeros(32, np.float32)),
    "transpose width": lambda: native.transpose(3, 2, 2, SIXTEEN, 6, np.zeros(16, np.uint8), 6),
    "transpose row": lambda: native.transpose(4, 1, 2**62, FOUR, 2**64 - 1, FOUR, 4),
    "transpose stride": lambda: native.transpose(4, 2, 1, FOUR, 3, np.zeros(8, np.uint8), 8),
    "transpose source": lambda: native.transpose(1, 3, 2, np.zeros(5, np.uint8), 2, np.zeros(6, np.uint8), 3),
    "transpose result": lambda: native.transpose(1, 3, 2, np.zeros(6, np.uint8), 2, np.zeros(5, np.uint8), 3),
    "transpose far rows": lambda: native.transpose(1, 2**63, 1, FOUR, 2, FOUR, 2**63),
    "transpose overlap": lambda: native.transpose(1, 2, 2, FOUR, 2, FOUR, 2),
    "awq words": lambda: native.unpack_awq(FOUR[:3], np.zeros(8, np.uint8)),
    "awq result": lambda: native.unpack_awq(FOUR, np.zeros(7, np.uint8)),
    "awq overlap": lambda: native.unpack_awq(SIXTEEN[:4], SIXTEEN[2:10]),
    "awq rows": lambda: native.awq_by_rows(1, FOUR, np.zeros(4, np.uint8)),
    "awq no words": lambda: native.awq_by_rows(0, np.zeros(32, np.uint8), np.zeros(32, np.uint8)),
    "awq too many words": lambda: native.awq_by_rows(2**61, np.zeros(32, np.uint8), np.zeros(32, np.uint8)),
    "awq rows' result": lambda: native.awq_by_rows(1, np.zeros(32, np.uint8), np.zeros(31, np.uint8)),
    "swap width": lambda: native.byteswap(3, FOUR, FOUR),
    "swap overlap": lambda: native.byteswap(2, FOUR[:2], FOUR[1:3]),
    "gather index": lambda: native.gather(FOUR, np.array([4]), 1, np.zeros(1, np.uint8)),
    "gather negative": lambda: native.gather(FOUR, np.array([-1]), 1, np.zeros(1, np.uint8)),
    "gather width": lambda: native.gather(FOUR, np.array([0]), 0, FOUR[:0]),
    "gather wraps": lambda: native.gather(b"", np.zeros(2, np.int64), 1 << 63, FOUR[:0]),
    "string width": lambda: native.skip_strings(b"", 0, 1, 2, False),
    "string position": lambda: native.skip_strings(b"", 1, 1, 8, False),
    "no offsets": lambda: native.string_offsets(b"", 0, 8, False, bytearray()),
    "stats of nothing": lambda: native.stats("Q9_9", FOUR),
}


@needs_native
@pytest.mark.parametrize("call", WRONG_CALLS)
def test_wrong_sizes_stop_at_the_door(call: str) -> None:
    with pytest.raises(ValueError):
        WRONG_CALLS[call]()


@needs_native
def test_read_only_output_is_refused() -> None:
    with pytest.raises((BufferError, ValueError)):
        native.decode("F32", FOUR, bytes(4))


def test_threads_share_the_kernels(path: str) -> None:
    """Slabs run in a pool: the results are those of one thread."""
    slabs = [numbers("normal", 32 * 4096, seed=n) for n in range(8)]

    def work(x: np.ndarray) -> tuple[bytes, bytes]:
        blocks, halves = np.zeros(x.size // 32 * 34, np.uint8), np.zeros(x.size * 2, np.uint8)
        kernels.encode(Q8_0, x, blocks)
        kernels.cast(F32, F16, x.view(np.uint8), halves)
        return blocks.tobytes(), halves.tobytes()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, slabs)) == [work(x) for x in slabs]


def test_an_unknown_level_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(door.ENVIRONMENT, "none")
    assert door._load() == (None, "turned off by WEIGHBRIDGE_SIMD=none")
    monkeypatch.setenv(door.ENVIRONMENT, "mmx")
    if native is not None:
        with pytest.raises(UsageError):
            door._load()
    monkeypatch.delenv(door.ENVIRONMENT)
    monkeypatch.setitem(sys.modules, "weighbridge._native", None)
    module, reason = door._load()
    assert module is None
    assert reason
