"""One block of a tensor, opened: its fields are its bytes, its values the decoder's, and the formula over its parts
gives them again."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.kernels.test_parts import Table
from tests.reports import makers as m

from weighbridge.base.dtypes import BY_GGML, BY_NAME, Kind
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.cli.main import main
from weighbridge.models.open import open_model
from weighbridge.reports.microscope.blocks import BlockView, block
from weighbridge.tensors import kernels

BLOCKS = [t for t in BY_GGML.values() if t.kind is Kind.BLOCK and t.name != "Q8_1"]
FLOATS = ["F32", "F16", "BF16", "F64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"]


def formula(view: BlockView) -> Any:
    """The values by the formula, as Python reads it."""
    count = len(view.values)
    names: dict[str, Any] = {
        p.name: Table(p.values) if p.name == "table" else np.repeat(np.array(p.values, np.float32), p.each)
        for p in view.parts
    }
    assert all(len(v) == count for name, v in names.items() if name != "table")
    with np.errstate(all="ignore"):
        return eval(view.formula, {"__builtins__": {}}, names)


def gguf_of(tmp_path: Path, dtype: Any, data: bytes, shape: tuple[int, ...]) -> Path:
    m.GGML.setdefault(dtype.name, (dtype.ggml, dtype.block, dtype.size))
    path = tmp_path / "x.gguf"
    path.write_bytes(m.gguf({"general.architecture": ("str", "x")}, {"t": (dtype.name, shape, data)}))
    return path


@pytest.mark.parametrize("dtype", BLOCKS, ids=str)
def test_a_block_of_every_type_is_its_bytes_and_decodes(dtype: Any, tmp_path: Path) -> None:
    data = np.random.default_rng(dtype.ggml).integers(0, 256, (6, dtype.size), dtype=np.uint8)
    path = gguf_of(tmp_path, dtype, data.tobytes(), (3, 2 * dtype.block))
    want = np.empty(6 * dtype.block, np.float32)
    kernels.decode(dtype, data.reshape(-1), want)
    with open_model(path) as model:
        for number in (0, 3, 5):
            found = block(model, "t", number)
            assert "".join(f.raw for f in found.fields) == data[number].tobytes().hex()
            assert path.read_bytes()[found.offset : found.offset + found.nbytes] == data[number].tobytes()
            values = want[number * dtype.block : (number + 1) * dtype.block]
            np.testing.assert_array_equal(np.array(found.values, np.float32), values)
            np.testing.assert_array_equal(formula(found), values)
            assert found.index == (number // 2, number % 2 * dtype.block)


@pytest.mark.parametrize("name", FLOATS)
def test_a_float_is_sign_exponent_and_fraction(name: str, tmp_path: Path) -> None:
    dtype = BY_NAME[name]
    data = np.random.default_rng(3).integers(0, 256, (24, dtype.size), dtype=np.uint8)
    data[0] = 0
    data[1] = 0
    data[1, 0] = 1  # the smallest subnormal
    (tmp_path / "x.safetensors").write_bytes(
        m.raw_safetensors({"t": {"dtype": name, "shape": [24], "data_offsets": [0, data.size]}}, data.tobytes())
    )
    want = data.reshape(-1).view(np.dtype(getattr(ml_dtypes, dtype.numpy or "", dtype.numpy)))
    with open_model(tmp_path / "x.safetensors") as model:
        for number, expected in enumerate(want.astype(np.float64)):
            if np.isfinite(expected):
                found = block(model, "t", number)
                names: dict[str, Any] = {p.name: float(p.values[0]) for p in found.parts}
                value = eval(found.formula, {"__builtins__": {}}, names)
                assert value == expected
                assert found.values[0] == (expected if name == "F64" else float(str(np.float32(expected))))


def ends(size: int) -> Any:
    """A low nibble in the first half, a high one in the second."""
    return lambda e: ((2 + e % 16, 0x0F if e < 16 else 0xF0),)


#: The layouts of ggml-common.h: of each element the bytes and bits of its code.
LAYOUTS: dict[str, Any] = {
    "Q4_0": ends(16),
    "Q8_0": lambda e: ((2 + e, 0xFF),),
    "Q5_0": lambda e: (
        (2 + (e >> 3), 1 << (e & 7)),
        (6 + e % 16, 0x0F if e < 16 else 0xF0),
    ),
    "Q4_K": lambda e: ((16 + e // 64 * 32 + e % 32, 0xF0 if e % 64 >= 32 else 0x0F),),
    "Q6_K": lambda e: (
        (e // 128 * 64 + e % 64, 0x0F if e % 128 < 64 else 0xF0),
        (128 + e // 128 * 32 + e % 32, 3 << (e % 128 // 32 * 2)),
    ),
    "BF16": lambda e: ((0, 0xFF), (1, 0xFF)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_bits_of_a_code_are_those_of_the_layout(name: str, tmp_path: Path) -> None:
    dtype = next(t for t in BY_GGML.values() if t.name == name)
    data = np.random.default_rng(6).integers(0, 256, (2, dtype.size), dtype=np.uint8)
    with open_model(gguf_of(tmp_path, dtype, data.tobytes(), (2, dtype.block))) as model:
        assert block(model, "t", 1).bits == tuple(LAYOUTS[name](e) for e in range(dtype.block))


@pytest.mark.parametrize("dtype", BLOCKS, ids=str)
def test_only_the_bits_of_a_code_change_one_value_alone(dtype: Any, tmp_path: Path) -> None:
    """By the kernels: another bit changes all values of a group, or none."""
    rng = np.random.default_rng(dtype.ggml)
    data = rng.integers(0, 256, dtype.size, dtype=np.uint8)

    def decoded(block: Any) -> Any:
        out = np.empty(dtype.block, np.float32)
        kernels.decode(dtype, block, out)
        return out

    with open_model(gguf_of(tmp_path, dtype, data.tobytes(), (1, dtype.block))) as model:
        found = block(model, "t", 0).bits
    before = decoded(data)
    for _ in range(24):
        byte, mask = int(rng.integers(dtype.size)), 1 << int(rng.integers(8))
        turned = data.copy()
        turned[byte] ^= mask
        changed = set(np.flatnonzero(decoded(turned).view(np.uint32) != before.view(np.uint32)).tolist())
        of_codes = {e for e, own in enumerate(found) if any(at == byte and mask & bits for at, bits in own)}
        assert len(changed) != 1 or changed == of_codes


OUT, IN = 32, 256
# Scheme -> tensors of a weight [OUT, IN] as its writer packs it, the config, the number of groups.
GROUPS: dict[str, tuple[dict[str, tuple[str, tuple[int, ...]]], dict[str, Any], int]] = {
    "mlx, 4 bits": (
        {"weight": ("U32", (OUT, IN // 8)), "scales": ("F16", (OUT, IN // 64)), "biases": ("F16", (OUT, IN // 64))},
        {"quantization": {"bits": 4, "group_size": 64}}, OUT * IN // 64,
    ),
    "mlx, 3 bits": (
        {"weight": ("U32", (OUT, IN * 3 // 32)), "scales": ("BF16", (OUT, 4)), "biases": ("BF16", (OUT, 4))},
        {"quantization": {"bits": 3, "group_size": 64}}, OUT * 4,
    ),
    "gptq": (
        {"qweight": ("I32", (IN // 8, OUT)), "qzeros": ("I32", (IN // 64, OUT // 8)), "scales": ("F16", (4, OUT))},
        {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 64}}, OUT * 4,
    ),
    "awq": (
        {"qweight": ("I32", (IN, OUT // 8)), "qzeros": ("I32", (IN // 64, OUT // 8)), "scales": ("F16", (4, OUT))},
        {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64}}, OUT * 4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_of_a_packed_weight(name: str, tmp_path: Path) -> None:
    """The values are those of the whole tensor, decoded; the formula gives them again."""
    tensors, config, groups = GROUPS[name]
    rng = np.random.default_rng(8)
    filled = {f"m.{n}": (d, s, _random(rng, d, s)) for n, (d, s) in tensors.items()}
    (tmp_path / "model.safetensors").write_bytes(m.safetensors(filled))
    (tmp_path / "config.json").write_text(json.dumps(config))
    with open_model(tmp_path) as model:
        want: Any = model.logical["m.weight"]
        values = want.decode().read_all().view(np.float32)
        for number in (0, 7, groups - 1):
            found = block(model, "m.weight", number)
            assert (found.blocks, found.element, len(found.values)) == (groups, number * 64, 64)
            got = np.array(found.values, np.float32)
            np.testing.assert_array_equal(got, values[found.element : found.element + 64])
            np.testing.assert_allclose(formula(found), got, rtol=1e-6, atol=1e-6)
            if name == "mlx, 4 bits":
                assert found.bits == tuple(((e // 2, 0xF0 if e % 2 else 0x0F),) for e in range(64))
        with pytest.raises(UsageError, match="no block"):
            block(model, "m.weight", groups)


def test_a_packing_without_groups_of_its_own(tmp_path: Path) -> None:
    fp8 = {"m.weight": ("F8_E4M3", (4, 8), bytes(32)), "m.weight_scale_inv": ("F32", (1, 1), bytes(4))}
    (tmp_path / "model.safetensors").write_bytes(m.safetensors(fp8))
    (tmp_path / "config.json").write_text("{}")
    with open_model(tmp_path) as model:
        assert block(model, "m.weight_scale_inv", 0).values == (0.0,)
        assert block(model, "m.weight", 0).dtype == "F8_E4M3"  # as it is stored
    ordered = np.arange(IN, dtype="<i4")[::-1] // 64  # a column's group isn't where it stands
    gptq, config, _ = GROUPS["gptq"]
    members = {f"m.{n}": (d, s, bytes(4 * prod(s) if d == "I32" else 2 * prod(s))) for n, (d, s) in gptq.items()}
    members["m.g_idx"] = ("I32", (IN,), ordered.tobytes())
    (tmp_path / "model.safetensors").write_bytes(m.safetensors(members))
    (tmp_path / "config.json").write_text(json.dumps(config))
    with open_model(tmp_path) as model, pytest.raises(UnsupportedError, match="decoded separately"):
        block(model, "m.weight", 0)


def _random(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> bytes:
    if dtype in ("F16", "BF16", "F32"):
        kinds: dict[str, Any] = {"F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32}
        return rng.normal(size=shape).astype(kinds[dtype]).tobytes()
    return rng.integers(0, 256, int(np.prod(shape)) * m.SIZES[dtype], dtype=np.uint8).tobytes()


def test_blocks_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = gguf_of(tmp_path, BY_NAME["Q8_0"], bytes(68), (64,))
    with open_model(path) as model:
        with pytest.raises(UsageError, match="no block 2"):
            block(model, "t", 2)
        with pytest.raises(UsageError, match="no tensor 'u'"):
            block(model, "u", 0)
    for words in ("--block 0", "--tensor t --block 0 --map", "--tensor t --block 0 --at 3", "--block 0 --bytes 3"):
        assert main(["anatomy", str(path), *words.split()]) == 2
    assert main(["anatomy", f"{path}::t", "--tensor", "t", "--block", "0"]) == 2
    capsys.readouterr()


def test_the_command_shows_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = np.random.default_rng(1).integers(0, 120, 144, dtype=np.uint8).tobytes()
    path = gguf_of(tmp_path, BY_NAME["Q4_K"], data, (256,))
    assert main(["anatomy", str(path), "--tensor", "t", "--block", "0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "".join(f["raw"] for f in report["fields"]) == data.hex()
    assert len(report["values"]) == 256
    assert main(["anatomy", f"{path}::t", "--block", "0"]) == 0
    text = capsys.readouterr().out
    assert "value = d * scale * q - dmin * minimum" in text
    assert main(["anatomy", str(path), "--tensor", "t", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parts"][0]["label"] == "t"
