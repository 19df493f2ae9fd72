"""Builds a GGUF's key-values from a model folder, and a model folder's small files from a GGUF.

The tables and readers are in `models/config`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.dtypes import DType, DTypeLike, Kind
from weighbridge.base.dtypes import dtype as dtype_of
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.containers.gguf.container import KV
from weighbridge.containers.gguf.values import kvs
from weighbridge.conversion.dtype_policy import FTYPES, KEPT_FTYPES
from weighbridge.conversion.options import GgufOptions
from weighbridge.conversion.plan import probe
from weighbridge.conversion.result import Loss
from weighbridge.models.arch.expand import shape_of
from weighbridge.models.arch.family import Family
from weighbridge.models.config import card
from weighbridge.models.config import pooling as sentence
from weighbridge.models.config.general import general_to_gguf
from weighbridge.models.config.losses import config_losses
from weighbridge.models.config.mapping import HfConfig, assemble, config_to_gguf, with_numbers, with_tokenizer_keys
from weighbridge.models.config.reranker import mark, pooling_of
from weighbridge.models.jsonfile import decode
from weighbridge.models.model import OpenModel
from weighbridge.models.tokenizer.gguf import from_gguf, to_gguf
from weighbridge.models.tokenizer.vocab import Vocab
from weighbridge.tensors.nodes import Encode, LogicalTensor, Node

#: Keys of config.json that describe how weights are stored: their type, their packing.
WEIGHT_TYPES: Final = ("torch_dtype", "dtype")
PACKINGS: Final = ("quantization", "quantization_config")
# The quantization settings of a config whose weights have the names of a packed dialect (openai/gpt-oss-20b).
_UNQUANTIZED: Final = ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head")
_QUANTIZED: Final = MappingProxyType({"mxfp4": {"modules_to_not_convert": [*_UNQUANTIZED], "quant_method": "mxfp4"}})
# Keys that describe one file of a set, so a new file doesn't inherit them.
_FILE_KEYS: Final = ("split.no", "split.count", "split.tensors.count")
_ALIGNMENT: Final = "general.alignment"
_FILE_TYPE: Final = "general.file_type"
_MODEL: Final = "tokenizer.ggml.model"
_TOKENS: Final = "tokenizer.ggml.tokens"
EMBEDDING: Final = "token_embd.weight"
_TYPE_COUNT: Final = "tokenizer.ggml.token_type_count"  # llama.cpp runs no BERT without it
_NO_TOKENIZER: Final = "none"  # llama-vocab.cpp, `load`; conversion/base.py, `_set_vocab_none`


def for_gguf(
    model: OpenModel, tensors: Mapping[str, Node], dtype: DType, options: GgufOptions, losses: list[Loss],
    numbers: Mapping[str, Sequence[float] | Sequence[int] | float] = MappingProxyType({}),
    untrained: Sequence[int] = (),
    target: OpenModel | None = None,
) -> dict[str, KV]:  # fmt: skip
    """All key-values of a GGUF for a model folder, in the reference converter's order.

    `dtype`: the type requested for matrices. `numbers`: values that the model has in tensors and a GGUF in keys.
    `untrained`: see `untrained_tokens`. `target`: the model that a draft model drafts for. Losses are added to
    `losses`.
    """
    place = model.place
    readme, unreadable = card.read_card(place.read("README.md"))
    dense = sentence.dense_tensors(model.family)
    hint = "; --dense-modules writes it" if dense and options.dense_modules is None else ""
    modules = sentence.unheld(place.read, [folder for folder, name in dense.items() if name in tensors], hint)
    losses += [Loss(unreadable)] if unreadable else []
    losses += [Loss(text, effect="results") for text in (*config_losses(model.config, model.family), *modules)]
    generation = None
    try:
        generation = model.json("generation_config.json")
    except FormatError as error:  # without it, only defaults of sampling are lost
        losses.append(Loss(f"generation_config.json is left out: {error.reason}"))
    general = general_to_gguf(
        model.family,
        directory=options.name or place.title,
        config=model.config,
        shapes={name: node.spec.shape for name, node in tensors.items()},
        generation_config=generation,
        card={**readme, "name": options.name} if options.name else readme,
    )
    architecture = config_to_gguf(
        model.config, model.family, file_type=file_type(tensors, dtype, model.family),
        pooling=pooling_of(model) if options.rerank is None else sentence.pooling_type(place.read),
        generation=generation, untrained=untrained,
    )  # fmt: skip
    architecture = with_numbers(architecture, numbers)
    keys = assemble(general, architecture, _vocabulary_keys(model, options, generation, losses, target))
    check_vocabulary(keys, tensors)
    return with_alignment(keys, options.align)


def _vocabulary_keys(
    model: OpenModel, options: GgufOptions, generation: Mapping[str, Any] | None, losses: list[Loss],
    target: OpenModel | None = None,
) -> dict[str, KV]:  # fmt: skip
    """The tokenizer's keys; `target`: the model whose tokenizer it is, if another. Without one: llama.cpp's name for
    this, and the number of tokens."""
    if has_no_tokenizer(model.family):
        if options.pre is not None:
            raise UsageError(f"--pre {options.pre} doesn't apply: the model has no tokenizer", hint="leave it out")
        return {_MODEL: KV("str", _NO_TOKENIZER)}
    if not options.tokenizer:
        losses.append(Loss("left out, as asked: the tokenizer (llama.cpp will take token ids and no text)"))
        size = model.family.effective(model.config).get("vocab_size", model.sizes.get("V"))
        if model.family.document.tokenizer is not None and model.family.document.tokenizer.codes:  # among the tokens
            size = shape_of(model.family.rows["embed"], model.sizes)[0]
        count = {f"{model.family.gguf}.vocab_size": KV("u32", size)} if isinstance(size, int) else {}
        types = with_tokenizer_keys({_TOKENS: KV("arr[str]", [])}, model.config, model.family).get(_TYPE_COUNT)
        return {**count, _MODEL: KV("str", _NO_TOKENIZER), **({_TYPE_COUNT: types} if types else {})}
    entry = model.family.document.draft if target is not None else None
    reader = model.family if target is None or (entry and entry.tokenizer == "own") else target.family
    vocab = vocabulary(target or model, options, reader)
    if options.pre not in (None, vocab.pre):
        kind = f"{vocab.kind.value!r}" + (f" with the pre-tokenizer {vocab.pre}" if vocab.pre else "")
        raise UsageError(f"--pre {options.pre} doesn't apply to this tokenizer ({kind})", hint="leave it out")
    losses += [Loss(text, effect="tokens") for text in vocab.losses]
    keys = to_gguf(vocab)
    if target is not None and reader is target.family:
        keys = with_tokenizer_keys(keys, target.config, reader, target.json("generation_config.json"))
    return with_tokenizer_keys(keys, model.config, model.family, generation)


def has_no_tokenizer(family: Family) -> bool:
    """Whether the family's classes have no tokenizer."""
    return family.document.tokenizer is not None and family.document.tokenizer.absent


def vocabulary(model: OpenModel, options: GgufOptions, reader: Family | None = None) -> Vocab:
    """The tokenizer of a folder; `reader`: the family whose rules read it, if another. Raises UnsupportedError, with
    the option that avoids it, if it can't be read."""

    def read(name: str) -> bytes | None:
        """Reads a file; adds the model class's default of the vocabulary size to a config.json without one."""
        data = model.read(name)
        default = model.sizes.facts.get("vocab_size")
        if name != "config.json" or data is None or not isinstance(default, int):
            return data
        config: dict[str, Any] = decode(data, name, dict[str, Any])
        stated = isinstance(config.get("vocab_size"), int)  # that of the language model's object counts before it
        return data if stated else json.dumps({**config, "vocab_size": default}).encode()

    try:
        from weighbridge.models.tokenizer import from_hf, with_codes  # late: readers of ten kinds of files

        rules = (reader or model.family).document.tokenizer
        vocab = from_hf(read, pre=options.pre, names=model.place.names(), rules=rules)
        named = rules.codes if rules is not None else ""
        return with_codes(vocab, model.sizes.facts[named]) if named else vocab
    except UnsupportedError as error:
        raise _skippable(error) from None


def untrained_tokens(model: OpenModel, embedding: LogicalTensor, options: GgufOptions) -> list[int]:
    """The added tokens whose row of the embedding is zero, which llama.cpp then never samples (conversion/minimax.py
    `MiniMaxText01Model._get_suppress_tokens`, b11549). Reads the rows of all added tokens."""
    return probe.zero_rows(embedding, vocabulary(model, options).own_tokens)


def check_vocabulary(keys: Mapping[str, KV], tensors: Mapping[str, Node]) -> None:
    """Raises FormatError if tokens and embedding rows differ in number: llama.cpp doesn't load such a file."""
    tokens, embedding = keys.get(_TOKENS), tensors.get(EMBEDDING)
    if tokens is not None and embedding is not None and len(tokens.value) != (rows := embedding.spec.shape[0]):
        raise FormatError(
            "the tokenizer doesn't fit the embedding, so llama.cpp would refuse the GGUF", field="tokens",
            expected=rows, found=len(tokens.value),
            hint="get the tokenizer of this model, or leave it out: --no-tokenizer",
        )  # fmt: skip


def _skippable(error: UnsupportedError) -> UnsupportedError:
    """The error of a tokenizer, with the option that leaves it out."""
    hint = "leave the tokenizer out: --no-tokenizer"
    return UnsupportedError(error.message, hint=f"{error.hint}; or {hint}" if error.hint else hint)


def products(family: Family) -> list[str]:
    """A note if a GGUF of the family stores products of tensors that are separate in a folder."""
    if not family.products:
        return []
    names = ", ".join(name.replace("{l}", "N") for name in family.products)
    return [
        f"{names}: products of two tensors each; a folder made from a GGUF has ones and the product, "
        "and computes the same"
    ]


def file_type(tensors: Mapping[str, Node], dtype: DType, family: Family) -> int:
    """`general.file_type`: the requested `dtype`, or the main block type of tensors that stay quantized."""
    sizes = Counter[str]()
    for node in tensors.values():
        if node.spec.dtype.name in KEPT_FTYPES and not isinstance(node, Encode):
            sizes[node.spec.dtype.name] += node.spec.elements
    dialect = family.dialects["gguf"]
    if sizes and (dtype.kind is Kind.FLOAT or dialect.write_packed_first or dialect.kept_dtypes):
        return KEPT_FTYPES[max(sizes, key=lambda name: (sizes[name], name))]
    return FTYPES[dtype.name]


def kept_keys(metadata: Mapping[str, Any]) -> dict[str, KV]:
    """The keys that a GGUF shares with another GGUF of the same model."""
    return {key: kv for key, kv in kvs(metadata).items() if key not in _FILE_KEYS}


def with_file_type(metadata: Mapping[str, KV], dtype: DType) -> dict[str, KV]:
    return {**metadata, _FILE_TYPE: KV("u32", FTYPES[dtype.name])}


def named(metadata: Mapping[str, KV], name: str | None) -> Mapping[str, KV]:
    return metadata if name is None else {**metadata, "general.name": KV("str", name)}


def with_alignment(metadata: Mapping[str, KV], align: int | None) -> dict[str, KV]:
    """Sets `general.alignment`, a power of two. None: the default of 32, which needs no key."""
    return dict(metadata) if align is None else {**metadata, _ALIGNMENT: KV("u32", align)}


# ------------------------------------------------------------------------------------------------ GGUF to folder


def for_hf(
    model: OpenModel, tensors: Mapping[str, Node], tokenizer: bool = True, *, quantized: str | None = None,
    class_: str | None = None,
) -> tuple[dict[str, bytes], list[Loss]]:  # fmt: skip
    """The small files of a model folder for a GGUF's tensors, and their losses.

    `quantized`: the dialect of the tensors that keep their codes, if any. `class_`: see `OpenModel.to_hf_config`.
    """
    sizes = Counter[DType]()
    for node in (n for n in tensors.values() if n.spec.dtype.kind is Kind.FLOAT):
        sizes[node.spec.dtype] += node.spec.elements
    config = model.to_hf_config(sizes.most_common(1)[0][0].torch if sizes else None, class_)
    quantization = {"quantization_config": _QUANTIZED[quantized]} if quantized else {}
    texts = {"config.json": json_text({**config.config, **quantization, **mark(model.metadata, model.family)})}
    if config.generation is not None:
        texts["generation_config.json"] = json_text(config.generation)
    stored = model.index.by_name
    places = sentence.dense_tensors(model.family).items()
    dense = {folder: stored[name].spec.shape for folder, name in places if name in stored}
    texts |= sentence.sentence_files(model.metadata, model.family.gguf, model.sizes["N"], dense)
    if (readme := card.write_card(model.metadata)) is not None:
        texts["README.md"] = readme
    losses = _losses_of(config)
    if has_no_tokenizer(model.family):
        return texts, losses
    if not tokenizer:
        return texts, [*losses, Loss("left out, as asked: the tokenizer")]
    if _TOKENS not in model.metadata:
        return texts, [*losses, Loss("the GGUF has no vocabulary, so the folder has no tokenizer")]
    tokens, rows = len(model.metadata[_TOKENS]), config.config.get("vocab_size")
    if isinstance(rows, int) and tokens > rows:  # token ids without an embedding; llama.cpp doesn't load such a file
        raise FormatError(
            "the vocabulary is longer than the embedding", field=_TOKENS, expected=f"<= {rows}", found=tokens,
            hint="leave the tokenizer out: --no-tokenizer; or take the file from where it was published",
        )  # fmt: skip
    try:
        files, unheld = tokenizer_files(model)
    except UnsupportedError as error:
        raise _skippable(error) from None
    return {**texts, **files}, [*losses, *unheld]


def vocabulary_files(model: OpenModel) -> tuple[dict[str, bytes], list[Loss]]:
    """The files for a GGUF without tensors: the tokenizer's, and config.json if the keys describe a model."""
    files, losses = tokenizer_files(model)
    try:
        config = model.to_hf_config()
    except WeighbridgeError:
        return files, [*losses, Loss("config.json: the keys of the vocabulary don't identify its model")]
    return {"config.json": json_text(config.config), **files}, [*losses, *_losses_of(config)]


def _losses_of(config: HfConfig) -> list[Loss]:
    """The settings that a config.json made from a GGUF can't express, and the guessed ones."""
    return [*(Loss(text, effect="results") for text in config.losses), *map(Loss, config.guesses)]


def tokenizer_files(model: OpenModel) -> tuple[dict[str, bytes], list[Loss]]:
    """The tokenizer's files for a GGUF's vocabulary, and their losses."""
    from weighbridge.models.tokenizer import losses as tokenizer_losses
    from weighbridge.models.tokenizer import to_hf

    vocab, rules = from_gguf(model.metadata), None
    with suppress(UnsupportedError):  # an architecture without a table has no special rules
        rules = model.family.document.tokenizer
    return to_hf(vocab, rules), [Loss(f"tokenizer: {text}", effect="tokens") for text in tokenizer_losses(vocab)]


def retyped(config: Mapping[str, Any], dtype: DTypeLike) -> bytes:
    """config.json for weights that are all cast to `dtype`, without quantization settings.

    transformers 4 calls the key of the type torch_dtype, 5 dtype; both load in that type.
    """
    return json_text(_of_type(config, dtype))


def unquantized(config: Mapping[str, Any]) -> bytes:
    """config.json without quantization settings."""
    return json_text(_of_type(config, None))


def quantized(config: Mapping[str, Any], dtype: DTypeLike | None, scheme_config: Mapping[str, Any]) -> bytes:
    """config.json for weights quantized as `scheme_config`. `dtype`: the type requested for the other weights."""
    return json_text({**_of_type(config, dtype), "quantization_config": scheme_config})


def _of_type(config: Mapping[str, Any], dtype: DTypeLike | None) -> dict[str, Any]:
    """The config and its parts with the type `dtype` (None: unchanged), and without quantization settings."""
    kept = {
        key: _of_type(value, dtype) if key.endswith("_config") and isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in PACKINGS
    }
    if dtype in (None, "auto"):
        return kept
    return kept | {key: dtype_of(dtype).torch for key in WEIGHT_TYPES if key in config}


def json_text(value: Mapping[str, Any]) -> bytes:
    """A JSON object as the text of a file."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
