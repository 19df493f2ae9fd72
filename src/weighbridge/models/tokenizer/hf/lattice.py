"""PLaMo 2's and 3's tokenizer: segments a text with the best sum of scores (conversion/base.py, `_set_vocab_plamo`).

    tokenizer.jsonl    one line per token: its text, its score and its type, as a JSON list; more entries are ignored

`tokenizer_class` in tokenizer_config.json distinguishes the two: PLaMo 3's splits a text at its control tokens first.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import VOCABULARY
from weighbridge.models.tokenizer.hf.folder import TokenizerFolder, content
from weighbridge.models.tokenizer.hf.special import SpecialTokens
from weighbridge.models.tokenizer.vocab import NO_SCORE, TokenType, Vocab, VocabKind, check_size, padding

NAME: Final = "tokenizer.jsonl"
CLASSES: Final = {"Plamo2Tokenizer": VocabKind.PLAMO2, "Plamo3Tokenizer": VocabKind.PLAMO3}
KINDS: Final = frozenset(CLASSES.values())
_TYPES: Final = {kind.name: kind for kind in (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.BYTE)}
_CONTROL: Final = ("<|plamo:", "|>")  # the begin and end of control tokens
_ROLES: Final = ("bos", "eos", "pad", "sep", "unk")
_LINE: Final = msgspec.json.Decoder(Annotated[list[Any], Meta(min_length=2)])


def vocabulary(folder: TokenizerFolder) -> Vocab:
    """Reads the vocabulary, padded to the model's size, without special ids."""
    name = (folder.settings or {}).get("tokenizer_class")
    if (kind := CLASSES.get(str(name))) is None:
        raise UnsupportedError(
            f"{NAME} of the tokenizer class {name!r}", hint=f"supported: {', '.join(CLASSES)} (tokenizer_config.json)"
        )
    lines = (folder.read(NAME) or b"").splitlines()
    if len(lines) > VOCABULARY:
        raise FormatError("has too many tokens", path=NAME, expected=f"<= {VOCABULARY}", found=len(lines))
    rows: list[tuple[str, float, int]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            text, score, *more = _LINE.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            text, score, more = None, None, []
        if not isinstance(text, str) or isinstance(score, bool) or not isinstance(score, int | float):
            raise FormatError(
                "not the line of a token", path=NAME, field=f"line {number}", found=ascii(line)[:80],
                expected="a list of its text, its score and its type",
            )  # fmt: skip
        control = text.startswith(_CONTROL[0]) and text.endswith(_CONTROL[1])
        default = TokenType.CONTROL if control else TokenType.NORMAL
        # Some control tokens of PLaMo 3 surround text outside the vocabulary, and are normal.
        token_type = (
            TokenType.NORMAL if text in folder.rules.normal else _TYPES.get(str(more[0]) if more else "", default)
        )
        rows.append((text, float(score), int(token_type)))
    size = check_size(folder.vocab_size("vocab_size") or len(rows), "vocab_size")
    if not 0 < len(rows) <= size:
        raise FormatError("has more tokens than the model, or none", path=NAME, expected=f"1..{size}", found=len(rows))
    rows += [(padding(i), NO_SCORE, int(TokenType.UNUSED)) for i in range(1, size - len(rows) + 1)]
    tokens, scores, types = zip(*rows, strict=True)
    return Vocab(kind, tokens, types, scores, pre="default", add_space_prefix=False, space_prefix_at="ids")


def special(folder: TokenizerFolder, vocab: Vocab) -> SpecialTokens:
    """Returns tokens by role, which tokenizer_config.json names by text, and the end of a turn. Raises FormatError for
    a token that the vocabulary doesn't have."""
    settings = folder.settings or {}
    named = {role: content(settings.get(f"{role}_token")) for role in _ROLES}
    index = {text: number for number, text in reversed([*enumerate(vocab.tokens)])}
    state = SpecialTokens(dict(settings))
    for role, text in {**named, "eot": folder.rules.eot or None}.items():
        if text is not None and text not in index:
            raise FormatError(f"the {role} token isn't in the vocabulary", path=NAME, found=text)
        if text is not None:
            state.ids[role] = index[text]
    flags = ((role, settings.get(f"add_{role}_token")) for role in ("bos", "eos"))
    state.add |= {role: flag for role, flag in flags if isinstance(flag, bool)}
    return state


def vocabulary_file(vocab: Vocab) -> bytes:
    """Returns tokenizer.jsonl for a vocabulary, without padding."""
    types = vocab.types if len(vocab.types) else [TokenType.NORMAL] * len(vocab)
    scores = vocab.scores if len(vocab.scores) else [0.0] * len(vocab)
    rows = zip(vocab.tokens, scores, types, strict=True)
    kept = [[text, score, TokenType(kind).name] for text, score, kind in rows if kind != TokenType.UNUSED]
    return b"".join(msgspec.json.encode(row) + b"\n" for row in kept)


def class_name(kind: VocabKind) -> str:
    return next(name for name, vocab_kind in CLASSES.items() if vocab_kind is kind)
