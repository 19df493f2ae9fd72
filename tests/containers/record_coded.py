"""Records files of ZipNN and a model in DFloat11's code for test_coded.py, with the originals.

python -m tests.containers.record_coded DFLOAT11      writes tests/containers/golden/coded.zip

Needs torch, safetensors, zipnn 0.5.4 and dahuffman. DFLOAT11: the folder `dfloat11` of DFloat11 0.5's source, whose
`encode_weights` writes the codes; its `compress_model` needs a GPU, so its loop over modules is repeated here.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from zipnn import ZipNN
from zipnn.util_safetensors import build_compressed_tensor_info, set_compressed_tensors_metadata

GOLDEN = Path(__file__).with_name("golden") / "coded.zip"
CHUNK = 1 << 14
#: A model of the llama family: its sizes, and the weights of each module that are in one block.
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 96,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
MODULES = {
    "self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32),
    "self_attn.o_proj": (32, 32), "mlp.gate_proj": (64, 32), "mlp.up_proj": (64, 32), "mlp.down_proj": (32, 64),
}  # fmt: skip
PATTERNS = {r"model\.layers\.\d+": [*MODULES], "lm_head": [], r"model\.embed_tokens": []}
Tensors = dict[str, torch.Tensor]


def weights(*shape: int) -> torch.Tensor:
    return torch.randn(*shape) * 0.02


def plain() -> Tensors:
    return {
        "bf16": weights(61, 151).bfloat16(), "f32": weights(107, 33), "f16": weights(20, 129).half(),
        "e4m3": (weights(25, 101) * 5).to(torch.float8_e4m3fn), "e5m2": (weights(20, 99) * 5).to(torch.float8_e5m2),
        "numbers": torch.arange(10), "zeros": torch.zeros(70, 30).bfloat16(), "few": weights(3, 5).bfloat16(),
        "odd": weights(4001).bfloat16(),
    }  # fmt: skip


def zipnn_tensors(tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
    """As zipnn's script zipnn_compress_safetensors.py does."""
    out, listed = Tensors(), {}
    for name, tensor in tensors.items():
        out[name] = tensor
        if tensor.is_floating_point():
            coder = ZipNN(input_format="torch", bytearray_dtype=tensor.dtype, compression_chunk=CHUNK, threads=1)
            data = coder.compress(tensor.clone())
            if len(data) < tensor.nbytes:
                out[name] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
                listed[name] = build_compressed_tensor_info(tensor)
    metadata = {"format": "pt"}
    set_compressed_tensors_metadata(listed, metadata)
    return out, metadata


def llama() -> Tensors:
    out = {"model.embed_tokens.weight": weights(96, 32), "lm_head.weight": weights(96, 32)}
    for layer in range(2):
        head = f"model.layers.{layer}"
        out |= {f"{head}.{name}.weight": weights(*shape) for name, shape in MODULES.items()}
        out |= {f"{head}.{name}.weight": torch.ones(32) for name in ("input_layernorm", "post_attention_layernorm")}
    out["model.layers.1.self_attn.q_proj.weight"][0] *= 2.0 ** torch.arange(-96, 32, 4)  # codes of more than 16 bits
    return {name: tensor.bfloat16() for name, tensor in {**out, "model.norm.weight": torch.ones(32)}.items()}


def dfloat11(tensors: Tensors, threads: int) -> Tensors:
    from dfloat11_utils import encode_weights, get_32bit_codec, get_codec, get_luts

    out = dict(tensors)
    modules = {name.rpartition(".")[0] for name in tensors} | {"model.layers.0", "model.layers.1"}
    for pattern, inner in PATTERNS.items():
        for module in sorted(m for m in modules if re.fullmatch(pattern, m)):
            names = [f"{module}.{part}.weight" for part in inner] or [f"{module}.weight"]
            coded = [out.pop(name).flatten() for name in names]
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                codec, _, table = get_32bit_codec(get_codec(torch.cat(coded))[1])
                codes, rest, positions, gaps, splits = encode_weights(coded, codec, 8, threads)
                parts = {"luts": get_luts(table), "encoded_exponent": codes, "sign_mantissa": rest, "gaps": gaps,
                         "output_positions": positions.view(torch.uint8), "split_positions": splits}  # fmt: skip
            out |= {f"{module}.{name}": tensor for name, tensor in parts.items()}
    return out


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    torch.manual_seed(0)
    files: dict[str, bytes] = {}

    def saved(name: str, tensors: Tensors, metadata: dict[str, str]) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            save_file(tensors, Path(folder) / "a", metadata=metadata)
            files[name] = (Path(folder) / "a").read_bytes()
        return files[name]

    tensors = plain()
    original = saved("plain.safetensors", tensors, {"format": "pt"})
    for dtype, streaming in (("bfloat16", False), ("bfloat16", True), ("float32", True), ("float16", False)):
        coder = ZipNN(bytearray_dtype=dtype, is_streaming=streaming, streaming_chunk=1 << 15, compression_chunk=CHUNK,
                      threads=1)  # fmt: skip
        files[f"plain.{dtype}{'.streams' * streaming}.safetensors.znn"] = bytes(coder.compress(bytearray(original)))
    saved("plain.znn.safetensors", *zipnn_tensors(tensors))
    torch.manual_seed(1)
    model = llama()
    for folder, threads in (("df11", 512), ("df11-blocks", 8)):
        settings = {"version": "0.5.0", "threads_per_block": [threads], "bytes_per_thread": 8, "pattern_dict": PATTERNS}
        saved(f"{folder}/model.safetensors", dfloat11(model, threads), {"format": "pt"})
        files[f"{folder}/config.json"] = json.dumps({**CONFIG, "dfloat11_config": settings}).encode()
    saved("llama/model.safetensors", model, {"format": "pt"})
    files["llama/config.json"] = json.dumps(CONFIG).encode()
    with zipfile.ZipFile(GOLDEN, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
