"""Renames a model's tensors: remove or add a prefix, replace a pattern, use another dialect's names.

Another dialect's names come with its layout (stacked experts, reordered rotary rows), since a name without its layout
would be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.errors import UsageError
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.transform import packed_rename
from weighbridge.models.transform.base import RenamedTensor, Transformed, with_entries, with_nodes

if TYPE_CHECKING:
    from weighbridge.models.arch.expand import Instance
    from weighbridge.tensors.nodes import LogicalTensor


@dataclass(frozen=True)
class RenameRules:
    """Changes to names, applied in this order: prefixes to strip, patterns (of `re`) and their replacements, a
    prefix to add, a dialect ("hf", "gguf", "mlx", "canonical" ...)."""

    strip: tuple[str, ...] = ()
    replace: tuple[tuple[str, str], ...] = ()
    add: str = ""
    dialect: str | None = None

    def __bool__(self) -> bool:
        return bool(self.plain or self.dialect)

    @property
    def plain(self) -> bool:
        """Whether the old name alone determines the new one."""
        return bool(self.strip or self.replace or self.add)


class NameWrapper(NamedTuple):
    """A part of names that stems from how a model was trained and saved. `anywhere`: also in the middle of names."""

    part: str
    origin: str
    anywhere: bool = False


# torch 2.13: nn/parallel/distributed.py, _dynamo/eval_frame.py (OptimizedModule), distributed/fsdp/_common_utils.py,
# distributed/algorithms/_checkpoint/checkpoint_wrapper.py, ao/quantization; peft 0.18 peft_model.py; lightning 2.6
# (fabric/wrappers.py); and the keys under which training loops store a model.
WRAPPERS: Final = (
    NameWrapper("_orig_mod.", "torch.compile", anywhere=True),
    NameWrapper("module.", "DataParallel, DistributedDataParallel, DeepSpeed"),
    NameWrapper("_fsdp_wrapped_module.", "FSDP", anywhere=True),
    NameWrapper("_checkpoint_wrapped_module.", "activation checkpointing", anywhere=True),
    NameWrapper("_forward_module.", "Lightning Fabric"),
    NameWrapper("base_model.model.", "PEFT"),
    NameWrapper("model_state_dict.", "a training loop's key"),
    NameWrapper("state_dict.", "a training loop's key"),
    NameWrapper("model_state.", "a training loop's key"),
    NameWrapper("net.", "a wrapping module"),
    NameWrapper("backbone.", "a wrapping module"),
    NameWrapper("student.", "distillation"),
    NameWrapper("language_model.", "the text part of a multimodal model"),
    NameWrapper("model.", "a wrapping module; transformers' own models have it too"),
)


@dataclass(frozen=True)
class Suggestion:
    """A prefix or part of names that users may want to remove: its origin, how many tensors have it, and the options
    that remove it."""

    part: str
    origin: str
    tensors: int
    options: str


@dataclass(frozen=True)
class Suggestions:
    """The usual prefixes and parts."""

    source: str
    tensors: int
    suggestions: tuple[Suggestion, ...]
    schema: str = "weighbridge/suggestions/1"


def suggestions(names: Iterable[str]) -> tuple[Suggestion, ...]:
    """The usual prefixes and parts found in these names, most frequent first."""
    names = list(names)
    found = (_suggested(wrapper, names) for wrapper in WRAPPERS)
    return tuple(sorted((s for s in found if s.tensors), key=lambda s: -s.tensors))


def _suggested(wrapper: NameWrapper, names: list[str]) -> Suggestion:
    part, inside = wrapper.part, f".{wrapper.part}"
    in_front = sum(name.startswith(part) for name in names)
    within = sum(inside in name for name in names) if wrapper.anywhere else 0
    options = f"--strip-prefix {part}"
    if within:
        in_front = sum(name.startswith(part) or inside in name for name in names)
        options = rf"--replace '(^|\.){re.escape(part)}' '\1'"
    return Suggestion(part, wrapper.origin, in_front, options)


def rename(model: Checkpoint, names: RenameRules) -> Transformed:
    """The model under other names. UsageError if nothing would change, or if two names would collide."""
    if not names:
        raise UsageError("no rename option given", hint=_hint(model))
    done = Transformed(model)
    if names.plain:
        done = done.then(_renamed(model, names))
    if names.dialect:
        done = done.then(to_dialect(done.model, names.dialect))
    return done


def _hint(model: Checkpoint) -> str:
    usual = suggestions(e.name for e in model.index)
    known = "; ".join(f"{s.tensors:,} tensors have {s.part!r} ({s.origin}): {s.options}" for s in usual[:3])
    return known or "use --strip-prefix, --add-prefix, --replace or --to-names"


def _renamed(model: Checkpoint, names: RenameRules) -> Transformed:
    new = _Renamer(names)
    pairs = [(e, new(e.name)) for e in model.index]
    renamed = tuple(RenamedTensor((e.name,), name) for e, name in pairs if e.name != name)
    if not renamed:
        raise UsageError("no tensor's name would change", hint=_hint(model))
    if idle := [prefix for prefix, used in new.used.items() if not used]:
        raise UsageError(f"no tensor's name has {idle[0]!r}", hint=_hint(model))
    if any(not name for _, name in pairs):
        raise UsageError(f"{next(e.name for e, name in pairs if not name)!r} would be left without a name")
    done, changed, notes = packed_rename.settings(with_entries(model, pairs), renamed)
    return Transformed(done, renamed, changed=changed, notes=notes)


class _Renamer:
    """The new name, and which of the rules applied."""

    def __init__(self, names: RenameRules) -> None:
        self.names = names
        self.used = dict.fromkeys((*names.strip, *(pattern for pattern, _ in names.replace)), False)
        try:
            self.patterns = [(re.compile(pattern), new) for pattern, new in names.replace]
            for pattern, new in self.patterns:
                pattern.sub(new, "")
        except (re.error, IndexError) as error:
            raise UsageError(f"{error} in a --replace", hint="a pattern of Python's re and its replacement") from None

    def __call__(self, name: str) -> str:
        for prefix in self.names.strip:
            if name.startswith(prefix):
                self.used[prefix] = True
                name = name.removeprefix(prefix)
        for pattern, new in self.patterns:
            try:
                name, count = pattern.subn(new, name)
            except (re.error, IndexError) as error:
                raise UsageError(f"{error} in --replace {pattern.pattern!r} {new!r}") from None
            self.used[pattern.pattern] |= count > 0
        return f"{self.names.add}{name}"


# ------------------------------------------------------------------------------------------------ dialects


def to_dialect(model: Checkpoint, dialect: str) -> Transformed:
    """The model's tensors with another dialect's names and layout; quantized ones as their stored parts.
    UnsupportedError where that takes more than moving rows."""
    family, sizes = model.family, model.sizes
    if dialect not in family.dialects:
        raise UsageError(
            f"the {family.name} family has no {dialect!r} names", hint=f"it has {', '.join(family.dialects)}"
        )
    if dialect == model.dialect:
        raise UsageError(f"the tensors have {dialect}  names already")
    lost = family.holding(model.dialect, sizes, model.tensors, family.unmapped_roles(dialect, sizes, model.roles))
    nodes = family.save(dialect, sizes, model.roles)
    renamed = tuple(_pairs(model, dialect, nodes))
    stored = packed_rename.parts(model, nodes, renamed)
    notes = tuple(_notes(stored, renamed))
    done, changed, remarks = packed_rename.settings(with_nodes(model, stored), renamed)
    return Transformed(done, renamed, tuple(lost), changed=changed, notes=(*notes, *remarks))


def _pairs(model: Checkpoint, dialect: str, nodes: Mapping[str, LogicalTensor]) -> Iterator[RenamedTensor]:
    """The source names of each tensor."""
    family, sizes = model.family, model.sizes
    places = family.expansion(model.dialect, sizes, family.prefix_of(model.dialect, model.logical, sizes)).places
    holder: dict[Instance, str] = {i: n for n in model.tensors if n in places for i in places[n].instances}
    after = family.expansion(dialect, sizes).places
    for name in nodes:
        old = dict.fromkeys(holder[i] for i in after[name].instances if i in holder)
        if tuple(old) != (name,):
            yield RenamedTensor(tuple(old), name)


def _notes(nodes: Mapping[str, Any], renamed: Iterable[RenamedTensor]) -> Iterator[str]:
    from weighbridge.tensors.nodes import Bitcast, Concat, Gather, Slice, Stored, Strided, Transpose, walk

    old = {r.new: r.old for r in renamed}
    copied = [n for n, node in nodes.items() if isinstance(node, Stored) and len(old.get(n, (n,))) == 1]
    moved = [n for n in nodes if n not in copied]
    if moved:
        yield f"{len(moved):,} tensors have another layout under these names: fused, split, or with reordered rows"
    moves = (Concat, Gather, Bitcast, Slice, Stored, Strided, Transpose)
    computed = [n for n, node in nodes.items() if not all(isinstance(b, moves) for b in walk(node))]
    if computed:
        yield f"{len(computed):,} of them have other values under these names, first {computed[0]}"
