"""tables.toml: what a folder's tokenizer files leave to programs."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec
from msgspec import Struct


class TokenizerClass(Struct, frozen=True):
    """A tokenizer class of transformers. `architectures`: model classes that use it by default, by the start of their
    names. `special`: its tokens by role. `pre`, `normalizer`: how it cuts text if there is no tokenizer.json.
    `adds_ends`: it puts bos and eos around a text and a separator between two. `fairseq_ids`: its ids of a
    SentencePiece model are fairseq's. `extra_ids`: how many sentinel tokens it adds to a SentencePiece model."""

    architectures: list[str] = []
    special: dict[str, str] = {}
    pre: str = ""
    normalizer: str = ""
    adds_ends: bool = False
    fairseq_ids: bool = False
    extra_ids: int = 0


class RankFile(Struct, frozen=True):
    """A tiktoken file, known by its name. `pre`: its pre-tokenizer. Special tokens follow the ranks: `special` (or
    those of the config's rope type), then `filler` with running numbers, up to `count`; `listed`:
    tokenizer_config.json's at their ids and fillers numbered by id. `roles`: special tokens by role, unless a file
    names others. `normalizer`: applied to text first, which llama.cpp doesn't do. `shared_name`: files of another
    format have this name too; model classes whose `rank_file` it is have ranks in it."""

    name: str = ""
    pre: str = ""
    special: list[str] = []
    special_by_rope_type: dict[str, list[str]] = {}
    filler: str = ""
    count: int = 0
    listed: bool = False
    roles: dict[str, str] = {}
    normalizer: str = ""
    shared_name: bool = False


class SizeRule(Struct, frozen=True):
    """What a vocabulary size means: ids of special tokens, and whether tokens are added to every text, by role."""

    special: dict[str, int] = {}
    add: dict[str, bool] = {}


class ModelRules(Struct, frozen=True):
    """What the reference converter does with the tokenizers of certain model classes (`names`; `X*`: all that begin
    so). `rank_file`: the rank file with a shared name that they have. `add_prefix_space`:
    tokenizer_config.json's counts. `size`: rules by vocab_size. `char_bpe`: BPE over characters keeps its merges, and
    `visible` control tokens become user-defined. `raw_pre`: such BPE is written as byte-level BPE under this
    pre-tokenizer name, by the type of tokenizer.json's pre-tokenizer or `other`. `token_types`: type_vocab_size is
    written. `tokenizer_eos`: eos is tokenizer_config.json's, whatever config.json says."""

    names: list[str] = []
    rank_file: str = ""
    add_prefix_space: bool = False
    size: dict[str, SizeRule] = {}
    char_bpe: bool = False
    visible: list[str] = []
    raw_pre: dict[str, str] = {}
    token_types: bool = False
    tokenizer_eos: bool = False

    def covers(self, architecture: str) -> bool:
        """Whether the rules are for this model class."""
        return any(architecture.startswith(n[:-1]) if n.endswith("*") else architecture == n for n in self.names)


class TekkenTables(Struct, frozen=True):
    """Mistral's special tokens and llama.cpp's names of its chat templates, by version."""

    filler: str
    roles: dict[str, str]
    special: list[str]
    templates: dict[str, str]
    sentencepiece_templates: dict[str, str]


class TokenizerTables(Struct, frozen=True, rename={"classes": "class", "rank_files": "rank_file", "models": "model"}):
    """The whole file."""

    classes: dict[str, TokenizerClass]
    models: list[ModelRules]
    rank_files: list[RankFile]
    tekken: TekkenTables

    @property
    def char_bpe_rules(self) -> ModelRules:
        """The rules of model classes with BPE over characters."""
        return next(rules for rules in self.models if rules.char_bpe)


@cache
def tables() -> TokenizerTables:
    """The tables, read from the package once."""
    import tomllib

    text = (files(__package__ or "") / "tables.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), TokenizerTables)


def tokenizer_class(name: str) -> TokenizerClass:
    """The class of this name; without any rule if it isn't in the table."""
    return tables().classes.get(name) or TokenizerClass()


def model_rules(architecture: str) -> ModelRules:
    """The rules for a model class; none if it isn't in the table."""
    return next((rules for rules in tables().models if rules.covers(architecture)), ModelRules())


def class_of_architecture(architecture: str) -> str:
    """The tokenizer class that a model class uses by default; "" if unknown."""
    rows = tables().classes.items()
    return next((name for name, row in rows for start in row.architectures if architecture.startswith(start)), "")
