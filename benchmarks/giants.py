"""What planning costs for the largest published models: sparse folders of their true shapes, and no weights.

    python benchmarks/giants.py [--root FOLDER] [--only MODEL ...] [--wb COMMAND]

Each folder has the names, types and shapes of a published checkpoint; its data are holes that take no disk. The
tokenizers are made up, with as many tokens and merges as the published ones. For every command: CPU seconds of the
process and its children, and the peak of resident memory, as the system accounts them. A loop of plain Python is timed
beside them, since CPU seconds depend on the machine and on what else runs there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Span = tuple[str, str, tuple[int, ...]]  # name, safetensors type, shape
_WIDTH = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4}


class Deepseek(NamedTuple):
    """The sizes in which DeepSeek V3 and Kimi K2 differ. `mtp`: layers behind the last."""

    model_type: str
    heads: int
    experts: int
    dense: int
    vocab: int
    mtp: int


class Giant(NamedTuple):
    """A published model: its config, the tensors of each of its files, its tokenizer as (tokens, merges)."""

    config: dict[str, Any]
    files: Callable[[], Iterator[list[Span]]]
    tokenizer: tuple[int, int] | None
    tensors: int


# ---- DeepSeek V3 and Kimi K2: FP8 in blocks of 128 x 128 ----------------------------------------------------------

_HIDDEN, _DENSE, _EXPERT, _LAYERS = 7168, 18432, 2048, 61
_QUERY, _KV, _NOPE, _ROPE, _VALUE = 1536, 512, 128, 64, 128


def _fp8(name: str, rows: int, columns: int) -> Iterator[Span]:
    yield f"{name}.weight", "F8_E4M3", (rows, columns)
    yield f"{name}.weight_scale_inv", "F32", (-(-rows // 128), -(-columns // 128))


def _mlp(name: str, width: int) -> Iterator[Span]:
    yield from _fp8(f"{name}.gate_proj", width, _HIDDEN)
    yield from _fp8(f"{name}.up_proj", width, _HIDDEN)
    yield from _fp8(f"{name}.down_proj", _HIDDEN, width)


def _attention(name: str, heads: int) -> Iterator[Span]:
    yield from _fp8(f"{name}.q_a_proj", _QUERY, _HIDDEN)
    yield f"{name}.q_a_layernorm.weight", "BF16", (_QUERY,)
    yield from _fp8(f"{name}.q_b_proj", heads * (_NOPE + _ROPE), _QUERY)
    yield from _fp8(f"{name}.kv_a_proj_with_mqa", _KV + _ROPE, _HIDDEN)
    yield f"{name}.kv_a_layernorm.weight", "BF16", (_KV,)
    yield from _fp8(f"{name}.kv_b_proj", heads * (_NOPE + _VALUE), _KV)
    yield from _fp8(f"{name}.o_proj", _HIDDEN, heads * _VALUE)


def _deepseek_layer(sizes: Deepseek, number: int) -> Iterator[Span]:
    layer = f"model.layers.{number}"
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{layer}.{norm}.weight", "BF16", (_HIDDEN,)
    yield from _attention(f"{layer}.self_attn", sizes.heads)
    if number < sizes.dense:
        yield from _mlp(f"{layer}.mlp", _DENSE)
        return
    yield f"{layer}.mlp.gate.weight", "BF16", (sizes.experts, _HIDDEN)
    yield f"{layer}.mlp.gate.e_score_correction_bias", "F32", (sizes.experts,)
    for expert in range(sizes.experts):
        yield from _mlp(f"{layer}.mlp.experts.{expert}", _EXPERT)
    yield from _mlp(f"{layer}.mlp.shared_experts", _EXPERT)


def _mtp_layer(sizes: Deepseek, number: int) -> Iterator[Span]:
    layer = f"model.layers.{number}"
    yield f"{layer}.embed_tokens.weight", "BF16", (sizes.vocab, _HIDDEN)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        yield f"{layer}.{norm}.weight", "BF16", (_HIDDEN,)
    yield f"{layer}.shared_head.head.weight", "BF16", (sizes.vocab, _HIDDEN)
    yield f"{layer}.eh_proj.weight", "BF16", (_HIDDEN, 2 * _HIDDEN)
    yield from _deepseek_layer(sizes, number)


def _deepseek_files(sizes: Deepseek) -> Iterator[list[Span]]:
    for number in range(_LAYERS):
        spans = list(_deepseek_layer(sizes, number))
        if number == 0:
            spans.insert(0, ("model.embed_tokens.weight", "BF16", (sizes.vocab, _HIDDEN)))
        if number == _LAYERS - 1:
            spans += [("model.norm.weight", "BF16", (_HIDDEN,)), ("lm_head.weight", "BF16", (sizes.vocab, _HIDDEN))]
        yield spans
    for number in range(_LAYERS, _LAYERS + sizes.mtp):
        yield list(_mtp_layer(sizes, number))


def _deepseek(sizes: Deepseek, tokenizer: tuple[int, int] | None, tensors: int) -> Giant:
    yarn = {"type": "yarn", "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096}  # fmt: skip
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": sizes.model_type, "hidden_size": _HIDDEN,
        "intermediate_size": _DENSE, "moe_intermediate_size": _EXPERT, "vocab_size": sizes.vocab,
        "num_hidden_layers": _LAYERS, "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.heads,
        "q_lora_rank": _QUERY, "kv_lora_rank": _KV, "qk_nope_head_dim": _NOPE, "qk_rope_head_dim": _ROPE,
        "v_head_dim": _VALUE, "n_routed_experts": sizes.experts, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "first_k_dense_replace": sizes.dense, "moe_layer_freq": 1, "n_group": 8 if sizes.mtp else 1,
        "topk_group": 4 if sizes.mtp else 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": 163840, "hidden_act": "silu", "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "rope_scaling": yarn, "num_nextn_predict_layers": sizes.mtp, "bos_token_id": 0,
        "eos_token_id": 1,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                "weight_block_size": [128, 128]},
    }  # fmt: skip
    return Giant(config, lambda: _deepseek_files(sizes), tokenizer, tensors)


# ---- gpt-oss: experts stacked, in MXFP4 -----------------------------------------------------------------------------


def _gpt_oss_layer(number: int, hidden: int = 2880, experts: int = 128) -> Iterator[Span]:
    layer = f"model.layers.{number}"
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{layer}.{norm}.weight", "BF16", (hidden,)
    for part, rows, columns in (
        ("q_proj", 4096, hidden), ("k_proj", 512, hidden), ("v_proj", 512, hidden), ("o_proj", hidden, 4096),
    ):  # fmt: skip
        yield f"{layer}.self_attn.{part}.weight", "BF16", (rows, columns)
        yield f"{layer}.self_attn.{part}.bias", "BF16", (rows,)
    yield f"{layer}.self_attn.sinks", "BF16", (64,)
    yield f"{layer}.mlp.router.weight", "BF16", (experts, hidden)
    yield f"{layer}.mlp.router.bias", "BF16", (experts,)
    for part, rows in (("gate_up_proj", 2 * hidden), ("down_proj", hidden)):
        yield f"{layer}.mlp.experts.{part}_blocks", "U8", (experts, rows, hidden // 32, 16)
        yield f"{layer}.mlp.experts.{part}_scales", "U8", (experts, rows, hidden // 32)
        yield f"{layer}.mlp.experts.{part}_bias", "BF16", (experts, rows)


def _gpt_oss_files() -> Iterator[list[Span]]:
    ends: list[Span] = [
        ("model.embed_tokens.weight", "BF16", (201088, 2880)), ("model.norm.weight", "BF16", (2880,)),
        ("lm_head.weight", "BF16", (201088, 2880)),
    ]  # fmt: skip
    layers = [span for number in range(36) for span in _gpt_oss_layer(number)]
    step = -(-len(layers) // 15)
    for at in range(0, len(layers), step):
        yield layers[at : at + step] + (ends if at + step >= len(layers) else [])


_GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
    "num_local_experts": 128, "num_experts_per_tok": 4, "experts_per_token": 4, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18, "max_position_embeddings": 131072,
    "initial_context_length": 4096, "rms_norm_eps": 1e-5, "rope_theta": 150000, "attention_bias": True,
    "hidden_act": "silu", "swiglu_limit": 7.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                     "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens", "lm_head"]},
    "eos_token_id": 200002, "pad_token_id": 199999,
}  # fmt: skip

GIANTS = {
    "kimi-k2": _deepseek(Deepseek("kimi_k2", 64, 384, 1, 163840, 0), None, 139_583),
    "deepseek-v3": _deepseek(Deepseek("deepseek_v3", 128, 256, 3, 129280, 1), (128_000, 127_741), 91_991),
    "gpt-oss-120b": Giant(_GPT_OSS, _gpt_oss_files, (199_998, 446_189), 687),
}


# ---- files ----------------------------------------------------------------------------------------------------------


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * _WIDTH[dtype]


def sparse(path: Path, spans: Iterable[Span]) -> list[str]:
    """A safetensors file whose data is one hole; the names of its tensors."""
    header, at = {}, 0
    for name, dtype, shape in spans:
        end = at + _nbytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + at)
    return list(header)


def tokenizer(tokens: int, merges: int) -> dict[str, Any]:
    """A byte-level BPE tokenizer of random tokens, each made of two earlier ones, in several ways where it can be."""
    source = random.Random(0)
    words = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    made, pairs = dict.fromkeys(words), dict[tuple[str, str], None]()
    while len(words) < tokens:
        # mostly short ones: so they have many parts, as those of a language
        a, b = words[int(len(words) * source.random() ** 3)], words[int(len(words) * source.random() ** 6)]
        if a + b not in made and len(a + b) <= 16:
            made[a + b] = None
            words.append(a + b)
            pairs[a, b] = None
    for word in words:
        splits = ((word[:n], word[n:]) for n in range(1, len(word)))
        pairs |= dict.fromkeys((a, b) for a, b in splits if a in made and b in made and len(pairs) < merges)
    added = [{"id": tokens, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True}]  # fmt: skip
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {word: n for n, word in enumerate(words)}, "merges": [list(pair) for pair in pairs]}  # fmt: skip
    split = {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]}  # fmt: skip # noqa: E501
    return {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": split, "model": model,
            "post_processor": None, "decoder": {"type": "ByteLevel"}}  # fmt: skip


def make(folder: Path, giant: Giant) -> Path:
    """The model's folder, made where it isn't there yet."""
    if (folder / "config.json").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    files = list(giant.files())
    where: dict[str, str] = {}
    for number, spans in enumerate(files, 1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        where |= dict.fromkeys(sparse(folder / name, spans), name)
    if len(where) != giant.tensors:
        raise SystemExit(f"{folder.name}: {len(where):,} tensors, the published model has {giant.tensors:,}")
    total = sum(_nbytes(*span[1:]) for spans in files for span in spans)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if giant.tokenizer:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer(*giant.tokenizer)))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(giant.config))
    return folder


# ---- measuring ------------------------------------------------------------------------------------------------------


def commands(folder: Path, giant: Giant) -> dict[str, list[str]]:
    """What is measured, by name: the arguments of `wb`."""
    source, target = str(folder), str(folder) + ".gguf"
    text = ["--pre", "gpt-2"] if giant.tokenizer else ["--no-tokenizer"]
    return {
        "inspect": ["inspect", source],
        "fit": ["fit", source, "--device", "4000GB"],
        "convert --dry-run": ["convert", source, target, "--dtype", "bf16", *text, "--dry-run"],
        "quantize --dry-run": ["quantize", source, target, "Q4_K_M", *text, "--allow-requantize", "--dry-run"],
    }


def measure(command: list[str]) -> tuple[float, int]:
    """CPU seconds and peak resident bytes of a process."""
    with open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen(command, stdout=nowhere, stderr=subprocess.PIPE)
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{errors.decode(errors='replace')}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def speed() -> float:
    """CPU seconds of three million additions in plain Python."""
    start, total = time.process_time(), 0
    for n in range(3_000_000):
        total += n
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(tempfile.gettempdir()) / "weighbridge-giants")
    parser.add_argument("--only", nargs="+", choices=GIANTS, default=list(GIANTS))
    parser.add_argument("--wb", default="wb", help="the command to measure [wb]")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"the loop takes {speed():.2f} s; the least seconds and the highest peak of {options.rounds} rounds")
    print(f"{'model':14} {'command':20} {'CPU s':>7} {'peak MB':>8}")
    for name in options.only:
        folder = make(options.root / name, GIANTS[name])
        for what, arguments in commands(folder, GIANTS[name]).items():
            samples = [measure([*shlex.split(options.wb), *arguments]) for _ in range(options.rounds)]
            print(f"{name:14} {what:20} {min(s for s, _ in samples):7.2f} {max(m for _, m in samples) / 1e6:8.0f}")


if __name__ == "__main__":
    main()
