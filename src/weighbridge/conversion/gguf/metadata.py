"""What goes with the weights: a GGUF's key-values from a model folder, a model folder's files from a GGUF. The tables
and readers are in `models/config`; here they are put together for one conversion."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.dtypes import DType, Kind
from weighbridge.base.dtypes import dtype as dtype_of
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.containers.gguf.container import KV
from weighbridge.containers.gguf.values import kvs
from weighbridge.conversion.dtype_policy import FTYPES, KEPT_FTYPES
from weighbridge.conversion.options import GgufOptions
from weighbridge.conversion.plan.model import Loss
from weighbridge.models.arch.family import Family
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.config import card
from weighbridge.models.config import pooling as sentence
from weighbridge.models.config.general import general_to_gguf
from weighbridge.models.config.mapping import Leading, assemble, config_losses, config_to_gguf, with_tokenizer_keys
from weighbridge.models.jsonfile import decode
from weighbridge.models.tokenizer import from_gguf, from_hf, losses, to_gguf, to_hf
from weighbridge.tensors.nodes import Encode, Node

# The quantization settings of a config whose weights have the names of such a dialect (openai/gpt-oss-20b).
_WHOLE: Final = ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head")
_QUANTIZED: Final = MappingProxyType({"mxfp4": {"modules_to_not_convert": [*_WHOLE], "quant_method": "mxfp4"}})
# Keys that speak of the file and not of the model: a new file says them itself.
_OF_THE_FILE: Final = ("split.no", "split.count", "split.tensors.count")
_ALIGNMENT: Final = "general.alignment"
_FILE_TYPE: Final = "general.file_type"
_MODEL: Final = "tokenizer.ggml.model"
_TOKENS: Final = "tokenizer.ggml.tokens"
_EMBEDDING: Final = "token_embd.weight"
_TYPE_COUNT: Final = "tokenizer.ggml.token_type_count"  # without which llama.cpp runs no BERT
_NO_TOKENIZER: Final = "none"  # llama-vocab.cpp, `load`; conversion/base.py, `_set_vocab_none`


def for_gguf(
    model: Checkpoint, tensors: Mapping[str, Node], wanted: DType, options: GgufOptions, lost: list[Loss],
    lists: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> dict[str, KV]:  # fmt: skip
    """All key-values of a GGUF for a model folder, in the reference converter's order. `lists`: what the model has in
    tensors and a GGUF in keys. What the keys can't say is added to `lost`."""
    place = model.place
    about, unreadable = card.read_card(place.read("README.md"))
    modules = sentence.unheld(place.read)
    lost += [Loss(what) for what in (unreadable, *config_losses(model.config, model.family), *modules) if what]
    generation = _generation(model, lost)
    general = general_to_gguf(
        model.family,
        directory=options.name or place.folder.resolve().name,
        config=model.config,
        shapes={name: node.spec.shape for name, node in tensors.items()},
        generation_config=generation,
        card={**about, "name": options.name} if options.name else about,
    )
    architecture = config_to_gguf(
        model.config, model.family, file_type=file_type(tensors, wanted, model.family),
        pooling=sentence.pooling_type(place.read), generation=generation,
    )  # fmt: skip
    keyed = {key: Leading("arr[f32]", values) for key, values in lists.items()}
    whole = assemble(general, {**keyed, **architecture}, _vocabulary(model, options, generation, lost))
    check_vocabulary(whole, tensors)
    return with_alignment(whole, options.align)


def _generation(model: Checkpoint, lost: list[Loss]) -> dict[str, Any] | None:
    """generation_config.json. One that can't be read costs the defaults of sampling and no more."""
    try:
        return model.json("generation_config.json")
    except FormatError as error:
        lost.append(Loss(f"generation_config.json is left out: {error.reason}"))
        return None


def _vocabulary(
    model: Checkpoint, options: GgufOptions, generation: Mapping[str, Any] | None, lost: list[Loss]
) -> dict[str, KV]:
    """The tokenizer's keys. Without one: "none", the word by which llama.cpp knows that there is nothing to look for,
    and the number of tokens, which it then can't count."""
    if not options.tokenizer:
        lost.append(Loss("left out, as asked: the tokenizer (llama.cpp will take token ids and no text)"))
        size = model.family.effective(model.config).get("vocab_size", model.sizes.get("V"))
        counted = {f"{model.family.gguf}.vocab_size": KV("u32", size)} if isinstance(size, int) else {}
        types = with_tokenizer_keys({_TOKENS: KV("arr[str]", [])}, model.config, model.family).get(_TYPE_COUNT)
        return {**counted, _MODEL: KV("str", _NO_TOKENIZER), **({_TYPE_COUNT: types} if types else {})}
    try:
        rules = model.family.document.tokenizer
        names = model.place.names()
        vocab = from_hf(lambda name: _tokenizer_file(model, name), pre=options.pre, names=names, rules=rules)
    except UnsupportedError as error:
        raise _with_way_out(error) from None
    if options.pre not in (None, vocab.pre):
        kind = f"{vocab.kind.value!r}" + (f" with the pre-tokenizer {vocab.pre}" if vocab.pre else "")
        raise UsageError(f"--pre {options.pre} doesn't apply to this tokenizer ({kind})", hint="leave it out")
    lost += [Loss(what) for what in vocab.losses]
    return with_tokenizer_keys(to_gguf(vocab), model.config, model.family, generation)


def _tokenizer_file(model: Checkpoint, name: str) -> bytes | None:
    """A file of the tokenizer. config.json states the vocabulary size, also where the model class has a default."""
    data = model.texts.get(name) or model.place.read(name, TOKENIZER_JSON)
    size = model.sizes.facts.get("vocab_size")
    if name != "config.json" or data is None or not isinstance(size, int):
        return data
    config: dict[str, Any] = decode(data, name, dict[str, Any])
    text = config.get("text_config")
    parts = [config, *([text] if isinstance(text, Mapping) else ())]
    stated = any(isinstance(part.get("vocab_size"), int) for part in parts)
    return data if stated else json.dumps({**config, "vocab_size": size}).encode()


def check_vocabulary(keys: Mapping[str, KV], tensors: Mapping[str, Node]) -> None:
    """FormatError where the tokens aren't as many as the embedding's rows: llama.cpp doesn't load such a file."""
    tokens, embedding = keys.get(_TOKENS), tensors.get(_EMBEDDING)
    if tokens is not None and embedding is not None and len(tokens.value) != (rows := embedding.spec.shape[0]):
        raise FormatError(
            "the tokenizer doesn't fit the embedding, so llama.cpp would refuse the GGUF", field="tokens",
            expected=rows, found=len(tokens.value),
            hint="get the tokenizer of this model, or leave it out: --no-tokenizer",
        )  # fmt: skip


def _with_way_out(error: UnsupportedError) -> UnsupportedError:
    hint = "leave the tokenizer out: --no-tokenizer"
    return UnsupportedError(error.message, hint=f"{error.hint}; or {hint}" if error.hint else hint)


def products(family: Family) -> list[str]:
    """What a plan says where a GGUF has products of tensors that a folder has apart."""
    if not family.products:
        return []
    names = ", ".join(name.replace("{l}", "N") for name in family.products)
    return [
        f"{names}: products of two tensors each; a folder made from a GGUF has ones and the product, "
        "and computes the same"
    ]


def file_type(tensors: Mapping[str, Node], wanted: DType, family: Family) -> int:
    """`general.file_type`: the type that was asked for, or the block type that tensors came in and were kept in."""
    kept = Counter[str]()
    for node in tensors.values():
        if node.spec.dtype.name in KEPT_FTYPES and not isinstance(node, Encode):
            kept[node.spec.dtype.name] += node.spec.elements
    return (
        KEPT_FTYPES[max(kept, key=lambda name: (kept[name], name))]
        if kept and (wanted.kind is Kind.FLOAT or family.dialects["gguf"].write_packed_first)
        else FTYPES[wanted.name]
    )


def kept_keys(metadata: Mapping[str, Any]) -> dict[str, KV]:
    """A GGUF's keys for another GGUF of the same model."""
    return {key: kv for key, kv in kvs(metadata).items() if key not in _OF_THE_FILE}


def with_file_type(metadata: Mapping[str, KV], wanted: DType) -> dict[str, KV]:
    return {**metadata, _FILE_TYPE: KV("u32", FTYPES[wanted.name])}


def named(metadata: Mapping[str, KV], name: str | None) -> Mapping[str, KV]:
    return metadata if name is None else {**metadata, "general.name": KV("str", name)}


def with_alignment(metadata: Mapping[str, KV], align: int | None) -> dict[str, KV]:
    """The keys with `general.alignment`, which may be stated only by a power of two; 32 needs no key."""
    return dict(metadata) if align is None else {**metadata, _ALIGNMENT: KV("u32", align)}


# ------------------------------------------------------------------------------------------------ back


def for_hf(
    model: Checkpoint, tensors: Mapping[str, Node], tokenizer: bool = True, *, quantized: str | None = None
) -> tuple[dict[str, bytes], list[Loss]]:
    """The files beside a GGUF's tensors in a model folder, and what a GGUF can't tell. `quantized`: the dialect of
    tensors that are written in the codes they came in."""
    found = model.to_hf_config(_main_dtype(tensors))
    declared = {"quantization_config": _QUANTIZED[quantized]} if quantized else {}
    texts = {"config.json": _json({**found.config, **declared})}
    if found.generation is not None:
        texts["generation_config.json"] = _json(found.generation)
    texts |= sentence.sentence_files(model.metadata, model.family.gguf, model.sizes["N"])
    if (readme := card.write_card(model.metadata)) is not None:
        texts["README.md"] = readme
    lost = [Loss(what) for what in found.losses]
    if not tokenizer:
        return texts, [*lost, Loss("left out, as asked: the tokenizer")]
    if "tokenizer.ggml.tokens" not in model.metadata:
        return texts, [*lost, Loss("the GGUF has no vocabulary, so the folder has no tokenizer")]
    _fits(len(model.metadata[_TOKENS]), found.config.get("vocab_size"))
    try:
        files, why = tokenizer_files(model)
    except UnsupportedError as error:
        raise _with_way_out(error) from None
    return {**texts, **files}, [*lost, *why]


def vocabulary_files(model: Checkpoint) -> tuple[dict[str, bytes], list[Loss]]:
    """The files of a GGUF that is a vocabulary and no model: the tokenizer's, and the config where its keys say one."""
    files, lost = tokenizer_files(model)
    try:
        found = model.to_hf_config()
    except WeighbridgeError:
        return files, [*lost, Loss("config.json: the keys of the vocabulary don't say what model it is of")]
    return {"config.json": _json(found.config), **files}, [*lost, *map(Loss, found.losses)]


def tokenizer_files(model: Checkpoint) -> tuple[dict[str, bytes], list[Loss]]:
    """The tokenizer's files for a GGUF's vocabulary, and what they can't tell."""
    vocab, rules = from_gguf(model.metadata), None
    with suppress(UnsupportedError):  # an architecture without a table has no rules of its own
        rules = model.family.document.tokenizer
    return to_hf(vocab, rules), [Loss(f"tokenizer: {what}") for what in losses(vocab)]


def _fits(tokens: int, rows: Any) -> None:
    """A token whose id has no embedding makes a model read beyond its table; llama.cpp doesn't load such a file."""
    if isinstance(rows, int) and tokens > rows:
        raise FormatError(
            "the vocabulary is longer than the embedding", field=_TOKENS, expected=f"<= {rows}", found=tokens,
            hint="leave the tokenizer out: --no-tokenizer; or take the file from where it was published",
        )  # fmt: skip


def retyped(config: Mapping[str, Any], dtype: str) -> bytes:
    """config.json for weights that are all of the type `dtype` now: each key of the type
    names it, and the settings of a quantization are gone. transformers 4 calls the
    key torch_dtype, 5 dtype; both load in the type it names."""
    return _json(_of_type(config, dtype))


def quantized(config: Mapping[str, Any], dtype: str | None, scheme_config: Mapping[str, Any]) -> bytes:
    """config.json for weights quantized as `scheme_config`; `dtype`: of the others, where it was asked for."""
    return _json({**_of_type(config, dtype), "quantization_config": scheme_config})


def _of_type(config: Mapping[str, Any], dtype: str | None) -> dict[str, Any]:
    kept = {key: value for key, value in config.items() if key not in ("quantization", "quantization_config")}
    if isinstance(part := kept.get("text_config"), Mapping):
        kept["text_config"] = _of_type(part, dtype)
    if dtype in (None, "auto"):
        return kept
    return kept | {key: dtype_of(dtype).torch for key in ("torch_dtype", "dtype") if key in config}


def _main_dtype(tensors: Mapping[str, Node]) -> str | None:
    """torch's name of the float type that most elements are in."""
    sizes: dict[DType, int] = {}
    for node in (n for n in tensors.values() if n.spec.dtype.kind is Kind.FLOAT):
        sizes[node.spec.dtype] = sizes.get(node.spec.dtype, 0) + node.spec.elements
    return max(sizes, key=sizes.__getitem__).torch if sizes else None


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
