"""Laws of every block type, including a third party's (`tests/toys/toy_block_type.py`), and the uses of that one."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.plugins import registered
from tests.toys.toy_block_type import CODEC, TOY

import weighbridge as wb
from weighbridge.base import dtypes
from weighbridge.base.dtypes import BY_GGML, BY_NAME, F32, SCALARS, TABLE, DType
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.plugins import BLOCK_TYPES, plugins
from weighbridge.base.spec import Spec
from weighbridge.cli.main import cli
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.values import KV
from weighbridge.tensors import kernels
from weighbridge.tensors.nodes import Const, cast, const, decode
from weighbridge.tensors.reference import registry
from weighbridge.tensors.reference.codec import pack, structure, view

#: The shipped ones, the toy, and those of plug-ins that happen to be installed.
EVERY = [*(t for t in TABLE if t.fields), *dtypes.OLD.values(), *plugins(BLOCK_TYPES, DType).values(), TOY]
ROOT = Path(__file__).resolve().parents[2]
X = np.random.default_rng(3).normal(size=(6, 1024)).astype(np.float32)


@pytest.fixture(autouse=True)
def _toy() -> Iterator[None]:
    with registered(TOY, CODEC):
        yield


def blocks_of(dtype: DType, count: int = 5) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, count * dtype.size, dtype=np.uint8)


# -- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_fields_fill_the_block(dtype: DType) -> None:
    ends = [f.offset + f.size for f in dtype.fields]
    assert [f.offset for f in dtype.fields] == [0, *ends[:-1]]
    assert ends[-1] == dtype.size == structure(dtype.name).itemsize
    assert dtype.word == max(f.itemsize for f in dtype.fields)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_unpacked_fields_pack_to_the_same_bytes(dtype: DType) -> None:
    data = blocks_of(dtype)
    blocks = view(dtype.name, data)
    np.testing.assert_array_equal(pack(dtype.name, **{f.name: blocks[f.name] for f in dtype.fields}), data)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_a_swap_turns_every_scalar(dtype: DType) -> None:
    """Against `struct`, which packs the fields in either order."""
    form = "".join(f"{f.count}{SCALARS[f.scalar]}" for f in dtype.fields)
    data = bytearray(pack(dtype.name, **{f.name: np.ones(3 * f.count) for f in dtype.fields}))
    if any(f.scalar == "mixed" for f in dtype.fields):
        with pytest.raises(UnsupportedError):
            dtypes.swap(dtype, data)
        return
    dtypes.swap(dtype, data)
    assert bytes(data) == 3 * struct.pack(f">{form}", *np.ones(sum(f.count for f in dtype.fields), int))


@pytest.mark.parametrize("dtype", [t for t in EVERY if t.name in registry.BLOCKS or t is TOY], ids=str)
def test_the_codec_fits_the_row(dtype: DType) -> None:
    data = blocks_of(dtype)
    assert registry.BLOCKS[dtype.name].decode(data).size == 5 * dtype.block
    assert registry.BLOCKS[dtype.name].scales(data).size % 5 == 0
    for codec in filter(None, [registry.BLOCKS[dtype.name].encode]):
        encoded, lost = codec(X.reshape(-1))
        assert (encoded.size, len(lost)) == (X.size // dtype.block * dtype.size, 2)


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [t for t in TABLE if t.fields], ids=str)
def test_blocks_are_ggml_s(dtype: DType) -> None:
    constants = pytest.importorskip("gguf").constants
    kinds = {kind.value: kind for kind in constants.GGMLQuantizationType}
    if dtype.ggml not in kinds or dtype.name == "Q8_1":  # gguf has its former size
        pytest.skip("this version of gguf doesn't know it")
    assert kinds[dtype.ggml].name == dtype.name
    assert constants.GGML_QUANT_SIZES[kinds[dtype.ggml]] == (dtype.block, dtype.size)


@pytest.mark.mutation
@pytest.mark.parametrize("dtype", [t for t in TABLE if t.fields and t.name != "Q8_1"], ids=str)
def test_a_field_that_is_off_is_seen(dtype: DType) -> None:
    """Any two fields that change places, or one byte more, give other blocks than the C++ structs."""
    header = (ROOT / "native" / "block_types.hpp").read_text("utf-8")
    body = re.search(rf"struct {dtype.name} {{(.*?)}};", header, re.DOTALL)
    assert body is not None
    assert re.findall(r" (\w+)(?:\[\d+\])?;", body[1].split("elements\n")[1]) == [f.name for f in dtype.fields]
    assert f"static_assert(sizeof({dtype.name}) == {dtype.size} " in header


# -- a third party's -------------------------------------------------------------------------------------------------


def test_the_toy_is_found_by_name_and_id() -> None:
    assert BY_NAME["Q8_TOY"] is BY_GGML[7000] is TOY is wb_dtype("q8_toy")
    assert (TOY.size, TOY.bits) == (18, 9)


def wb_dtype(name: str) -> DType:
    return dtypes.dtype(name)


@pytest.mark.parametrize("row", [
    dtypes.block_type("Q4_0", 7001, 32, "d: f16, qs: u8[16]"), dtypes.block_type("OTHER", 2, 32, "d: f16"),
    dtypes.block_type("half", 7002, 32, "d: f16"), F32,
], ids=str)  # fmt: skip
def test_what_is_taken_is_refused(row: DType) -> None:
    with pytest.raises(UsageError):
        registry.register(row, CODEC)


@pytest.mark.parametrize("fields", ["d", "d: f17", "d: f16,qs: u8", "d: f16[x]", ""])
def test_fields_that_cannot_be_read(fields: str) -> None:
    with pytest.raises(ValueError, match="SCALAR"):
        dtypes.block_type("BAD", 7003, 32, fields)


def test_the_toy_encodes_and_decodes() -> None:
    assert kernels.decodes(TOY)
    assert kernels.encodes(TOY)
    node = cast(const(X, F32), TOY)
    assert node.spec == Spec(X.shape, TOY)
    values = decode(node).read_all().view(np.float32)
    np.testing.assert_allclose(values, X.reshape(-1), atol=0.02)
    assert kernels.stats(TOY, node.read_all()).nan == 0


@pytest.fixture
def toy_gguf(tmp_path: Path) -> Path:
    """A GGUF with one tensor of the toy's type."""
    node = cast(const(X, F32), TOY)
    layout = gguf.layout([("w", node.spec)], {"general.architecture": KV("str", "toy")})
    path = tmp_path / "toy.gguf"
    data = bytearray(layout.size)
    for at, piece in layout.pieces:
        data[at : at + len(piece)] = piece
    at = layout.slots[0].offset
    data[at : at + node.spec.nbytes] = node.read_all().tobytes()
    path.write_bytes(data)
    return path


def test_the_toy_in_the_commands(toy_gguf: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    shown = run(cli, ["inspect", "--tensors", str(toy_gguf)])
    assert (shown.exit_code, "Q8_TOY" in shown.output) == (0, True), shown.output
    assert "bytes" not in run(cli, ["verify", "--values", str(toy_gguf)]).output
    target = tmp_path / "out.safetensors"
    done = run(cli, ["convert", str(toy_gguf), str(target), "--dtype", "f32"])
    assert done.exit_code == 0, done.output
    np.testing.assert_allclose(wb.open(target)["w"].numpy(), X, atol=0.02)


def test_the_toy_in_the_docs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import generate  # type: ignore[import-not-found]

    page = "\n".join(generate.block_types())
    assert "## Q8_TOY\n" in page
    assert "| d    | qs     |" in page[page.index("## Q8_TOY") :]
    assert "`Q8_TOY`" in "\n".join(generate.types_part({"plain": ["x"], "blocks": ["x"]}))


def test_const_of_the_toy_moves_like_any_type() -> None:
    node = Const(Spec((3, 32), TOY), bytes(range(108)))
    assert node.read(1, 2).tobytes() == bytes(range(36, 72))
