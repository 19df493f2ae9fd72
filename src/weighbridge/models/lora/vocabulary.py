"""Adapters that store embeddings with other rows than the base: their training added tokens, or left padding out. The
base is resized first, as `resize_token_embeddings` of transformers does before PEFT loads such an adapter, and gets the
adapter's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.base.words import plural
from weighbridge.models.lora.forms import AdapterForm, adapter_form
from weighbridge.models.lora.peft import LoraAdapter
from weighbridge.models.model import OpenModel
from weighbridge.models.transform import packed_rename
from weighbridge.models.transform.base import with_nodes
from weighbridge.models.transform.vocabulary import embeddings, with_vocabulary_size

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor, Node

# How the names of tokenizer files begin.
_TOKENIZER: Final = (
    "tokenizer", "special_tokens_map", "added_tokens", "chat_template", "vocab", "merges", "spiece", "tekken",
)  # fmt: skip


class ReadAdapter(NamedTuple):
    """An adapter that was read from `source`, and the weight that it is merged with."""

    source: OpenModel
    form: AdapterForm
    adapter: LoraAdapter
    weight: float


def read_adapter(source: OpenModel, weight: float = 1.0) -> ReadAdapter:
    """Raises UsageError for another model, and FormatError for a broken adapter."""
    form = adapter_form(source)
    if form is None:
        hint = "a folder of PEFT or MLX, or a GGUF of llama-server --lora"
        raise UsageError(f"{source.place.path} isn't a LoRA adapter", hint=hint)
    return ReadAdapter(source, form, form.read(source), weight)


def resized(model: OpenModel, adapters: Sequence[ReadAdapter]) -> OpenModel:
    """Returns the model with the embedding rows that an adapter stores; the same model if none has others. Raises
    UnsupportedError or UsageError for adapters that don't determine all rows."""
    if not model.described:
        return model
    names = embeddings(model, model.dialect, model.logical)
    stored = [_stored(model, names, read.adapter) for read in adapters]
    before = {name: model.logical[name].spec.shape[0] for name in names}
    changing = [
        number
        for number, nodes in enumerate(stored)
        if any(node.spec.shape[0] != before[n] for n, node in nodes.items())
    ]
    if not changing:
        return model
    read, nodes = adapters[changing[0]], stored[changing[0]]
    rows = {node.spec.shape[0] for node in nodes.values()}
    _check(model, read, rows, [adapters[n] for n, embedded in enumerate(stored) if embedded])
    (count,) = rows
    result = {name: _with_rows(name, model.logical[name], nodes.get(name), count, read) for name in names}
    source = read.source
    listed = [name for name in source.place.names() if name.startswith(_TOKENIZER)]
    files = {name: data for name in listed if (data := source.read(name, TOKENIZER_JSON))}
    origin = "with the adapter's tokenizer" if files else "with the base's tokenizer: the adapter has none"
    rows_before = f"{max(before.values()):,}"
    note = f"the adapter has embeddings of {plural(count, 'token')}, the base of {rows_before}: resized, {origin}"
    texts = {**model.texts, **files, **with_vocabulary_size(model, count)}
    place = replace(model.place, notes=(*model.place.notes, note))
    parts = packed_rename.parts(model, {**model.logical, **result}, ())
    return replace(with_nodes(model, parts), texts=texts, place=place)


def _with_rows(name: str, tensor: LogicalTensor, stored: Node | None, count: int, read: ReadAdapter) -> Node:
    """The embedding with `count` rows: the adapter's, which then takes its place in the sum, or the base's first."""
    from weighbridge.tensors.nodes import cast, is_plain, slice_rows

    if not is_plain(tensor):
        raise RefusedError(
            f"the embedding {name} is quantized, and the adapter has other rows",
            hint="merge into the unquantized model, then quantize",
        )
    if stored is not None:
        return cast(stored, tensor.spec.dtype)
    if count <= tensor.spec.shape[0]:
        return slice_rows(tensor, 0, (count, *tensor.spec.shape[1:]))
    raise UnsupportedError(
        f"{read.source.place.path} has embeddings of {plural(count, 'token')}, but doesn't contain {name}",
        hint="save both with the adapter: modules_to_save, or save_embedding_layers",
    )


def _stored(model: OpenModel, names: Sequence[str], adapter: LoraAdapter) -> Mapping[str, Node]:
    """The embeddings that an adapter stores in full, by the model's names."""
    family, sizes = model.family, model.sizes
    listed = {**adapter.base_weights, **adapter.whole}
    places = family.expansion("hf", sizes, family.prefix_of("hf", listed, sizes)).places
    of_role = {places[name].roles[0]: node for name, node in listed.items() if name in places}
    slots = family.expansion(model.dialect, sizes, family.prefix_of(model.dialect, model.logical, sizes)).places
    embedded = {name: of_role[role] for name in names if (role := slots[name].roles[0]) in of_role}
    return {n: node for n, node in embedded.items() if node.spec.shape[1:] == model.logical[n].spec.shape[1:]}


def _check(model: OpenModel, read: ReadAdapter, rows: set[int], storing: Sequence[ReadAdapter]) -> None:
    path = read.source.place.path
    if len(rows) > 1:
        raise UsageError(f"{path} has embeddings of different numbers of tokens: {', '.join(map(str, sorted(rows)))}")
    if model.format == "gguf":
        raise UnsupportedError(
            f"{path} has embeddings of {plural(max(rows), 'token')}; the GGUF's tokenizer can't be replaced",
            hint=f"convert it first: wb convert {model.place.path} FOLDER --to hf",
        )
    if len(storing) > 1:
        raise UnsupportedError(
            f"{path} has embeddings of {plural(max(rows), 'token')}, and {storing[-1].source.place.path} has them too",
            hint="merge them one after the other",
        )
    if read.weight != 1 and read.adapter.whole:
        raise UnsupportedError(
            f"{path} has embeddings of {plural(max(rows), 'token')}, of which the base has none to weigh them against",
            hint="merge it without a weight",
        )
