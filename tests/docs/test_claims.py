"""docs/claims.md, run: what is often said of these formats, against the reference implementations."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weighbridge.base.dtypes import BY_NAME, dtype
from weighbridge.containers.sniff.detect import sniff
from weighbridge.io.source import BytesSource
from weighbridge.tensors import kernels

st = pytest.importorskip("safetensors")
gguf = pytest.importorskip("gguf")

DOCS = Path(__file__).parents[2] / "docs"


def header(entries: str, data: bytes = b"") -> bytes:
    raw = entries.encode()
    return len(raw).to_bytes(8, "little") + raw + data


def load(data: bytes) -> dict[str, Any]:
    return dict(st.deserialize(data))


def entry(name: str, begin: int, end: int, kind: str = "U8") -> str:
    shape = [(end - begin) // (4 if kind == "F32" else 1)]
    return f'"{name}":{{"dtype":"{kind}","shape":{shape},"data_offsets":[{begin},{end}]}}'


def save(metadata: dict[str, str] | None = None) -> bytes:
    from safetensors.numpy import save

    saved: bytes = save({"a": np.zeros(3, np.float32)}, metadata)
    return saved


def start(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")


def test_the_reference_aligns_safetensors_to_8_bytes_only() -> None:
    starts = {start(save({"k": "x" * n})) for n in range(64)}
    assert all(at % 8 == 0 for at in starts)
    assert not any(at % 4096 == 0 for at in starts)


def test_the_reference_reads_unaligned_safetensors() -> None:
    data = header("{" + entry("a", 0, 1) + "," + entry("b", 1, 5, "F32") + "}", b"\x07" + np.float32(1.5).tobytes())
    assert (start(data) + 1) % 4, "the F32 tensor lies at no multiple of its size"
    assert bytes(load(data)["b"]["data"]) == np.float32(1.5).tobytes()


def test_the_reference_accepts_space_before_the_header() -> None:
    assert list(load(header(" \n\t{" + entry("a", 0, 1) + "}", b"\0"))) == ["a"]


def test_the_reference_accepts_a_repeated_name() -> None:
    found = load(header("{" + entry("a", 0, 9) + "," + entry("a", 0, 1) + "}", b"\0"))
    assert found["a"]["shape"] == [1]


def test_the_reference_writes_metadata_in_random_order() -> None:
    assert len({save({str(i): "" for i in range(6)}) for _ in range(30)}) > 1
    assert len({save({"one": ""}) for _ in range(30)}) == 1


def test_the_reference_refuses_shared_bytes() -> None:
    with pytest.raises(st.SafetensorError):
        load(header("{" + entry("a", 0, 4) + "," + entry("b", 0, 4) + "}", bytes(4)))


def test_a_name_proves_nothing(tmp_path: Path) -> None:
    from weighbridge import identify

    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps({"weights": [1.0] * 100}, protocol=2))
    assert identify(path).format == "pickle"


def test_loading_a_pickle_runs_it() -> None:
    data = b"cbuiltins\nlen\n(\x8c\x03abctR."  # calls len("abc") while it is "read"
    assert pickle.loads(data) == 3
    out = io.BytesIO()
    np.save(out, np.array([{}], object), allow_pickle=True)
    out.seek(0)
    with pytest.raises(ValueError, match="allow_pickle"):
        np.load(out)


def test_q4_k_m_is_a_file_type() -> None:
    assert gguf.LlamaFileType.MOSTLY_Q4_K_M.value == 15
    assert "Q4_K_M" not in gguf.GGMLQuantizationType.__members__
    assert "Q4_K_M" not in BY_NAME
    assert "Q4_K" in BY_NAME


def test_blocks_cost_half_a_bit_more() -> None:
    for name, bits in (("Q8_0", 8.5), ("Q4_0", 4.5), ("Q4_K", 4.5)):
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
        assert dtype(name).bits == bits == size * 8 / block


def write_gguf(path: Path, big: bool = False) -> bytes:
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG if big else gguf.GGUFEndian.LITTLE)
    writer.add_tensor("t", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("u", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.mark.parametrize("big", [False, True])
def test_the_magic_is_never_swapped(tmp_path: Path, big: bool) -> None:
    data = write_gguf(tmp_path / "m.gguf", big)
    assert data[:4] == b"GGUF"
    assert int.from_bytes(data[4:8], "big" if big else "little") == 3
    assert gguf.GGUF_MAGIC == int.from_bytes(b"GGUF", "little") == 0x46554747


def test_gguf_dims_are_reversed(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    tensor = gguf.GGUFReader(tmp_path / "m.gguf").tensors[0]
    assert list(tensor.shape) == [3, 2]
    assert tensor.data.shape == (2, 3)


def test_gguf_offsets_count_from_the_data(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    stored = [int(t.field.parts[-1][0]) for t in reader.tensors]
    assert stored == [0, 32]
    assert [t.data_offset - reader.data_offset for t in reader.tensors] == stored
    assert reader.data_offset > 0


def cast(source: str, target: str, values: list[float]) -> tuple[Any, kernels.CastCounts]:
    import ml_dtypes

    kinds = {"BF16": ml_dtypes.bfloat16, "F16": np.float16}
    raw = np.array(values, kinds[source]).view(np.uint8)
    out = np.empty(len(raw), np.uint8)
    counts = kernels.cast(dtype(source), dtype(target), raw, out)
    return out.view(kinds[target]).astype(np.float64), counts


def test_bf16_to_f16_overflows() -> None:
    found, counts = cast("BF16", "F16", [1e30, 1e-30, 1.0])
    assert found.tolist() == [np.inf, 0.0, 1.0]
    assert counts == (1, 1)


def test_f16_to_bf16_rounds() -> None:
    found, counts = cast("F16", "BF16", [1 + 2**-10])
    assert found.tolist() == [1.0]
    assert counts == (0, 0), "rounding is no overflow"


def test_mlx_lm_ignores_rope_parameters() -> None:
    transformers = pytest.importorskip("transformers")
    llama = pytest.importorskip("mlx_lm.models.llama")
    rope = {"rope_type": "linear", "rope_theta": 500000.0, "factor": 8.0}
    config = json.loads(transformers.LlamaConfig(rope_parameters=rope).to_json_string())
    assert config["rope_parameters"] == rope
    assert not {"rope_theta", "rope_scaling"} & config.keys()
    args = llama.ModelArgs.from_dict(config)
    assert (args.rope_theta, args.rope_scaling) == (10000, None)
    old = config | {"rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 8.0}}
    assert llama.ModelArgs.from_dict(old).rope_theta == 500000.0


def test_a_file_of_zeros_has_the_right_size() -> None:
    assert sniff(BytesSource(bytes(10_000))).format == "zeros"


def test_every_claim_names_a_test_that_exists() -> None:
    page = (DOCS / "claims.md").read_text("utf-8")
    rows = [line.split("|")[-2].strip() for line in page.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 10
    for row in rows:
        if row.startswith("`"):
            assert row.strip("`") in globals(), row
        else:
            assert (DOCS / row.split("(")[1].rstrip(")")).exists(), row
    named = {row.strip("`") for row in rows}
    mine = {name for name in globals() if name.startswith("test_") and "every_claim" not in name}
    assert mine <= named, "a check without its claim"
