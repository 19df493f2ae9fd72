"""A Hugging Face folder's tokenizer files -> `Vocab`, by the reference converter's rules (llama.cpp, conversion/base.py
and conversion/llama.py, bert.py). The order of tries is `LlamaModel.set_vocab`'s, with the content deciding what the
reference takes from the architecture:

    tokenizer.json of WordPiece, or vocab.txt      wordpiece   `BertModel.set_vocab`
    Unigram, tokenizer.json or SentencePiece       unigram     `T5Model.set_vocab`, `_xlmroberta_set_vocab`
    tokenizer.model (SentencePiece)                spm         `_set_vocab_sentencepiece`
    tokenizer.json, BPE with byte fallback         spm         `_set_vocab_llama_hf`
      of Gemma 4                                   gemma4      `Gemma4Model.set_vocab`
      of ModernBERT, Sarvam                        bpe         `_set_vocab_gpt2`
    tokenizer.json, byte-level BPE                 bpe         `_set_vocab_gpt2`
    tekken.json, tokenizer.model.v3                bpe, spm    `_set_vocab_mistral`
    tiktoken ranks (tiktoken.model ...)            bpe         `_set_vocab_qwen`, `DeepseekV2Model.set_vocab`
    vocab.json and merges.txt                      bpe         `_set_vocab_gpt2`

Where the reference is wrong we differ, on purpose and only there:
  * scores of an SPM-like tokenizer.json come from its merges; the reference writes -1000 for every token, and llama.cpp
    then merges from the left, whatever the tokenizer's order is (`scores="reference"` writes these);
  * a SentencePiece model that adds no space before the text is written with add_space_prefix = false;
  * a folder with vocab.txt alone gets its special ids and its lowercase flag (the reference leaves llama.cpp's guess);
  * byte-level names that make llama.cpp add a bos on their own get an explicit add_bos_token = false where the
    tokenizer adds none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import JSON_DEPTH
from weighbridge.models.meta.tokenizer import merges as mergelists
from weighbridge.models.meta.tokenizer import pretokenizer, ranks, sentencepiece, slow, tekken, tiktoken, unigram
from weighbridge.models.meta.tokenizer.added import added_tokens, is_control, named_tokens, spoken
from weighbridge.models.meta.tokenizer.files import AddedToken, Folder, Id, Json, Read, TokenizerJson
from weighbridge.models.meta.tokenizer.special import Special, normalizer_flags, special, templates
from weighbridge.models.meta.tokenizer.vocab import (
    BYTE_TOKEN,
    NO_SCORE,
    PAD_SCORE,
    SPACE,
    Kind,
    TokenType,
    Vocab,
    padding,
)

Scores = Literal["exact", "reference"]
READ: Final = (
    "tokenizer.json", "tokenizer.model", "spiece.model", "vocab.txt", "vocab.json with merges.txt", "tekken.json",
    "tiktoken.model",
)  # fmt: skip
MODELS: Final = (sentencepiece.NAME, "spiece.model", unigram.FAIRSEQ_FILE)  # SentencePiece's files, in order of tries
# The architectures that `LlamaModel` converts; some of its rules look at nothing but a size in config.json.
LLAMA: Final = frozenset(
    (
        "LLaMAForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "VLlama3ForCausalLM",
        "LlavaForConditionalGeneration", "VoxtralForConditionalGeneration", "IQuestCoderForCausalLM", "LlamaModel",
    )
)  # fmt: skip

VISIBLE: Final = frozenset(  # of Gemma 4: what the chat parser must see (conversion/gemma.py)
    (
        "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
    )
)  # fmt: skip
ROBERTA: Final = ("RobertaModel", "RobertaForSequenceClassification")


def from_hf(read: Read, *, pre: str | None = None, scores: Scores = "exact", names: Sequence[str] = ()) -> Vocab:
    """The tokenizer of a folder. `read(name)` gives a file's bytes or None; `pre` overrides the pre-tokenizer's name;
    `names`, where known, lists the folder's files (for additional_chat_templates/)."""
    folder = Folder(read, tuple(names))
    tokenizer = folder.tokenizer
    kind = None if tokenizer is None else model_type(tokenizer)
    if kind == "WordPiece" or (tokenizer is None and read("vocab.txt") is not None):
        return wordpiece(folder, tokenizer, pre)
    if tokenizer is None and read(tekken.NAME) is not None:
        return from_tekken(folder, pre)
    file = model_file(folder, kind)
    if kind == "Unigram" or (kind is None and file is not None and file.model.model_type == sentencepiece.UNIGRAM):
        return from_unigram(folder, tokenizer, file, pre)
    if file is not None:
        return llama(folder, spm(folder, file.model))
    if tokenizer is None:
        return llama(folder, without_json(folder, pre))
    if kind != "BPE":
        raise UnsupportedError(
            f"a tokenizer of type {kind}", hint="WordPiece, Unigram, SentencePiece BPE and byte-level BPE are read"
        )
    if not is_spm_like(tokenizer):
        return llama(folder, byte_level(folder, tokenizer, pre))
    if folder.architecture.startswith("Gemma4"):
        return gemma4(folder, tokenizer)
    name = raw_name(folder, tokenizer) if pre is None else pre
    if name is not None and pretokenizer.known(name).raw:
        return byte_level(folder, tokenizer, name)
    return llama(folder, llama_hf(folder, tokenizer, scores))


def model_file(folder: Folder, kind: str | None) -> unigram.File | None:
    """The folder's SentencePiece model, if it is of the `kind` of its tokenizer.json. Meta's Llama 3 has tiktoken ranks
    under the same name."""
    for name in MODELS:
        data = folder.read(name)
        if data is not None and not ranks.is_ranks(data):
            model = sentencepiece.parse(data, name)
            wanted = {"Unigram": sentencepiece.UNIGRAM, "BPE": sentencepiece.BPE}.get(kind or "")
            return unigram.File(name, model) if wanted in (None, model.model_type) else None
    return None


def from_unigram(folder: Folder, tokenizer: TokenizerJson | None, file: unigram.File | None, pre: str | None) -> Vocab:
    vocab = unigram.unigram(folder, tokenizer, file, pre)
    state = special(folder, len(vocab))
    unigram.mend(folder, tokenizer, file, vocab, state)
    return finish(folder, vocab, state)


def from_tekken(folder: Folder, pre: str | None) -> Vocab:
    vocab, version = tekken.vocabulary(folder, pre)
    state = special(folder, None)
    tekken.mend(vocab, state)
    found, lost = tekken.template(folder, version, True)
    return replace(finish(folder, vocab, state), templates=found, losses=lost)


def without_json(folder: Folder, pre: str | None) -> Vocab:
    """The files of those that have neither tokenizer.json nor a SentencePiece model under a usual name."""
    name = tiktoken.find(folder)
    if name is not None:
        vocab = tiktoken.vocabulary(folder, name, pre, LLAMA)
        state = special(folder, None)
        tiktoken.mend(folder, name, vocab, state)
        return finish(folder, vocab, state)
    if slow.present(folder):
        return slow.mend(folder, byte_level(folder, slow.tokenizer(folder, pre), pre, slow.MERGES))
    old = tekken.versioned(folder)
    if old is None:
        raise UnsupportedError(
            "no tokenizer file that we read",
            hint=f"{', '.join(READ)} are; other files become a tokenizer.json by "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)",
        )
    model = sentencepiece.parse(folder.read(old[0]) or b"", old[0])
    vocab, state = spm(folder, model), special(folder, None)
    tekken.mend(vocab, state, model.ids)
    found, lost = tekken.template(folder, old[1], False)
    return replace(vocab, special=state.ids, add=state.add, templates=found, losses=(*vocab.losses, *lost))


def model_type(tokenizer: TokenizerJson) -> str:
    """`model.type`, told from the content in old files that lack it."""
    model = tokenizer.model
    if model.type is not None:
        return model.type
    if isinstance(model.vocab, list):
        return "Unigram"
    return "BPE" if model.merges else "WordPiece"


def is_spm_like(tokenizer: TokenizerJson) -> bool:
    """gguf-py/gguf/vocab.py, `LlamaHfVocab`: byte fallback, and a decoder that is a sequence."""
    return bool(tokenizer.model.byte_fallback) and (tokenizer.decoder or {}).get("type") == "Sequence"


def table_of(tokenizer: TokenizerJson) -> dict[str, int]:
    """The model's vocabulary; FormatError where two tokens have one id."""
    vocab = tokenizer.model.vocab
    if not isinstance(vocab, dict):
        raise FormatError("the vocabulary isn't an object", path="tokenizer.json", field="model.vocab")
    if not vocab:
        raise FormatError("the vocabulary is empty", path="tokenizer.json", field="model.vocab")
    if len(set(vocab.values())) != len(vocab):
        seen: dict[int, str] = {}
        for text, index in vocab.items():
            if seen.setdefault(index, text) != text:
                raise FormatError(
                    f"tokens {seen[index]!r} and {text!r} have one id",
                    path="tokenizer.json",
                    field="model.vocab",
                    found=index,
                )
    return vocab


@dataclass(frozen=True)
class Base:
    """A WordPiece or byte-level vocabulary with its added tokens, as `get_vocab_base` sees it."""

    tokens: list[str]
    types: list[int]
    known: Mapping[str, int]


def base(folder: Folder, vocab: dict[str, int], tokenizer: TokenizerJson | None) -> Base:
    """conversion/base.py, `get_vocab_base`: ids without a token are padding, added tokens control or user-defined."""
    added = added_tokens(folder, vocab, tokenizer)
    known = vocab | {t.content: i for i, t in added.items()}
    top = max(known.values())
    size = folder.vocab_size("vocab_size") or top + 1
    if top >= size:
        raise FormatError(
            "a token's id is outside of the vocabulary", field="vocab_size", expected=f"> {top}", found=size
        )
    tokens: list[Any] = [None] * size
    types = [int(TokenType.NORMAL)] * size
    for text, index in vocab.items():
        tokens[index] = text
    for index, token in added.items():
        tokens[index], types[index] = base_added(token, tokenizer)
    if len(known) < size:
        for index in [i for i, t in enumerate(tokens) if t is None]:
            tokens[index], types[index] = padding(index), int(TokenType.UNUSED)
    return Base(tokens, types, known)


def base_added(token: AddedToken, tokenizer: TokenizerJson | None) -> tuple[str, int]:
    """An added token's text and type. llama.cpp takes control and user-defined tokens as normalized already."""
    text = token.content if token.normalized else spoken(token.content, tokenizer.decoder if tokenizer else None)
    if token.special or is_control(text):
        return text, int(TokenType.CONTROL)
    return text.replace(SPACE, " "), int(TokenType.USER_DEFINED)


def byte_level(folder: Folder, tokenizer: TokenizerJson, pre: str | None, path: str = "tokenizer.json") -> Vocab:
    """`_set_vocab_gpt2`. `path`: the file that the merges are from."""
    vocab, model = table_of(tokenizer), tokenizer.model
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        raise UnsupportedError("BPE with a subword prefix or suffix: llama.cpp has none")
    pairs = mergelists.split(model.merges, path)
    mergelists.check(pairs, vocab, path)
    found = base(folder, vocab, tokenizer)
    normalizers = normalizer_names(tokenizer)
    losses: tuple[str, ...] = ()
    raw = pre is not None and pretokenizer.known(pre).raw
    if set(normalizers) - {"NFC"} and pre is None:
        raise UnsupportedError(
            f"byte-level BPE over a normalizer ({', '.join(normalizers)}): llama.cpp has none",
            hint="use --pre NAME to convert without it",
        )
    if normalizers and not raw:
        losses = (f"the normalizer ({', '.join(normalizers)}): llama.cpp tokenizes the text as it is",)
    if not pairs:
        raise UnsupportedError("byte-level BPE without merges: llama.cpp can't load it")
    state = special(folder, None)
    name = pre if pre is not None else recognise(tokenizer, found.known, normalizers)
    if pretokenizer.known(name).add_bos:
        state.add.setdefault("bos", False)
    made = Vocab(Kind.BPE, found.tokens, found.types, merges=mergelists.joined(pairs), pre=name, losses=losses)
    if folder.architecture in ROBERTA:
        made = replace(made, token_type_count=folder.type_count)
    return finish(folder, made, state)


def raw_name(folder: Folder, tokenizer: TokenizerJson) -> str | None:
    """The name for classes whose BPE over characters the reference keeps as such, by their pre-tokenizer."""
    if folder.architecture == "SarvamMoEForCausalLM":
        return "sarvam-moe"
    if not folder.architecture.startswith("ModernBert"):
        return None
    items = pretokenizer.flat(tokenizer.pre_tokenizer, "pretokenizers")
    return "mmbert" if any(item.get("type") == "Metaspace" for item in items) else "granite-embed-multi-311m"


def gemma4(folder: Folder, tokenizer: TokenizerJson) -> Vocab:
    """`Gemma4Model.set_vocab`: `LlamaHfVocab` with its merges; scores that nobody reads."""
    vocab = llama_hf(folder, tokenizer, "reference")
    pairs = mergelists.split(tokenizer.model.merges, "tokenizer.json")
    types = [int(TokenType.USER_DEFINED) if t in VISIBLE else k for t, k in zip(vocab.tokens, vocab.types, strict=True)]
    return replace(
        vocab, kind=Kind.GEMMA4, pre=None, types=types, merges=mergelists.joined(pairs), add_space_prefix=False,
        add={**vocab.add, "bos": True}, losses=(),
    )  # fmt: skip


def recognise(tokenizer: TokenizerJson, known: Mapping[str, int], normalizers: Sequence[str]) -> str:
    processor = tokenizer.post_processor
    return pretokenizer.recognise(
        pretokenizer.canonical(tokenizer.pre_tokenizer),
        known.keys(),
        ignore_merges=bool(tokenizer.model.ignore_merges),
        normalizer=normalizers[0] if normalizers else None,
        processor=processor.type if processor is not None else None,
    )


def normalizer_names(tokenizer: TokenizerJson) -> list[str]:
    return [str(n.get("type")) for n in pretokenizer.flat(tokenizer.normalizer, "normalizers")]


def wordpiece(folder: Folder, tokenizer: TokenizerJson | None, pre: str | None) -> Vocab:
    """`BertModel.set_vocab`: "##x" -> "x", other tokens -> U+2581 + token, control tokens as they are."""
    vocab = lines(folder) if tokenizer is None else table_of(tokenizer)
    prefix = "##" if tokenizer is None else tokenizer.model.continuing_subword_prefix
    if prefix not in (None, "##"):
        raise UnsupportedError(f"WordPiece with the prefix {prefix!r}: llama.cpp knows ## only")
    found = base(folder, vocab, tokenizer)
    tokens = [phantom(t, k) for t, k in zip(found.tokens, found.types, strict=True)]
    state = special(folder, len(tokens))
    flags: Json = {**normalizer_flags(tokenizer.normalizer)} if tokenizer is not None else settings_flags(folder)
    if tokenizer is None:
        for role, index in named_tokens(folder, vocab).items():
            state.ids.setdefault({"cls": "bos"}.get(role, role), index)
    name = pre if pre is not None else wordpiece_name(len(tokens))
    made = Vocab(Kind.WORDPIECE, tokens, found.types, pre=name, token_type_count=folder.type_count)
    return replace(finish(folder, made, state), **flags)


def phantom(text: str, kind: int) -> str:
    if kind == TokenType.CONTROL:
        return text
    return text[2:] if text.startswith("##") else SPACE + text


def wordpiece_name(size: int) -> str:
    """llama.cpp reads no pre-tokenizer name for WordPiece, so any will do. The reference's hash knows two vocabularies:
    bert-base-uncased's (twice in its list: the later name wins) and the Chinese one."""
    return "bert-bge-large" if size == 21128 else "jina-v2-en"


def settings_flags(folder: Folder) -> Json:
    """The normalizer's flags where there is no tokenizer.json; transformers' `BertTokenizer` lowercases unless told."""
    settings = folder.settings or {}
    lowercase, strip = settings.get("do_lower_case", True), settings.get("strip_accents")
    flags = {"lowercase": lowercase is not False}
    return flags | {"strip_accents": strip} if isinstance(strip, bool) else flags


def lines(folder: Folder) -> dict[str, int]:
    """vocab.txt: a token a line; a token that occurs twice has its last id, as in transformers' `load_vocab`."""
    text = folder.text("vocab.txt") or ""
    rows = text.split("\n")
    rows = rows[:-1] if rows and not rows[-1] else rows
    if not rows:
        raise FormatError("the vocabulary is empty", path="vocab.txt")
    return {row.rstrip("\r"): i for i, row in enumerate(rows)}


def spm(folder: Folder, model: sentencepiece.Spm) -> Vocab:
    """`_create_vocab_sentencepiece`: pieces, then added_tokens.json, then `added_tokens_decoder`, in a padded list."""
    if model.model_type != sentencepiece.BPE:
        raise UnsupportedError(
            "a SentencePiece model that is neither BPE nor Unigram: llama.cpp has no tokenizer for it",
        )
    size = folder.vocab_size("vocab_size_per_layer_input", "vocab_size") or len(model.pieces)
    count = min(size, len(model.pieces))
    tokens = [*model.pieces[:count], *map(padding, range(count, size))]
    scores = [*model.scores[:count], *[PAD_SCORE] * (size - count)]
    # The reference knows no user-defined pieces: they are normal unless `added_tokens_decoder` says more.
    types = [TokenType.NORMAL if t == TokenType.USER_DEFINED else t for t in model.types[:count]]
    types += [TokenType.UNUSED] * (size - count)
    listed: dict[str, int] = folder.json("added_tokens.json", dict[str, Id]) or {}
    for text, index in listed.items():
        if index < size:
            tokens[index], scores[index], types[index] = text, NO_SCORE, TokenType.USER_DEFINED
    for index, token in folder.added_decoder.items():
        if index < size:
            control = token.special or is_control(token.content)
            types[index] = TokenType.CONTROL if control else TokenType.USER_DEFINED
            tokens[index] = token.content if control else token.content.replace(SPACE, " ")
            scores[index] = NO_SCORE
    losses = ("the SentencePiece normalizer: llama.cpp tokenizes the text as it is",) if model.charsmap else ()
    made = Vocab(Kind.SPM, tokens, [int(t) for t in types], scores, pre="default", losses=losses)
    if not model.add_dummy_prefix:
        made = replace(made, add_space_prefix=False)
    return finish(folder, made, special(folder, size))


def llama_hf(folder: Folder, tokenizer: TokenizerJson, scores: Scores) -> Vocab:
    """`LlamaHfVocab`: ids 0.. of the model, then the added tokens beyond them."""
    vocab = table_of(tokenizer)
    size = len(vocab)
    if max(vocab.values()) != size - 1:
        raise FormatError("ids have gaps", path="tokenizer.json", field="model.vocab", expected=f"0..{size - 1}")
    pairs = mergelists.split(tokenizer.model.merges, "tokenizer.json")
    mergelists.check(pairs, vocab, "tokenizer.json")
    added = added_tokens(folder, vocab, tokenizer)
    controls = set(named_tokens(folder, vocab | {t.content: i for i, t in added.items()}).values())
    tokens: list[Any] = [None] * size
    types = [int(TokenType.NORMAL)] * size
    for text, index in vocab.items():
        tokens[index] = text
        if text.startswith("<0x") and BYTE_TOKEN.fullmatch(text):
            types[index] = int(TokenType.BYTE)
    for index in controls:
        if index < size and types[index] != TokenType.BYTE:
            types[index] = int(TokenType.CONTROL)
    for index, token in sorted(added.items()):
        if index >= size:
            tokens.append(token.content)
            types.append(int(TokenType.CONTROL if index in controls else TokenType.USER_DEFINED))
    values = [NO_SCORE] * len(tokens)
    if scores == "exact":
        exact = mergelists.to_scores(pairs, vocab, size)
        values[:size] = [NO_SCORE if i in controls else s for i, s in enumerate(exact)]
    made = Vocab(Kind.SPM, tokens, types, values, pre="default", losses=metaspace_losses(tokenizer))
    if not prefixes_space(tokenizer):
        made = replace(made, add_space_prefix=False)
    return finish(folder, made, special(folder, len(tokens)))


def metaspace_losses(tokenizer: TokenizerJson) -> tuple[str, ...]:
    """`Metaspace` treats spaces otherwise than SentencePiece does, and llama.cpp does as SentencePiece."""
    items = [n for n in pretokenizer.flat(tokenizer.pre_tokenizer, "pretokenizers") if n.get("type") == "Metaspace"]
    if not items or items[0].get("prepend_scheme", "always") == "never":
        return ()
    return ("Metaspace puts no space before a text that begins with one, or after special tokens: llama.cpp does",)


def prefixes_space(tokenizer: TokenizerJson) -> bool:
    """Is a space put before the text: by a `Prepend` normalizer, or by a `Metaspace` that doesn't say "never"?"""
    items = [*pretokenizer.flat(tokenizer.normalizer, "normalizers")]
    items += pretokenizer.flat(tokenizer.pre_tokenizer, "pretokenizers")
    return any(
        n.get("type") == "Prepend" or (n.get("type") == "Metaspace" and n.get("prepend_scheme", "always") != "never")
        for n in items[:JSON_DEPTH]
    )


def finish(folder: Folder, vocab: Vocab, state: Special) -> Vocab:
    """Special ids, flags, templates: `SpecialVocab` for all kinds."""
    flags: dict[str, Any] = {}
    if vocab.kind != Kind.WORDPIECE and folder.tokenizer is not None:
        flags = normalizer_flags(folder.tokenizer.normalizer)
    length = (folder.settings or {}).get("model_max_length")
    limit = length if isinstance(length, int) and 0 < length < 1 << 31 else None
    ids = {r: i for r, i in state.ids.items() if i < len(vocab)}
    outside = {r: i for r, i in {**state.outside, **state.ids}.items() if r not in ids}
    lost = [f"the {r} token's id {i}: the vocabulary has {len(vocab)} tokens" for r, i in outside.items()]
    return replace(
        vocab, special=ids, add=state.add, templates=templates(folder), max_length=limit,
        losses=(*vocab.losses, *lost), **flags,
    )  # fmt: skip


def llama(folder: Folder, vocab: Vocab) -> Vocab:
    """The end of `LlamaModel.set_vocab`: rules by size, for the architectures it converts."""
    if folder.architecture not in LLAMA:
        return vocab
    size = folder.vocab_size("vocab_size") or 32000
    prefix = (folder.settings or {}).get("add_prefix_space")
    changes: Json = {}
    if isinstance(prefix, bool):
        changes["add_space_prefix"] = prefix
    if size == 32016:  # CodeLlama
        changes["special"] = {**vocab.special, "eot": 32010}
    if size == 49152:  # small Granite models
        changes["add"] = {**vocab.add, "bos": False}
    return replace(vocab, **changes)
