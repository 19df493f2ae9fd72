"""The checks of `verify` on files in combination: config and tensors, tokenizer and vocabulary, the parts of
sentence-transformers models and adapters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.base.words import plural
from weighbridge.containers.base import Index, Severity
from weighbridge.containers.formats import POINTERS
from weighbridge.models.jsonfile import CONSTANTS, oddities, oversized, repeated_keys
from weighbridge.models.open import open_model
from weighbridge.models.tokenizer.hf.read import VOCABULARY_FILES
from weighbridge.reports import sidecars
from weighbridge.reports.verify import packing as verify_packing
from weighbridge.reports.verify.repo import Repo, RepoFile
from weighbridge.reports.verify.rules import Check, Flaw

_SHOWN: Final = 5

# JSON files that loaders read; other JSON files may contain anything.
_JSON: Final = frozenset(
    {
        "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json",
        "added_tokens.json", "vocab.json", "adapter_config.json", "modules.json", "preprocessor_config.json",
        "processor_config.json", "quantize_config.json", "quant_config.json", "hf_quant_config.json",
        "chat_template.json", "model_index.json", "params.json",
    }
)  # fmt: skip


_NOT_JSON: Final = POINTERS | {"html", "zeros"}


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")


def json_broken(repo: Repo) -> Iterator[Flaw]:
    for file, data in _json_files(repo):
        error = f"{file.size:,} bytes are too many" if data is None else oversized(data)
        if error is None and data is not None:
            try:
                msgspec.json.decode(data)
            except RecursionError:
                error = "it is nested too deeply"
            except ValueError as invalid:
                error = str(invalid)
        if error and not _python_numbers(data):
            yield Flaw(f"it is not valid JSON: {error}", file.path, hint="download it again")


def json_of_python(repo: Repo) -> Iterator[Flaw]:
    """Published configs have such numbers (Mamba 2, Nemotron-H), and Python's loaders read them."""
    for file, data in _json_files(repo):
        if numbers := _python_numbers(data):
            yield Flaw(f"it has {', '.join(numbers)}, which Python reads and JSON doesn't support", file.path)


def json_repeats(repo: Repo) -> Iterator[Flaw]:
    for file, data in _json_files(repo):
        if keys := repeated_keys(data) if data is not None and oversized(data) is None else []:
            message = f"repeated keys, whose last value readers use: {_some(keys)}"
            yield Flaw(message, file.path, hint="keep the intended value")


def _json_files(repo: Repo) -> Iterator[tuple[RepoFile, bytes | None]]:
    """The JSON files that loaders read, each with its bytes, or None if there are too many."""
    for file in repo.files:
        if file.base in _JSON and file.source and file.size and file.format not in _NOT_JSON:
            yield file, file.source.read(0, file.size) if file.size <= TOKENIZER_JSON else None


def _python_numbers(data: bytes | None) -> list[str]:
    """The numbers that JSON doesn't support, if nothing else is wrong."""
    if data is None or not (b"NaN" in data or b"Infinity" in data) or oversized(data) is not None:
        return []
    numbers = oddities(data)
    return numbers if CONSTANTS.keys() >= set(numbers) else []


# ---- config and tensors ----


def no_config(repo: Repo) -> Iterator[Flaw]:
    names = {f.base for f in repo.folders.get("", ())}
    if repo.model is not None and not repo.single and not {"config.json", "params.json", "adapter_config.json"} & names:
        yield Flaw("weights of a model without a config.json", repo.root, hint="loaders need it")


def unknown_family(repo: Repo) -> Iterator[Flaw]:
    if repo.config and repo.model:
        try:
            _registry().family_of_hf(repo.config, repo.families)
        except UnsupportedError as error:
            message = f"names and shapes of tensors aren't checked: {error.message}"
            yield Flaw(message, repo.root / "config.json")


def config_size(repo: Repo) -> Iterator[Flaw]:
    family = _family(repo)
    if family:
        try:
            family.sizes_from_hf(repo.config)
        except (FormatError, UsageError) as error:
            message = str(error).splitlines()[0]
            yield Flaw(message, repo.root / "config.json", hint="the config belongs to another model")


def config_setting(repo: Repo) -> Iterator[Flaw]:
    """Checks settings, unless the sizes are already wrong."""
    family = _family(repo)
    if family and not [*config_size(repo)]:
        from weighbridge.models.config.settings import of_config

        try:
            of_config(repo.config, family)
        except (FormatError, UsageError) as error:
            yield Flaw(str(error).splitlines()[0], repo.root / "config.json", hint="correct it: conversions stop")


def unread_setting(repo: Repo) -> Iterator[Flaw]:
    """Checks for unknown settings, unless sizes or settings are already wrong."""
    family = _family(repo)
    if family and not [*config_size(repo), *config_setting(repo)]:
        from weighbridge.models.config.losses import unread

        for key, value in unread(repo.config, family):
            message = f"{key} = {value!r:.60} is unknown to the {family.name} table: a conversion lists it as a loss"
            yield Flaw(message, repo.root / "config.json", hint="check the spelling of the key in the model's class")


def missing(repo: Repo) -> Iterator[Flaw]:
    report = _mapping(repo)
    if report and report.missing:
        message = f"{plural(len(report.missing), 'tensor', 'are')} missing: {_some(report.missing)}"
        hint = "a shard is missing, or the config belongs to another model"
        yield Flaw(message, repo.root, report.missing[0], hint)


def unmapped(repo: Repo) -> Iterator[Flaw]:
    report = _mapping(repo)
    if report and report.unmapped:
        message = f"{plural(len(report.unmapped), 'tensor', 'are')} unknown to the config: {_some(report.unmapped)}"
        yield Flaw(message, repo.root, report.unmapped[0], "loaders ignore them or refuse")


def misshapen(repo: Repo) -> Iterator[Flaw]:
    report = _mapping(repo)
    for name, expected, actual in report.misshapen if report else ():
        message = f"its shape is {list(actual)}, the config requires {list(expected)}"
        yield Flaw(message, repo.root, name, "the config or the weights belong to another model")


def _registry() -> Any:
    from weighbridge.models.arch import registry

    return registry


def _family(repo: Repo) -> Any:
    """The architecture's table, or None if it is unknown or the model is incomplete."""
    if not repo.config or repo.model is None:
        return None
    try:
        return _registry().family_of_hf(repo.config, repo.families)
    except (WeighbridgeError, KeyError, TypeError, ValueError):
        return None


def _mapping(repo: Repo) -> Any:
    """The comparison of the tensors with the config, or None if it is impossible."""
    if "mapping" not in repo.memo:
        repo.memo["mapping"] = None
        family = _family(repo)
        with suppress(WeighbridgeError):  # reported by config_size, or by the container's findings
            if family is not None and repo.model is not None and repo.model.metadata.get("format") == "mlx":
                from weighbridge.models.mlxlm.towers import from_mlx_vlm, is_of_mlx_vlm  # late: few folders are MLX's
                from weighbridge.models.wrapped import from_mlx_lm

                if is_of_mlx_vlm(repo.config, repo.model):
                    with open_model(repo.root) as model:  # the table has other names
                        named = from_mlx_vlm(model)
                        repo.memo["mapping"] = from_mlx_lm(named)[0].resolved.report if named is not None else None
                    return repo.memo["mapping"]
            shapes = verify_packing.shapes(repo) if family is not None else None
            if shapes is not None:  # None: reported by the rules of packed weights
                sizes = family.sizes_from_hf(_registry().with_mtp_layers(repo.config, shapes))
                repo.memo["mapping"] = family.check(family.dialect_of(shapes, sizes), sizes, shapes)
    return repo.memo["mapping"]


# ---- tokenizer ----

_TOKENIZERS: Final = VOCABULARY_FILES | {
    "tokenizer.tiktoken", "qwen.tiktoken", "tokenizer.model.v1", "tokenizer.model.v2", "tokenizer.model.v3",
    "tokenizer.model.v7", "merges.txt",
}  # fmt: skip


def no_tokenizer(repo: Repo) -> Iterator[Flaw]:
    names = {f.base for f in repo.folders.get("", ())}
    if repo.model and _embedding(repo.model) and repo.config and not names & _TOKENIZERS:
        yield Flaw("a language model without a tokenizer", repo.root, hint="copy the base model's tokenizer files")


# The names of token embeddings, whose rows are the vocabulary.
_EMBEDDINGS: Final = (
    "model.embed_tokens.weight", "embeddings.word_embeddings.weight", "bert.embeddings.word_embeddings.weight",
    "transformer.wte.weight", "wte.weight", "language_model.model.embed_tokens.weight", "token_embd.weight",
    "shared.weight", "tok_embeddings.weight",
)  # fmt: skip


def _embedding(index: Index) -> int | None:
    entry = next((index[name] for name in _EMBEDDINGS if name in index), None)
    return entry.shape[0] if entry is not None and len(entry.shape) == 2 else None


def vocab_size(repo: Repo) -> Iterator[Flaw]:
    """A token id without an embedding makes the model read out of bounds. Fewer tokens than rows is padding."""
    rows = _embedding(repo.model) if repo.model is not None and repo.config else None
    tokens = _tokens(repo) if rows else None
    if rows and tokens and tokens > rows:
        message = f"the tokenizer has {plural(tokens, 'token')}, the embedding {plural(rows, 'row')}"
        hint = "the tokenizer belongs to another model, or added tokens were not embedded"
        yield Flaw(message, repo.root, hint=hint)


_RESERVED: Final = "<|reserved_token_"  # in tiktoken files, which have two more of them than Kimi K2 has rows


def _tokens(repo: Repo) -> int | None:
    """The largest token id plus one, without fillers at the end, as a conversion reads the tokenizer; if no conversion
    supports it, by the ids in tokenizer.json."""
    from weighbridge.models.tokenizer import TokenType, from_hf

    def read(name: str) -> bytes | None:  # the size in config.json must not extend the vocabulary
        return None if name == "config.json" else sidecars.read(repo.root / name, TOKENIZER_JSON)

    try:
        vocab = from_hf(read, pre="default")  # an unknown pre-tokenizer has as many tokens
    except WeighbridgeError:
        doc = sidecars.decode(read("tokenizer.json"))
        return _tokens_of_json(doc) if isinstance(doc, dict) else None
    fillers = (
        kind == TokenType.UNUSED or t.startswith(_RESERVED) for t, kind in zip(vocab.tokens, vocab.types, strict=True)
    )
    return max((i for i, filler in enumerate(fillers) if not filler), default=-1) + 1 or None


def _tokens_of_json(doc: dict[str, Any]) -> int | None:
    model, added = doc.get("model"), doc.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids: list[Any] = list(vocab.values()) if isinstance(vocab, dict) else []
    ids += range(len(vocab)) if isinstance(vocab, list) else ()
    ids += [token.get("id") for token in (added if isinstance(added, list) else ()) if isinstance(token, dict)]
    return max((i for i in ids if isinstance(i, int)), default=-1) + 1 or None


# ---- sentence-transformers, adapters ----


def modules(repo: Repo) -> Iterator[Flaw]:
    """modules.json lists the parts of a sentence-transformers model; each has a folder (the first often the root)."""
    file = next((f for f in repo.files if f.name == "modules.json" and f.source), None)
    if file is None or file.source is None or file.size > TOKENIZER_JSON:
        return
    doc = sidecars.decode(file.source.read(0, file.size))
    for part in doc if isinstance(doc, list) else ():
        path, kind = (part.get("path"), str(part.get("type"))) if isinstance(part, dict) else (None, "")
        exists = not path or any(name.startswith(f"{path}/") for name in repo.names)
        # Normalize has no config, and git keeps no empty folders.
        if isinstance(path, str) and not exists and not kind.endswith("Normalize"):
            message = f"modules.json names the part {path!r}, which doesn't exist"
            yield Flaw(message, repo.root / "modules.json", hint="download its folder, too")


def pooling(repo: Repo) -> Iterator[Flaw]:
    hidden = sidecars.text_of(repo.config).get("hidden_size")
    for file in repo.files:
        if file.base == "config.json" and repo.folder(file.name).endswith("Pooling"):
            declared = (repo.json(file.name) or {}).get("word_embedding_dimension")
            if isinstance(declared, int) and isinstance(hidden, int) and declared != hidden:
                yield Flaw(f"it pools vectors of {declared} numbers, the model's have {hidden}", file.path)


def adapter_config(repo: Repo) -> Iterator[Flaw]:
    """PEFT finds an adapter by its config, which has its rank."""
    weights = next((f for f in repo.weights if f.name == "adapter_model.safetensors"), None)
    if weights is None or weights.index is None:
        return
    config = repo.json("adapter_config.json")
    if config is None:
        yield Flaw("adapter weights without adapter_config.json", repo.root, hint="PEFT can't load them")
        return
    ranks = {e.shape[0] for e in weights.index if e.name.endswith("lora_A.weight") and len(e.shape) == 2}
    if isinstance(config.get("r"), int) and ranks and config["r"] not in ranks and not config.get("rank_pattern"):
        yield Flaw(f"the config sets rank {config['r']}, the tensors have {sorted(ranks)[0]}", weights.path)


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO
RULES: Final = (
    Check("config/json", _E, "the JSON files that loaders read are JSON", json_broken),
    Check("config/python-json", _I, "no JSON file has NaN or Infinity", json_of_python),
    Check("config/repeated-key", _W, "no JSON object has a key twice", json_repeats),
    Check("config/none", _W, "a model has a config.json", no_config),
    Check("config/unknown", _I, "the architecture is one whose tensors can be checked", unknown_family),
    Check("config/size", _E, "the config has the sizes that the architecture needs", config_size),
    Check("config/setting", _E, "settings have values that a conversion supports", config_setting),
    Check("config/unread", _I, "every setting is known to the model's table", unread_setting),
    Check("config/missing", _E, "every tensor that the config requires exists", missing),
    Check("config/unmapped", _W, "every tensor is required by the config", unmapped),
    Check("config/shape", _E, "tensors have the shapes that the config requires", misshapen),
    *verify_packing.RULES,
    Check("tokenizer/none", _W, "a language model has a tokenizer", no_tokenizer),
    Check("tokenizer/size", _E, "every token has an embedding", vocab_size),
    Check("parts/missing", _E, "every part that modules.json names exists", modules),
    Check("parts/pooling", _E, "pooling matches the model's vectors", pooling),
    Check("adapter/config", _E, "an adapter has a config with its rank", adapter_config),
)
