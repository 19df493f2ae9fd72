"""Reads the facts that a model declares: architecture, sizes, tokenizer, chat template, quantization. They come from a
GGUF's metadata or the JSON files of a folder, with the same terms for both. Reads no tensor and imports no numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeGuard

import msgspec

from weighbridge.base.ftypes import BY_NUMBER, GUESSED
from weighbridge.base.limits import MIB, TOKENIZER_JSON
from weighbridge.base.records import dataclass
from weighbridge.containers.formats import PIPELINE_INDEX
from weighbridge.io.location import RemotePath
from weighbridge.models.arch.size_keys import SIZE_KEYS
from weighbridge.reports import sidecars
from weighbridge.reports.inspect.adapter_info import AdapterInfo


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """`kind`: BPE, WordPiece, Unigram, SentencePiece ... `pre`: the name of a GGUF's pre-tokenizer."""

    kind: str
    vocab_size: int | None = None
    pre: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Quantization:
    """The packing of weights. `method`: mlx-affine, gptq, awq, fp8, bitsandbytes, mxfp4, ggml ..."""

    method: str
    bits: float | None = None
    group_size: int | None = None
    words: str = ""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """None: not declared."""

    architecture: str | None = None
    family: str | None = None
    name: str | None = None
    kind: str | None = None
    layers: int | None = None
    hidden_size: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    experts: int | None = None
    context_length: int | None = None
    vocab_size: int | None = None
    tokenizer: Tokenizer | None = None
    chat_template: int | None = None  # its length in characters
    quantization: Quantization | None = None
    adapter: AdapterInfo | None = None


# Files with a model's settings; the first that exists counts.
_CONFIGS: Final = ("config.json", "params.json", PIPELINE_INDEX)


# ---- GGUF ----


# llama-vocab.cpp: the meaning of tokenizer.ggml.model
_GGUF_TOKENIZERS: Final = MappingProxyType(
    {
        "llama": "SentencePiece", "gpt2": "BPE", "bert": "WordPiece", "t5": "Unigram", "gemma4": "BPE", "none": "none",
        "rwkv": "RWKV", "plamo2": "PLaMo 2", "plamo3": "PLaMo 3",
    }
)  # fmt: skip


def of_gguf(metadata: Mapping[str, Any]) -> ModelInfo:
    """Returns the facts in a GGUF's metadata."""
    arch = _text(metadata.get("general.architecture"))
    numbers: dict[str, Any] = {size: _largest(metadata.get(f"{arch}.{key.gguf}")) for size, key in SIZE_KEYS.items()}
    template = metadata.get("tokenizer.chat_template")
    tokens = metadata.get("tokenizer.ggml.tokens")
    count = len(tokens) if _is_list(tokens) else None
    numbers["vocab_size"] = numbers["vocab_size"] or count
    tokenizer = None
    if (kind := _text(metadata.get("tokenizer.ggml.model"))) is not None:
        pre = _text(metadata.get("tokenizer.ggml.pre"))
        tokenizer = Tokenizer(_GGUF_TOKENIZERS.get(kind, kind), count, pre, "tokenizer.ggml.*")
    quantization, number = None, metadata.get("general.file_type")
    if isinstance(number, int):
        row = BY_NUMBER.get(number & ~GUESSED)
        name = row.name if row else f"file type {number}"
        quantization = Quantization("ggml", words=name + (" (guessed)" if number & GUESSED else ""))
    return ModelInfo(
        architecture=arch,
        family=arch,
        name=_text(metadata.get("general.name")),
        kind=_text(metadata.get("general.type")),
        **numbers,
        tokenizer=tokenizer,
        chat_template=len(template) if isinstance(template, str) else None,
        quantization=quantization,
    )


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _largest(value: Any) -> int | None:
    """Returns a number, or the largest of a list by layer."""
    if _is_list(value):
        numbers = [v for v in list(value)[:4096] if isinstance(v, int)]
        return max(numbers, default=None)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# ---- folders ----


def of_folder(folder: Path, config: dict[str, Any] | None = None) -> ModelInfo:
    """Returns the facts in config.json, the tokenizer's files and the chat template."""
    if config is None:
        config = next(filter(None, (sidecars.json(folder / name) for name in _CONFIGS)), {})
    text = sidecars.text_of(config)
    numbers: dict[str, Any] = {
        size: next((n for key in keys.config if (n := _largest(text.get(key))) is not None), None)
        for size, keys in SIZE_KEYS.items()
    }
    classes = config.get("architectures")
    template = sidecars.chat_template(folder)
    return ModelInfo(
        architecture=_text(classes[0]) if _is_list(classes) and classes else _text(config.get("_class_name")),
        family=_text(config.get("model_type")),
        name=_text(config.get("_name_or_path")),
        tokenizer=_folder_tokenizer(folder),
        chat_template=None if template is None else len(template),
        quantization=quantization(config),
        **numbers,
    )  # fmt: skip


class _TokenizerModel(msgspec.Struct):
    type: str | None = None
    vocab: msgspec.Raw = msgspec.Raw(b"null")


class _Added(msgspec.Struct):
    id: int


class _TokenizerFile(msgspec.Struct):
    model: _TokenizerModel
    added_tokens: tuple[_Added, ...] | None = None


_COUNTED: Final = 16 * MIB
# The largest remote tokenizer to fetch for its kind and size; the config contains the size too.
_FETCHED: Final = MIB // 2
# Files that define a tokenizer without tokenizer.json.
_TOKENIZERS: Final = (
    ("tokenizer.model", "SentencePiece"), ("spiece.model", "SentencePiece"),
    ("sentencepiece.bpe.model", "SentencePiece"), ("tekken.json", "Tekken"), ("vocab.txt", "WordPiece"),
    ("merges.txt", "BPE"), ("qwen.tiktoken", "tiktoken"), ("tiktoken.model", "tiktoken"),
    ("tokenizer.model.v3", "SentencePiece"),
)  # fmt: skip


def _folder_tokenizer(folder: Path) -> Tokenizer | None:
    path = folder / "tokenizer.json"
    if isinstance(path, RemotePath) and path.is_file() and path.stat().st_size > _FETCHED:
        return Tokenizer("not read", source="tokenizer.json")
    data = sidecars.read(path, TOKENIZER_JSON)
    if data is not None:
        try:
            file = msgspec.json.decode(data, type=_TokenizerFile)
            model = file.model
            vocab = msgspec.json.decode(model.vocab) if len(data) <= _COUNTED else None
        except (ValueError, RecursionError):
            return Tokenizer("unreadable", source="tokenizer.json")
        size = None
        if isinstance(vocab, dict | list):  # added tokens count too: ids start at 0 and have no gaps
            size = max(len(vocab), *(token.id + 1 for token in file.added_tokens or ()), 0)
        return Tokenizer(model.type or "BPE", size, source="tokenizer.json")  # old files have no type: BPE
    return next((Tokenizer(kind, source=name) for name, kind in _TOKENIZERS if (folder / name).is_file()), None)


# ---- quantization ----


def quantization(config: Mapping[str, Any]) -> Quantization | None:
    """Returns a config's quantization settings, or those of its language model."""
    return _quantization(config) or _quantization(sidecars.part_of_text(config))


def _quantization(config: Mapping[str, Any]) -> Quantization | None:
    """MLX writes `quantization` (and a copy without `quant_method`)."""
    mlx = config.get("quantization")
    if isinstance(mlx, Mapping) and "bits" in mlx:
        mode = mlx.get("mode", "affine")
        return _describe(f"mlx-{mode}", mlx.get("bits"), mlx.get("group_size"))
    configured = config.get("quantization_config")
    if not isinstance(configured, Mapping):
        return None
    method = str(
        configured.get("quant_method")
        or configured.get("quant_algo")
        or ("mlx-affine" if "bits" in configured else "unknown")
    )
    bits = configured.get("bits") or configured.get("w_bit") or _bits_of(method, configured)
    group = configured.get("group_size") or configured.get("q_group_size") or configured.get("weight_block_size")
    return _describe(method, bits, group, _text(configured.get("format")) or _text(configured.get("checkpoint_format")))


def _bits_of(method: str, configured: Mapping[str, Any]) -> int | None:
    if method == "bitsandbytes":
        return 4 if configured.get("load_in_4bit") else 8
    groups = configured.get("config_groups")
    if isinstance(groups, Mapping):
        weights = (g.get("weights") for g in groups.values() if isinstance(g, Mapping))
        bits = (w.get("num_bits") for w in weights if isinstance(w, Mapping))
        return next((n for n in bits if isinstance(n, int)), None)
    return {"fp8": 8, "mxfp4": 4, "FP8": 8, "NVFP4": 4, "fbgemm_fp8": 8}.get(method)


def _describe(method: str, bits: Any, group: Any, form: str | None = None) -> Quantization:
    bits = bits if isinstance(bits, int | float) and not isinstance(bits, bool) else None
    size = group if isinstance(group, int) else None
    declared = (
        [method] + ([f"{bits:g} bit"] if bits else []) + ([f"groups of {group}"] if group and group != -1 else [])
    )
    return Quantization(method, bits, size, ", ".join(declared + ([form] if form else [])))
