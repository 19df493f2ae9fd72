"""The matrices that sentence-transformers applies to embeddings (2_Dense, 3_Dense): as tensors of a GGUF, and back.

Follows conversion/gemma.py `EmbeddingGemma` and conversion/lfm2.py `LFM2ColBertModel` (llama.cpp b11549). llama.cpp
multiplies by them and knows neither biases nor activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.gguf.values import KV
from weighbridge.conversion.options import SafetensorsOptions
from weighbridge.conversion.plan import writers
from weighbridge.conversion.plan.builder import PlanBuilder
from weighbridge.models.arch.tables.schema import DenseEntry
from weighbridge.models.config.mapping import Leading
from weighbridge.models.config.pooling import IDENTITY, dense_folders, dense_keys, dense_tensors
from weighbridge.models.jsonfile import decode
from weighbridge.models.model import OpenModel, open_weights
from weighbridge.tensors.nodes import LogicalTensor

_WEIGHT: Final = "linear.weight"
_FILE: Final = "model.safetensors"


class DenseModule(NamedTuple):
    """`folder`: "2_Dense". `file`: that of its weights. `name`: the GGUF's tensor. `weight`: (out, in)."""

    folder: str
    file: Path
    name: str
    weight: LogicalTensor


def dense_modules(model: OpenModel, requested: bool | None) -> list[DenseModule]:
    """Returns the matrices that the GGUF of a folder gets. `requested`: None for the family's default.

    Raises UnsupportedError if they are requested and the family has none, or llama.cpp can't compute with one, and
    FormatError if a module lacks its file or the file another shape than its config.
    """
    entry = entry_of(model)
    if requested and (entry is None or not dense_folders(model.place.read)):
        reason = f"a {model.family.gguf} GGUF has no place for any" if entry is None else "the folder has none"
        raise UnsupportedError(f"--dense-modules doesn't apply: {reason}", hint="leave it out")
    if entry is None or not (entry.included if requested is None else requested):
        return []
    modules: list[DenseModule] = []
    places = dense_tensors(model.family)
    for folder in dense_folders(model.place.read):
        if folder not in places:
            raise UnsupportedError(
                f"modules.json: {folder}: a {model.family.gguf} GGUF has places for {', '.join(places)}",
                hint="leave all of them out: --no-dense-modules",
            )
        modules.append(DenseModule(folder, model.place.folder / folder / _FILE, places[folder], _weight(model, folder)))
    _check_widths(model, modules)
    return modules


def entry_of(model: OpenModel) -> DenseEntry | None:
    """Returns the family's dense modules, or None if its GGUFs can't hold any."""
    return model.family.document.meta.dense if model.family.document.meta else None


def _weight(model: OpenModel, folder: str) -> LogicalTensor:
    """The matrix of a module. The file stays open with the model."""
    raw = model.place.read(f"{folder}/config.json")
    config = None if raw is None else decode(raw, f"{folder}/config.json")
    path = model.place.folder / folder / _FILE
    if not isinstance(config, dict) or not path.is_file():
        missing = _FILE if isinstance(config, dict) else "config.json"
        reason = f"modules.json lists {folder}, but {folder}/{missing} is missing"
        raise FormatError(reason, path=str(model.place.path), hint="download it, or leave it out: --no-dense-modules")
    tensors = open_weights(path).logical
    activation = str(config.get("activation_function", IDENTITY))
    problem = "a bias" if set(tensors) - {_WEIGHT} else None if activation == IDENTITY else f"activation {activation}"
    if problem is not None:
        reason = f"{folder} has {problem}; llama.cpp only multiplies by a dense module's matrix"
        raise UnsupportedError(reason, hint="leave all of them out: --no-dense-modules")
    shape = tensors[_WEIGHT].spec.shape if _WEIGHT in tensors else ()
    declared = (config.get("out_features"), config.get("in_features"))
    if shape != declared:
        raise FormatError(
            f"{_WEIGHT} has another shape than config.json", path=str(path), expected=declared, found=shape
        )
    return tensors[_WEIGHT]


def _check_widths(model: OpenModel, modules: list[DenseModule]) -> None:
    """Raises FormatError unless each module fits the one before it and, in a GGUF without a key for the embedding's
    length, the last one the model (gemma-embedding.cpp `load_arch_hparams`, llama.cpp b11549)."""
    width = model.sizes["N"]
    for module in modules:
        rows, columns = module.weight.spec.shape
        place = f"{module.folder}/config.json"
        if columns != width:
            raise FormatError("a module doesn't fit the one before it", path=place, expected=width, found=columns)
        width = rows
    entry = entry_of(model)
    if entry is not None and entry.keys == "widths" and width != model.sizes["N"]:
        reason = f"the embedding gets {width} numbers; llama.cpp takes {model.sizes['N']} from {model.family.gguf}"
        raise UnsupportedError(reason, hint="leave the modules out: --no-dense-modules")


def keys_of(model: OpenModel, modules: list[DenseModule]) -> dict[str, KV]:
    """Returns the keys of a GGUF that its dense modules need."""
    entry = entry_of(model)
    kind = Leading if entry is not None and entry.keys == "length" else KV
    shapes = {module.name: module.weight.spec.shape for module in modules}
    return {
        key: kind("u32", value)
        for name, (rows, columns) in shapes.items()
        for key, value in dense_keys(model.family, name, rows, columns).items()
    }


def with_keys(metadata: Mapping[str, Any], keys: Mapping[str, KV], architecture: str) -> dict[str, Any]:
    """Inserts the keys in the reference's order: leading ones after the architecture, others before the pooling."""
    leading = {key: kv for key, kv in keys.items() if isinstance(kv, Leading)}
    others = {key: kv for key, kv in keys.items() if key not in leading}
    out: dict[str, Any] = {}
    for key, value in metadata.items():
        if key == f"{architecture}.pooling_type":
            out |= others
        out[key] = value
        if key == "general.architecture":
            out |= leading
    return {**out, **others}


# ---------------------------------------------------------------------- back to a folder


def move_to_folders(model: OpenModel, draft: PlanBuilder) -> None:
    """Moves a GGUF's dense modules out of the weights of a planned folder, each into its own folder."""
    for folder, name in dense_tensors(model.family).items():
        if (weight := draft.tensors.pop(f"{folder}.{_WEIGHT}", None)) is not None:
            tensors = {_WEIGHT: weight}
            written = writers.write_safetensors(f"{folder}/model", tensors, draft.metadata, SafetensorsOptions())
            draft.extra_files += written.files
            draft.requested |= dense_keys(model.family, name).keys()  # the module's config.json has them
