"""Renames a model's tensors: removes or adds a prefix, replaces a pattern, or uses another dialect's names.

Another dialect's names come with its layout (stacked experts, reordered rotary rows): the names would be wrong without
it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.formats import PIPELINES
from weighbridge.models.lora.pictures import is_picture_lora
from weighbridge.models.model import OpenModel
from weighbridge.models.transform import packed_rename
from weighbridge.models.transform.base import RenamedTensor, Transformed, slots, with_entries, with_nodes
from weighbridge.models.transform.options import RenameRules

if TYPE_CHECKING:
    from weighbridge.models.arch.expand import Instance
    from weighbridge.models.diffusion.model import DiffusionModel

_NAMED: Final = "wb convert copies it"


class NameWrapper(NamedTuple):
    """A part of names that the training or saving of a model added. `anywhere`: also in the middle of names."""

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
    """A prefix or part of names that users may want to remove: its origin, the number of tensors with it, and the
    options that remove it."""

    part: str
    origin: str
    tensors: int
    options: str


@dataclass(frozen=True)
class Suggestions:
    """The usual prefixes and parts in a model's names."""

    source: str
    tensors: int
    suggestions: tuple[Suggestion, ...]
    schema: str = "weighbridge/suggestions/1"


def suggestions(names: Iterable[str]) -> tuple[Suggestion, ...]:
    """Returns the usual prefixes and parts that occur in these names, most frequent first."""
    names = list(names)
    out = []
    for part, origin, anywhere in WRAPPERS:
        prefixed = sum(name.startswith(part) for name in names)
        options = f"--strip-prefix {part}"
        if anywhere and any(f".{part}" in name for name in names):
            prefixed = sum(name.startswith(part) or f".{part}" in name for name in names)
            options = rf"--replace '(^|\.){re.escape(part)}' '\1'"
        if prefixed:
            out.append(Suggestion(part, origin, prefixed, options))
    return tuple(sorted(out, key=lambda s: -s.tensors))


def rename(model: OpenModel, names: RenameRules) -> Transformed:
    """Renames the model's tensors. Raises UsageError if nothing would change, or if two names would collide."""
    if not names:
        raise UsageError("no rename option given", hint=_hint(model))
    done = Transformed(model)
    if names.plain:
        renamer = _Renamer(names)
        pairs = [(e, renamer(e.name)) for e in model.index]
        renamed = tuple(RenamedTensor((e.name,), name) for e, name in pairs if e.name != name)
        if idle := [part for part, used in renamer.used.items() if not used]:
            raise UsageError(f"no tensor's name has {idle[0]!r}", hint=_hint(model))
        if not renamed:
            raise UsageError("no tensor's name would change", hint=_hint(model))
        if unnamed := [e.name for e, name in pairs if not name]:
            raise UsageError(f"{unnamed[0]!r} would be left without a name")
        plain, changed, notes = packed_rename.settings(with_entries(model, pairs), renamed)
        done = done.then(Transformed(plain, renamed, changed=changed, notes=notes))
    if names.lora_base is not None and not names.to_names:
        raise UsageError("--lora-base applies to --to-names", hint="--to-names kohya, comfy, diffusers or peft")
    if names.to_names:
        done = done.then(to_dialect(done.model, names.to_names, names.lora_base))
    return done


def _hint(model: OpenModel) -> str:
    usual = suggestions(e.name for e in model.index)
    suggested = "; ".join(
        f"{plural(s.tensors, 'tensor', 'have')} {s.part!r} ({s.origin}): {s.options}" for s in usual[:3]
    )
    return suggested or "use --strip-prefix, --add-prefix, --replace or --to-names"


class _Renamer:
    """Computes new names and records which rules applied."""

    def __init__(self, names: RenameRules) -> None:
        self.names = names
        self.used = dict.fromkeys((*names.prefixes, *(pattern for pattern, _ in names.replace)), False)
        try:
            self.patterns = [(re.compile(pattern), new) for pattern, new in names.replace]
            for pattern, new in self.patterns:
                pattern.sub(new, "")
        except (re.error, IndexError) as error:
            raise UsageError(f"{error} in a --replace", hint="a pattern of Python's re and its replacement") from None

    def __call__(self, name: str) -> str:
        for prefix in self.names.prefixes:
            if name.startswith(prefix):
                self.used[prefix] = True
                name = name.removeprefix(prefix)
        for pattern, new in self.patterns:
            try:
                name, count = pattern.subn(new, name)
            except (re.error, IndexError) as error:
                raise UsageError(f"{error} in --replace {pattern.pattern!r} {new!r}") from None
            self.used[pattern.pattern] |= count > 0
        return f"{self.names.add_prefix}{name}"


# ------------------------------------------------------------------------------------------------ dialects


def to_dialect(model: OpenModel, dialect: str, base: str | os.PathLike[str] | None = None) -> Transformed:
    """Returns the model's tensors with another dialect's names and layout; quantized ones as their stored parts. Raises
    UnsupportedError if that takes more than moving rows. `base`: the model of a LoRA."""
    if is_picture_lora(model):
        from weighbridge.models.lora.picture_dialects import to_dialect as lora_to_dialect  # late: few models are LoRAs

        return lora_to_dialect(model, dialect, base)
    if base is not None:
        raise UsageError("--lora-base is about LoRAs of image and video models", hint=f"{model.place.path} is none")
    if model.place.trainer in PIPELINES:
        raise UsageError(
            f"{model.place.path} has several models, whose names aren't changed at once",
            hint="name one of its parts; wb convert writes all: a folder, one file or --comfy-folders",
        )
    if model.diffusion is not None:
        return _to_diffusion_dialect(model, model.diffusion, dialect)
    family, sizes = model.family, model.sizes
    if dialect not in family.dialects:
        raise UsageError(
            f"the {family.name} family has no {dialect!r} names", hint=f"it has {', '.join(family.dialects)}"
        )
    if dialect == model.dialect:
        raise UsageError(f"the tensors already have {dialect} names", hint=_NAMED)
    nodes = model.resolved.save_all(dialect)
    lost = model.resolved.unnamed(dialect)
    before, after = slots(model), family.expansion(dialect, sizes).places
    holder: dict[Instance, str] = {i: n for n in model.tensors if n in before for i in before[n].instances}
    sources = {
        name: tuple(dict.fromkeys(holder[i] for i in after[name].instances if i in holder))
        for name in nodes
        if name not in model.resolved.others
    }
    renamed = tuple(RenamedTensor(old, name) for name, old in sources.items() if old != (name,))
    stored = packed_rename.parts(model, nodes, renamed)
    notes = tuple(_notes(stored, renamed))
    done, changed, remarks = packed_rename.settings(with_nodes(model, stored), renamed)
    return Transformed(done, renamed, tuple(lost), changed=changed, notes=(*notes, *remarks))


def _to_diffusion_dialect(model: OpenModel, found: DiffusionModel, dialect: str) -> Transformed:
    """Returns an image or video model under the names of its single file or of diffusers."""
    from weighbridge.models.diffusion.model import DIFFUSERS, ORIGINAL
    from weighbridge.models.diffusion.tensors import named_tensors

    if dialect not in (ORIGINAL, DIFFUSERS):
        raise UsageError(f"{found.title} has no {dialect!r} names", hint=f"it has {ORIGINAL}, {DIFFUSERS}")
    if dialect == found.dialect and not found.prefix:
        raise UsageError(f"the tensors already have {dialect} names", hint=_NAMED)
    named = named_tensors(model, found, dialect)
    renamed = tuple(RenamedTensor(old, name) for name, old in named.sources.items() if old != (name,))
    stored = packed_rename.parts(model, named.tensors, renamed)
    owner = f" ({found.names.class_name})" if dialect == DIFFUSERS and found.names else ""
    notes = (f"{found.title}, under {dialect} names{owner}", *_notes(stored, renamed))
    return Transformed(with_nodes(model, stored), renamed, named.others, notes=notes)


def _notes(nodes: Mapping[str, Any], renamed: Iterable[RenamedTensor]) -> Iterator[str]:
    from weighbridge.tensors.nodes import Bitcast, Concat, Gather, Slice, Stored, Strided, Transpose, walk

    old = {r.new: r.old for r in renamed}
    moved = [n for n, node in nodes.items() if not isinstance(node, Stored) or len(old.get(n, (n,))) != 1]
    if moved:
        tensors = plural(len(moved), "tensor")
        yield f"another layout under these names (fused, split, or with reordered rows): {tensors}"
    moves = (Concat, Gather, Bitcast, Slice, Stored, Strided, Transpose)
    computed = [n for n, node in nodes.items() if not all(isinstance(b, moves) for b in walk(node))]
    if computed:
        yield f"{len(computed):,} of them have other values under these names, first {computed[0]}"
