"""tiktoken files: what their names and the model's class say, since a file has nothing but tokens and ranks.

    tokenizer.model    Llama 3, as Meta publishes it     llama-models, models/llama3/tokenizer.py
    qwen.tiktoken      Qwen 1                            conversion/base.py, `_set_vocab_qwen`
    tiktoken.model     Kimi, Moonlight                   conversion/deepseek.py, kimi_linear.py, `set_vocab`

A row of the table tells how the text is cut (the pre-tokenizer's name) and which special tokens follow the ranks.
Another file can be read with a name that the caller gives, if its special tokens are in tokenizer_config.json.

Where we go beyond the reference: special tokens that tokenizer_config.json names get their ids also for roles that
config.json leaves open. Meta's own files have no converter there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.tokenizer import pretokenizer
from weighbridge.models.tokenizer.formats import bpe_ranks as ranks
from weighbridge.models.tokenizer.formats import merges as mergelists
from weighbridge.models.tokenizer.hf.folder import TokenizerFolder, content
from weighbridge.models.tokenizer.hf.special import ROLES, SpecialTokens
from weighbridge.models.tokenizer.vocab import TokenType, Vocab, VocabKind, check_size, padding

Names = Callable[[TokenizerFolder, int], list[str]]


@dataclass(frozen=True)
class RankFile:
    """`names(folder, first)`: the special tokens from id `first` on, the first one after the ranks. `roles`: which of
    them is what, where no file says. `normalizer`: what is done to a text first, and llama.cpp doesn't."""

    pre: str
    names: Names
    roles: Mapping[str, str] = field(default_factory=dict)
    normalizer: str = ""
    own_eos: tuple[str, ...] = ()  # architectures whose eos is the tokenizer's, whatever config.json says


def llama3(folder: TokenizerFolder, first: int) -> list[str]:
    """256 tokens; since 3.1, which its rope scaling tells, some of the reserved ones have got names."""
    rope = folder.config.get("rope_scaling") or folder.config.get("rope_parameters")
    new = isinstance(rope, dict) and rope.get("rope_type", rope.get("type")) == "llama3"
    named = LLAMA_31 if new else LLAMA_30
    start = 1 + max(int(t.removeprefix(RESERVED)[:-2]) for t in named if t.startswith(RESERVED))
    return [*named, *(f"{RESERVED}{start + i}|>" for i in range(256 - len(named)))]


def kimi(folder: TokenizerFolder, first: int) -> list[str]:
    """Those of `added_tokens_decoder`, reserved ones between them, as far as the embedding goes."""
    size = folder.vocab_size("vocab_size")
    count = 258 if size is None else max(0, min(258, size - first))
    known = folder.added_decoder
    return [known[i].content if i in known else f"<|reserved_token_{i}|>" for i in range(first, first + count)]


def qwen(folder: TokenizerFolder, first: int) -> list[str]:
    return ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]


def listed(folder: TokenizerFolder, first: int) -> list[str]:
    """Nothing but what tokenizer_config.json lists."""
    known = folder.added_decoder
    last = check_size(max(known, default=first - 1) + 1, "added_tokens_decoder")
    return [known[i].content if i in known else padding(i) for i in range(first, last)]


RESERVED: Final = "<|reserved_special_token_"
LLAMA_30: Final = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
    "<|reserved_special_token_2|>", "<|reserved_special_token_3|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|reserved_special_token_4|>", "<|eot_id|>",
)  # fmt: skip
LLAMA_31: Final = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
    "<|python_tag|>",
)  # fmt: skip
END: Final = "<|endoftext|>"
MAKERS: Final[Mapping[str, RankFile]] = {
    "tokenizer.model": RankFile("llama-bpe", llama3, {"bos": "<|begin_of_text|>", "eos": "<|end_of_text|>"}),
    "qwen.tiktoken": RankFile("qwen2", qwen, {"bos": END, "eos": END, "unk": END}, "NFC"),
    "tiktoken.model": RankFile("kimi-k2", kimi, own_eos=("KimiLinearForCausalLM", "KimiK3ForConditionalGeneration")),
}
FILES: Final = ("tiktoken.model", "qwen.tiktoken", "tokenizer.model")


def find(folder: TokenizerFolder) -> str | None:
    """The folder's rank file."""
    for name in (*FILES, *sorted(n for n in folder.names if n.endswith(".tiktoken") and "/" not in n)):
        data = folder.read(name)
        if data is not None and (name != "tokenizer.model" or ranks.is_ranks(data)):
            return name
    return None


def maker(folder: TokenizerFolder, name: str, pre: str | None, llama: frozenset[str]) -> RankFile:
    known = MAKERS.get(name)
    if name == "tokenizer.model" and folder.root and folder.architecture not in llama:
        known = None
    if known is None and (pre is None or not folder.added_decoder):
        raise UnsupportedError(
            f"{name} is a table of ranks: how text is cut, and the special tokens, are in a program that we don't know",
            hint="AutoTokenizer.from_pretrained(...).save_pretrained(...) writes a tokenizer.json; or use --pre NAME "
            "where tokenizer_config.json lists the special tokens (added_tokens_decoder)",
        )
    return known or RankFile("", listed)


def vocabulary(folder: TokenizerFolder, name: str, pre: str | None, llama: frozenset[str]) -> Vocab:
    """The vocabulary, without special ids."""
    who = maker(folder, name, pre, llama)
    table = ranks.parse(folder.read(name) or b"", name)
    first = 1 + max(table.values())
    known = dict(ranks.by_rank(table))
    special = dict(enumerate(who.names(folder, first), first))
    tokens, types = rows(folder, name, known, special)
    losses = (f"the normalizer ({who.normalizer}): llama.cpp tokenizes the text as it is",) if who.normalizer else ()
    chosen = who.pre if pre is None else pre
    pretokenizer.known(chosen)
    merges = mergelists.joined(ranks.natural(table))
    return Vocab(VocabKind.BPE, tokens, types, merges=merges, pre=chosen, losses=losses)


def rows(
    folder: TokenizerFolder, name: str, known: Mapping[int, str], special: Mapping[int, str]
) -> tuple[list[str], list[int]]:
    """All tokens by id, and their types; an id that has none is padding."""
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
    """Ids of the roles that config.json leaves open: by the names of tokenizer_config.json, then the maker's own."""
    who = MAKERS.get(name, RankFile("", listed))
    ids = {t: i for i, (t, k) in enumerate(zip(vocab.tokens, vocab.types, strict=True)) if k == TokenType.CONTROL}
    said: dict[str, Any] = {**who.roles, **{r: t for r, t in roles(folder)}}
    if folder.architecture in who.own_eos and said.get("eos") in ids:
        state.ids["eos"] = ids[said["eos"]]
    for role, text in said.items():
        if text in ids:
            state.ids.setdefault(role, ids[text])


def roles(folder: TokenizerFolder) -> Iterator[tuple[str, str]]:
    """What tokenizer_config.json names."""
    for role in ROLES:
        text = content((folder.settings or {}).get(f"{role}_token"))
        if text:
            yield role, text
