"""Upgrades a LLaMA file from before GGUF to a GGUF.

Names, keys and vocabulary match llama.cpp's converter of these files (convert_llama_ggml_to_gguf.py). Blocks that are
still current are copied. That converter refuses quantized files of GGJT 1 and most of GGJT 2. Here, Q5 blocks are
upgraded by moving bits, Q4 and Q8 by rounding scales from F32 to F16, and Q4_2 and Q4_3 are decoded to F16; each is
reported as a loss. The file lacks the number of key-value heads, which follows from the shape of wk.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.dtypes import F16, DType, DTypeLike, Kind
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.ftypes import BY_NUMBER
from weighbridge.base.words import plural
from weighbridge.containers.ggml import container as ggml
from weighbridge.containers.gguf.container import KV
from weighbridge.containers.gguf.values import text
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.gguf.metadata import with_alignment
from weighbridge.conversion.options import GgufOptions
from weighbridge.conversion.result import Loss
from weighbridge.models.model import OpenModel
from weighbridge.tensors.nodes import Node, upgrade_blocks
from weighbridge.tensors.reference import legacy_blocks

#: The parts of Meta's tensor names -> GGUF names.
WHOLE: Final = MappingProxyType(
    {
        "tok_embeddings.weight": "token_embd.weight",
        "norm.weight": "output_norm.weight",
        "output.weight": "output.weight",
    }
)
LAYER: Final = MappingProxyType(
    {
        "attention.wq.weight": "attn_q.weight", "attention.wk.weight": "attn_k.weight",
        "attention.wv.weight": "attn_v.weight", "attention.wo.weight": "attn_output.weight",
        "attention_norm.weight": "attn_norm.weight", "feed_forward.w1.weight": "ffn_gate.weight",
        "feed_forward.w2.weight": "ffn_down.weight", "feed_forward.w3.weight": "ffn_up.weight",
        "ffn_norm.weight": "ffn_norm.weight",
    }
)  # fmt: skip
# The text of `general.description`, by file type.
_FTYPES: Final = MappingProxyType(
    {n: f"{'MOSTLY' if n else 'ALL'}_{row.name}" for n, row in BY_NUMBER.items()} | {4: "MOSTLY_Q4_1_SOME_F16"}
)
# File types that no longer exist, Q4_2 and Q4_3 -> that of their decoded tensors.
_DECODED: Final = MappingProxyType({5: 1, 6: 1})
_EPS: Final = 5e-6  # the reference's choice, between Llama 1's 1e-6 and Llama 2's 1e-5
_CONTEXT: Final = 2048
_QUANTIZATION: Final = 2  # GGML_QNT_VERSION since 2023-05-19
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_SPECIAL: Final = ((b"<unk>", _UNKNOWN), (b"<s>", _CONTROL), (b"</s>", _CONTROL))
_BYTES: Final = range(3, 259)  # ids of single bytes


def tensors(model: OpenModel, requested: DTypeLike | None) -> tuple[dict[str, Node], list[Loss], dict[str, DType]]:
    """Tensors by their GGUF names, in file order; their losses; the target type of each."""
    header = ggml.read_header(model.index.files[0])
    if header.form.model != "llama":
        whisper = "whisper.cpp runs it: whisper-cli -m FILE; wb convert SRC DST/ --to hf writes a transformers folder"
        raise UnsupportedError(
            f"{model.place.path} is a {header.form.model} model, which llama.cpp can't run",
            hint=whisper if header.form.model == "whisper" else "wb convert SRC DST.safetensors keeps names and shapes",
        )
    quantized = any(e.dtype.block > 1 for e in model.index)
    if header.generation == 0 and quantized:
        raise UnsupportedError(
            f"{model.place.path}: quantized before blocks had versions. Two layouts were in use, and the file doesn't "
            "specify which", hint="upgrade an unquantized file of the model",
        )  # fmt: skip
    named: dict[str, Node] = {}
    losses: list[Loss] = []
    types: dict[str, DType] = {}
    for name, node in model.stored.items():
        if (new := _gguf_name(name, header.sizes["n_layer"])) is None:
            raise UnsupportedError(f"{model.place.path}: {name!r} isn't a tensor of a llama")
        dtype = node.spec.dtype
        if requested not in (None, "auto"):
            types[new] = dtype_policy.gguf_dtype(new, node.spec, dtype_policy.requested_gguf_dtype(requested, ()))
        elif dtype not in legacy_blocks.DECODED:
            types[new] = dtype
        elif legacy_blocks.current_type(dtype) is None:
            losses.append(Loss(f"decoded from {dtype}, which no longer exists, to {F16}", new))
            types[new] = F16
        else:
            if not legacy_blocks.exact(dtype):
                losses.append(Loss("its scales are rounded from F32 to F16 (off by 1/2048 at most)", new))
            node = upgrade_blocks(node)
            types[new] = node.spec.dtype
        named[new] = node
    return named, losses, types


def _gguf_name(name: str, layers: int) -> str | None:
    """The GGUF name of one of Meta's tensors; None for an unknown one."""
    if name in WHOLE:
        return WHOLE[name]
    stem, number, part = (*name.split(".", 2), "", "")[:3]
    if stem == "layers" and part in LAYER and number.isdecimal() and int(number) < layers:
        return f"blk.{int(number)}.{LAYER[part]}"
    return None


def keys(model: OpenModel, named: Mapping[str, Node], options: GgufOptions, notes: list[str]) -> dict[str, KV]:
    """The key-values, in the reference's order. Values that the file lacks come from the options, with a note each."""
    header = ggml.read_header(model.index.files[0])
    sizes = header.sizes
    if options.rms_eps is None:
        notes.append(f"the file lacks the RMS epsilon: {_EPS} (--rms-eps 1e-6 for Llama 1, 1e-5 for Llama 2)")
    if options.context_length is None:
        notes.append(f"the file lacks the context length: {_CONTEXT} (--context-length 4096 for Llama 2)")
    heads = sizes["n_head"]
    if not heads or sizes["n_embd"] % heads or not sizes["n_embd"]:
        raise FormatError("heads and embedding don't fit", path=str(model.place.path), found=(heads, sizes["n_embd"]))
    width = sizes["n_embd"] // heads
    shapes = {name: node.spec.shape for name, node in named.items()}
    _check_parts(model, sizes, shapes)
    ftype = sizes["ftype"] % 1000
    version = f"{header.kind.upper()}v{header.version or 1}"
    file_type = _DECODED.get(ftype, ftype)
    if options.dtype:
        file_type = dtype_policy.FTYPES[dtype_policy.requested_gguf_dtype(options.dtype, ()).name]
    # the version of the blocks, which the reference omits and llama.cpp's readers require
    quantized = any(node.spec.dtype.kind is Kind.BLOCK for node in named.values())
    items = ggml.vocabulary(model.index.files[0], header)
    if len(items) < len(_SPECIAL):
        raise FormatError("the vocabulary is too short", path=str(model.place.path), found=len(items))
    tokens, types = [], []
    for number, (raw, _) in enumerate(items):
        if number < len(_SPECIAL):
            token, kind = _SPECIAL[number]
        elif number in _BYTES and len(raw) == 1:
            token, kind = b"<0x%02X>" % raw[0], _BYTE
        else:  # with SentencePiece's sign for spaces
            token, kind = raw.replace(b" ", "\u2581".encode()), _NORMAL if raw else _CONTROL
        tokens.append(text(token))
        types.append(kind)
    metadata = {
        "general.architecture": KV("str", "llama"),
        "general.name": KV("str", options.name or model.place.weights[0].name),
        "general.description": KV("str", f"converted from legacy {version} {_FTYPES.get(ftype, ftype)} format"),
        "general.file_type": KV("u32", file_type),
        **({"general.quantization_version": KV("u32", _QUANTIZATION)} if quantized else {}),
        "llama.context_length": KV("u32", options.context_length or _CONTEXT),
        "llama.embedding_length": KV("u32", sizes["n_embd"]),
        "llama.block_count": KV("u32", sizes["n_layer"]),
        "llama.feed_forward_length": KV("u32", shapes["blk.0.ffn_gate.weight"][0]),
        "llama.rope.dimension_count": KV("u32", width),
        "llama.attention.head_count": KV("u32", heads),
        "llama.attention.head_count_kv": KV("u32", shapes["blk.0.attn_k.weight"][0] // width),
        "llama.attention.layer_norm_rms_epsilon": KV("f32", _EPS if options.rms_eps is None else options.rms_eps),
        "tokenizer.ggml.model": KV("str", "llama"),
        "tokenizer.ggml.pre": KV("str", "default"),
        "tokenizer.ggml.tokens": KV("arr[str]", tokens),
        "tokenizer.ggml.scores": KV("arr[f32]", [score for _, score in items]),
        "tokenizer.ggml.token_type": KV("arr[i32]", types),
        "tokenizer.ggml.unknown_token_id": KV("u32", 0),
        "tokenizer.ggml.bos_token_id": KV("u32", 1),
        "tokenizer.ggml.eos_token_id": KV("u32", 2),
    }
    return with_alignment(metadata, options.align)


def _check_parts(model: OpenModel, sizes: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises an error unless this is a whole model: large ones had several files, each with a part of every matrix."""
    path = str(model.place.path)
    layers = [f"blk.{i}.{part}" for i in range(min(sizes["n_layer"], len(shapes))) for part in LAYER.values()]
    missing = [name for name in (*WHOLE.values(), *layers) if name not in shapes]
    if missing:
        raise FormatError(f"{plural(len(missing), 'tensor', 'are')} missing", path=path, found=f"no {missing[0]}")
    expected, actual = (sizes["n_vocab"], sizes["n_embd"]), shapes["token_embd.weight"]
    if actual != expected:
        hint = "join the parts with the tools of the time, or start from the original model"
        raise UnsupportedError(f"{path}: the embeddings are {actual}, not {expected}: one of several parts", hint=hint)
