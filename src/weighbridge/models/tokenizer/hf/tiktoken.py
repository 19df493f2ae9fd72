"""tiktoken files, which hold nothing but tokens and ranks: tables.toml says how each one's text is cut (the
pre-tokenizer) and which special tokens follow the ranks. Other files can be read if the caller names the pre-tokenizer
and tokenizer_config.json lists the special tokens.

Beyond the reference: special tokens that tokenizer_config.json names get their ids also for roles that config.json
leaves open, and Meta's own files convert.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.tokenizer import pretokenizer
from weighbridge.models.tokenizer.formats import bpe_ranks
from weighbridge.models.tokenizer.formats import merges as mergelists
from weighbridge.models.tokenizer.hf.folder import TokenizerFolder, content
from weighbridge.models.tokenizer.hf.special import ROLES, SpecialTokens
from weighbridge.models.tokenizer.hf.tables import RankFile, tables
from weighbridge.models.tokenizer.vocab import TokenType, Vocab, VocabKind, check_size, padding


def find(folder: TokenizerFolder) -> str | None:
    """The name of the folder's rank file."""
    known = {row.name: row.shared_name for row in tables().rank_files}
    for name in (*known, *sorted(n for n in folder.names if n.endswith(".tiktoken") and "/" not in n)):
        data = folder.read(name)
        if data is not None and (not known.get(name) or bpe_ranks.is_ranks(data)):
            return name
    return None


def _row(name: str) -> RankFile | None:
    return next((row for row in tables().rank_files if row.name == name), None)


def _rules(folder: TokenizerFolder, name: str, pre: str | None) -> RankFile:
    """The rules for a file. UnsupportedError for an unknown file, unless the caller and tokenizer_config.json replace
    them."""
    known = _row(name)
    if known and known.shared_name and folder.root and folder.rules.rank_file != name:
        known = None
    if known is None and (pre is None or not folder.added_decoder):
        raise UnsupportedError(
            f"{name} is a rank table without its pre-tokenizer and special tokens, which another program knows",
            hint="AutoTokenizer.from_pretrained(...).save_pretrained(...) writes a tokenizer.json; or use --pre NAME "
            "if tokenizer_config.json lists the special tokens (added_tokens_decoder)",
        )
    return known or RankFile()


def _special_tokens(folder: TokenizerFolder, rules: RankFile, first: int) -> list[str]:
    """The special tokens from id `first` on."""
    if not rules.name:
        last = check_size(max(folder.added_decoder, default=first - 1) + 1, "added_tokens_decoder")
        return _listed(folder, range(first, last), "")
    if rules.listed:
        size = folder.vocab_size("vocab_size")
        count = rules.count if size is None else max(0, min(rules.count, size - first))
        return _listed(folder, range(first, first + count), rules.filler)
    named = rules.special_by_rope_type.get(_rope_type(folder), rules.special)
    fillers = (t for i in range(rules.count) if (t := rules.filler.format(i)) not in named)
    return [*named, *(t for t, _ in zip(fillers, range(rules.count - len(named)), strict=False))]


def _listed(folder: TokenizerFolder, ids: range, filler: str) -> list[str]:
    """The added tokens of these ids, with fillers for the others."""
    known = folder.added_decoder
    return [known[i].content if i in known else filler.format(i) if filler else padding(i) for i in ids]


def _rope_type(folder: TokenizerFolder) -> str:
    rope = folder.config.get("rope_scaling") or folder.config.get("rope_parameters")
    return str(rope.get("rope_type", rope.get("type"))) if isinstance(rope, dict) else ""


def vocabulary(folder: TokenizerFolder, name: str, pre: str | None) -> Vocab:
    """The vocabulary of the rank file `name`, without special ids."""
    rules = _rules(folder, name, pre)
    table = bpe_ranks.parse(folder.read(name) or b"", name)
    first = 1 + max(table.values())
    special = dict(enumerate(_special_tokens(folder, rules, first), first))
    tokens, types = _tokens_and_types(folder, name, dict(bpe_ranks.by_rank(table)), special)
    normalizer = rules.normalizer
    losses = (f"the normalizer ({normalizer}): llama.cpp tokenizes the text as it is",) if normalizer else ()
    chosen = rules.pre if pre is None else pre
    pretokenizer.known(chosen)
    merges = mergelists.joined(bpe_ranks.natural(table))
    return Vocab(VocabKind.BPE, tokens, types, merges=merges, pre=chosen, losses=losses)


def _tokens_and_types(
    folder: TokenizerFolder, name: str, known: Mapping[int, str], special: Mapping[int, str]
) -> tuple[list[str], list[int]]:
    """All tokens by id and their types; unused ids are padding."""
    top = max((*known, *special)) + 1
    size = folder.vocab_size("vocab_size") or top
    if size < top:
        raise FormatError(
            "the tokenizer has more tokens than the model", path="config.json", field="vocab_size",
            expected=f">= {top}", found=size, hint=f"take {name} from the model's own folder",
        )  # fmt: skip
    check_size(size, "vocab_size")
    named = {**known, **special}
    types = [TokenType.CONTROL if i in special else TokenType.NORMAL for i in range(size)]
    types = [k if i in named else TokenType.UNUSED for i, k in enumerate(types)]
    return [named.get(i) or padding(i) for i in range(size)], [int(k) for k in types]


def mend(folder: TokenizerFolder, name: str, vocab: Vocab, state: SpecialTokens) -> None:
    """Adds ids for roles that config.json leaves open: by tokenizer_config.json, then by the file's rules."""
    rules = _row(name) or RankFile()
    ids = {t: i for i, (t, k) in enumerate(zip(vocab.tokens, vocab.types, strict=True)) if k == TokenType.CONTROL}
    named: dict[str, Any] = {**rules.roles, **dict(_configured_roles(folder))}
    if folder.rules.tokenizer_eos and named.get("eos") in ids:
        state.ids["eos"] = ids[named["eos"]]
    for role, text in named.items():
        if text in ids:
            state.ids.setdefault(role, ids[text])


def _configured_roles(folder: TokenizerFolder) -> Iterator[tuple[str, str]]:
    """(role, text) of the special tokens in tokenizer_config.json."""
    for role in ROLES:
        text = content((folder.settings or {}).get(f"{role}_token"))
        if text:
            yield role, text
