"""Special tokens, tokens added to every text, and chat templates, by the reference converter's rules
(gguf-py/gguf/vocab.py, `SpecialVocab`) and in its order, which decides the order of the keys in a GGUF.

    1 post_processor         decides which tokens are added to a text (`add`), and may name tokens
    2 tokenizer_config.json  names tokens by text; the id is that of the first *added* token with that text
    3 config.json            sets ids for the remaining roles

Some rules are crude: a template that starts with neither bos nor cls means "don't add bos". They are kept because
published files were made with them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import JSON_DEPTH
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.models.tokenizer.hf.folder import PostProcessor, TemplatePiece, TokenizerFolder, content
from weighbridge.models.tokenizer.vocab import ChatTemplate, Json, Vocab, VocabKind

ROLES: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
NAMES: Final = ("tool_use", "rag")  # additional templates to try when the folder can't be listed
EXTRA: Final = "additional_chat_templates/"
_EXTRA: Final = re.compile(rf"{EXTRA}[^/]*\.jinja", re.DOTALL)


@dataclass
class SpecialTokens:
    """The state and result of the rules. `names`: tokenizer_config.json with the post-processor's additions; None if
    there is no such file, which disables rule 2."""

    names: Json | None
    roles: tuple[str, ...] = ROLES
    ids: dict[str, int] = field(default_factory=dict)
    add: dict[str, bool] = field(default_factory=dict)
    outside: dict[str, int] = field(default_factory=dict)  # omitted ids beyond the vocabulary

    def token(self, role: str) -> Any:
        return (self.names or {}).get(f"{role}_token")

    def name(self, role: str, text: Any) -> None:
        if self.names is not None:
            self.names[f"{role}_token"] = text


def special(folder: TokenizerFolder, count: int | None, roles: Sequence[str] = ROLES) -> SpecialTokens:
    """Applies the rules. Omits ids of `count` and above; None disables that check (byte-level BPE)."""
    settings = folder.settings
    state = SpecialTokens(dict(settings) if settings else None, tuple(roles))  # an empty file counts as none
    tokenizer = folder.tokenizer
    if tokenizer is not None:
        around(state, tokenizer.post_processor)
    if state.names is not None:  # rule 2
        ids: dict[str, int] = {}
        for token in tokenizer.added_tokens if tokenizer is not None else ():
            ids.setdefault(token.content, token.id)
        for role in state.roles:
            flag = state.names.get(f"add_{role}_token")
            if isinstance(flag, bool):
                state.add.setdefault(role, flag)
            if (text := content(state.token(role))) is not None:
                put(state, role, ids.get(text), count)
    for role in state.roles:  # rule 3; a list of ids (several end tokens) is ignored
        index = folder.root.get(f"{role}_token_id")
        put(state, role, folder.text_config.get(f"{role}_token_id") if index is None else index, count)
    return state


def around(state: SpecialTokens, processor: PostProcessor | None) -> None:
    """Applies rule 1. If only `cls` and `sep` are named, they are also `bos` and `eos`."""
    if not state.token("bos") and state.token("cls"):
        state.name("bos", state.token("cls"))
    if not state.token("eos") and state.token("sep"):
        state.name("eos", state.token("sep"))
    # As in the reference, the four tokens carry over from one processor to the next.
    seen = {r: state.token(r) for r in ("bos", "cls", "eos", "sep")}
    if processor is None:
        return
    for item in [processor] if processor.processors is None else processor.processors:
        if item.type == "ByteLevel":
            state.add.setdefault("bos", False)
            state.add.setdefault("eos", False)
        elif item.type == "RobertaProcessing":
            state.add |= {"bos": True, "eos": True, "sep": True}
            for role, pair, default in (("cls", item.cls, "bos"), ("sep", item.sep, "eos")):
                if not seen[role] and state.names is not None:
                    seen[role] = pair[0] if pair is not None else seen[default]
                    state.name(role, seen[role])
        elif item.type == "TemplateProcessing":
            template(state, item, seen)


def template(state: SpecialTokens, item: PostProcessor, seen: Json) -> None:
    """Reads `[CLS] A [SEP]`: the first and last item are the added tokens; the pair shows whether a separator is added.

    A last token other than eos becomes eos; the former eos becomes end of turn, otherwise end of message.
    """
    first = last = None
    if len(item.single) > 1:
        first, last = text_of(item.single[0]), text_of(item.single[-1])
    if first:
        if state.names is None:
            seen["bos"] = first
        elif first not in (seen["bos"], seen["cls"]):
            for role in (role for role in ("bos", "cls") if not seen[role]):
                seen[role] = first
                state.name(role, first)
        state.add["bos"] = first in (seen["bos"], seen["cls"])
    if last:
        if state.names is None:
            seen["eos"] = last
        elif last != seen["eos"]:
            spare = next((r for r in ("eot", "eom") if r not in state.roles), None)
            if spare is not None:
                state.roles += (spare,)
                state.name(spare, seen["eos"])
            seen["eos"] = last
            state.name("eos", last)
        state.add["eos"] = True
    if item.pair:
        separator(state, item.pair, first, last, seen)


def text_of(piece: TemplatePiece) -> str | None:
    return piece.special.id if piece.special is not None else None


def separator(state: SpecialTokens, pair: list[TemplatePiece], first: str | None, last: str | None, seen: Json) -> None:
    """Reads `[CLS] A [SEP] B [SEP]` without its outer tokens: one or two separators between A and B."""
    start = 1 if first and text_of(pair[0]) == first else 0
    stop = len(pair) - 1 if last and text_of(pair[-1]) == last else len(pair)
    inner = pair[start:stop]
    ends = [p.sequence.id if p.sequence is not None else None for p in (inner[:1] + inner[-1:])]
    middle = [text_of(p) for p in inner[1:-1]]
    if ends != ["A", "B"] or not middle:
        return
    separators = [bool(text) and text in (seen["sep"], seen["eos"]) for text in middle]
    add = (separators[0] and not last) or (len(middle) == 2 and separators[1])
    state.add["sep"] = add
    if add and not seen["sep"]:
        state.name("sep", seen["eos"])


def put(state: SpecialTokens, role: str, index: Any, count: int | None) -> None:
    if isinstance(index, bool) or not isinstance(index, int):
        return
    if not 0 <= index < 1 << 32:  # the key is a u32
        raise FormatError("not a token id", field=f"{role}_token_id", found=index)
    if count is None or index < count:
        state.ids.setdefault(role, index)
    else:
        state.outside.setdefault(role, index)


def normalizer_flags(normalizer: Json | None, depth: int = 0) -> dict[str, bool]:
    """Returns `lowercase` and `strip_accents` of a normalizer or a sequence of them (`_parse_normalizer`)."""
    out: dict[str, bool] = {}
    if normalizer is None or depth > JSON_DEPTH:
        return out
    kind = normalizer.get("type")
    if kind == "Lowercase":
        out["lowercase"] = True
    elif kind == "StripAccents":
        out["strip_accents"] = True
    elif kind == "BertNormalizer":
        out = {k: v for k in ("lowercase", "strip_accents") if isinstance(v := normalizer.get(k), bool)}
    elif kind == "Sequence" and isinstance(inner := normalizer.get("normalizers"), list):
        for item in inner:
            out |= normalizer_flags(item if isinstance(item, dict) else None, depth + 1)
    return out


def templates(folder: TokenizerFolder) -> tuple[ChatTemplate, ...]:
    """Returns the chat templates, by the reference's rules: the entry in tokenizer_config.json takes precedence over
    chat_template.jinja and chat_template.json, and without tokenizer_config.json there are none."""
    settings = folder.settings
    if not settings:
        return ()
    if "chat_template" in settings:
        return listed(settings["chat_template"])
    text = folder.text("chat_template.jinja")
    if text is not None:
        return (*named_files(folder), ChatTemplate("default", text)) if text else named_files(folder)
    return listed((folder.json("chat_template.json") or {}).get("chat_template"))


def named_files(folder: TokenizerFolder) -> tuple[ChatTemplate, ...]:
    """Returns the templates additional_chat_templates/NAME.jinja."""
    extra = [n.removeprefix(EXTRA).removesuffix(".jinja") for n in folder.names if _EXTRA.fullmatch(n)] or NAMES
    texts = [(name, folder.text(f"{EXTRA}{name}.jinja")) for name in sorted(extra)]
    return tuple(ChatTemplate(safe(name), text) for name, text in texts if text)


def listed(value: Any) -> tuple[ChatTemplate, ...]:
    """Returns the templates of a string or a list of {name, template}. The default one is last, as in the reference."""
    if isinstance(value, str):
        return (ChatTemplate("default", value),) if value else ()
    rows = [r for r in value if isinstance(r, dict)] if isinstance(value, list) else []
    texts = {}
    for name, text in ((row.get("name"), row.get("template")) for row in rows):
        if isinstance(name, str) and name and isinstance(text, str) and text:
            texts[safe(name)] = text
    ordered = sorted(texts.items(), key=lambda row: row[0] == "default")
    return tuple(ChatTemplate(name, text) for name, text in ordered)


def safe(name: str) -> str:
    """Returns a name for a key: characters other than ASCII letters and digits become `_` (gguf_writer.py)."""
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name)


def finish(folder: TokenizerFolder, vocab: Vocab, state: SpecialTokens) -> Vocab:
    """Adds special ids, flags and templates, as `SpecialVocab` does for all kinds."""
    flags: dict[str, Any] = {}
    if vocab.kind != VocabKind.WORDPIECE and folder.tokenizer is not None:
        flags = normalizer_flags(folder.tokenizer.normalizer)
    length = (folder.settings or {}).get("model_max_length")
    limit = length if isinstance(length, int) and 0 < length < 1 << 31 else None
    ids = {r: i for r, i in state.ids.items() if i < len(vocab)}
    outside = {r: i for r, i in {**state.outside, **state.ids}.items() if r not in ids}
    if not (texts := templates(folder)) and folder.read("chat_template.jinja"):
        reason = "sets null" if folder.settings else "is missing or empty"
        vocab = replace(vocab, losses=(*vocab.losses, f"chat_template.jinja: tokenizer_config.json {reason}"))
    lost = [f"the {r} token's id {i}: the vocabulary has {plural(len(vocab), 'token')}" for r, i in outside.items()]
    return replace(
        vocab, special=ids, add=state.add, templates=texts, max_length=limit,
        losses=(*vocab.losses, *lost), **flags,
    )  # fmt: skip
