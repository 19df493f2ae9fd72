"""docs/claims.md, run: what is often said of these formats, against the reference implementations."""

from __future__ import annotations

import io
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.containers import _ggml

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


def test_torch_maps_a_checkpoint(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "mapped.pt"
    torch.save({"a": torch.zeros(1 << 20)}, path)
    tensor = torch.load(path, mmap=True, weights_only=True)["a"]
    assert str(path) in Path("/proc/self/maps").read_text("utf-8")
    assert float(tensor.sum()) == 0.0
    torch.save({"a": torch.zeros(1)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(RuntimeError, match="mmap"):
        torch.load(path, mmap=True, weights_only=True)


def test_llama_cpp_reads_no_safetensors(tmp_path: Path) -> None:
    if _ggml.library() is None:
        pytest.skip("xllamacpp isn't installed")
    assert not _ggml.accepts(save())
    assert _ggml.accepts(write_gguf(tmp_path / "m.gguf"))


def test_0x46475547_spells_gugf() -> None:
    assert (0x46475547).to_bytes(4, "little") == b"GUGF"
    assert (0x46475547).to_bytes(4, "big") == b"FGUG"
    assert gguf.GGUF_MAGIC != 0x46475547


def test_safetensors_spells_dtypes_its_own_way() -> None:
    assert load(header('{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}', b"\0\0"))["a"]["dtype"] == "BF16"
    for name in ("bfloat16", "float32", "torch.float32"):
        with pytest.raises(st.SafetensorError):
            load(header(f'{{"a":{{"dtype":"{name}","shape":[1],"data_offsets":[0,2]}}}}', b"\0\0"))


def test_a_gguf_key_is_not_padded(tmp_path: Path) -> None:
    data = write_gguf(tmp_path / "m.gguf")
    at = data.index(b"general.architecture")
    assert int.from_bytes(data[at - 8 : at], "little") == len("general.architecture") == 20
    assert int.from_bytes(data[at + 20 : at + 24], "little") == gguf.GGUFValueType.STRING


#: Layers, hidden, feed forward, key-value heads x head size, vocabulary, as published.
SEVEN_BILLION = {"Llama 2 7B": (32, 4096, 11008, 4096, 32000), "Llama 3.1 8B": (32, 4096, 14336, 1024, 128256)}


def sparse_llama(path: Path, layers: int, hidden: int, wide: int, narrow: int, vocabulary: int) -> Path:
    """An F16 GGUF of these sizes: its header, and a hole where the weights would be."""
    shapes = {"token_embd": (vocabulary, hidden), "output_norm": (hidden,), "output": (vocabulary, hidden)}
    each = {
        **{"attn_norm": (hidden,), "attn_q": (hidden, hidden), "attn_k": (narrow, hidden), "attn_v": (narrow, hidden)},
        **{"attn_output": (hidden, hidden), "ffn_norm": (hidden,), "ffn_gate": (wide, hidden)},
        **{"ffn_up": (wide, hidden), "ffn_down": (hidden, wide)},
    }
    shapes |= {f"blk.{i}.{name}": shape for i in range(layers) for name, shape in each.items()}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_head_count(hidden // 128)
    writer.add_head_count_kv(narrow // 128)
    for name, shape in shapes.items():
        kind = np.float16 if len(shape) > 1 else np.float32
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        writer.add_tensor_info(f"{name}.weight", shape, np.dtype(kind), size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    reader_size = sum(-(-int(np.prod(s)) * (2 if len(s) > 1 else 4) // 32) * 32 for s in shapes.values())
    with path.open("r+b") as file:
        file.truncate(-(-path.stat().st_size // 32) * 32 + reader_size)
    return path


def test_7b_at_q4_k_m(tmp_path: Path) -> None:
    import weighbridge

    sizes = {}
    for name, numbers in SEVEN_BILLION.items():
        source = sparse_llama(tmp_path / f"{len(name)}.gguf", *numbers)
        sizes[name] = weighbridge.plan_quantize(source, tmp_path / "out.gguf", "Q4_K_M").size / 1e9
    assert {name: round(size, 2) for name, size in sizes.items()} == {"Llama 2 7B": 4.08, "Llama 3.1 8B": 4.91}


def test_a_chat_template_is_a_program() -> None:
    jinja2 = pytest.importorskip("jinja2")
    from jinja2.sandbox import SandboxedEnvironment

    template = "{{ cycler.__init__.__globals__.os.getpid() }}"
    assert jinja2.Environment().from_string(template).render() == str(os.getpid())
    with pytest.raises(jinja2.exceptions.SecurityError):
        SandboxedEnvironment().from_string(template).render()


def test_mlx_keeps_its_config_in_config_json(tmp_path: Path) -> None:
    nn = pytest.importorskip("mlx.nn")
    utils = pytest.importorskip("mlx_lm.utils")
    layers = nn.Sequential(nn.Linear(64, 64))
    nn.quantize(layers)
    utils.save_model(tmp_path, layers)
    data = (tmp_path / "model.safetensors").read_bytes()
    assert json.loads(data[8 : start(data)])["__metadata__"] == {"format": "mlx"}


def test_four_bits_are_not_a_quarter() -> None:
    bits = {name: dtype(name).bits for name in ("Q4_0", "Q4_K", "Q4_1", "IQ4_XS")}
    assert bits == {"Q4_0": 4.5, "Q4_K": 4.5, "Q4_1": 5.0, "IQ4_XS": 4.25}
    assert {name: round(16 / b, 2) for name, b in bits.items()} == {
        **{"Q4_0": 3.56, "Q4_K": 3.56, "Q4_1": 3.2, "IQ4_XS": 3.76}
    }


def test_every_claim_names_a_test_that_exists() -> None:
    from tests.docs import test_safety_claims

    page = (DOCS / "claims.md").read_text("utf-8")
    rows = [line.split("|")[-2].strip() for line in page.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 10
    checks = {**globals(), **vars(test_safety_claims)}
    for row in rows:
        if row.startswith("`"):
            assert row.strip("`") in checks, row
        else:
            assert (DOCS / row.split("(")[1].rstrip(")")).exists(), row
    named = {row.strip("`") for row in rows}
    mine = {name for name in checks if name.startswith("test_") and "every_claim" not in name}
    assert mine <= named, "a check without its claim"
