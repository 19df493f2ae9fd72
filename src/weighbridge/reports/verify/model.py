"""The checks of `verify` on what the files say together: config against tensors, tokenizer against vocabulary, the
parts of sentence-transformers and adapters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.containers.base import Index, Severity
from weighbridge.containers.formats import POINTERS
from weighbridge.models.jsonfile import CONSTANTS, oddities, oversized, repeated_keys
from weighbridge.models.tokenizer.hf.read import VOCABULARY_FILES
from weighbridge.reports import sidecars
from weighbridge.reports.verify import packing as verify_packing
from weighbridge.reports.verify.repo import Repo, RepoFile
from weighbridge.reports.verify.rules import Check, Flaw

_SHOWN: Final = 5

# JSON files that loaders read; what else a folder holds is its own matter.
_JSON: Final = frozenset(
    {
        "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json",
        "added_tokens.json", "vocab.json", "adapter_config.json", "modules.json", "preprocessor_config.json",
        "processor_config.json", "quantize_config.json", "quant_config.json", "hf_quant_config.json",
        "chat_template.json", "model_index.json", "params.json",
    }
)  # fmt: skip


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")


_NOT_JSON: Final = POINTERS | {"html", "zeros"}


def json_broken(repo: Repo) -> Iterator[Flaw]:
    for file in _json_files(repo):
        data = _small(file)
        why = f"{file.size:,} bytes are too many" if data is None else _json_trouble(data)
        if why and not _of_python(data):
            yield Flaw(f"it is not valid JSON: {why}", str(file.path), hint="download it again")


def json_of_python(repo: Repo) -> Iterator[Flaw]:
    """Published configs have them (Mamba 2, Nemotron-H), and Python's loaders read them."""
    for file in _json_files(repo):
        if words := _of_python(_small(file)):
            yield Flaw(f"it has {', '.join(words)}, which Python reads and JSON doesn't have", str(file.path))


def json_repeats(repo: Repo) -> Iterator[Flaw]:
    for file in _json_files(repo):
        data = _small(file)
        if keys := repeated_keys(data) if data is not None and oversized(data) is None else []:
            words = f"keys given twice, of which readers take the last value: {_some(keys)}"
            yield Flaw(words, str(file.path), hint="keep the value that is meant")


def _json_files(repo: Repo) -> Iterator[RepoFile]:
    for file in repo.files:
        if file.base in _JSON and file.source and file.size and file.format not in _NOT_JSON:
            yield file


def _small(file: RepoFile) -> bytes | None:
    assert file.source is not None
    return file.source.read(0, file.size) if file.size <= TOKENIZER_JSON else None


def _of_python(data: bytes | None) -> list[str]:
    """The words for numbers that JSON lacks, where nothing else is wrong."""
    if data is None or not (b"NaN" in data or b"Infinity" in data) or oversized(data) is not None:
        return []
    found = oddities(data)
    return found if CONSTANTS.keys() >= set(found) else []


def _json_trouble(data: bytes) -> str | None:
    if (why := oversized(data)) is not None:
        return why
    try:
        msgspec.json.decode(data)
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as error:
        return str(error)
    return None


# ---- config and tensors ----


def no_config(repo: Repo) -> Iterator[Flaw]:
    names = {f.base for f in repo.folders.get("", ())}
    if repo.model is not None and not repo.single and not {"config.json", "params.json", "adapter_config.json"} & names:
        yield Flaw("weights of a model, but no config.json beside them", str(repo.root), hint="loaders need it")


def unknown_family(repo: Repo) -> Iterator[Flaw]:
    if repo.config and repo.model:
        try:
            _registry().family_of_hf(repo.config)
        except UnsupportedError as error:
            words = f"names and shapes of tensors aren't checked: {error.message}"
            yield Flaw(words, str(repo.root / "config.json"))


def config_size(repo: Repo) -> Iterator[Flaw]:
    family = _family(repo)
    if family:
        try:
            family.sizes_from_hf(repo.config)
        except (FormatError, UsageError) as error:
            yield Flaw(
                str(error).splitlines()[0], str(repo.root / "config.json"), hint="the config is not this model's"
            )


def config_setting(repo: Repo) -> Iterator[Flaw]:
    """Of a config whose sizes are wrong, the rule on sizes speaks."""
    family = _family(repo)
    if family and not [*config_size(repo)]:
        from weighbridge.models.config.settings import of_config

        try:
            of_config(repo.config, family)
        except (FormatError, UsageError) as error:
            yield Flaw(str(error).splitlines()[0], str(repo.root / "config.json"), hint="correct it: conversions stop")


def missing(repo: Repo) -> Iterator[Flaw]:
    report = _mapping(repo)
    if report and report.missing:
        words = f"{len(report.missing):,} tensors that the config asks for are missing: {_some(report.missing)}"
        yield Flaw(words, str(repo.root), report.missing[0], "a shard is missing, or the config is another model's")


def unmapped(repo: Repo) -> Iterator[Flaw]:
    report = _mapping(repo)
    if report and report.unmapped:
        words = f"{len(report.unmapped):,} tensors that the config knows nothing of: {_some(report.unmapped)}"
        yield Flaw(words, str(repo.root), report.unmapped[0], "loaders ignore them or refuse")


def misshapen(repo: Repo) -> Iterator[Flaw]:
    report = _mapping(repo)
    for name, want, found in report.misshapen if report else ():
        words = f"its shape is {list(found)}, the config asks for {list(want)}"
        yield Flaw(words, str(repo.root), name, "the config is another model's, or the weights are")


def _registry() -> Any:
    from weighbridge.models.arch import registry

    return registry


def _family(repo: Repo) -> Any:
    """The architecture's table; None where there is none, or no whole model to hold against it."""
    if not repo.config or repo.model is None:
        return None
    try:
        return _registry().family_of_hf(repo.config)
    except (WeighbridgeError, KeyError, TypeError, ValueError):
        return None


def _mapping(repo: Repo) -> Any:
    """How the tensors fit the config; None where it is unknown."""
    if "mapping" not in repo.memo:
        repo.memo["mapping"] = _mapped(repo)
    return repo.memo["mapping"]


def _mapped(repo: Repo) -> Any:
    family = _family(repo)
    if family is None or repo.model is None:
        return None
    try:
        shapes = verify_packing.shapes(repo)
        if shapes is None:
            return None  # reported by the rules of packed weights
        sizes = family.sizes_from_hf(_registry().with_mtp_layers(repo.config, shapes))
        return family.check(family.dialect_of(shapes, sizes), sizes, shapes)
    except WeighbridgeError:
        return None  # reported by config_size, or by the container's own findings


# ---- tokenizer ----

_TOKENIZERS: Final = VOCABULARY_FILES | {
    "tokenizer.tiktoken", "qwen.tiktoken", "tokenizer.model.v1", "tokenizer.model.v2", "tokenizer.model.v3",
    "tokenizer.model.v7", "merges.txt",
}  # fmt: skip


def no_tokenizer(repo: Repo) -> Iterator[Flaw]:
    names = {f.base for f in repo.folders.get("", ())}
    if repo.model and _embedding(repo.model) and repo.config and not names & _TOKENIZERS:
        yield Flaw(
            "a language model without a tokenizer", str(repo.root), hint="get the tokenizer's files of the base model"
        )


# The names of token embeddings, and so of the vocabulary's size.
_EMBEDDINGS: Final = (
    "model.embed_tokens.weight", "embeddings.word_embeddings.weight", "bert.embeddings.word_embeddings.weight",
    "transformer.wte.weight", "wte.weight", "language_model.model.embed_tokens.weight", "token_embd.weight",
    "shared.weight", "tok_embeddings.weight",
)  # fmt: skip


def _embedding(index: Index) -> int | None:
    found = next((index[name] for name in _EMBEDDINGS if name in index), None)
    return found.shape[0] if found is not None and len(found.shape) == 2 else None


def vocab_size(repo: Repo) -> Iterator[Flaw]:
    """A token whose id has no embedding makes the model read outside its table. Fewer tokens than rows is padding."""
    rows = _embedding(repo.model) if repo.model is not None and repo.config else None
    tokens = _tokens(repo) if rows else None
    if rows and tokens and tokens > rows:
        words = f"the tokenizer has {tokens:,} tokens, the embedding {rows:,} rows"
        yield Flaw(words, str(repo.root), hint="the tokenizer is another model's, or added tokens were not embedded")


_RESERVED: Final = "<|reserved_token_"  # of tiktoken files, which count two more of them than Kimi K2 has rows


def _tokens(repo: Repo) -> int | None:
    """The largest token id plus one, as a conversion reads the tokenizer (whatever files it is in), fillers at the end
    aside; of one that no conversion takes as tokenizer.json numbers them."""
    from weighbridge.models.tokenizer import TokenType, from_hf

    def read(name: str) -> bytes | None:  # what config.json says the size is must not stretch the vocabulary
        return None if name == "config.json" else sidecars.read(repo.root / name, TOKENIZER_JSON)

    try:
        vocab = from_hf(read, pre="default")  # a split of text that has no name yet has as many tokens
    except WeighbridgeError:
        data = read("tokenizer.json")
        return None if data is None else _tokens_of_json(data)
    fillers = (
        kind == TokenType.UNUSED or t.startswith(_RESERVED) for t, kind in zip(vocab.tokens, vocab.types, strict=True)
    )
    return max((i for i, filler in enumerate(fillers) if not filler), default=-1) + 1 or None


def _tokens_of_json(data: bytes) -> int | None:
    doc = sidecars.decoded(data)
    model = doc.get("model") if isinstance(doc, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids: list[Any] = list(vocab.values()) if isinstance(vocab, dict) else []
    ids += range(len(vocab)) if isinstance(vocab, list) else ()
    added = doc.get("added_tokens") if isinstance(doc, dict) else None
    ids += [token.get("id") for token in (added if isinstance(added, list) else ()) if isinstance(token, dict)]
    return max((i for i in ids if isinstance(i, int)), default=-1) + 1 or None


def gguf_vocab(repo: Repo) -> Iterator[Flaw]:
    """llama.cpp takes the number of tokens for the number of rows of token_embd.weight."""
    for file in repo.weights:
        assert file.index is not None
        tokens = file.index.metadata.get("tokenizer.ggml.tokens") if file.format == "gguf" else None
        rows = _embedding(file.index)
        if tokens is not None and rows is not None and not isinstance(tokens, str) and len(tokens) != rows:
            words = f"{len(tokens):,} tokens, but token_embd.weight has {rows:,} rows: llama.cpp refuses it"
            yield Flaw(words, str(file.path), "token_embd.weight")


# ---- sentence-transformers, adapters ----


def modules(repo: Repo) -> Iterator[Flaw]:
    """modules.json lists the parts of a sentence-transformers model; each has a folder (the first often the root)."""
    found = next((f for f in repo.files if f.name == "modules.json" and f.source), None)
    doc = _list(found)
    for part in doc:
        path, kind = (part.get("path"), str(part.get("type"))) if isinstance(part, dict) else (None, "")
        there = not path or any(name.startswith(f"{path}/") for name in repo.names)
        # Normalize has no config of its own, and git keeps no empty folder.
        if isinstance(path, str) and not there and not kind.endswith("Normalize"):
            words = f"modules.json names the part {path!r}, which isn't there"
            yield Flaw(words, str(repo.root / "modules.json"), hint="download the folder with it")


def _list(file: RepoFile | None) -> Iterable[Any]:
    if file is None or file.source is None or file.size > TOKENIZER_JSON:
        return ()
    doc = sidecars.decoded(file.source.read(0, file.size))
    return doc if isinstance(doc, list) else ()


def pooling(repo: Repo) -> Iterator[Flaw]:
    hidden = sidecars.text_of(repo.config).get("hidden_size")
    for file in repo.files:
        if file.base == "config.json" and repo.folder(file.name).endswith("Pooling"):
            declared = (repo.json(file.name) or {}).get("word_embedding_dimension")
            if isinstance(declared, int) and isinstance(hidden, int) and declared != hidden:
                yield Flaw(f"it pools vectors of {declared}, the model's have {hidden}", str(file.path))


def adapter_config(repo: Repo) -> Iterator[Flaw]:
    """PEFT finds an adapter by its config, and the config names its rank."""
    weights = next((f for f in repo.weights if f.name == "adapter_model.safetensors"), None)
    if weights is None or weights.index is None:
        return
    config = repo.json("adapter_config.json")
    if config is None:
        yield Flaw("adapter weights without adapter_config.json", str(repo.root), hint="PEFT can't load them")
        return
    ranks = {e.shape[0] for e in weights.index if e.name.endswith("lora_A.weight") and len(e.shape) == 2}
    if isinstance(config.get("r"), int) and ranks and config["r"] not in ranks and not config.get("rank_pattern"):
        yield Flaw(f"the config says rank {config['r']}, the tensors have {sorted(ranks)[0]}", str(weights.path))


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO
#: The rule whose breach llama.cpp refuses.
GGUF_SIZE: Final = "tokenizer/gguf-size"

RULES: Final = (
    Check("config/json", _E, "the JSON files that loaders read are JSON", json_broken),
    Check("config/python-json", _I, "no JSON file has NaN or Infinity", json_of_python),
    Check("config/repeated-key", _W, "no JSON object has a key twice", json_repeats),
    Check("config/none", _W, "a model has a config.json", no_config),
    Check("config/unknown", _I, "the architecture is one whose tensors can be checked", unknown_family),
    Check("config/size", _E, "the config states the sizes that the architecture needs", config_size),
    Check("config/setting", _E, "settings have values that a conversion reads", config_setting),
    Check("config/missing", _E, "every tensor that the config asks for is there", missing),
    Check("config/unmapped", _W, "every tensor is one that the config asks for", unmapped),
    Check("config/shape", _E, "tensors have the shapes that the config says", misshapen),
    *verify_packing.RULES,
    Check("tokenizer/none", _W, "a language model has a tokenizer", no_tokenizer),
    Check("tokenizer/size", _E, "every token has an embedding", vocab_size),
    Check(GGUF_SIZE, _E, "a GGUF's embedding has one row a token", gguf_vocab),
    Check("parts/missing", _E, "every part that modules.json names is there", modules),
    Check("parts/pooling", _E, "pooling fits the model's vectors", pooling),
    Check("adapter/config", _E, "an adapter has its config, and of its rank", adapter_config),
)
