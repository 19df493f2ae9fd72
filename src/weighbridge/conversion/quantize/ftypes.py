"""The dtype of each tensor that llama-quantize chooses, from names, shapes and a few facts of the model.

    facts = ModelFacts.of(metadata)
    choice = choose_types(ordered(tensors), facts, parse_ftype("q4_k_m"), TypeOptions(pure=False), imatrix=None)
    choice.types["blk.0.attn_v.weight"]   -> Q6_K
    choice.refusals                       -> reasons for which llama-quantize would stop

The rules are rows of ftypes.toml. They are applied in this order (llama_tensor_get_type of llama.cpp b11549,
src/llama-quant.cpp):

 1. kept as it is: not a `weight`, one dimension, norms, routers ...                     `keep`
 2. --token-embedding-type, --output-tensor-type: taken literally, without a fallback
 3. a file type without quantization (F16 ...) applies to all
 4. --tensor-type (the first pattern that matches the name), --pure, or the mixture      `mix`, `lift`
 5. where the rows aren't whole blocks of that type, another one                         `fallback`

Rules may depend on how many tensors of a role came before and how many there are, so order matters. A tensor that is
kept, or whose type an option sets, counts in the total but not among those before.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, F16, DType, Kind
from weighbridge.base.errors import UsageError
from weighbridge.base.ftypes import FileType
from weighbridge.base.spec import Spec
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

# Names whose roles are remembered: a model is asked about for one file type after another.
_NAMES: Final = 1 << 14


# -- requested types -------------------------------------------------------------------------------------------------

COPY: Final = "COPY"


def parse_ftype(name: str) -> FileType | None:
    """The file type of this name (in any case), alias or number; None for COPY, which changes no tensor. UsageError for
    others, also for a number followed by text: llama-quantize reads `2_K` as 2, Q4_0."""
    wanted = name.strip().upper()
    if wanted == COPY:
        return None
    rows = [row for row in table().ftypes.values() if row.writable]
    for row in rows:
        if wanted in (row.name, *row.aliases, str(row.number)):
            return row
    if origin := type_hints.origin(wanted):
        raise UsageError(f"llama.cpp has no type {wanted}: {origin.source}", hint=origin.hint)
    names = [n for row in rows for n in (row.name, *row.aliases)]
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(names)}, {COPY}"
    raise UsageError(f"llama-quantize has no file type {name!r}", hint=hint)


def ftype_names() -> tuple[str, ...]:
    """Every valid name, with aliases and COPY."""
    return (*(n for row in table().ftypes.values() if row.writable for n in (row.name, *row.aliases)), COPY)


# The file type that llama.cpp assumes from the dtype of most tensors, where the names differ (llama-model-loader.cpp).
_GUESSES: Final = MappingProxyType({"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "F32"})


def nearest_ftype(dtype: str) -> int:
    """The number of the file type of a file whose tensors are mostly `dtype`."""
    row = table().ftypes.get(_GUESSES.get(dtype, dtype))
    return row.number if row is not None else 0


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """llama-quantize's options that affect types. `tensor_types`: patterns to search for in names (`tensor_type`); the
    first match wins."""

    pure: bool = False
    leave_output: bool = False
    output_type: DType | None = None
    embedding_type: DType | None = None
    tensor_types: tuple[tuple[re.Pattern[str], DType], ...] = ()
    allow_requantize: bool = False


def tensor_type(text: str) -> tuple[re.Pattern[str], DType]:
    """Parses `REGEX=TYPE`, split at the first `=`. The pattern is lower-cased as in llama-quantize (`\\S` turns to
    `\\s`). UsageError where its ECMAScript patterns and Python's differ in meaning."""
    pattern, equals, name = text.partition("=")
    if not pattern or not equals or not name:
        raise UsageError(f"{text!r} isn't of the form PATTERN=TYPE", hint="for example: attn_q=q8_0")
    # Python alone has (?i), (?P<..>), (?<=..), \A, \Z (lower-cased: \a, \z); ECMAScript alone [[:alpha:]] classes.
    if found := re.search(r"\(\?(?![:=!])|\[\[[:.=]|\\[az]", pattern.lower()):
        raise UsageError(f"{found[0]!r} in {pattern!r} means something else in llama-quantize")
    try:
        return re.compile(pattern.lower(), re.ASCII), target_type(name)
    except re.error as error:
        raise UsageError(f"{pattern!r} isn't a regular expression: {error}") from None


def tensor_type_file(text: str) -> tuple[tuple[re.Pattern[str], DType], ...]:
    """The content of a `--tensor-type-file`: patterns separated by white space."""
    return tuple(map(tensor_type, text.split()))


def target_type(name: str) -> DType:
    """The ggml type of this name (in any case) that tensors can be quantized to. UsageError for others, with which
    llama-quantize aborts or writes a file that can't be loaded."""
    dtype = BY_NAME.get(name.upper())
    targets = _targets()
    if dtype is None or dtype not in targets:
        if origin := type_hints.origin(name.upper()):
            raise UsageError(f"llama.cpp has no type {name.upper()}: {origin.source}", hint=origin.hint)
        near = difflib.get_close_matches(name.upper(), [t.name for t in targets], n=3, cutoff=0.4)
        raise UsageError(
            f"tensors can't be quantized to {name!r}",
            hint=f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(t.name for t in targets)}",
        )
    return dtype


def _targets() -> list[DType]:
    """What ggml_quantize_chunk takes. Q8_1 and Q8_K are for arithmetic only."""
    others, plain = ("Q8_1", "Q8_K"), ("F32", "F16", "BF16")
    ggml = [t for t in BY_NAME.values() if t.ggml is not None and t.name not in others]
    return [t for t in ggml if t.kind is Kind.BLOCK or t.name in plain]


def selected(names: Iterable[str], *, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[str]:
    """The entries of an importance matrix that --include-weights or --exclude-weights select, by parts of names."""
    if include and exclude:
        raise UsageError("--include-weights and --exclude-weights can't be used together")
    if include:
        return [name for name in names if any(part in name for part in include)]
    return [name for name in names if not any(part in name for part in exclude)]


# -- the choice ------------------------------------------------------------------------------------------------------


class Refusal(NamedTuple):
    """Why llama-quantize would stop, and at which tensor."""

    tensor: str
    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class TypeChoice:
    """The type of each tensor, in order; `fallbacks`: tensors whose rows aren't whole blocks of the `wanted` type."""

    types: Mapping[str, DType]
    fallbacks: Mapping[str, tuple[DType, DType]] = field(default_factory=dict)  # name -> (wanted, chosen)
    refusals: tuple[Refusal, ...] = ()


class _RefusedTensor(Exception):
    """One tensor's refusal: rule and message."""


@lru_cache(maxsize=_NAMES)
def layer(name: str) -> int:
    """The number in `blk.N.`, or -1, as `sscanf(name, "blk.%d.", &layer)` reads it."""
    found = re.match(r"blk\.[ \t\n\v\f\r]*([+-]?[0-9]+)", name)
    return int(found[1]) if found else -1


def ordered(tensors: Tensors) -> list[tuple[str, Spec]]:
    """The tensors in llama-quantize's order (weight_name_comparer), which isn't the file's unless with --keep-split."""
    return sorted(tensors, key=lambda t: (layer(t[0]), t[0].encode()))


def role(name: str) -> str:
    """The role of a tensor by its name; "" where no rule depends on it."""
    return _role(table(), name)


@lru_cache(maxsize=_NAMES)
def _role(rows: FtypeRules, name: str) -> str:
    for found, whole, parts in rows.roles:
        if name in whole or any(part in name for part in parts):
            return found
    return ""


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
    wanted: FileType | None,
    options: TypeOptions = TypeOptions(),
    imatrix: Mapping[str, int] | None = None,
    *,
    refusing: bool = True,
) -> TypeChoice:
    """The type of each tensor. `wanted`: None for COPY. `imatrix`: number of values of each entry; empty is as none.
    `refusing`: whether each choice is examined for reasons against it."""
    if wanted is None:
        return TypeChoice({name: spec.dtype for name, spec in tensors})
    if wanted.type is None:
        raise UsageError(f"llama-quantize has no rules for {wanted.name}")
    run = _TypeChooser(facts, wanted, wanted.type, options, imatrix or {}, [role(name) for name, _ in tensors])
    types, refusals = {}, []
    for (name, spec), what in zip(tensors, run.roles, strict=True):
        try:
            types[name] = run.type_of(name, spec, what)
        except _RefusedTensor as refused:
            types[name] = spec.dtype
            refusals.append(Refusal(name, *refused.args))
        else:
            refusals += run.refusals(name, spec, types[name]) if refusing else ()
    return TypeChoice(types, run.fallbacks, tuple(refusals))


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

    def _rules(self, what: str) -> tuple[list[TypeRule], list[TypeRule]]:
        """The rules about a role, of `mix` and of `lift`: most roles have none in most file types."""
        if (found := self.by_role.get(what)) is None:
            mix, lift = ([r for r in rules if not r.role or what in r.role] for rules in (self.mix, self.lift))
            found = self.by_role[what] = mix, lift
        return found

    def type_of(self, name: str, spec: Spec, what: str) -> DType:
        """The type of a tensor with the role `what`."""
        if not quantizable(name, spec, self.facts.architecture, self.options):
            return spec.dtype
        if what in _FIXED and (fixed := self._fixed(name, what)) is not None:
            return fixed
        if self.default.kind is not Kind.BLOCK:
            return self.default
        wanted = self._manual(name) if self.options.tensor_types else None
        if wanted is None:
            wanted = self.default if self.options.pure else self._mixture(name, spec, what)
        return self._whole_blocks(name, spec, wanted)

    def _fixed(self, name: str, what: str) -> DType | None:
        """The type set by --output-tensor-type or --token-embedding-type; for the per-layer embedding, a --tensor-type
        pattern has precedence."""
        if what == "embedding" and (name == "token_embd.weight" or self._manual(name) is None):
            return self.options.embedding_type
        return self.options.output_type if what == "output" else None

    def _manual(self, name: str) -> DType | None:
        return next((dtype for pattern, dtype in self.options.tensor_types if pattern.search(name)), None)

    def _mixture(self, name: str, spec: Spec, what: str) -> DType:
        if what == "embedding" and self.tied:
            what = "output"
        if what == "output" and self.options.output_type is not None:
            return self.options.output_type
        nth, total = self._position(name, what)
        self.seen[what] += 1
        mix, lift = self._rules(what)
        if not (mix or lift):
            return self.default
        place = TensorFacts(self.facts, bool(self.imatrix), self.default.block, spec, nth, total)
        found = next((rule.type for rule in mix if matches(rule, name, place, self.default)), self.default)
        for rule in lift:
            if matches(rule, name, place, found):
                found = rule.type
        return found

    def _position(self, name: str, what: str) -> tuple[int, int]:
        """The tensor's number among how many (`layer_info`)."""
        if what not in _BY_LAYER:
            return self.seen[what], self.attn_v
        if self.facts.experts <= 1 or self.ftype.counted:
            return self.seen[what], self.facts.layers
        if not 0 <= (number := layer(name)) < self.facts.layers:
            raise _RefusedTensor(
                "layer",
                f"its type depends on its layer, but the model has no layer {number} ({self.facts.layers} layers)",
            )
        return number, self.facts.layers

    def _whole_blocks(self, name: str, spec: Spec, wanted: DType) -> DType:
        """`wanted`, or its replacement by tensor_type_fallback where rows aren't whole blocks of it."""
        columns = spec.shape[-1]
        if columns % wanted.block == 0:
            return wanted
        other = table().fallback.get(wanted.name)
        if other is None and wanted.block > 32:
            raise _RefusedTensor(
                "fallback",
                f"row length {columns} isn't a multiple of {wanted.block}, and {wanted} has no fallback",
            )
        got = other if other is not None and columns % other.block == 0 else F16
        self.fallbacks[name] = wanted, got
        return got

    def refusals(self, name: str, spec: Spec, target: DType) -> Iterable[Refusal]:
        """Why a tensor can't get the type that was chosen for it."""
        if not quantizable(name, spec, self.facts.architecture, self.options):
            return
        needed = role(name) not in ("output", "embedding") and self._needs_imatrix(target)
        if needed and not self.imatrix:
            yield Refusal(name, "imatrix-missing", f"{target} needs an importance matrix")
        if target == spec.dtype:
            return
        if self.imatrix:
            yield from self._imatrix_faults(name, spec, target, needed)
        if spec.dtype.kind is Kind.BLOCK and not self.options.allow_requantize:
            yield Refusal(name, "requantize", f"it is already quantized to {spec.dtype}")
        elif spec.dtype.kind is not Kind.BLOCK and spec.dtype.name not in ("F32", "F16", "BF16"):
            yield Refusal(name, "source", f"{spec.dtype} can't be quantized")

    def _imatrix_faults(self, name: str, spec: Spec, target: DType, needed: bool) -> Iterable[Refusal]:
        # One value per column, of each matrix of a stack.
        columns = spec.shape[-1] * (spec.shape[-3] if len(spec.shape) > 2 else 1)
        found = self.imatrix.get(name)
        if found is None and needed:
            yield Refusal(name, "imatrix-missing", f"the importance matrix has no entry for it, and {target} needs one")
        elif found not in (None, columns) and role(name) != "embedding":
            yield Refusal(name, "imatrix-size", f"the importance matrix has {found} values for it, not {columns}")

    def _needs_imatrix(self, dtype: DType) -> bool:
        rows = table()
        return dtype.name in rows.needs_imatrix or dtype.name in rows.needs_imatrix_in.get(self.ftype.name, ())
