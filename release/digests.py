"""Runs the command line on a small model and prints a digest of each result: they are the same on every platform.

python release/digests.py [--check] [--only PART]

Needs an installed wheel and nothing else. `--check` compares with digests.txt, which lies beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from weighbridge.base.native import native
from weighbridge.cli.main import main as wb

LIST: Final = Path(__file__).with_suffix(".txt")
CONFIG: Final = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 256,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
LAYER: Final = {
    "input_layernorm": (256,), "post_attention_layernorm": (256,), "mlp.gate_proj": (256, 256),
    "mlp.up_proj": (256, 256), "mlp.down_proj": (256, 256), "self_attn.q_proj": (256, 256),
    "self_attn.k_proj": (128, 256), "self_attn.v_proj": (128, 256), "self_attn.o_proj": (256, 256),
}  # fmt: skip
TYPES: Final = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS"),
    *("IQ3_S", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0", "F32", "F16"),
)
#: What each command writes, or "" for what it prints. Later rows read what earlier ones wrote.
COMMANDS: Final = (
    *((f"{name}.gguf", f"quantize model {name}.gguf {name}") for name in TYPES),
    ("plain.gguf", "convert model plain.gguf"),
    ("back.safetensors", "convert Q4_K_M.gguf back.safetensors"),
    ("e4m3.safetensors", "convert model/model.safetensors e4m3.safetensors --dtype f8_e4m3"),
    ("model.npz", "convert model/model.safetensors model.npz --dtype f32"),
    ("model.pt", "convert model/model.safetensors model.pt"),
    ("mlx/model.safetensors", "convert model mlx --to mlx --bits 4"),
    ("packed.safetensors", "pack model/model.safetensors packed.safetensors"),
    ("unpacked.safetensors", "unpack packed.safetensors unpacked.safetensors"),
    ("", "identify model Q4_K_M.gguf model.pt --json"),
    ("", "inspect Q4_K_M.gguf --json"),
    ("", "verify Q4_K_M.gguf --json"),
    ("", "scan model.pt --json"),
    ("", "explain model.pt"),
    ("", "hash --tensors Q4_K_M.gguf"),
    ("", "stats model.npz --json"),
    ("", "prove model plain.gguf --no-run --json"),
)


def write_model(folder: Path) -> None:
    """Writes a Llama of one layer. Its values come from integers, since logarithms differ between C libraries."""
    random = np.random.default_rng(5)
    shapes = {"model.embed_tokens": (80, 256), "model.norm": (256,)}
    shapes |= {f"model.layers.0.{name}": shape for name, shape in LAYER.items()}
    header, data = {}, b""
    for name, shape in shapes.items():
        values = random.integers(-999, 1000, shape) * random.integers(1, 99, (*shape[:-1], 1)) / 65536
        words = (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()  # bfloat16
        begin, data = len(data), data + words
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()), "utf-8")


def tokenizer() -> dict[str, object]:
    """The smallest byte-level vocabulary there can be."""
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {token: index for index, token in enumerate(["t", "0", "t0", *(f"x{i}" for i in range(77))])}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [["t", "0"]]}
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": bytewise, "decoder": bytewise,
            "post_processor": bytewise, "model": model}  # fmt: skip


def digests(part: str = "") -> Iterator[tuple[str, str]]:
    """Command and digest, run in a new folder. `part`: only commands that contain it. Without the extension nothing is
    packed."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_model(Path("model"))
        for name, command in COMMANDS:
            if part in command and (native is not None or "pack" not in command):
                yield f"wb {command}", result_of(command, name)


def result_of(command: str, name: str) -> str:
    """The digest of the file `name`, or of the printed text. SystemExit if the command fails."""
    printed = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n", write_through=True)
    with contextlib.redirect_stdout(printed):
        status = wb(["-q", *command.split()])
    if status:
        raise SystemExit(f"wb {command}: exit status {status}")
    return hashlib.sha256(Path(name).read_bytes() if name else printed.buffer.getvalue()).hexdigest()


def compare(lines: list[str]) -> None:
    """SystemExit with the lines that LIST doesn't have."""
    known = set(LIST.read_text("utf-8").splitlines())
    if more := [line for line in lines if line not in known]:
        raise SystemExit("\n".join([f"not in {LIST.name}:", *more]))
    sys.stderr.write(f"{len(lines)} results are those of {LIST.name}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help=f"compare with {LIST.name}")
    parser.add_argument("--only", default="", metavar="PART", help="only commands that contain this")
    given = parser.parse_args()
    os.environ["COLUMNS"] = "80"
    lines = []
    for command, digest in digests(given.only):
        lines.append(f"{digest}  {command}")
        sys.stdout.write(f"{lines[-1]}\n")
        sys.stdout.flush()
    if given.check:
        compare(lines)


if __name__ == "__main__":
    main()
