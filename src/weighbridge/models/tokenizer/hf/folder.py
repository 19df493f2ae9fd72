"""The JSON files of a tokenizer folder. A wrong type, a number out of range or deep nesting raises a FormatError that
names the file and the place in it. The structs declare the parts of each file that are used; msgspec checks types while
decoding, so large parts (260,000 tokens, 500,000 merges) need no second pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cache, cached_property
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from weighbridge.base.errors import FormatError
from weighbridge.base.imports.tables import read_table
from weighbridge.base.limits import CONFIG_JSON, TOKENIZER_JSON, VOCABULARY
from weighbridge.base.records import dataclass
from weighbridge.models.arch.registry import families_of_class
from weighbridge.models.arch.tables.schema import TokenizerEntry
from weighbridge.models.jsonfile import decode
from weighbridge.models.tokenizer.vocab import Json

T = TypeVar("T")
Read = Callable[[str], bytes | None]
Id = Annotated[int, Meta(ge=0, lt=VOCABULARY)]
# A hint for token ids beyond the model's vocabulary.
OTHERS: Final = "the tokenizer is another model's, or its added tokens were never embedded; get both from one place"
Type = Annotated[int, Meta(ge=1, le=6)]


class AddedToken(Struct):
    """An entry of `added_tokens` (tokenizer.json) or `added_tokens_decoder` (tokenizer_config.json, keyed by id)."""

    content: str
    id: Id = 0
    special: bool = False
    normalized: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class _Merges(Struct):
    merges: list[str | tuple[str, str]]


class _MergesOfModel(Struct):
    model: _Merges


class TokenizerModel(Struct):
    """`model` of tokenizer.json. `type` is absent in files of tokenizers < 0.9. `merges` is raw JSON: decoding half a
    million pairs would cost more than the rest of the file."""

    type: str | None = None
    vocab: dict[str, Id] | list[tuple[str, float]] = {}
    merges: Raw = Raw(b"[]")
    unk_token: str | None = None
    unk_id: Id | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    byte_fallback: bool | None = None
    ignore_merges: bool | None = None

    def merge_rows(self, path: str) -> list[str | tuple[str, str]]:
        """Returns the merges in their spelling: "a b" up to transformers 4.44, ["a", "b"] since. `path`: their file."""
        json = b'{"model":{"merges":%b}}' % bytes(self.merges)  # so that an error names the place in the file
        whole: _MergesOfModel = decode(json, path, _MergesOfModel, len(json))
        return whole.model.merges


class TokenReference(Struct):
    id: str


class TemplatePiece(Struct, rename={"special": "SpecialToken", "sequence": "Sequence"}):
    """An item of a TemplateProcessing."""

    special: TokenReference | None = None
    sequence: TokenReference | None = None


class PostProcessor(Struct):
    """`post_processor`, or an item of a sequence of them."""

    type: str | None = None
    processors: list[PostProcessor] | None = None
    single: list[TemplatePiece] = []
    pair: list[TemplatePiece] = []
    cls: tuple[str, int] | None = None
    sep: tuple[str, int] | None = None


class TokenizerJson(Struct):
    model: TokenizerModel
    added_tokens: list[AddedToken] = []
    normalizer: Json | None = None
    pre_tokenizer: Json | None = None
    post_processor: PostProcessor | None = None
    decoder: Json | None = None

    @property
    def is_spm_like(self) -> bool:
        """Whether a BPE represents SentencePiece: byte fallback, and a sequence as decoder (gguf-py,
        `LlamaHfVocab`)."""
        return bool(self.model.byte_fallback) and (self.decoder or {}).get("type") == "Sequence"


@dataclass(frozen=True)
class TokenizerFolder:
    """A tokenizer's files, decoded on first use. `names`: the folder's file names, if the caller knows them.
    `given_rules`: rules to use in place of the model class's."""

    read: Read
    names: Sequence[str] = field(default=())
    given_rules: TokenizerEntry | None = None

    @cached_property
    def rules(self) -> TokenizerEntry:
        """The rules for the model class in config.json."""
        return rules_of_class(self.architecture) if self.given_rules is None else self.given_rules

    def json(self, name: str, kind: Any = Json, limit: int = CONFIG_JSON) -> Any:
        """Returns the decoded file, or None if it is missing."""
        data = self.read(name)
        return None if data is None else decode(data, name, kind, limit)

    def text(self, name: str) -> str | None:
        data = self.read(name)
        try:
            return None if data is None else data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError("text isn't UTF-8", path=name, offset=error.start) from error

    @cached_property
    def tokenizer(self) -> TokenizerJson | None:
        value: TokenizerJson | None = self.json("tokenizer.json", TokenizerJson, TOKENIZER_JSON)
        return value

    @cached_property
    def settings(self) -> Json | None:
        """tokenizer_config.json."""
        value: Json | None = self.json("tokenizer_config.json")
        return value

    @cached_property
    def config(self) -> Json:
        """config.json with `text_config` merged into it, as in the reference (conversion/base.py, `TextModel`)."""
        return {**self.root, **self.text_config}

    @cached_property
    def root(self) -> Json:
        """config.json."""
        value: Json = self.json("config.json") or {}
        return value

    @property
    def text_config(self) -> Json:
        inner = self.root.get("text_config")
        return inner if isinstance(inner, dict) else {}

    @property
    def type_count(self) -> int:
        """`type_vocab_size` of config.json."""
        count = self.config.get("type_vocab_size", 1)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 1 << 32:
            raise FormatError("not a count", path="config.json", field="type_vocab_size", found=count)
        return count

    @property
    def architecture(self) -> str:
        """The first of config.json's `architectures`."""
        names = self.root.get("architectures")
        return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""

    @cached_property
    def added_decoder(self) -> dict[int, AddedToken]:
        """`added_tokens_decoder` of tokenizer_config.json by id."""
        tokens = self._setting("added_tokens_decoder", dict[Id, AddedToken])
        return {i: msgspec.structs.replace(token, id=i) for i, token in tokens.items()}

    @property
    def stored_types(self) -> dict[int, int]:
        """`gguf_token_types` of tokenizer_config.json: types by id that no other file records (`hf.write`)."""
        types: dict[int, int] = self._setting("gguf_token_types", dict[Id, Type])
        return types

    def _setting(self, key: str, kind: Any) -> Any:
        """Returns an object of tokenizer_config.json with number keys; {} if it is missing."""
        try:
            return msgspec.convert((self.settings or {}).get(key) or {}, kind, strict=False)
        except msgspec.ValidationError as error:
            raise FormatError(str(error), path="tokenizer_config.json", field=key) from error

    def vocab_size(self, *keys: str) -> int | None:
        """Returns the first of `keys` in config.json that is a count, ignoring zero and null."""
        for key in keys:
            value = self.config.get(key)
            if value is None or value == 0:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= VOCABULARY:
                raise FormatError(
                    "not a vocabulary size", path="config.json", field=key, expected=f"1..{VOCABULARY}", found=value
                )
            return value
        return None


def content(value: Any) -> str | None:
    """Returns the text of a `*_token` entry: a string, or an object with `content`."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def table_of(tokenizer: TokenizerJson) -> dict[str, int]:
    """Returns the model's vocabulary. Raises FormatError if two tokens share an id."""
    vocab = tokenizer.model.vocab
    if not isinstance(vocab, dict):
        raise FormatError("the vocabulary isn't an object", path="tokenizer.json", field="model.vocab")
    if not vocab:
        raise FormatError("the vocabulary is empty", path="tokenizer.json", field="model.vocab")
    if len(set(vocab.values())) != len(vocab):
        seen: dict[int, str] = {}
        for text, index in vocab.items():
            if seen.setdefault(index, text) != text:
                texts = f"{seen[index]!r} and {text!r}"
                raise FormatError(
                    f"tokens {texts} have the same id", path="tokenizer.json", field="model.vocab", found=index
                )
    return vocab


# ---------------------------------------------------------------------- tables.toml: facts that the files don't state


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
    return msgspec.convert(read_table(__file__, "tables.toml"), TokenizerTables)


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
