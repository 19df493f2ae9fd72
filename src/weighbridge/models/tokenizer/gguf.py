"""`Vocab` <-> the `tokenizer.*` keys of a GGUF: keys, types and order as the reference converter writes them
(`set_vocab` of conversion/llama.py, base.py, bert.py; then `SpecialVocab.add_to_gguf`). Empty strings and arrays are
omitted, as in gguf-py.

Reading accepts any order and makes the checks of llama.cpp (llama-vocab.cpp, `load`): element types and the lengths of
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
    **{role: f"{GGML}{role}_token_id" for role in ("bos", "eos")},
    "unk": GGML + "unknown_token_id",
    "sep": GGML + "seperator_token_id",
    "pad": GGML + "padding_token_id",
    **{
        role: f"{GGML}{role}_token_id"
        for role in ("mask", "eot", "eom", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep")
    },
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
# Tokens without a default id in llama.cpp: if they are to be added and have no id, it aborts on the first text.
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
    """Returns the keys in the reference's order. Raises FormatError for a vocabulary on which llama.cpp would abort."""
    for role in NEEDED.get(vocab.kind, ()):
        if vocab.add.get(role) and role not in vocab.special:
            raise FormatError(
                f"add_{role}_token is set, but no {role} token is named", path="tokenizer_config.json",
                field=f"{role}_token", hint=f"name one, or set add_{role}_token = false",
            )  # fmt: skip
    return dict(keys(vocab))


def keys(vocab: Vocab) -> Iterator[tuple[str, KV]]:
    yield from space_prefix(vocab, "first")
    count = [(TYPE_COUNT, KV("u32", vocab.token_type_count))] if vocab.token_type_count is not None else []
    whitespaces = flags(vocab, "remove_extra_whitespaces")
    if vocab.kind == VocabKind.WORDPIECE:
        yield from count
    yield GGML + "model", KV("str", vocab.kind.value)
    if vocab.pre:
        yield GGML + "pre", KV("str", vocab.pre)
    yield from arrays(vocab)
    yield from space_prefix(vocab, "tokens")
    if vocab.kind == VocabKind.UNIGRAM:  # its switches follow the arrays (`T5Model.set_vocab`)
        yield from count
    yield from whitespaces
    if vocab.kind == VocabKind.UNIGRAM and vocab.charsmap:
        yield CHARSMAP, KV("arr[u8]", vocab.charsmap)
    if vocab.merges:
        yield GGML + "merges", KV("arr[str]", vocab.merges)
    yield from roles(vocab, late=False)
    named = [t for t in vocab.templates if t.name != "default"]
    for template in named:
        yield f"{TEMPLATE}.{template.name}", KV("str", template.text)
    if named:
        yield TEMPLATES, KV("arr[str]", [t.name for t in named])
    if vocab.template:
        yield TEMPLATE, KV("str", vocab.template)
    yield from roles(vocab, late=True)
    yield from space_prefix(vocab, "last")
    yield from flags(vocab, "lowercase", "strip_accents")
    if vocab.kind not in (VocabKind.WORDPIECE, VocabKind.UNIGRAM):
        yield from count
    if vocab.suppress:
        yield SUPPRESS, KV("arr[i32]", vocab.suppress)


def flags(vocab: Vocab, *names: str) -> Iterator[tuple[str, KV]]:
    yield from ((SCALARS[name], KV("bool", flag)) for name in names if (flag := getattr(vocab, name)) is not None)


def roles(vocab: Vocab, late: bool) -> Iterator[tuple[str, KV]]:
    """Yields the keys of special tokens and of tokens added to every text, before the templates or after them
    (`late`)."""
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
    """Yields the key for a space before a text, at the reference's position for this vocabulary."""
    if vocab.add_space_prefix is not None and _PREFIX_AT.get(vocab.kind, vocab.space_prefix_at) == at:
        yield SCALARS["add_space_prefix"], KV("bool", vocab.add_space_prefix)


def arrays(vocab: Vocab) -> Iterator[tuple[str, KV]]:
    """Yields the parallel arrays. Raises FormatError for a token that occurs twice, on which llama.cpp aborts."""
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


class KeyReader:
    """Typed access to a GGUF's metadata. Raises FormatError for a key of a wrong type. Checks stored types if the
    mapping knows them (`type(key)`), otherwise Python's."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata
        self.stored = getattr(metadata, "type", None)

    def value(self, key: str, kind: type | tuple[type, ...], expected: str) -> Any:
        """Returns the value, or None if the key is absent."""
        if key not in self.metadata:
            return None
        value = self.metadata[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise FormatError("wrong type", field=key, expected=expected, found=type(value).__name__)
        return value

    def text(self, key: str) -> str | None:
        text: str | None = self.value(key, str, "a string")
        return text

    def number(self, key: str) -> int | None:
        number: int | None = self.value(key, int, "an integer")
        if number is not None and not 0 <= number < 1 << 32:
            raise FormatError("number out of range", field=key, expected="0..2^32-1", found=number)
        return number

    def flag(self, key: str) -> bool | None:
        flag: bool | None = self.value(key, bool, "a bool")
        return flag

    def array(self, key: str, kinds: tuple[str, ...], length: int | None = None) -> Sequence[Any]:
        """Returns an array whose element type is one of `kinds`, cut to `length`; () if the key is absent."""
        values = self.value(key, Sequence, "an array")
        if values is None:
            return ()
        if isinstance(values, str):
            raise FormatError("wrong type", field=key, expected="an array", found="a string")
        stored = self.stored(key) if self.stored is not None else sample(values)
        if stored is not None and stored not in {f"arr[{k}]" for k in kinds}:
            raise FormatError("wrong array type", field=key, expected=f"arr[{kinds[0]}]", found=stored)
        if length is not None and len(values) < length:
            raise FormatError("array shorter than the vocabulary", field=key, expected=length, found=len(values))
        whole: Sequence[Any] = values
        return whole if length is None or len(values) == length else whole[:length]


def sample(values: Sequence[Any]) -> str | None:
    """Returns the element type of a plain sequence, judged by its first element."""
    if not len(values):
        return None
    if isinstance(values, (bytes, bytearray)):
        return "arr[u8]"
    first = values[0]
    kinds: tuple[tuple[type, str], ...] = ((str, "str"), (bool, "bool"), (int, "i32"), (float, "f32"))
    return next((f"arr[{name}]" for kind, name in kinds if isinstance(first, kind)), type(first).__name__)


def from_gguf(metadata: Mapping[str, Any]) -> Vocab:
    """Reads the tokenizer of a GGUF."""
    read = KeyReader(metadata)
    model = read.text(GGML + "model")
    if model is None:
        raise FormatError("the file has no tokenizer", field=GGML + "model")
    if model not in set(VocabKind):
        description = OTHER_MODELS.get(model)
        raise UnsupportedError(
            f"tokenizer of type {model!r}" + (f" ({description}) has no form in a model folder" if description else ""),
            hint=f"supported: {', '.join(VocabKind)}",
        )
    tokens = read.array(GGML + "tokens", ("str",))
    if not len(tokens):
        raise FormatError("the vocabulary is empty", field=GGML + "tokens")
    count = check_size(len(tokens), GGML + "tokens")
    named = ((match[1], read.text(key)) for key in metadata if (match := NAMED.fullmatch(key)))
    # Names come from the keys, not from the list of names, which may be incomplete.
    templates = [ChatTemplate(name, text) for name, text in (*named, ("default", read.text(TEMPLATE))) if text]
    architecture = metadata.get("general.architecture")
    return Vocab(
        VocabKind(model),
        tokens,
        types=read.array(GGML + "token_type", ("i32",), count),
        scores=read.array(GGML + "scores", ("f32", "i32"), count),
        merges=read.array(GGML + "merges", ("str",)),
        pre=read.text(GGML + "pre"),
        special=special(read),
        add={role: flag for role, key in ADD.items() if (flag := read.flag(key)) is not None},
        charsmap=bytes(v & 0xFF for v in read.array(CHARSMAP, ("u8", "i8", "i32"))) or None,
        token_type_count=read.number(TYPE_COUNT),
        suppress=read.array(SUPPRESS, ("i32",)),
        templates=tuple(templates),
        max_length=read.number(f"{architecture}.context_length") if isinstance(architecture, str) else None,
        **{field: read.flag(key) for field, key in SCALARS.items()},  # type: ignore[arg-type]
    )


def special(read: KeyReader) -> dict[str, int]:
    """Returns the special ids in the file's order, including the three old keys of the fill-in-the-middle tokens."""
    ids = {role: index for role, key in ROLES.items() if (index := read.number(key)) is not None}
    for role, key in OLD_ROLES.items():
        if (index := read.number(key)) is not None:
            ids.setdefault(role, index)
    order = {k: n for n, k in enumerate(read.metadata)}
    return dict(sorted(ids.items(), key=lambda item: order.get(ROLES[item[0]], len(order))))
