"""Reads a Hugging Face folder's tokenizer files by the reference converter's rules (llama.cpp, conversion/base.py,
llama.py, bert.py). Candidates are tried in `LlamaModel.set_vocab`'s order; the files' content decides,
not the architecture as in the reference:

    tokenizer.json of WordPiece, or vocab.txt      wordpiece   `BertModel.set_vocab`
    Unigram, tokenizer.json or SentencePiece       unigram     `T5Model.set_vocab`, `_xlmroberta_set_vocab`
    tokenizer.model (SentencePiece)                spm         `_set_vocab_sentencepiece`
    tokenizer.json, BPE with byte fallback         spm         `_set_vocab_llama_hf`
      (tables.toml, `char_bpe`)                    char_bpe    `Gemma4Model.set_vocab`
      (tables.toml, `raw_pre`)                     bpe         `_set_vocab_gpt2`
    tokenizer.json, byte-level BPE                 bpe         `_set_vocab_gpt2`
    tekken.json, tokenizer.model.v3                bpe, spm    `_set_vocab_mistral`
    tiktoken ranks (tiktoken.model ...)            bpe         `_set_vocab_qwen`, `DeepseekV2Model.set_vocab`
    vocab.json and merges.txt                      bpe         `_set_vocab_gpt2`
    rwkv_vocab_v20230424.txt                       rwkv        `_set_vocab_rwkv_world`
    tokenizer.jsonl                                plamo2, 3   `_set_vocab_plamo`

Deliberate corrections of the reference:
  * an SPM-like tokenizer.json gets scores from its merges; the reference writes -1000 for every token, so llama.cpp
    merges from the left (`scores="reference"` writes these);
  * a SentencePiece model that adds no space before the text gets add_space_prefix = false;
  * a folder with only vocab.txt gets its special ids and lowercase flag (the reference leaves llama.cpp's defaults);
  * byte-level names for which llama.cpp adds a bos get add_bos_token = false if the tokenizer adds none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.models.arch.tables.schema import TokenizerEntry
from weighbridge.models.tokenizer import pretokenizer
from weighbridge.models.tokenizer.formats import bpe_ranks, sentencepiece
from weighbridge.models.tokenizer.formats import merges as mergelists
from weighbridge.models.tokenizer.hf import lattice, rwkv, tekken, tiktoken, unigram, vocab_json
from weighbridge.models.tokenizer.hf.added import added_tokens, decoded, embedded, is_control, named_tokens
from weighbridge.models.tokenizer.hf.folder import OTHERS, Read, TokenizerFolder, TokenizerJson, table_of
from weighbridge.models.tokenizer.hf.special import finish, normalizer_flags, special
from weighbridge.models.tokenizer.hf.spm import Scores, byte_fallback, char_bpe, spm
from weighbridge.models.tokenizer.vocab import SPACE, Json, TokenType, Vocab, VocabKind, padding

READ: Final = (
    "tokenizer.json", "tokenizer.model", "spiece.model", "vocab.txt", "vocab.json with merges.txt", "tekken.json",
    "tiktoken.model", rwkv.NAME, lattice.NAME,
)  # fmt: skip
# SentencePiece files, in order of preference
MODELS: Final = (sentencepiece.NAME, "spiece.model", unigram.FAIRSEQ_FILE)
#: The files with a vocabulary; of "vocab.json with merges.txt" the first.
VOCABULARY_FILES: Final = frozenset((*MODELS, *(text.partition(" ")[0] for text in READ)))


def from_hf(
    read: Read, *, pre: str | None = None, scores: Scores = "exact", names: Sequence[str] = (),
    rules: TokenizerEntry | None = None,
) -> Vocab:  # fmt: skip
    """Reads the tokenizer of a folder. `read(name)` returns a file's bytes or None; `pre` overrides the pre-tokenizer's
    name; `names` lists the folder's files, if known (for additional_chat_templates/); `rules` replace those of the
    model class. Raises FormatError and UnsupportedError."""
    folder = TokenizerFolder(read, tuple(names), rules)
    vocab = vocabulary(folder, pre, scores)
    types = folder.stored_types
    if not types:
        return vocab
    top = max(types)
    if top >= len(vocab):
        raise FormatError(
            "an id outside the vocabulary", path="tokenizer_config.json", field="gguf_token_types",
            expected=f"< {len(vocab)}", found=top,
        )  # fmt: skip
    return replace(vocab, types=[types.get(i, t) for i, t in enumerate(vocab.types)])


def vocabulary(folder: TokenizerFolder, pre: str | None, scores: Scores) -> Vocab:
    """Reads the tokenizer from the first candidate that matches."""
    tokenizer, read = folder.tokenizer, folder.read
    kind = None if tokenizer is None else model_type(tokenizer)
    if kind == "WordPiece" or (tokenizer is None and read("vocab.txt") is not None):
        return wordpiece(folder, tokenizer, pre)
    if tokenizer is None and read(tekken.NAME) is not None:
        vocab, version = tekken.vocabulary(folder, pre)
        state = special(folder, None)
        tekken.mend(vocab, state)
        templates, lost = tekken.template(folder, version, True)
        return replace(finish(folder, vocab, state), templates=templates, losses=lost)
    if kind == "BPE" and tokenizer is not None and tokenizer.is_spm_like:
        rules = folder.rules
        if rules.char_bpe:
            return char_bpe(folder, tokenizer, rules.visible)
        if (name := raw_name(tokenizer, rules.raw_pre, pre)) is not None:
            return byte_level(folder, tokenizer, name)
    file = model_file(folder, kind)
    if kind == "Unigram" or (kind is None and file is not None and file.model.model_type == sentencepiece.UNIGRAM):
        vocab = unigram.unigram(folder, tokenizer, file, pre)
        state = special(folder, len(vocab))
        unigram.mend(folder, tokenizer, file, vocab, state)
        return finish(folder, vocab, state)
    if file is not None:
        return with_model_rules(folder, spm(folder, file.model))
    if tokenizer is None:
        return with_model_rules(folder, without_json(folder, pre))
    if kind != "BPE":
        raise UnsupportedError(
            f"a tokenizer of type {kind}", hint="supported: WordPiece, Unigram, SentencePiece BPE, byte-level BPE"
        )
    vocab = byte_fallback(folder, tokenizer, scores) if tokenizer.is_spm_like else byte_level(folder, tokenizer, pre)
    return with_model_rules(folder, vocab)


def model_file(folder: TokenizerFolder, kind: str | None) -> unigram.SpmFile | None:
    """Returns the folder's SentencePiece model, unless tokenizer.json has a different `kind`. Some models have a rank
    table under the same name."""
    for name in MODELS:
        data = folder.read(name)
        if data is not None and not bpe_ranks.is_ranks(data):
            model = sentencepiece.parse(data, name)
            expected = {"Unigram": sentencepiece.UNIGRAM, "BPE": sentencepiece.BPE}.get(kind or "", model.model_type)
            return unigram.SpmFile(name, model) if expected == model.model_type else None
    return None


def without_json(folder: TokenizerFolder, pre: str | None) -> Vocab:
    """Reads the tokenizer of a folder with neither tokenizer.json nor a SentencePiece model under a usual name."""
    name = tiktoken.find(folder)
    if name is not None:
        vocab = tiktoken.vocabulary(folder, name, pre)
        state = special(folder, None)
        tiktoken.mend(folder, name, vocab, state)
        return finish(folder, vocab, state)
    if folder.read(vocab_json.VOCAB) is not None:
        return vocab_json.mend(folder, byte_level(folder, vocab_json.tokenizer(folder, pre), pre, vocab_json.MERGES))
    if folder.read(rwkv.NAME) is not None:
        state = special(folder, None)
        rwkv.mend(state)
        return rwkv.with_template(finish(folder, rwkv.vocabulary(folder), state))
    if folder.read(lattice.NAME) is not None:
        vocab = lattice.vocabulary(folder)
        return finish(folder, vocab, lattice.special(folder, vocab))
    old = tekken.versioned(folder)
    if old is None:
        raise UnsupportedError(
            "no supported tokenizer file",
            hint=f"supported: {', '.join(READ)}; AutoTokenizer.from_pretrained(...).save_pretrained(...) converts "
            "others to tokenizer.json",
        )
    model = sentencepiece.parse(folder.read(old[0]) or b"", old[0])
    vocab, state = spm(folder, model), special(folder, None)
    tekken.mend(vocab, state, model.ids)
    templates, lost = tekken.template(folder, old[1], False)
    return replace(vocab, special=state.ids, add=state.add, templates=templates, losses=(*vocab.losses, *lost))


def model_type(tokenizer: TokenizerJson) -> str:
    """Returns `model.type`, or the type that the content of an old file implies."""
    model = tokenizer.model
    if model.type is None and isinstance(model.vocab, list):
        return "Unigram"
    return model.type or ("BPE" if model.merge_rows("tokenizer.json") else "WordPiece")


@dataclass(frozen=True)
class BaseVocab:
    """A WordPiece or byte-level vocabulary with its added tokens. `ids`: by text. `losses`: added tokens that the model
    doesn't have."""

    tokens: list[str]
    types: list[int]
    ids: Mapping[str, int]
    losses: tuple[str, ...] = ()


def base(folder: TokenizerFolder, vocab: dict[str, int], tokenizer: TokenizerJson | None) -> BaseVocab:
    """Returns the vocabulary with added tokens as control or user-defined tokens and unused ids as padding
    (conversion/base.py, `get_vocab_base`)."""
    added, lost = embedded(folder, vocab, added_tokens(folder, vocab, tokenizer))
    ids = vocab | {t.content: i for i, t in added.items()}
    top = max(ids.values())
    size = folder.vocab_size("vocab_size") or top + 1
    if top >= size:
        raise FormatError(
            "a token's id is outside the vocabulary", path="config.json", field="vocab_size",
            expected=f"> {top}", found=size, hint=OTHERS,
        )  # fmt: skip
    tokens: list[Any] = [None] * size
    types = [int(TokenType.NORMAL)] * size
    for text, index in vocab.items():
        tokens[index] = text
    for index, token in added.items():
        # llama.cpp expects control and user-defined tokens in normalized form. The reference encodes and decodes every
        # token that isn't normalized.
        text = token.content
        for step in pretokenizer.flat(tokenizer.decoder if tokenizer and not token.normalized else None, "decoders"):
            text = decoded(text, step)
        control = token.special or is_control(text)
        tokens[index] = text if control else text.replace(SPACE, " ")
        types[index] = int(TokenType.CONTROL if control else TokenType.USER_DEFINED)
    for index in (i for i, text in enumerate(tokens) if text is None):
        tokens[index], types[index] = padding(index), int(TokenType.UNUSED)
    return BaseVocab(tokens, types, ids, lost)


def byte_level(
    folder: TokenizerFolder, tokenizer: TokenizerJson, pre: str | None, path: str = "tokenizer.json"
) -> Vocab:
    """Reads a byte-level BPE vocabulary (`_set_vocab_gpt2`). `path`: the file of the merges."""
    vocab, model = table_of(tokenizer), tokenizer.model
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        raise UnsupportedError("BPE with a subword prefix or suffix: llama.cpp has none")
    merges = mergelists.spelled(model.merges, model.merge_rows, vocab, path)
    table = base(folder, vocab, tokenizer)
    normalizers = [str(n.get("type")) for n in pretokenizer.flat(tokenizer.normalizer, "normalizers")]
    losses = table.losses
    raw = pre is not None and pretokenizer.known(pre).raw
    if set(normalizers) - {"NFC"} and pre is None:
        raise UnsupportedError(
            f"byte-level BPE with a normalizer ({', '.join(normalizers)}), which llama.cpp doesn't have",
            hint="use --pre NAME to convert without it",
        )
    if normalizers and not raw:
        losses += (f"the normalizer ({', '.join(normalizers)}): llama.cpp tokenizes the unmodified text",)
    if not len(merges):
        raise FormatError(
            "byte-level BPE without merges, which llama.cpp can't load", path=path, field="merges",
            expected="at least one", found=0, hint="get the file from the model's publisher",
        )  # fmt: skip
    state = special(folder, None)
    processor = tokenizer.post_processor
    name = (
        pre
        if pre is not None
        else pretokenizer.recognise(
            pretokenizer.canonical(tokenizer.pre_tokenizer),
            table.ids.keys(),
            ignore_merges=bool(model.ignore_merges),
            normalizer=normalizers[0] if normalizers else None,
            processor=processor.type if processor is not None else None,
        )
    )
    if pretokenizer.known(name).add_bos:
        state.add.setdefault("bos", False)
    result = Vocab(
        VocabKind.BPE, table.tokens, table.types, merges=merges, pre=name, losses=losses, own_tokens=len(vocab)
    )
    if folder.rules.token_types:
        result = replace(result, token_type_count=folder.type_count)
    return finish(folder, result, state)


def raw_name(tokenizer: TokenizerJson, by_type: Mapping[str, str], pre: str | None) -> str | None:
    """Returns the pre-tokenizer name under which BPE over characters is written as BPE: the caller's (`pre`), or the
    model class's (`tokenizer.raw_pre`). None to write it as SentencePiece."""
    if pre is not None:
        return pre if pretokenizer.known(pre).raw else None
    items = pretokenizer.flat(tokenizer.pre_tokenizer, "pretokenizers")
    return next((by_type[kind] for item in items if (kind := str(item.get("type"))) in by_type), by_type.get("other"))


def wordpiece(folder: TokenizerFolder, tokenizer: TokenizerJson | None, pre: str | None) -> Vocab:
    """Reads a WordPiece vocabulary: "##x" -> "x", other tokens -> U+2581 + token, control tokens unchanged
    (`BertModel.set_vocab`)."""
    if tokenizer is not None:
        vocab, prefix = table_of(tokenizer), tokenizer.model.continuing_subword_prefix
        flags: Json = {**normalizer_flags(tokenizer.normalizer)}
        if prefix not in (None, "##"):
            raise UnsupportedError(f"WordPiece with the prefix {prefix!r}: llama.cpp supports ## only")
    else:
        # vocab.txt has one token per line. A duplicate token has its last id, as in transformers' `load_vocab`.
        text = folder.text("vocab.txt")
        if not text:
            raise FormatError("the vocabulary is empty", path="vocab.txt")
        vocab = {row.rstrip("\r"): i for i, row in enumerate(text.removesuffix("\n").split("\n"))}
        settings = folder.settings or {}  # with `BertTokenizer`'s defaults
        flags = {"lowercase": settings.get("do_lower_case", True) is not False}
        if isinstance(strip := settings.get("strip_accents"), bool):
            flags["strip_accents"] = strip
    table = base(folder, vocab, tokenizer)
    tokens = [
        text if kind == TokenType.CONTROL else text[2:] if text.startswith("##") else SPACE + text
        for text, kind in zip(table.tokens, table.types, strict=True)
    ]
    state = special(folder, len(tokens))
    if tokenizer is None:
        for role, index in named_tokens(folder, vocab).items():
            state.ids.setdefault({"cls": "bos"}.get(role, role), index)
    # The names that the reference writes; llama.cpp ignores them. The reference's hash knows an uncased English
    # vocabulary (under two names, the later one wins) and a Chinese one.
    name = pre if pre is not None else "bert-bge-large" if len(tokens) == 21128 else "jina-v2-en"
    result = Vocab(
        VocabKind.WORDPIECE, tokens, table.types, pre=name, token_type_count=folder.type_count, losses=table.losses
    )
    return replace(finish(folder, result, state), **flags)


def with_model_rules(folder: TokenizerFolder, vocab: Vocab) -> Vocab:
    """Applies the rules of the model class to the vocabulary (`LlamaModel.set_vocab`, its end)."""
    rules = folder.rules
    prefix = (folder.settings or {}).get("add_prefix_space")
    if rules.add_prefix_space and isinstance(prefix, bool):
        vocab = replace(vocab, add_space_prefix=prefix, space_prefix_at=rules.add_prefix_space)
    if rules.control:
        control = int(TokenType.CONTROL)
        types = [control if t in rules.control else k for t, k in zip(vocab.tokens, vocab.types, strict=True)]
        vocab = replace(vocab, types=types)
    by_size = rules.size.get(str(folder.vocab_size("vocab_size"))) if rules.size else None
    if by_size is None:
        return vocab
    late = by_size.special.keys() - vocab.special.keys()
    late |= {f"add_{role}" for role in by_size.add.keys() - vocab.add.keys()}
    special, add = {**vocab.special, **by_size.special}, {**vocab.add, **by_size.add}
    return replace(vocab, special=special, add=add, late=frozenset(late))
