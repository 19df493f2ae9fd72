"""The reasons why llama.cpp (b11549) refuses a GGUF as a model, beyond those of its header reader: one function per
rule. The verdicts are those of `llama_model_load_from_file`; tests compare them file by file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.spec import Shape, without_leading_ones
from weighbridge.base.words import plural
from weighbridge.containers.base import Finding, Index, Severity, Stage
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.sniff import diffusion
from weighbridge.models.arch.naming import some
from weighbridge.models.llamacpp import table
from weighbridge.models.llamacpp.candidate import Candidate
from weighbridge.models.llamacpp.projectors import PROJECTORS
from weighbridge.models.loader_rules import LoaderRule, LoadRefusal, check
from weighbridge.models.tokenizer import pretokenizer

_TOKENS: Final = "tokenizer.ggml.tokens"
_EMBEDDING: Final = "token_embd.weight"


# ---- kinds of files ----

MMPROJ: Final = "--mmproj"
_TAKEN: Final = "llama.cpp takes it as {}"

_COMPANIONS: Final = MappingProxyType({"adapter": "--lora", "mmproj": MMPROJ, "imatrix": "--imatrix"})


def option_of(model: Candidate) -> str:
    """The option with which llama.cpp takes a file that accompanies a model; "" for a model."""
    return _COMPANIONS.get(model.kind) or table().parts.get(model.architecture) or ""


def accompanies(option: str) -> str:
    """Returns the words for a file that llama.cpp takes with an option."""
    return f"accompanies a model: {_TAKEN.format(option)}"


def unknown_architecture(name: str) -> Iterator[LoadRefusal]:
    """Yields a refusal if llama.cpp has no graph for an architecture. Parts of models, such as `clip`, have one."""
    if not name or (name in table().architecture and name not in table().without_graph):
        return
    if name in diffusion.architectures():
        yield LoadRefusal(f"general.architecture is {name!r}", hint="the file is for ComfyUI-GGUF")
        return
    plain = name.replace("-", "").replace("_", "")  # Ollama's gptoss is gpt-oss
    near = next((k for k in table().architecture if k.replace("-", "").replace("_", "") == plain), None)
    hint = f"the file is for another program (or a later llama.cpp){f': llama.cpp calls it {near!r}' if near else ''}"
    yield LoadRefusal(f"general.architecture is {name!r}", hint=hint)


def _vocabulary_only(model: Candidate) -> Iterator[LoadRefusal]:
    if not model.shapes and _TOKENS in model.metadata:
        yield LoadRefusal("it has a vocabulary and no tensors: llama.cpp uses it to tokenize and loads no model")


# ---- keys ----


def _keys(model: Candidate) -> Iterator[LoadRefusal]:
    tokenizer = ["tokenizer.ggml.model"] if model.get("tokenizer.ggml.model") is None else []
    yield from (LoadRefusal(f"{model.key(key)} is missing") for key in (*missing_keys(model), *tokenizer))
    either = table().either.get(model.architecture)
    if either and all(model.get(key) is None for key in either):
        yield LoadRefusal(f"{' or '.join(map(model.key, either))} is missing")


def missing_keys(model: Candidate) -> Iterator[str]:
    """Yields the keys that the architecture needs and the model lacks, by their names in the table, except the
    tokenizer's."""
    measures = [model.layers, model.vocabulary]
    more = (keys for key, keys in table().required_with.items() if model.get(key) is not None)
    own = (*table().architecture.get(model.architecture, ()), *(model.deciding or ()))
    for key in (*table().required, *own, *chain.from_iterable(more)):
        lite = any(measures[: len(few)] == few for few in table().lite.get(key, ()))
        if model.get(key) is None and not lite:
            yield key


def _sizes(model: Candidate) -> Iterator[LoadRefusal]:
    if isinstance(model.judged, str):
        yield LoadRefusal(model.judged)
    elif model.tokenizer in table().without_tokens and not model.whole("vocab_size"):
        yield LoadRefusal(f"{model.key('vocab_size')} is missing, and so is the list of tokens")


def _fixed(model: Candidate) -> Iterator[LoadRefusal]:
    for key, constant in table().fixed.get(model.architecture, {}).items():
        value, kind = model.get(key), "is"
        if isinstance(value, Sequence):
            value, kind = len(value), "has a length of"
        if value not in (None, constant):
            yield LoadRefusal(f"{model.key(key)} {kind} {value}, llama.cpp's graph has {constant}")


def _experts(model: Candidate) -> Iterator[LoadRefusal]:
    count, used = model.whole("expert_count"), model.largest("expert_used_count")
    groups, used_groups = model.whole("expert_group_count"), model.whole("expert_group_used_count")
    if model.architecture in table().one_is_none and count <= 1:
        count = used = 0
    uneven = groups > 1 and (count % max(groups, 1) or not 0 < used_groups < groups)
    if count > table().max_experts:
        yield LoadRefusal(f"{plural(count, 'expert')}, llama.cpp supports {table().max_experts:,}")
    elif used > count:
        yield LoadRefusal(f"{used:,} of {plural(count, 'expert')} are used")
    elif count and not used:
        yield LoadRefusal(f"{plural(count, 'expert')}, but {model.key('expert_used_count')} is 0")
    elif groups and (groups >= count or uneven):
        yield LoadRefusal(f"{plural(count, 'expert')} in {plural(groups, 'group')}")
    elif not count and model.architecture in table().experts:
        yield LoadRefusal(f"every {model.architecture} model has experts, but {model.key('expert_count')} is 0")


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
    # A family's table has one length of a head; llama.cpp has one for keys and one for values. Without a tensor for
    # values in the last layer with keys, these are its values, as is one tensor for both.
    last = max((name for name in model.shapes if name.endswith("attn_k.weight")), key=_in_order, default="")
    without = last and last.replace("attn_k", "attn_v") not in model.shapes
    shared = without or "blk.0.attn_kv.weight" in model.shapes
    key = model.get("attention.key_length")
    value = model.whole("attention.value_length") or model.head
    separate = model.architecture in table().one_head_length or shared
    known = value or model.get("attention.head_count") is not None  # 0 if the first layer has no heads
    if model.fit and not (separate or model.fit.values_apart) and isinstance(key, int) and known and value != key:
        yield LoadRefusal(f"a key has {key} elements and a value {value} ({model.key('attention.value_length')})")


def _in_order(name: str) -> tuple[int, str]:
    return len(name), name  # of one tensor in all layers, by their numbers


def _layers(model: Candidate) -> Iterator[LoadRefusal]:
    if (further := model.whole("nextn_predict_layers")) > (layers := model.whole("block_count")):
        yield LoadRefusal(f"{plural(further, 'layer')} of {layers:,} predict further tokens")


# ---- vocabulary ----


def _tokenizer(model: Candidate) -> Iterator[LoadRefusal]:
    name = model.tokenizer
    if not name or name in table().without_tokens:
        return
    if name not in table().tokenizers:
        yield LoadRefusal(f"tokenizer.ggml.model is {name!r}")
        return
    if _TOKENS not in model.metadata:
        yield LoadRefusal(f"{_TOKENS} is missing")
    pre = model.metadata.get("tokenizer.ggml.pre")
    optional = any(c.merges_optional and pre in c.names for c in pretokenizer.table().classes)
    if name in table().with_merges and "tokenizer.ggml.merges" not in model.metadata and not optional:
        yield LoadRefusal("tokenizer.ggml.merges is missing")


def _pre(model: Candidate) -> Iterator[LoadRefusal]:
    pre = model.metadata.get("tokenizer.ggml.pre")
    if model.tokenizer in table().with_pretokenizer and pre and pre not in pretokenizer.table().names:
        yield LoadRefusal(f"tokenizer.ggml.pre is {pre!r}")


def _named(model: Candidate) -> Iterator[LoadRefusal]:
    # llama.cpp looks up tokens by their text in models that it recognises by `general.name`.
    name, pre = (str(model.metadata.get(key, "")) for key in ("general.name", "tokenizer.ggml.pre"))
    for row in table().named if model.listed and model.tokenizer not in table().without_tokens else ():
        exempt = _contains(pre, row.unless_pre) or _contains(model.architecture, row.unless_architecture)
        if exempt or not _contains(name.lower(), row.names):
            continue
        if missing := [token for token in row.tokens if token not in set(model.listed)]:
            message = f"{', '.join(missing)}, which llama.cpp looks up in a model called {name!r} (general.name)"
            yield LoadRefusal(message, hint="wb edit FILE --set general.name=... renames it")


def _contains(text: str, parts: Sequence[str]) -> bool:
    return any(part in text for part in parts)


def _embedding_rows(model: Candidate) -> Iterator[LoadRefusal]:
    rows, tokens = model.shapes.get(_EMBEDDING, ()), model.listed
    if tokens and len(rows) == 2 and rows[0] != len(tokens):
        yield LoadRefusal(f"{plural(len(tokens), 'token')}, but {_EMBEDDING} has {plural(rows[0], 'row')}", _EMBEDDING)


def _special(model: Candidate) -> Iterator[LoadRefusal]:
    count = len(model.listed)
    for key, value in model.metadata.items() if count else ():
        special = key.startswith("tokenizer.ggml.") and key.endswith("_token_id")
        if special and isinstance(value, int) and not 0 <= value < count:
            message = f"{key} is {value:,}, but there are {plural(count, 'token')}"
            yield LoadRefusal(message, hint=f"wb edit FILE --set {key}=ID")


# ---- tensors ----


def _listed(kind: str, description: str) -> Callable[[Candidate], Iterator[LoadRefusal]]:
    """Returns a check of one list of names in `TensorFit`. `description`: a format string of their number."""

    def refuse(model: Candidate) -> Iterator[LoadRefusal]:
        if model.fit and (names := getattr(model.fit, kind)):
            yield LoadRefusal(
                f"{description.format(len(names), plural(len(names), 'tensor'))}: {some(names)}", names[0]
            )

    return refuse


def _misshapen(model: Candidate) -> Iterator[LoadRefusal]:
    for name, expected, shape in model.fit.misshapen if model.fit else ():
        if without_leading_ones(tuple(expected)) != without_leading_ones(tuple(shape)):
            yield LoadRefusal(f"its shape is {list(shape)}, the keys require {list(expected)}", name)


def _unchecked(model: Candidate) -> Iterator[LoadRefusal]:
    if model.judged is None:
        yield LoadRefusal(f"Weighbridge has no table for this form of {model.architecture}")


#: The rule of a file that isn't a model itself.
COMPANION: Final = "llamacpp/companion"
_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO
#: A file with one of these findings isn't a model and isn't checked further.
KINDS: Final[Mapping[str, LoaderRule[Candidate]]] = MappingProxyType(
    {
        COMPANION: LoaderRule(
            _I,
            "file that accompanies a model",
            lambda model: [LoadRefusal(_TAKEN.format(option))] if (option := option_of(model)) else [],
        ),
        "llamacpp/architecture": LoaderRule(
            _W, "architecture that llama.cpp doesn't know", lambda model: unknown_architecture(model.architecture)
        ),
        "llamacpp/vocabulary-only": LoaderRule(_I, "vocabulary without a model", _vocabulary_only),
    }
)
#: Findings for which a model is refused.
REFUSALS: Final[Mapping[str, LoaderRule[Candidate]]] = MappingProxyType(
    {
        "llamacpp/key": LoaderRule(_E, "key that the architecture needs is missing", _keys),
        "llamacpp/experts": LoaderRule(_E, "inconsistent numbers of experts", _experts),
        "llamacpp/rope": LoaderRule(_E, "rotary positions that llama.cpp can't compute", _rope),
        "llamacpp/size": LoaderRule(_E, "size that the keys don't determine", _sizes),
        "llamacpp/number": LoaderRule(_E, "number that differs from a constant in llama.cpp's graph", _fixed),
        "llamacpp/heads": LoaderRule(_E, "keys and values of different lengths", _heads),
        "llamacpp/layers": LoaderRule(_E, "more layers predict further tokens than there are", _layers),
        "llamacpp/tokenizer": LoaderRule(_E, "tokenizer that is unknown or lacks a part", _tokenizer),
        "llamacpp/pre-tokenizer": LoaderRule(_E, "pre-tokenizer that llama.cpp doesn't know", _pre),
        "llamacpp/named-tokens": LoaderRule(_E, "token that a model of this name needs is missing", _named),
        "tokenizer/gguf-size": LoaderRule(
            _E, "number of embedding rows that differs from the number of tokens", _embedding_rows
        ),
        "llamacpp/missing": LoaderRule(
            _E, "tensor that the architecture needs is missing", _listed("missing", "{1} missing")
        ),
        "llamacpp/extra": LoaderRule(_E, "tensor that the architecture doesn't have", _listed("extra", "{1}")),
        "llamacpp/shape": LoaderRule(_E, "tensor whose shape contradicts the keys", _misshapen),
    }
)
#: Findings that don't keep llama.cpp from loading a file, and those that keep Weighbridge from a verdict.
LOADED: Final[Mapping[str, LoaderRule[Candidate]]] = MappingProxyType(
    {
        "llamacpp/optional": LoaderRule(
            _E, "missing tensor without which llama.cpp computes another model", _listed("optional", "{0:,} of them")
        ),
        "llamacpp/token-id": LoaderRule(_E, "special token outside the vocabulary, ignored by llama.cpp", _special),
    }
)
OPEN: Final[Mapping[str, LoaderRule[Candidate]]] = MappingProxyType(
    {"llamacpp/unchecked": LoaderRule(_I, "architecture whose tensors aren't checked", _unchecked)}
)
#: Rules whose findings mean that llama.cpp doesn't load the file as a model.
REFUSED: Final = frozenset({*KINDS, *PROJECTORS, *REFUSALS})
RULES: Final[Mapping[str, LoaderRule[Candidate]]] = MappingProxyType(
    {**KINDS, **PROJECTORS, **REFUSALS, **LOADED, **OPEN}
)


def findings(metadata: Mapping[str, Any], shapes: Mapping[str, Shape], path: str) -> tuple[Finding, ...]:
    """Returns the reasons why llama.cpp wouldn't load these keys and tensors as a model. `shapes`: in C order, of all
    files of a set."""
    model = Candidate(metadata, shapes)
    kinds = tuple(check(KINDS, model, path))
    if model.architecture == "clip":
        return (*kinds, *check(PROJECTORS, model, path))
    if kinds or model.architecture not in table().architecture:
        return kinds
    return tuple(finding for rules in (REFUSALS, LOADED, OPEN) for finding in check(rules, model, path))


# ---------------------------------------------------------------------- verdicts


#: Not a refusal if llama.cpp reads the file (--no-mmap).
UNMAPPED: Final = "gguf/data-start"


class LoadVerdict(NamedTuple):
    """`refused`: findings for which llama.cpp refuses to load files as the model that they are. `unmapped`: findings
    that prevent mapping them into memory."""

    refused: tuple[Finding, ...]
    unmapped: tuple[Finding, ...]


def stage_of(findings: Iterable[Finding]) -> str:
    """Returns the stage at which llama.cpp refuses a file with these findings: "header", "data" or "model"; "" if it
    loads the file or Weighbridge can't decide (`accepts`)."""
    findings = tuple(findings)
    early = gguf.refused_at(findings).value
    return early or ("model" if any(f.rule in REFUSED for f in findings) else "")


def accepts(findings: Iterable[Finding], option: str = "") -> bool | None:
    """Whether llama.cpp loads a file with these findings as a model, or takes it with an option (`option_of`); None if
    Weighbridge can't decide."""
    findings = tuple(findings)
    if stage_of(findings):
        return False
    return None if option not in ("", MMPROJ) or any(f.rule in OPEN for f in findings) else True


def all_findings(indexes: Sequence[Index]) -> tuple[Finding, ...]:
    """Returns the findings of the container and of llama.cpp's loader on a file or the files of a set. Reads no
    tensor."""
    keys = [f for index in indexes for f in gguf.check_keys(index)]
    if any(gguf.RULES[f.rule].refused not in (Stage.NEVER, Stage.MODEL) for f in keys if f.rule != UNMAPPED):
        return tuple(keys)
    shapes = {e.name: e.shape for index in indexes for e in index}
    return (*keys, *findings(indexes[0].metadata, shapes, indexes[0].files[0].name))


def refusals(indexes: Sequence[Index]) -> tuple[Finding, ...]:
    """Returns the findings for which llama.cpp refuses to load a file or a set as the model that it is. There are none
    for a file that accompanies a model or is for another program."""
    return verdict(indexes).refused


def faults(indexes: Sequence[Index]) -> tuple[Finding, ...]:
    """Returns the refusals, and the findings for which llama.cpp loads a different model."""
    return tuple(f for f in all_findings(indexes) if f.rule in LOADED or _refuses(f))


def verdict(indexes: Sequence[Index]) -> LoadVerdict:
    """Returns `refusals`, and the findings for which llama.cpp reads a file but doesn't map it."""
    findings = all_findings(indexes)
    unmapped = tuple(f for f in findings if f.rule == UNMAPPED)
    return LoadVerdict(tuple(filter(_refuses, findings)), unmapped)


def _refuses(finding: Finding) -> bool:
    return finding.rule not in (UNMAPPED, *KINDS, *PROJECTORS) and bool(stage_of([finding]))
