"""The JSON files of a tokenizer folder. A wrong type, a number out of range or deep nesting is a FormatError that names
the file and the place in it.

The structs declare the parts of each file that we use. msgspec checks types while decoding, so large parts (260,000
tokens, 500,000 merges) need no second pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import CONFIG_JSON, TOKENIZER_JSON, VOCABULARY
from weighbridge.models.arch.tables.schema import TokenizerEntry
from weighbridge.models.jsonfile import decode
from weighbridge.models.tokenizer.hf.tables import rules_of_class
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
    """`model` of tokenizer.json. `type` is absent in files of tokenizers < 0.9. `merges`: its JSON, as half a million
    pairs cost more than all else that is decoded here."""

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
        """The merges as they are spelled: "a b" up to transformers 4.44, ["a", "b"] since. `path`: their file."""
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


@dataclass(frozen=True)
class TokenizerFolder:
    """A tokenizer's files, decoded on first use. `names`: the folder's file names, if the caller knows them. `given`:
    rules to use in place of the model class's."""

    read: Read
    names: Sequence[str] = field(default=())
    given: TokenizerEntry | None = None

    @cached_property
    def rules(self) -> TokenizerEntry:
        """The rules for the model class in config.json."""
        return rules_of_class(self.architecture) if self.given is None else self.given

    def json(self, name: str, kind: Any = Json, limit: int = CONFIG_JSON) -> Any:
        """The decoded file; None if it is missing."""
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
        found: TokenizerJson | None = self.json("tokenizer.json", TokenizerJson, TOKENIZER_JSON)
        return found

    @cached_property
    def settings(self) -> Json | None:
        """tokenizer_config.json."""
        found: Json | None = self.json("tokenizer_config.json")
        return found

    @cached_property
    def config(self) -> Json:
        """config.json with `text_config` merged into it, as in the reference (conversion/base.py, `TextModel`)."""
        return {**self.root, **self.text_config}

    @cached_property
    def root(self) -> Json:
        """config.json."""
        found: Json = self.json("config.json") or {}
        return found

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
        name, key = "tokenizer_config.json", "added_tokens_decoder"
        rows = (self.settings or {}).get(key)
        try:
            found = msgspec.convert(rows or {}, dict[Id, AddedToken], strict=False)
        except msgspec.ValidationError as error:
            raise FormatError(str(error), path=name, field=key) from error
        return {i: msgspec.structs.replace(t, id=i) for i, t in found.items()}

    @property
    def stored_types(self) -> dict[int, int]:
        """`gguf_token_types` of tokenizer_config.json: types by id that no other file records (`hf.write`)."""
        name, key = "tokenizer_config.json", "gguf_token_types"
        try:
            return msgspec.convert((self.settings or {}).get(key) or {}, dict[Id, Type], strict=False)
        except msgspec.ValidationError as error:
            raise FormatError(str(error), path=name, field=key) from error

    def vocab_size(self, *keys: str) -> int | None:
        """The first of `keys` in config.json that is a count, ignoring zero and null."""
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
    """The text of a `*_token` entry: a string, or an object with `content`."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def table_of(tokenizer: TokenizerJson) -> dict[str, int]:
    """The model's vocabulary. FormatError if two tokens share an id."""
    vocab = tokenizer.model.vocab
    if not isinstance(vocab, dict):
        raise FormatError("the vocabulary isn't an object", path="tokenizer.json", field="model.vocab")
    if not vocab:
        raise FormatError("the vocabulary is empty", path="tokenizer.json", field="model.vocab")
    if len(set(vocab.values())) != len(vocab):
        seen: dict[int, str] = {}
        for text, index in vocab.items():
            if seen.setdefault(index, text) != text:
                raise FormatError(
                    f"tokens {seen[index]!r} and {text!r} have the same id",
                    path="tokenizer.json",
                    field="model.vocab",
                    found=index,
                )
    return vocab
