"""`Vocab` <-> the `tokenizer.*` keys of a GGUF: keys, types and order as the reference converter writes them
(`set_vocab` of conversion/llama.py, base.py, bert.py; then `SpecialVocab.add_to_gguf`). Empty strings and arrays are
omitted, as gguf-py omits them.

Reading accepts any order and checks what llama.cpp checks (llama-vocab.cpp, `load`): element types and the lengths of
parallel arrays. Lazily decoded arrays stay lazy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.gguf.container import KV
from weighbridge.models.tokenizer.vocab import ChatTemplate, Vocab, VocabKind, check_size

GGML: Final = "tokenizer.ggml."
# Role -> key. `seperator` is GGUF's spelling. `cls` has no key: it is written as bos.
ROLES: Final[Mapping[str, str]] = {
    "bos": GGML + "bos_token_id",
    "eos": GGML + "eos_token_id",
    "unk": GGML + "unknown_token_id",
    "sep": GGML + "seperator_token_id",
    "pad": GGML + "padding_token_id",
    "mask": GGML + "mask_token_id",
    "eot": GGML + "eot_token_id",
    "eom": GGML + "eom_token_id",
    "fim_pre": GGML + "fim_pre_token_id",
    "fim_suf": GGML + "fim_suf_token_id",
    "fim_mid": GGML + "fim_mid_token_id",
    "fim_pad": GGML + "fim_pad_token_id",
    "fim_rep": GGML + "fim_rep_token_id",
    "fim_sep": GGML + "fim_sep_token_id",
}
OLD_ROLES: Final = {
    "fim_pre": GGML + "prefix_token_id",
    "fim_suf": GGML + "suffix_token_id",
    "fim_mid": GGML + "middle_token_id",
}
ADD: Final[Mapping[str, str]] = {r: f"{GGML}add_{r}_token" for r in ("bos", "eos", "sep")}
SCALARS: Final[Mapping[str, str]] = {  # field of Vocab -> key
    "add_space_prefix": GGML + "add_space_prefix",
    "remove_extra_whitespaces": GGML + "remove_extra_whitespaces",
    "lowercase": GGML + "normalizer.lowercase",
    "strip_accents": GGML + "normalizer.strip_accents",
}
# Tokens to be added for which llama.cpp has no default id: without one it aborts on the first text.
NEEDED: Final[Mapping[VocabKind, tuple[str, ...]]] = {
    VocabKind.UNIGRAM: ("bos",),
    VocabKind.CHAR_BPE: ("bos", "eos"),
}
OTHER_MODELS: Final[Mapping[str, str]] = {  # further models of llama.cpp (llama-vocab.cpp, `load`)
    "hybriddna": "BPE with DNA k-mers", "whitespace": "words of a Chinese BERT", "none": "no tokenizer",
    "no_vocab": "no tokenizer",
}  # fmt: skip
TYPE_COUNT: Final = GGML + "token_type_count"
CHARSMAP: Final = GGML + "precompiled_charsmap"
SUPPRESS: Final = GGML + "suppress_tokens"
TEMPLATE: Final = "tokenizer.chat_template"
TEMPLATES: Final = "tokenizer.chat_templates"
NAMED: Final = re.compile(r"tokenizer\.chat_template\.(.+)", re.DOTALL)


def to_gguf(vocab: Vocab) -> dict[str, KV]:
    """The keys in the reference's order. FormatError for what llama.cpp would abort on."""
    for role in NEEDED.get(vocab.kind, ()):
        if vocab.add.get(role) and role not in vocab.special:
            raise FormatError(
                f"add_{role}_token is set, but no {role} token is named", path="tokenizer_config.json",
                field=f"{role}_token", hint=f"name one, or set add_{role}_token = false",
            )  # fmt: skip
    return dict(keys(vocab))


def keys(vocab: Vocab) -> Iterator[tuple[str, KV]]:
    yield from space_prefix(vocab, "first")
    counted = vocab.token_type_count is not None
    if counted and vocab.kind == VocabKind.WORDPIECE:
        yield TYPE_COUNT, KV("u32", vocab.token_type_count)
    yield GGML + "model", KV("str", vocab.kind.value)
    if vocab.pre:
        yield GGML + "pre", KV("str", vocab.pre)
    yield from arrays(vocab)
    yield from space_prefix(vocab, "tokens")
    if vocab.kind == VocabKind.UNIGRAM:
        yield from normalization(vocab)
    elif vocab.remove_extra_whitespaces is not None:
        yield SCALARS["remove_extra_whitespaces"], KV("bool", vocab.remove_extra_whitespaces)
    if vocab.merges:
        yield GGML + "merges", KV("arr[str]", vocab.merges)
    yield from roles(vocab, late=False)
    yield from templates(vocab)
    yield from roles(vocab, late=True)
    yield from space_prefix(vocab, "last")
    for name in ("lowercase", "strip_accents"):
        flag = getattr(vocab, name)
        if flag is not None:
            yield SCALARS[name], KV("bool", flag)
    if counted and vocab.kind not in (
        VocabKind.WORDPIECE,
        VocabKind.UNIGRAM,
    ):
        yield TYPE_COUNT, KV("u32", vocab.token_type_count)
    if vocab.suppress:
        yield SUPPRESS, KV("arr[i32]", vocab.suppress)


def roles(vocab: Vocab, late: bool) -> Iterator[tuple[str, KV]]:
    """The keys of special tokens and of those added to every text that stand before the templates, or after them."""
    for role, index in vocab.special.items():
        if role in ROLES and (role in vocab.late) is late:
            yield ROLES[role], KV("u32", index)
    if not late:
        yield from space_prefix(vocab, "ids")
    for role, flag in vocab.add.items():
        if role in ADD and (f"add_{role}" in vocab.late) is late:
            yield ADD[role], KV("bool", flag)


_PREFIX_AT: Final = {
    VocabKind.UNIGRAM: "tokens", VocabKind.CHAR_BPE: "last", VocabKind.PLAMO2: "ids", VocabKind.PLAMO3: "ids",
}  # fmt: skip


def space_prefix(vocab: Vocab, at: str) -> Iterator[tuple[str, KV]]:
    """The key of the space before a text, at the one place where the reference writes it for this vocabulary."""
    if vocab.add_space_prefix is not None and _PREFIX_AT.get(vocab.kind, vocab.space_prefix_at) == at:
        yield SCALARS["add_space_prefix"], KV("bool", vocab.add_space_prefix)


def normalization(vocab: Vocab) -> Iterator[tuple[str, KV]]:
    """Unigram's switches follow the arrays (`T5Model.set_vocab`, `_xlmroberta_set_vocab`)."""
    if vocab.token_type_count is not None:
        yield TYPE_COUNT, KV("u32", vocab.token_type_count)
    if vocab.remove_extra_whitespaces is not None:
        yield SCALARS["remove_extra_whitespaces"], KV("bool", vocab.remove_extra_whitespaces)
    if vocab.charsmap:
        yield CHARSMAP, KV("arr[u8]", vocab.charsmap)


def arrays(vocab: Vocab) -> Iterator[tuple[str, KV]]:
    """The parallel arrays. FormatError for a token that occurs twice, on which llama.cpp aborts."""
    if len(set(vocab.tokens)) != len(vocab.tokens):
        seen: dict[str, int] = {}
        for i, text in enumerate(vocab.tokens):
            if seen.setdefault(text, i) != i:
                raise FormatError(
                    f"a token occurs twice, as id {seen[text]} and {i}", field=GGML + "tokens", found=text,
                    hint="llama.cpp aborts on such a file; rename one of the two if it is never used",
                )  # fmt: skip
    rows = (("tokens", "str", vocab.tokens), ("scores", "f32", vocab.scores), ("token_type", "i32", vocab.types))
    for name, kind, values in rows:
        if len(values):
            yield GGML + name, KV(f"arr[{kind}]", values)


def templates(vocab: Vocab) -> Iterator[tuple[str, KV]]:
    """Named templates, the list of their names, the default template."""
    named = [t for t in vocab.templates if t.name != "default"]
    for template in named:
        yield f"{TEMPLATE}.{template.name}", KV("str", template.text)
    if named:
        yield TEMPLATES, KV("arr[str]", [t.name for t in named])
    if vocab.template:
        yield TEMPLATE, KV("str", vocab.template)


class KeyReader:
    """Typed access to a GGUF's metadata; FormatError names a key of a wrong type. Checks stored types if the mapping
    knows them (`type(key)`), Python's otherwise."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata
        self.stored = getattr(metadata, "type", None)

    def value(self, key: str, kind: type | tuple[type, ...], expected: str) -> Any:
        """The value; None if the key is absent."""
        if key not in self.metadata:
            return None
        value = self.metadata[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise FormatError("wrong type", field=key, expected=expected, found=type(value).__name__)
        return value

    def text(self, key: str) -> str | None:
        found: str | None = self.value(key, str, "a string")
        return found

    def number(self, key: str) -> int | None:
        found: int | None = self.value(key, int, "an integer")
        if found is not None and not 0 <= found < 1 << 32:
            raise FormatError("number out of range", field=key, expected="0..2^32-1", found=found)
        return found

    def flag(self, key: str) -> bool | None:
        found: bool | None = self.value(key, bool, "a bool")
        return found

    def array(self, key: str, kinds: tuple[str, ...], length: int | None = None) -> Sequence[Any]:
        """An array whose element type is one of `kinds`, cut to `length`; () if the key is absent."""
        found = self.value(key, Sequence, "an array")
        if found is None:
            return ()
        if isinstance(found, str):
            raise FormatError("wrong type", field=key, expected="an array", found="a string")
        stored = self.stored(key) if self.stored is not None else sample(found)
        if stored is not None and stored not in {f"arr[{k}]" for k in kinds}:
            raise FormatError("wrong array type", field=key, expected=f"arr[{kinds[0]}]", found=stored)
        if length is not None and len(found) < length:
            raise FormatError("array shorter than the vocabulary", field=key, expected=length, found=len(found))
        whole: Sequence[Any] = found
        return whole if length is None or len(found) == length else whole[:length]


def sample(values: Sequence[Any]) -> str | None:
    """The element type of a plain sequence, judged by its first element."""
    if not len(values):
        return None
    if isinstance(values, (bytes, bytearray)):
        return "arr[u8]"
    first = values[0]
    kinds: tuple[tuple[type, str], ...] = ((str, "str"), (bool, "bool"), (int, "i32"), (float, "f32"))
    return next((f"arr[{name}]" for kind, name in kinds if isinstance(first, kind)), type(first).__name__)


def from_gguf(metadata: Mapping[str, Any]) -> Vocab:
    """The tokenizer of a GGUF."""
    read = KeyReader(metadata)
    model = read.text(GGML + "model")
    if model is None:
        raise FormatError("the file has no tokenizer", field=GGML + "model")
    if model not in set(VocabKind):
        whose = OTHER_MODELS.get(model)
        raise UnsupportedError(
            f"tokenizer of type {model!r}" + (f" ({whose}) has no form in a model folder" if whose else ""),
            hint=f"supported: {', '.join(VocabKind)}",
        )
    tokens = read.array(GGML + "tokens", ("str",))
    if not len(tokens):
        raise FormatError("the vocabulary is empty", field=GGML + "tokens")
    count = check_size(len(tokens), GGML + "tokens")
    return Vocab(
        VocabKind(model),
        tokens,
        types=read.array(GGML + "token_type", ("i32",), count),
        scores=read.array(GGML + "scores", ("f32", "i32"), count),
        merges=read.array(GGML + "merges", ("str",)),
        pre=read.text(GGML + "pre"),
        special=special(read),
        add={r: f for r, k in ADD.items() if (f := read.flag(k)) is not None},
        charsmap=bytes(v & 0xFF for v in read.array(CHARSMAP, ("u8", "i8", "i32"))) or None,
        token_type_count=read.number(TYPE_COUNT),
        suppress=read.array(SUPPRESS, ("i32",)),
        templates=read_templates(read),
        max_length=context_length(read),
        add_space_prefix=read.flag(SCALARS["add_space_prefix"]),
        remove_extra_whitespaces=read.flag(SCALARS["remove_extra_whitespaces"]),
        lowercase=read.flag(SCALARS["lowercase"]),
        strip_accents=read.flag(SCALARS["strip_accents"]),
    )


def special(read: KeyReader) -> dict[str, int]:
    """The special ids in the file's order, including the three old names of the fill-in-the-middle tokens."""
    found = {r: i for r, k in ROLES.items() if (i := read.number(k)) is not None}
    for role, key in OLD_ROLES.items():
        index = read.number(key)
        if index is not None:
            found.setdefault(role, index)
    order = {k: n for n, k in enumerate(read.metadata)}
    return dict(sorted(found.items(), key=lambda item: order.get(ROLES[item[0]], len(order))))


def read_templates(read: KeyReader) -> tuple[ChatTemplate, ...]:
    """The chat templates. Their names come from the keys, not from the list of names, which may be incomplete."""
    found = []
    for key in read.metadata:
        match = NAMED.fullmatch(key)
        if match and (text := read.text(key)):
            found.append(ChatTemplate(match[1], text))
    default = read.text(TEMPLATE)
    return (*found, ChatTemplate("default", default)) if default else tuple(found)


def context_length(read: KeyReader) -> int | None:
    architecture = read.metadata.get("general.architecture")
    return read.number(f"{architecture}.context_length") if isinstance(architecture, str) else None
