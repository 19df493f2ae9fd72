"""Writes a `Vocab` as the tokenizer files of a Hugging Face folder; with them, transformers 4 and 5 tokenize as
llama.cpp does.

    tokenizer.json            always; complete without the others
    tokenizer_config.json     roles, flags, `added_tokens_decoder` (SPM), named chat templates
    special_tokens_map.json   roles again, for old programs
    chat_template.jinja       the default template, if it is the only one
    tokenizer.model           SPM
    spiece.model              Unigram; with fairseq's ids sentencepiece.bpe.model
    vocab.txt                 WordPiece
    rwkv_vocab_v20230424.txt  RWKV World, which has no tokenizer.json
    tokenizer.jsonl           PLaMo 2 and 3, likewise

The tokenizer class is `PreTrainedTokenizerFast` (`TokenizersBackend` in transformers 5), which uses tokenizer.json
unchanged; `LlamaTokenizer` and others would build their own pre-tokenizer. WordPiece keeps `BertTokenizer`, whose rules
are the same. Padding ([PADn]) isn't written: config.json's `vocab_size` implies it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from weighbridge.base.errors import FormatError, WeighbridgeError
from weighbridge.models.arch.tables.schema import TokenizerEntry
from weighbridge.models.tokenizer import pretokenizer
from weighbridge.models.tokenizer.formats import merges, sentencepiece
from weighbridge.models.tokenizer.hf import lattice, rwkv, unigram
from weighbridge.models.tokenizer.hf.read import from_hf
from weighbridge.models.tokenizer.vocab import (
    BYTE_TOKEN,
    NO_SCORE,
    SPACE,
    ChatTemplate,
    Json,
    TokenType,
    Vocab,
    VocabKind,
    padding,
)

ADDED: Final = frozenset((TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN))
# llama.cpp's ids for keys that a GGUF lacks (llama-vocab.cpp, `load`)
DEFAULT_IDS: Final[Mapping[VocabKind, Mapping[str, int]]] = {
    VocabKind.CHAR_BPE: {},
    VocabKind.SPM: {"bos": 1, "eos": 2, "unk": 0},
    VocabKind.UNIGRAM: {"eos": 1, "unk": 2, "pad": 0},
    VocabKind.WORDPIECE: {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
    VocabKind.BPE: {"bos": 11, "eos": 11},
}
CLASS: Final = "PreTrainedTokenizerFast"


def to_hf(vocab: Vocab, rules: TokenizerEntry | None = None) -> dict[str, bytes]:
    """Returns the tokenizer files by name; `losses` lists what they can't hold. `rules`: those of the model's family,
    which apply when the files are read."""
    if vocab.kind == VocabKind.RWKV:
        return with_settings(vocab, {rwkv.NAME: rwkv.vocabulary_file(vocab)}, {"tokenizer_class": "RwkvTokenizer"})
    if vocab.kind in lattice.KINDS:
        return lattice_files(vocab, rules)
    table = TokenTable(vocab)
    files = {"tokenizer.json": encode(tokenizer_json(vocab, table))}
    roles = {r: t for r, t in table.roles.items() if r in TOKEN_ROLES}
    config = settings(vocab, table, roles)
    files["tokenizer_config.json"] = encode(config, indent=2)
    files["special_tokens_map.json"] = encode({f"{r}_token": t for r, t in roles.items()}, indent=2)
    kept = [t for t in vocab.templates if not is_name(t)]
    if [t.name for t in kept] == ["default"]:
        files["chat_template.jinja"] = kept[0].text.encode("utf-8", "replace")
    if vocab.kind == VocabKind.SPM:
        files[sentencepiece.NAME] = sentencepiece_model(vocab, table)
    if vocab.kind == VocabKind.UNIGRAM:
        files |= unigram.model_file(vocab, table.kept, table.types[: len(table.kept)])
    if vocab.kind == VocabKind.WORDPIECE:
        files["vocab.txt"] = "".join(t + "\n" for t in table.kept).encode()
    types = unrecorded_types(vocab, files, rules)
    if types:
        files["tokenizer_config.json"] = encode({**config, "gguf_token_types": types}, indent=2)
    return files


def with_settings(vocab: Vocab, files: dict[str, bytes], config: Json) -> dict[str, bytes]:
    """Adds tokenizer_config.json with the chat template to the list of tokens."""
    kept = [t for t in vocab.templates if not is_name(t)]
    if kept:
        named = [{"name": t.name, "template": t.text} for t in kept]
        config = {**config, "chat_template": kept[0].text if [t.name for t in kept] == ["default"] else named}
    return {**files, "tokenizer_config.json": encode(config, indent=2)}


def lattice_files(vocab: Vocab, rules: TokenizerEntry | None) -> dict[str, bytes]:
    """Returns tokenizer.jsonl, and the settings with the special tokens."""
    roles = {f"{r}_token": vocab.token(r) for r in TOKEN_ROLES if vocab.token(r) is not None}
    flags = {f"add_{r}_token": flag for r, flag in vocab.add.items()}
    config: Json = {"tokenizer_class": lattice.class_name(vocab.kind), **roles, **flags}
    files = with_settings(vocab, {lattice.NAME: lattice.vocabulary_file(vocab)}, config)
    types = unrecorded_types(vocab, files, rules)
    return with_settings(vocab, files, {**config, "gguf_token_types": types}) if types else files


def unrecorded_types(vocab: Vocab, files: Mapping[str, bytes], rules: TokenizerEntry | None) -> dict[str, int]:
    """Returns the types by id that the files don't imply, such as a special token of type "normal". Only a conversion
    back to GGUF reads them."""
    config = encode({"vocab_size": len(vocab)})
    ruled = vocab.kind == VocabKind.CHAR_BPE or vocab.kind in lattice.KINDS
    rules = rules if ruled and rules else TokenizerEntry(char_bpe=ruled)
    pre = vocab.pre if vocab.kind == VocabKind.BPE else None
    try:
        back = from_hf({**files, "config.json": config}.get, pre=pre, rules=rules)
    except WeighbridgeError:
        return {}
    return {str(i): t for i, (t, read) in enumerate(zip(vocab.types, back.types, strict=False)) if t != read}


def is_name(template: ChatTemplate) -> bool:
    """Whether a template is the name of one that is built into llama.cpp, which other programs can't render."""
    return re.fullmatch(r"[A-Za-z0-9._-]+", template.text) is not None


def losses(vocab: Vocab) -> tuple[str, ...]:
    """Returns facts that a GGUF doesn't record and the files assume, and those that they can't express."""
    kind, types = vocab.kind, vocab.types
    unset = sorted(set(vocab.special) - set(TOKEN_ROLES) - {"eot", "eom"})
    beyond = [f"{r} ({i})" for r, i in vocab.special.items() if i >= len(vocab)]
    rows = (
        (TokenType.USER_DEFINED in types,
         "a GGUF doesn't record whether added tokens strip spaces (lstrip, rstrip): assuming no"),
        (kind == VocabKind.SPM,
         "a GGUF doesn't record whether every text segment gets a leading space or only the first: assuming every"),
        (kind == VocabKind.WORDPIECE, "clean_text, tokenize_chinese_chars and the longest word: assuming BERT's"),
        (kind == VocabKind.SPM and sum(t == TokenType.UNKNOWN for t in types) > 1,
         "tokenizer.model has one unknown piece: the others are written as control pieces"),
        (bool(unset), f"special tokens without a field in tokenizer files: {', '.join(unset)}"),
        (bool(beyond), f"special tokens beyond the vocabulary of {len(vocab)}: {', '.join(beyond)}"),
        (kind == VocabKind.BPE and len(vocab.scores) > 0 and any(vocab.scores), "unused scores of a byte-level BPE"),
        (kind == VocabKind.RWKV, "the tokenizer's code, rwkv_tokenizer.py: get it from the model's folder"),
        (kind in lattice.KINDS, "the tokenizer's code, tokenization_plamo.py: get it from the model's folder"),
        (len(vocab.suppress) > 0, "the list of suppressed tokens, which belongs in generation_config.json"),
    )  # fmt: skip
    named = (f"the chat template: {t.text!r} is llama.cpp's name for one" for t in vocab.templates if is_name(t))
    return (*vocab.losses, *named, *(text for applies, text in rows if applies))


TOKEN_ROLES: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class TokenTable:
    """The vocabulary for tokenizer.json: texts in its spelling, added tokens, padding."""

    def __init__(self, vocab: Vocab) -> None:
        self.types = list(vocab.types) if len(vocab.types) else [int(TokenType.NORMAL)] * len(vocab.tokens)
        self.texts = [t or f"[EMPTY_{i}]" for i, t in enumerate(vocab.tokens)]  # as llama.cpp names them (`load`)
        if is_wordpiece(vocab):  # llama.cpp's phantom spaces back to "##"
            self.texts = [
                text if kind == TokenType.CONTROL else text[1:] if text.startswith(SPACE) else "##" + text
                for text, kind in zip(self.texts, self.types, strict=True)
            ]
        self.pads = {i for i, t in enumerate(self.types) if t == TokenType.UNUSED and self.texts[i] == padding(i)}
        self._check()
        self.ids = self.named(vocab)
        self.roles = {r: self.texts[i] for r, i in self.ids.items()}
        # Tokens with a role are always added: transformers would append them otherwise.
        self.added = sorted({i for i, t in enumerate(self.types) if t in ADDED} | set(self.ids.values()))
        self.vocab = self.model_vocab(vocab)

    def _check(self) -> None:
        """Raises FormatError for tokens that aren't UTF-8, or that occur twice."""
        kept = [t for i, t in enumerate(self.texts) if i not in self.pads] if self.pads else self.texts
        if len(set(kept)) != len(kept):
            seen: dict[str, int] = {}
            for i, text in enumerate(self.texts):
                if i not in self.pads and seen.setdefault(text, i) != i:
                    twice = f"a token occurs twice, as id {seen[text]} and {i}"
                    raise FormatError(twice, field="tokenizer.ggml.tokens", found=text)
        try:
            "".join(kept).encode()
        except UnicodeEncodeError:
            bad = next(i for i, t in enumerate(self.texts) if t.encode("utf-8", "ignore").decode() != t)
            field = f"tokenizer.ggml.tokens[{bad}]"
            raise FormatError("a token isn't UTF-8", field=field, found=ascii(self.texts[bad])) from None

    def named(self, vocab: Vocab) -> dict[str, int]:
        """Returns the special tokens by role, with llama.cpp's defaults for ids that a GGUF omits."""
        ids = dict(vocab.special)
        defaults = DEFAULT_IDS[vocab.kind]
        for role, index in defaults.items():
            if vocab.kind != VocabKind.BPE or (index < len(self.types) and self.types[index] == TokenType.CONTROL):
                ids.setdefault(role, index)
        if is_wordpiece(vocab):
            ids = {"cls" if r == "bos" else r: i for r, i in ids.items() if r != "cls"}
            if ids.get("eos") == ids.get("sep"):
                ids.pop("eos", None)
        elif vocab.kind == VocabKind.UNIGRAM and {"bos", "sep"} <= ids.keys():
            ids.setdefault("cls", ids["bos"])  # for which a GGUF has no key
        return {r: i for r, i in ids.items() if i < len(self.texts) and i not in self.pads}

    def model_vocab(self, vocab: Vocab) -> dict[str, int]:
        """Returns the model's vocabulary. Added tokens that follow it without a gap are left out and get their ids by
        order; all others need an explicit id and are part of it."""
        last = max((i for i, t in enumerate(self.types) if t not in ADDED and i not in self.pads), default=-1)
        tail = [i for i in self.added if i > last]
        whole = not any(i <= last for i in self.pads)
        ordered = vocab.kind not in (VocabKind.SPM, VocabKind.CHAR_BPE) and whole
        outside = set(tail) if ordered and tail == [*range(last + 1, last + 1 + len(tail))] else set()
        skip = self.pads | outside
        return {t: i for i, t in enumerate(self.texts) if i not in skip}

    @property
    def unknown(self) -> int:
        """The id of tokenizer.model's only unknown piece. llama.cpp treats others as control tokens."""
        return self.ids.get("unk", next((i for i, t in enumerate(self.types) if t == TokenType.UNKNOWN), 0))

    @property
    def kept(self) -> list[str]:
        """Every id's text, without the padding at the end."""
        end = len(self.texts)
        while end and end - 1 in self.pads:
            end -= 1
        return self.texts[:end]


def is_wordpiece(vocab: Vocab) -> bool:
    return vocab.kind == VocabKind.WORDPIECE


def encode(value: Any, indent: int = 0) -> bytes:
    data = msgspec.json.encode(value)
    return msgspec.json.format(data, indent=indent) + b"\n" if indent else data


def tokenizer_json(vocab: Vocab, table: TokenTable) -> Json:
    writers = {
        VocabKind.SPM: spm_parts, VocabKind.BPE: bpe_parts, VocabKind.WORDPIECE: wordpiece_parts,
        VocabKind.UNIGRAM: unigram_parts, VocabKind.CHAR_BPE: raw_parts,
    }  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added(table, i) for i in table.added],
        **writers[vocab.kind](vocab, table),
    }


def added(table: TokenTable, index: int) -> Json:
    """Returns an entry of `added_tokens`. A user-defined token that the byte decoder would garble is marked as
    normalized, so that a conversion back keeps it."""
    text, control = table.texts[index], table.types[index] != TokenType.USER_DEFINED
    garbled = not text.isascii() and all(c in merges.BYTE_OF for c in text)
    return {
        "id": index, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": garbled, "special": control,
    }  # fmt: skip


def spm_parts(vocab: Vocab, table: TokenTable) -> Json:
    """Returns SentencePiece BPE as in transformers' `LlamaConverter` (legacy): like llama.cpp, it puts a space before
    the text after every special token."""
    # Merges between normal tokens only: special tokens are cut out first, and no text becomes bytes or unused tokens.
    scores = vocab.scores if len(vocab.scores) else [0.0] * len(table.texts)
    skip = {i for i, t in enumerate(table.types) if t != TokenType.NORMAL}
    pairs = merges.from_scores(table.texts, [float(s) for s in scores], skip)
    space = vocab.add_space_prefix is not False
    byte_fallback = any(t == TokenType.BYTE for t in table.types)
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = [{"type": "Prepend", "prepend": SPACE}] if space else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if space else []
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, escape]},
        "pre_tokenizer": None,
        "post_processor": template(vocab, table, bos=True),
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": table.roles.get("unk"), "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": byte_fallback, "ignore_merges": False,
            "vocab": table.vocab, "merges": pairs,
        },
    }  # fmt: skip


def bpe_parts(vocab: Vocab, table: TokenTable) -> Json:
    row = pretokenizer.known(name := vocab.pre or "default")
    if row.raw:
        return raw_parts(vocab, table)
    if not len(vocab.merges) and not row.merges_optional:
        raise FormatError(
            "byte-level BPE without merges, which llama.cpp can't load", field="tokenizer.ggml.merges",
            expected="at least one", found=0, hint="leave the tokenizer out: --no-tokenizer",
        )  # fmt: skip
    pairs = merges.parted(vocab.merges)
    merges.check(pairs, table.vocab, "tokenizer.ggml.merges")
    return {
        "normalizer": {"type": "NFC"} if name in pretokenizer.table().nfc else None,
        "pre_tokenizer": pretokenizer.definition(name),
        "post_processor": template(vocab, table, bos=row.add_bos),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": row.ignore_merges,
            "vocab": table.vocab, "merges": pairs,
        },
    }  # fmt: skip


def raw_parts(vocab: Vocab, table: TokenTable) -> Json:
    """Returns BPE over characters. llama.cpp always adds a bos to texts of this kind, whatever the key sets."""
    name = vocab.pre or VocabKind.CHAR_BPE.value
    pairs = merges.parted(vocab.merges)
    merges.check(pairs, table.vocab, "tokenizer.ggml.merges")
    forced = {"bos": True} if name in pretokenizer.known(VocabKind.CHAR_BPE.value).names else {}
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": pretokenizer.definition(name),
        "post_processor": template(replace(vocab, add={**vocab.add, **forced}), table, bos=False),
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": table.roles.get("unk"), "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": table.vocab, "merges": pairs,
        },
    }  # fmt: skip


def unigram_parts(vocab: Vocab, table: TokenTable) -> Json:
    kept = table.kept
    around = template(vocab, table, bos=False, eos=True)
    return unigram.parts(vocab, kept, table.types[: len(kept)], table.ids.get("unk"), around)


def wordpiece_parts(vocab: Vocab, table: TokenTable) -> Json:
    cls, sep = table.roles.get("cls"), table.roles.get("sep")
    around = processor(table, cls, sep, None) if vocab.add else None
    if not vocab.add and cls is not None and sep is not None:  # the form that implies no flags in a conversion back
        around = {"type": "BertProcessing", "sep": [sep, table.ids["sep"]], "cls": [cls, table.ids["cls"]]}
    return {
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
            "strip_accents": vocab.strip_accents, "lowercase": vocab.lowercase is not False,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": around,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": table.roles.get("unk", "[UNK]"), "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": table.vocab,
        },
    }  # fmt: skip


def template(vocab: Vocab, table: TokenTable, bos: bool, eos: bool = False) -> Json | None:
    """Returns the post-processor that adds tokens to a text: by the keys, or llama.cpp's defaults for the kind (`bos`,
    `eos`)."""
    first = table.roles.get("bos") if vocab.add.get("bos", bos) else None
    last = table.roles.get("eos") if vocab.add.get("eos", eos) else None
    if first is None and last is None:
        if vocab.kind != VocabKind.BPE or vocab.add.get("bos") is not False:
            return None
        # Adds nothing, and makes the reference add neither bos nor eos.
        return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    again = first if "sep" in vocab.add else None
    if vocab.add.get("sep"):
        again = table.roles.get("sep", last)
    return processor(table, first, last, again)


def processor(table: TokenTable, first: str | None, last: str | None, again: str | None) -> Json | None:
    """Returns a TemplateProcessing: `first A last`, and for pairs `first A last B last`, with `again` before B if set.
    The tokens between A and B determine whether a conversion back records a separator (`special.separator`)."""
    if first is None and last is None:
        return None
    ids = {t: i for i, t in enumerate(table.texts) if t in (first, last, again)}

    def around(text: str, side: int, begin: str | None) -> list[Json]:
        items: list[Json] = [{"SpecialToken": {"id": begin, "type_id": side}}] if begin is not None else []
        items.append({"Sequence": {"id": text, "type_id": side}})
        return items + ([{"SpecialToken": {"id": last, "type_id": side}}] if last is not None else [])

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0, first),
        "pair": around("A", 0, first) + around("B", 1, again),
        "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in ids.items()},
    }


def settings(vocab: Vocab, table: TokenTable, roles: dict[str, str]) -> Json:
    """Returns tokenizer_config.json."""
    out: Json = {f"add_{r}_token": f for r, f in vocab.add.items()} if vocab.kind != VocabKind.WORDPIECE else {}
    if vocab.kind == VocabKind.SPM:
        # Entries override the pieces of tokenizer.model with the score of added tokens: only those that have it.
        scores = vocab.scores or [NO_SCORE] * len(table.texts)
        rows = [i for i in table.added if table.types[i] != TokenType.UNKNOWN and scores[i] == NO_SCORE]
        out["added_tokens_decoder"] = {str(i): {k: v for k, v in added(table, i).items() if k != "id"} for i in rows}
        if vocab.add_space_prefix is not None:
            out["add_prefix_space"] = vocab.add_space_prefix
        out["legacy"] = True
    out |= {f"{r}_token": t for r, t in roles.items()}
    if vocab.kind != VocabKind.WORDPIECE:  # absent from BERT's files; transformers' versions differ in the default
        out["clean_up_tokenization_spaces"] = False
    if vocab.kind == VocabKind.WORDPIECE:
        out |= {"do_lower_case": vocab.lowercase is not False, "strip_accents": vocab.strip_accents}
        out["tokenize_chinese_chars"] = True
    if vocab.max_length is not None:
        out["model_max_length"] = vocab.max_length
    out["tokenizer_class"] = "BertTokenizer" if vocab.kind == VocabKind.WORDPIECE else CLASS
    kept = [t for t in vocab.templates if not is_name(t)]
    if kept and [t.name for t in kept] != ["default"]:
        out["chat_template"] = [{"name": t.name, "template": t.text} for t in kept]
    return out


def sentencepiece_model(vocab: Vocab, table: TokenTable) -> bytes:
    """Returns tokenizer.model: all tokens except the padding at the end as pieces. SentencePiece requires exactly one
    unknown piece, and all byte pieces or none."""
    count = max((i + 1 for i in range(len(table.texts)) if i not in table.pads), default=0)
    unknown = table.unknown
    types = [int(TokenType.CONTROL if t == TokenType.UNKNOWN else t) for t in table.types[:count]]
    types[unknown] = TokenType.UNKNOWN
    scores = [float(s) for s in vocab.scores[:count]] if len(vocab.scores) else [0.0] * count
    ids = {r: i for r, i in table.ids.items() if r in ("bos", "eos", "pad")}
    texts = table.texts[:count]
    byte_texts = (text for text, kind in zip(texts, types, strict=True) if kind == TokenType.BYTE)
    model = sentencepiece.SentencePieceModel(
        texts, scores, types, model_type=sentencepiece.BPE, byte_fallback=any(map(BYTE_TOKEN.fullmatch, byte_texts)),
        add_dummy_prefix=vocab.add_space_prefix is not False, remove_extra_whitespaces=False,
        ids={"pad": -1} | ids | {"unk": unknown},
    )  # fmt: skip
    return sentencepiece.dump(model)
