"""The dtype of each tensor that llama-quantize chooses, from names, shapes and a few facts of the model.

    facts = ModelFacts.of(metadata)
    choice = choose_types(ordered(tensors), facts, parse_ftype("q4_k_m"), TypeOptions(pure=False), imatrix=None)
    choice.types["blk.0.attn_v.weight"]   -> Q6_K
    choice.refusals                       -> reasons for which llama-quantize would stop

The rules are rows of ftypes.toml. They are applied in this order (llama_tensor_get_type of llama.cpp b11549,
src/llama-quant.cpp):

 1. kept: not a `weight`, one dimension, norms, routers ...                              `keep`
 2. --token-embedding-type, --output-tensor-type: taken literally, without a fallback
 3. a file type without quantization (F16 ...) applies to all
 4. --tensor-type (the first pattern that matches the name), --pure, or the mixture      `mix`, `lift`
 5. replaced if the rows aren't whole blocks of that type                                `fallback`

Rules may depend on a tensor's position among those of its role and on their total, so order matters. A tensor that is
kept, or whose type an option sets, counts only in the total.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, F16, DType, Kind, by_name
from weighbridge.base.dtypes import TABLE as SHIPPED_TYPES
from weighbridge.base.errors import UsageError
from weighbridge.base.ftypes import FileType
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.base.words import suggest, suggest_for_glob
from weighbridge.conversion.quantize import type_hints
from weighbridge.conversion.quantize.ftype_table import FtypeRules, TypeRule, build_table, table
from weighbridge.conversion.quantize.type_conditions import ModelFacts, TensorFacts, matches

__all__ = [
    "COPY",
    "ModelFacts",
    "Refusal",
    "TypeChoice",
    "TypeOptions",
    "build_table",
    "choose_types",
    "ftype_names",
    "layer",
    "ordered",
    "parse_ftype",
    "quantizable",
    "role",
    "selected",
    "table",
    "target_type",
    "tensor_type",
    "tensor_type_file",
]  # fmt: skip

Tensors = Sequence[tuple[str, Spec]]

# Names whose roles are cached, because the types of a model are chosen for one file type after another.
_NAMES: Final = 1 << 14


# -- requested types -------------------------------------------------------------------------------------------------

COPY: Final = "COPY"


def parse_ftype(name: str) -> FileType | None:
    """The file type of this name (in any case), alias or number; None for COPY, which changes no tensor.

    Raises UsageError for others, also for a number followed by text: llama-quantize reads `2_K` as 2, Q4_0.
    """
    upper = name.strip().upper()
    if upper == COPY:
        return None
    rows = [row for row in table().ftypes.values() if row.writable]
    for row in rows:
        if upper in (row.name, *row.aliases, str(row.number)):
            return row
    if (plugged := by_name(upper)) and plugged.kind is Kind.BLOCK and plugged not in SHIPPED_TYPES:
        return FileType(plugged.name, 0, plugged)  # of a plug-in: llama.cpp has no number for it
    _refuse_foreign(upper)
    names = [n for row in rows for n in (row.name, *row.aliases)]
    hint = suggest(upper, names, f"known: {', '.join(names)}, {COPY}", cutoff=0.4)
    raise UsageError(f"llama-quantize has no file type {name!r}", hint=hint)


def _refuse_foreign(name: str) -> None:
    """Raises UsageError for a type that only other tools have."""
    if origin := type_hints.origin(name):
        raise UsageError(f"llama.cpp has no type {name}: {origin.source}", hint=origin.hint)


def ftype_names() -> tuple[str, ...]:
    """Every valid name, with aliases and COPY."""
    return (*(n for row in table().ftypes.values() if row.writable for n in (row.name, *row.aliases)), COPY)


# The file type that llama.cpp assumes from the dtype of most tensors, if the names differ (llama-model-loader.cpp).
_GUESSES: Final = MappingProxyType({"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "F32"})


def nearest_ftype(dtype: str) -> int:
    """The number of the file type of a file whose tensors are mostly `dtype`."""
    row = table().ftypes.get(_GUESSES.get(dtype, dtype))
    return row.number if row is not None else 0


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """llama-quantize's options that affect types. `tensor_types`: patterns to search for in names (`tensor_type`); the
    first match wins. `chosen`: types by name, before any pattern."""

    pure: bool = False
    leave_output: bool = False
    output_type: DType | None = None
    embedding_type: DType | None = None
    tensor_types: tuple[tuple[re.Pattern[str], DType], ...] = ()
    allow_requantize: bool = False
    chosen: Mapping[str, DType] = field(default_factory=dict)

    def type_of(self, name: str) -> DType | None:
        """The type of a tensor by its name; None if no pattern matches it."""
        found = self.chosen.get(name)
        return found or next((dtype for pattern, dtype in self.tensor_types if pattern.search(name)), None)


def tensor_type(text: str) -> tuple[re.Pattern[str], DType]:
    """Parses `REGEX=TYPE`, split at the first `=`, and lower-cases the pattern as llama-quantize does (`\\S` to `\\s`).

    Raises UsageError for a pattern that means something else as an ECMAScript pattern of llama-quantize.
    """
    pattern, equals, name = text.partition("=")
    if not pattern or not equals or not name:
        raise UsageError(f"{text!r} isn't of the form PATTERN=TYPE", hint="for example: attn_q=q8_0")
    # Only Python has (?i), (?P<..>), (?<=..), \A, \Z (lower-cased: \a, \z); only ECMAScript [[:alpha:]] classes.
    if match := re.search(r"\(\?(?![:=!])|\[\[[:.=]|\\[az]", pattern.lower()):
        raise UsageError(f"{match[0]!r} in {pattern!r} means something else in llama-quantize")
    try:
        return re.compile(pattern.lower(), re.ASCII), target_type(name)
    except re.error as error:
        raise UsageError(f"{pattern!r} isn't a regular expression: {error}") from None


def unmatched_patterns(options: TypeOptions, names: Collection[str]) -> list[str]:
    """A line for each pattern that matches no tensor: llama-quantize ignores it."""
    return [
        f"the pattern {pattern.pattern} matches no tensor: {suggest_for_glob(pattern.pattern, names)}"
        for pattern, _ in options.tensor_types
        if not any(map(pattern.search, names))
    ]


def tensor_type_file(text: str) -> tuple[tuple[re.Pattern[str], DType], ...]:
    """The content of a recipe or a `--tensor-type-file`: patterns separated by white space."""
    return tuple(map(tensor_type, text.split()))


def target_type(name: str) -> DType:
    """The ggml type of this name (in any case), if tensors can be quantized to it.

    Raises UsageError for others, for which llama-quantize aborts or writes a file that can't be loaded.
    """
    dtype = by_name(name.upper())
    # ggml_quantize_chunk; Q8_1 and Q8_K are for arithmetic only
    ggml = [t for t in BY_NAME.values() if t.ggml is not None and t.name not in ("Q8_1", "Q8_K")]
    targets = [t for t in ggml if t.kind is Kind.BLOCK or t.name in ("F32", "F16", "BF16")]
    if dtype is None or dtype not in targets:
        _refuse_foreign(name.upper())
        names = [t.name for t in targets]
        raise UsageError(
            f"tensors can't be quantized to {name!r}", hint=suggest(name.upper(), names, f"known: {', '.join(names)}")
        )
    return dtype


def selected(names: Iterable[str], *, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[str]:
    """The entries of an importance matrix that --include-weights or --exclude-weights select, by parts of names."""
    if include and exclude:
        raise UsageError("--include-weights and --exclude-weights can't be used together")
    if include:
        return [name for name in names if any(part in name for part in include)]
    return [name for name in names if not any(part in name for part in exclude)]


# -- the choice ------------------------------------------------------------------------------------------------------


class Refusal(NamedTuple):
    """The tensor at which llama-quantize would stop, and why."""

    tensor: str
    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class TypeChoice:
    """The type of each tensor, in order. `fallbacks`: those whose rows aren't whole blocks of their type. For a target
    size, `errors`: the expected relative errors; `expected`: bytes and the KL divergence at this size and at others, if
    effects are measured."""

    types: Mapping[str, DType]
    fallbacks: Mapping[str, tuple[DType, DType]] = field(default_factory=dict)  # name -> (by the rules, chosen)
    refusals: tuple[Refusal, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)
    expected: tuple[tuple[int, float], ...] = ()


class _RefusedTensor(Exception):
    """One tensor's refusal: rule and message."""


@lru_cache(maxsize=_NAMES)
def layer(name: str) -> int:
    """The number in `blk.N.`, or -1, as `sscanf(name, "blk.%d.", &layer)` reads it."""
    match = re.match(r"blk\.[ \t\n\v\f\r]*([+-]?[0-9]+)", name)
    return int(match[1]) if match else -1


def ordered(tensors: Tensors) -> list[tuple[str, Spec]]:
    """The tensors in llama-quantize's order (weight_name_comparer); with --keep-split it uses that of the file."""
    return sorted(tensors, key=lambda t: (layer(t[0]), t[0].encode()))


def role(name: str) -> str:
    """The role of a tensor by its name; "" if no rule depends on it."""
    return _role(table(), name)


@lru_cache(maxsize=_NAMES)
def _role(rows: FtypeRules, name: str) -> str:
    return next((role for role, names, parts in rows.roles if name in names or any(part in name for part in parts)), "")


def quantizable(name: str, spec: Spec, architecture: str, options: TypeOptions = TypeOptions()) -> bool:
    """Whether llama-quantize may change a tensor's type."""
    if _dims(spec) < 2 or (options.leave_output and name == "output.weight"):
        return False
    return not _kept(table(), name, architecture)


@lru_cache(maxsize=_NAMES)
def _kept(rows: FtypeRules, name: str, architecture: str) -> bool:
    """Whether llama-quantize keeps the type of a tensor of this name."""
    # The reference's test accepts any name of five bytes: `name.rfind("weight") == name.size() - 6`, and both wrap.
    if not name.endswith("weight") and len(name.encode()) != 5:
        return True
    parts = (*rows.kept_parts, *rows.kept_in.get(architecture, ()))
    return name in rows.kept_names or any(part in name for part in parts)


def _dims(spec: Spec) -> int:
    """ggml_n_dims: trailing dimensions of 1 (leading ones, in our order) don't count."""
    shape = spec.shape
    if not shape or shape[0] > 1:
        return len(shape) or 1
    return next((len(shape) - i for i, n in enumerate(shape[:-1]) if n > 1), 1)


def choose_types(
    tensors: Tensors,
    facts: ModelFacts,
    ftype: FileType | None,
    options: TypeOptions = TypeOptions(),
    imatrix: Mapping[str, int] | None = None,
    *,
    refusing: bool = True,
) -> TypeChoice:
    """Chooses the type of each tensor.

    `ftype`: None for COPY. `imatrix`: the number of values of each entry; an empty one counts as none. `refusing`:
    whether to collect the reasons for which llama-quantize would stop.
    """
    if ftype is None:
        return TypeChoice({name: spec.dtype for name, spec in tensors})
    if ftype.type is None:
        raise UsageError(f"llama-quantize has no rules for {ftype.name}")
    chooser = _TypeChooser(facts, ftype, ftype.type, options, imatrix or {}, [role(name) for name, _ in tensors])
    types, refusals = {}, []
    for (name, spec), tensor_role in zip(tensors, chooser.roles, strict=True):
        try:
            types[name] = chooser.type_of(name, spec, tensor_role)
        except _RefusedTensor as refused:
            types[name] = spec.dtype
            refusals.append(Refusal(name, *refused.args))
        else:
            refusals += chooser.refusals(name, spec, types[name]) if refusing else ()
    return TypeChoice(types, chooser.fallbacks, tuple(refusals))


# Roles whose type an option may set.
_FIXED: Final = frozenset({"output", "embedding"})
# Roles whose tensors are numbered by layer; the others by counting.
_BY_LAYER: Final = frozenset({"ffn_up", "ffn_gate", "ffn_down"})


@dataclass
class _TypeChooser:
    """One pass over a model's tensors. `seen`: tensors of each role that the rules have decided so far."""

    facts: ModelFacts
    ftype: FileType
    default: DType
    options: TypeOptions
    imatrix: Mapping[str, int]
    roles: Sequence[str]
    seen: Counter[str] = field(default_factory=Counter)
    fallbacks: dict[str, tuple[DType, DType]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tied = "output" not in self.roles
        self.attn_v = self.roles.count("attn_v")
        self.mix = tuple(filter(self._applies, table().mix))
        self.lift = tuple(filter(self._applies, table().lift))
        self.by_role: dict[str, tuple[list[TypeRule], list[TypeRule]]] = {}

    def _applies(self, rule: TypeRule) -> bool:
        """Whether a rule is about the file type."""
        return (not rule.ftype or self.ftype.name in rule.ftype) and self.ftype.name not in rule.barred

    def type_of(self, name: str, spec: Spec, role: str) -> DType:
        """The type of a tensor with a role."""
        if not quantizable(name, spec, self.facts.architecture, self.options):
            return spec.dtype
        option = self._type_by_option(name, role) if role in _FIXED else None
        if option is not None or self.default.kind is not Kind.BLOCK:
            return option or self.default
        dtype = self.options.type_of(name)
        if dtype is None:
            dtype = self.default if self.options.pure else self._type_by_rules(name, spec, role)
        columns = spec.shape[-1]
        if columns % dtype.block == 0:
            return dtype
        smaller = table().fallback.get(dtype.name)  # tensor_type_fallback
        if smaller is None and dtype.block > 32:
            raise _RefusedTensor(
                "fallback",
                f"row length {columns} isn't a multiple of {dtype.block}, and {dtype} has no fallback",
            )
        chosen = smaller if smaller is not None and columns % smaller.block == 0 else F16
        self.fallbacks[name] = dtype, chosen
        return chosen

    def _type_by_option(self, name: str, role: str) -> DType | None:
        """The type set by --output-tensor-type or --token-embedding-type.

        For the per-layer embedding, a --tensor-type pattern has precedence.
        """
        if role == "embedding" and (name == "token_embd.weight" or self.options.type_of(name) is None):
            return self.options.embedding_type
        return self.options.output_type if role == "output" else None

    def _type_by_rules(self, name: str, spec: Spec, role: str) -> DType:
        """The type of the mixture: `mix`, then `lift`."""
        if role == "embedding" and self.tied:
            role = "output"
        if role == "output" and self.options.output_type is not None:
            return self.options.output_type
        nth, total = self._position(name, role)
        self.seen[role] += 1
        if role not in self.by_role:  # most roles have no rules in most file types
            mix, lift = ([r for r in rules if not r.role or role in r.role] for rules in (self.mix, self.lift))
            self.by_role[role] = mix, lift
        mix, lift = self.by_role[role]
        if not (mix or lift):
            return self.default
        place = TensorFacts(self.facts, bool(self.imatrix), self.default.block, spec, nth, total)
        dtype = next((rule.type for rule in mix if matches(rule, name, place, self.default)), self.default)
        for rule in lift:
            if matches(rule, name, place, dtype):
                dtype = rule.type
        return dtype

    def _position(self, name: str, role: str) -> tuple[int, int]:
        """The tensor's number in its role, and the total (`layer_info`)."""
        if role not in _BY_LAYER:
            return self.seen[role], self.attn_v
        if self.facts.experts <= 1 or self.ftype.counted:
            return self.seen[role], self.facts.layers
        if not 0 <= (number := layer(name)) < self.facts.layers:
            raise _RefusedTensor(
                "layer",
                f"its type depends on its layer, but the model has no layer {number} ({self.facts.layers} layers)",
            )
        return number, self.facts.layers

    def refusals(self, name: str, spec: Spec, target: DType) -> Iterable[Refusal]:
        """The reasons for which llama-quantize would stop at the type that was chosen for a tensor."""
        if not quantizable(name, spec, self.facts.architecture, self.options):
            return
        rules, exempt = table(), role(name) in ("output", "embedding")
        types = rules.needs_imatrix | rules.needs_imatrix_in.get(self.ftype.name, frozenset())
        required = not exempt and target.name in types
        if required and not self.imatrix:
            yield Refusal(name, "imatrix-missing", f"{target} needs an importance matrix")
        if target == spec.dtype:
            return
        if self.imatrix:  # one value per column, of each matrix of a stack
            columns = spec.shape[-1] * (spec.shape[-3] if len(spec.shape) > 2 else 1)
            size = self.imatrix.get(name)
            if size is None and required:
                reason = f"the importance matrix has no entry for it, and {target} needs one"
                yield Refusal(name, "imatrix-missing", reason)
            elif size not in (None, columns) and role(name) != "embedding":
                yield Refusal(name, "imatrix-size", f"the importance matrix has {size} values for it, not {columns}")
        if spec.dtype.kind is Kind.BLOCK and not self.options.allow_requantize:
            yield Refusal(name, "requantize", f"it is already quantized to {spec.dtype}")
        elif spec.dtype.kind is not Kind.BLOCK and spec.dtype.name not in ("F32", "F16", "BF16"):
            yield Refusal(name, "source", f"{spec.dtype} can't be quantized")
