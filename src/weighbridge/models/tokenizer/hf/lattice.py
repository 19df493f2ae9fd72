"""PLaMo 2's and 3's tokenizer: of the ways to cut a text the one with the best sum of scores (conversion/base.py,
`_set_vocab_plamo`).

    tokenizer.jsonl    a line for each token: its text, its score and its type, as a JSON list; more entries are ignored

`tokenizer_class` of tokenizer_config.json tells the two apart: PLaMo 3's cuts a text around its own tokens first.
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
_OWN: Final = ("<|plamo:", "|>")  # how the model's own tokens begin and end, which control it
_ROLES: Final = ("bos", "eos", "pad", "sep", "unk")
_LINE: Final = msgspec.json.Decoder(Annotated[list[Any], Meta(min_length=2)])


def vocabulary(folder: TokenizerFolder) -> Vocab:
    """The vocabulary of the file, padded to the model's size, without special ids."""
    named = (folder.settings or {}).get("tokenizer_class")
    if (kind := CLASSES.get(str(named))) is None:
        raise UnsupportedError(
            f"{NAME} of the tokenizer class {named!r}", hint=f"supported: {', '.join(CLASSES)} (tokenizer_config.json)"
        )
    lines = (folder.read(NAME) or b"").splitlines()
    if len(lines) > VOCABULARY:
        raise FormatError("has too many tokens", path=NAME, expected=f"<= {VOCABULARY}", found=len(lines))
    rows = [_row(line, number, folder.rules.normal) for number, line in enumerate(lines, 1) if line.strip()]
    size = check_size(folder.vocab_size("vocab_size") or len(rows), "vocab_size")
    if not 0 < len(rows) <= size:
        raise FormatError("has more tokens than the model, or none", path=NAME, expected=f"1..{size}", found=len(rows))
    rows += [(padding(i), NO_SCORE, int(TokenType.UNUSED)) for i in range(1, size - len(rows) + 1)]
    tokens, scores, types = zip(*rows, strict=True)
    return Vocab(kind, tokens, types, scores, pre="default", add_space_prefix=False, space_prefix_at="ids")


def _row(line: bytes, number: int, normal: list[str]) -> tuple[str, float, int]:
    """The text, score and type of a line's token."""
    try:
        text, score, *rest = _LINE.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = score = None
        rest = []
    if not isinstance(text, str) or isinstance(score, bool) or not isinstance(score, int | float):
        raise FormatError(
            "is no token's line", path=NAME, field=f"line {number}", found=ascii(line)[:80],
            expected="a list of its text, its score and its type",
        )  # fmt: skip
    return text, float(score), _type(text, rest[0] if rest else None, normal)


def _type(text: str, named: Any, normal: list[str]) -> int:
    """A token's type: some of PLaMo 3's own begin and end what isn't in the vocabulary, and are normal."""
    if text in normal:
        return int(TokenType.NORMAL)
    own = text.startswith(_OWN[0]) and text.endswith(_OWN[1])
    return int(_TYPES.get(str(named), TokenType.CONTROL if own else TokenType.NORMAL))


def special(folder: TokenizerFolder, vocab: Vocab) -> SpecialTokens:
    """Tokens by role, which tokenizer_config.json names by text, and the one that ends a turn. FormatError for one that
    the vocabulary hasn't."""
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
    """tokenizer.jsonl of a vocabulary, without padding."""
    types = vocab.types if len(vocab.types) else [TokenType.NORMAL] * len(vocab)
    scores = vocab.scores if len(vocab.scores) else [0.0] * len(vocab)
    rows = zip(vocab.tokens, scores, types, strict=True)
    kept = [[text, score, TokenType(kind).name] for text, score, kind in rows if kind != TokenType.UNUSED]
    return b"".join(msgspec.json.encode(row) + b"\n" for row in kept)


def class_name(kind: VocabKind) -> str:
    return next(name for name, known in CLASSES.items() if known is kind)
