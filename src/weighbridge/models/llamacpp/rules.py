"""Why llama.cpp (b11549) doesn't load a GGUF as a model, beyond what its reader of the header refuses: one function a
rule, one row a function. The verdicts are those of `llama_model_load_from_file`; tests compare them file by file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.spec import Shape, without_leading_ones
from weighbridge.containers.base import Finding, Severity
from weighbridge.models.llamacpp.candidate import Candidate
from weighbridge.models.llamacpp.table import table
from weighbridge.models.tokenizer import pretokenizer

_SHOWN: Final = 5
_TOKENS: Final = "tokenizer.ggml.tokens"
_EMBEDDING: Final = "token_embd.weight"


class LoadRefusal(NamedTuple):
    """What a rule found: words, the tensor, the next step."""

    message: str
    tensor: str | None = None
    hint: str | None = None


class LoaderRule(NamedTuple):
    """`check` yields why llama.cpp refuses a model. `text` says what is wrong (docs are made from it)."""

    severity: Severity
    text: str
    check: Callable[[Candidate], Iterator[LoadRefusal]]


# ---- what it is ----


def _companion(model: Candidate) -> Iterator[LoadRefusal]:
    option = _COMPANIONS.get(model.kind) or table().parts.get(model.architecture)
    if option:
        yield LoadRefusal(f"it goes with a model: llama.cpp takes it as {option}")


_COMPANIONS: Final = MappingProxyType({"adapter": "--lora", "mmproj": "--mmproj", "imatrix": "--imatrix"})


def _architecture(model: Candidate) -> Iterator[LoadRefusal]:
    yield from unknown_architecture(model.architecture)


def unknown_architecture(name: str) -> Iterator[LoadRefusal]:
    """Why llama.cpp doesn't know what a file is, if it doesn't. It knows the parts of models, such as `clip`."""
    known = table()
    if name and (name not in known.architecture or name in known.without_graph):
        near = _spelled_otherwise(name)
        words = f"the file is for another program (or a later llama.cpp){f': llama.cpp says {near!r}' if near else ''}"
        yield LoadRefusal(f"general.architecture is {name!r}", hint=words)


def _spelled_otherwise(name: str) -> str | None:
    """A known architecture with other punctuation: Ollama's gptoss is gpt-oss."""
    plain = [name.replace("-", "").replace("_", "")]
    return next((k for k in table().architecture if k.replace("-", "").replace("_", "") in plain), None)


def _vocabulary_only(model: Candidate) -> Iterator[LoadRefusal]:
    if not model.shapes and _TOKENS in model.metadata:
        yield LoadRefusal("it has a vocabulary and no tensors: llama.cpp tokenizes with it and loads no model")


# ---- keys ----


def _keys(model: Candidate) -> Iterator[LoadRefusal]:
    wanted = [*missing_keys(model), *(k for k in ("tokenizer.ggml.model",) if model.get(k) is None)]
    yield from (LoadRefusal(f"{model.key(key)} is missing") for key in wanted)
    known, name = table(), model.architecture
    if (several := known.either.get(name)) and all(model.get(key) is None for key in several):
        yield LoadRefusal(f"{' or '.join(map(model.key, several))} is missing")


def missing_keys(model: Candidate) -> Iterator[str]:
    """The keys that its architecture needs and the model lacks, by their names in the table; the tokenizer apart."""
    wanted = [*table().required, *table().architecture.get(model.architecture, ())]
    yield from (key for key in wanted if model.get(key) is None and not _lite(model, key))


def _lite(model: Candidate, key: str) -> bool:
    measures = [model.layers, model.vocabulary]
    return any(measures[: len(few)] == few for few in table().lite.get(key, ()))


def _sizes(model: Candidate) -> Iterator[LoadRefusal]:
    if model.unsized:
        yield LoadRefusal(model.unsized)
    elif model.tokenizer in table().without_tokens and not model.whole("vocab_size"):
        yield LoadRefusal(f"{model.key('vocab_size')} is missing, and there is no list of tokens")


def _fixed(model: Candidate) -> Iterator[LoadRefusal]:
    for key, wanted in table().fixed.get(model.architecture, {}).items():
        if (found := model.get(key)) not in (None, wanted):
            yield LoadRefusal(f"{model.key(key)} is {found}, llama.cpp's graph has {wanted}")


def _experts(model: Candidate) -> Iterator[LoadRefusal]:
    count, used, groups = (
        model.whole("expert_count"),
        model.largest("expert_used_count"),
        model.whole("expert_group_count"),
    )
    if model.architecture in table().one_is_none and count <= 1:
        count = used = 0
    if count > table().max_experts:
        yield LoadRefusal(f"{count:,} experts, llama.cpp takes {table().max_experts:,}")
    elif used > count:
        yield LoadRefusal(f"{used:,} of {count:,} experts are used")
    elif count and not used:
        yield LoadRefusal(f"{count:,} experts, but {model.key('expert_used_count')} says that none is used")
    elif groups and (groups >= count or (groups > 1 and _grouped_wrongly(model, count, groups))):
        yield LoadRefusal(f"{count:,} experts in {groups:,} groups")
    elif not count and model.architecture in table().experts:
        yield LoadRefusal(f"{model.architecture} has experts in every model, but {model.key('expert_count')} says none")


def _grouped_wrongly(model: Candidate, count: int, groups: int) -> bool:
    return bool(count % groups) or not 0 < model.whole("expert_group_used_count") < groups


def _rope(model: Candidate) -> Iterator[LoadRefusal]:
    kind = model.get("rope.scaling.type")
    if isinstance(kind, str) and kind not in table().rope_scaling:
        yield LoadRefusal(
            f"{model.key('rope.scaling.type')} is {kind!r}, llama.cpp knows {', '.join(table().rope_scaling)}"
        )
    if model.architecture in table().rotates_all and (head := model.whole("attention.key_length") or model.head):
        rotated = model.get("rope.dimension_count")
        if rotated is not None and rotated != head:
            yield LoadRefusal(f"{model.key('rope.dimension_count')} is {rotated}, but a head has {head}")


def _heads(model: Candidate) -> Iterator[LoadRefusal]:
    """A family's table has one length of a head where llama.cpp has one for keys and one for values."""
    key = model.get("attention.key_length")
    value = model.whole("attention.value_length") or model.head
    apart = model.architecture in table().one_head_length or not model.last_has_values
    if model.fit and not (apart or model.fit.values_apart) and isinstance(key, int) and value and value != key:
        yield LoadRefusal(f"a key has {key} elements and a value {value} ({model.key('attention.value_length')})")


def _layers(model: Candidate) -> Iterator[LoadRefusal]:
    if (further := model.whole("nextn_predict_layers")) > (layers := model.whole("block_count")):
        yield LoadRefusal(f"{further:,} layers of {layers:,} predict further tokens")


# ---- vocabulary ----


def _tokenizer(model: Candidate) -> Iterator[LoadRefusal]:
    known, name = table(), model.tokenizer
    if not name or name in known.without_tokens:
        return
    if name not in known.tokenizers:
        yield LoadRefusal(f"tokenizer.ggml.model is {name!r}")
        return
    if _TOKENS not in model.metadata:
        yield LoadRefusal(f"{_TOKENS} is missing")
    if name in known.with_merges and "tokenizer.ggml.merges" not in model.metadata and not _needs_no_merges(model):
        yield LoadRefusal("tokenizer.ggml.merges is missing")


def _needs_no_merges(model: Candidate) -> bool:
    pre = model.metadata.get("tokenizer.ggml.pre")
    return any(c.merges_optional and pre in c.names for c in pretokenizer.table().classes)


def _pre(model: Candidate) -> Iterator[LoadRefusal]:
    pre = model.metadata.get("tokenizer.ggml.pre")
    if model.tokenizer in table().with_pretokenizer and pre and pre not in pretokenizer.table().names:
        yield LoadRefusal(f"tokenizer.ggml.pre is {pre!r}")


# ---- tensors ----


def _missing(model: Candidate) -> Iterator[LoadRefusal]:
    if (fit := model.fit) and fit.missing:
        yield LoadRefusal(f"{len(fit.missing):,} tensors are missing: {_some(fit.missing)}", fit.missing[0])


def _extra(model: Candidate) -> Iterator[LoadRefusal]:
    if (fit := model.fit) and (extra := fit.extra):
        yield LoadRefusal(f"{len(extra):,} tensors that the architecture doesn't have: {_some(extra)}", extra[0])


def _misshapen(model: Candidate) -> Iterator[LoadRefusal]:
    for name, want, found in fit.misshapen if (fit := model.fit) else ():
        if without_leading_ones(tuple(want)) != without_leading_ones(tuple(found)):
            yield LoadRefusal(f"its shape is {list(found)}, the keys ask for {list(want)}", name)


def _optional(model: Candidate) -> Iterator[LoadRefusal]:
    if (fit := model.fit) and fit.optional:
        yield LoadRefusal(f"{len(fit.optional):,} of them: {_some(fit.optional)}", fit.optional[0])


def _unchecked(model: Candidate) -> Iterator[LoadRefusal]:
    if model.unchecked:
        yield LoadRefusal(f"Weighbridge has no table of this form of {model.architecture}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO
#: A file that one of these speaks of is no model: nothing else is asked of it.
KINDS: Final[Mapping[str, LoaderRule]] = MappingProxyType(
    {
        "llamacpp/companion": LoaderRule(_I, "file that goes with a model", _companion),
        "llamacpp/architecture": LoaderRule(_W, "architecture that llama.cpp doesn't know", _architecture),
        "llamacpp/vocabulary-only": LoaderRule(_I, "vocabulary without a model", _vocabulary_only),
    }
)
#: What a model is refused for.
REFUSALS: Final[Mapping[str, LoaderRule]] = MappingProxyType(
    {
        "llamacpp/key": LoaderRule(_E, "key that the architecture needs is missing", _keys),
        "llamacpp/experts": LoaderRule(_E, "numbers of experts that don't fit each other", _experts),
        "llamacpp/rope": LoaderRule(_E, "rotary positions that llama.cpp can't compute", _rope),
        "llamacpp/size": LoaderRule(_E, "size that the keys don't give", _sizes),
        "llamacpp/number": LoaderRule(_E, "number that llama.cpp's graph has built in otherwise", _fixed),
        "llamacpp/heads": LoaderRule(_E, "keys and values of unlike lengths", _heads),
        "llamacpp/layers": LoaderRule(_E, "more layers predict further tokens than there are", _layers),
        "llamacpp/tokenizer": LoaderRule(_E, "tokenizer that is unknown or lacks a part", _tokenizer),
        "llamacpp/pre-tokenizer": LoaderRule(_E, "pre-tokenizer that llama.cpp doesn't know", _pre),
        "llamacpp/missing": LoaderRule(_E, "tensor that the architecture needs is missing", _missing),
        "llamacpp/extra": LoaderRule(_E, "tensor that the architecture doesn't have", _extra),
        "llamacpp/shape": LoaderRule(_E, "tensor of another shape than the keys say", _misshapen),
    }
)
#: What llama.cpp loads all the same, and what keeps Weighbridge from a verdict.
LOADED: Final[Mapping[str, LoaderRule]] = MappingProxyType(
    {
        "llamacpp/optional": LoaderRule(_E, "missing tensor without which llama.cpp computes another model", _optional),
    }
)
OPEN: Final[Mapping[str, LoaderRule]] = MappingProxyType(
    {"llamacpp/unchecked": LoaderRule(_I, "architecture whose tensors aren't checked", _unchecked)}
)
#: Rules whose findings mean that llama.cpp doesn't load the file as a model.
REFUSED: Final = frozenset({*KINDS, *REFUSALS})
RULES: Final[Mapping[str, LoaderRule]] = MappingProxyType({**KINDS, **REFUSALS, **LOADED, **OPEN})


def findings(metadata: Mapping[str, Any], shapes: Mapping[str, Shape], path: str) -> tuple[Finding, ...]:
    """Why llama.cpp wouldn't load these keys and tensors as a model. `shapes`: in C order, of all files of a set."""
    model = Candidate(metadata, shapes)
    kinds = tuple(_found(KINDS, model, path))
    if kinds or model.architecture not in table().architecture:
        return kinds
    return tuple(found for rules in (REFUSALS, LOADED, OPEN) for found in _found(rules, model, path))


def _found(rules: Mapping[str, LoaderRule], model: Candidate, path: str) -> Iterator[Finding]:
    for name, rule in rules.items():
        for refusal in rule.check(model):
            yield Finding(
                name, rule.severity, f"{rule.text}: {refusal.message}", path, None, refusal.tensor, refusal.hint
            )
