"""Repairs of models as frameworks save them.

Names: torch.compile, DistributedDataParallel and PEFT prefix each name, and models that were saved without their head,
or inside another class, lack a part of each name or have one too many. Counts: some embeddings have more rows than
config.json declares, and some models lack layers that it counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.models.arch.diagnose import SizeMismatch
from weighbridge.models.arch.naming import MappingError
from weighbridge.models.model import OpenModel
from weighbridge.models.transform.base import with_entries, with_nodes

_FURTHER: Final = "num_nextn_predict_layers"
_MEGATRON: Final = "Megatron-LM's names are replaced by those of the family"
_MLX_VLM: Final = "mlx-vlm's names are replaced by those of Hugging Face"
_EMBEDDING: Final = "word_embeddings.weight"  # of Megatron-LM
_KERAS_HUB: Final = "KerasHub's names are replaced by those of the family"
_KERAS_EMBEDDING: Final = "layers/reversible_embedding/vars/0"
_MAXTEXT_EMBEDDING: Final = "token_embedder.embedding"
_CTRANSLATE2: Final = "CTranslate2's names are replaced by those of the family"
_PACKED: Final = ("quantization", "quantization_config")  # settings of tensors that are decoded
_TRAINERS: Final = ("_orig_mod.", "module.")
_WRAPPERS: Final = (*_TRAINERS, "base_model.model.")


def unwrapped(model: OpenModel) -> tuple[OpenModel, list[str]]:
    """Returns the model with the names and the vocabulary of its family, and notes on the changes. Returns a model
    unchanged if it fits already, or if no change makes it fit."""
    if model.format in ("gguf", "ggml") or not len(model.index) or model.diffusion:
        return model, []
    if model.index.metadata.get("format") == "mlx" and (with_towers := _from_mlx_vlm(model)):
        return with_towers
    if _fits(model):
        return from_mlx_lm(model) if model.index.metadata.get("format") == "mlx" else (model, [])
    if renamed := _from_other_names(model):
        return renamed
    if recounted := _recounted(model):
        return recounted
    for names, note in _renamings(model):
        if len(set(names.values())) < len(names):
            continue
        candidate = with_entries(model, ((e, names[e.name]) for e in model.index))
        if _fits(candidate):
            return candidate, [note]
    return model, []


def from_mlx_lm(model: OpenModel) -> tuple[OpenModel, list[str]]:
    """Returns a folder of mlx-lm with the layers that it has, and notes: its classes drop those that predict further
    tokens, which config.json still counts."""
    for candidate, note in ((model, ""), *_with_counts(model)):
        with suppress(MappingError):
            candidate.resolved.save("hf")
            return candidate, [note] if note else []
    return model, []


def without_wrappers(model: OpenModel) -> OpenModel:
    """Returns the model of a training checkpoint without prefixes of its names, and with a note on them: those of
    torch.compile and DistributedDataParallel; with a config, whatever keeps the names from being its family's."""
    bare, note = dict[str, str](), ""
    for names, removed in _removed(model, _TRAINERS):
        bare, note = names, f"names begin with {removed}, which is removed"
    renamed = _under(model, bare, note) if bare else model
    try:
        if renamed.config and not _fits(renamed):
            wanted = ((found, words) for found, words in _renamings(model) if len(set(found.values())) == len(found))
            fitting = (_under(model, found, words) for found, words in wanted)
            return next((candidate for candidate in fitting if _fits(candidate)), renamed)
    except WeighbridgeError:  # no family, or an unreadable config
        pass
    return renamed


def _under(model: OpenModel, names: Mapping[str, str], note: str) -> OpenModel:
    """The model under new names, with a note."""
    renamed = with_entries(model, ((e, names[e.name]) for e in model.index))
    return replace(renamed, place=replace(renamed.place, notes=(*renamed.place.notes, note)))


def without_mlx_names(model: OpenModel) -> tuple[OpenModel, list[str]]:
    """Returns the model under Hugging Face's names if its names are mlx-vlm's, else unchanged."""
    return _from_mlx_vlm(model) or (model, [])


def for_the_table(model: OpenModel) -> OpenModel:
    """Returns the model under names that its family's table has, with a note: a folder of mlx-vlm is renamed."""
    named, notes = without_mlx_names(model)
    return replace(named, place=replace(named.place, notes=(*notes, *named.place.notes))) if notes else model


def named_alike(a: OpenModel, b: OpenModel) -> tuple[OpenModel, OpenModel]:
    """Two models to compare, unless both have the same names and shapes: folders of mlx-vlm under Hugging Face's names,
    those of mlx-lm with the layers that they have, Whispers under OpenAI's names, image models under their file's."""
    left, right = ({entry.name: entry.shape for entry in model.index} for model in (a, b))
    if left == right:
        return a, b
    if a.makes_pictures and b.makes_pictures:
        from weighbridge.models.diffusion.alike import under_file_names  # late: other models have no such names

        a, b = under_file_names((a, b))
        return a, b
    with suppress(WeighbridgeError):  # tensors of another number of layers
        if (whisper := _under_openai_names(a)) and (second := _under_openai_names(b)):
            return whisper, second
    first, second = (
        from_mlx_lm(model)[0] if model.index.metadata.get("format") == "mlx" and model.described else model
        for model in (without_mlx_names(a)[0], without_mlx_names(b)[0])
    )
    return first, second


def parts_lacking(a: OpenModel, b: OpenModel) -> list[str]:
    """Notes on the parts of a pipeline that only one of two models has; none for other models. `a`, `b`: as
    `named_alike` returns them."""
    if not (a.makes_pictures and b.makes_pictures):
        return []
    from weighbridge.models.diffusion import alike

    return alike.parts_lacking(a, b)


def _under_openai_names(model: OpenModel) -> OpenModel | None:
    """A Whisper under OpenAI's names, None for other models."""
    from weighbridge.models.whisper.forms import form_of  # late, as are the next: few models are Whispers

    if (form := form_of(model)) is None:
        return None
    from weighbridge.models.whisper.source import read
    from weighbridge.tensors.nodes import as_node

    tensors = read(model, form, tokenizer=False).tensors
    return with_nodes(model, {name: as_node(tensor) for name, tensor in tensors.items()})


def _from_mlx_vlm(model: OpenModel) -> tuple[OpenModel, list[str]] | None:
    if model.index.metadata.get("format") != "mlx":
        return None
    from weighbridge.models.mlxlm.towers import from_mlx_vlm  # late: only folders of MLX have its names

    named = from_mlx_vlm(model)
    if named is None:
        return None
    if not named.described or _fits(named):
        return named, [_MLX_VLM]
    recounted = _recounted(named)
    return (recounted[0], [_MLX_VLM, *recounted[1]]) if recounted else None


def _from_other_names(model: OpenModel) -> tuple[OpenModel, list[str]] | None:
    """The model under canonical names if its names are Megatron-LM's, CTranslate2's, KerasHub's or MaxText's, or under
    the family's names if they are another framework's."""
    if any(entry.name.endswith(_EMBEDDING) for entry in model.index):
        from weighbridge.models.megatron_roles import from_megatron  # late: few models have its names

        if (renamed := from_megatron(model)) is not None:
            return renamed, [_MEGATRON]
    if model.format == "ctranslate2":
        from weighbridge.models.ctranslate2_roles import from_ctranslate2  # late, likewise

        if (renamed := from_ctranslate2(model)) is not None:
            return renamed, [_CTRANSLATE2]
    if any(entry.name.endswith(_KERAS_EMBEDDING) for entry in model.index):
        from weighbridge.models.keras_roles import from_keras_hub  # late, likewise

        if (renamed := from_keras_hub(model)) is not None and _fits(renamed):
            return renamed, [_KERAS_HUB]
    if any(entry.name.endswith(_MAXTEXT_EMBEDDING) for entry in model.index):
        from weighbridge.models.maxtext_roles import from_maxtext  # late, likewise

        if (found := from_maxtext(model)) is not None and _fits(found[0]):
            return found
    from weighbridge.models.framework_names import from_frameworks  # late: only conversions to other names need it

    return next(((renamed, [note]) for renamed, note in from_frameworks(model) if _fits(renamed)), None)


def _fits(model: OpenModel) -> bool:
    try:
        return model.resolved.report.ok
    except UnsupportedError:
        return False


def unwrapped_folder(model: OpenModel) -> tuple[OpenModel, list[str]]:
    """Applies `unwrapped` to a folder that keeps its names: they change only if they are another framework's, or if all
    of them begin with the same part and no name of the family does."""
    if model.format == "gguf":
        return model, []
    if model.format == "ctranslate2":
        from weighbridge.models.whisper.ctranslate2 import from_ctranslate2  # late, likewise

        if (whisper := from_ctranslate2(model)) is not None:
            return whisper, [_CTRANSLATE2]
    if found := _from_mlx_vlm(model) or _from_other_names(model):
        from weighbridge.tensors.nodes import as_node  # late: numpy

        renamed, notes = found
        named = renamed.resolved.save_all("hf") if renamed.described else renamed.logical
        plain = with_nodes(renamed, {name: as_node(tensor) for name, tensor in named.items()})
        kept = {key: value for key, value in plain.config.items() if key not in _PACKED}
        texts = {"config.json": json.dumps(kept, indent=2).encode()} if len(kept) < len(plain.config) else {}
        return replace(plain, texts={**plain.texts, **texts}), notes
    parts = {e.name.partition(".")[0] for e in model.index}
    with suppress(WeighbridgeError):  # no family, or an unreadable config
        if len(parts) == 1 and not parts & {name.partition(".")[0] for name in model.family.names("hf", model.sizes)}:
            return unwrapped(model)
    return model, []


def _recounted(model: OpenModel) -> tuple[OpenModel, list[str]] | None:
    """The model with one count of config.json corrected, and a note; None if it fits its family in no such way."""
    for candidate, note in _with_counts(model):
        if _fits(candidate):
            return candidate, [note]
    return None


def _with_counts(model: OpenModel) -> Iterator[tuple[OpenModel, str]]:
    """Yields the model with a count of config.json corrected, and a note."""
    from weighbridge.models.arch.config import value_at, with_part
    from weighbridge.models.transform.text_config import text_path  # late: few models need it

    for key, count, note in _corrected_counts(model):
        path = text_path(model, (key,))
        part = {**value_at(model.config, path), key: count}
        data = json.dumps(with_part(model.config, path, part), indent=2).encode()
        yield replace(model, texts={**model.texts, "config.json": data}), f"config.json: {note}"


def _corrected_counts(model: OpenModel) -> Iterator[tuple[str, int, str]]:
    """Yields config keys with the count that the tensors have, and a note: the rows of the embedding, if config.json
    declares fewer tokens; no layers that predict further tokens, if config.json counts some that are missing."""
    from weighbridge.models.arch.config import value_at
    from weighbridge.models.transform.text_config import text_path  # late, likewise

    mismatches: Sequence[SizeMismatch] = ()
    with suppress(UnsupportedError):
        mismatches = model.resolved.mismatches
    if len(mismatches) == 1 and mismatches[0].key == "vocab_size" and mismatches[0].actual > mismatches[0].declared:
        yield "vocab_size", mismatches[0].actual, f"{mismatches[0]}: the model has as many tokens as rows"
    count = value_at(model.config, text_path(model, (_FURTHER,))).get(_FURTHER)
    if isinstance(count, int) and count > 0:
        yield _FURTHER, 0, f"{_FURTHER} is {count}, but the tensors of these layers are missing: none is counted"


def _removed(model: OpenModel, wrappers: Sequence[str]) -> Iterator[tuple[dict[str, str], str]]:
    """Yields names without one more of `wrappers` each time, as long as all begin with one, and what was removed."""
    names, removed = {e.name: e.name for e in model.index}, ""
    while wrapper := next((w for w in wrappers if names and all(n.startswith(w) for n in names.values())), None):
        names = {old: new.removeprefix(wrapper) for old, new in names.items()}
        removed += wrapper
        yield names, removed


def _renamings(model: OpenModel) -> Iterator[tuple[dict[str, str], str]]:
    """Yields new names by old ones, and a note, in the order in which they are tried."""
    names, removed = {e.name: e.name for e in model.index}, ""
    for names, removed in _removed(model, _WRAPPERS):
        yield names, f"names begin with {removed}, which is removed"
    parts = {new.partition(".")[0] for new in names.values()}
    if len(parts) == 1:
        part = f"{parts.pop()}."
        bare = {old: new.removeprefix(part) for old, new in names.items()}
        yield bare, f"names begin with {removed}{part}, which is removed"
    family_names = model.family.names("hf", model.sizes)
    heads = dict.fromkeys(f"{name.partition('.')[0]}." for name in family_names)
    first = f"{removed} is removed from names, and " if removed else ""
    for head in heads:
        prefixed = {old: new if new in family_names else f"{head}{new}" for old, new in names.items()}
        yield prefixed, f"{first}names lack the prefix {head}, which is added"
