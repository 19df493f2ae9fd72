"""tables.toml: facts about tokenizer files that programs know and the files don't state."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec
from msgspec import Struct

from weighbridge.models.arch.registry import families_of_class
from weighbridge.models.arch.tables.schema import TokenizerEntry


class TokenizerClass(Struct, frozen=True):
    """A tokenizer class of transformers. `architectures`: model classes that use it by default, by the start of their
    names. `special`: its tokens by role. `pre`, `normalizer`: how it splits text without a tokenizer.json. `adds_ends`:
    it puts bos and eos around a text and a separator between two. `fairseq_ids`: its ids for a SentencePiece model are
    fairseq's. `extra_ids`: the number of sentinel tokens that it adds to a SentencePiece model."""

    architectures: list[str] = []
    special: dict[str, str] = {}
    pre: str = ""
    normalizer: str = ""
    adds_ends: bool = False
    fairseq_ids: bool = False
    extra_ids: int = 0


class RankFile(Struct, frozen=True):
    """A tiktoken file, identified by its name. `pre`: its pre-tokenizer. Special tokens follow the ranks: `special` (or
    those of the config's rope type), then `filler` with running numbers, up to `count`; with `listed`, those of
    tokenizer_config.json at their ids, and fillers numbered by id. `roles`: special tokens by role, unless a file names
    others. `normalizer`: applied to text first, which llama.cpp doesn't do. `shared_name`: files of another format have
    this name too; only for model classes with this `rank_file` it has ranks."""

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


class TekkenTables(Struct, frozen=True):
    """Mistral's special tokens, and llama.cpp's names for its chat templates by version."""

    filler: str
    roles: dict[str, str]
    special: list[str]
    templates: dict[str, str]
    sentencepiece_templates: dict[str, str]


class TokenizerTables(Struct, frozen=True, rename={"classes": "class", "rank_files": "rank_file", "models": "model"}):
    """The whole file."""

    classes: dict[str, TokenizerClass]
    models: dict[str, TokenizerEntry]
    rank_files: list[RankFile]
    tekken: TekkenTables


@cache
def tables() -> TokenizerTables:
    """Returns the tables, read from the package once."""
    import tomllib

    text = (files(__package__ or "") / "tables.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), TokenizerTables)


def tokenizer_class(name: str) -> TokenizerClass:
    """Returns the class of this name, or one without rules if the table doesn't have it."""
    return tables().classes.get(name) or TokenizerClass()


@cache
def rules_of_class(name: str) -> TokenizerEntry:
    """Returns the rules for a model class, from its family's table or tables.toml, otherwise the defaults."""
    documents = (family.document.tokenizer for family in families_of_class(name))
    return next((rules for rules in documents if rules is not None), tables().models.get(name) or TokenizerEntry())


def class_of_architecture(architecture: str) -> str:
    """Returns the tokenizer class that a model class uses by default; "" if unknown."""
    rows = tables().classes.items()
    return next((name for name, row in rows for start in row.architectures if architecture.startswith(start)), "")
