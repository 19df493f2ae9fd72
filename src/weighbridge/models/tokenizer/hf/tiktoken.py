"""tiktoken files, which only have tokens and ranks. tables.toml has the pre-tokenizer of each, and the special tokens
that follow the ranks. Other files can be read if the caller names the pre-tokenizer and tokenizer_config.json lists the
special tokens. Beyond the reference, special tokens in tokenizer_config.json also get ids for roles that config.json
doesn't set, and Meta's files convert."""

from __future__ import annotations

from typing import Any

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.tokenizer import pretokenizer
from weighbridge.models.tokenizer.formats import bpe_ranks
from weighbridge.models.tokenizer.formats import merges as mergelists
from weighbridge.models.tokenizer.hf.folder import RankFile, TokenizerFolder, content, tables
from weighbridge.models.tokenizer.hf.special import ROLES, SpecialTokens
from weighbridge.models.tokenizer.vocab import TokenType, Vocab, VocabKind, check_size, padding


def find(folder: TokenizerFolder) -> str | None:
    """Returns the name of the folder's rank file."""
    shared = {row.name: row.shared_name for row in tables().rank_files}
    for name in (*shared, *sorted(n for n in folder.names if n.endswith(".tiktoken") and "/" not in n)):
        data = folder.read(name)
        if data is not None and (not shared.get(name) or bpe_ranks.is_ranks(data)):
            return name
    return None


def _row(name: str) -> RankFile | None:
    return next((row for row in tables().rank_files if row.name == name), None)


def _special_tokens(folder: TokenizerFolder, rules: RankFile, first: int) -> list[str]:
    """Returns the special tokens from id `first` on, with fillers."""
    if rules.name and not rules.listed:
        rope = folder.config.get("rope_scaling") or folder.config.get("rope_parameters")
        rope_type = str(rope.get("rope_type", rope.get("type"))) if isinstance(rope, dict) else ""
        named = rules.special_by_rope_type.get(rope_type, rules.special)
        fillers = (t for i in range(rules.count) if (t := rules.filler.format(i)) not in named)
        return [*named, *(t for t, _ in zip(fillers, range(rules.count - len(named)), strict=False))]
    listed = folder.added_decoder
    if rules.name:
        size = folder.vocab_size("vocab_size")
        end = first + (rules.count if size is None else max(0, min(rules.count, size - first)))
    else:
        end = check_size(max(listed, default=first - 1) + 1, "added_tokens_decoder")
    filler = rules.filler if rules.name else ""
    ids = range(first, end)
    return [listed[i].content if i in listed else filler.format(i) if filler else padding(i) for i in ids]


def vocabulary(folder: TokenizerFolder, name: str, pre: str | None) -> Vocab:
    """Reads the vocabulary of the rank file `name`, without special ids; unused ids are padding. Raises
    UnsupportedError for an unknown file, unless the caller and tokenizer_config.json replace its rules."""
    row = _row(name)
    if row and row.shared_name and folder.root and folder.rules.rank_file != name:
        row = None
    if row is None and (pre is None or not folder.added_decoder):
        raise UnsupportedError(
            f"{name} is a rank table without its pre-tokenizer and special tokens, which only its program knows",
            hint="AutoTokenizer.from_pretrained(...).save_pretrained(...) writes a tokenizer.json; or use --pre NAME "
            "if tokenizer_config.json lists the special tokens (added_tokens_decoder)",
        )
    rules = row or RankFile()
    table = bpe_ranks.parse(folder.read(name) or b"", name)
    first = 1 + max(table.values())
    special = dict(enumerate(_special_tokens(folder, rules, first), first))
    texts = {**dict(bpe_ranks.by_rank(table)), **special}
    top = max(texts) + 1
    size = folder.vocab_size("vocab_size") or top
    if size < top:
        raise FormatError(
            "the tokenizer has more tokens than the model", path="config.json", field="vocab_size",
            expected=f">= {top}", found=size, hint=f"use {name} from the model's folder",
        )  # fmt: skip
    check_size(size, "vocab_size")
    tokens = [texts.get(i) or padding(i) for i in range(size)]
    types = [TokenType.CONTROL if i in special else TokenType.NORMAL for i in range(size)]
    types = [kind if i in texts else TokenType.UNUSED for i, kind in enumerate(types)]
    normalizer = rules.normalizer
    losses = (f"the normalizer ({normalizer}): llama.cpp tokenizes the unmodified text",) if normalizer else ()
    chosen = rules.pre if pre is None else pre
    pretokenizer.known(chosen)
    merges = mergelists.joined(bpe_ranks.natural(table))
    return Vocab(VocabKind.BPE, tokens, [int(k) for k in types], merges=merges, pre=chosen, losses=losses)


def mend(folder: TokenizerFolder, name: str, vocab: Vocab, state: SpecialTokens) -> None:
    """Adds ids for roles that config.json doesn't set: from tokenizer_config.json, then from the file's rules."""
    rules = _row(name) or RankFile()
    ids = {t: i for i, (t, k) in enumerate(zip(vocab.tokens, vocab.types, strict=True)) if k == TokenType.CONTROL}
    settings = folder.settings or {}
    texts: dict[str, Any] = {**rules.roles}
    texts |= {role: text for role in ROLES if (text := content(settings.get(f"{role}_token")))}
    if folder.rules.tokenizer_eos and texts.get("eos") in ids:
        state.ids["eos"] = ids[texts["eos"]]
    for role, text in texts.items():
        if text in ids:
            state.ids.setdefault(role, ids[text])
