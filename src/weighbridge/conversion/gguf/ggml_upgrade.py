"""A llama from before GGUF as a GGUF: names, keys and vocabulary as llama.cpp's own converter of these files writes
them (convert_llama_ggml_to_gguf.py), tensors copied where their blocks are today's.

That converter refuses quantized files of GGJT 1 and most of GGJT 2. Here their blocks are made into today's: Q5 by
moving bits, Q4 and Q8 with their scales rounded from F32 to F16, Q4_2 and Q4_3 decoded to F16. Each is reported as what
it is. The number of key-value heads, which the file doesn't say, follows from the shape of wk.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.dtypes import F16, DType, Kind
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.ftypes import BY_NUMBER
from weighbridge.containers.ggml import container as ggml
from weighbridge.containers.gguf.container import KV
from weighbridge.containers.gguf.values import text
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.gguf.metadata import with_alignment
from weighbridge.conversion.options import GgufOptions
from weighbridge.conversion.plan.model import Loss
from weighbridge.models.checkpoint import Checkpoint
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
# File types that no longer exist: Q4_2 and Q4_3, which are decoded.
_GONE: Final = MappingProxyType({5: 1, 6: 1})
_EPS: Final = 5e-6  # between Llama 1's 1e-6 and Llama 2's 1e-5: the reference's own choice
_CONTEXT: Final = 2048
_QUANTIZATION: Final = 2  # GGML_QNT_VERSION since 2023-05-19
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_SPECIAL: Final = ((b"<unk>", _UNKNOWN), (b"<s>", _CONTROL), (b"</s>", _CONTROL))
_BYTES: Final = range(3, 259)  # ids of the single bytes


def tensors(model: Checkpoint, wanted: str | None) -> tuple[dict[str, Node], list[Loss], dict[str, DType]]:
    """Tensors by their GGUF names, in file order; their losses; the target type of each."""
    header = _header(model)
    if header.form.model != "llama":
        raise UnsupportedError(
            f"{model.place.path} is a {header.form.model} model of ggml's examples, which llama.cpp can't run",
            hint="convert it to safetensors, names and shapes kept",
        )
    quantized = any(e.dtype.block > 1 for e in model.index)
    if header.generation == 0 and quantized:
        raise UnsupportedError(
            f"{model.place.path}: quantized before blocks had versions; two layouts were in use, and the file doesn't "
            "say which", hint="upgrade an unquantized file of the model",
        )  # fmt: skip
    named: dict[str, Node] = {}
    losses: list[Loss] = []
    types: dict[str, DType] = {}
    for name, node in model.stored.items():
        new = _name(name, header.sizes["n_layer"], model)
        named[new], types[new] = _node(new, node, wanted, losses)
    return named, losses, types


def _node(name: str, node: Node, wanted: str | None, losses: list[Loss]) -> tuple[Node, DType]:
    dtype = node.spec.dtype
    if wanted not in (None, "auto"):
        return node, dtype_policy.gguf_dtype(name, node.spec, dtype_policy.gguf_wanted(wanted, ()))
    if dtype not in legacy_blocks.DECODED:
        return node, dtype
    if legacy_blocks.current_type(dtype) is None:
        losses.append(Loss(f"decoded from {dtype}, which no longer exists, to {F16}", name))
        return node, F16
    made = upgrade_blocks(node)
    if not legacy_blocks.exact(dtype):
        losses.append(Loss("its scales are rounded from F32 to F16 (off by 1/2048 at most)", name))
    return made, made.spec.dtype


def _name(name: str, layers: int, model: Checkpoint) -> str:
    if name in WHOLE:
        return WHOLE[name]
    front, _, rest = name.partition(".")
    number, _, part = rest.partition(".")
    if front == "layers" and part in LAYER and number.isdecimal() and int(number) < layers:
        return f"blk.{int(number)}.{LAYER[part]}"
    raise UnsupportedError(f"{model.place.path}: {name!r} isn't a tensor of a llama")


def _header(model: Checkpoint) -> ggml.GgmlHeader:
    return ggml.read_header(model.index.files[0])


def keys(model: Checkpoint, named: Mapping[str, Node], options: GgufOptions, notes: list[str]) -> dict[str, KV]:
    """The key-values, in the reference's order. Values that the file lacks come from the options, and are reported."""
    header = _header(model)
    sizes = header.sizes
    if options.rms_eps is None:
        notes.append(f"the file doesn't say its RMS epsilon: {_EPS} (--rms-eps 1e-6 for Llama 1, 1e-5 for Llama 2)")
    if options.context_length is None:
        notes.append(f"the file doesn't say its context length: {_CONTEXT} (--context-length 4096 for Llama 2)")
    heads = sizes["n_head"]
    if not heads or sizes["n_embd"] % heads or not sizes["n_embd"]:
        raise FormatError("heads and embedding don't fit", path=str(model.place.path), found=(heads, sizes["n_embd"]))
    width = sizes["n_embd"] // heads
    shapes = {name: node.spec.shape for name, node in named.items()}
    _check_parts(model, sizes, shapes)
    ftype = sizes["ftype"] % 1000
    words = f"converted from legacy {header.kind.upper()}v{header.version or 1} {_FTYPES.get(ftype, ftype)} format"
    kept = (
        dtype_policy.FTYPES[dtype_policy.gguf_wanted(options.dtype, ()).name]
        if options.dtype
        else _GONE.get(ftype, ftype)
    )
    made = {
        "general.architecture": KV("str", "llama"),
        "general.name": KV("str", options.name or model.place.weights[0].name),
        "general.description": KV("str", words),
        "general.file_type": KV("u32", kept),
        **_quantization(named),
        "llama.context_length": KV("u32", options.context_length or _CONTEXT),
        "llama.embedding_length": KV("u32", sizes["n_embd"]),
        "llama.block_count": KV("u32", sizes["n_layer"]),
        "llama.feed_forward_length": KV("u32", shapes["blk.0.ffn_gate.weight"][0]),
        "llama.rope.dimension_count": KV("u32", width),
        "llama.attention.head_count": KV("u32", heads),
        "llama.attention.head_count_kv": KV("u32", shapes["blk.0.attn_k.weight"][0] // width),
        "llama.attention.layer_norm_rms_epsilon": KV("f32", _EPS if options.rms_eps is None else options.rms_eps),
        **_vocabulary(model, header),
    }
    return with_alignment(made, options.align)


def _quantization(named: Mapping[str, Node]) -> dict[str, KV]:
    """The version of the blocks, which the reference leaves out and llama.cpp's readers ask for."""
    quantized = any(node.spec.dtype.kind is Kind.BLOCK for node in named.values())
    return {"general.quantization_version": KV("u32", _QUANTIZATION)} if quantized else {}


def _check_parts(model: Checkpoint, sizes: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Whether this is a whole model: large ones came in several files, each with a part of every matrix."""
    path = str(model.place.path)
    layers = [f"blk.{i}.{part}" for i in range(min(sizes["n_layer"], len(shapes))) for part in LAYER.values()]
    missing = [name for name in (*WHOLE.values(), *layers) if name not in shapes]
    if missing:
        raise FormatError(f"{len(missing)} tensors are missing", path=path, found=f"no {missing[0]}")
    whole = (sizes["n_vocab"], sizes["n_embd"])
    if shapes["token_embd.weight"] != whole:
        hint = "join the parts with the tools of the time, or start from the original model"
        raise UnsupportedError(
            f"{path}: the embeddings are {shapes['token_embd.weight']}, not {whole}: one of several parts", hint=hint
        )


def _vocabulary(model: Checkpoint, header: ggml.GgmlHeader) -> dict[str, KV]:
    items = ggml.vocabulary(model.index.files[0], header)
    if len(items) < len(_SPECIAL):
        raise FormatError("the vocabulary is too short", path=str(model.place.path), found=len(items))
    tokens, types = zip(*(_token(i, raw) for i, (raw, _) in enumerate(items)), strict=True)
    return {
        "tokenizer.ggml.model": KV("str", "llama"),
        "tokenizer.ggml.pre": KV("str", "default"),
        "tokenizer.ggml.tokens": KV("arr[str]", [text(t) for t in tokens]),
        "tokenizer.ggml.scores": KV("arr[f32]", [score for _, score in items]),
        "tokenizer.ggml.token_type": KV("arr[i32]", list(types)),
        "tokenizer.ggml.unknown_token_id": KV("u32", 0),
        "tokenizer.ggml.bos_token_id": KV("u32", 1),
        "tokenizer.ggml.eos_token_id": KV("u32", 2),
    }


def _token(number: int, raw: bytes) -> tuple[bytes, int]:
    """A token's text and type: spaces become the sign that SentencePiece writes for them."""
    if number < len(_SPECIAL):
        return _SPECIAL[number]
    if not raw:
        return raw, _CONTROL
    if number in _BYTES and len(raw) == 1:
        return b"<0x%02X>" % raw[0], _BYTE
    return raw.replace(b" ", "\u2581".encode()), _NORMAL
