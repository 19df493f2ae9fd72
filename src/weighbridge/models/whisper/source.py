"""A Whisper in any of its three forms: OpenAI's checkpoint, a transformers folder, a whisper.cpp file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.ggml import container as ggml
from weighbridge.containers.torch.tree import read_tree
from weighbridge.models.model import OpenModel
from weighbridge.models.whisper import config as configs
from weighbridge.models.whisper import mel
from weighbridge.models.whisper.forms import WhisperForm
from weighbridge.models.whisper.names import OUTPUT, PREFIX, TensorNames, names
from weighbridge.models.whisper.tokens import END, read_tokens

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor

#: OpenAI's sizes, next to the tensors.
DIMS: Final = "dims"


@dataclass(frozen=True)
class WhisperModel:
    """`tensors`: by OpenAI's names, in the shapes of whisper.cpp, in the order to write. `sizes`: without `ftype`.
    `losses`: parts that a whisper.cpp file can't hold. `tokens`: None if the source has none."""

    form: WhisperForm
    sizes: Mapping[str, int]
    tensors: Mapping[str, LogicalTensor]
    filters: bytes
    tokens: Sequence[bytes] | None
    losses: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def names(self) -> Mapping[str, TensorNames]:
        return {row.openai: row for row in names(self.sizes)}


def read(model: OpenModel, form: WhisperForm, *, tokenizer: bool = True) -> WhisperModel:
    """Reads a Whisper. `tokenizer`: raise UnsupportedError if it has none. Raises FormatError if a tensor of its sizes
    is missing or has another shape."""
    return {WhisperForm.GGML: _from_ggml, WhisperForm.OPENAI: _from_openai, WhisperForm.HF: _from_hf}[form](
        model, tokenizer
    )


def _from_ggml(model: OpenModel, tokenizer: bool) -> WhisperModel:
    source = model.index.files[0]
    header = ggml.read_header(source)
    region = next(m for m in header.marks if (m.kind, m.label) == ("value", "mel filters"))
    filters = source.read(region.start, region.end - region.start)
    tokens = [token for token, _ in ggml.vocabulary(source, header)]
    if tokens[-1:] == [END.encode()]:  # older files of English models have it, and whisper.cpp adds it
        del tokens[-1]
    sizes = {name: header.sizes[name] for name in configs.KEYS}
    shaped, losses = _shaped(model, sizes, {row.openai: row.openai for row in _rows(model, sizes)})
    return WhisperModel(WhisperForm.GGML, sizes, shaped, filters, tokens, losses)


def _from_openai(model: OpenModel, tokenizer: bool) -> WhisperModel:
    top = read_tree(model.index)
    dims = top.get(DIMS) if isinstance(top, dict) else None
    if not isinstance(dims, dict):
        raise FormatError("no sizes next to the tensors", path=str(model.place.path), field=DIMS)
    sizes = configs.sizes_of(dims, str(model.place.path), {name: name for name in configs.KEYS})
    rows = {row.openai for row in _rows(model, sizes)}
    kept = [name for name in model.logical if name in rows]  # the converter keeps the checkpoint's order
    shaped, losses = _shaped(model, sizes, {name: name for name in (*kept, *(rows - {*kept}))})
    tokens, others = _tokens(model, sizes, tokenizer)
    filters = mel.filters(sizes["n_mels"])
    return WhisperModel(WhisperForm.OPENAI, sizes, shaped, filters, tokens, (*losses, *others))


def _from_hf(model: OpenModel, tokenizer: bool) -> WhisperModel:
    path = str(model.place.folder / "config.json")
    sizes = configs.sizes_of(model.config, path, configs.KEYS)
    configs.check_config(model.config)
    prefix = PREFIX if any(name.startswith(PREFIX) for name in model.logical) else ""
    shaped, losses = _shaped(model, sizes, {row.openai: prefix + row.hf for row in _rows(model, sizes)})
    preprocessor = model.json("preprocessor_config.json") or {}
    filters = configs.filters_of(preprocessor, sizes["n_mels"])
    notes = [] if filters == mel.filters(sizes["n_mels"]) else ["the mel filters are those of preprocessor_config.json"]
    generation = {**model.config, **(model.json("generation_config.json") or {})}
    if lost := [key for key in configs.GENERATION if generation.get(key)]:
        losses.append(f"left out: {', '.join(lost)}; whisper.cpp has its own rules for them")
    tokens, others = _tokens(model, sizes, tokenizer)
    return WhisperModel(WhisperForm.HF, sizes, shaped, filters, tokens, (*losses, *others), notes)


def _tokens(model: OpenModel, sizes: Mapping[str, int], required: bool) -> tuple[list[bytes] | None, list[str]]:
    try:
        tokens, others = read_tokens(model, sizes["n_vocab"])
    except UnsupportedError:
        if required:
            raise
        return None, []
    if not others:
        return tokens, []
    return tokens, [f"left out: {plural(len(others), 'token')} that Whisper doesn't have, first {others[0]!r}"]


def _rows(model: OpenModel, sizes: Mapping[str, int]) -> Sequence[TensorNames]:
    """The tensors of a model of these sizes. Raises FormatError if there are far more than the model has."""
    rows: list[TensorNames] = []
    for row in names(sizes):
        rows.append(row)
        if len(rows) > len(model.index) + 1:
            raise FormatError(
                "tensors are missing", path=str(model.place.path), expected="those of the model's layers",
                found=plural(len(model.index), "tensor"),
            )  # fmt: skip
    return rows


def _shaped(
    model: OpenModel, sizes: Mapping[str, int], stored: Mapping[str, str]
) -> tuple[dict[str, LogicalTensor], list[str]]:
    """Returns the tensors by OpenAI's names in whisper.cpp's shapes, and the losses of the others. `stored`: the name
    in the model of each."""
    from weighbridge.tensors.nodes import reshape

    shapes = {row.openai: row for row in names(sizes)}
    shaped: dict[str, LogicalTensor] = {}
    for name, old in stored.items():
        node, row, path = model.logical.get(old), shapes[name], str(model.place.path)
        if node is None:
            raise FormatError("a tensor is missing", path=path, field=old)
        if node.spec.shape not in (row.shape, row.plain_shape):
            raise FormatError(
                "the shape doesn't fit the model's sizes", path=path, field=old, expected=list(row.plain_shape),
                found=list(node.spec.shape),
            )  # fmt: skip
        shaped[name] = reshape(node, row.shape)
    used = {*stored.values()}
    others = [name for name in model.logical if name not in used]
    tied = model.config.get("tie_word_embeddings", True)
    losses = [f"left out: {name}, for which a Whisper has no place" for name in others if name != OUTPUT]
    if OUTPUT in others and not tied:
        losses.append(f"left out: {OUTPUT}; a Whisper uses its token embedding instead (tie_word_embeddings is false)")
    return shaped, losses
